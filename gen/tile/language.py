"""The operations of tile kernels: XeTile's, by its names, and Python's loops and operators."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType

from convgen.ir.error import UserError
from convgen.ir.expr import Expr
from convgen.ir.layout.digits import plus, times
from convgen.ir.record import evolve
from convgen.ir.simplify.extents import lower_bound, rounded_up
from convgen.ir.sizes import Extent
from convgen.ir.types import scalar
from convgen.tile.source import called
from convgen.tile.tiles import Index, Tensor, Tile, elem_of, sized
from convgen.tile.trace import (
    REDUCTIONS,
    Convert,
    Full,
    Grid,
    Load,
    Loop,
    Map,
    Positions,
    Prefetch,
    Product,
    Redistributed,
    Reduced,
    Store,
    Transposed,
    Value,
    applied,
    current,
    record,
)
from convgen.tile.xetile_maps import Pairs, maps


def grid(over: Tensor | Sequence[Extent], shape: Sequence[int], *, map: str = "rows") -> tuple[Expr, ...]:
    """Launch one workgroup for each block of a tensor, or of a shape; return the offsets of its block along each dim.

    `map` is the order of the last two dims' blocks (docs/mapping.md). Raises UserError unless the block has as many
    dims as the tensor, or if the kernel already has a grid.
    """
    trace = current("grid")
    if trace.grid is not None:
        raise UserError("given a second grid, wanted one a kernel")
    sizes = over.shape if isinstance(over, Tensor) else tuple(over)
    _check_block("grid", shape)
    if len(shape) != len(sizes) or min(*shape, *(lower_bound(size) for size in sizes)) < 1:
        raise UserError(f"given a grid of {sized(shape)} blocks, wanted {len(sizes)} sizes from 1, for {sized(sizes)}")
    counts = tuple(rounded_up(size, block) for size, block in zip(sizes, shape))
    trace.grid = Grid(counts, tuple(shape), tuple(trace.var(f"at{n}") for n in range(len(shape))), map)
    return trace.grid.offsets


def init_tile(
    tensor: Tensor,
    offsets: Sequence[Index],
    shape: Sequence[int | None],
    *,
    wg_map: Pairs | None = None,
    sg_map: Pairs | None = None,
) -> Tile:
    """Return the block of `shape` elements at `offsets` of a tensor; a dim of None is one position, and is dropped.

    `wg_map=(sg_layout, sg_data)` and `sg_map=(wi_layout, wi_data)` distribute the elements that are loaded and stored.
    Raises UserError unless offsets and shape have the tensor's rank, and the maps divide the block (docs/layouts.md).
    """
    current("init_tile")
    _expect("init_tile", tensor, Tensor, "init_tile(tensor, offsets, shape)")
    rank = len(tensor.shape)
    sizes = {n: size for n, size in enumerate(shape) if size is not None}
    _check_block("init_tile", sizes.values())
    if len(offsets) != rank or len(shape) != rank or min(sizes.values(), default=0) < 1:
        given = f"given {len(offsets)} offsets and a block of {sized(shape)}"
        raise UserError(
            f"{given}, wanted {rank} of each, sizes from 1, at init_tile of {tensor.name} {sized(tensor.shape)}"
        )
    checked = maps(f"init_tile of {tensor.name}", tuple(sizes.values()), wg_map, sg_map)
    return Tile(tensor, tuple(sizes.values()), tuple(offsets), tuple(sizes), maps=checked)


def update_tile_offset(tile: Tile, by: Sequence[Index]) -> Tile:
    """Return the tile moved by so many elements along each dim."""
    if len(by) != len(tile.offsets):
        raise UserError(
            f"given {len(by)} steps, wanted {len(tile.offsets)}, at update_tile_offset of {tile.tensor.name}"
        )
    offsets = tuple(o + d for o, d in zip(tile.offsets, by))
    return evolve(tile, offsets=offsets, moved_from=tile, moved_by=tuple(by))


def load_tile(
    tile: Tile, *, transpose: bool = False, wg_map: Pairs | None = None, sg_map: Pairs | None = None
) -> Value:
    """Load the tile's elements, or their transpose; elements outside the tensor are zero.

    The maps apply to the tile before it is transposed, and override those of `init_tile`. Raises UserError if the tile
    is certain to lie wholly outside.
    """
    current("load_tile")
    _expect("load_tile", tile, Tile, "load_tile(init_tile(tensor, offsets, shape))")
    _check_inside("load_tile", tile)
    shape = tile.shape[::-1] if transpose else tile.shape
    checked = maps(f"load_tile of {tile.tensor.name}", tile.shape, wg_map, sg_map) or tile.maps
    value: Value = record(
        "load_tile", Load(shape=shape, elem=tile.tensor.elem, tile=tile, transposed=transpose, maps=checked)
    )
    return value


def convert_layout(value: Value, *, wg_map: Pairs, sg_map: Pairs | None = None) -> Value:
    """Redistribute a block by maps as for `init_tile`; through shared memory where elements change lanes."""
    checked = maps("convert_layout", value.shape, wg_map, sg_map)
    assert checked is not None
    redistributed: Value = record(
        "convert_layout", Redistributed(shape=value.shape, elem=value.elem, of=value, maps=checked)
    )
    return redistributed


def prefetch_tile(tile: Tile) -> None:
    """Prefetch a tile into the caches; no value changes."""
    record("prefetch_tile", Prefetch(tile))


def store_tile(value: Value, tile: Tile) -> None:
    """Store a block; elements outside the tensor are dropped. Raises UserError unless shape and type are the tile's."""
    stored("store_tile", value, tile)


