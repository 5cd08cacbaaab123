"""Distributed layouts against numpy: `coords` and `owner` invert each other and every element has an owner."""

from __future__ import annotations

from itertools import takewhile
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir.error import UserError
from convgen.ir.expr import Lane, const, var
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Shared, Swizzle, column_major, row_major
from convgen.ir.layout.mma import MmaAtom, MmaTile
from convgen.ir.record import evolve
from convgen.ir.types import f16, f32

L, R, S = Space.LANE, Space.REGISTER, Space.SUBGROUP


@st.composite
def fragments(draw: Any) -> Fragment:
    """Digits over two dims that fill each space without gaps, in any order."""
    strides = {L: 1, R: 1, S: 1}
    digits = []
    for _ in range(draw(st.integers(1, 6))):
        space, size = draw(st.sampled_from((L, R, S))), draw(st.sampled_from((1, 2, 3, 4)))
        digits.append(Digit(draw(st.sampled_from("nm")), size, space, strides[space]))
        strides[space] *= size
    return Fragment(("n", "m"), tuple(draw(st.permutations(digits))))


def all_owners(f: Fragment) -> tuple[Any, Any, Any]:
    lanes = int(np.prod([d.size for d in f.digits if d.space is L]))
    return np.indices((f.subgroups, lanes, f.registers))  # type: ignore[return-value]


@settings(max_examples=200)
@given(fragments())
def test_owner_inverts_coords(f: Fragment) -> None:
    where = all_owners(f)
    at = f.coords(*where)
    for given_, found in zip(where, f.owner(at)):
        assert np.array_equal(np.broadcast_to(found, given_.shape), given_)


@settings(max_examples=200)
@given(fragments())
def test_every_element_has_one_owner(f: Fragment) -> None:
    where = all_owners(f)
    at = f.coords(*where)
    flat = at["n"] * f.extent("m") + at["m"] + np.zeros_like(where[0])
    assert sorted(flat.ravel().tolist()) == list(range(f.shape[0] * f.shape[1]))


@settings(max_examples=100)
@given(fragments())
def test_partial_coordinates_add_up(f: Fragment) -> None:
    sub, lane, reg = all_owners(f)
    whole = f.coords(sub, lane, reg)
    parts = [f.partial(S, sub), f.partial(L, lane), f.partial(R, reg)]
    for dim in f.dims:
        assert np.array_equal(sum(p[dim] for p in parts), whole[dim])


@settings(max_examples=100)
@given(fragments(), st.integers(0, 400))
def test_contiguous_registers_are_consecutive_positions(f: Fragment, lane: int) -> None:
    for dim in f.dims:
        run = f.contiguous(dim)
        at = f.coords(0, 0, np.arange(run))
        assert np.array_equal(np.broadcast_to(at[dim], (run,)), np.arange(run))


@settings(max_examples=100)
@given(fragments())
def test_registers_along_a_dim_come_first(f: Fragment) -> None:
    for dim in f.dims:
        first = takewhile(lambda d: d.space is R, (d for d in f.merged(R).digits if d.dim == dim))
        along = f.along(dim)
        assert along.contiguous(dim) == prod(d.size for d in first)
        assert sorted(f.order_of(along)) == list(range(f.registers))


@settings(max_examples=100)
@given(fragments(), st.integers(1, 64))
def test_registers_near_by_come_first(f: Fragment, reach: int) -> None:
    """All of a lane's positions that it reaches by steps within so many, from its first one on."""
    for dim in f.dims:
        near = f.near(dim, reach)
        assert sorted(f.order_of(near)) == list(range(f.registers))
        fine = f.factored(R).stepped()
        count = prod(d.size for step, d in fine if (d.space, d.dim) == (R, dim) and step * d.size <= reach)
        at = near.coords(0, 0, np.arange(count))
        first = {d: np.broadcast_to(at[d], (count,)) for d in f.dims}
        assert all((first[d] == first[d][0]).all() for d in f.dims if d != dim)
        assert (np.diff(first[dim]) > 0).all()


@st.composite
def reordered(draw: Any) -> tuple[Fragment, Fragment]:
    """Two layouts of a tile that differ in the order of each lane's registers, if at all."""
    f = draw(fragments())
    own = [d for d in f.digits if d.space is R]
    strides, step = {}, 1
    for n in draw(st.permutations(range(len(own)))):
        strides[n] = step
        step *= own[n].size
    turned = iter([evolve(d, stride=strides[n]) for n, d in enumerate(own)])
    return f, Fragment(f.dims, tuple(next(turned) if d.space is R else d for d in f.digits))


