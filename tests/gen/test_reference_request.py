"""The reference's own reading of requests: by definitions from outside, apart from the planner, and noticed by runs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from math import gcd, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import convgen as cg
from convgen.ir import types as ir_types
from convgen.ir.error import UserError, VerifyError
from convgen.ir.layout import tags
from convgen.ir.layout.tags import Layout
from convgen.ir.record import fields_of
from convgen.plan import dequantise
from convgen.problem import attribute_masks, tensors
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul, parse_problem
from convgen.run import accuracy, reference, verdict
from convgen.run import reference_request as request
from convgen.run import reference_types as types
from convgen.run.reference_memory import storage

RUN = Path(reference.__file__).parent
#: The modules that say what is right, and those of ours that they may import: texts as they were parsed, and records.
ORACLE = (
    *("accuracy", "depthwise_sums", "oracle", "ranges", "reference", "reference_fused", "reference_memory"),
    *("reference_request", "reference_types"),
)
PARSED = (
    "conv",
    "deconv",
    "fused_conv",
    "grouping",
    "matmul",
    "post_ops",
    "routing",
    "scales",
    "zero_points",
    "tensors",
)
PERMITTED = {
    *(f"convgen.run.{name}" for name in (*ORACLE, "fills")),
    *(f"convgen.problem.{name}" for name in PARSED),
    "convgen.run",
    "convgen.ir.error",
    "convgen.ir.record",
}


@pytest.mark.parametrize("name", ORACLE)
def test_the_reference_imports_nothing_of_planning_and_layouts(name: str) -> None:
    tree = ast.parse((RUN / f"{name}.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    assert {module for module in modules if module.startswith("convgen")} <= PERMITTED


@pytest.mark.parametrize("name", [*ORACLE, "specials"])
def test_the_reference_reads_fields_of_a_problem_and_no_conclusion(name: str) -> None:
    """A field stands for a part of the text; properties and methods are shared with the planner."""
    fields = {field.name for kind in (Conv, Matmul) for field in fields_of(kind)}
    used = {
        node.attr
        for node in ast.walk(ast.parse((RUN / f"{name}.py").read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "problem"
    }
    assert used <= fields


# ---------------------------------------------------------------- memory


def numbers_in_memory(letters: str, blocks: list[tuple[str, int]], dims: tuple[int, ...]) -> np.ndarray:
    """The logical number of each element in memory, -1 in padding: dnnl_types.h's definition, one place at a time.

    `letters` are those of the outer dimensions, and `blocks` stand behind them; both begin with the outermost.
    """
    whole = {letter: prod(size for other, size in blocks if other == letter) for letter in letters}
    loops = [(letter, -(-dims["abcd".index(letter)] // whole[letter])) for letter in letters] + blocks
    memory = np.empty([size for _, size in loops], int)
    for place in np.ndindex(*memory.shape):
        index = dict.fromkeys(letters, 0)
        for (letter, size), at in zip(loops, place):
            index[letter] = index[letter] * size + at
        logical = [index[letter] for letter in "abcd"]
        inside = all(at < extent for at, extent in zip(logical, dims))
        memory[place] = np.ravel_multi_index(logical, dims) if inside else -1
    return memory.ravel()


BLOCKED: dict[str, tuple[str, list[tuple[str, int]]]] = {
    "abcd": ("abcd", []),
    "acdb": ("acdb", []),
    "dcba": ("dcba", []),
    "aBcd4b": ("abcd", [("b", 4)]),
    "ABcd2a3b": ("abcd", [("a", 2), ("b", 3)]),
    "ABcd4b2a2b": ("abcd", [("b", 4), ("a", 2), ("b", 2)]),
    "BAcd2a8b2a": ("bacd", [("a", 2), ("b", 8), ("a", 2)]),
    "aBCd2b3c2b": ("abcd", [("b", 2), ("c", 3), ("b", 2)]),
}


@pytest.mark.parametrize("tag", BLOCKED)
@pytest.mark.parametrize("dims", [(2, 3, 4, 5), (5, 9, 2, 1), (1, 1, 1, 1)])
def test_tags_mean_what_onednn_documents(tag: str, dims: tuple[int, ...]) -> None:
    logical = np.arange(1, 1 + prod(dims), dtype=np.int32).reshape(dims)
    tensor, numbers = request.RequestedTensor("src", dims, "s32", tag), numbers_in_memory(*BLOCKED[tag], dims)
    assert np.array_equal(reference.pack(tensor, logical).view(np.int32), numbers + 1)
    assert storage(tensor).elements == numbers.size


@pytest.mark.parametrize(
    ("name", "letters", "rank"),
    [
        ("nchw", "abcd", 4),
        ("nhwc", "acdb", 4),
        ("nwc", "acb", 3),
        ("ndhwc", "acdeb", 5),
        ("cn", "ba", 2),
        ("oihw", "abcd", 4),
        ("hwio", "cdba", 4),
        ("goihw", "abcde", 5),
        ("hwigo", "decab", 5),
        ("OIhw4i16o4i", "ABcd4b16a4b", 4),
        ("gOIw2i4o", "aBCd2c4b", 4),
        ("nChw16c", "aBcd16b", 4),
        ("axb", "acdb", 4),
        ("axb", "ab", 2),
        ("abxc", "abdec", 5),
        ("xba", "cdba", 4),
        ("aBx16b", "aBcd16b", 4),
        ("aBx16b", "aB16b", 2),
        ("aBx16b", "a", 1),
    ],
)
def test_names_and_x_mean_letters(name: str, letters: str, rank: int) -> None:
    dims = tuple(range(3, 3 + rank))
    of_name, of_letters = (storage(request.RequestedTensor("src", dims, "f32", tag)) for tag in (name, letters))
    assert of_name == of_letters


@pytest.mark.parametrize(("tag", "dims"), [("ab", (2, 3, 4)), ("aab", (2, 3)), ("24x1", (2, 3, 4))])
def test_a_tag_of_another_rank_is_refused(tag: str, dims: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=f"given the tag {tag}, wanted each of {len(dims)} dimensions once"):
        storage(request.RequestedTensor("src", dims, "f32", tag))


@pytest.mark.parametrize("strides", [(1, 2, 6), (12, 4, 1), (40, 2, 9)])
def test_strides_are_numpys(strides: tuple[int, ...]) -> None:
    dims, memory = (2, 3, 4), np.arange(80, dtype=np.float32)
    told = request.RequestedTensor("src", dims, "f32", "x".join(map(str, strides)))
    seen = np.lib.stride_tricks.as_strided(memory, dims, [stride * memory.itemsize for stride in strides])
    assert np.array_equal(reference.unpack(told, "f32", memory.view(np.uint8)), seen)
    assert storage(told).elements == 1 + int(seen.max())
    there = reference.pack(told, seen, gaps=0xFF).view(np.float32)
    assert np.array_equal(there[there == there], np.unique(seen))


@given(st.sampled_from([*BLOCKED, "axb", "nhwc"]), st.tuples(*[st.integers(1, 6)] * 4))
@settings(max_examples=60)
def test_the_reference_and_the_planner_read_tags_alike(tag: str, dims: tuple[int, ...]) -> None:
    index = list(np.indices(dims))
    mine, planners = storage(request.RequestedTensor("src", dims, "f32", tag)), Layout.from_tag(tag, dims)
    assert np.array_equal(mine.offset(index), np.broadcast_to(planners.offset(index), dims))
    assert mine.elements == planners.size_elems
    assert mine.padded_dims == planners.padded_dims


# ---------------------------------------------------------------- types


@pytest.mark.parametrize("name", [name for name in ir_types.SCALARS if name != "bool"])
def test_types_are_those_of_the_standards(name: str) -> None:
    """Limits of the formats, as IEEE 754, OCP's specifications and C state them."""
    stated = {
        "f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38, "f64": 1.7976931348623157e308,
        "f8_e4m3": 448.0, "f8_e5m2": 57344.0, "f8_e4m3fnuz": 240.0, "f8_e5m2fnuz": 57344.0, "f4_e2m1": 6.0,
        "e8m0": 2.0**127, "f6_e2m3": 7.5, "f6_e3m2": 28.0,
    }  # fmt: skip
    bits = int(name[1:]) if types.is_integer(name) else 0
    whole = {"s": (-(1 << bits - 1), (1 << bits - 1) - 1), "u": (0, (1 << bits) - 1)} if bits else {}
    least, most = whole[name[0]] if bits else (types.limits(name)[0], stated[name])
    assert types.limits(name) == (least, most)
    assert types.bits(name) == ir_types.scalar(name).bits
    assert types.numpy_type(name) == ir_types.scalar(name).numpy