def stored(operation: str, value: Value, tile: Tile, op: str = "") -> None:
    """Store a block to a tile, or combine them by `op`. Raises UserError unless shape, type and maps agree."""
    _expect(operation, tile, Tile, "store_tile(block, tile)")
    _expect(operation, value, Value, "store_tile(block, tile)")
    _check_inside(operation, tile)
    if value.shape != tile.shape or value.elem is not tile.tensor.elem:
        shapes = f"given {sized(value.shape)} of {value.elem}, wanted {sized(tile.shape)} of {tile.tensor.elem}"
        raise UserError(f"{shapes}, at {operation} to {tile.tensor.name}")
    if tile.maps:
        tile.maps.check_store(tile.shape, f"{operation} to {tile.tensor.name}")
    record(operation, Store(tile, value, op))


def broadcast(value: Value, shape: Sequence[int]) -> Value:
    """Repeat a block along dims in which it has one position. Raises UserError unless the other dims are equal."""
    wanted = tuple(shape)
    if wanted == value.shape:
        return value
    if len(wanted) != len(value.shape) or any(n not in (1, size) for n, size in zip(value.shape, wanted)):
        raise UserError(f"given {sized(value.shape)}, wanted {sized(wanted)}, or 1 along a dim, at broadcast")
    made: Value = record("broadcast", Map(shape=wanted, elem=value.elem, name="broadcast", operands=(value,)))
    return made


def transpose(value: Value) -> Value:
    """Swap the two dims of a block, through shared memory where needed. Raises UserError for blocks of other ranks."""
    if len(value.shape) != 2:
        raise UserError(f"given {sized(value.shape)}, wanted a block of two dims, at transpose")
    made: Value = record("transpose", Transposed(shape=value.shape[::-1], elem=value.elem, of=value))
    return made


def full(shape: Sequence[int], value: float, dtype: str = "f32") -> Value:
    """Return a block filled with one value. Raises UserError unless the value is a number."""
    _check_block("full", shape)
    if not isinstance(value, int | float):
        raise UserError(f"given the value {value!r}, wanted a number, at full")
    made: Value = record("full", Full(shape=tuple(shape), elem=elem_of(dtype, "full"), value=value))
    return made


def positions(shape: Sequence[int], axis: int) -> Value:
    """Return a block of s32 with each element's position along an axis. Raises UserError for another axis."""
    _check_block("positions", shape)
    if not 0 <= axis < len(shape):
        raise UserError(f"given the axis {axis}, wanted one of {sized(shape)}, at positions")
    made: Value = record("positions", Positions(shape=tuple(shape), elem=scalar("s32"), axis=axis))
    return made


def zeros(shape: Sequence[int], dtype: str = "f32") -> Value:
    """Return a block of zeros."""
    return full(shape, 0, dtype)