@settings(max_examples=200)
@given(fragments(), st.integers(1, 40))
def test_parts_are_runs_of_registers(f: Fragment, most: int) -> None:
    """As large as may be, in steps of the factors 2 and 3 that digits have here."""
    parts = f.parts(most)
    count = f.registers // len(parts)
    assert all(part.registers == count <= most for part in parts)
    assert count == f.registers or 3 * count > most
    subgroup, lane, register = all_owners(f)
    whole = f.coords(subgroup, lane, register)
    for number, part in enumerate(parts):
        own = slice(number * count, (number + 1) * count)
        found = part.coords(subgroup[..., own], lane[..., own], register[..., :count])
        for dim in f.dims:
            wanted = np.broadcast_to(whole[dim], subgroup.shape)[..., own]
            assert np.array_equal(np.broadcast_to(found[dim], wanted.shape), wanted)


@settings(max_examples=100)
@given(fragments())
def test_lengths_are_those_of_parts(f: Fragment) -> None:
    every = range(f.registers, 0, -1)
    assert f.part_sizes == tuple(most for most in every if f.parts(most)[0].registers == most)


@settings(max_examples=200)
@given(reordered())
def test_the_order_of_another_layout(pair: tuple[Fragment, Fragment]) -> None:
    """Register r of the second layout holds what register order[r] of the first does, in every lane."""
    f, g = pair
    order = list(f.order_of(g))
    assert sorted(order) == list(range(f.registers))
    assert order == [f.owner(g.coords(0, 0, register))[2] for register in range(g.registers)]
    sub, lane, reg = all_owners(g)
    wanted, found = g.coords(sub, lane, reg), f.coords(sub, lane, np.array(order)[reg])
    for dim in f.dims:
        assert np.array_equal(wanted[dim] + np.zeros_like(reg), found[dim] + np.zeros_like(reg))


@settings(max_examples=200)
@given(fragments(), fragments())
def test_only_lanes_that_hold_the_same_can_reorder(f: Fragment, g: Fragment) -> None:
    """Where an order is given, every lane of both layouts holds the same elements."""
    try:
        order = f.order_of(g)
    except UserError:
        return
    assert f.shape == g.shape
    for one, other in zip(lane_sets(f), lane_sets(g), strict=True):
        assert one == other
    assert len(order) == g.registers


def lane_sets(f: Fragment) -> list[set[tuple[int, int]]]:
    where = all_owners(f)
    at = {dim: (c + np.zeros_like(where[0])).reshape(-1, f.registers) for dim, c in f.coords(*where).items()}
    return [set(zip(i.tolist(), j.tolist())) for i, j in zip(at["n"], at["m"])]


@pytest.mark.parametrize(
    "other",
    [
        Fragment(("n", "m"), (Digit("n", 2, R, 1), Digit("n", 4, L, 1), Digit("m", 8, R, 2))),  # other rows a lane
        Fragment(("n", "m"), (Digit("n", 8, L, 2), Digit("m", 8, R, 1))),  # other lanes
        Fragment(("n", "m"), (Digit("n", 8, S, 1), Digit("m", 8, R, 1))),  # subgroups
        Fragment(("n", "m"), (Digit("n", 8, L, 1), Digit("m", 4, R, 1))),  # a smaller tile
        Fragment(("m", "n"), (Digit("n", 8, L, 1), Digit("m", 8, R, 1))),  # another order of dims
    ],
    ids=str,
)
def test_lanes_with_other_elements_have_no_order(other: Fragment) -> None:
    f = Fragment(("n", "m"), (Digit("n", 8, L, 1), Digit("m", 8, R, 1)))
    for one, two in ((f, other), (other, f)):
        with pytest.raises(UserError, match="lanes hold different elements"):
            one.order_of(two)


def test_turning_a_matrix_round() -> None:
    """2 x 4 by rows, seen by columns."""
    rows = Fragment(("n", "m"), (Digit("n", 2, R, 4), Digit("m", 4, R, 1), Digit("n", 64, L, 1)))
    columns = Fragment(("n", "m"), (Digit("n", 2, R, 1), Digit("m", 4, R, 2), Digit("n", 64, L, 1)))
    assert rows.order_of(columns) == (0, 4, 1, 5, 2, 6, 3, 7)
    assert columns.order_of(rows) == (0, 2, 4, 6, 1, 3, 5, 7)


