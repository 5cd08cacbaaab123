"""The reference against seven loops, hand cases and numpy's own indexing."""

from __future__ import annotations

import time
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen import reference
from convgen.ir.error import Unsupported
from convgen.ir.layout import Layout
from convgen.problem import Conv


def naive(problem: Conv, src: np.ndarray, wei: np.ndarray) -> np.ndarray:
    """The definition, one multiply at a time; [mb, oc, od, oh, ow] in Python integers."""
    d, h, w = problem.axes
    icg, ocg = problem.ic // problem.groups, problem.oc // problem.groups
    x = src.astype(int).reshape(problem.mb, problem.ic, d.i, h.i, w.i)
    y = wei.astype(int).reshape(problem.oc, icg, d.k, h.k, w.k)
    out = np.zeros((problem.mb, problem.oc, d.o, h.o, w.o), int)
    for n, oc, od, oh, ow in product(*map(range, out.shape)):
        for ic, kd, kh, kw in product(range(icg), range(d.k), range(h.k), range(w.k)):
            at = [o * a.s - a.p + k * (a.d + 1) for o, k, a in zip((od, oh, ow), (kd, kh, kw), problem.axes)]
            if all(0 <= i < a.i for i, a in zip(at, problem.axes)):
                out[n, oc, od, oh, ow] += x[n, oc // ocg * icg + ic, at[0], at[1], at[2]] * y[oc, ic, kd, kh, kw]
    return out.reshape(problem.dst_dims)


def whole_of(problem: Conv, arrays: dict[str, reference.Array]) -> reference.Array:
    return reference.forward(problem, arrays["src"], arrays["wei"])


CASES = [
    "mb2ic3oc4ih5oh5kh3ph1",
    "mb1ic2oc3ih6oh3kh3sh2ph1_iw5kw2",
    "mb1ic2oc2ih9oh4kh1sh2ph0",  # an unused tail: negative right padding
    "mb2ic2oc2ih5oh6kh3ph1",  # more padding on the right
    "mb1ic2oc2ih9kh3dh2ph2",
    "mb1ic2oc2ih3kh2ph5",  # windows wholly in padding
    "mb1ic2oc2ih8oh4kh1sh2",  # a negative left padding
    "g2mb1ic4oc6ih5kh3ph1",
    "g4mb1ic4oc4ih5kh3ph1",
    "g1mb1ic3oc2ih5kh3",
    "mb2ic3oc2iw9kw3dw1pw2sw2",
    "mb1ic2oc3id3kd2ih4kh3ph1iw5kw2sw2",
    "g2mb1ic4oc2id3kd2pd1",
]


@pytest.mark.parametrize("line", CASES)
def test_forward_equals_seven_loops(line: str) -> None:
    problem = Conv.parse(line, dir="FWD_D", dt="f16:f16:f32")
    arrays = reference.fill(problem, seed=3)
    expected = naive(problem, arrays["src"], arrays["wei"])
    result = reference.forward(problem, arrays["src"], arrays["wei"])
    assert result.dtype == np.float32
    assert result.shape == problem.dst_dims
    assert np.array_equal(result, expected)


@pytest.mark.parametrize("line", CASES)
def test_sampled_pixels_are_rows_of_the_whole(line: str) -> None:
    problem = Conv.parse(line, dir="FWD_D", dt="bf16")
    arrays = reference.fill(problem)
    whole = reference.forward(problem, arrays["src"], arrays["wei"])
    rows = np.moveaxis(whole, 1, -1).reshape(-1, problem.oc)
    pixels = np.random.default_rng(0).permutation(len(rows))[:17]
    assert np.array_equal(reference.forward(problem, arrays["src"], arrays["wei"], pixels), rows[pixels])


def test_by_hand() -> None:
    problem = Conv.parse("mb1ic1oc1iw4kw3pw1", dir="FWD_D")
    src = np.array([[[1, 2, 3, 4]]], np.float32)
    wei = np.array([[[10, 100, 1000]]], np.float32)
    assert reference.forward(problem, src, wei).tolist() == [[[2100, 3210, 4320, 430]]]


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Conv.parse("mb2ic3oc4ih5oh5kh3ph1", dir="FWD_D")
    arrays = reference.fill(problem)
    whole = whole_of(problem, arrays)
    monkeypatch.setattr(reference, "_CHUNK_ELEMS", 7 * problem.ic)
    assert np.array_equal(whole_of(problem, arrays), whole)


@pytest.mark.parametrize(("dt", "low", "tie"), [("f16", 2048, 2048), ("bf16", 256, 256)])
def test_results_round_to_nearest_even(dt: str, low: int, tie: int) -> None:
    problem = Conv.parse("mb1ic3oc1iw1kw1", dir="FWD_D", dt=f"f32:f32:{dt}")
    one, wei = np.ones((1, 3, 1), np.float32), np.array([[[low], [1], [0]]], np.float32)
    assert reference.forward(problem, one, wei).item() == tie
    wei[0, 2] = 2
    assert float(reference.forward(problem, one, wei).item()) == low + 4


@pytest.mark.parametrize("dt", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("line", ["mb2ic3oc4ih9kh3ph1", "mb1ic512oc32ih3kh3ph1", "mb1ic70000oc4ih3kh3ph1"])
def test_fills_are_dense_exact_and_repeatable(line: str, dt: str) -> None:
    problem = Conv.parse(line, dir="FWD_D", dt=dt)
    arrays = reference.fill(problem, seed=5)
    again, other = reference.fill(problem, seed=5), reference.fill(problem, seed=6)
    bound = problem.ic * 9
    for name, dims in (("src", problem.src_dims), ("wei", problem.wei_dims)):
        values = arrays[name].astype(np.float64)
        assert values.shape == dims
        assert np.all(values == np.rint(values))
        assert np.count_nonzero(values) == values.size
        assert np.array_equal(arrays[name], again[name])
        assert not np.array_equal(arrays[name], other[name])
        bound *= int(np.abs(values).max())
    assert bound <= 2**24
    assert np.isfinite(whole_of(problem, arrays).astype(np.float64)).all()
    assert not np.array_equal(arrays["src"].ravel()[:32], arrays["wei"].ravel()[:32])


def test_unsigned_fills_are_positive() -> None:
    assert reference.fill(Conv.parse("mb1ic3oc4ih9kh3", dir="FWD_D", dt="u8:s8:f32"))["src"].min() == 1


@pytest.mark.parametrize(("knobs"), [{"dir": "BWD_D"}, {"dir": "FWD_B"}, {"dir": "FWD_D", "dt": "f8_e4m3"}])
def test_what_has_no_reference_says_so(knobs: dict[str, str]) -> None:
    with pytest.raises(Unsupported):
        reference.fill(Conv.parse("mb1ic3oc4ih9kh3", **knobs))


def test_a_deep_layer_is_fast() -> None:
    problem = Conv.parse("mb1ic512oc512ih7oh7kh3ph1", dir="FWD_D", dt="f16")
    arrays = reference.fill(problem)
    begin = time.perf_counter()
    whole_of(problem, arrays)
    assert time.perf_counter() - begin < 2


TAGS = ["abcd", "acdb", "bcda", "aBcd4b", "ABcd2a3b", "ABcd4b2a2b", "axb", "1000x100x10x1"]


@given(st.sampled_from(TAGS), st.tuples(*[st.integers(1, 6)] * 4), st.sampled_from(["f16", "bf16", "f32", "u8"]))
@settings(max_examples=60)
def test_pack_places_elements_at_their_offsets(tag: str, dims: tuple[int, ...], dtype: str) -> None:
    layout = Layout.from_tag(tag, dims)
    logical = (np.arange(np.prod(dims)) % 251 + 1).reshape(dims).astype(reference.numpy_type(dtype))
    memory = reference.pack(layout, logical)
    flat = memory.view(logical.dtype)
    assert memory.dtype == np.uint8
    assert flat.size == layout.size_elems
    index = list(np.indices(dims))
    assert np.array_equal(np.broadcast_to(flat[layout.offset(index)], dims), logical)
    assert np.count_nonzero(flat) == np.prod(dims)
    assert np.array_equal(reference.unpack(layout, dtype, memory), logical)
    assert np.array_equal(np.broadcast_to(reference.gather(layout, dtype, memory, index), dims), logical)


def test_bf16_is_mldtypes() -> None:
    assert reference.numpy_type("bf16") == np.dtype(ml_dtypes.bfloat16)


def test_empty_problems_have_empty_results() -> None:
    problem = Conv.parse("mb0ic3oc4ih5kh3", dir="FWD_D")
    arrays = reference.fill(problem)
    assert whole_of(problem, arrays).shape == (0, 4, 3, 3)
    assert reference.pack(problem.src_layout, arrays["src"]).size == 0
    assert reference.unpack(problem.dst_layout, "f32", np.zeros(0, np.uint8)).shape == (0, 4, 3, 3)