def tile_mma(a: Value, b: Value, acc: Value | None = None) -> Value:
    """Return `acc + a @ b`: `a` M x K, `b` K x N; without `acc`, from zero in f32, or in s32 for integers.

    It uses matrix instructions where the target has one that fits, else multiply-adds of lanes. Raises UserError unless
    shapes fit and all types are integers or all are floats.
    """
    for factor in (a, b, *([] if acc is None else [acc])):
        _expect("tile_mma", factor, Value, "tile_mma(a, b, acc)")
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise UserError(f"given a {sized(a.shape)} and b {sized(b.shape)}, wanted MxK and KxN, at tile_mma")
    shape = (a.shape[0], b.shape[1])
    if acc is not None and acc.shape != shape:
        raise UserError(f"given acc {sized(acc.shape)}, wanted {sized(shape)}, at tile_mma")
    if len({v.elem.is_int for v in (a, b, *([] if acc is None else [acc]))}) > 1:
        given = f"given {a.elem} by {b.elem}" + ("" if acc is None else f" into {acc.elem}")
        raise UserError(f"{given}, wanted all of integers or all of floats, at tile_mma")
    elem = acc.elem if acc is not None else scalar("s32" if a.elem.is_int else "f64" if a.elem.name == "f64" else "f32")
    value: Value = record("tile_mma", Product(shape=shape, elem=elem, a=a, b=b, acc=acc))
    return value


def reduce(kind: str, value: Value, axis: int) -> Value:
    """Reduce `axis` by sum, prod, max, min, and, or or; the dim stays, with size 1.

    docs/ir.md gives the order in which floats are added. Raises UserError for another operation or axis.
    """
    _expect("reduce", value, Value, 'reduce("sum", block, axis)')
    if kind not in REDUCTIONS or not 0 <= axis < len(value.shape):
        given, wanted = f"given reduce {kind!r} along {axis}", f"one of {', '.join(REDUCTIONS)} along an axis"
        raise UserError(f"{given}, wanted {wanted} of {sized(value.shape)}")
    is_number = value.elem.is_float and not value.elem.is_storage
    if not (value.elem.is_int or (is_number and kind not in ("and", "or"))):
        raise UserError(f"given {value.elem}, wanted numbers, and integers for and and or, at reduce {kind}")
    shape = tuple(1 if n == axis else size for n, size in enumerate(value.shape))
    made: Value = record("reduce", Reduced(shape=shape, elem=value.elem, of=value, axis=axis, kind=kind))
    return made


def convert(value: Value, dtype: str, *, saturate: bool = False) -> Value:
    """Convert the elements to another type: floats round to nearest even; see docs/ir.md."""
    _expect("convert", value, Value, 'convert(block, "f16")')
    made: Value = record(
        "convert", Convert(shape=value.shape, elem=elem_of(dtype, "convert"), of=value, saturate=saturate)
    )
    return made


def _function(name: str) -> Callable[[Value], Value]:
    """Return an element-wise function by name."""

    def of(a: Value) -> Value:
        return applied(name, a)

    of.__name__, of.__doc__ = name, f"{name} of each element; its error is stated in docs/ir.md."
    return of


exp, log, tanh, erf, sigmoid = map(_function, ("exp", "log", "tanh", "erf", "sigmoid"))
gelu, gelu_tanh, swish, softplus = map(_function, ("gelu", "gelu_tanh", "swish", "softplus"))
sin, cos, exp2, log2, sqrt, rsqrt = map(_function, ("sin", "cos", "exp2", "log2", "sqrt", "rsqrt"))
reciprocal, absolute, floor, ceil, rounded = map(_function, ("reciprocal", "abs", "floor", "ceil", "round"))


def divide(a: Value, b: Value) -> Value:
    """Divide element by element."""
    return applied("divide", a, b)


def fma(a: Value, b: Value, c: Value) -> Value:
    """Return `a * b + c`, rounded once."""
    return applied("fma", a, b, c)


def less(a: Value, b: Value | float | Expr) -> Value:
    """Return whether the first of each pair is less."""
    return applied("less", a, b)


def equal(a: Value, b: Value | float | Expr) -> Value:
    """Return whether both of each pair are equal."""
    return applied("equal", a, b)


def where(cond: Value, a: Value, b: Value) -> Value:
    """Return `a` where the condition holds, else `b`. Raises UserError unless types and shapes agree."""
    for operand in (cond, a, b):
        _expect("where", operand, Value, "where(condition, a, tile.full((1, 1), number))")
    if cond.elem is not scalar("bool") or a.elem is not b.elem:
        raise UserError(f"given {cond.elem}, {a.elem} and {b.elem}, wanted bool and twice the same type, at where")
    return applied("where", cond, a, b)


def maximum(a: Value, b: Value | float | Expr) -> Value:
    """Return the greater of each pair."""
    return applied("max", a, b)


def minimum(a: Value, b: Value | float | Expr) -> Value:
    """Return the lesser of each pair."""
    return applied("min", a, b)