@pytest.mark.parametrize(
    ("wide", "narrow", "holds"),
    [
        ("f16", "s8", True),
        ("f16", "f8_e5m2", True),
        ("f16", "bf16", False),
        ("bf16", "f16", False),
        ("bf16", "f8_e4m3", True),
        ("f8_e4m3", "f4_e2m1", True),
        ("f8_e4m3", "f8_e5m2", False),
        ("f8_e4m3", "s8", False),
        ("bf16", "e8m0", True),
        ("f16", "e8m0", False),
        ("s8", "u4", True),
        ("s8", "u8", False),
        ("f32", "s32", False),
        ("f32", "f16", True),
    ],
)
def test_one_type_holds_another(wide: str, narrow: str, holds: bool) -> None:
    assert types.holds(wide, narrow) is holds


def test_types_hold_what_the_planner_thinks() -> None:
    names = [name for name, elem in ir_types.SCALARS.items() if elem.bits <= 16 and not elem.is_bool]
    for wide in names:
        for narrow in names:
            assert types.holds(wide, narrow) == ir_types.scalar(wide).holds(ir_types.scalar(narrow)), (wide, narrow)


# ---------------------------------------------------------------- requests

#: Lines whose conclusions the planner and the reference draw apart: each attribute, each kind of tensor.
LINES = [
    "--dir=FWD_B --dt=f16 mb2ic8ih5oc12kh3ph1",
    "--dir=FWD_D --dt=u8:s8:u8 --attr-scales=wei:per_oc+dst:common:2 --attr-zero-points=src:per_dim_1+dst:common:3 "
    "--attr-post-ops=sum+add:f32:per_oc+select:s8.per_tensor:per_tensor+prelu:per_oc g2mb2ic8ih5oc12kh3",
    "--dir=FWD_D --dt=s8 --attr-scales=wei:per_oc mb2ic8ih5oc12kh3",
    "--dir=FWD_I --dt=s8 --bia-dt=s32 --dtag=aBx8b --attr-post-ops=add:f32:per_oc+mul:f32:per_tensor mb2ic8iw5oc12kw3",
    "--dir=BWD_D --dt=bf16 --stag=nchw g4mb2ic8ih5oc12kh3sh2",
    "--dir=BWD_D --dt=f16:s8:u8 mb2ic8ih5oc12kh3",
    "--dir=BWD_W --dt=s8:s32:u8 --bia-dt=f32 mb2ic8ih5oc12kh3",
    "--dir=BWD_WB --dt=f32 g2mb2ic8id3kd2ih5oc12kh3iw4kw1",
    "--dt=f64 --bia-dt=f64 --bia_mask=3 16x8:8x12",
    "--dt=s8:s8:f16 --attr-zero-points=src:common:3+wei:per_oc 2x16x8:1x8x12",
    "--dt=u8:s8:s32 --attr-scales=src:per_ocic:f16:1x4+wei:per_ocic:f16:4x3 16x8:8x12",
    "--dt=f16:u4:f16 --attr-fpmath=bf16:true --attr-scales=wei:per_ocic:f16:4x1 --attr-zero-points=wei:per_oc 6x8:8x2",
    "--dt=bf16:s4:f16 --attr-fpmath=f16:true --attr-scales=wei:per_tensor:e8m0:4x4 2x16x8:2x8x12",
    "--dt=f8_e4m3:f8_e5m2:f16 --stag=ba --attr-scales=src:per_dim_0 16x8:8x12",
    "--dt=f16 --bia-dt=f32 --bia_mask=5 --dtag=acb --attr-post-ops=add:f32:7:abc+add:f32:3 3x16x8:1x8x12",
    "--dt=f16 --dtag=200x1 --attr-post-ops=div:f32:per_tensor 16x8:8x12",
]


