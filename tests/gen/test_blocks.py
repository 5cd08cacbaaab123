"""Dims cut where blocks end: coordinates of the pieces are those of the dims, one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convgen.ir.error import Unsupported
from convgen.plan import views
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul
from tests.strategies import FIXED


def cuts_of(line: str, **knobs: str) -> dict[str, tuple[int, ...]]:
    (part, *_) = views.products(Conv.parse(line, **{"dir": "FWD_D", "dt": "f16", **knobs}), 1)
    return dict(part.cuts.sizes)


def test_blocks_of_several_tensors() -> None:
    assert cuts_of("mb2ic32ih4oc16kh1", stag="aBcd16b") == {"ic": (16, 2)}
    assert cuts_of("mb2ic32ih4oc16kh1", stag="aBcd16b", wtag="aBcd4b") == {"ic": (4, 4, 2)}
    assert cuts_of("mb2ic20ih4oc24kh1", stag="aBcd16b", wtag="ABcd4a8b8a2b") == {"ic": (2, 8, 2), "oc": (8, 4, 1)}
    assert cuts_of("g8mb2ic32ih4oc32kh1", stag="aBcd16b") == {"g": (4, 2)}
    assert cuts_of("g2mb2ic32ih4oc32kh1", stag="aBcd16b") == {}  # a block is the channels of a group


@pytest.mark.parametrize(
    ("line", "knobs", "named"),
    [
        ("mb2ic48ih4oc16kh1", {"stag": "aBcd16b", "wtag": "aBcd12b"}, "blocks of 12 and of 16"),
        ("g2mb2ic20ih4oc20kh1", {"stag": "aBcd16b"}, "src of layout aBcd16b"),
        ("mb2ic16ih8oc16kh3ph1", {"stag": "abCd4c"}, "src of layout abCd4c"),
        ("mb2ic16ih8oc16oh6kh3ph0", {"dtag": "abCd4c"}, "dst of layout abCd4c"),
    ],
)
def test_what_cannot_be_cut_is_named(line: str, knobs: dict[str, str], named: str) -> None:
    with pytest.raises(Unsupported, match=named) as caught:
        cuts_of(line, **knobs)
    assert caught.value.rule == "blocked-layout"


def test_inputs_that_no_view_follows_are_moved_before() -> None:
    problem = Conv.parse("g2mb2ic20ih4oc20kh1", dir="FWD_D", dt="f16", stag="aBcd16b", wtag="Abcde2a")
    assert views.must_reorder(problem) == ("src",)
    both = Matmul.parse("48x48:48x48", dt="f16", stag="aB12b", wtag="BA16a48b")
    assert views.must_reorder(both) == ("src",)
    with pytest.raises(Unsupported, match="dst"):
        views.must_reorder(Conv.parse("g2mb2ic20ih4oc20kh1", dir="FWD_D", dt="f16", dtag="aBcd16b"))


@FIXED
@given(st.integers(2, 40), st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=2))
def test_pieces_count_as_the_dim_does(size: int, blocks: list[int]) -> None:
    """Positions of the pieces are those of the dim and of its padding, in order; so are those of a bias."""
    inner = "".join(f"{block}b" for block in blocks)
    problem = Conv.parse(f"mb1ic8ih1oc{size}kh1", dir="FWD_B", dt="f16", dtag=f"aBcd{inner}")
    (part,) = views.products(problem, 1)
    padded = -(-size // np.prod(blocks)) * np.prod(blocks)
    bias = views.view_over_result(problem, part, "bia")
    for view, coordinate in ((part.result, 1), (bias, 0)):
        axis = next(n for n, dims in enumerate(view.axes) if any(d.name.startswith("oc") for d in dims))
        at = np.arange(view.extent(axis))
        places = view.index[coordinate].at({"g": 0, **view.decode(axis, at)})
        assert np.array_equal(np.sort(places), np.arange(padded))
    assert bias.index[0].masked == (padded > size)
