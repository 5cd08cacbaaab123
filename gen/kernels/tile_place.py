"""The place of a workgroup's tile in a product: its first row and column, its product, and its part of K.

With groups, a workgroup finds the group of its tile from the ends of all groups in memory: lanes compare one end each,
or several, and one reduction over lanes brings the group's number, begin and end to all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce

from convgen.ir.build import Index, KernelBuilder
from convgen.ir.expr import Expr, Lane, Max, Pack, Slice, Uniform, Var, const, maximum, minimum, select
from convgen.ir.layout.digits import Digit, Space, plus
from convgen.ir.layout.fragment import Fragment
from convgen.ir.record import frozen
from convgen.ir.types import bool_, s32, vector
from convgen.plan.grouped_axis import GroupedAxis
from convgen.plan.plan import Part, Plan


@frozen
class TilePlace:
    """The coordinates at which a tile begins, and the blocks of its sums."""

    m0: Expr
    n0: Expr
    of_factors: tuple[Index, ...] = ()  #: positions along the axes of factors behind their rows and K
    of_result: tuple[Index, ...] = ()  #: positions along the axes of the result behind N and M
    k0: Index = 0  #: first position along K
    blocks: Expr | None = None  #: blocks of K; None where the plan has their number


@contextmanager
def place_of(k: KernelBuilder, plan: Plan, part: Part, tile: Mapping[str, Index]) -> Iterator[TilePlace]:
    """Run the suite at the place of a tile that `tile_of` yields; a tile behind the last row of its group skips it."""
    groups, batch = part.product.groups, (tile["batch"],) if len(part.product.result.axes) > 2 else ()
    tile_m, tile_n, _ = plan.config.tile
    starts = {"m": tile["m"] * tile_m, "n": tile["n"] * tile_n}
    if groups is None or groups.side is None:
        m0, n0 = (k.let(f"{axis}0", start) for axis, start in starts.items())
        yield TilePlace(m0, n0, batch, batch) if groups is None else _of_terms(k, plan, groups, m0, n0, batch)
        return
    axis, side = (("n", tile_n), ("m", tile_m))[groups.side]
    number = k.let("number_of_tile", tile[axis])
    group, begin, end = _of_tile(k, groups, number, side)
    start = begin + maximum(number - groups.first(begin, group, side), 0) * side
    starts[axis] = k.let("start", minimum(start, groups.size))
    with k.when((group < groups.count) & (starts[axis] < end)):
        m0, n0 = (k.let(f"{axis}0", start) for axis, start in starts.items())
        product = k.let("group", minimum(group, groups.count - 1))
        yield TilePlace(m0, n0, (product,), (product, end))


def _of_terms(
    k: KernelBuilder, plan: Plan, groups: GroupedAxis, m0: Expr, n0: Expr, batch: tuple[Index, ...]
) -> TilePlace:
    """Return the place of a tile whose sums have the terms of one group."""
    two = Fragment(("group",), (Digit("group", 2, Space.REGISTER, 1),))
    loaded = k.load_view("ends", groups.ends, (batch[0] - 1,), two, "group", groups.offsets.name)
    of_group, behind = (Uniform(Pack(s32, (Slice(loaded, n, 1),))) for n in range(2))
    begin = k.let("k_begin", _within(of_group, groups))
    end = k.let("k_end", minimum(maximum(behind, begin), groups.size))
    tile_k = plan.config.tile[2]
    blocks = k.let("blocks", (end - begin + (tile_k - 1)) // tile_k)
    return TilePlace(m0, n0, (*batch, end), batch, begin, blocks)


def _of_tile(k: KernelBuilder, groups: GroupedAxis, number: Expr, side: int) -> tuple[Var, Var, Var]:
    """Return the group of a tile, and where its rows begin and end; the number of groups for a tile behind them all.

    The groups before it are those that have their last tile before the number.
    """
    width, each = k.width, -(-groups.count // k.width)
    digits = (Digit("group", width, Space.LANE, 1), Digit("group", each, Space.REGISTER, 1))
    layout = Fragment(("group",), tuple(d for d in digits if d.size > 1))
    ends = k.load_view("ends", groups.ends, (0,), layout, "group", groups.offsets.name)
    found = [_compared(k, groups, number, side, ends, n) for n in range(each)]
    of_lane = Pack(vector(s32, 3), tuple(reduce(maximum, values) for values in zip(*found, strict=True)))
    values = Fragment(("group", "value"), (digits[0], Digit("value", 3, Space.REGISTER, 1)))
    whole, _ = k.reduce("of_groups", k.let("of_lane", of_lane), values, "group", Max, "group")
    group, begin, end = (Uniform(Pack(s32, (Slice(whole, n, 1),))) for n in range(3))
    # Ends in memory lie between 0 and the size of all groups. The clamps state it, which bounds the addresses.
    return k.let("group_of_tile", group), k.let("begin", _within(begin, groups)), k.let("end", _within(-end, groups))


def _compared(k: KernelBuilder, groups: GroupedAxis, number: Expr, side: int, ends: Expr, n: int) -> tuple[Expr, ...]:
    """Return the number behind a lane's n-th group and its end if all its tiles come before `number`, else -its end.

    The greatest of these over all groups are the tile's group, its begin, and -its end.
    """
    group: Expr = plus(Lane(), n * k.width)
    end = k.let("end_of_group", _within(Pack(s32, (Slice(ends, n, 1),)), groups))
    is_before = groups.first(end, group + 1, side) <= number
    exists = group < groups.count if (n + 1) * k.width > groups.count else const(True, bool_)
    before = k.let("is_before", is_before & exists)
    behind = ~before & exists
    return select(before, group + 1, 0), select(before, end, 0), select(behind, -end, const(-groups.size))


def _within(position: Expr, groups: GroupedAxis) -> Expr:
    """Return a position along the groups, clamped to where they end."""
    return minimum(maximum(position, 0), groups.size)
