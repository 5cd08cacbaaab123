"""Views in linear form: the same addresses, with as few dimensions as memory allows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends.target import get
from convgen.ir.error import Unsupported
from convgen.ir.expr import const, minimum, var
from convgen.ir.layout.memory import Dim, Global, TensorDim, View
from convgen.ir.layout.tags import Layout
from convgen.ir.simplify.extents import divisor, upper_bound
from convgen.ir.types import f16
from convgen.passes.messages.linear import Halo, LinearDim, LinearView, linearize
from convgen.plan import views
from convgen.plan.contraction import Product
from convgen.problem.conv import Conv
from tests.strategies import problems


def operands(descriptor: str, block: int = 1, **knobs: str) -> Product:
    """The one product of a problem; forward unless said otherwise: weights (N, K) times pixels (M, K)."""
    (found,) = views.products(Conv.parse(descriptor, **{"dir": "FWD_D", "dt": "f16", **knobs}), block)
    return found


def sizes(view: LinearView, axis: int) -> list[int]:
    return [d.size for d in view.axes[axis]]


def test_contiguous_dimensions_merge() -> None:
    found = operands("mb3ic16oc32ih5kh1iw7kw1")
    pixels = linearize(found.of_m)
    assert sizes(pixels, 0) == [3 * 5 * 7]
    assert sizes(pixels, 1) == [16]
    weights = linearize(operands("mb3ic16oc32ih5kh3iw7kw2").of_n)
    assert sizes(weights, 0) == [32]
    assert sizes(weights, 1) == [3 * 2 * 16]
    assert sizes(linearize(found.result), 1) == [3 * 5 * 7]


def test_stride_padding_and_halos_keep_dimensions_apart() -> None:
    strided = linearize(operands("mb3ic16oc32ih9oh5kh1sh2ph0").of_m)
    assert sizes(strided, 0) == [3, 5, 5]
    halo = linearize(operands("mb3ic16oc32ih9oh9kh3ph1").of_m)
    assert sizes(halo, 0) == [3, 9, 9]
    assert sizes(halo, 1) == [3, 3, 16]
    assert [h.size for h in halo.halos] == [9, 9]
    padded = linearize(operands("mb1ic12ih5oc8kh3", 16).of_n)
    assert [(d.name, d.size, d.padded) for d in padded.axes[1]] == [("kh", 9, 9), ("ic", 12, 16)]


def test_left_padding_moves_the_base_below_zero() -> None:
    view = linearize(operands("mb1ic16oc32ih9oh9kh3ph1").of_m)
    assert view.base == -2 * 16 * (9 + 1)
    assert linearize(operands("mb1ic16oc32ih9oh7kh3ph0").of_m).base == 0


@pytest.mark.parametrize(("tag", "axis"), [("axb", 1), ("abx", 0), ("cdab", 1), ("cdba", None)])
def test_the_contiguous_axis(tag: str, axis: int | None) -> None:
    assert linearize(operands("mb2ic16oc32ih9oh8kh2", stag=tag).of_m).unit_axis == axis


def test_blocks_that_end_within_a_dim_are_refused() -> None:
    layout = Layout.from_tag("Ab16a", (32, 8))
    index = tuple(TensorDim(size, ((name, 1),)) for name, size in (("m", 32), ("k", 8)))
    view = View(Global("src", f16, 512), layout, ((Dim("m", 32, 32),), (Dim("k", 8, 8),)), index)
    with pytest.raises(Unsupported, match="a block of which ends within a dim"):
        linearize(view)


def test_blocks_that_end_between_dims() -> None:
    """Two dims of a coordinate, each with the stride of its digit."""
    layout = Layout.from_tag("Ab16a", (32, 8))
    index = TensorDim(32, (("m_1", 16), ("m_0", 1))), TensorDim(8, (("k", 1),))
    axes = (Dim("m_1", 2, 2), Dim("m_0", 16, 16)), (Dim("k", 8, 8),)
    found = linearize(View(Global("src", f16, 512), layout, axes, index))
    assert [[(d.name, d.stride) for d in dims] for dims in found.axes] == [[("m_1", 256), ("m_0", 2)], [("k", 32)]]


def test_the_taps_of_backward_data_run_against_memory() -> None:
    found = linearize(operands("mb1ic8oc16ih5kh3ph1", dir="BWD_D").of_n)
    taps = [(d.name, d.size, d.reversed) for d in found.axes[1]]
    assert taps == [("kh", 3, True), ("kw", 3, True), ("oc", 16, False)]
    assert found.base == 0  # position 0 of each is the last tap: the base is where the first one lies
    assert [d.stride // 2 for d in found.axes[1]] == [3 * 8, 8, 3 * 3 * 8]


def test_halos_follow_dims_that_merge() -> None:
    """Rows of pixels in an image that has a margin at its end only: the row's condition counts pixels."""
    merged = linearize(operands("mb1ic4oc8ih6oh6kh2ph0iw5ow5kw1").of_m)
    assert sizes(merged, 0) == [30]
    assert [(h.size, dict(h.terms)[merged.axes[0][-1].name]) for h in merged.halos] == [(30, 1)]


