"""Constructor text that rebuilds the identical node: `parse(dump(n)) is n`.

One binding a line, operands before their users; the last line is the node itself. What is used once and is not deep is
written where it is used. `parse` evaluates the names below, literals, tuples and calls, and nothing else.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any

import attrs

from convgen.ir import expr, layout, program, stmt
from convgen.ir.caret import PointedError
from convgen.ir.error import UserError
from convgen.ir.expr import Const, Lane, Var
from convgen.ir.fragment import Digit, Fragment, Space
from convgen.ir.layout import Layout
from convgen.ir.memory import Dim, MemoryDigit, Order, Plane, Rectangle, Swizzle, TensorDim
from convgen.ir.mma import MmaAtom, MmaTile
from convgen.ir.node import CLASSES, Node
from convgen.ir.program import Program
from convgen.ir.stmt import Site, Stmt
from convgen.ir.types import SCALARS, AddressSpace, PointerType, Type, VectorType, pointer, vector

#: Records that are fields of nodes, by the name under which they are written. `Block` is the statement.
RECORDS: dict[str, type[Any]] = {
    c.__name__: c
    for c in (
        *(Site, Fragment, Digit, Layout, MemoryDigit, Plane, Rectangle),
        *(Swizzle, Dim, TensorDim, MmaTile, MmaAtom, Program),
    )
} | {"LayoutBlock": layout.Block}

_NODES: dict[str, Any] = {name: c for name, c in CLASSES.items() if c.__module__.startswith("convgen.ir.")}
_MAKERS: dict[str, Any] = {**_NODES, **RECORDS, "vector": vector, "pointer": pointer}
_CONSTANTS: dict[str, Any] = {**SCALARS, **{s.name: s for s in (*Space, *AddressSpace, *Order)}}
_NAMES: dict[type[Any], str] = {c: name for name, c in (*_NODES.items(), *RECORDS.items())}
_ATOMS = (str, int, type(None), Type, VectorType, Space, Order)
_DEEPEST = 12  #: calls inside one another on a line


def dump(root: Node | Program) -> str:
    """The text of a node, or of a program."""
    return "\n".join(_lines(root))


def _lines(root: Any) -> Iterator[str]:
    order = list(_postorder(root))
    uses = Counter(part for value in order for part in _parts(value))
    names: dict[Any, str] = {}
    taken: Counter[str] = Counter()
    depth: dict[Any, int] = {}

    def text(value: Any) -> str:
        match value:
            case PointerType():
                return f"pointer({text(value.pointee)}, {value.space.name})"
            case Type() | Space() | Order():
                return value.name
            case VectorType():
                return f"vector({text(value.elem)}, {value.lanes})"
            case tuple():
                return "(" + ", ".join(map(text, value)) + ("," if len(value) == 1 else "") + ")"
            case str() | int() | None:
                return repr(value)
        if value in names:
            return names[value]
        return f"{_NAMES[type(value)]}({', '.join(map(text, _fields(value)))})"

    for value in order[:-1]:
        depth[value] = 1 + max((depth[p] for p in _parts(value) if p not in names), default=0)
        repeated = uses[value] > 1 and not isinstance(value, (Const, Lane, Digit))
        if repeated or isinstance(value, Stmt) or depth[value] >= _DEEPEST:
            line, name = text(value), _name(value)
            taken[name] += 1
            names[value] = f"{name}{taken[name]}" if name in _FAMILIES else name + "_" * (taken[name] - 1)
            yield f"{names[value]} = {line}"
    yield text(root)


_FAMILIES = ("stmt", "expr", "data")  #: of bound names; with a number, none is the name of anything else


def _name(value: Any) -> str:
    """What a bound name is called, or begins with: a variable by its name and id, all else by its family."""
    if isinstance(value, Var):
        return f"{value.name if value.name.isidentifier() else 'v'}_{value.id}"
    return "stmt" if isinstance(value, Stmt) else "expr" if isinstance(value, expr.Expr) else "data"


def _fields(value: Any) -> tuple[Any, ...]:
    """Constructor arguments, without trailing ones that have their defaults."""
    if isinstance(value, Node):
        return tuple(getattr(value, f) for f in value.fields)
    fields = attrs.fields(type(value))
    given = [getattr(value, f.name) for f in fields]
    while given and given[-1] == fields[len(given) - 1].default:
        given.pop()
    return tuple(given)


def _parts(value: Any) -> Iterator[Any]:
    """The nodes and records that a value is made of, tuples looked through."""
    for field in value if isinstance(value, tuple) else _fields(value):
        if isinstance(field, tuple):
            yield from _parts(field)
        elif not isinstance(field, _ATOMS):
            yield field


def _postorder(root: Any) -> Iterator[Any]:
    """Every part once, parts before the whole."""
    seen: set[Any] = set()
    stack: list[tuple[Any, bool]] = [(root, False)]
    while stack:
        value, ready = stack.pop()
        if ready:
            yield value
        elif value not in seen:
            seen.add(value)
            stack.append((value, True))
            stack.extend((p, False) for p in reversed(list(_parts(value))))


# ---------------------------------------------------------------- parsing


def parse(text: str) -> Any:
    """The node that `dump` wrote. Raises UserError at what is no such text; variables made later get new ids."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise UserError(f"a dump that is no list of bindings: {e}") from None
    reader = _Reader(text.splitlines())
    for line in tree.body[:-1]:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                reader.names[name] = reader.value(value)
            case _:
                raise reader.error(line, "a line that binds no name")
    match tree.body[-1:]:
        case [ast.Expr(value=value)]:
            root = reader.value(value)
        case _:
            raise UserError("a dump that does not end in a node")
    expr.reserve_ids(reader.greatest_id)
    return root


class _Reader:
    """Evaluates the few kinds of syntax that `dump` writes."""

    def __init__(self, lines: list[str]) -> None:
        self.lines, self.greatest_id = lines, 0
        self.names: dict[str, Any] = dict(_CONSTANTS)

    def error(self, at: ast.expr | ast.stmt, message: str) -> UserError:
        return PointedError(f"{message}, in line {at.lineno} of a dump", self.lines[at.lineno - 1], at.col_offset)

    def value(self, e: ast.expr) -> Any:
        match e:
            case ast.Constant(value=str() | int() | None as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
                return -value
            case ast.Tuple(elts=parts):
                return tuple(map(self.value, parts))
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _MAKERS:
                return self.made(e, name, [self.value(a) for a in args])
            case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
                raise self.error(e, f"an unknown name {name}")
        raise self.error(e, f"a {type(e).__name__} expression")

    def made(self, at: ast.expr, name: str, args: list[Any]) -> Any:
        try:
            value = _MAKERS[name](*args)
        except (TypeError, AttributeError, ValueError, UserError) as e:
            raise self.error(at, f"{name}: {e}") from None
        if isinstance(value, Var):
            self.greatest_id = max(self.greatest_id, value.id)
        return value


_ = program, stmt  # their classes must be declared before CLASSES is read
