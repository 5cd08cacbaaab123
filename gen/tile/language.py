"""The operations of tile kernels: XeTile's, by its names, and Python's loops and operators."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import overload

from convgen.ir.error import UserError
from convgen.ir.expr import Binary, Expr, Max, Min, lift
from convgen.ir.layout.digits import plus, times
from convgen.ir.layout.order import Order
from convgen.ir.record import evolve
from convgen.ir.simplify.extents import lower_bound, rounded_up
from convgen.ir.sizes import Extent
from convgen.ir.types import scalar
from convgen.tile.argument_checks import (
    check_ends,
    check_inside,
    check_offsets,
    check_sequence,
    check_shape,
    described,
    expect,
)
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
    ScalarLoad,
    Store,
    Transposed,
    Value,
    applied,
    current,
    record,
)
from convgen.tile.xetile_maps import Pairs, maps

_MOST_SCALAR = 1 << 31  #: behind the values of a loaded scalar, an s32


def grid(over: Tensor | Sequence[Extent], shape: Sequence[int], *, map: str = "rows") -> tuple[Expr, ...]:
    """Launch one workgroup for each block of a tensor, or of a shape; return the offsets of its block along each dim.

    `map` is the order of the last two dims' blocks (docs/mapping.md). Raises UserError unless the block has as many
    dims as the tensor, or if the kernel already has a grid.
    """
    trace = current("grid")
    if trace.grid is not None:
        raise UserError("given a second grid, wanted one a kernel")
    if not isinstance(over, Tensor | Sequence):
        raise UserError(f"given {described(over)}, wanted a tensor or a tuple of sizes, at grid")
    sizes = over.shape if isinstance(over, Tensor) else tuple(over)
    block = check_shape("grid", shape)
    if len(block) != len(sizes) or any(lower_bound(size) < 1 for size in sizes):
        raise UserError(f"given a grid of {sized(block)} blocks, wanted {len(sizes)} sizes from 1, for {sized(sizes)}")
    Order.parse(map)
    counts = tuple(rounded_up(size, length) for size, length in zip(sizes, block))
    trace.grid = Grid(counts, block, tuple(trace.var(f"at{n}") for n in range(len(block))), map)
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
    expect("init_tile", tensor, Tensor, "init_tile(tensor, offsets, shape)")
    if not tensor.strides:
        raise UserError(f"given the blocked layout {tensor.tag}, wanted a plain one, at init_tile of {tensor.name}")
    rank, at = len(tensor.shape), check_offsets("init_tile", offsets)
    check_sequence("init_tile", "shape", shape)
    kept = tuple(n for n, size in enumerate(shape) if size is not None)
    block = check_shape("init_tile", [shape[n] for n in kept])
    if len(at) != rank or len(shape) != rank or not kept:
        given = f"given {len(at)} offsets and a block of {sized(shape)}"
        raise UserError(f"{given}, wanted {rank} of each, at init_tile of {tensor.name} {sized(tensor.shape)}")
    return Tile(tensor, block, at, kept, maps=maps(f"init_tile of {tensor.name}", block, wg_map, sg_map))


def update_tile_offset(tile: Tile, by: Sequence[Index]) -> Tile:
    """Return the tile moved by so many elements along each dim."""
    expect("update_tile_offset", tile, Tile, "update_tile_offset(tile, steps)")
    steps, rank = check_offsets("update_tile_offset", by), len(tile.offsets)
    if len(steps) != rank:
        raise UserError(f"given {len(steps)} steps, wanted {rank}, at update_tile_offset of {tile.tensor.name}")
    offsets = tuple(o + d for o, d in zip(tile.offsets, steps))
    return evolve(tile, offsets=offsets, moved_from=tile, moved_by=steps)


def load_tile(
    tile: Tile,
    *,
    transpose: bool = False,
    wg_map: Pairs | None = None,
    sg_map: Pairs | None = None,
    ends: Sequence[Index | None] = (),
) -> Value:
    """Load the tile's elements, or their transpose; elements outside the tensor are zero.

    The maps apply to the tile before it is transposed, and override those of `init_tile`. `ends` are positions from
    which on elements are zero, too, as for `store_tile`. Raises UserError if the tile is certain to lie wholly outside,
    and for wrong ends.
    """
    current("load_tile")
    expect("load_tile", tile, Tile, "load_tile(init_tile(tensor, offsets, shape))")
    check_inside("load_tile", tile)
    given = ends_of("load_tile of", tile, ends)
    shape = tile.shape[::-1] if transpose else tile.shape
    checked = maps(f"load_tile of {tile.tensor.name}", tile.shape, wg_map, sg_map) or tile.maps
    load = Load(shape=shape, elem=tile.tensor.elem, tile=tile, transposed=transpose, maps=checked, ends=given)
    return record("load_tile", load)


def load_scalar(tensor: Tensor, at: Sequence[Index], most: int) -> Expr:
    """Load one element of a tensor of s32 as a scalar of the kernel, for offsets, bounds and masks.

    An element outside [0, most] becomes the nearer of the two, and so does 0 outside the tensor. The kernel must not
    store to the tensor. Raises UserError for another type, another number of offsets, or a negative `most`.
    """
    expect("load_scalar", tensor, Tensor, "load_scalar(tensor, at, most)")
    tile = init_tile(tensor, at, (1,) * len(tensor.shape))
    check_inside("load_scalar", tile)
    if tensor.elem is not scalar("s32"):
        raise UserError(f"given {tensor.dtype}, wanted s32, at load_scalar of {tensor.name}")
    if not isinstance(most, int) or not 0 <= most < _MOST_SCALAR:
        raise UserError(f"given most={described(most)}, wanted a number from 0 below {_MOST_SCALAR}, at load_scalar")
    return record("load_scalar", ScalarLoad(current("load_scalar").var("loaded"), tile, most)).var


def convert_layout(value: Value, *, wg_map: Pairs, sg_map: Pairs | None = None) -> Value:
    """Redistribute a block by maps as for `init_tile`; through shared memory where elements change lanes."""
    expect("convert_layout", value, Value, "convert_layout(block, wg_map=...)")
    checked = maps("convert_layout", value.shape, wg_map, sg_map)
    if checked is None:
        raise UserError("given no wg_map, wanted one, as in convert_layout(block, wg_map=...), at convert_layout")
    return record("convert_layout", Redistributed(shape=value.shape, elem=value.elem, of=value, maps=checked))


def prefetch_tile(tile: Tile) -> None:
    """Prefetch a tile into the caches; no value changes."""
    expect("prefetch_tile", tile, Tile, "prefetch_tile(tile)")
    record("prefetch_tile", Prefetch(tile))


def store_tile(value: Value, tile: Tile, *, ends: Sequence[Index | None] = ()) -> None:
    """Store a block; elements outside the tensor are dropped.

    `ends`, for each dim of the tensor, are positions from which on elements are dropped, too, such as the end of a
    sequence that others follow; None for the tensor's own end. Raises UserError unless shape and type are the tile's,
    and for ends along dims of which the tile has one position.
    """
    expect("store_tile", tile, Tile, "store_tile(block, tile)")
    stored("store_tile", value, tile, ends=ends_of("store_tile to", tile, ends))


def ends_of(operation: str, tile: Tile, ends: Sequence[Index | None]) -> tuple[Index | None, ...]:
    """Return checked ends along the dims of a tile's tensor, none if all are the tensor's own. Raises UserError."""
    given = check_ends(operation.partition(" ")[0], ends)
    if given and (len(given) != len(tile.offsets) or any(given[n] is not None for n in tile.folded)):
        wanted = f"wanted one for each of {len(tile.offsets)} dims, None along dims without a block"
        raise UserError(f"given {len(given)} ends, {wanted}, at {operation} {tile.tensor.name}")
    return given if any(end is not None for end in given) else ()


def stored(operation: str, value: Value, tile: Tile, op: str = "", ends: tuple[Index | None, ...] = ()) -> None:
    """Store a block to a tile, or combine them by `op`. Raises UserError unless shape, type and maps agree."""
    expect(operation, tile, Tile, "store_tile(block, tile)")
    expect(operation, value, Value, "store_tile(block, tile)")
    check_inside(operation, tile)
    if value.shape != tile.shape or value.elem is not tile.tensor.elem:
        shapes = f"given {sized(value.shape)} of {value.elem}, wanted {sized(tile.shape)} of {tile.tensor.elem}"
        raise UserError(f"{shapes}, at {operation} to {tile.tensor.name}")
    if tile.maps:
        tile.maps.check_store(tile.shape, f"{operation} to {tile.tensor.name}")
    record(operation, Store(tile, value, op, ends))


def broadcast(value: Value, shape: Sequence[int]) -> Value:
    """Repeat a block along dims in which it has one position. Raises UserError unless the other dims are equal."""
    expect("broadcast", value, Value, "broadcast(block, shape)")
    wanted = check_shape("broadcast", shape)
    if wanted == value.shape:
        return value
    if len(wanted) != len(value.shape) or any(n not in (1, size) for n, size in zip(value.shape, wanted)):
        raise UserError(f"given {sized(value.shape)}, wanted {sized(wanted)}, or 1 along a dim, at broadcast")
    return record("broadcast", Map(shape=wanted, elem=value.elem, name="broadcast", operands=(value,)))


def transpose(value: Value) -> Value:
    """Swap the two dims of a block, through shared memory where needed. Raises UserError for blocks of other ranks."""
    expect("transpose", value, Value, "transpose(block)")
    if len(value.shape) != 2:
        raise UserError(f"given {sized(value.shape)}, wanted a block of two dims, at transpose")
    return record("transpose", Transposed(shape=value.shape[::-1], elem=value.elem, of=value))


def full(shape: Sequence[int], value: float, dtype: str = "f32") -> Value:
    """Return a block filled with one value. Raises UserError unless the value is a number."""
    block = check_shape("full", shape)
    if not isinstance(value, int | float):
        raise UserError(f"given the value {described(value)}, wanted a number, at full")
    return record("full", Full(shape=block, elem=elem_of(dtype, "full"), value=value))


def positions(shape: Sequence[int], axis: int) -> Value:
    """Return a block of s32 with each element's position along an axis. Raises UserError for another axis."""
    block = check_shape("positions", shape)
    if axis not in range(len(block)):
        raise UserError(f"given the axis {described(axis)}, wanted one of {sized(block)}, at positions")
    return record("positions", Positions(shape=block, elem=scalar("s32"), axis=axis))


