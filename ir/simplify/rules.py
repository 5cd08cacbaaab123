"""Rewrite rules: equalities written in the IR itself, compiled to one function per root operator.

A rule is `(name, left, right, *conditions)`. Wildcards are leaves of both sides; one that occurs twice must match one
object. Constant subexpressions of the right side fold when the rule fires. Operands of commutative operators match in
either order. docs/rules.md specifies rules.

>>> table = Rules(("add.zero", x + 0, x), ("add.constants", (x + c0) + c1, x + (c0 + c1)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Protocol

from convgen.ir import expr as ops
from convgen.ir.expr import Const, Expr, Splat, Var, lift
from convgen.ir.mutate import postorder
from convgen.ir.record import frozen
from convgen.ir.simplify.bounds import FULL
from convgen.ir.types import AnyType, Kind, Type, bool_

INTEGER = Type("integer", Kind.SIGNED, 64)  #: in a rule: any one integer type, or vectors of it
VALUE = Type("value", Kind.SIGNED, 64)  #: in a rule: any one type


def _wild(names: str, type: Type) -> tuple[Var, ...]:
    return tuple(Var(name, 0, type) for name in names.split())


x, y, z = _wild("x y z", INTEGER)
u, v, w = _wild("u v w", VALUE)
(p,) = _wild("p", bool_)
c0, c1, c2 = _CONSTANTS = _wild("c0 c1 c2", INTEGER)
#: left operand of `//`, `%`, `<<` and `>>`, for which `Expr` has no reflected operators
zero = Const(INTEGER, 0)
_WILDCARDS = frozenset((x, y, z, u, v, w, p))


@frozen
class Exact:
    """Condition: the operation at the root of `expr` provably does not wrap."""

    expr: Expr


@frozen
class Fits:
    """Condition: the number `expr`, made of constants, is representable in the rule's integer type."""

    expr: Expr


exact, fits = Exact, Fits

#: An expression of constants is computed without wrapping; any other must be provable.
Condition = Expr | Exact | Fits


@frozen(eq=False)
class Rule:
    """`left == right` for all values of the wildcards, where the conditions hold."""

    name: str
    left: Expr
    right: Expr
    conditions: tuple[Condition, ...]


class Prover(Protocol):
    """The interface of rules to the simplifier: proofs, and simplification of new nodes."""

    def __call__(self, e: Expr) -> Expr: ...

    def proves(self, cond: Expr) -> bool: ...

    def cannot_wrap(self, e: Expr) -> bool: ...


Rewrite = Callable[[Prover, Any], Expr | None]


class Rules:
    """A table of rules."""

    def __init__(self, *rows: tuple[Any, ...]) -> None:
        self.rules = tuple(Rule(name, left, lift(right, left), tuple(conds)) for name, left, right, *conds in rows)


class Rewrites(dict[type[Expr], Rewrite | None]):
    """The rewrite functions of some tables by root operator, compiled on first use; None without rules."""

    def __init__(self, *tables: Rules) -> None:
        super().__init__()
        self.tables = tables

    def __missing__(self, root: type[Expr]) -> Rewrite | None:
        rules = [rule for table in self.tables for rule in table.rules if type(rule.left) is root]
        self[root] = _compile(root, rules) if rules else None
        return self[root]


# ---------------------------------------------------------------- types and numbers at run time


class _IsInteger(dict[AnyType, bool]):
    """Whether the elements of a type are integers, computed once a type."""

    def __missing__(self, type: AnyType) -> bool:
        self[type] = type.elem.is_int
        return self[type]


def number(e: Expr) -> int | None:
    """Return the integer or bool constant that `e` is in every element; None if it is not a constant."""
    if type(e) is Splat:
        e = e.a
    return e.bits if type(e) is Const and not e.dtype.is_float else None


def wrapped(value: int, type: Type) -> int:
    """Return the value of an integer or bool type that equals `value` modulo 2^bits."""
    return (value - type.min) % (1 << type.bits) + type.min


def make(value: int, type: AnyType) -> Expr:
    """Return the constant `value`, wrapped, in every element of `type`."""
    if not isinstance(type, Type):
        return Splat(type, make(value, type.elem))
    least, most = FULL[type] or (0, 0)
    return Const(type, int(value) if least <= value <= most else wrapped(int(value), type))


# ---------------------------------------------------------------- matching

Step = tuple[str, tuple[str, ...]]  #: a test in Python, and the assignments that must precede it


class _Match:
    """The tests that one operand order of a left side needs, in order, and the Python names of its wildcards."""

    def __init__(self, pattern: Expr) -> None:
        self.steps: list[Step] = []
        self.names: dict[Expr, str] = {}  # of operands
        self.numbers: dict[Expr, str] = {}  # of constants
        self._loads: list[str] = []
        self._visit(pattern, "e", root=True)
        self.last_loads = tuple(self._loads)  #: the assignments after the last test

    def _test(self, test: str) -> None:
        self.steps.append((test, tuple(self._loads)))
        self._loads = []

    def _visit(self, pattern: Expr, path: str, root: bool = False) -> None:
        if isinstance(pattern, Const) or pattern in _CONSTANTS:
            self._constant(pattern, path)
        elif pattern in self.names:
            self._test(f"{path} is {self.names[pattern]}")
        elif pattern in _WILDCARDS:
            self._bind(pattern, path)
        else:
            if not root:
                self._test(f"type({path}) is {type(pattern).__name__}")
            fields = type(pattern).child_fields
            self._loads += [f"{path}_{f} = {path}.{f}" for f in fields]
            for f in fields:
                self._visit(getattr(pattern, f), f"{path}_{f}")

    def _bind(self, pattern: Expr, path: str) -> None:
        if pattern.type is INTEGER and not any(n.type is INTEGER for n in self.names):
            self._test(f"is_integer[{path}.type]")  # one test suffices: the operands share their type
        self.names[pattern] = path

    def _constant(self, pattern: Expr, path: str) -> None:
        of_vector = f"number({path}) if type({path}) is Splat else None"
        self._loads.append(f"k{path} = {path}.bits if type({path}) is Const else {of_vector}")
        if isinstance(pattern, Const):
            value = f"wrapped({pattern.bits}, {path}.type.elem)" if pattern.bits < 0 else f"{pattern.bits}"
            self._test(f"k{path} == {value}")
        elif pattern in self.numbers:
            self._test(f"k{path} == {self.numbers[pattern]}")
        else:
            self._test(f"k{path} is not None")
            self.numbers[pattern] = f"k{path}"

    def type_of(self, type: AnyType) -> str:
        """Return Python source for the type that `type` stands for."""
        return next((f"{path}.type" for wild, path in self.names.items() if wild.type is type), "e.type")


