"""Resident windows as data: rows of the source at the distance of a tap are what windows see there."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convgen.backends.target import get
from convgen.ir.error import DoesNotFit
from convgen.ir.layout.memory import View
from convgen.plan import views
from convgen.plan.config import APART, COLUMNS, Config
from convgen.plan.directions import have_columns
from convgen.plan.plan import make_plan
from convgen.plan.variants.resident import Resident, resident
from convgen.problem.conv import Conv
from tests.strategies import problems

FIXED = settings(max_examples=60)
CHANNELS_LAST = {"stag": "axb", "wtag": "axb", "dtag": "axb"}


def elements(view: View, row: Any, k: Any) -> np.ndarray[Any, Any]:
    """The number of the tensor element at positions of two axes; -1 where there is none."""
    dims = {**view.decode(0, row), **view.decode(1, k)}
    there = np.ones(np.broadcast(row, k).shape, bool)
    for d in (d for axis in view.axes[:2] for d in axis):
        there &= (dims[d.name] >= 0) & (dims[d.name] < d.size)
    index = [np.broadcast_to(t.at(dims), there.shape) for t in view.index]
    for i, t in zip(index, view.index):
        inside = (i >= 0) & (i < t.size)
        assert t.masked or inside[there].all(), "outside the tensor without a mask"
        there = there & inside
    number = np.ravel_multi_index([np.where(there, i, 0) for i in index], [t.size for t in view.index])
    return np.where(there, number, -1)


def check(found: Resident, depth: int) -> None:
    """Each row of the result that exists sees through the source what its windows see."""
    product, taps = found, found.tap_rows
    each = depth // len(taps)
    rows = np.arange(product.m)[:, None]
    dims = product.of_m.decode(0, rows)
    exists = np.ones((product.m, 1), bool)
    for d in product.of_m.axes[0]:
        exists &= dims[d.name] < d.size
    assert exists.sum() == prod(d.size for d in product.of_m.axes[0])
    assert exists[-1, 0], "rows behind the last position"
    for block in range(product.k // depth):
        for n, row in enumerate(taps):
            seen = elements(product.of_m, rows, np.arange(each)[None] + block * depth + n * each)
            brought = elements(found.source, rows + row, np.arange(each)[None] + block * each)
            assert np.array_equal(seen[exists[:, 0]], brought[exists[:, 0]])


@FIXED
@given(problems(most=7, channels=8, directions=("FWD_D", "BWD_D")), st.integers(1, 4), st.booleans())
def test_rows_of_the_source_are_what_windows_see(problem: Conv, blocks: int, columns: bool) -> None:
    phases = COLUMNS if columns and have_columns(problem) else APART
    for part in views.products(problem, 1, views.must_reorder(problem), phases):
        channels = part.k_inner.size
        assume(channels % blocks == 0)
        try:
            found = resident(part, part.k // blocks)
        except DoesNotFit:
            continue
        check(found, part.k // blocks)


@pytest.mark.parametrize(
    ("line", "pitch"),
    [
        ("mb2ic8oc8ih6iw9oh6ow9kh3kw3ph1pw1", 10),  # a gap of one serves both ends
        ("mb2ic8oc8ih6iw9oh4ow7kh3kw3ph0pw0", 9),  # the source has what windows see beyond the result's lines
        ("mb2ic8oc8ih6iw9oh6ow9kh3kw3ph2pw2dh1dw1", 11),
        ("mb1ic8oc8ih6iw3oh6ow11kh3kw3ph1pw5", 11),  # windows outside on both sides
    ],
)
def test_lines_have_the_least_gaps(line: str, pitch: int) -> None:
    problem = Conv.parse(line, dir="FWD_D", dt="f16", **CHANNELS_LAST)
    (part,) = views.products(problem, 1)
    found = resident(part, part.k)
    assert found.source.axes[0][-1].padded == pitch
    assert found.tap_rows[1] - found.tap_rows[0] == (2 if "dw1" in line else 1)
    check(found, part.k)


@pytest.mark.parametrize(("images", "tiles"), [(1, 7), (3, 21)])
def test_no_workgroup_has_rows_of_gaps_only(images: int, tiles: int) -> None:
    """An image of 14 x 14 is 13 lines of 15 rows and one of 14; the one gap behind all lines serves the next image."""
    problem = Conv.parse(f"mb{images}ic64ih14oc64oh14kh3ph1", dir="FWD_D", dt="f16", **CHANNELS_LAST)
    config = Config.parse("tile=32x32x144 waves=2x1 mma=16x16x16 slots=1 taps=resident")
    (part,) = make_plan(problem, config, get("gfx942").facts).parts
    assert part.product.m == (images - 1) * 15 * 15 + 13 * 15 + 14
    assert part.mapping.grid == (2 * tiles, 1, 1)


@pytest.mark.parametrize(
    ("line", "direction", "depth", "why"),
    [
        ("mb2ic16oc8ih9oh5kh3sh2ph1", "FWD_D", 9 * 16, "windows in steps of 1"),
        ("mb2ic16oc8ih9oh9kh3ph1", "BWD_W", 9 * 16, "wanted"),
        ("mb2ic16oc8ih9oh9kh3ph1", "FWD_D", 9 * 16 - 1, "3 x 3 taps times a divisor of 16 channels"),
        ("mb2ic16oc8ih9oh9kh3ph1", "FWD_D", 9 * 12, "a divisor of 16 channels"),
    ],
)
def test_other_products_are_refused(line: str, direction: str, depth: int, why: str) -> None:
    (part,) = views.products(Conv.parse(line, dir=direction, dt="f16", **CHANNELS_LAST), 1)
    with pytest.raises(DoesNotFit, match=why):
        resident(part, depth)
