"""Rows by number in products in groups: gathered from src, and scattered to the result, in layers with experts.

Row m of the product has slot `sorted_token_ids[m]`: it reads row slot // topk of src and is stored as row slot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen.backends.target import get
from convgen.choose.supported import check_supported
from convgen.commands import cli
from convgen.ir.record import evolve
from convgen.problem.matmul import parse_problem
from convgen.problem.routing import Gather, Routing, Scatter
from convgen.run import reference, verdict
from convgen.run.code import Code
from convgen.run.comparison import compare_unnamed
from convgen.run.execution import SENTINEL, execute
from convgen.run.ranges import Range, summed
from tests.product.problems import expect_right
from tests.strategies import always

TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpg", "xehpc", "sm_80", "sm_90", "sm_90a", "sm_120")
EXPERTS, TOKENS, TOPK, K, N = 5, 20, 2, 72, 40
GROUPS = f"--grouped=0:{EXPERTS}:7+0+1+20+12"
SIZES = f"40x{K}:{EXPERTS}x{K}x{N}"
FIRST = f"--dt=f16:f16:f32 {GROUPS} --routing=gather:{TOKENS}:{TOPK} {SIZES}"
BOTH = f"--dt=f16:f16:f32 {GROUPS} --routing=gather:{TOKENS}:{TOPK}+scatter:40 {SIZES}"
SECOND = f"--dt=f16:f16:f32 {GROUPS} --routing=scatter:40 --attr-post-ops=mul:f32:1 {SIZES}"

Floats = npt.NDArray[np.float64]


def compiled(line: str, target: str, config: str | None = None) -> Code:
    return cg.compile(cg.build(parse_problem(line), target, config))


def routed(seed: int = 1) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the experts of each token's slots, the slots sorted by expert, and the end of each expert's rows."""
    rng = np.random.default_rng(seed)
    experts = np.array([rng.choice(EXPERTS, TOPK, replace=False) for _ in range(TOKENS)]).ravel()
    ids = np.argsort(experts, kind="stable").astype(np.int32)
    ends = np.cumsum(np.bincount(experts, minlength=EXPERTS)).astype(np.int32)
    return experts, ids, ends


