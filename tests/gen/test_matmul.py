"""Matrix multiplication problems: text, layouts, the reference, and kernels on the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import convgen as cg
from convgen.backends.amdgpu.tables import FACTS
from convgen.ir.error import VerifyError
from convgen.ir.layout.mma import MmaTile
from convgen.ir.record import evolve
from convgen.ir.types import f16
from convgen.plan import dequantise
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul, parse_problem
from convgen.run import reference, verdict

TAGS = st.sampled_from(["any", "ab", "ba"])


@given(
    st.tuples(st.integers(0, 99), st.integers(1, 99), st.integers(0, 99)),
    st.sampled_from(["f32", "f16", "f16:f16:f32", "bf16:bf16:f16"]),
    st.tuples(TAGS, TAGS, TAGS),
    st.sampled_from(["", "n4", 'n"bert"', "_nbert"]),
)
def test_print_and_parse_are_inverse(
    sizes: tuple[int, int, int], dt: str, tags: tuple[str, str, str], name: str
) -> None:
    m, k, n = sizes
    stag, wtag, dtag = tags
    problem = Matmul.parse(f"{m}x{k}:{k}x{n}{name}", dt=dt, stag=stag, wtag=wtag, dtag=dtag)
    assert (problem.m, problem.k, problem.n) == sizes
    assert problem.name == name.removeprefix("_")[1:].strip('"')
    assert Matmul.parse(str(problem)) == parse_problem(str(problem)) == problem
    assert str(Matmul.parse(str(problem))) == str(problem)
    assert problem.is_empty == (m * n == 0)
    assert problem.macs == m * k * n


def test_problem_lines_are_told_apart() -> None:
    assert isinstance(parse_problem("--dt=f16 8x4:4x8"), Matmul)
    assert isinstance(parse_problem("--dt=f16 mb1_ic8oc4_ih4kh1"), Conv)


def test_any_means_rows_side_by_side_and_k_contiguous() -> None:
    problem = Matmul.parse("6x4:4x10")
    assert (problem.src_dims, problem.wei_dims, problem.dst_dims) == ((6, 4), (4, 10), (6, 10))
    assert problem.src_layout.strides() == (4, 1)
    assert problem.wei_layout.strides() == (1, 4)
    assert problem.dst_layout.strides() == (10, 1)
    turned = Matmul.parse("6x4:4x10", stag="ba", wtag="ab", dtag="ba")
    assert (turned.src_layout.strides(), turned.wei_layout.strides(), turned.dst_layout.strides()) == (
        (1, 6),
        (10, 1),
        (1, 6),
    )


def test_knobs_in_the_text_win() -> None:
    problem = Matmul.parse("--dt=f16 --wtag=ab 6x4:4x10", dt="bf16", wtag="ba")
    assert (problem.src_type, problem.wtag) == ("f16", "ab")
    assert problem.knobs == "--dt=f16 --wtag=ab"


def test_tensors_and_strides() -> None:
    problem = Matmul.parse("6x4:4x10", dt="f16:f16:f32", strides="8x1::1x9", attr_deterministic=True)
    assert [(spec.name, spec.dims, spec.dtype) for spec in problem.tensors] == [
        *(("src", (6, 4), "f16"), ("wei", (4, 10), "f16"), ("dst", (6, 10), "f32")),
    ]
    assert [spec.layout.strides() for spec in problem.tensors] == [(8, 1), (1, 4), (1, 9)]
    assert problem.knobs == "--dt=f16:f16:f32 --strides=8x1::1x9 --attr-deterministic=true"
    assert parse_problem(str(problem)) == problem


def test_the_reference_is_the_product() -> None:
    problem = Matmul.parse("9x70:70x5", dt="f16:f16:f32")
    inputs = reference.fill(problem, seed=3)
    assert {name: a.shape for name, a in inputs.items()} == {"src": (9, 70), "wei": (70, 5)}
    assert all(np.all(a != 0) and np.array_equal(a, np.round(a)) for a in inputs.values())
    rows, columns = np.array([8, 0, 3]), np.array([4, 1])
    expected = inputs["src"].astype(np.int64) @ inputs["wei"].astype(np.int64)
    got = reference.outputs(problem, inputs, "dst", rows, columns)
    assert got.dtype == np.float32
    assert np.array_equal(got, expected[rows][:, columns])
    deep = reference.fill(Matmul.parse("1x70000:70000x1", dt="f16"))
    assert 70000 * int(abs(deep["src"]).max()) * int(abs(deep["wei"]).max()) <= 2**24


KERNELS: list[tuple[str, dict[str, Any]]] = [
    ("70x40:40x50", {"dt": "f16"}),
    ("33x17:17x9", {"dt": "bf16:bf16:f32"}),
    ("64x64:64x64", {"dt": "f16", "stag": "ba", "wtag": "ab", "dtag": "ba"}),
]


@pytest.mark.parametrize(("desc", "knobs"), KERNELS)
def test_kernels_are_right(desc: str, knobs: dict[str, Any]) -> None:
    problem = cg.Matmul.parse(desc, **knobs)
    code = cg.compile(cg.build(problem))
    assert code.name.startswith("gemm_")
    outcome = verdict.run(code)
    assert outcome.passed, outcome
    assert outcome.checked == problem.m * problem.n
    sampled = verdict.run(code, groups=2)
    assert sampled.passed
    assert 0 < sampled.checked <= problem.m * problem.n


def test_a_wrong_product_is_noticed() -> None:
    """A kernel that reads the second matrix in another order than its record says."""
    right = cg.compile(cg.build(cg.Matmul.parse("32x32:32x32", dt="f16")))
    turned = cg.compile(cg.build(cg.Matmul.parse("32x32:32x32", dt="f16", wtag="ab")))
    renamed = evolve(right.record.launches[0], kernel=turned.name)
    told = evolve(turned, record=evolve(right.record, launches=(renamed,)))
    with pytest.raises(VerifyError, match=r"the record has wei as ba, and .* asks for ab"):
        verdict.run(told)
    outcome = verdict.run(evolve(told, problem=right.problem))
    assert outcome.mismatches > 500
    assert len(outcome.first[0].index) == 2


F8 = "--dt=f8_e4m3:f8_e4m3:f32 --attr-scales"
BYTES = "--dt=f16:s8:f16 --attr-fpmath=f16:true --attr-scales"


@pytest.mark.parametrize(
    ("line", "config"),
    [
        (f"{F8}=wei:per_tensor:f32:128x128", "tile=128x96x32 waves=2x2 mma=16x16x4 in=f32"),
        (f"{F8}=src:per_tensor:f32:1x128", "tile=96x128x32 waves=2x2 mma=16x16x4 in=f32"),
        (f"{BYTES}=wei:per_tensor:f8_e4m3:32x1", "tile=16x48x32 waves=1x1 mma=16x16x16 in=f16"),
    ],
)
def test_tiles_begin_anywhere_within_groups_that_share_a_scale(line: str, config: str) -> None:
    """Tiles of 96 in parts of 48: some subgroups' parts begin, and end, in the middle of what would be a run of 32."""
    problem = parse_problem(f"{line} 96x256:256x256")
    outcome = verdict.run(cg.compile(cg.build(problem, "gfx90a", config)))
    assert outcome.passed, outcome.first


