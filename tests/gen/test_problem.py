"""benchdnn's descriptor grammar and its defaults."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convgen.ir.caret import PointedError
from convgen.ir.error import UserError
from convgen.problem.conv import Axis, Conv, Direction
from convgen.problem.options import KNOBS_OF

PROBLEMS = Path(__file__).parents[1] / "data" / "problems" / "resnet_and_others.txt"


def listed() -> list[tuple[str, str]]:
    """The (comment, descriptor) pairs of the problem file."""
    lines = PROBLEMS.read_text().splitlines()
    return [(lines[n - 1], line) for n, line in enumerate(lines) if not line.startswith("#")]


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"-?[0-9]+", text))


@pytest.mark.parametrize(("comment", "line"), listed(), ids=lambda text: text if text[0] != "#" else "")
def test_listed_problems(comment: str, line: str) -> None:
    expected = {key: numbers(value) for key, value in re.findall(r"(\w+)=(\S+)", comment) if key != "src_file"}
    problem = Conv.parse(line)
    assert problem.src_dims == expected["src"]
    assert problem.wei_dims == expected["wei"]
    assert problem.dst_dims == expected["dst"]
    assert tuple(axis.s for axis in problem.spatial) == expected["s"]
    assert tuple(axis.d for axis in problem.spatial) == expected["dil"]
    assert tuple(axis.p for axis in problem.spatial) == expected["p_l"]
    assert tuple(axis.pad_r for axis in problem.spatial) == expected["p_r"]
    gmac = float(re.search(r"GMAC=(\S+)", comment)[1])  # type: ignore[index]
    assert problem.macs / 1e9 == pytest.approx(gmac, rel=1e-3)
    assert Conv.parse(str(problem)) == problem


def test_the_list_is_whole() -> None:
    assert len(listed()) == 69
    two_d = [p for _, line in listed() if (p := Conv.parse(line)).ndims == 4 and p.groups == 1]
    assert len(two_d) == 41


DEDUCED = [  # descriptor, (o, p, pad_r) of the outermost axis
    ("ic8oc8ih10kh3", (8, 0, 0)),
    ("ic8oc8ih10kh3ph1", (10, 1, 1)),
    ("ic8oc8ih10oh10kh3", (10, 1, 1)),
    ("ic8oc8ih10oh9kh3", (9, 0, 1)),  # an odd total: the right side is larger
    ("ic8oc8ih10oh5kh1sh2", (5, 0, -1)),  # (4*2 - 10 + 1)/2 truncates to 0
    ("ic8oc8ih10oh4kh1sh2", (4, -1, -2)),  # -3/2 truncates to -1
    ("ic8oc8ih10oh9kh3ph3", (9, 3, -2)),
    ("ic8oc8iw5ow3kw3dw1pw1", (3, 1, 1)),
    ("ic8oc8ih2kh3sh2", (1, 0, 1)),  # (2 - 3)/2 truncates to 0: one window that ends in padding
]


@pytest.mark.parametrize(("line", "expected"), DEDUCED)
def test_outputs_and_paddings_are_deduced(line: str, expected: tuple[int, int, int]) -> None:
    problem = Conv.parse(line)
    axis = problem.spatial[0]
    assert (axis.o, axis.p, axis.pad_r) == expected
    assert Conv.parse(str(problem)) == problem


def test_defaults() -> None:
    problem = Conv.parse("ic4oc6ih5kh2")
    assert (problem.mb, problem.groups, problem.has_groups, problem.ndims) == (2, 1, False, 4)
    assert problem.direction is Direction.FWD_B
    assert {problem.src_type, problem.wei_type, problem.dst_type} == {"f32"}
    assert problem.axes == (Axis(), Axis(5, 4, 2), Axis(5, 4, 2))
    assert (problem.src_layout.tag, problem.wei_layout.tag, problem.dst_layout.tag) == ("acdb",) * 3
    assert str(problem) == "mb2_ic4oc6_ih5oh4kh2ph0"


def test_groups() -> None:
    absent, one, two = (Conv.parse(f"{g}ic4oc6ih5kh2") for g in ("", "g1", "g2"))
    assert (absent.wei_dims, one.wei_dims, two.wei_dims) == ((6, 4, 2, 2), (1, 6, 4, 2, 2), (2, 3, 2, 2, 2))
    assert one.wei_layout.tag == "abdec"
    assert absent != one
    assert absent.macs == one.macs == 2 * two.macs == 2 * 4 * 4 * 6 * 4 * 4


PROMOTED = [
    ("ic1oc1iw5kw3", 3, (5,)),
    ("ic1oc1ih5kh3", 4, (5, 5)),
    ("ic1oc1ih5kh3iw6kw3", 4, (5, 6)),
    ("ic1oc1id5kd3", 5, (5, 5, 5)),
    ("ic1oc1id5kd3ih6kh3iw7kw3", 5, (5, 6, 7)),
    ("ic1oc1id0kd0od0dd0pd0sd1ih5kh3", 4, (5, 5)),
]


@pytest.mark.parametrize(("line", "ndims", "inputs"), PROMOTED)
def test_axes_are_promoted_all_or_nothing(line: str, ndims: int, inputs: tuple[int, ...]) -> None:
    problem = Conv.parse(line)
    assert problem.ndims == ndims
    assert tuple(axis.i for axis in problem.spatial) == inputs
    assert all(axis == Axis() for axis in problem.axes[: 5 - ndims])


SAME = [
    "mb1ic64ih56oc64oh56kh3ph1",
    "_mb1__ic64_ih56oc64_oh56kh3ph1_",
    "kh3oh56oc64ph1ih56ic64mb1",
    "mb7ic3mb1ic64ih56oc64oh56kh3ph1",
    "mb01ic0064ih56oc64oh56kh3ph1",
    "mb1ic64ih56oc64kh3ph1",
    "mb1ic64ih56oc64oh56kh3",
    "mb1ic64ih56oc64oh56kh3iw56ow56kw3pw1",
    "mb1ic64ih56oc64oh56kh3ph1dh0sh1",
]


@pytest.mark.parametrize("line", SAME)
def test_spellings_of_one_problem(line: str) -> None:
    assert Conv.parse(line) == Conv.parse(SAME[0])
    assert hash(Conv.parse(line)) == hash(Conv.parse(SAME[0]))


NAMES = [
    ("n", ""),
    ('n""', ""),
    ('n"a:b*3"', "a:b*3"),
    ("na_b", "a_b"),
    ('n"half', '"half'),
    ('_n"ic5"', "ic5"),
    ('n""""', '""'),
]