def zeros(shape: Sequence[int], dtype: str = "f32") -> Value:
    """Return a block of zeros."""
    return full(shape, 0, dtype)


def tile_mma(a: Value, b: Value, acc: Value | None = None) -> Value:
    """Return `acc + a @ b`: `a` M x K, `b` K x N; without `acc`, from zero in f32, or in s32 for integers.

    It uses matrix instructions where the target has one that fits, else multiply-adds of lanes. Raises UserError unless
    shapes fit and all types are integers or all are floats.
    """
    for factor in (a, b, *([] if acc is None else [acc])):
        expect("tile_mma", factor, Value, "tile_mma(a, b, acc)")
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise UserError(f"given a {sized(a.shape)} and b {sized(b.shape)}, wanted MxK and KxN, at tile_mma")
    shape = (a.shape[0], b.shape[1])
    if acc is not None and acc.shape != shape:
        raise UserError(f"given acc {sized(acc.shape)}, wanted {sized(shape)}, at tile_mma")
    if len({v.elem.is_int for v in (a, b, *([] if acc is None else [acc]))}) > 1:
        given = f"given {a.elem} by {b.elem}" + ("" if acc is None else f" into {acc.elem}")
        raise UserError(f"{given}, wanted all of integers or all of floats, at tile_mma")
    elem = acc.elem if acc is not None else scalar("s32" if a.elem.is_int else "f64" if a.elem.name == "f64" else "f32")
    return record("tile_mma", Product(shape=shape, elem=elem, a=a, b=b, acc=acc))


