"""Views of elements of 4 and 6 bits as views of bytes: each element has the bits at its place in memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convgen.ir.error import DoesNotFit, Unsupported
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Dim, Global, TensorDim, View
from convgen.ir.layout.tags import Layout
from convgen.ir.record import evolve
from convgen.ir.types import Type, f4_e2m1, f6_e3m2, s4, u8
from convgen.passes.messages.packed_views import bytes_of, check_whole_bytes, fragment_of_bytes
from tests.strategies import FIXED

R, L = Space.REGISTER, Space.LANE


def view_of(elem: Type, rows: int, groups: int, run: int, pitch: int) -> View:
    """Rows of `groups` runs of `run` elements; a row is `pitch` elements long."""
    k = TensorDim(groups * run, (("group", run), ("k", 1)))
    layout = Layout.strided((rows, groups * run), (pitch, 1))
    axes = (Dim("row", rows, rows),), (Dim("group", groups, groups), Dim("k", run, run))
    memory = Global("a", elem, elem.size(layout.size_elems))
    return View(memory, layout, axes, (TensorDim(rows, (("row", 1),)), k))


@FIXED
@given(st.sampled_from((s4, f4_e2m1, f6_e3m2)), *(st.integers(1, 5) for _ in range(4)))
def test_bytes_lie_where_the_bits_of_elements_are(elem: Type, rows: int, groups: int, runs: int, more: int) -> None:
    together = 24 // elem.bits  # elements in three bytes
    run, pitch = together * runs, together * (groups * runs + more)
    found = bytes_of(view_of(elem, rows, groups, run, pitch))
    assert found is not None
    view, axis = found
    assert (axis, view.memory.elem, view.axes[1][1].size) == (1, u8, run * elem.bits // 8)
    row, group, byte = np.indices((rows, groups, view.axes[1][1].size))
    at = {"row": row, "group": group, "k": byte}
    index = [sum(coef * at[name] for name, coef in t.terms) for t in view.index]
    places = sum(n * stride for n, stride in zip(index, view.layout.strides()))
    assert np.array_equal(8 * places, elem.bits * (row * pitch + group * run) + 8 * byte)


def test_coordinates_move_by_bytes() -> None:
    view = view_of(f6_e3m2, 3, 2, 8, 16)
    rows, k = view.index
    found = bytes_of(evolve(view, index=(rows, evolve(k, const=4))))
    assert found is not None
    assert found[0].index[1] == TensorDim(12, (("group", 6), ("k", 1)), 3)
    assert bytes_of(evolve(view, index=(rows, evolve(k, const=2)))) is None


def test_fragments_count_bytes_of_whole_runs() -> None:
    digits = Digit("k", 8, R, 1), Digit("k", 4, L, 8), Digit("row", 8, L, 1), Digit("row", 2, R, 8)
    found = fragment_of_bytes(Fragment(("row", "k"), digits), "k", f6_e3m2)
    assert found.digits == (Digit("k", 6, R, 1), Digit("k", 4, L, 8), Digit("row", 8, L, 1), Digit("row", 2, R, 6))
    with pytest.raises(DoesNotFit, match="no runs of 4 of neighbours along k"):
        fragment_of_bytes(Fragment(("row", "k"), (Digit("k", 2, R, 1), Digit("row", 8, L, 1))), "k", f6_e3m2)


@pytest.mark.parametrize(("run", "pitch"), [(6, 12), (8, 18)])
def test_rows_of_parts_of_bytes_are_refused(run: int, pitch: int) -> None:
    view = view_of(f6_e3m2, 3, 1, run, pitch)
    assert bytes_of(view) is None
    wanted = f"a of f6_e3m2 with strides {pitch}x1, wanted a multiple of 4 along a dimension of stride 1, and multiples"
    with pytest.raises(Unsupported, match=wanted):
        check_whole_bytes(view)
