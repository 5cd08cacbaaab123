"""Problems as matrix products, against the law of convolution element by element."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convgen.backends.target import get
from convgen.choose.supported import check_supported
from convgen.ir.error import Unsupported
from convgen.ir.layout.memory import View
from convgen.ir.record import evolve
from convgen.plan import views
from convgen.plan.config import APART, COLUMNS
from convgen.plan.contraction import Product
from convgen.plan.directions import have_columns
from convgen.plan.phases import Columns
from convgen.problem.conv import Conv
from tests.strategies import problems

Ids = npt.NDArray[np.int64]
FIXED = settings(max_examples=60)


def ids(view: View) -> Ids:
    """The number of the tensor element at each position of two axes; -1 where there is none."""
    at = np.indices((view.extent(0), view.extent(1)))
    dims = {**view.decode(0, at[0]), **view.decode(1, at[1])}
    there = np.ones(at.shape[1:], bool)
    for d in (d for axis in view.axes for d in axis):
        there &= dims[d.name] < d.size
    index = [t.at(dims) + np.zeros_like(at[0]) for t in view.index]
    for i, t in zip(index, view.index):
        inside = (i >= 0) & (i < t.size)
        assert t.masked or inside[there].all(), "outside the tensor without a mask"
        there &= inside
    number = np.ravel_multi_index([np.where(there, i, 0) for i in index], [t.size for t in view.index])
    return np.where(there, number, -1)


def terms(part: Product) -> Ids:
    """The rows (result, of_n, of_m) of element numbers that a product multiplies and sums."""
    of_n, of_m, result = ids(part.of_n)[:, None, :], ids(part.of_m)[None, :, :], ids(part.result)[:, :, None]
    assert (result >= 0).all() or any(t.masked for t in part.result.index), "positions that are no result"
    rows = np.stack([x + np.zeros((part.n, part.m, part.k), np.int64) for x in (result, of_n, of_m)], -1)
    found: Ids = rows[(of_n >= 0) & (of_m >= 0) & (result >= 0)]
    return found


def law(problem: Conv) -> dict[str, Ids]:
    """For each (image, channels, output position, tap) that is inside: the numbers of its src, wei, dst elements."""
    axes = problem.spatial
    spaces = [problem.mb, problem.oc, problem.ic, *(a.o for a in axes), *(a.k for a in axes)]
    mb, oc, ic, *rest = (x.ravel() for x in np.indices(spaces))
    o, k = rest[: len(axes)], rest[len(axes) :]
    i = [o_ * a.s + k_ * (a.d + 1) - a.p for o_, k_, a in zip(o, k, axes)]
    inside = np.logical_and.reduce([(x >= 0) & (x < a.i) for x, a in zip(i, axes)])
    places = {
        "src": ((mb, ic, *i), problem.src_dims),
        "wei": ((oc, ic, *k), problem.wei_dims),
        "dst": ((mb, oc, *o), problem.dst_dims),
    }
    return {name: np.ravel_multi_index(tuple(x[inside] for x in index), dims) for name, (index, dims) in places.items()}


def ordered(rows: Ids) -> Ids:
    return rows[np.lexsort(rows.T[::-1])]


def roles(part: Product) -> list[str]:
    return [v.memory.name.removeprefix("diff_") for v in (part.result, part.of_n, part.of_m)]


def check(problem: Conv, block: int, phases: str = APART) -> None:
    """Each term of the law is in exactly one product, once; the products' results are disjoint."""
    parts = views.products(problem, block, phases=phases)
    wanted = law(problem)
    order = ["src", "wei", "dst"]
    found = [terms(p)[:, [roles(p).index(name) for name in order]] for p in parts]
    together = np.concatenate([np.empty((0, 3), np.int64), *found])
    assert np.array_equal(ordered(together), ordered(np.stack([wanted[name] for name in order], -1)))
    results = np.concatenate([np.empty(0, np.int64), *(ids(p.result).ravel() for p in parts)])
    results = results[results >= 0]
    assert len(np.unique(results)) == len(results)
    everything = np.arange(np.prod(problem.outputs[0].dims))
    assert views.covers_result(problem, phases) == np.array_equal(np.sort(results), everything)
    assert np.array_equal(np.sort(ids(views.whole_result(problem)).ravel()), everything)


@FIXED
@given(problems(most=5, channels=8), st.sampled_from((1, 4)))
def test_every_term_is_multiplied_once(problem: Conv, block: int) -> None:
    check(problem, block)


@FIXED
@given(problems(most=6, channels=8, directions=("BWD_D",)), st.sampled_from((1, 4)))
def test_phases_side_by_side_multiply_every_term_once(problem: Conv, block: int) -> None:
    depth, height, width = (a if Columns.suit(a) else evolve(a, s=1) for a in problem.axes)
    problem = evolve(problem, axes=(depth, height, width))
    assume(have_columns(problem))
    check(problem, block, COLUMNS)


