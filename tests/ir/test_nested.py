"""NestedLayout against its definition by brute force, where the documentation is wrong, and what is refused.

The definition: with `subgroup = thread // subgroup_size`, a thread's index along dimension i is
`thread // thread_strides[i] % thread_tile[i]`, a subgroup's alike, and a coordinate is
`(((subgroup * batch_tile + batch) * outer_tile + outer) * thread_tile + thread) * element_tile + element`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir.error import UserError
from convgen.ir.layout.nested import NestedLayout

#: IREE's full example: vector<64x64xf16> on 4 subgroups of 64 threads, of which 2 hold the same.
EXAMPLE = NestedLayout([2, 1], [2, 4], [1, 1], [16, 4], [1, 4], [1, 0], [1, 16])


@st.composite
def strides(draw: Any, tile: Sequence[int], gaps: Sequence[int] = (1, 1, 2)) -> list[int]:
    """Such as make indices digits, in any order and with gaps."""
    found, end = [0] * len(tile), 1
    for dim in draw(st.permutations(range(len(tile)))):
        end *= draw(st.sampled_from(gaps))
        found[dim] = end
        end *= tile[dim]
    return found


@st.composite
def layouts(draw: Any, gaps: Sequence[int] = (1, 1, 2), sizes: Sequence[int] = (1, 1, 2, 3)) -> NestedLayout:
    rank = draw(st.integers(0, 3))
    tiles = [draw(st.lists(st.sampled_from(sizes), min_size=rank, max_size=rank)) for _ in range(5)]
    fields: Any = (*tiles, draw(strides(tiles[0], gaps)), draw(strides(tiles[3], gaps)))
    return NestedLayout(*fields)


def held(layout: NestedLayout, size: int, thread: int) -> Iterator[tuple[int, ...]]:
    """The coordinates of a thread's elements in the order of its registers, by the definition."""
    for index in product(*map(range, layout.distributed_shape)):
        batch, outer, element = (index[n * layout.rank : (n + 1) * layout.rank] for n in range(3))
        coord = []
        for i in range(layout.rank):
            vs = thread // size // max(layout.subgroup_strides[i], 1) % layout.subgroup_tile[i]
            vt = thread // max(layout.thread_strides[i], 1) % layout.thread_tile[i]
            at = (vs * layout.batch_tile[i] + batch[i]) * layout.outer_tile[i] + outer[i]
            coord.append((at * layout.thread_tile[i] + vt) * layout.element_tile[i] + element[i])
        yield tuple(coord)


def ownership(layout: NestedLayout, size: int, threads: int) -> dict[tuple[int, ...], list[int]]:
    """The owners of each element that has some, by the definition."""
    found: dict[tuple[int, ...], list[int]] = {}
    for thread in range(threads):
        for coord in held(layout, size, thread):
            found.setdefault(coord, []).append(thread)
    return found


# ---------------------------------------------------------------- forward and inverse


