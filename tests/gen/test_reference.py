"""The reference against seven loops, hand cases and numpy's own indexing."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir.error import Unsupported
from convgen.ir.layout.tags import Layout
from convgen.problem.conv import Conv, Direction
from convgen.run import oracle as sums
from convgen.run import reference

Arrays = Mapping[str, reference.Array]


def naive(problem: Conv, arrays: Arrays) -> dict[str, np.ndarray]:
    """The definition, one multiply at a time: every output in Python integers."""
    icg, ocg = problem.ic // problem.groups, problem.oc // problem.groups
    shapes = {
        "src": (problem.mb, problem.ic, *(a.i for a in problem.axes)),
        "wei": (problem.oc, icg, *(a.k for a in problem.axes)),
        "dst": (problem.mb, problem.oc, *(a.o for a in problem.axes)),
        "bia": (problem.oc,),
    }
    inputs = {name: arrays[name].astype(int).reshape(shapes[name.removeprefix("diff_")]) for name in arrays}
    out = {spec.name: np.zeros(shapes[spec.name.removeprefix("diff_")], int) for spec in problem.outputs}
    tensors = inputs | out
    for n, oc, *o in product(*map(range, shapes["dst"])):
        if "dst" in out:
            tensors["dst"][n, oc, *o] += inputs["bia"][oc] if "bia" in inputs else 0
        if "diff_bia" in out:
            tensors["diff_bia"][oc] += tensors["diff_dst"][n, oc, *o]
        for ic, *k in product(range(icg), *(range(a.k) for a in problem.axes)):
            at = [o_ * a.s - a.p + k_ * (a.d + 1) for o_, k_, a in zip(o, k, problem.axes)]
            if all(0 <= i < a.i for i, a in zip(at, problem.axes)):
                places = {"src": (n, oc // ocg * icg + ic, *at), "wei": (oc, ic, *k), "dst": (n, oc, *o)}
                a, b, to = (*inputs_of(problem), problem.outputs[0].name)
                value = [tensors[name][places[name.removeprefix("diff_")]] for name in (a, b)]
                tensors[to][places[to.removeprefix("diff_")]] += value[0] * value[1]
    return {spec.name: tensors[spec.name].reshape(spec.dims) for spec in problem.outputs}


def inputs_of(problem: Conv) -> tuple[str, str]:
    """The two tensors that are multiplied."""
    first, second = (spec.name for spec in problem.inputs[:2])
    return first, second


def whole_of(problem: Conv, arrays: Arrays) -> reference.Array:
    return reference.whole(problem, arrays, problem.outputs[0].name)


CASES = [
    "mb2ic3oc4ih5oh5kh3ph1",
    "mb1ic2oc3ih6oh3kh3sh2ph1_iw5kw2",
    "mb1ic2oc2ih9oh4kh1sh2ph0",  # an unused tail: negative right padding
    "mb2ic2oc2ih5oh6kh3ph1",  # more padding on the right
    "mb1ic2oc2ih9kh3dh2ph2",
    "mb1ic2oc2ih3kh2ph5",  # windows wholly in padding
    "mb1ic2oc2ih8oh4kh1sh2",  # a negative left padding
    "mb1ic2oc2ih3oh2kh5ph2",  # a kernel larger than the input
    "mb1ic2oc2iw1ow9kw3pw7dw1",  # a dilated kernel that spans less than its padding
    "mb1ic2oc2ih9oh2kh2sh4ph0",  # inputs that no window touches
    "g2mb1ic4oc6ih5kh3ph1",
    "g4mb1ic4oc4ih5kh3ph1",
    "g1mb1ic3oc2ih5kh3",
    "mb2ic3oc2iw9kw3dw1pw2sw2",
    "mb1ic2oc3id3kd2ih4kh3ph1iw5kw2sw2",
    "g2mb1ic4oc2id3kd2pd1",
]


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("line", CASES)
def test_every_output_equals_seven_loops(line: str, direction: Direction) -> None:
    problem = Conv.parse(line, dir=direction.value, dt="f32")
    arrays = reference.fill(problem, seed=3)
    for name, expected in naive(problem, arrays).items():
        result = reference.whole(problem, arrays, name)
        assert result.dtype == np.float32
        assert result.shape == problem.tensor(name).dims
        assert np.array_equal(result, expected)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("line", CASES)
def test_samples_are_parts_of_the_whole(line: str, direction: Direction) -> None:
    problem = Conv.parse(line, dir=direction.value, dt="bf16")
    arrays = reference.fill(problem)
    random = np.random.default_rng(0)
    for spec in problem.outputs:
        rows, columns = (random.permutation(size)[:7] for size in reference.output_shape(problem, spec.name))
        index = reference.output_index(problem, spec.name, rows, columns)
        expected = reference.whole(problem, arrays, spec.name)[tuple(index)]
        got = reference.outputs(problem, arrays, spec.name, rows, columns)
        assert got.dtype == expected.dtype
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("rows", "columns"), [(3, 0), (0, 3)])
def test_no_rows_or_no_columns_are_an_empty_part(rows: int, columns: int, direction: Direction) -> None:
    """A tile in the padding of a blocked output has none."""
    problem = Conv.parse(CASES[0], dir=direction.value, dt="bf16")
    for spec in problem.outputs:
        got = reference.outputs(problem, reference.fill(problem), spec.name, np.arange(rows), np.arange(columns))
        assert got.shape == (rows, columns)


@st.composite
def axes(draw: st.DrawFn) -> str:
    """1 to 3 spatial axes; paddings of any sign on the right, larger than the kernel, kernels larger than the input."""
    text = ""
    for name in "dhw"[draw(st.integers(0, 2)) :]:
        fields = {"i": st.integers(1, 6), "o": st.integers(1, 6), "k": st.integers(1, 4), "s": st.integers(1, 3)}
        fields |= {"d": st.integers(0, 2), "p": st.integers(0, 6)}
        text += "".join(f"{field}{name}{draw(sizes)}" for field, sizes in fields.items())
    return text


@given(axes(), st.sampled_from(["", "g1", "g2", "g3"]), st.integers(1, 2), st.integers(1, 2), st.integers(0, 3))
@settings(max_examples=150)
def test_backward_is_adjoint_to_forward(text: str, groups: str, icg: int, ocg: int, mb: int) -> None:
    """<dst, fwd(src, wei)> = <diff_src(dst, wei), src> = <wei, diff_wei(src, dst)>, for whatever src, wei and dst."""
    count = int(groups[1:] or 1)
    line = f"{groups}mb{mb}ic{icg * count}oc{ocg * count}{text}"
    f, d, w = (Conv.parse(line, dir=name, dt="f64") for name in ("FWD_D", "BWD_D", "BWD_WB"))
    arrays = reference.fill(f, seed=1) | reference.fill(w, seed=2) | {"wei": reference.fill(d, seed=3)["wei"]}

    def inner(a: reference.Array, b: reference.Array) -> int:
        return int(np.sum(a.astype(int) * b.astype(int)))

    expected = inner(arrays["diff_dst"], reference.whole(f, arrays, "dst"))
    assert inner(arrays["src"], reference.whole(d, arrays, "diff_src")) == expected
    assert inner(arrays["wei"], reference.whole(w, arrays, "diff_wei")) == expected
    summed = arrays["diff_dst"].astype(int).sum(axis=(0, *range(2, f.ndims)))
    assert np.array_equal(reference.whole(w, arrays, "diff_bia"), summed)


def test_by_hand() -> None:
    problem = Conv.parse("mb1ic1oc1iw4kw3pw1", dir="FWD_B")
    src = np.array([[[1, 2, 3, 4]]], np.float32)
    wei = np.array([[[10, 100, 1000]]], np.float32)
    arrays = {"src": src, "wei": wei, "bia": np.array([7], np.float32)}
    assert whole_of(problem, arrays).tolist() == [[[2107, 3217, 4327, 437]]]


@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_W"])
@pytest.mark.parametrize("chunk", [1, 20, 70, 300])
def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch, direction: str, chunk: int) -> None:
    problem = Conv.parse("g2mb3ic4oc6id3kd2ih5oh5kh3ph1iw4kw2", dir=direction)
    arrays = reference.fill(problem)
    expected = whole_of(problem, arrays)
    monkeypatch.setattr(sums, "_CHUNK_ELEMS", chunk)
    assert np.array_equal(whole_of(problem, arrays), expected)


@pytest.mark.parametrize(("dt", "low", "tie"), [("f16", 2048, 2048), ("bf16", 256, 256)])
def test_results_round_to_nearest_even(dt: str, low: int, tie: int) -> None:
    problem = Conv.parse("mb1ic3oc1iw1kw1", dir="FWD_D", dt=f"f32:f32:{dt}")
    one, wei = np.ones((1, 3, 1), np.float32), np.array([[[low], [1], [0]]], np.float32)
    assert whole_of(problem, {"src": one, "wei": wei}).item() == tie
    wei[0, 2] = 2
    assert float(whole_of(problem, {"src": one, "wei": wei}).item()) == low + 4


def test_a_bias_is_added_before_the_result_is_rounded() -> None:
    problem = Conv.parse("mb1ic2oc1iw1kw1", dir="FWD_B", dt="f32:f32:bf16")
    arrays = {"src": np.ones((1, 2, 1), np.float32), "wei": np.array([[[256], [1]]], np.float32)}
    assert float(whole_of(problem, arrays | {"bia": np.array([1], np.float32)}).item()) == 258
    assert float(whole_of(problem, arrays | {"bia": np.array([0], np.float32)}).item()) == 256


def test_sums_round_to_the_accumulator() -> None:
    src = np.array([[[2.0**24], [1.0]]])
    for dt, expected in (("f64", 2**24 + 1), ("f32", 2**24)):
        problem = Conv.parse("mb1ic2oc1iw1kw1", dir="FWD_D", dt=dt)
        arrays = {"src": src.astype(dt.replace("f", "float")), "wei": np.ones((1, 2, 1), dt.replace("f", "float"))}
        assert whole_of(problem, arrays).item() == expected


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("dt", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("line", ["mb2ic3oc4ih9kh3ph1", "mb1ic512oc700ih3kh3ph1", "g2mb1ic70000oc4ih3kh3ph1"])
def test_fills_are_dense_exact_and_repeatable(line: str, dt: str, direction: Direction) -> None:
    problem = Conv.parse(line, dir=direction.value, dt=dt)
    arrays = reference.fill(problem, seed=5)
    again, other = reference.fill(problem, seed=5), reference.fill(problem, seed=6)
    depth = {"F": problem.ic // problem.groups * 9, "D": problem.oc // problem.groups * 9}
    bound = depth.get(direction.value[0], depth.get(direction.value[-1], problem.mb * problem.spatial[0].o ** 2))
    assert list(arrays) == [spec.name for spec in problem.inputs]
    for spec in problem.inputs:
        values = arrays[spec.name].astype(np.float64)
        assert values.shape == spec.dims
        assert np.all(values == np.rint(values))
        assert np.count_nonzero(values) == values.size
        assert np.array_equal(arrays[spec.name], again[spec.name])
        assert not np.array_equal(arrays[spec.name], other[spec.name])
        bound = bound + int(np.abs(values).max()) if spec.name == "bia" else bound * int(np.abs(values).max())
    assert bound <= 2**24
    a, b = inputs_of(problem)
    assert not np.array_equal(arrays[a].ravel()[:32], arrays[b].ravel()[:32])


@pytest.mark.parametrize(("dt", "largest"), [("f32", 2), ("f64", 8)])
def test_the_accumulator_bounds_fills(dt: str, largest: int) -> None:
    """2^21 products are summed; f32 holds 2^24, and there must be room for the bias."""
    arrays = reference.fill(Conv.parse("mb1ic2097152oc1iw1kw1", dir="FWD_B", dt=dt))
    assert np.abs(arrays["src"]).max() == largest
    with pytest.raises(Unsupported, match="exact sums of 16777216 products, more than 2\\^24"):
        reference.fill(Conv.parse("ic16777216oc1iw1kw1", dir="FWD_B"))


def test_bytes_take_every_value() -> None:
    arrays = reference.fill(Conv.parse("mb1ic64oc64ih9kh3", dir="FWD_D", dt="u8:s8:f32"))
    assert set(arrays["src"].ravel().tolist()) == set(range(256))
    assert set(arrays["wei"].ravel().tolist()) == set(range(-128, 128))


def test_some_results_saturate_and_some_do_not() -> None:
    for dt, kind in (("u8:s8:s8", np.int8), ("s8:s8:u8", np.uint8)):
        problem = Conv.parse("mb1ic19oc21ih9kh3ph1", dir="FWD_B", dt=dt)
        values, limits = whole_of(problem, reference.fill(problem)), np.iinfo(kind)
        at_limit = (values == limits.min) | (values == limits.max)
        assert 0.1 < at_limit.mean() < 0.9


@pytest.mark.parametrize(("dt", "expected"), [("s32", -(1 << 31)), ("f32", -(2.0**31)), ("s8", -128), ("u8", 0)])
def test_sums_of_integers_wrap_and_results_saturate(dt: str, expected: float) -> None:
    problem = Conv.parse("mb1ic1oc1iw1kw1", dir="FWD_B", dt=f"s8:s8:{dt}")
    one, most = np.ones((1, 1, 1), np.int8), np.array([(1 << 31) - 1], np.int32)
    assert whole_of(problem, {"src": one, "wei": one, "bia": most}).item() == expected


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


@pytest.mark.parametrize("dtype", ["s4", "u4", "f4_e2m1", "f6_e2m3", "f6_e3m2"])
@pytest.mark.parametrize(("tag", "dims"), [("ab", (3, 8)), ("ba", (3, 5)), ("a", (7,))])
def test_elements_of_few_bits_are_unpacked_as_they_were_packed(dtype: str, tag: str, dims: tuple[int, ...]) -> None:
    layout, bits = Layout.from_tag(tag, dims), int(dtype[1])
    codes = (5 * np.arange(np.prod(dims)) % (1 << bits)).astype(np.uint8).reshape(dims)
    logical = codes.view(reference.numpy_type(dtype))
    memory = reference.pack(layout, logical)
    stream = sum(int(code) << n * bits for n, code in enumerate(codes.T.flat if tag == "ba" else codes.flat))
    assert bytes(memory) == stream.to_bytes(-(-logical.size * bits // 8), "little")
    assert np.array_equal(reference.unpack(layout, dtype, memory).view(np.uint8), logical.view(np.uint8))
    index = list(np.indices(dims))
    assert np.array_equal(reference.gather(layout, dtype, memory, index).view(np.uint8), logical.view(np.uint8))


def test_bf16_is_mldtypes() -> None:
    assert reference.numpy_type("bf16") == np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("direction", Direction)
def test_empty_problems_have_empty_results_or_zeros(direction: Direction) -> None:
    problem = Conv.parse("mb0ic3oc4ih5kh3", dir=direction.value)
    arrays = reference.fill(problem)
    for spec in problem.outputs:
        result = reference.whole(problem, arrays, spec.name)
        assert result.shape == spec.dims
        assert not result.any()
        assert reference.unpack(spec.layout, "f32", reference.pack(spec.layout, result)).shape == spec.dims