def reduce(kind: str, value: Value, axis: int) -> Value:
    """Reduce `axis` by sum, prod, max, min, and, or or; the dim stays, with size 1.

    docs/ir.md gives the order in which floats are added. Raises UserError for another operation or axis.
    """
    expect("reduce", value, Value, 'reduce("sum", block, axis)')
    if kind not in list(REDUCTIONS) or axis not in range(len(value.shape)):
        wanted = f"one of {', '.join(REDUCTIONS)} along an axis of {sized(value.shape)}"
        raise UserError(f"given reduce {kind!r} along {described(axis)}, wanted {wanted}")
    is_number = value.elem.is_float and not value.elem.is_storage
    if not (value.elem.is_int or (is_number and kind not in ("and", "or"))):
        raise UserError(f"given {value.elem}, wanted numbers, and integers for and and or, at reduce {kind}")
    shape = tuple(1 if n == axis else size for n, size in enumerate(value.shape))
    return record("reduce", Reduced(shape=shape, elem=value.elem, of=value, axis=axis, kind=kind))


def convert(value: Value, dtype: str, *, saturate: bool = False) -> Value:
    """Convert the elements to another type: floats round to nearest even; see docs/ir.md."""
    expect("convert", value, Value, 'convert(block, "f16")')
    elem = elem_of(dtype, "convert")
    return record("convert", Convert(shape=value.shape, elem=elem, of=value, saturate=saturate))


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
        expect("where", operand, Value, "where(condition, a, tile.full((1, 1), number))")
    if cond.elem is not scalar("bool") or a.elem is not b.elem:
        raise UserError(f"given {cond.elem}, {a.elem} and {b.elem}, wanted bool and twice the same type, at where")
    return applied("where", cond, a, b)


