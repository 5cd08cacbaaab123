"""K by images: of gradients of weights the same products in another order, one pixel after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings

from convgen.backends.target import get
from convgen.choose.choose import candidates
from convgen.ir.error import DoesNotFit
from convgen.plan import views
from convgen.plan.contraction import Product
from convgen.plan.variants.images import are_worthwhile, by_images
from convgen.problem.conv import Conv
from tests.gen.test_resident import elements
from tests.strategies import problems

TAGS = {"stag": "axb", "wtag": "axb", "dtag": "axb"}


def product_of(line: str, direction: str = "BWD_W") -> Product:
    return views.products(Conv.parse(line, dir=direction, dt="f16", **TAGS), 1)[0]


@settings(max_examples=60)
@given(problems(most=7, channels=8, directions=("BWD_W",)))
def test_what_is_multiplied_is_the_same(problem: Conv) -> None:
    """Each row meets the same pairs of elements."""
    found = views.products(problem, 1)
    assume(found)
    try:
        made = by_images(found[0])
    except DoesNotFit:
        assume(False)
    rows_m, rows_n, k = (np.arange(size)[:, None] for size in (made.m, made.n, made.k))
    for row in range(min(made.m, made.n)):
        pairs = [
            sorted(
                zip(elements(p.of_n, rows_n[row], k)[:, 0].tolist(), elements(p.of_m, rows_m[row], k)[:, 0].tolist())
            )
            for p in (found[0], made)
        ]
        assert pairs[0] == pairs[1]


def test_images_are_innermost_and_pixels_in_the_order_of_memory() -> None:
    dims = by_images(product_of("mb32ic64ih9oc64oh5kh3sh2ph1")).of_m.axes[1]
    assert [(d.name, d.size) for d in dims] == [("oh", 5), ("ow", 5), ("mb", 32)]


@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D"])
def test_where_no_image_is_summed_there_is_no_such_order(direction: str) -> None:
    with pytest.raises(DoesNotFit, match="taps=images"):
        by_images(product_of("mb32ic64ih9oc64oh9kh3ph1", direction))


@pytest.mark.parametrize(
    ("line", "worth"),
    [
        ("mb32ic128ih9oc64oh9kh3ph1", True),
        ("mb64ic256ih9oc64oh5kh3sh2ph1", True),
        ("mb16ic128ih9oc64oh9kh3ph1", False),  # loads of two pixels
        ("mb48ic128ih9oc64oh9kh3ph1", False),
        ("mb32ic64ih9oc64oh9kh3ph1", False),  # tiles of several taps
        ("mb32ic128ih9oc64kh1", False),  # pixels are one run
    ],
)
def test_it_is_worth_it_where_loads_have_one_pixel(line: str, worth: bool) -> None:
    product = product_of(line)
    assert are_worthwhile(product.of_n, product.of_m) == worth


@pytest.mark.parametrize(
    ("target", "orders"), [("gfx942", {"images"}), ("gfx950", {"images"}), ("xehpg", {"fused", "split"})]
)
def test_it_is_offered_where_a_message_has_one_offset_for_all_lanes(target: str, orders: set[str]) -> None:
    """But for windows whose taps are runs."""
    problem = Conv.parse("mb32ic128ih9oc64oh9kh3ph1", dir="BWD_W", dt="f16", **TAGS)
    found = {c.config.taps for c in candidates(problem, get(target).facts) if c.clocks is not None}
    assert found & {"images", "fused", "split", "chunk"} >= orders
    assert ("images" in found) == ("images" in orders)