@pytest.mark.parametrize("line", LINES)
def test_the_planner_concludes_what_the_reference_does(line: str) -> None:
    problem = parse_problem(line)
    for mine, planners in ((request.inputs(problem), problem.inputs), (request.outputs(problem), problem.outputs)):
        assert [(t.name, t.dims, t.dtype) for t in mine] == [(t.name, t.dims, t.dtype) for t in planners]
        lying = [(Layout.from_tag(t.tag, t.dims).size_elems, Layout.from_tag(t.tag, t.dims).digits) for t in mine]
        assert lying == [(t.layout.size_elems, t.layout.digits) for t in planners]
    assert request.sum_type(problem) == problem.acc_type
    assert request.step_type(problem, problem.outputs[0].name) == problem.result_type
    assert request.is_dequantised(problem) == (isinstance(problem, Matmul) and problem.dequantises)
    for attribute in problem.attributes:
        assert request.spans(problem, attribute) == problem.spans(attribute)


@pytest.mark.parametrize(
    ("line", "role", "policy", "mask"),
    [
        ("mb1ic4ih5oc4kh3", "wei", "per_oc", 0b1),
        ("mb1ic4ih5oc4kh3", "wei", "per_ocic", 0b11),
        ("g2mb1ic4ih5oc4kh3", "wei", "per_oc", 0b11),
        ("g2mb1ic4ih5oc4kh3", "wei", "per_ocic", 0b110),
        ("mb1ic4ih5oc4kh3", "dst", "per_oc", 0b10),
        ("mb1ic4ih5oc4kh3", "src", "per_dim_1", 0b10),
        ("mb1ic4ih5oc4kh3", "src", "per_tensor", 0b1111),
        ("4x5:5x6", "wei", "per_oc", 0b10),
        ("4x5:5x6", "wei", "per_ocic", 0b11),
        ("2x4x5:2x5x6", "wei", "per_oc", 0b100),
        ("2x4x5:2x5x6", "wei", "per_ocic", 0b110),
        ("2x4x5:2x5x6", "src", "per_dim_1", 0b100),
        ("2x4x5:2x5x6", "src", "per_dim_0", 0b1),
        ("2x4x5:2x5x6", "src", "per_dim_01", 0b11),
        ("2x4x5:2x5x6", "dst", "per_dim_2", 0b100),
        ("2x4x5:2x5x6", "dst", "common", 0),
        ("2x4x5:2x5x6", "dst", "6", 0b110),
    ],
)
def test_policies_mean_the_masks_that_benchdnn_documents(line: str, role: str, policy: str, mask: int) -> None:
    """knobs_attr.md, and `attr_t::policy2mask` where that leaves matrix products open."""
    assert request.mask(parse_problem(line), role, policy) == mask


