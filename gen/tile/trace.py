"""Trace of a tile kernel: its values, tiles and statements as data, in program order.

A kernel's function runs once. Values know their shape and type, but have no layout yet; scalars (offsets, loop
variables) are expressions of the IR from the start.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias, TypeVar

import attrs
import numpy as np

from convgen.ir import expr as ir
from convgen.ir import floats, functions
from convgen.ir.error import UserError
from convgen.ir.expr import Expr, Splat, Var
from convgen.ir.record import define, frozen
from convgen.ir.sizes import Extent
from convgen.ir.types import Type, bf16, f32, scalar, vector
from convgen.ir.verify_exprs import refused
from convgen.tile.source import Line, called, line
from convgen.tile.tiles import Index, Shape, Tensor, Tile, common_shape
from convgen.tile.xetile_maps import Maps


@frozen(eq=False, kw_only=True)
class Value:
    """A block of elements, distributed over the workgroup."""

    shape: Shape
    elem: Type

    @property
    def args(self) -> tuple[Value, ...]:
        """Return the values from which it is computed."""
        return ()

    @property
    def dtype(self) -> str:
        """Return the name of the element type."""
        return self.elem.name

    def __add__(self, other: Value | float | Expr) -> Value:
        return applied("add", self, other)

    def __radd__(self, other: float) -> Value:
        return applied("add", other, self)

    def __sub__(self, other: Value | float | Expr) -> Value:
        return applied("sub", self, other)

    def __rsub__(self, other: float) -> Value:
        return applied("sub", other, self)

    def __mul__(self, other: Value | float | Expr) -> Value:
        return applied("mul", self, other)

    def __rmul__(self, other: float) -> Value:
        return applied("mul", other, self)

    def __neg__(self) -> Value:
        return applied("neg", self)

    def __abs__(self) -> Value:
        return applied("abs", self)

    def __and__(self, other: Value | float | Expr) -> Value:
        return applied("and", self, other)

    def __or__(self, other: Value | float | Expr) -> Value:
        return applied("or", self, other)

    def __xor__(self, other: Value | float | Expr) -> Value:
        return applied("xor", self, other)

    def __invert__(self) -> Value:
        return applied("not", self)

    def __lshift__(self, other: Value | float | Expr) -> Value:
        return applied("shift_left", self, other)

    def __rshift__(self, other: Value | float | Expr) -> Value:
        return applied("shift_right", self, other)

    # ------------------------------------------------------------ Python operations that blocks do not have

    def _refused(self, given: str, wanted: str) -> UserError:
        """Return the error for an operation; `{}` in both texts stands for the block's name."""
        return UserError(f"given {given}, wanted {wanted}".replace("{}", called(self)))

    def __truediv__(self, other: object) -> Value:
        raise self._refused("{} / ...", "tile.divide({}, ...), or {} * (1 / number)")

    def __rtruediv__(self, other: object) -> Value:
        raise self._refused("... / {}", "tile.divide(tile.full({}.shape, ...), {}) or tile.reciprocal({})")

    def __floordiv__(self, other: object) -> Value:
        raise self._refused("{} // ...", "{} >> bits for a power of two: integers are not divided")

    def __mod__(self, other: object) -> Value:
        raise self._refused("{} % ...", "{} & (2**bits - 1) for a power of two: integers are not divided")

    def __pow__(self, other: object) -> Value:
        raise self._refused("{} ** ...", "{} * {}, tile.sqrt({}) or tile.exp2(tile.log2({}) * ...)")

    def __matmul__(self, other: object) -> Value:
        raise self._refused("{} @ ...", "tile.tile_mma({}, ...)")

    __rmatmul__ = __matmul__

    def __lt__(self, other: object) -> Value:
        raise self._refused("{} < ...", "tile.less({}, ...)")

    def __gt__(self, other: object) -> Value:
        raise self._refused("{} > ...", "tile.less(..., {}), the operands in the other order")

    def __le__(self, other: object) -> Value:
        raise self._refused("{} <= ...", "~tile.less(..., {}), the operands in the other order")

    def __ge__(self, other: object) -> Value:
        raise self._refused("{} >= ...", "~tile.less({}, ...)")

    def __getitem__(self, key: object) -> Value:
        raise self._refused("{}[...]", "a tile of the part, by tile.init_tile, and tile.load_tile of it")

    def __setitem__(self, key: object, to: object) -> None:
        raise self._refused("{}[...] = ...", "{} = tile.where(condition, ..., {})")

    def __iter__(self) -> Iterator[Value]:
        raise self._refused("a loop over {}", "operations on the whole block, such as tile.reduce")

    def __len__(self) -> int:
        raise self._refused("len({})", "{}.shape[0]")

    def __bool__(self) -> bool:
        raise self._refused("{} as a Python condition", "tile.where({}, a, b): elements are known on the GPU only")

    def __float__(self) -> float:
        raise self._refused("{} as a Python number", "blocks throughout: elements are known on the GPU only")

    __int__ = __index__ = __float__

    def __array__(self, *arguments: object, **named: object) -> Any:
        raise self._refused("{} as an array of numpy", "functions of convgen.tile: elements are known on the GPU only")

    def __array_ufunc__(self, function: Any, *arguments: Any, **named: object) -> Any:
        ufunc, are_scalars = function.__name__, all(isinstance(a, Value) or np.ndim(a) == 0 for a in arguments[1:])
        if ufunc in _OPERATORS_OF_UFUNCS and are_scalars and not named:
            return _OPERATORS_OF_UFUNCS[ufunc](*(a if isinstance(a, Value) else float(a) for a in arguments[1:]))
        name = _NAMES_OF_UFUNCS.get(ufunc, ufunc)
        wanted = "functions of convgen.tile, and + - * on blocks"
        if name in ELEMENTWISE and name not in ("add", "sub", "mul"):
            wanted = f"tile.{name}({{}}{', ...' * (len(arguments) > 2)})"
        raise self._refused(f"numpy's {ufunc} of {{}}", wanted)