@pytest.mark.parametrize(("suffix", "name"), NAMES)
def test_names(suffix: str, name: str) -> None:
    problem = Conv.parse("ic4oc6ih5kh2" + suffix)
    assert problem.name == name
    assert Conv.parse(str(problem)) == problem


def test_knobs() -> None:
    line = "ic4oc6ih5kh2"
    problem = Conv.parse(line, dir="fwd_d", dt="dnnl_bf16:bf16:f32", stag="nchw", wtag="OIhw4i4o", dtag="aBx2b", mb=3)
    assert problem.direction is Direction.FWD_D
    assert (problem.src_type, problem.wei_type, problem.dst_type) == ("bf16", "bf16", "f32")
    assert problem.mb == 3
    assert problem.wei_layout.tag == "ABcd4b4a"
    assert str(problem) == (
        "--dir=FWD_D --dt=bf16:bf16:f32 --stag=nchw --wtag=OIhw4i4o --dtag=aBx2b mb3_ic4oc6_ih5oh4kh2ph0"
    )
    assert Conv.parse(str(problem)) == problem
    assert Conv.parse(f"--dir FWD_D --mb 3 {line}", dir="BWD_W", mb=5) == Conv.parse(line, dir="FWD_D", mb=3)
    assert Conv.parse("mb9" + line, mb=0).mb == 9


@pytest.mark.parametrize("direction", Direction)
def test_an_empty_minibatch_is_a_problem(direction: Direction) -> None:
    """Without images there is no pixel to write, but the gradient of weights is a sum of nothing: zero."""
    problem = Conv.parse("mb0ic4oc6ih5kh2", dir=direction.value)
    assert problem.is_empty == (direction not in (Direction.BWD_W, Direction.BWD_WB))
    assert problem.macs == problem.src_layout.size_elems == 0


TENSORS = [
    ("FWD_B", ("src", "wei", "bia"), ("dst",)),
    ("FWD_D", ("src", "wei"), ("dst",)),
    ("FWD_I", ("src", "wei"), ("dst",)),
    ("BWD_D", ("wei", "diff_dst"), ("diff_src",)),
    ("BWD_W", ("src", "diff_dst"), ("diff_wei",)),
    ("BWD_WB", ("src", "diff_dst"), ("diff_wei", "diff_bia")),
]