def small(shape: tuple[int, ...], seed: int, dtype: Any = np.float16) -> Any:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_a_layer_with_experts_is_right(target: str) -> None:
    """The first product gathers the rows of tokens, the second weights its rows and scatters them to slots."""
    experts, ids, ends = routed()
    x, w1, w2 = small((TOKENS, K), 2), small((EXPERTS, K, N), 3), small((EXPERTS, N, K), 4)
    weights = np.random.default_rng(5).integers(1, 5, (TOKENS * TOPK, 1)).astype(np.float32) / 4
    first = compiled(FIRST, target)
    hidden = cg.simulate(first, src=x, wei=w1, offsets=ends, sorted_token_ids=ids)
    second = compiled(
        f"--dt=f32:f32:f32 {GROUPS} --routing=scatter:40 --attr-post-ops=mul:f32:1 40x{N}:{EXPERTS}x{N}x{K}", target
    )
    arrays = {"src": hidden, "wei": w2.astype(np.float32), "offsets": ends, "sorted_token_ids": ids}
    slots = cg.simulate(second, **arrays, post_op_0=weights)
    sums = slots.reshape(TOKENS, TOPK, K).sum(1)
    wanted = np.zeros((TOKENS, K))
    for slot, expert in enumerate(experts):
        row = x[slot // TOPK].astype(np.float64) @ w1[expert].astype(np.float64) @ w2[expert].astype(np.float64)
        wanted[slot // TOPK] += row * weights[slot]
    assert np.array_equal(sums, wanted)


@pytest.mark.parametrize(("line", "target"), always(
    [(line, target) for target in TARGETS for line in (FIRST, BOTH, SECOND)], lambda n, _: n // 3 % 3 == 1
))  # fmt: skip
def test_numbers_that_name_no_row_read_zeros_and_store_nothing(line: str, target: str) -> None:
    """The fill has some; `verdict.run` also compares rows that nobody stores, and puts NaN into rows nobody reads."""
    problem = parse_problem(line)
    ids = np.asarray(reference.fills(problem)["sorted_token_ids"]).astype(np.int64)
    assert (ids >= 40).any()
    outcome = verdict.run(compiled(line, target), seed=0)
    expect_right(outcome)
    assert outcome.specials is not None


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90a"])
def test_numbers_from_any_range_stay_within_the_tensors(target: str) -> None:
    code, ends = compiled(BOTH, target), np.array([8, 8, 8, 40, 40], np.int32)
    ids = np.arange(40, dtype=np.int32)
    ids[[0, 9, 17, 39]] = -1, -(1 << 31), (1 << 31) - 1, 40
    src, wei = small((TOKENS, K), 1), small((EXPERTS, K, N), 2)
    got = cg.simulate(code, src=src, wei=wei, offsets=ends, sorted_token_ids=ids)
    for slot in range(40):
        if slot in (0, 9, 17, 39):
            assert (got[slot].view(np.uint8) == SENTINEL).all()
        else:
            weights = wei[0 if slot < 8 else 3]
            assert np.array_equal(got[slot], src[slot // TOPK].astype(np.float64) @ weights.astype(np.float64))


@pytest.mark.parametrize("special", [np.nan, np.inf], ids=["nan", "inf"])
@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_80", "sm_90a"])
def test_rows_that_nobody_selects_do_not_reach_results(target: str, special: float) -> None:
    code = compiled(FIRST, target)
    _, ids, ends = routed()
    unused = 3
    ids = np.where(ids // TOPK == unused, 8, ids).astype(np.int32)
    src, wei = small((TOKENS, K), 1), small((EXPERTS, K, N), 2)
    src[unused] = special
    got = cg.simulate(code, src=src, wei=wei, offsets=ends, sorted_token_ids=ids)
    group = np.searchsorted(ends, np.arange(40), "right")
    wanted = np.stack([src[ids[m] // TOPK].astype(np.float64) @ wei[group[m]].astype(np.float64) for m in range(40)])
    assert np.array_equal(got, wanted)


CONFIGS = [
    ("gfx942", "tile=32x16x64 waves=2x1 mma=16x16x16 slots=3 stages=3 map=ragged"),
    ("gfx942", "tile=16x16x32 waves=1x1 mma=16x16x16 slots=1 slices=2 sum=last"),
    ("gfx942", "tile=16x16x32 waves=1x1 mma=16x16x16 slots=1 map=stream:5:all sum=last"),
    ("gfx942", "tile=32x16x64 waves=2x1 mma=16x16x16 slots=2 copy=direct"),
    ("gfx942", "tile=32x16x32 waves=2x1 mma=16x16x16 slots=0"),
    ("gfx942", "tile=64x32x32 waves=1x1 mma=16x16x16 slots=2 subtiles=2"),
    ("gfx942", "tile=32x32x64 waves=1x1x2 mma=16x16x16 slots=2"),
    ("gfx942", "tile=32x16x64 waves=2x1 mma=16x16x16 slots=2 map=persist:4"),
    ("xehpc", "tile=32x32x32 waves=2x2 mma=16x8x16 slots=0 prefetch=2"),
    ("xehpg", "tile=32x32x16 waves=2x2 mma=16x8x16 slots=1 slices=3 sum=last:2"),
    ("sm_90a", "tile=64x32x64 waves=1x4 mma=32x64x16 slots=4 copy=direct"),
    ("sm_90a", "tile=64x32x64 waves=1x4 mma=32x64x16 slots=2 map=ragged+persist:2:snake"),
    ("sm_90a", "tile=64x32x32 waves=1x4 mma=32x64x16 slots=3 copy=direct slices=2 sum=last"),
]


@pytest.mark.parametrize(("target", "config"), CONFIGS)
def test_configs_of_rows_by_number(target: str, config: str) -> None:
    line = BOTH.replace("--routing", "--attr-post-ops=sum+mul:f32:1 --routing")
    outcome = verdict.run(compiled(line, target, config))
    expect_right(outcome)


@pytest.mark.parametrize(("types", "words", "target"), always([
    (*each, target)
    for each in [
        ("s8:s8:f16", "--attr-scales=src:1+wei:5"),
        ("bf16", "--bia-dt=f32 --bia_mask=2 --attr-post-ops=relu+mul:f32:1+add:bf16:3"),
        ("f32", "--dtag=ba --stag=ba --attr-post-ops=mul:f32:1"),
        ("u8:s8:s32", "--wtag=abc"),
        ("f16:s4:f16", "--attr-fpmath=f16:true --attr-scales=wei:5:f16"),
    ]
    for target in TARGETS
], lambda n, _: n % 4 == 1))  # fmt: skip
def test_attributes_of_rows_by_number(types: str, words: str, target: str) -> None:
    """Scales of src are those of tokens; tensors like the result have rows of slots."""
    line = f"--dt={types} {words} {BOTH.partition(' ')[2]}"
    outcome = verdict.run(compiled(line, target))
    expect_right(outcome)


@pytest.mark.parametrize(("words", "target"), always([
    (words, target)
    for words in [
        "--dt=bf16:u4:bf16 --attr-fpmath=bf16:true --attr-scales=wei:7:f16:36x1 --attr-zero-points=wei:7:u8:36x1",
        "--dt=f16:s4:f16 --attr-fpmath=f16:true --attr-scales=wei:7:f16:36x10 --attr-post-ops=glu:halves:relu",
        "--dt=f16:f4_e2m1:f16 --attr-fpmath=f16 --attr-scales=wei:7:e8m0:36x1 --attr-post-ops=glu:interleaved:abs",
        "--dt=f8_e4m3:f8_e4m3:bf16 --attr-scales=src:1+wei:7:f32:36x20",
        "--dt=u8:s8:u8 --attr-zero-points=dst:common:3",
    ]
    for target in TARGETS
], lambda n, _: n % 4 == 1))  # fmt: skip
def test_weights_of_gathered_rows_may_have_scales_and_zero_points_along_k(words: str, target: str) -> None:
    outcome = verdict.run(compiled(f"{words} {GROUPS} --routing=gather:{TOKENS}:{TOPK} {SIZES}", target))
    expect_right(outcome)


def test_sampled_tiles_are_compared_at_their_slots() -> None:
    for line in (FIRST, BOTH, SECOND):
        code = compiled(line, "gfx942", "tile=16x16x32 waves=1x1 mma=16x16x16 slots=1")
        for groups in (1, 5, 12):
            outcome = verdict.run(code, groups=groups, seed=groups)
            assert outcome.passed
            assert outcome.checked


def test_the_reference_is_that_of_plain_indexing() -> None:
    problem = parse_problem(BOTH.replace("--routing", "--attr-post-ops=mul:f32:1 --routing"))
    inputs = {name: np.asarray(fill) for name, fill in reference.fills(problem).items()}
    group = np.searchsorted(inputs["offsets"], np.arange(40), "right")
    wanted: Floats = np.zeros((40, N))
    for m, slot in enumerate(inputs["sorted_token_ids"]):
        if slot < 40:
            row = inputs["src"][slot // TOPK].astype(np.float64) @ inputs["wei"][group[m]].astype(np.float64)
            wanted[slot] = row * inputs["post_op_0"][slot]
    assert np.array_equal(reference.whole(problem, inputs, "dst"), wanted)


def test_a_store_to_another_row_is_noticed() -> None:
    """Rows that no number names keep their content; so does a comparison of rows with those of other numbers fail."""
    problem = parse_problem(BOTH.replace("scatter:40", "scatter:44"))
    code = cg.compile(cg.build(problem, "gfx942"))
    arrays = {name: np.asarray(fill) for name, fill in reference.fills(problem).items()}
    assert verdict.run(code, arrays=arrays).passed
    named = np.sort(arrays["sorted_token_ids"].astype(np.int64))
    record, memory = code.record, dict(execute(code.record, code.object, arrays)[0])
    assert not compare_unnamed(problem, arrays, record, memory, "dst").mismatches
    fewer = {**arrays, "sorted_token_ids": np.where(named == named[0], 44, named).astype(np.int32)}
    found = compare_unnamed(problem, fewer, record, memory, "dst")
    assert found.mismatches == N * len(np.setdiff1d(named[named < 44], fewer["sorted_token_ids"]))
    assert found.mismatches


def test_a_run_fails_where_a_row_is_stored_that_nobody_names(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = parse_problem(BOTH.replace("scatter:40", "scatter:60"))
    code = cg.compile(cg.build(problem, "gfx942"))
    assert verdict.run(code).passed
    row = int(reference.unnamed_rows(problem, reference.fills(problem), "dst")[0])

    def spoiled(*given: Any) -> Any:
        memory, report = execute(*given)
        memory["dst"].touch(np.array([row * N * 4]), 1)
        memory["dst"].data[row * N * 4] ^= 1
        return memory, report

    monkeypatch.setattr(verdict, "execute", spoiled)
    outcome = verdict.run(code)
    assert outcome.mismatches == 1
    assert outcome.first[0].index == (row, 0)


# ---------------------------------------------------------------- the request


SUMMED = [
    f"--dt=f32 {GROUPS} --routing=scatter:20:2 --attr-post-ops=mul:f32:1 {SIZES}",
    f"--dt=bf16 {GROUPS} --routing=scatter:8:5 --attr-post-ops=mul:f32:1 40x{K}:{EXPERTS}x{K}x33",
    f"--dt=f16 {GROUPS} --routing=gather:20:2+scatter:20:3 --attr-post-ops=relu+mul:f32:1 {SIZES}",
    f"--dt=s8:s8:f16 {GROUPS} --routing=scatter:20:2 --attr-scales=src:1+wei:5 --attr-post-ops=mul:f32:1 {SIZES}",
    f"--dt=f16:f16:f32 --dtag=ba {GROUPS} --routing=scatter:20:2 {SIZES}",
    f"--dt=s8:s8:s32 {GROUPS} --routing=gather:20:2+scatter:20:2 {SIZES}",
    f"--dt=f16 {GROUPS} --routing=gather:20:3+scatter:9:2 --attr-post-ops=mul:f32:1 {SIZES}",
    f"--dt=f16:f16:f32 --attr-post-ops=relu:-1 {GROUPS} --routing=gather:2:4+scatter:60:2 {SIZES}",
    f"--dt=bf16 --attr-post-ops=hardswish:0.5:1+mul:f32:1 {GROUPS} --routing=scatter:19:2 {SIZES}",
    f"--dt=f16:f16:u8 --bia-dt=f16 --bia_mask=2 {GROUPS} --routing=scatter:10:4 {SIZES}",
]


@pytest.mark.parametrize(("line", "target"), always(
    [(line, target) for target in TARGETS for line in SUMMED], lambda n, _: n // 3 % 3 == 1
))  # fmt: skip
def test_slots_of_a_token_are_summed(line: str, target: str) -> None:
    """Some numbers of the fill name no row, so some slots have none: they add zero."""
    code = compiled(line, target)
    outcome = verdict.run(code, seed=0)
    expect_right(outcome)
    assert [launch.kernel.rpartition("_")[2] for launch in code.record.launches] == ["begin", "main", "sum"]


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_80", "sm_90a"])
@pytest.mark.parametrize("seed", range(3))
def test_sums_over_slots_are_those_of_numpy(target: str, seed: int) -> None:
    """Experts are empty, tokens have fewer slots than TOPK, or none; sums of f32 are rounded once to bf16."""
    rng = np.random.default_rng(seed)
    tokens, topk, count = int(rng.integers(3, 12)), int(rng.integers(2, 5)), int(rng.integers(5, 60))
    line = f"--grouped=0:{EXPERTS}:{count}+0+0+0+0 --routing=scatter:{tokens}:{topk} --attr-post-ops=mul:f32:1"
    code = compiled(f"--dt=f16:f16:bf16 {line} {count}x{K}:{EXPERTS}x{K}x{N}", target)
    ids = rng.permutation(max(count, tokens * topk))[:count].astype(np.int32)
    ends = np.sort(rng.integers(0, count + 1, EXPERTS)).astype(np.int32)
    src, wei = small((count, K), seed), small((EXPERTS, K, N), seed + 1)
    weights = rng.integers(1, 9, (tokens * topk, 1)).astype(np.float32) / 8
    got = cg.simulate(code, src=src, wei=wei, offsets=ends, sorted_token_ids=ids, post_op_0=weights)
    wanted: Floats = np.zeros((tokens, N))
    for m in range(int(ends[-1])):
        if ids[m] < tokens * topk:
            expert = int(np.searchsorted(ends, m, "right"))
            row = src[m].astype(np.float64) @ wei[expert].astype(np.float64)
            wanted[ids[m] // topk] += row * weights[ids[m]]
    assert np.array_equal(got.astype(np.float64), wanted.astype(got.dtype).astype(np.float64))


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90a"])
def test_sums_that_f32_rounds_are_right_in_the_order_of_lanes(target: str) -> None:
    """Products of two sums of s8 have up to 31 bits; lanes add slots in another order than the reference."""
    line = "--dt=s8:s8:f32 --attr-post-ops=glu:interleaved:abs --grouped=0:1:26 --routing=scatter:4:9"
    expect_right(verdict.run(compiled(f"{line} 26x33:1x33x32", target)))


def test_ranges_of_sums_are_points_where_f32_adds_exactly() -> None:
    def of(*values: float) -> Range:
        return Range.of([np.array(values, np.float32)])

    total = summed([of(2.0**24, 1, np.inf), of(1, 2.0**-20, 1), of(-(2.0**24), -1, -np.inf)])
    assert (total.least[1], total.most[1]) == (2.0**-20, 2.0**-20)
    assert -8 < total.least[0] <= 0 < 1 <= total.most[0] < 8
    assert total.nan.tolist() == [False, False, True]
    whole = summed([of(3, 2.0**23, 0.5), of(5, 1, -0.25)])
    assert whole.is_one
    assert whole.least.tolist() == [8, 2.0**23 + 1, 0.25]


def test_sampled_tiles_of_sums_need_all_rows() -> None:
    code = compiled(SUMMED[0], "gfx942")
    outcome = verdict.run(code, groups=1, seed=1)
    assert outcome.passed
    assert outcome.checked


def test_the_reference_of_sums_is_that_of_plain_indexing() -> None:
    problem = parse_problem(SUMMED[0])
    inputs = {name: np.asarray(fill) for name, fill in reference.fills(problem).items()}
    group = np.searchsorted(inputs["offsets"], np.arange(40), "right")
    wanted: Floats = np.zeros((20, N))
    for m, slot in enumerate(inputs["sorted_token_ids"]):
        if slot < 40:
            row = inputs["src"][m].astype(np.float64) @ inputs["wei"][group[m]].astype(np.float64)
            wanted[slot // 2] += row * inputs["post_op_0"][slot]
    assert np.array_equal(reference.whole(problem, inputs, "dst"), wanted)


def test_slots_without_a_row_are_zeros_because_a_launch_fills_them() -> None:
    """Without its first launch the sums have what memory holds."""
    code = compiled(SUMMED[0], "gfx942")
    assert verdict.run(code).passed
    main, total = code.record.launches[1:]
    fewer = evolve(code, record=evolve(code.record, launches=(main, total)))
    arrays = {name: np.asarray(fill) for name, fill in reference.fills(parse_problem(SUMMED[0])).items()}
    memory = execute(fewer.record, fewer.object, arrays)[0]
    got = memory["dst"].data[: 20 * N * 4].view(np.float32).reshape(20, N)
    assert not np.array_equal(got, reference.whole(parse_problem(SUMMED[0]), arrays, "dst"))


def test_a_routing_is_printed_as_it_is_read() -> None:
    for line in (FIRST, BOTH, SECOND, "--grouped=0:2:3+0 --routing=gather:7 3x4:2x4x5"):
        assert parse_problem(str(parse_problem(line))) == parse_problem(line)
        assert f"--routing={parse_problem(line).knob_texts['routing']} " in line
    assert Routing.parse("gather:7:2+scatter:14") == Routing(Gather(7, 2), Scatter(14))
    assert Routing.parse("scatter:7:2") == Routing(scatter=Scatter(7, 2))
    assert str(Routing.parse("gather:7:2+scatter:7:2")) == "gather:7:2+scatter:7:2"
    assert Routing.parse("") is None
    summed = parse_problem(SUMMED[0])
    assert isinstance(summed, cg.Matmul)
    assert summed.dst_dims == (20, N)
    assert {spec.name: spec.dims for spec in summed.inputs}["post_op_0"] == (40, 1)
    problem = parse_problem(BOTH)
    assert isinstance(problem, cg.Matmul)
    assert (problem.src_dims, problem.dst_dims) == ((TOKENS, K), (40, N))
    assert {spec.name: spec.dims for spec in problem.inputs}["sorted_token_ids"] == (40,)


@pytest.mark.parametrize(("line", "said"), [
    ("--routing=gather:7 8x16:16x8", "given a routing without groups of rows, wanted --grouped=0:"),
    ("--grouped=1:2:3+5 --routing=gather:7 16x8:8x16", "given a routing without groups of rows"),
    (f"{GROUPS} --routing=scatter:7+gather:7 {SIZES}", "wanted gather, scatter or gather+scatter"),
    (f"{GROUPS} --routing=gather {SIZES}", "given gather, wanted gather:TOKENS"),
    (f"{GROUPS} --routing=scatter:4:2:1 {SIZES}", "given scatter:4:2:1, wanted scatter:TOKENS[:TOPK]"),
    (f"--attr-post-ops=sum {GROUPS} --routing=scatter:20:2 {SIZES}", "which sums rows, and a scale,"),
    (f"--attr-scales=dst:common:2 {GROUPS} --routing=scatter:20:2 {SIZES}", "which sums rows, and a scale,"),
    ("--grouped=0:2:0+0 --routing=scatter:4:2 0x16:2x16x8", "given sums of rows of a product without rows"),
    (f"{GROUPS} --routing=gather:0 {SIZES}", "given 0, wanted at least 1"),
    (f"--dt=s4:s8:s32 {GROUPS} --routing=gather:7 {SIZES}", "wanted elements of a byte or more in a plain layout"),
    (f"--dt=f16 --dtag=aB16b {GROUPS} --routing=scatter:40 {SIZES}", "wanted elements of a byte or more"),
    (f"--dt=u8:s8:s32 --attr-zero-points=src:common:1 {GROUPS} --routing=gather:7 {SIZES}", "a zero point of src, for"),
    (f"--dt=u8:s8:s32 --attr-zero-points=wei:common:1 {GROUPS} --routing=gather:7 {SIZES}", "a zero point of wei, for"),
    (f"--dt=s8:u8:s32 {GROUPS} --routing=gather:7 {SIZES}", "weights of u8, which gfx942 multiplies as s8"),
    (f"--dt=f8_e4m3 --attr-scales=src:3:f32:1x36 {GROUPS} --routing=gather:7 {SIZES}", "a scale for each row at most"),
])  # fmt: skip
def test_routings_are_refused_in_one_line(line: str, said: str) -> None:
    with pytest.raises((cg.UserError, cg.Unsupported)) as refused:
        cg.build(parse_problem(line), "gfx942")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value).partition(":\n")[0]


@pytest.mark.parametrize(("line", "said"), [
    ("--dt=bf16 --grouped=0:2:3+5 --routing=scatter:16384:8 8x64:2x64x7168", "given slots of 3758096384 bytes"),
    ("--dt=f16 --grouped=0:2:3+5 --routing=scatter:16384:16 8x64:2x64x7168", "given slots of 7516192768 bytes"),
    ("--dt=bf16 --grouped=0:2:3+5 --routing=scatter:200000 8x64:2x64x7168", "given dst of 2867200000 bytes"),
    ("--dt=bf16 --grouped=0:2:3+5 --routing=gather:20000000 8x64:2x64x64", "given src of 2560000000 bytes"),
    ("--dt=bf16 --grouped=0:2:3+5 --attr-post-ops=add:f32:3 --routing=scatter:100000 8x64:2x64x7168",
     "given post_op_0 of 2867200000 bytes"),
    ("--dt=f16 --grouped=0:2:3+5 --routing=scatter:40000:65536 8x16:2x16x8", "given scatter:40000:65536, wanted fewer"),
    ("--dt=f16 --grouped=0:2:3+5 --routing=gather:5:500000000 8x16:2x16x8", "given gather:5:500000000, wanted fewer"),
])  # fmt: skip
@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90a"])
def test_tensors_and_slots_beyond_32_bits_are_refused_before_generation(line: str, said: str, target: str) -> None:
    with pytest.raises(cg.Unsupported, match=said) as refused:
        check_supported(parse_problem(line), get(target).facts)
    assert refused.value.rule == "size"


def test_bulk_copies_bring_no_rows_by_number() -> None:
    config = "tile=64x32x64 waves=1x4 mma=32x64x16 slots=3 copy=tensor"
    with pytest.raises(cg.UserError, match="rows of src have numbers"):
        compiled(BOTH, "sm_90a", config)
    tried: list[str] = []
    cg.build(parse_problem(BOTH), "sm_90a", tried=lambda attempt: tried.append(str(attempt.config)))
    assert not any("copy=tensor" in config for config in tried)
    assert verdict.run(compiled(SECOND, "sm_90a", config)).passed


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90a"])
def test_passes_keep_the_meaning_of_rows_by_number(target: str, tmp_path: Path) -> None:
    line = "--dt=f16 --grouped=0:3:9+0+11 --routing=gather:10:2+scatter:20 20x64:3x64x32"
    prefix = str(tmp_path / "k")
    assert cli.main(["gemm", *line.split(), "--target", target, "--check-passes", "-o", prefix, "--run"]) == 0