def addresses(view: View) -> dict[tuple[int, ...], int]:
    """The byte of every element of a view that exists, by position along its axes."""
    out = {}
    for at in product(*(range(view.extent(a)) for a in range(len(view.axes)))):
        dims = {k: v for axis, position in enumerate(at) for k, v in view.decode(axis, position).items()}
        exists = all(dims[d.name] < d.size for axis in view.axes for d in axis)
        index = [t.at(dims) for t in view.index]
        if exists and all(0 <= i < t.size for i, t in zip(index, view.index)):
            out[at] = int(view.layout.offset([np.int64(i) for i in index])) * view.memory.elem.bytes
    return out


def linear_addresses(view: LinearView) -> dict[tuple[int, ...], int]:
    out = {}
    for at in product(*(range(view.extent(a)) for a in range(len(view.axes)))):
        dims: dict[str, int] = {}
        for position, axis in zip(at, view.axes):
            for d in reversed(axis):
                position, dims[d.name] = divmod(position, d.padded)
        exists = all(dims[d.name] < d.size for axis in view.axes for d in axis)
        halos = (h.const + sum(dims.get(n, 0) * c for n, c in h.terms) for h in view.halos)
        if exists and all(0 <= x < h.size for x, h in zip(halos, view.halos)):
            place = {d: d.size - 1 - dims[d.name] if d.reversed else dims[d.name] for axis in view.axes for d in axis}
            out[at] = view.base + sum(at_ * upper_bound(d.stride) for d, at_ in place.items())
    return out


def views_of(problem: Conv, block: int) -> Iterator[View]:
    for part in views.products(problem, block, views.must_reorder(problem)):
        yield from (part.of_m, part.of_n, part.result)


@settings(max_examples=20)
@given(problems(most=3, channels=8) | problems(most=3, channels=8, unusual=True), st.sampled_from((1, 4)))
def test_the_linear_form_has_the_same_addresses(problem: Conv, block: int) -> None:
    for view in views_of(problem, block):
        assert linear_addresses(linearize(view)) == addresses(view)


def moved(at: tuple[int, ...], axis: int, by: int) -> tuple[int, ...]:
    return (*at[:axis], at[axis] + by, *at[axis + 1 :])