@given(
    st.sampled_from([(16, 3, 1), (16, 3, 2), (16, 3, 4), (32, 1, 2), (16, 2, 2), (16, 5, 2), (32, 3, 1)]),
    st.sampled_from([1, 4, 8]),
    st.sampled_from([1, 2, 8, 16, 32, 64, 128]),
    st.integers(0, 3),
)
def test_what_shares_a_scale_is_in_one_group(shape: tuple[int, int, int], run: int, group: int, tile: int) -> None:
    """Of each subgroup, lane and register, wherever the tile begins."""
    rows, tiles, subgroups = shape
    (atom,) = [a for a in FACTS["gfx942"].atoms if (a.n, a.k, a.a_elem) == (rows, 256 // rows, f16)]
    layout = MmaTile(atom, tiles, 1, 2, teams_n=subgroups, run=run).a
    height = layout.extent("n")
    spans = dequantise.spans_of((512, 64), (group, 1), (height, 32))
    few, order = dequantise.layout_of_groups(layout, spans, 1), dequantise.registers_of_groups(layout, spans, 1)
    at = np.arange(subgroups)[:, None, None], np.arange(64)[None, :, None]
    own = layout.coords(*at, np.arange(layout.registers))
    told = few.coords(*at, np.array(order))
    assert ((tile * height + own["n"]) // group == (tile * height + told["n"]) // group).all()
    assert (own["k"] == told["k"]).all()
