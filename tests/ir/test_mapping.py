"""Workgroups and tiles: every tile has one workgroup, in numbers as in IR expressions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir.build import KernelBuilder
from convgen.ir.error import UserError
from convgen.ir.evaluate import Evaluator
from convgen.ir.expr import Expr, const, lift
from convgen.ir.layout.digits import Digit, Digits, Space
from convgen.ir.layout.mapping import GROUPS, TILE, WorkgroupMapping
from convgen.ir.stmt import If, Let
from tests.strategies import FIXED

X, Y, Z = GROUPS
COUNTS = st.tuples(*(st.integers(1, 7) for _ in TILE))


@st.composite
def mappings(draw: st.DrawFn) -> WorkgroupMapping:
    """Digits of random sizes dealt to the three numbers in any order, with more room than there are tiles."""
    counts = draw(COUNTS)
    digits: list[Digit] = []
    for dim, count in zip(TILE, counts):
        inner = draw(st.integers(1, count))
        digits += [Digit(dim, inner, Space.GROUP_X, 1), Digit(dim, -(-count // inner), Space.GROUP_X, 1)]
    order = draw(st.permutations(range(len(digits))))
    ends = dict.fromkeys(GROUPS, 1)
    placed = list(digits)
    for n in order:
        space = draw(st.sampled_from(GROUPS))
        placed[n] = Digit(digits[n].dim, digits[n].size, space, ends[space])
        ends[space] *= digits[n].size
    return WorkgroupMapping(counts, Digits(TILE, tuple(placed)))


def workgroups(mapping: WorkgroupMapping) -> list[tuple[int, int, int]]:
    """All of the grid, x fastest."""
    x, y, z = mapping.grid
    return [(i, j, k) for k, j, i in product(range(z), range(y), range(x))]


def held(mapping: WorkgroupMapping, group: tuple[int, int, int]) -> tuple[int, ...] | None:
    """The tile of a workgroup; None if there is none."""
    tile = mapping.tile(group)
    return tuple(tile[dim] for dim in TILE) if all(mapping.exists(tile)) else None


@settings(FIXED, max_examples=60)
@given(mappings())
def test_every_tile_has_one_workgroup(mapping: WorkgroupMapping) -> None:
    tiles = [held(mapping, group) for group in workgroups(mapping)]
    there = [tile for tile in tiles if tile is not None]
    assert sorted(there) == list(product(*map(range, mapping.counts)))
    assert mapping.is_padded == (None in tiles)
    for number, tile in enumerate(tiles):
        if tile is not None:
            assert mapping.groups({dim: [at] for dim, at in zip(TILE, tile)}) == (number,)
    assert sorted(mapping.groups({})) == [n for n, tile in enumerate(tiles) if tile is not None]


@settings(FIXED, max_examples=40)
@given(mappings(), st.data())
def test_expressions_say_what_numbers_say(mapping: WorkgroupMapping, data: st.DataObject) -> None:
    group = data.draw(st.sampled_from(workgroups(mapping)))
    numbers = mapping.tile(group)
    symbolic = mapping.tile([const(n) for n in group])
    evaluate = Evaluator(64)
    for dim in TILE:
        found = symbolic[dim]
        assert (int(evaluate(found).data.flat[0]) if isinstance(found, Expr) else found) == numbers[dim]


@settings(FIXED, max_examples=40)
@given(COUNTS)
def test_rows_of_tiles(counts: tuple[int, int, int, int]) -> None:
    """What the kernels of a problem have: N fastest along x, slices along y, the batch along z."""
    batch, m, n, k = counts
    mapping = WorkgroupMapping.rows(m, n, k=k, batch=batch)
    assert mapping.grid == (m * n, k, batch)
    assert not mapping.is_padded
    numbers = np.arange(m * n * k * batch).reshape(batch, k, m, n)
    for b, i, j, s in product(*map(range, counts)):
        assert mapping.groups({"batch": [b], "m": [i], "n": [j], "k": [s]}) == (numbers[b, s, i, j],)
    assert mapping.groups({"m": [0], "k": [0], "batch": [0]}) == tuple(range(n))


@pytest.mark.parametrize(
    "digits",
    [
        (Digit("m", 4, X, 2),),  # the odd workgroups have none
        (Digit("m", 4, X, 1), Digit("n", 2, X, 2)),  # two tiles in one workgroup
        (Digit("m", 3, X, 1),),  # a tile without a workgroup
        (Digit("m", 4, Space.LANE, 1),),
    ],
)
def test_what_is_no_bijection_is_refused(digits: tuple[Digit, ...]) -> None:
    with pytest.raises(UserError, match="wanted one for each tile"):
        WorkgroupMapping((1, 4, 1, 1), Digits(TILE, digits))


def test_workgroups_without_a_tile_do_nothing() -> None:
    padded = WorkgroupMapping((1, 3, 1, 1), Digits(TILE, (Digit("m", 2, X, 1), Digit("m", 2, Y, 1))))
    k = KernelBuilder("k", padded.grid)
    with k.tile_of(padded) as tile:
        k.let("here", lift(tile["m"], const(0)))
    body = k.done().body
    assert isinstance(body, If)
    assert isinstance(body.then, Let)
    k = KernelBuilder("k")
    with k.tile_of(WorkgroupMapping.rows(3, 1)) as tile:
        k.let("here", lift(tile["m"], const(0)))
    assert isinstance(k.done().body, Let)