@settings(max_examples=20)
@given(problems(most=4, channels=8), st.sampled_from((1, 4)))
def test_messages_bring_what_lies_side_by_side(problem: Conv, block: int) -> None:
    for view in views_of(problem, block):
        linear = linearize(view)
        elem, there = view.memory.elem.bytes, addresses(view)
        for run in (w // elem for w in get("gfx942").facts.global_widths if w > elem and w % elem == 0):
            if linear.makes_messages(run):
                axis = linear.unit_axis
                assert axis is not None
                assert view.extent(axis) % run == 0
                for at in (at for at in there if at[axis] % run == 0):
                    assert there[at] % min(4, run * elem) == 0
                    assert [there.get(moved(at, axis, n)) for n in range(run)] == [
                        there[at] + n * elem for n in range(run)
                    ]
                for at in there:
                    assert moved(at, axis, -(at[axis] % run)) in there


def test_divisors_of_expressions() -> None:
    m0, kb, free = var("m0"), var("kb"), var("free")
    values = {m0: kb * 64}
    assert divisor(const(-24), values) == 24
    assert divisor(free, values) == 1
    assert divisor(m0, values) == 64
    assert divisor(m0 + 16, values) == 16
    assert divisor(minimum(m0 * 3, const(0)), values) == 192
    assert divisor(m0 - kb, values) == 1


COL = LinearDim("col", 8, 8, 2)


@pytest.mark.parametrize(
    ("halo", "dim", "run", "constant"),
    [
        (Halo(8, (("row", 1), ("tap", 1)), -1), "col", 4, True),  # says nothing of columns
        (Halo(8, (("col", 1),), 0), "col", 4, True),
        (Halo(8, (("col", 1), ("tap", 4)), -4), "col", 4, True),
        (Halo(8, (("col", 1), ("tap", 4)), -4), "col", 8, False),
        (Halo(8, (("col", 1), ("tap", 1)), -4), "col", 4, False),  # begins anywhere
        (Halo(8, (("col", 1), ("tap", 4)), -1), "col", 4, False),
        (Halo(6, (("col", 1), ("tap", 4)), -4), "col", 4, False),  # ends within a run
        (Halo(6, (("col", 1), ("tap", 4)), -4), "col", 2, True),
        (Halo(8, (("col", 2),), 0), "col", 4, False),
    ],
)
def test_runs_that_are_inside_or_outside_as_a_whole(halo: Halo, dim: str, run: int, constant: bool) -> None:
    assert halo.is_constant_over(dim, run) is constant


@pytest.mark.parametrize(
    ("halo", "inner", "merged"),
    [
        (Halo(6, (("row", 1), ("tap", 1)), -1), LinearDim("col", 4, 4, 2), Halo(24, (("row", 1), ("tap", 4)), -4)),
        (Halo(6, (("tap", 1),), -1), LinearDim("col", 4, 4, 2), Halo(6, (("tap", 1),), -1)),
        (Halo(6, (("row", 1), ("col", 1)), -1), LinearDim("col", 4, 4, 2), None),
        (Halo(22, (("row", 4), ("col", 1)), 0), LinearDim("col", 4, 4, 2), Halo(22, (("row", 1),), 0)),
        (
            Halo(9, (("tap", 3), ("row", 8), ("col", 2)), -1),
            LinearDim("col", 4, 4, 2),
            Halo(9, (("tap", 3), ("row", 2)), -1),
        ),
        (Halo(6, (("row", 2), ("tap", 1)), -1), LinearDim("col", 4, 4, 2), None),
        (Halo(6, (("row", 1),), -1), LinearDim("col", 8, 8, 2), None),  # a whole message by itself
        (Halo(6, (("row", 1),), -1), LinearDim("col", 16, 16, 2), None),
        (Halo(6, (("row", 1),), -1), LinearDim("col", 7, 7, 2), Halo(42, (("row", 1),), -7)),
    ],
)
def test_conditions_on_merged_dims(halo: Halo, inner: LinearDim, merged: Halo | None) -> None:
    assert halo.merged("row", inner, 2) == merged


@pytest.mark.parametrize(
    ("col", "row_stride", "base", "run", "whole"),
    [
        (COL, 16, 0, 8, True),
        (COL, 16, 0, 4, True),
        (COL, 16, 0, 3, False),
        (COL, 18, 0, 2, False),  # every other row is not aligned
        (COL, 18, 0, 1, True),
        (COL, 20, 0, 8, True),  # dwords suffice
        (COL, 16, -2, 2, False),
        (COL, 16, -4, 8, True),
        (LinearDim("col", 6, 8, 2), 16, 0, 4, False),
        (LinearDim("col", 4, 6, 2), 16, 0, 4, False),
        (LinearDim("col", 8, 8, 4), 16, 0, 2, False),
        (LinearDim("col", 8, 8, 4), 16, 0, 1, True),  # nothing lies side by side
    ],
)
def test_what_makes_messages(col: LinearDim, row_stride: int, base: int, run: int, whole: bool) -> None:
    view = LinearView(Global("x", f16, 4096), ((LinearDim("row", 4, 4, row_stride),), (col,)), base, ())
    assert view.makes_messages(run) is whole