@frozen(eq=False, kw_only=True)
class Load(Value):
    """The elements of a tile, zero outside the tensor and from a position in `ends` on.

    If `transposed`, its dims are in reverse order.
    """

    tile: Tile
    transposed: bool = False
    maps: Maps | None = None  #: maps of the tile before it is transposed
    ends: tuple[Index | None, ...] = ()  #: by dim of the tensor, None for its own end; empty: all of them

    @property
    def own_maps(self) -> Maps | None:
        """Return the maps given for the load itself, None if it uses the tile's."""
        return None if self.maps is self.tile.maps else self.maps

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the tensor's dim that corresponds to each axis of the value."""
        return self.tile.kept[::-1] if self.transposed else self.tile.kept


@frozen(eq=False, kw_only=True)
class Gather(Value):
    """A tensor's elements by number; `other` where a number is out of range, or `mask` does not hold."""

    tensor: Tensor
    indices: Value
    mask: Value | None
    other: float

    @property
    def args(self) -> tuple[Value, ...]:
        return (self.indices, *([] if self.mask is None else [self.mask]))


@frozen(eq=False, kw_only=True)
class Full(Value):
    """A block filled with one value."""

    value: float


@frozen(eq=False, kw_only=True)
class Positions(Value):
    """The position of every element along an axis of the block."""

    axis: int


@frozen(eq=False, kw_only=True)
class Map(Value):
    """An element-wise function; arguments of size 1 along a dim are broadcast."""

    name: str  #: a key of `ELEMENTWISE`
    operands: tuple[Value | float | Expr, ...]

    @property
    def function(self) -> Callable[..., Expr]:
        return ELEMENTWISE[self.name]

    @property
    def args(self) -> tuple[Value, ...]:
        return tuple(v for v in self.operands if isinstance(v, Value))


@frozen(eq=False, kw_only=True)
class _OfOne(Value):
    """A value computed from one other."""

    of: Value

    @property
    def args(self) -> tuple[Value, ...]:
        return (self.of,)


@frozen(eq=False, kw_only=True)
class Convert(_OfOne):
    """A conversion to another element type."""

    saturate: bool


def _in_f32(operation: type[floats.Approximate]) -> Callable[[Expr], Expr]:
    """Return an approximate operation that computes bf16 in f32 and rounds the result."""

    def of(a: Expr) -> Expr:
        if a.type.elem is not bf16:
            return operation(a)
        return operation(a.to(f32 if isinstance(a.type, Type) else vector(f32, a.type.lanes))).to(a.type)

    return of