def _orders(e: Expr) -> Iterator[Expr]:
    """Yield `e` with the operands of commutative operators in all orders; constants stay on the right."""
    cls: Any = type(e)
    if isinstance(e, (Const, Var)):
        yield e
        return
    for operands in product(*(list(_orders(getattr(e, f))) for f in cls.child_fields)):
        yield cls(*operands)
        if isinstance(e, ops.Binary) and e.commutes and not _is_constant(operands[1]):
            yield cls(*operands[::-1])


def _is_constant(e: Expr) -> bool:
    return all(leaf not in _WILDCARDS for leaf in postorder(e))


# ---------------------------------------------------------------- making the right side

_PYTHON: dict[type[Expr], str] = {
    **{cls: f"({{}} {cls.symbol} {{}})" for cls in (ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Mod, ops.And, ops.Or)},
    **{cls: f"({{}} {cls.symbol} {{}})" for cls in (ops.Xor, ops.Shl, ops.Shr, ops.Lt, ops.Le, ops.Eq, ops.Ne)},
    ops.Min: "min({}, {})",
    ops.Max: "max({}, {})",
}


def _folded(e: Expr, match: _Match) -> str:
    """Return Python source for the value of `e`, an expression of constants."""
    if isinstance(e, Const):
        return str(e.bits)
    if e in match.numbers:
        return match.numbers[e]
    return _PYTHON[type(e)].format(*(_folded(getattr(e, f), match) for f in type(e).child_fields))


def _built(e: Expr, match: _Match, root: bool = False) -> str:
    """Return Python source that builds `e`; nodes below the root are simplified."""
    if e in match.names:
        return match.names[e]
    if _is_constant(e):
        return f"make({_folded(e, match)}, {match.type_of(e.type)})"
    cls = type(e)
    node = f"{cls.__name__}({', '.join(_built(getattr(e, f), match) for f in cls.child_fields)})"
    return node if root else f"s({node})"


def _condition(c: Condition, match: _Match) -> str:
    if isinstance(c, Exact):
        return f"s.cannot_wrap({_built(c.expr, match, root=True)})"
    if isinstance(c, Fits):
        type = match.type_of(INTEGER)
        return f"{type}.elem.min <= {_folded(c.expr, match)} <= {type}.elem.max"
    return _folded(c, match) if _is_constant(c) else f"s.proves({_built(c, match, root=True)})"


# ---------------------------------------------------------------- one function per root

#: Rules as a tree of tests: shared leading tests are made once. The key None leads to the matched rules.
Trie = dict[Step | None, Any]


def _source(rules: list[Rule]) -> str:
    """Return Python source that tries the rules of one root, shared tests made once."""
    trie: Trie = {}
    for rule in rules:
        for shape in dict.fromkeys(_orders(rule.left)):
            match = _Match(shape)
            at = trie
            for step in match.steps:
                at = at.setdefault(step, {})
            found = at.setdefault(None, [])
            if rule.conditions or all(rule is not other for other, _ in found):
                found.append((rule, match))
    return "\n".join(["def rewrite(s, e):", *_emitted(trie, "    ", frozenset()), "    return None"])


def _emitted(trie: Trie, indent: str, done: frozenset[str]) -> Iterator[str]:
    """Yield the source of a subtree of tests; `done` are the assignments made before it."""
    for step, below in trie.items():
        if step is None:
            for rule, match in below:
                yield from _action(rule, match, indent)
            continue
        test, loads = step
        yield from (f"{indent}{load}" for load in loads if load not in done)
        done |= frozenset(loads)
        yield f"{indent}if {test}:"
        yield from _emitted(below, indent + "    ", done)


def _action(rule: Rule, match: _Match, indent: str) -> Iterator[str]:
    conditions = " and ".join(_condition(c, match) for c in rule.conditions)
    yield from (f"{indent}{load}" for load in match.last_loads)
    result = f"return {_built(rule.right, match)}  # {rule.name}"
    yield f"{indent}if {conditions}: {result}" if conditions else f"{indent}{result}"


def _compile(root: type[Expr], rules: list[Rule]) -> Rewrite:
    scope: dict[str, Any] = {cls.__name__: cls for cls in (*_PYTHON, *vars(ops).values()) if isinstance(cls, type)}
    scope.update(is_integer=_IsInteger(), number=number, wrapped=wrapped, make=make)
    exec(compile(_source(rules), f"<rules of {root.__name__}>", "exec"), scope)
    compiled: Rewrite = scope["rewrite"]
    return compiled