@pytest.mark.parametrize("name", [name for name in accuracy.REFERENCES if name != "pow"])
def test_functions_are_as_right_as_benchdnn_asks(name: str) -> None:
    """Its thresholds for f32 (eltwise.cpp, `get_eltwise_threshold`), of results and near zero of differences."""
    threshold = 4e-5 if name in ("gelu_tanh", "elu", "swish", "tanh", "soft_relu", "mish", "log") else 4e-6
    bound = accuracy.REFERENCES[name].bound(1, 1)
    assert max(bound.ulps * 2.0**-23, bound.absolute) <= threshold


# ---------------------------------------------------------------- what a run notices


def _wrong_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two innermost dimensions of a tag change places in the planner's layouts."""
    right = tags._in_memory

    def swapped(sizes: Iterable[tuple[int, int]]) -> Any:
        inner, second, *rest = sizes
        return right([second, inner, *rest])

    monkeypatch.setattr(tags, "_in_memory", swapped)


def _wrong_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are rows to the planner."""
    right = attribute_masks.bits
    monkeypatch.setattr(attribute_masks, "bits", lambda *given: 0b01 if right(*given) == 0b10 else right(*given))


def _wrong_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are rounded to a size that divides the axis."""
    right = attribute_masks.spans

    def rounded(size: Sequence[int], *given: Any) -> tuple[int, ...]:
        return tuple(gcd(extent, span) for extent, span in zip(size, right(size, *given)))

    monkeypatch.setattr(attribute_masks, "spans", rounded)


def _sums_of_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner sums products of bytes in f32."""
    monkeypatch.setattr(tensors, "_INTEGERS", ())


def _unrounded_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner leaves dequantised weights in f32, of which the request asks bf16."""
    right = dequantise.multiplied_type
    monkeypatch.setattr(dequantise, "multiplied_type", lambda *given: ir_types.f32 if right(*given) else None)


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        (_sums_of_floats, "--dt=u8:u8:s32 1x1280:1280x16"),
        (_unrounded_factors, "--dt=bf16:u8:f32 --attr-zero-points=wei:common:-8 17x64:64x16"),
    ],
)
def test_a_wrong_type_of_the_planner_is_a_wrong_result(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[pytest.MonkeyPatch], None], line: str
) -> None:
    assert verdict.run(cg.compile(cg.build(parse_problem(line), "gfx942"))).passed
    with monkeypatch.context() as patch:
        broken(patch)
        assert verdict.run(cg.compile(cg.build(parse_problem(f"{line}nbroken"), "gfx942"))).mismatches


@pytest.mark.parametrize(
    ("broken", "line", "notices"),
    [
        (_wrong_strides, "--dt=f16 --dtag=ba 17x32:32x23", "the record has src as"),
        (_wrong_policy, "--dt=s8:s8:f32 --attr-scales=wei:per_oc 32x32:32x32", "asks for f32.1, 32."),
        (_wrong_group, "--dt=f16:s8:f16 --attr-scales=wei:per_ocic:f16:32x1 32x48:48x16", "asks for f16.2, 16."),
    ],
)
def test_a_wrong_conclusion_of_the_planner_is_noticed(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[pytest.MonkeyPatch], None], line: str, notices: str
) -> None:
    assert verdict.run(cg.compile(cg.build(parse_problem(line), "gfx942"))).passed
    with monkeypatch.context() as patch:
        tensors._layout.cache_clear()
        broken(patch)
        code = cg.compile(cg.build(parse_problem(f"{line}nbroken"), "gfx942"))
        with pytest.raises(VerifyError, match=notices):
            verdict.run(code)
        if broken is _wrong_strides:  # and where the record does not tell of it
            patch.setattr(verdict, "_same_placement", lambda *_: True)
            assert verdict.run(code).mismatches
    tensors._layout.cache_clear()