#: name of an element-wise function -> its operation in the IR
ELEMENTWISE: dict[str, Callable[..., Expr]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg,
    "max": ir.maximum, "min": ir.minimum, "fma": floats.fma, "abs": floats.absolute,
    "floor": floats.Floor, "ceil": floats.Ceil, "round": floats.Round,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "not": operator.invert,
    "shift_left": operator.lshift, "shift_right": operator.rshift, "broadcast": lambda a: a,
    "less": operator.lt, "equal": ir.eq, "where": ir.select,
    "exp2": _in_f32(floats.Exp2), "log2": _in_f32(floats.Log2), "reciprocal": _in_f32(floats.Rcp),
    "sqrt": _in_f32(floats.Sqrt), "rsqrt": _in_f32(floats.Rsqrt),
    **functions.LIBRARY,
}  # fmt: skip
#: Ufuncs that numpy scalars call for operators with a block.
_OPERATORS_OF_UFUNCS: dict[str, Callable[..., Value]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
}  # fmt: skip
_NAMES_OF_UFUNCS = {"absolute": "abs", "maximum": "max", "minimum": "min", "true_divide": "divide"}
CONDITIONS = ("less", "equal")  #: functions that return bools

#: name of a reduction -> the operation of the IR
REDUCTIONS: dict[str, type[ir.Binary]] = {
    "sum": ir.Add, "prod": ir.Mul, "max": ir.Max, "min": ir.Min, "and": ir.And, "or": ir.Or,
}  # fmt: skip


@frozen(eq=False, kw_only=True)
class Transposed(_OfOne):
    """The transpose of a block."""


@frozen(eq=False, kw_only=True)
class Redistributed(_OfOne):
    """A block, redistributed by explicit maps."""

    maps: Maps


@frozen(eq=False, kw_only=True)
class Reduced(_OfOne):
    """The reduction of a dim to one element; `kind` is a key of `REDUCTIONS`."""

    axis: int
    kind: str


@frozen(eq=False, kw_only=True)
class Product(Value):
    """The product `acc + a @ b`, with `a` M x K and `b` K x N."""

    a: Value
    b: Value
    acc: Value | None

    @property
    def args(self) -> tuple[Value, ...]:
        return (self.a, self.b, *([] if self.acc is None else [self.acc]))


@frozen(eq=False)
class Store:
    """A store of a block; elements outside the tensor are dropped, and those from a position in `ends` on.

    With `op`, a key of `ir.stmt.ATOMICS`, each element is combined atomically with the one in memory; empty: a plain
    store.
    """

    tile: Tile
    value: Value
    op: str = ""
    ends: tuple[Index | None, ...] = ()  #: by dim of the tensor, None for its own end; empty: all of them

    @property
    def args(self) -> tuple[Value, ...]:
        return (self.value,)


@frozen(eq=False)
class Scatter:
    """A store of each element to the tensor's element whose number `indices` has, if in range and `mask` holds.

    With `op`, a key of `ir.stmt.ATOMICS`, elements are combined atomically; empty: a plain store.
    """

    tensor: Tensor
    indices: Value
    value: Value
    mask: Value | None
    op: str = ""

    @property
    def args(self) -> tuple[Value, ...]:
        return (self.value, self.indices, *([] if self.mask is None else [self.mask]))


@frozen(eq=False)
class Prefetch:
    """A prefetch of a tile into the caches."""

    tile: Tile


@frozen(eq=False)
class ScalarLoad:
    """A scalar of the kernel that is loaded: the one element of a tile of s32, clamped to [0, most]."""

    var: Var
    tile: Tile
    most: int


@define(eq=False)
class Loop:
    """A loop `for var in [0, trips)`.

    `carried` are (name, value before the body, value after it), `moved` are (name, tile before, tile after).
    """

    var: Var
    trips: Extent
    body: list[Statement] = attrs.field(factory=list)
    carried: list[tuple[str, Value, Value]] = attrs.field(factory=list)
    moved: list[tuple[str, Tile, Tile]] = attrs.field(factory=list)


Statement: TypeAlias = Value | Store | Scatter | Prefetch | ScalarLoad | Loop
AnyStatement = TypeVar("AnyStatement", bound=Statement)