PHASES = {
    "stride 2": ("ih7oh4kh3sh2ph1", 4),
    "stride 3, kernel 2: a phase without taps": ("ih9oh3kh2sh3ph0", 4),
    "stride and dilation share a factor": ("ih9oh4kh3sh2dh1ph2", 1),
    "stride and dilation are coprime": ("ih12oh4kh3sh3dh1ph2", 9),
    "a tail that no window reaches": ("ih9oh3kh1sh2ph0", 1),
    "windows outside": ("ih3oh5kh3sh2ph4", 4),
    "negative padding": ("ih9oh2kh3sh2", 4),
    "one axis strided": ("ih6oh3kh3sh2ph1iw5ow5kw3pw1", 2),
    "1-D": ("iw11ow4kw5sw3pw1", 3),
    "3-D": ("id4od2kd3sd2pd1", 8),
}


@pytest.mark.parametrize("name", PHASES)
@pytest.mark.parametrize("tags", [{}, {"stag": "abx", "wtag": "axb"}], ids=["any", "abx"])
def test_the_phases_of_backward_data(name: str, tags: dict[str, str]) -> None:
    axes, count = PHASES[name]
    problem = Conv.parse(f"mb2ic3oc2{axes}", dir="BWD_D", dt="f16", **tags)
    check(problem, 1)
    parts = views.products(problem, 1)
    assert len(parts) == count
    assert len({p.role for p in parts}) == count


def test_what_no_window_reaches_is_known() -> None:
    """A 1x1 kernel of stride 2 leaves out every second row and column."""
    problem = Conv.parse("mb1ic2oc2ih4oh2kh1sh2ph0", dir="BWD_D", dt="f16")
    (part,) = views.products(problem, 1)
    assert not views.covers_result(problem)
    assert sorted(set((ids(part.result) % 16).ravel().tolist())) == [0, 2, 8, 10]
    whole = Conv.parse("mb1ic2oc2ih4oh4kh1", dir="BWD_D", dt="f16")
    assert views.covers_result(whole)


def test_n_lies_along_the_results_memory() -> None:
    for direction, tag, expected in (
        ("FWD_D", {}, "oc"),
        ("FWD_D", {"dtag": "abx"}, "ow"),
        ("BWD_D", {}, "ic"),
        ("BWD_D", {"stag": "abx"}, "iw"),
        ("BWD_W", {"wtag": "axb"}, "ic"),
        ("BWD_W", {"wtag": "xba"}, "oc"),
    ):
        problem = Conv.parse("mb2ic8oc8ih5oh5kh3ph1", dir=direction, dt="f16", **tag)
        (part,) = views.products(problem, 1)
        assert part.result.axes[0][-1].name == expected, (direction, tag)


def gradients() -> Iterator[Conv]:
    for dtag in ("any", "abx", "bxa"):
        yield Conv.parse("mb2ic3oc4ih5oh4kh2ph0iw5ow4kw3pw1", dir="BWD_WB", dt="f16", dtag=dtag)


@pytest.mark.parametrize("problem", list(gradients()), ids=lambda p: p.dtag)
def test_the_gradient_of_a_bias_sums_each_element_of_its_channel(problem: Conv) -> None:
    gradient = views.bias_gradient(problem)
    assert gradient is not None
    found = ids(gradient)
    assert np.array_equal(np.sort(found.ravel()), np.arange(np.prod(problem.dst_dims)))
    _, channel, *_ = np.unravel_index(found, problem.dst_dims)
    assert (channel == np.arange(problem.oc)[:, None]).all()


@pytest.mark.parametrize("tags", [{}, {"dtag": "abx"}], ids=["any", "abx"])
def test_the_bias_is_that_of_the_results_channel(tags: dict[str, str]) -> None:
    problem = Conv.parse("mb2ic3oc5ih5oh4kh2ph0iw5ow4kw3pw1", dir="FWD_B", dt="f16", **tags)
    (part,) = views.products(problem, 1)
    bias = views.view_over_result(problem, part, "bia")
    _, channel, *_ = np.unravel_index(ids(part.result), problem.dst_dims)
    assert np.array_equal(ids(bias), channel)


@pytest.mark.parametrize(
    "descriptor", ["mb1ic8ih64oc8kh32sh31ph3", "mb1ic8iw2000000000oc8kw1000000000sw999999999", "mb1ic8ih64oc8kh17sh17"]
)
def test_more_stride_phases_than_kernels_are_made_for(descriptor: str) -> None:
    """Refused before they are counted one by one."""
    problem = Conv.parse(descriptor, dir="BWD_D", dt="f16")
    with pytest.raises(Unsupported, match=r"given s.* stride phases, wanted at most 256: each is a kernel"):
        check_supported(problem, get("gfx942").facts)


def test_phases_without_taps_are_no_products() -> None:
    """A stride beyond the kernel, and taps that share residues."""
    assert len(views.products(Conv.parse("mb1ic8ih64oc8kh2sh31", dir="BWD_D", dt="f16"), 32)) == 4
    assert len(views.products(Conv.parse("mb1ic8ih64oc8kh4sh4dh1", dir="BWD_D", dt="f16"), 32)) == 4
