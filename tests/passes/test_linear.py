"""Views in linear form: the same addresses, with as few dimensions as memory allows."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings

from convgen import views
from convgen.ir.error import Unsupported
from convgen.ir.expr import const, minimum, var
from convgen.ir.memory import View
from convgen.passes.linear import LinearView, divisor, linearize
from convgen.problem import Conv
from tests.strategies import problems


def operands(descriptor: str, **knobs: str) -> views.Operands:
    problem = Conv.parse(descriptor, dir="FWD_D", dt="f16", **knobs)
    return views.operands(problem, 1)


def sizes(view: LinearView, axis: int) -> list[int]:
    return [d.size for d in view.axes[axis]]


def test_contiguous_dimensions_merge() -> None:
    found = operands("mb3ic16oc32ih5kh1iw7kw1")
    pixels = linearize(found.pixels)
    assert sizes(pixels, 0) == [3 * 5 * 7]
    assert sizes(pixels, 1) == [16]
    weights = linearize(operands("mb3ic16oc32ih5kh3iw7kw2").weights)
    assert sizes(weights, 0) == [32]
    assert sizes(weights, 1) == [3 * 2 * 16]
    assert sizes(linearize(found.result), 1) == [3 * 5 * 7]


def test_stride_padding_and_halos_keep_dimensions_apart() -> None:
    strided = linearize(operands("mb3ic16oc32ih9oh5kh1sh2ph0").pixels)
    assert sizes(strided, 0) == [3, 5, 5]
    halo = linearize(operands("mb3ic16oc32ih9oh9kh3ph1").pixels)
    assert sizes(halo, 0) == [3, 9, 9]
    assert sizes(halo, 1) == [3, 3, 16]
    assert [h.size for h in halo.halos] == [9, 9]
    problem = Conv.parse("mb1ic12ih5oc8kh3", dir="FWD_D", dt="f16")
    padded = linearize(views.operands(problem, 16).weights)
    assert [(d.name, d.size, d.padded) for d in padded.axes[1]] == [("kh", 9, 9), ("ic", 12, 16)]


def test_left_padding_moves_the_base_below_zero() -> None:
    view = linearize(operands("mb1ic16oc32ih9oh9kh3ph1").pixels)
    assert view.base == -2 * 16 * (9 + 1)
    assert linearize(operands("mb1ic16oc32ih9oh7kh3ph0").pixels).base == 0


@pytest.mark.parametrize(("tag", "axis"), [("axb", 1), ("abx", 0), ("cdab", 1), ("cdba", None)])
def test_the_contiguous_axis(tag: str, axis: int | None) -> None:
    assert linearize(operands("mb2ic16oc32ih9oh8kh2", stag=tag).pixels).unit_axis == axis


def test_blocked_layouts_are_refused() -> None:
    with pytest.raises(Unsupported, match="wanted a plain one"):
        linearize(operands("mb2ic16oc32ih9oh8kh2", stag="aBcd16b").pixels)


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
            out[at] = view.base + sum(dims[d.name] * d.stride for axis in view.axes for d in axis)
    return out


@settings(max_examples=30, derandomize=True, database=None)
@given(problems(most=3, channels=8))
def test_the_linear_form_has_the_same_addresses(problem: Conv) -> None:
    found = views.operands(problem, 4)
    for view in (found.pixels, found.weights, found.result):
        assert linear_addresses(linearize(view)) == addresses(view)


def test_divisors_of_expressions() -> None:
    m0, kb, free = var("m0"), var("kb"), var("free")
    values = {m0: kb * 64}
    assert divisor(const(-24), values) == 24
    assert divisor(free, values) == 1
    assert divisor(m0, values) == 64
    assert divisor(m0 + 16, values) == 16
    assert divisor(minimum(m0 * 3, const(0)), values) == 192
    assert divisor(m0 - kb, values) == 1
