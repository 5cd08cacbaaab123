"""NestedLayouts of other shapes against numpy, and as fragments: what composes with their digits."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convgen.ir.error import UserError
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.nested import NestedLayout
from convgen.ir.layout.nested_derived import copy_layout, needs_shared_memory, recombined
from tests.ir.test_nested import EXAMPLE, held, layouts

L, R = Space.LANE, Space.REGISTER


def powers() -> st.SearchStrategy[NestedLayout]:
    """Layouts whose threads' indices are digits of lanes for any subgroup of 2^n."""
    return layouts(gaps=(1, 1, 2), sizes=(1, 1, 2, 4))


# ---------------------------------------------------------------- fragments


def spread(fragment: Fragment, size: int, threads: int) -> list[list[tuple[int, ...]]]:
    """What each thread holds, by register."""
    found = []
    for thread in range(threads):
        at = [fragment.coords(thread // size, thread % size, register) for register in range(fragment.registers)]
        found.append([tuple(int(coords[dim]) for dim in fragment.dims) for coords in at])
    return found


@settings(max_examples=100, deadline=None)
@given(powers(), st.sampled_from((4, 16)))
def test_fragments_hold_the_same_and_become_layouts_that_do(layout: NestedLayout, size: int) -> None:
    threads = layout.least_threads(size)
    assume(threads * prod(layout.distributed_shape) <= 1 << 10)
    try:
        fragment = layout.fragment(size)
    except UserError:
        assert not layout.on(size, threads).covers
        return
    wanted = [list(held(layout, size, thread)) for thread in range(threads)]
    assert spread(fragment, size, threads) == wanted
    again = NestedLayout.of(fragment, size)
    assert [list(held(again, size, thread)) for thread in range(threads)] == wanted
    assert NestedLayout.of(again.fragment(size), size) == again


def test_subgroups_within_registers_are_threads() -> None:
    layout = NestedLayout([1], [2], [1], [256], [1], [0], [1])
    fragment = layout.fragment(64)
    assert str(fragment) == "a64l1 a4s1 a2r1"
    assert NestedLayout.of(fragment, 64).thread_tile == (256,)


def test_threads_that_fill_subgroups_leave_none_for_others() -> None:
    layout = NestedLayout([4], [2], [1], [256], [1], [1], [1])
    with pytest.raises(UserError, match="wanted thread strides that do not overlap subgroups"):
        layout.fragment(64)
    assert not layout.on(64, 256).covers


def test_registers_in_an_order_of_their_own_keep_their_elements() -> None:
    """Accumulators of several instructions: neighbours along d0 stand together, as no level has them."""
    registers = (Digit("n", 2, R, 1), Digit("m", 2, R, 2), Digit("n", 2, R, 4), Digit("m", 2, R, 8))
    digits = (Digit("n", 4, L, 1), Digit("m", 4, L, 4), *registers)
    fragment = Fragment(("n", "m"), digits)
    layout = NestedLayout.of(fragment, 16)
    assert layout.outer_tile == (4, 4)
    order = fragment.order_of(layout.fragment(16, fragment.dims))
    assert order == (0, 2, 8, 10, 1, 3, 9, 11, 4, 6, 12, 14, 5, 7, 13, 15)


def test_registers_below_threads_are_elements_whatever_their_order() -> None:
    digits = (Digit("n", 4, L, 1), Digit("n", 2, R, 1), Digit("m", 2, R, 2), Digit("m", 4, L, 4))
    fragment = Fragment(("n", "m"), digits)
    layout = NestedLayout.of(fragment, 16)
    assert (layout.outer_tile, layout.element_tile) == ((2, 1), (1, 2))
    assert fragment.order_of(layout.fragment(16, fragment.dims)) == (0, 2, 1, 3)


@pytest.mark.parametrize(
    ("digits", "message"),
    [
        ((Digit("n", 2, L, 1), Digit("n", 2, R, 1), Digit("n", 2, L, 2)), "thread 2 at 1, outer 2, thread 2 at 2"),
        ((Digit("n", 2, L, 2), Digit("n", 2, L, 1)), "thread 2 at 2, thread 2 at 1"),
        ((Digit("n", 4, L, 1), Digit("n", 2, Space.FIXED, 1)), "wanted a whole tile, not the part n2=1 of one"),
    ],
)
def test_fragments_that_are_no_layout(digits: tuple[Digit, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        NestedLayout.of(Fragment(("n",), digits), 16)


# ---------------------------------------------------------------- other layouts


def owners(layout: NestedLayout, size: int, threads: int) -> np.ndarray[Any, Any]:
    """By coordinates: a bit for each owner."""
    found = np.zeros(layout.shape, np.uint64)
    for thread in range(threads):
        for coord in held(layout, size, thread):
            found[coord] |= np.uint64(1 << thread)
    return found


@settings(max_examples=60, deadline=None)
@given(layouts(sizes=(1, 2, 2)), st.data())
def test_permuted_projected_and_mapped_vectors(layout: NestedLayout, data: Any) -> None:
    order = data.draw(st.permutations(range(layout.rank)))
    mine = owners(layout, 8, 24)
    assert np.array_equal(owners(layout.permute(order), 8, 24), mine.transpose(order))
    dropped = data.draw(st.sets(st.sampled_from(range(layout.rank)))) if layout.rank else set()
    union = np.bitwise_or.reduce(mine, axis=tuple(dropped)) if dropped else mine
    assert np.array_equal(owners(layout.project(dropped), 8, 24), union)
    kept: list[int | None] = [n for n in order if n not in dropped]
    mapped = layout.apply([*kept, None])
    spread_ = np.bitwise_or.reduce(mine.transpose(order), axis=tuple(n for n, d in enumerate(order) if d in dropped))
    assert np.array_equal(owners(mapped, 8, 24), (spread_ if dropped else mine.transpose(order))[..., None])


@settings(max_examples=150, deadline=None)
@given(layouts(sizes=(1, 1, 2)), st.data())
def test_reshaped_vectors(layout: NestedLayout, data: Any) -> None:
    left, shape = prod(layout.shape), []
    while left > 1:
        n = data.draw(st.sampled_from([d for d in range(2, left + 1) if left % d == 0]))
        shape.append(n)
        left //= n
    try:
        found = layout.reshape(shape)
    except UserError:
        return
    assert found.shape == tuple(shape)
    assert np.array_equal(owners(found, 8, 24), owners(layout, 8, 24).reshape(shape))
    flat = [[int(np.ravel_multi_index(c, one.shape)) for c in held(one, 8, 5)] for one in (found, layout)]
    assert flat[0] == flat[1]  # registers keep their order
    assert found.reshape(layout.shape).reshape(shape) == found


def test_reshapes_that_there_are_and_are_not() -> None:
    expanded = EXAMPLE.reshape([32, 2, 64])
    assert expanded.thread_tile == (8, 2, 4)
    assert expanded.thread_strides == (2, 1, 16)
    assert expanded.reshape([64, 64]) == EXAMPLE
    with pytest.raises(UserError, match=r"from the inside out, at dim 0, which has element 4, thread 4 at 16, batch 4"):
        EXAMPLE.reshape([4096])
    with pytest.raises(UserError, match="wanted 4096 positions"):
        EXAMPLE.reshape([64, 63])
    with pytest.raises(UserError, match="splits its levels into whole digits"):
        NestedLayout([1], [1], [1], [2], [3], [0], [1]).reshape([3, 2])
    with pytest.raises(UserError, match="splits or joins whole dimensions"):
        NestedLayout([1] * 2, [2, 3], [1] * 2, [1] * 2, [1] * 2, [0] * 2, [0] * 2).reshape([3, 2])


def test_dimensions_that_there_are_not() -> None:
    with pytest.raises(UserError, match=r"given \[0, 0\], wanted a permutation of 2 dimensions"):
        EXAMPLE.permute([0, 0])
    with pytest.raises(UserError, match=r"given dimensions \[2\], wanted some of a layout of rank 2"):
        EXAMPLE.project([2])
    with pytest.raises(UserError, match=r"given an affine map to \[-1\], wanted dimensions of a layout of rank 2"):
        EXAMPLE.apply([-1])
    with pytest.raises(UserError, match="no delinearisation basis"):
        EXAMPLE.apply([0, 0])


def test_results_of_operations() -> None:
    """A product's (M, N) from A (M, K) and B (K, N), and from operands that disagree along N."""
    a = NestedLayout([2, 1], [2, 1], [1, 1], [16, 1], [1, 4], [1, 0], [1, 0])
    b = NestedLayout([1, 1], [1, 4], [1, 1], [1, 4], [4, 1], [0, 0], [0, 16])
    c = recombined([a, b], [(0, 2), (2, 1)], (0, 1))
    assert c == NestedLayout([2, 1], [2, 4], [1, 1], [16, 4], [1, 1], [1, 0], [1, 16])
    other = NestedLayout([1, 1], [2, 4], [1, 1], [1, 4], [2, 1], [0, 0], [0, 16])  # what is summed over may differ
    assert recombined([a, other], [(0, 2), (2, 1)], (0, 1)) == c
    turned = recombined([a, b], [(0, 2), (2, 1)], (1, 0))
    assert turned == c.permute([1, 0])
    assert recombined([a, b], [(0, 2), (2, 1)], (0, 1, 3)) is None
    assert recombined([c, c.permute([1, 0])], [(0, 1), (0, 1)], (0, 1)) is None
    assert recombined([a, a], [(0, 2), (1, 2)], (0, 1)) is None  # both along the same threads
    with pytest.raises(UserError, match="wanted 2 dimensions"):
        recombined([a], [(0,)], (0,))


def test_conversions_through_shared_memory() -> None:
    other = NestedLayout([2, 1], [1, 1], [2, 4], [16, 4], [1, 4], [1, 0], [1, 16])
    assert not needs_shared_memory(EXAMPLE, other)
    for changed in ("thread_strides", "subgroup_strides"):
        fields = {name: getattr(EXAMPLE, name) for name in ("thread_strides", "subgroup_strides")}
        fields[changed] = tuple(2 * n for n in fields[changed])
        tiles = [getattr(EXAMPLE, f"{level}_tile") for level in ("subgroup", "batch", "outer", "thread", "element")]
        assert needs_shared_memory(EXAMPLE, NestedLayout(*tiles, **fields))
    assert needs_shared_memory(EXAMPLE, NestedLayout([2, 1], [2, 8], [1, 1], [16, 4], [1, 2], [1, 0], [1, 16]))
    with pytest.raises(UserError, match="wanted one shape"):
        needs_shared_memory(EXAMPLE, EXAMPLE.project([0]))


@pytest.mark.parametrize(
    ("shape", "element", "threads", "batch", "thread", "strides", "copies"),
    [
        ((64, 64), (1, 8), 256, (2, 1), (32, 8), (8, 1), 1),
        ((128, 32), (1, 8), 256, (2, 1), (64, 4), (4, 1), 1),
        ((4, 2048), (1, 8), 256, (4, 1), (1, 256), (0, 1), 1),
        ((4, 4096), (1, 8), 256, (4, 2), (1, 256), (0, 1), 1),
        ((2, 64), (1, 8), 64, (1, 1), (2, 8), (8, 1), 4),
        ((4, 16, 64), (1, 1, 8), 256, (2, 1, 1), (2, 16, 8), (128, 8, 1), 1),
    ],
)
def test_layouts_of_copies(
    shape: Any, element: Any, threads: int, batch: Any, thread: Any, strides: Any, copies: int
) -> None:
    layout = copy_layout(shape, element, threads)
    assert layout.shape == shape
    assert (layout.batch_tile, layout.thread_tile, layout.thread_strides) == (batch, thread, strides)
    assert layout.on(64, threads).replication == (copies,)


def test_copies_that_do_not_come_out_even() -> None:
    with pytest.raises(UserError, match="wanted 64 threads that 12 tiles divide or are divided by, at dim 1"):
        copy_layout((64, 96), (1, 8), 64)
    with pytest.raises(UserError, match="wanted an element_tile that divides"):
        copy_layout((64, 60), (1, 8), 64)