def test_uncovered_strides_are_replicas() -> None:
    f = Fragment(("n",), (Digit("n", 4, L, 2),))
    assert f.coords(0, np.arange(8), 0)["n"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert f.owner({"n": 3}) == (0, 6, 0)


def test_coordinates_as_expressions() -> None:
    f = Fragment(("n", "m"), (Digit("n", 16, L, 1), Digit("m", 4, R, 1), Digit("m", 4, L, 16)))
    register = var("r")
    at = f.coords(const(0), Lane(), register)
    assert at["n"] is Lane() % 16
    assert at["m"] is register % 4 + Lane() // 16 % 4 * 4
    assert (str(f), f.shape, f.registers, f.subgroups) == ("n16l1 m4r1 m4l16", (16, 16), 4, 1)


def test_bad_digits_are_refused() -> None:
    with pytest.raises(UserError, match="bad digit"):
        Fragment(("n",), (Digit("k", 4, L, 1),))
    with pytest.raises(UserError, match="bad digit"):
        Fragment(("n",), (Digit("n", 0, L, 1),))


def operand(row: str) -> Fragment:
    return Fragment((row, "k"), (Digit(row, 16, L, 1), Digit("k", 4, R, 1), Digit("k", 4, L, 16)))


D = Fragment(("n", "m"), (Digit("n", 4, R, 1), Digit("n", 4, L, 16), Digit("m", 16, L, 1)))
ATOM = MmaAtom("mma", 16, 16, 16, f16, f16, f32, operand("n"), operand("m"), D, 4)


@pytest.mark.parametrize("pack", [1, 2, 4])
def test_operands_of_one_instruction_agree_on_k(pack: int) -> None:
    """Whatever order `pack` gives K, A and B hold the same K at the same lane group and register of each step."""
    tile = MmaTile(ATOM, 2, 3, 4, pack, 2, 2)
    assert (tile.a.shape, tile.b.shape, tile.d.shape) == ((64, 64), (96, 64), (64, 96))
    lane, held = np.arange(64), np.arange(4)
    for step in range(4):
        seen = []
        for f, start in ((tile.a, tile.a_start(1, step)), (tile.b, tile.b_start(2, step))):
            seen.append(f.coords(3, lane[:, None], start + held[None, :])["k"])
        assert np.array_equal(*seen)
        assert len(np.unique(seen[0])) == 16
    assert tile.a.contiguous("k") == 4 * pack


def test_the_accumulators_registers_follow_the_tiles() -> None:
    tile = MmaTile(ATOM, 2, 3, 1)
    at = tile.d.coords(0, 17, np.arange(24))
    for ti in range(2):
        for tj in range(3):
            start = tile.d_start(ti, tj)
            assert at["n"][start : start + 4].tolist() == [16 * ti + 4 + r for r in range(4)]
            assert at["m"][start : start + 4].tolist() == [16 * tj + 1] * 4


@pytest.mark.parametrize("run", [1, 4, 8, 16, 64])
@pytest.mark.parametrize("tiles", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [16, 32])
def test_columns_side_by_side_in_a_lane(rows: int, tiles: int, run: int) -> None:
    """Each instruction multiplies the rows of A that its rows of D are sums of; all columns are there once."""
    groups = 64 // rows
    more = (Digit("n", rows // (4 * groups), R, 4),) if rows == 32 else ()
    d = Fragment(("n", "m"), (Digit("n", 4, R, 1), Digit("n", groups, L, rows), *more, Digit("m", rows, L, 1)))
    of = {r: (Digit(r, rows, L, 1), Digit("k", 4, R, 1), Digit("k", groups, L, rows)) for r in "nm"}
    a, b = (Fragment((r, "k"), digits) for r, digits in of.items())
    atom = MmaAtom("mma", rows, rows, 4 * groups, f16, f16, f32, a, b, d, 4)
    tile = MmaTile(atom, tiles, 3, 2, 2, 2, 2, run=run)
    seen = []
    for i in range(tiles):
        for row in range(rows):
            _, lane, register = a.owner({"n": row, "k": 0})
            of_a = tile.a.coords(1, lane, tile.a_start(i, 0) + register)["n"]
            _, lane, register = d.owner({"n": row, "m": 0})
            assert tile.d.coords(1, lane, tile.d_start(i, 2) + register)["n"] == of_a
            seen.append(of_a)
    assert sorted(seen) == list(range(tiles * rows, 2 * tiles * rows))
    most = rows // groups * (tiles & -tiles)  # of an instruction, and of tiles by powers of two
    assert tile.d.contiguous("n") == max(4, min(run, most))


def test_columns_side_by_side_where_lanes_hold_columns() -> None:
    """A subgroup's are dealt to its lanes in turn; an instruction's are as many apart as there are tiles."""
    d = Fragment(("n", "m"), (Digit("n", 8, L, 1), Digit("n", 2, S, 1), Digit("m", 8, R, 1)))
    a = Fragment(("n", "k"), (Digit("n", 8, L, 1), Digit("n", 2, S, 1), Digit("k", 16, R, 1)))
    b = Fragment(("m", "k"), (Digit("m", 8, R, 2), Digit("k", 2, R, 1), Digit("k", 8, L, 1)))
    tile = MmaTile(MmaAtom("dpasw", 16, 8, 16, f16, f16, f32, a, b, d, 4), 4, 1, 1, run=16)
    for i in range(4):
        columns = tile.d.coords(0, np.arange(8), tile.d_start(i, 0))["n"]
        assert columns.tolist() == [4 * lane + i for lane in range(8)]
        assert np.array_equal(tile.a.coords(0, np.arange(8), tile.a_start(i, 0))["n"], columns)
    assert tile.d.along("n").contiguous("n") == 4
    assert tile.regroups_columns
    assert not evolve(tile, run=1).regroups_columns


def test_rows_are_dealt_to_all_instructions_of_a_workgroup() -> None:
    """Four on end, then four of the next subgroup, tile and part; the other four of an instruction behind all these."""
    d = Fragment(("n", "m"), (Digit("n", 16, L, 1), Digit("m", 8, R, 1)))
    a = Fragment(("n", "k"), (Digit("n", 16, L, 1), Digit("k", 16, R, 1)))
    b = Fragment(("m", "k"), (Digit("k", 2, R, 1), Digit("k", 8, L, 1), Digit("m", 2, L, 8), Digit("m", 4, R, 2)))
    whole = MmaTile(MmaAtom("dpas", 16, 8, 16, f16, f16, f32, a, b, d, 8), 1, 2, 1, teams_m=2, parts=2, rows=4)
    for part, team, tile in np.ndindex(2, 2, 2):
        mma = evolve(whole, part=part)
        rows = mma.d.coords(team, 0, mma.d_start(0, tile) + np.arange(8))["m"]
        first = 4 * (team + 2 * tile + 4 * part)
        assert rows.tolist() == [*range(first, first + 4), *range(first + 32, first + 36)]
        for row in range(8):
            _, lane, register = b.owner({"m": row, "k": 0})
            assert mma.b.coords(team, lane, mma.b_start(tile, 0) + register)["m"] == rows[row]
    with pytest.raises(UserError, match="instructions of 8 rows are not cut into runs of 3"):
        evolve(whole, rows=3)


@settings(max_examples=60)
@given(st.integers(0, 3), st.sampled_from((0, 1, 3, 7, 8, 15, 31)), st.sampled_from((0, 2)), st.sampled_from((0, 16)))
def test_shared_addresses_are_a_bijection(shift: int, mask: int, fold: int, padding: int) -> None:
    """Masks from 8 on move chunks to other rows."""
    tile = Shared("t", f16, 32, 64, row_major(32, 64, 64 + padding // 2), 2, Swizzle(shift, mask, fold), 16)
    slot, row, col = np.indices((2, 32, 64))
    at = tile.address(slot, row, col)
    assert len(np.unique(at)) == at.size
    assert at.min() == 0
    assert at.max() < tile.bytes
    chunk = at.reshape(-1, 8)
    assert (chunk - chunk[:, :1] == np.arange(8) * 2).all()  # a chunk of a row stays together
    assert (at // tile.slot_bytes == slot).all()


def test_a_wide_mask_counts_chunks_through_rows() -> None:
    """Rows of two chunks: what the mask adds to a chunk's number, it adds to that of all chunks in their order."""
    for swizzle in (Swizzle(0, 3), Swizzle(1, 7), Swizzle(0, 7, 2), Swizzle(0, 15)):
        tile = Shared("t", f16, 32, 16, row_major(32, 16), 1, swizzle, 16)
        row, chunk = np.indices((32, 2))
        at = tile.address(0, row, chunk * 8) // 16
        assert np.array_equal(at, swizzle(row * 2 + chunk, row))
        assert len(np.unique(at)) == 64
        further = at[swizzle.period :] - at[: -swizzle.period]
        assert (further == 2 * swizzle.period).all()
    single = Shared("t", f16, 32, 8, row_major(32, 8), 1, Swizzle(1, 3), 16)
    assert len(np.unique(single.address(0, np.arange(32), 0))) == 32
    with pytest.raises(UserError):  # where all rows would stand at even places
        Shared("t", f16, 32, 8, row_major(32, 8), 1, Swizzle(0, 3), 16)
    turned = Shared("t", f16, 16, 32, column_major(16, 32), 1, Swizzle(0, 15), 16)
    column, chunk = np.indices((32, 2))
    assert np.array_equal(turned.address(0, chunk * 8, column) // 16, (column * 2 + chunk) ^ (column & 15))