@settings(max_examples=150, deadline=None)
@given(layouts(), st.sampled_from((4, 6, 16)), st.integers(1, 40))
def test_owners_are_those_of_the_definition(layout: NestedLayout, size: int, threads: int) -> None:
    on, wanted = layout.on(size, threads), ownership(layout, size, threads)
    counts = {len(wanted.get(coord, ())) for coord in product(*map(range, layout.shape))}
    assert on.replication == tuple(sorted(counts))
    assert on.covers == (len(wanted) == prod(layout.shape))
    for coord in list(product(*map(range, layout.shape)))[:: max(1, prod(layout.shape) // 20)]:
        assert list(on.owners_of(coord)) == wanted.get(coord, [])
    for thread in {0, threads // 2, threads - 1}:
        assert [tuple(row) for row in on.elements_of(thread).tolist()] == list(held(layout, size, thread))
    grid, sets = on.grid(), on.sets()
    assert all(list(sets.get(int(grid[coord]), ())) == wanted.get(coord, []) for coord in np.ndindex(grid.shape))


@settings(max_examples=150)
@given(layouts(), st.data())
def test_places_and_coordinates_invert_each_other(layout: NestedLayout, data: Any) -> None:
    coord = tuple(data.draw(st.integers(0, n - 1)) for n in layout.shape)
    place = layout.place(coord)
    size = max(layout.least_threads(1), 1)  # so that one thread of a subgroup each has all indices of threads
    thread = sum(n * s for n, s in zip(place.thread, layout.thread_strides))
    thread += size * sum(n * s for n, s in zip(place.subgroup, layout.subgroup_strides))
    if all(size % (n * s) == 0 for n, s in zip(layout.thread_tile, layout.thread_strides) if n > 1):
        assert layout.coord(thread, size, place.batch, place.outer, place.element) == coord
    assert all(0 <= n < tile for n, tile in zip(place.thread, layout.thread_tile))


def test_the_full_example() -> None:
    assert EXAMPLE.shape == (64, 64)
    assert EXAMPLE.packed_shape == (2, 1, 2, 4, 1, 1, 16, 4, 1, 4)
    assert EXAMPLE.distributed_shape == (2, 4, 1, 1, 1, 4)
    assert EXAMPLE.unpacked_shape == (2, 16)
    assert EXAMPLE.least_threads(64) == 128
    on = EXAMPLE.on(64, 256)
    assert on.replication == (2,)
    assert on.owners_of((33, 6)) == (81, 209)
    EXAMPLE.check_workgroup(64, 256)


def test_least_threads_are_whole_tiles_of_subgroups() -> None:
    """Subgroups 0 and 1 hold the same, 2 and 3 alike: three would hold one half twice and the other once."""
    assert NestedLayout([2], [1], [1], [1], [1], [2], [0]).least_threads(16) == 64


def test_indices_may_be_arrays() -> None:
    rows, cols = EXAMPLE.coord(np.arange(128), 64, element=(0, 3))
    assert rows.tolist() == [n % 16 + 32 * (n // 64) for n in range(128)]
    assert cols.tolist() == [n // 16 % 4 * 4 + 3 for n in range(128)]


# ---------------------------------------------------------------- where the documentation is wrong


def seed_inverse(ids: Sequence[int], strides: Sequence[int], tile: Sequence[int]) -> int:
    """`sum(stride * virtual_id) % product(tile)`, as the documentation has it."""
    return sum(n * s for n, s in zip(ids, strides)) % prod(tile)


@pytest.mark.parametrize(("tile", "strides"), [([4], [16]), ([2, 4], [8, 2])])
def test_the_documented_inverse_loses_gaps(tile: list[int], strides: list[int]) -> None:
    """Two of IREE's own layouts: the modulus is idle where strides are compact, and wrong where they have gaps."""
    one = [1] * len(tile)
    layout = NestedLayout(one, one, one, tile, one, [0] * len(tile), strides)
    wrong = 0
    for coord in product(*map(range, tile)):
        owners = layout.on(64, 64).owners_of(coord)
        assert owners[0] == sum(n * s for n, s in zip(coord, strides))
        wrong += seed_inverse(coord, strides, tile) not in owners
    assert wrong > 0
    compact = EXAMPLE.on(64, 64)
    assert seed_inverse((3, 2), (1, 16), (16, 4)) == compact.owners_of((3, 8))[0] == 35


def test_the_documented_forward_formula_divides_by_a_stride_of_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        _ = 5 // EXAMPLE.subgroup_strides[1] % EXAMPLE.subgroup_tile[1]
    assert EXAMPLE.place((63, 63)).subgroup == (1, 0)


def test_fewer_subgroups_than_are_used_leave_elements_without_owner() -> None:
    """The text lets 8 subgroups be used where there are 4, subgroup x being x mod 4: pieces then have no owner."""
    layout = NestedLayout([4, 2], [1, 1], [1, 1], [1, 1], [1, 1], [1, 4], [0, 0])
    order = [layout.on(64, 512).owners_of(coord)[0] // 64 for coord in product(range(4), range(2))]
    assert order == [0, 4, 1, 5, 2, 6, 3, 7]
    few = layout.on(64, 256)
    assert sum(not few.owners_of(coord) for coord in product(range(4), range(2))) == 4
    with pytest.raises(UserError, match=r"given 256 threads .* wanted a multiple of the 8 subgroups"):
        layout.check_workgroup(64, 256)
    layout.check_workgroup(64, 1024)


def test_a_thread_is_numbered_in_the_workgroup() -> None:
    layout = NestedLayout([1], [1], [1], [3], [1], [0], [1])
    assert layout.coord(64, 64) == (1,)  # its lane is 0
    with pytest.raises(UserError, match="digits of a lane of 64"):
        layout.fragment(64)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (([1], [1], [1], [4, 3], [1], [0], [0]), "all fields must have the same rank as the layout: given thread_tile"),
        (([1], [1], [1], [4], [1], [0], [0]), "thread: tile > 1 with stride 0 loses elements: .* at dim 0"),
        (([1, 2], [1] * 2, [1] * 2, [1] * 2, [1] * 2, [0] * 2, [0] * 2), "subgroup: tile > 1 with stride 0 .* dim 1"),
        (([1] * 2, [1] * 2, [1] * 2, [4, 4], [1] * 2, [0] * 2, [3, 1]), "thread: no delinearisation basis: .* of 4"),
        (([1] * 2, [1] * 2, [1] * 2, [4, 4], [1] * 2, [0] * 2, [1, 1]), "thread: no delinearisation basis"),
        (
            ([1] * 2, [1] * 2, [1] * 2, [4, 2], [1] * 2, [0] * 2, [1, 6]),
            "no delinearisation basis: .* of 4, .* at dim 1",
        ),
        (([1], [0], [1], [4], [1], [0], [1]), r"given batch_tile \[0\], wanted integers from 1"),
        (([1], [1], [1], [4], [1], [0], [-1]), r"given thread_strides \[-1\], wanted integers from 0"),
        (([1] * 13, [1] * 13, [1] * 13, [1] * 13, [1] * 13, [0] * 13, [0] * 13), "of 13 dimensions, wanted at most 12"),
        (([1 << 12], [1 << 12], [2], [1], [1], [1], [0]), "wanted at most 16777216 positions"),
    ],
)
def test_what_is_no_layout(fields: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        NestedLayout(*fields)
    assert "\n" not in str(raised.value)


def test_strides_with_gaps_are_a_basis() -> None:
    NestedLayout([1] * 2, [1] * 2, [1] * 2, [16, 4], [1] * 2, [0] * 2, [8, 1])
    far = NestedLayout([1], [1], [1], [4], [1], [0], [1 << 23])
    assert far.coord(3 << 23, 64) == (3,)
    with pytest.raises(UserError, match="given 33554432 owners"):
        far.on(64, 1 << 25)


def test_a_tile_of_one_has_no_stride() -> None:
    layout = NestedLayout([1], [2], [1], [4], [1], [7], [2])
    assert layout == NestedLayout([1], [2], [1], [4], [1], [0], [2])
    assert hash(layout) == hash(NestedLayout([1], [2], [1], [4], [1], [5], [2]))
    assert layout.subgroup_strides == (0,)


def test_shapes_of_vectors_and_tensors() -> None:
    EXAMPLE.check_shape((64, 64))
    EXAMPLE.check_shape((None, 64))
    EXAMPLE.check_shape((60, 3), padded=True)
    with pytest.raises(UserError, match=r"^Rank of vector \(1\) does not match rank of layout \(2\).$"):
        EXAMPLE.check_shape((64,))
    wanted = r"^Vector shape: \[64, 60\] does not match the layout \(#.*\) at dim 1. Dimension expected by layout: 64 "
    with pytest.raises(UserError, match=wanted + r"actual: 60$"):
        EXAMPLE.check_shape((64, 60))
    with pytest.raises(UserError, match="actual: 65"):
        EXAMPLE.check_shape((64, 65), padded=True)


@pytest.mark.parametrize(
    ("threads", "message"),
    [(96, "whole subgroups"), (192, "a multiple of the 2 subgroups"), (64, "a multiple of the 2 subgroups")],
)
def test_workgroups_that_do_not_suit(threads: int, message: str) -> None:
    with pytest.raises(UserError, match=f"given {threads} threads in subgroups of 64, wanted {message}"):
        EXAMPLE.check_workgroup(64, threads)
    wide = NestedLayout([1], [1], [1], [256], [1], [0], [1])
    with pytest.raises(UserError, match="wanted an owner for each element"):
        wide.check_workgroup(64, 128)


# ---------------------------------------------------------------- text


@settings(max_examples=100)
@given(layouts())
def test_text_is_read_as_it_is_written(layout: NestedLayout) -> None:
    text = str(layout)
    assert text.startswith("#iree_vector_ext.nested_layout<subgroup_tile = [")
    assert NestedLayout.parse(text) == NestedLayout.parse(text.replace(" ", "")) == layout
    assert NestedLayout.parse(text.partition("<")[2][:-1]) == layout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "given the end, wanted FIELD = "),
        ("#iree.layout<>", "given '#iree.layout<', wanted #iree_vector_ext.nested_layout<, at column 1"),
        ("#iree_vector_ext.nested_layout<batch_tile = [1]", "given no >, wanted one, at column 48"),
        ("batch_tiles = [1]", r"given 'batch_tiles' \(did you mean batch_tile\?\), wanted each of subgroup_tile"),
        ("batch_tile = [1], batch_tile = [1]", "given batch_tile twice, .* at column 19"),
        ("batch_tile = [1, x]", "given ' x', wanted an integer of up to 9 digits, at column 17"),
        ("batch_tile = [1 2]", r"given '2', wanted a comma or \], at column 17"),
        ("batch_tile = [1] outer_tile = [1]", "wanted a comma or the end, at column 18"),
        ("batch_tile = [1]", "given no subgroup_tile, wanted each of .*, at column 17"),
    ],
)
def test_text_that_is_no_layout(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        NestedLayout.parse(text)