def arguments(statement: Statement) -> tuple[Value, ...]:
    """Return the values that a statement uses, or that a loop carries."""
    match statement:
        case Store() | Scatter() | Value():
            return statement.args
        case Loop():
            return tuple(v for _, first, last in statement.carried for v in (first, last))
    return ()


def all_statements(suite: Sequence[Statement]) -> Iterator[Statement]:
    """Yield all statements; those of a loop's body follow the loop."""
    for statement in suite:
        yield statement
        if isinstance(statement, Loop):
            yield from all_statements(statement.body)


@define(eq=False)
class Grid:
    """The grid of workgroups: counts of blocks along each dim, a block's shape, the variables of a block's offsets."""

    counts: tuple[Extent, ...]
    block: Shape
    offsets: tuple[Var, ...]
    order: str  #: of the workgroups (docs/mapping.md)


@define(eq=False)
class Trace:
    """The statements of a kernel."""

    statements: list[Statement] = attrs.field(factory=list)
    grid: Grid | None = None
    suites: list[list[Statement]] = attrs.field(factory=list)  #: the open suites, the innermost last
    ids: int = 0  #: ids of scalars given so far
    lines: dict[Any, Line | None] = attrs.field(factory=dict)  #: source line of each value and statement
    scalars: dict[str, Var] = attrs.field(factory=dict)

    def var(self, name: str) -> Var:
        """Return a new scalar of this kernel, numbered if the name is taken."""
        self.ids += 1
        name = f"{name}_{self.ids}" if name in self.scalars else name
        variable = self.scalars[name] = Var(name, self.ids, scalar("s32"))
        return variable


_current: ContextVar[Trace | None] = ContextVar("tile kernel", default=None)


def current(operation: str) -> Trace:
    """Return the kernel that is being traced. Raises UserError where there is none."""
    trace = _current.get()
    if trace is None:
        raise UserError(f"given {operation} outside of a kernel, wanted it in a function with @tile.kernel")
    return trace


@contextmanager
def tracing() -> Iterator[Trace]:
    """Trace the block into a new kernel."""
    trace = Trace()
    trace.suites.append(trace.statements)
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)


def record(operation: str, statement: AnyStatement) -> AnyStatement:
    """Append a value or statement to the suite that is being traced, and return it."""
    trace = current(operation)
    trace.suites[-1].append(statement)
    trace.lines[statement] = line()
    return statement


def applied(name: str, *operands: Value | float | Expr) -> Value:
    """Return an element-wise function of operands; raises UserError unless types agree, and shapes agree or are 1."""
    values = [v for v in operands if isinstance(v, Value)]
    for other in operands:
        if not isinstance(other, Value | Expr | int | float):
            given = f"given an operand of type {type(other).__name__}"
            raise UserError(f"{given}, wanted blocks, numbers and scalars of the kernel, at {name}")
    typed = values[1:] if name == "where" else values
    elems = list(dict.fromkeys(v.elem.name for v in typed))
    if len(elems) != 1:
        raise UserError(f"given {' and '.join(elems) or 'numbers'}, wanted values of one type, at {name}")
    shape = common_shape(name, [v.shape for v in values])
    _check_types(name, operands)
    elem = scalar("bool") if name in CONDITIONS else typed[0].elem
    return record(name, Map(shape=shape, elem=elem, name=name, operands=tuple(operands)))


def _check_types(name: str, operands: Sequence[Value | float | Expr]) -> None:
    """Raise UserError where a function does not accept elements of these types."""

    def sample(n: int, o: Value | float | Expr) -> float | Expr:
        if isinstance(o, Value):
            return Var("x", n, vector(o.elem, 2))
        return Splat(vector(o.type.elem, 2), o) if isinstance(o, Expr) else o

    try:
        result = ELEMENTWISE[name](*(sample(n, o) for n, o in enumerate(operands)))
    except UserError as error:
        raise UserError(f"{error}, at {name}") from None
    if complaint := refused(result):
        elems = " and ".join(dict.fromkeys(o.elem.name for o in operands if isinstance(o, Value)))
        raise UserError(f"given {elems}, wanted {complaint.rpartition('wanted ')[2]}, at {name}")