def steps(begin: Index, end: Index, step: int = 1) -> Iterator[Expr]:
    """Loop in the kernel: `for k in tile.range(begin, end, step)`; its body runs once, while it is traced.

    The bounds are numbers, or scalars of the kernel: sizes, offsets and arithmetic on them.

    A name that is bound to another value or tile after the body than before it is carried from one iteration to the
    next. Raises UserError for names that cannot be carried.
    """
    trace = current("range")
    for bound in (begin, end, step):
        if not isinstance(bound, int | Expr):
            raise UserError(f"given the bound {bound!r}, wanted integers, or scalars of the kernel, at tile.range")
    known = isinstance(begin, int) and isinstance(end, int)
    if step < 1 or (known and end < begin):
        raise UserError(
            f"given range({begin}, {end}, {step}), wanted a step from 1 and an end not before the beginning"
        )
    from_zero = isinstance(begin, int) and begin == 0
    loop = Loop(trace.var("i"), rounded_up(end if from_zero else end - begin, step))
    frame = sys._getframe(1)
    before = _named(frame)
    trace.suites[-1].append(loop)
    trace.suites.append(loop.body)
    yield plus(times(loop.var, step), begin)
    trace.suites.pop()  # a break leaves it there, which the kernel notices when it ends
    _carry(loop, before, _named(frame))


def _check_inside(operation: str, tile: Tile) -> None:
    """Raise UserError for a tile at known offsets that has no element in the tensor."""
    block = dict(zip(tile.kept, tile.shape))
    for n, (offset, size) in enumerate(zip(tile.offsets, tile.tensor.most)):
        if isinstance(offset, int) and not -block.get(n, 1) < offset < size:
            given = f"given a block of {block.get(n, 1)} at {offset} along dim {n} of {tile.tensor.name}"
            wanted = f"wanted an offset below {size}" if offset >= 0 else "wanted some of it in the tensor"
            raise UserError(f"{given}, {wanted}, at {operation}")


def _expect(operation: str, given: object, kind: type, example: str) -> None:
    """Raise UserError for an argument of the wrong kind."""
    if not isinstance(given, kind):
        names = {Value: "a block", Tile: "a tile", Tensor: "a tensor"}
        told = next((f"{name} ({called(given, '')})" for k, name in names.items() if isinstance(given, k)), None)
        told = told.replace(" ()", "") if told else f"an argument of type {type(given).__name__}"
        raise UserError(f"given {told}, wanted {names[kind]}, as in {example}, at {operation}")


def _check_block(operation: str, shape: Iterable[object]) -> None:
    """Raise UserError for a block whose sizes are not all numbers."""
    for size in shape:
        if not isinstance(size, int):
            raise UserError(f"given a block size {size}, wanted a number, at {operation}")


def _named(frame: FrameType) -> dict[str, Value | Tile]:
    """Return the values and tiles that the names of a function refer to; those in lists and tuples by index."""
    names: dict[str, Value | Tile] = {}

    def look(name: str, value: object) -> None:
        if isinstance(value, Value | Tile):
            names[name] = value
        elif isinstance(value, list | tuple):
            for n, item in enumerate(value):
                look(f"{name}[{n}]", item)

    for name, value in frame.f_locals.items():
        look(name, value)
    return names


def _carry(loop: Loop, before: dict[str, Value | Tile], after: dict[str, Value | Tile]) -> None:
    """Record the values and tiles that change from one iteration to the next."""
    names: dict[Value | Tile, str] = {}
    for name, first in before.items():
        other = names.setdefault(first, name)
        if other != name and after.get(name) is not after.get(other):
            raise UserError(
                f"given {other} and {name}, the same when the loop begins, wanted one of their own for each"
            )
    for first, name in names.items():
        last = after.get(name)
        if last is first or last is None:
            continue
        if isinstance(first, Value) and isinstance(last, Value):
            _check_carried(name, first, last)
            loop.carried.append((name, first, last))
        elif isinstance(first, Tile) and isinstance(last, Tile):
            loop.moved.append((name, first, last))


def _check_carried(name: str, first: Value, last: Value) -> None:
    """Raise UserError where a loop rebinds a name to a block of another shape or type."""
    if (first.shape, first.elem) == (last.shape, last.elem):
        return
    at = current("range").lines.get(last)
    given = f"given {name} as {sized(last.shape)} of {last.elem} after the loop's body" + (f" ({at})" if at else "")
    other = f"wanted {sized(first.shape)} of {first.elem} as before it"
    mend = f": {name} = tile.convert({name}, {first.elem.name!r}), or another name" if first.shape == last.shape else ""
    raise UserError(f"{given}, {other}{mend}, at tile.range")
