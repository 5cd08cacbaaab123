"""Constructor text that rebuilds the identical node: `parse(dump(n)) is n`.

One binding a line, operands before their users; the last line is the node itself. What is used once and is not deep is
written where it is used. `parse` evaluates the names below, literals, tuples and calls, and nothing else. A dump may
come from anywhere: arguments must be of the types that the classes are annotated with.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from convgen.ir import expr, floats, fused, products, program, sizes, stmt, votes
from convgen.ir.caret import PointedError
from convgen.ir.error import UserError
from convgen.ir.expr import Const, Lane, Var
from convgen.ir.layout.digits import Digit, Digits, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Dim, Plane, Rectangle, RectangleOrder, Swizzle, TensorDim
from convgen.ir.layout.mma import BlockAtom, MmaAtom, MmaTile
from convgen.ir.layout.tags import Layout
from convgen.ir.node import CLASSES, Node
from convgen.ir.program import Program
from convgen.ir.record import fields_of
from convgen.ir.stmt import Site, Stmt
from convgen.ir.types import SCALARS, AddressSpace, PointerType, Type, VectorType, pointer, vector

#: Records that are fields of nodes, by the name under which they are written. `Block` is the statement.
RECORDS: dict[str, type[Any]] = {
    c.__name__: c
    for c in (
        *(Site, Fragment, Digit, Digits, Layout, Plane, Rectangle),
        *(Swizzle, Dim, TensorDim, MmaTile, MmaAtom, BlockAtom, Program),
    )
}

_NODES: dict[str, Any] = {name: c for name, c in CLASSES.items() if c.__module__.startswith("convgen.ir.")}
_MAKERS: dict[str, Any] = {**_NODES, **RECORDS, "vector": vector, "pointer": pointer}
_CONSTANTS: dict[str, Any] = {**SCALARS, **{s.name: s for s in (*Space, *AddressSpace, *RectangleOrder)}}
_NAMES: dict[type[Any], str] = {c: name for name, c in (*_NODES.items(), *RECORDS.items())}
_ATOMS = (str, int, type(None), Type, VectorType, Space, RectangleOrder)
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
            case Type() | Space() | RectangleOrder():
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
    fields = fields_of(type(value))
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
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                reader.names[name] = reader.value(call)
            case _:
                raise reader.error(line, "a line that binds no name")
    match tree.body[-1:]:
        case [ast.Expr(value=value)]:
            root = reader.value(value)
        case _:
            raise UserError("a dump that does not end in a node")
    expr.reserve_ids(reader.greatest_id)
    return root


Fits = Callable[[Any], bool]


def _fits(wanted: Any) -> Fits:
    """Whether a value is of an annotated type, tuples looked through; a bool is no integer."""
    parts = get_args(wanted)
    if isinstance(wanted, UnionType):
        each = [_fits(part) for part in parts]
        return lambda value: any(fits(value) for fits in each)
    if get_origin(wanted) is tuple:
        if parts[1:] == (...,):
            one = _fits(parts[0])
            return lambda value: isinstance(value, tuple) and all(map(one, value))
        each = [_fits(part) for part in parts]
        return lambda value: (
            isinstance(value, tuple) and len(value) == len(each) and all(fits(v) for fits, v in zip(each, value))
        )
    if wanted in (int, NoneType):
        return lambda value: type(value) is wanted
    return lambda value: isinstance(value, wanted)


@cache
def _parameters(name: str) -> tuple[tuple[str, str, Fits], ...]:
    """The name of each argument that a maker takes, its type as text, and a test for it."""
    maker = _MAKERS[name]
    known = {**_NODES, **RECORDS, **vars(sys.modules[maker.__module__])}  # some names are there for type checkers only
    hints = get_type_hints(maker, localns=known)
    names = getattr(maker, "fields", None) or [
        p for p in inspect.signature(getattr(maker, "__wrapped__", maker)).parameters if p in hints
    ]
    return tuple((n, _text(hints[n]), _fits(hints[n])) for n in names)


def _text(wanted: Any) -> str:
    """A type without the modules that it and its parts are from."""
    return wanted.__name__ if isinstance(wanted, type) else re.sub(r"\w+\.", "", str(wanted))


class _Reader:
    """Evaluates the few kinds of syntax that `dump` writes."""

    def __init__(self, lines: list[str]) -> None:
        self.lines, self.greatest_id = lines, 0
        self.names: dict[str, Any] = dict(_CONSTANTS)
        self.size: dict[
            Any, tuple[int, int]
        ] = {}  # of what is made: how deep it is, how many nodes its text would have

    def error(self, at: ast.expr | ast.stmt, message: str) -> UserError:
        return PointedError(f"{message}, in line {at.lineno} of a dump", self.lines[at.lineno - 1], at.col_offset)

    def value(self, e: ast.expr) -> Any:
        match e:
            case ast.Constant(value=str() | None as value):
                return value
            case ast.Constant(value=int() as value) if value < 1 << 64:
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)) if value <= 1 << 63:
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
        for (field, wanted, fits), arg in zip(_parameters(name), args):
            if not fits(arg):
                raise self.error(at, f"{name}: given {field} {_shown(arg)}, wanted {wanted}")
        try:
            value = _MAKERS[name](*args)
        except (TypeError, AttributeError, ArithmeticError, ValueError, UserError) as e:
            raise self.error(at, f"{name}: {e}") from None
        if isinstance(value, Var):
            self.greatest_id = max(self.greatest_id, value.id)
        return value


def _shown(value: Any) -> str:
    """A value in few words."""
    if isinstance(value, str | int | None):
        return ascii(value)[:40]
    return f"a {type(value).__name__}"


_ = floats, fused, products, program, sizes, stmt, votes  # their classes must be declared before CLASSES is read
