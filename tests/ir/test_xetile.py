"""XeTile's maps against its rules by brute force: round robin, wrap-around, lanes, and what is refused."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir.error import UserError
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.nested import NestedLayout
from convgen.ir.layout.xetile import Pair, SgMap, WgMap, maps_of

SEED = WgMap((2, 2), (32, 128))  #: of the RFC, on a tile of 128 x 128


def seed_rule(tile: Pair, map_: WgMap) -> bool:
    """The RFC's: `sg_data` divides the tile, and the tile divides `sg_layout * sg_data`."""
    return all(n % d == 0 and each * d % n == 0 for n, each, d in zip(tile, map_.sg_layout, map_.sg_data))


def blocks(tile: Pair, map_: WgMap, subgroup: int) -> list[Pair]:
    """The blocks of a subgroup by the final text: of y along a dimension, (i + y) % blocks for i = 0, L, 2L, ..."""
    at = divmod(subgroup, map_.sg_layout[1])
    along = []
    for n, each, data, own in zip(tile, map_.sg_layout, map_.sg_data, at):
        count = n // data
        along.append([(i + own) % count * data for i in range(0, count, each)])
    return [(row, col) for row, col in product(*along)]


@st.composite
def maps(draw: Any) -> tuple[Pair, WgMap, SgMap]:
    """A tile, and maps that spread it: more blocks than subgroups, or fewer."""
    tile, sides = [], []
    for _ in range(2):
        wi, data, units = (draw(st.sampled_from((1, 2, 3))) for _ in range(3))
        fewer, more, wraps = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from((1, 2, 3))), draw(st.booleans())
        own = wi * data * units
        sides.append((fewer * more if wraps else fewer, own, wi, data))
        tile.append(own * (fewer if wraps else fewer * more))
    (rows, own_rows, wi_rows, rows_each), (cols, own_cols, wi_cols, cols_each) = sides
    return (
        (tile[0], tile[1]),
        WgMap((rows, cols), (own_rows, own_cols)),
        SgMap((wi_rows, wi_cols), (rows_each, cols_each)),
    )


@settings(max_examples=60, deadline=None)
@given(maps())
def test_blocks_go_round_and_wrap_around(case: tuple[Pair, WgMap, SgMap]) -> None:
    tile, wg, _ = case
    wanted = {s: blocks(tile, wg, s) for s in range(wg.subgroups)}
    assert {s: wg.blocks_of(tile, s) for s in wanted} == wanted
    on = wg.on(tile)
    for corner in product(*(range(0, n, d) for n, d in zip(tile, wg.sg_data))):
        assert list(on.owners_of(corner)) == [s for s, own in wanted.items() if corner in own]
    counts = {sum(corner in own for own in wanted.values()) for corner in {b for own in wanted.values() for b in own}}
    assert set(on.replication) == counts


@settings(max_examples=60, deadline=None)
@given(maps())
def test_lanes_hold_units_row_by_row(case: tuple[Pair, WgMap, SgMap]) -> None:
    """Element (r, c): units r // wi_data[0] and c // wi_data[1] go round over the lanes, then further registers."""
    _, wg, sg = case
    block = wg.sg_data
    fragment = sg.fragment(block)
    units, (down, across), (rows, cols) = sg.units(block), sg.wi_data, sg.wi_layout
    for r, c in product(range(block[0]), range(block[1])):
        _, lane, register = fragment.owner({"row": r, "col": c})
        assert lane == r // down % rows * cols + c // across % cols
        unit = r // down // rows * units[1] + c // across // cols
        assert register == (unit * down + r % down) * across + c % across


@settings(max_examples=60, deadline=None)
@given(maps())
def test_maps_are_read_from_their_fragments(case: tuple[Pair, WgMap, SgMap]) -> None:
    """Other numbers of subgroups are possible where one has no block of its own; who owns what is the same."""
    tile, wg, sg = case
    fragment = wg.fragment(tile, sg)
    found_wg, found_sg = maps_of(fragment, wg.subgroups)
    again = found_wg.fragment(tile, found_sg)
    shared = (Space.LANE, Space.SUBGROUP)
    assert again.canonical(*shared) == fragment.canonical(*shared)
    assert maps_of(again, wg.subgroups) == (found_wg, found_sg)
    assert (found_wg.subgroups, found_sg.lanes) == (wg.subgroups, sg.lanes)


@settings(max_examples=60, deadline=None)
@given(maps())
def test_maps_of_one_round_are_nested_layouts(case: tuple[Pair, WgMap, SgMap]) -> None:
    tile, wg, sg = case
    fragment = wg.fragment(tile, sg)
    if wg.rounds(tile) == (1, 1):
        nested = NestedLayout.of(fragment, sg.lanes).fragment(sg.lanes, fragment.dims)
        shared = (Space.LANE, Space.SUBGROUP)
        assert nested.canonical(*shared) == fragment.canonical(*shared)


# ---------------------------------------------------------------- the RFC


def test_the_example_of_the_rfc() -> None:
    tile = (128, 128)
    owners = {row: SEED.on(tile).owners_of((row, 0)) for row in range(0, 128, 32)}
    assert owners == {0: (0, 1), 32: (2, 3), 64: (0, 1), 96: (2, 3)}
    assert SEED.blocks_of(tile, 3) == [(32, 0), (96, 0)]


def test_the_rule_of_the_rfc_refuses_its_own_example() -> None:
    """64 rows of subgroups are no multiple of 128; the verifier takes either as a multiple of the other."""
    assert not seed_rule((128, 128), SEED)
    SEED.check_load((128, 128))