@pytest.mark.parametrize(("direction", "inputs", "outputs"), TENSORS)
def test_tensors_by_direction(direction: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    problem = Conv.parse("mb3ic4oc6ih5kh2", dir=direction, dt="f16:bf16:f32", stag="nchw", wtag="hwio")
    assert tuple(spec.name for spec in problem.inputs) == inputs
    assert tuple(spec.name for spec in problem.outputs) == outputs
    roles = {
        "src": ((3, 4, 5, 5), "abcd", "f16"),
        "wei": ((6, 4, 2, 2), "cdba", "bf16"),
        "dst": ((3, 6, 4, 4), "acdb", "f32"),
        "bia": ((6,), "a", "f32"),
    }
    for spec in problem.tensors:
        assert (spec.dims, spec.layout.tag, spec.dtype) == roles[spec.name.removeprefix("diff_")]
        assert spec == problem.tensor(spec.name)


def test_a_bias_is_as_precise_as_the_sums() -> None:
    line = "ic4oc6ih5kh2"
    assert Conv.parse(line, dt="f16").tensor("bia").dtype == "f32"
    assert Conv.parse(line, dt="f64", dir="BWD_WB").tensor("diff_bia").dtype == "f64"


STRIDES = "3200x1x160x16"
SAME_STRIDES = [
    {"strides": f"{STRIDES}::"},
    {"strides": "03200x1x160x016::", "stag": "any"},
    {"stag": STRIDES},
    {"stag": f"0{STRIDES}", "strides": "::"},
]


@pytest.mark.parametrize("knobs", SAME_STRIDES)
def test_strides(knobs: dict[str, str]) -> None:
    problem = Conv.parse("mb2ic16oc16ih10kh1", **knobs)
    assert problem.src_layout.strides() == (3200, 1, 160, 16)
    assert str(problem) == f"--strides={STRIDES}:: mb2_ic16oc16_ih10oh10kh1ph0"
    assert problem == Conv.parse("mb2ic16oc16ih10kh1", strides=f"{STRIDES}::")
    assert Conv.parse(str(problem)) == problem


def test_strides_of_several_tensors() -> None:
    line = f"--wtag=abcd --strides={STRIDES}::12800x1x640x64 mb2ic16oc16ih10oh10kh1ph0"
    problem = Conv.parse(line)
    assert problem.dst_layout.strides() == (12800, 1, 640, 64)
    assert problem.knobs == f"--wtag=abcd --strides={STRIDES}::12800x1x640x64"
    assert Conv.parse(str(problem)) == problem


@pytest.mark.parametrize("strides", ["64x8x8x1", "1x2x4x8", "16x4x1x99", "7x7x1x1"])
def test_strides_of_single_elements_and_empty_tensors_are_free(strides: str) -> None:
    Conv.parse("mb1ic1oc1ih1kh1", strides=f"{strides}:{strides}:{strides}")
    Conv.parse("mb0ic4oc4ih3kh3", strides=f"{strides}::{strides}")


@given(st.permutations(range(4)), st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_strides_are_refused_that_make_elements_meet(order: list[int], slack: list[int]) -> None:
    dims = (2, 3, 4, 4)
    strides, reach = [0] * 4, 1
    for dim, more in zip(order, slack):
        strides[dim] = max(1, reach + more - 2)  # now and then too small
        reach += (dims[dim] - 1) * strides[dim]
    text = "x".join(map(str, strides))
    offsets = {sum(i * s for i, s in zip(index, strides)) for index in product(*map(range, dims))}
    try:
        taken = Conv.parse("mb2ic3oc4ih4kh1", strides=f"{text}::").stag == text
    except PointedError as error:
        taken = error.text != text
    assert not taken or len(offsets) == 96


def test_attributes() -> None:
    line = "ic4oc6ih5kh2"
    problem = Conv.parse(line, attr_deterministic=True, attr_fpmath="BF16:false")
    assert (problem.deterministic, problem.fpmath) == (True, "bf16")
    assert str(problem) == "--attr-deterministic=true --attr-fpmath=bf16 mb2_ic4oc6_ih5oh4kh2ph0"
    assert Conv.parse(str(problem)) == Conv.parse(f"--attr-deterministic TRUE --attr-fpmath=bf16 {line}") == problem
    assert Conv.parse(line, attr_deterministic="false", attr_fpmath="strict") == Conv.parse(line)


@given(
    st.sampled_from(["", "g1", "g2", "g4"]),
    st.integers(0, 3),
    st.lists(st.tuples(*[st.integers(1, 9)] * 4, st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=3),
)
def test_print_and_parse_are_inverse(groups: str, mb: int, axes: list[tuple[int, ...]]) -> None:
    line = f"{groups}mb{mb}ic8oc4"
    for name, values in zip("dhw"[3 - len(axes) :], axes):
        line += "".join(f"{key}{name}{value}" for key, value in zip("ioksdp", values))
    problem = Conv.parse(line)
    assert Conv.parse(str(problem)) == problem
    assert all(axis.pad_r + axis.p + axis.i == (axis.o - 1) * axis.s + axis.extent for axis in problem.axes)


POINTED = [  # descriptor, the column of the caret, a part of the message
    ("ic64ih56zz3", 8, "'zz3'"),
    ("ic64ihoc64", 6, "after ih"),
    ("ic64ih-1oc64kh3", 6, "'-1oc64kh'"),
    ("ic64ih", 6, "nothing after ih"),
    ("ic64 ", None, "no spatial axis"),
    ("ic64oc64", 8, "no spatial axis"),
    ("ic64oc64ih5", 8, "without kh"),
    ("ic64oc64kh5", 8, "without ih"),
    ("ic64oc64sh2", 8, "without ih"),
    ("ic64oc64ih0kh3", 8, "without ih"),
    ("ic64oc64ih9kh0", 11, "without kh"),
    ("ic64oc64ih9kh3sh0", 14, "sh of 0"),
    ("g0ic64oc64ih9kh3", 0, "g of 0"),
    ("oc64ih9kh3", 10, "no ic"),
    ("ic0oc64ih9kh3", 0, "ic of 0"),
    ("ic64ih9kh3", 10, "no oc"),
    ("g3ic64oc63ih9kh3", 2, "ic64 and g3"),
    ("g3ic63oc64ih9kh3", 6, "oc64 and g3"),
    (f"ic{2**63}oc64ih9kh3", 2, "2^63"),
    (f"ic{'9' * 5000}oc64ih9kh3", 2, "2^63"),
    ("ic4oc4ih9kh30", 6, "oh -20"),
    ("ic4oc4id5kd3ih5kh3", 6, "but not w"),
    ("ic4oc4id5kd3iw5kw3", 6, "but not h"),
    ("mb²ic4oc4ih9kh3", 2, "after mb"),
]


@pytest.mark.parametrize(("line", "column", "message"), POINTED, ids=[line[:40] for line, *_ in POINTED])
def test_errors_point_and_say_what(line: str, column: int | None, message: str) -> None:
    with pytest.raises(PointedError, match=re.escape(message)) as caught:
        Conv.parse(line)
    assert column is None or caught.value.column == column
    assert "\n" not in caught.value.one_line


WRONG_KNOBS = [
    ({"dir": "SIDEWAYS"}, "given 'SIDEWAYS', wanted one of FWD_B FWD_D FWD_I BWD_D BWD_W BWD_WB in dir"),
    ({"dt": "f17"}, "boolean in dt"),
    ({"dt": "f16:f16"}, "2 types"),
    ({"dt": "f16:f16:f16:f16"}, "4 types"),
    ({"stag": "nchv"}, "tensor in stag"),
    ({"wtag": "goihw"}, "given"),
    ({"dtag": "1x2x3"}, "3 strides"),
    ({"strides": "1x2x3::"}, "3 strides"),
    ({"strides": "108x1x12x4"}, "1 parts"),
    ({"strides": "::::"}, "5 parts"),
    ({"strides": f"{'9' * 19}x1x12x4::"}, "'9x1x12x4'"),
    ({"attr_deterministic": "maybe"}, "true false 1 0 in attr_deterministic"),
    ({"attr_fpmath": "bf16:"}, "nothing after ':', wanted something in attr_fpmath"),
    ({"attr_post_ops": "relu:x"}, "given 'x', wanted a number in attr_post_ops, at column 6"),
    ({"mb": "-1"}, "-1"),
    ({"mb": "many"}, "many"),
    ({"speed": "1"}, "given the argument 'speed', wanted one of dir, dt, bia_dt,"),
    ({"attr_postops": "relu"}, "given the argument 'attr_postops' (did you mean attr_post_ops?)"),
]


@pytest.mark.parametrize(("knobs", "message"), WRONG_KNOBS)
def test_wrong_arguments(knobs: dict[str, str], message: str) -> None:
    """They are told as arguments, not as options of a command line."""
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        Conv.parse("ic4oc4ih9kh3", **knobs)
    assert "--" not in str(caught.value)


def test_wrong_options_of_a_line_are_told_as_such() -> None:
    with pytest.raises(UserError, match="in --dt, at column 1"):
        Conv.parse("--dt=f17 ic4oc4ih9kh3", stag="axb")


def test_empty_values_are_defaults() -> None:
    names = [option.name for option in KNOBS_OF["conv"]]
    assert Conv.parse(" ".join(f"--{name}=" for name in names) + " ic4oc4ih9kh3") == Conv.parse("ic4oc4ih9kh3")


@pytest.mark.parametrize("line", ["", "  ", "ic4oc4ih9kh3 ic4oc4ih9kh3", "--dt f16", "--flavour=x ic4oc4ih9kh3"])
def test_wrong_lines(line: str) -> None:
    with pytest.raises(UserError):
        Conv.parse(line)