@overload
def maximum(a: Index, b: Index) -> Index: ...
@overload
def maximum(a: Value, b: Value | float | Expr) -> Value: ...
def maximum(a: Value | Index, b: Value | float | Expr) -> Value | Index:
    """Return the greater of each pair, or of two scalars of the kernel."""
    if isinstance(a, int | Expr) and isinstance(b, int | Expr):
        return _of_scalars(Max, max, a, b)
    return applied("max", a, b)


@overload
def minimum(a: Index, b: Index) -> Index: ...
@overload
def minimum(a: Value, b: Value | float | Expr) -> Value: ...
def minimum(a: Value | Index, b: Value | float | Expr) -> Value | Index:
    """Return the lesser of each pair, or of two scalars of the kernel."""
    if isinstance(a, int | Expr) and isinstance(b, int | Expr):
        return _of_scalars(Min, min, a, b)
    return applied("min", a, b)


def _of_scalars(operation: type[Binary], of_numbers: Callable[[int, int], int], a: Index, b: Index) -> Index:
    """Return an operation on two scalars of the kernel: a number if both are numbers."""
    if isinstance(a, int):
        return of_numbers(a, b) if isinstance(b, int) else operation(lift(a, b), b)
    return operation(a, lift(b, a))


def steps(begin: Index, end: Index, step: int = 1) -> Iterator[Expr]:
    """Loop in the kernel: `for k in tile.range(begin, end, step)`; its body runs once, while it is traced.

    The bounds are numbers, or scalars of the kernel: sizes, offsets and arithmetic on them.

    A name that is bound to another value or tile after the body than before it is carried from one iteration to the
    next. Raises UserError for names that cannot be carried.
    """
    trace = current("range")
    for bound in (begin, end):
        if not isinstance(bound, int | Expr):
            raise UserError(
                f"given the bound {described(bound)}, wanted integers, or scalars of the kernel, at tile.range"
            )
    if not isinstance(step, int):
        raise UserError(f"given the step {step}, wanted an integer, at tile.range")
    known = isinstance(begin, int) and isinstance(end, int)
    if step < 1 or (known and end < begin):
        given = f"given range({begin}, {end}, {step})"
        raise UserError(f"{given}, wanted a step from 1 and an end not before the beginning")
    from_zero = isinstance(begin, int) and begin == 0
    loop = Loop(trace.var("i"), rounded_up(end if from_zero else end - begin, step))
    frame = sys._getframe(1)
    before = _named(frame)
    trace.suites[-1].append(loop)
    trace.suites.append(loop.body)
    yield plus(times(loop.var, step), begin)
    trace.suites.pop()  # a break leaves it there, which the kernel notices when it ends
    _carry(loop, before, _named(frame))


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
