"""The place of a workgroup's tile in a product: its first row and column, its product, and its part of K.

With groups, a workgroup finds the group of its tile from the ends of all groups in memory. A lane has one group, or
several. It counts their tiles, lanes sum the tiles of the groups before, and one reduction over lanes brings the group
that is found to all of them: its number, begin, end and first tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from itertools import accumulate
from operator import add

import attrs

from convgen.epilogue.numbered_rows import TileRows
from convgen.ir.build import Index, KernelBuilder
from convgen.ir.expr import Add, Cast, Expr, Lane, Max, Pack, Slice, Uniform, const, maximum, minimum, select
from convgen.ir.floats import Rcp
from convgen.ir.layout.digits import Digit, Space, plus
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.walks import Ragged
from convgen.ir.record import frozen
from convgen.ir.types import f32, s32, vector
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
    gathered: TileRows | None = None  #: rows by number of the factor that is gathered, if one is
    #: rows by number of the result, and of tensors that steps after the sums read, by the dim of their axis
    rows: Mapping[str, TileRows] = attrs.Factory(dict)


@contextmanager
def place_of(k: KernelBuilder, plan: Plan, part: Part, tile: Mapping[str, Index]) -> Iterator[TilePlace]:
    """Run the suite at the place of a tile that `tile_of` yields; a tile behind the last row of its group skips it."""
    groups, batch = part.product.grouped, (tile["batch"],) if len(part.product.result.axes) > 2 else ()
    tile_m, tile_n, _ = plan.config.tile
    starts = {"m": tile["m"] * tile_m, "n": tile["n"] * tile_n}
    if groups is None or groups.side is None:
        m0, n0 = (k.let(f"{axis}0", start) for axis, start in starts.items())
        yield TilePlace(m0, n0, batch, batch) if groups is None else _of_terms(k, plan, groups, m0, n0, batch)
        return
    with _in_group(k, plan, part, groups, tile) as place:
        yield place


@contextmanager
def _in_group(
    k: KernelBuilder, plan: Plan, part: Part, groups: GroupedAxis, tile: Mapping[str, Index]
) -> Iterator[TilePlace]:
    """Run the suite at the place of a tile in its group of rows, or columns."""
    sides, counts = dict(zip("mn", plan.config.tile)), dict(zip("mn", part.mapping.counts[1:3]))
    axis, other = "nm" if groups.side == 0 else "mn"
    by_group = isinstance(part.mapping.order.walk, Ragged)
    number = k.let("number_of_tile", tile["m"] * counts["n"] + tile["n"] if by_group else tile[axis])
    found = _found(k, groups, number, sides[axis], counts[other] if by_group else 1)
    across, row = tile[other], number - found.first
    if by_group:
        within = k.let("number_in_group", maximum(number - found.first * counts[other], 0))
        across, row = _divided(k, within, maximum(groups.tiles_of(found.begin, found.end, sides[axis]), 1))
        across = minimum(across, counts[other] - 1)
    start = k.let("start", minimum(found.begin + maximum(row, 0) * sides[axis], groups.size))
    with k.when((found.group < groups.count) & (start < found.end)):
        starts = {axis: start, other: across * sides[other]}
        m0, n0 = (k.let(f"{axis}0", starts[axis]) for axis in "mn")
        product = k.let("group", minimum(found.group, groups.count - 1))
        gathered, scattered = part.product.gathered, part.product.scattered
        assert groups.side is not None
        first = n0 if groups.side == 0 else m0
        rows = {each.name: TileRows(each, k, groups.side, first) for each in (gathered, scattered) if each}
        of_factor = TileRows(gathered, k, 0, first) if gathered else None
        yield TilePlace(m0, n0, (product,), (product, found.end), gathered=of_factor, rows=rows)


def _of_terms(
    k: KernelBuilder, plan: Plan, groups: GroupedAxis, m0: Expr, n0: Expr, batch: tuple[Index, ...]
) -> TilePlace:
    """Return the place of a tile whose sums have the terms of one group."""
    two = Fragment(("group",), (Digit("group", 2, Space.REGISTER, 1),))
    loaded = k.load_view("ends", groups.ends, (batch[0] - 1,), two, "group", groups.offsets.name)
    of_group, behind = (Uniform(_element(loaded, n)) for n in range(2))
    begin = k.let("k_begin", _within(of_group, groups))
    end = k.let("k_end", minimum(maximum(behind, begin), groups.size))
    tile_k = plan.config.tile[2]
    blocks = k.let("blocks", (end - begin + (tile_k - 1)) // tile_k)
    return TilePlace(m0, n0, (*batch, end), batch, begin, blocks)


@frozen
class _Found:
    """The group of a tile: its number (the number of groups for a tile behind them all), positions and first tile."""

    group: Expr
    begin: Expr
    end: Expr
    first: Expr


def _found(k: KernelBuilder, groups: GroupedAxis, number: Expr, side: int, across: int) -> _Found:
    """Return the group of a tile, where a group's tiles have `across` numbers each."""
    each = -(-groups.count // k.width)
    lanes = 1 << (-(-groups.count // each) - 1).bit_length()  # the others are replicas
    digits = (Digit("group", each, Space.REGISTER, 1), Digit("group", lanes, Space.LANE, 1))
    layout = Fragment(("group",), tuple(d for d in digits if d.size > 1))
    ends, begins = (_positions(k, groups, name, at, layout) for name, at in (("end", 0), ("begin", -1)))
    tiles = [maximum(groups.tiles_of(begin, end, side), 0) for begin, end in zip(begins, ends, strict=True)]
    first, *rest = tiles
    values = []
    for n, behind in enumerate(accumulate(rest, initial=first + _sum_before(k, reduce(add, tiles), lanes))):
        group = plus(Lane() % lanes * each, n)
        values.append(_compared(k, groups, group, ends[n], k.let("behind", behind), number, across))
    of_lane = Pack(vector(s32, 4), tuple(reduce(maximum, of_groups) for of_groups in zip(*values, strict=True)))
    four = Digit("group", lanes, Space.LANE, 1), Digit("value", 4, Space.REGISTER, 1)
    whole, _ = k.reduce("found", k.let("of_lane", of_lane), Fragment(("group", "value"), four), "group", Max, "group")
    found, begin, end, first_tile = (Uniform(_element(whole, n)) for n in range(4))
    # Ends in memory lie between 0 and the size of all groups. The clamps state it, which bounds the addresses.
    at = k.let("begin", _within(begin, groups)), k.let("end", _within(-end, groups))
    return _Found(k.let("group_of_tile", found), *at, k.let("first", first_tile))


def _positions(k: KernelBuilder, groups: GroupedAxis, name: str, at: int, layout: Fragment) -> list[Expr]:
    """Return the ends of a lane's groups, or with `at` -1 of the groups before them; 0 before the first."""
    loaded = k.load_view(name, groups.ends, (at,), layout, "group", groups.offsets.name)
    return [k.let(name, _within(_element(loaded, n), groups)) for n in range(layout.registers)]


def _sum_before(k: KernelBuilder, value: Expr, lanes: int) -> Expr:
    """Return the sum of a value over the lanes before, of `lanes` lanes: a power of two.

    Pairs of lanes, then pairs of pairs and so on, exchange their sums; the second of a pair adds the first's.
    """
    bits = tuple(Digit(f"bit{n}", 2, Space.LANE, 1 << n) for n in range(lanes.bit_length() - 1))
    layout = Fragment(tuple(bit.dim for bit in bits), bits)
    before: Expr = const(0)
    of_block = k.let("tiles", Pack(vector(s32, 1), (value,)))
    for bit in bits:
        of_pair, layout = k.reduce("of_pair", of_block, layout, bit.dim, Add, "group")
        of_other = _element(of_pair, 0) - _element(of_block, 0)
        before, of_block = before + select(Lane() // bit.stride % 2 > 0, of_other, 0), of_pair
    return before


def _compared(
    k: KernelBuilder, groups: GroupedAxis, group: Expr, end: Expr, behind: Expr, number: Expr, across: int
) -> tuple[Expr, ...]:
    """Return the number, the end and the tile behind a group whose tiles all come before `number`; -end of another.

    The greatest of these over all groups are the tile's group, its begin, its first tile, and -its end.
    """
    exists = group < groups.count
    is_before = k.let("is_before", (behind * across <= number) & exists)
    rest = select(~is_before & exists, -end, const(-groups.size))
    return select(is_before, group + 1, 0), select(is_before, end, 0), rest, select(is_before, behind, 0)


def _divided(k: KernelBuilder, number: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """Return quotient and rest of a number up to `MOST_NUMBERED` by a divisor from 1: in f32, then a step up or down.

    The quotient in f32 has an error below 1/2: the numbers are exact, the reciprocal is off by 2^-23 of it at most (1
    ulp), and the product by half of that.
    """
    near = k.let("near", Cast(s32, Cast(f32, number) * Rcp(Cast(f32, divisor))))
    rest = k.let("rest", number - near * divisor)
    step = select(rest < 0, const(-1), select(rest >= divisor, const(1), 0))
    return k.let("across", near + step), k.let("row", rest - step * divisor)


def _element(value: Expr, at: int) -> Expr:
    """Return an element of a vector of s32."""
    return Pack(s32, (Slice(value, at, 1),))


def _within(position: Expr, groups: GroupedAxis) -> Expr:
    """Return a position along the groups, clamped to where they end."""
    return minimum(maximum(position, 0), groups.size)