def test_further_rounds_may_be_no_nested_layout() -> None:
    """Subgroups within registers are threads of a NestedLayout, unless lanes are threads along the same rows."""
    assert NestedLayout.of(SEED.fragment((128, 128)), 16).thread_strides == (32, 0)
    lanes = SgMap((2, 8), (1, 2))
    with pytest.raises(UserError, match=r"at dim 0, which has thread 2 at 8, outer 16, thread 2 at 32, batch 2$"):
        NestedLayout.of(SEED.fragment((128, 128), lanes), 16)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("tile", "map_", "message"),
    [
        ((96, 64), WgMap((2, 2), (32, 32)), r"sg_layout \* sg_data = 64 divides, or that divides it, at dim 0"),
        ((100, 64), WgMap((2, 2), (32, 32)), "wanted a multiple of sg_data 32 at dim 0"),
        ((64, 33), WgMap((2, 2), (32, 32)), "wanted a multiple of sg_data 32 at dim 1"),
    ],
)
def test_tiles_that_are_not_spread(tile: Pair, map_: WgMap, message: str) -> None:
    given_ = rf"^given a tile of {tile[0]}x{tile[1]} and #xetile.wg_map<.*"
    for check in (map_.check_load, map_.check_store, map_.fragment):
        with pytest.raises(UserError, match=given_ + message):
            check(tile)


def test_stores_have_one_owner_each() -> None:
    WgMap((4, 4), (32, 32)).check_store((128, 128))
    with pytest.raises(UserError, match=r"^data is not evenly distributed to each subgroup.: given .* 256 at dim 1$"):
        SEED.check_store((128, 128))


@pytest.mark.parametrize("field", ["sg_layout", "sg_data"])
def test_maps_have_two_dimensions(field: str) -> None:
    fields: dict[str, Any] = {"sg_layout": (2, 2), "sg_data": (32, 32), field: (1, 2, 3)}
    with pytest.raises(UserError, match=rf"^expect integer array of size 2 for {field}: given \[1, 2, 3\]$"):
        WgMap(**fields)
    fields[field] = (0, 1)
    with pytest.raises(UserError, match=f"given {field} 0, wanted an integer from 1"):
        WgMap(**fields)


def test_blocks_that_lanes_do_not_divide() -> None:
    with pytest.raises(UserError, match=r"wanted a multiple of wi_layout \* wi_data = 16 at dim 1"):
        SgMap((2, 8), (1, 2)).fragment((2, 24))


@pytest.mark.parametrize(
    ("digits", "subgroups", "message"),
    [
        ((Digit("n", 4, Space.LANE, 1), Digit("m", 2, Space.LANE, 4)), 1, "numbered row by row"),
        ((Digit("n", 4, Space.LANE, 2), Digit("n", 2, Space.LANE, 1)), 1, "from the inside out along n"),
        ((Digit("n", 4, Space.LANE, 1), Digit("m", 2, Space.SUBGROUP, 1)), 3, "a multiple of 2 subgroups"),
        ((Digit("n", 4, Space.LANE, 1), Digit("n", 2, Space.FIXED, 1)), 1, "from the inside out along n"),
    ],
)
def test_fragments_that_no_maps_have(digits: tuple[Digit, ...], subgroups: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        maps_of(Fragment(("n", "m"), digits), subgroups)
    with pytest.raises(UserError, match="two dimensions"):
        maps_of(Fragment(("n",), ()), subgroups)


# ---------------------------------------------------------------- text, and what lanes load


def test_text_is_read_as_it_is_written() -> None:
    assert str(SEED) == "#xetile.wg_map<sg_layout = [2, 2], sg_data = [32, 128]>"
    assert WgMap.parse(str(SEED)) == WgMap.parse("sg_data=[32,128],sg_layout=[2,2]") == SEED
    lanes = SgMap((2, 8), (1, 2))
    assert str(lanes) == "#xetile.sg_map<wi_layout = [2, 8], wi_data = [1, 2]>"
    assert SgMap.parse(str(lanes)) == lanes
    with pytest.raises(UserError, match=r"wanted #xetile\.sg_map<"):
        SgMap.parse(str(SEED))


@pytest.mark.parametrize(
    ("block", "map_", "shape"),
    [
        ((8, 16), SgMap((1, 16), (1, 1)), (8, 1)),
        ((8, 32), SgMap((1, 16), (1, 2)), (8, 2)),
        ((12, 32), SgMap((1, 16), (1, 1)), (24, 1)),
        ((12, 32), SgMap((1, 16), (1, 2)), (12, 2)),
        ((16, 16), SgMap((1, 16), (2, 1)), (8, 2)),
        ((16, 8), SgMap((16, 1), (1, 1)), (8, 1)),
        ((16, 16), SgMap((16, 1), (1, 2)), (8, 2)),
    ],
)
def test_shapes_of_results(block: Pair, map_: SgMap, shape: Pair) -> None:
    """As in XeGPU's documentation of `sg_map`."""
    assert map_.result_shape(block) == shape


@pytest.mark.parametrize(("map_", "in_place"), [(WgMap((32, 1), (64, 32)), True), (WgMap((4, 8), (64, 32)), False)])
def test_transposes_within_subgroups(map_: WgMap, in_place: bool) -> None:
    turned = WgMap((8, 4), (32, 64))
    assert map_.transposes_in_place((256, 32), turned) == in_place
    mine = [
        {(c + j, r + i) for r, c in map_.blocks_of((256, 32), s) for i in (0, 63) for j in (0, 31)} for s in range(32)
    ]
    others = [
        {(r + i, c + j) for r, c in turned.blocks_of((32, 256), s) for i in (0, 31) for j in (0, 63)} for s in range(32)
    ]
    assert (mine == others) == in_place
