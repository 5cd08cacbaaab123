"""Gated linear units after matrix products: a function of the gate's columns, times those of up.

Expected values are computed from numpy's own product of the inputs and by the indices of vLLM's `SiluAndMul`
(x[..., :d], x[..., d:]) and of gpt-oss (x[..., ::2], x[..., 1::2]); `verdict.run` compares with the reference.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, note, reject, settings
from hypothesis import strategies as st

import convgen as cg
from convgen.backends.target import get
from convgen.choose.choose import candidates, fitting
from convgen.choose.supported import check_supported
from convgen.problem.matmul import parse_problem
from convgen.problem.post_ops import Eltwise, Glu
from convgen.run import reference, verdict
from convgen.run.code import Code
from tests.product.problems import expect_right
from tests.strategies import FIXED, SWEEP, always

TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpg", "xehpc", "sm_80", "sm_90", "sm_90a", "sm_120")
ORDERS = ("halves", "interleaved")
EXPERTS, TOKENS, TOPK, K, INNER = 5, 20, 2, 72, 40
GROUPS = f"--grouped=0:{EXPERTS}:7+0+1+20+12"

Floats = npt.NDArray[np.float64]


def compiled(line: str, target: str, config: str | None = None) -> Code:
    return cg.compile(cg.build(parse_problem(line), target, config))


def check(line: str, target: str, config: str | None = None, seed: int = 0) -> None:
    outcome = verdict.run(compiled(line, target, config), seed=seed)
    expect_right(outcome)
    assert outcome.checked


def gate_and_up(sums: Floats, order: str) -> tuple[Floats, Floats]:
    half = sums.shape[-1] // 2
    return (sums[..., :half], sums[..., half:]) if order == "halves" else (sums[..., ::2], sums[..., 1::2])


def silu(x: Floats) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        values: Floats = x / (1 + np.exp(-x))
        return values


def small(shape: tuple[int, ...], seed: int, dtype: Any = np.float16) -> Any:
    return (np.random.default_rng(seed).integers(-3, 4, shape) / 8).astype(dtype)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("target", TARGETS)
def test_the_gate_is_the_first_half_or_each_even_column(target: str, order: str) -> None:
    code = compiled(f"--dt=f16:f16:f32 --attr-post-ops=glu:{order}:swish:1 37x{K}:{K}x{2 * INNER}", target)
    src, wei = small((37, K), 1), small((K, 2 * INNER), 2)
    gate, up = gate_and_up(src.astype(np.float64) @ wei.astype(np.float64), order)
    got = cg.simulate(code, src=src, wei=wei)
    assert got.shape == (37, INNER)
    np.testing.assert_allclose(got, silu(gate) * up, rtol=4e-6, atol=1e-6)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_layer_with_experts_activates_between_its_products(target: str, order: str) -> None:
    """Mixtral's layer: w13 gathers tokens and gates, w2 weights and sums the rows of a token; experts may be empty."""
    rng = np.random.default_rng(3)
    experts = np.array([rng.choice([0, 2, 3, 4], TOPK, replace=False) for _ in range(TOKENS)]).ravel()
    ids = np.argsort(experts, kind="stable").astype(np.int32)
    routing = {"offsets": np.cumsum(np.bincount(experts, minlength=EXPERTS)).astype(np.int32), "sorted_token_ids": ids}
    x, w13 = small((TOKENS, K), 4), small((EXPERTS, K, 2 * INNER), 5)
    w2 = small((EXPERTS, INNER, K), 6, np.float32)
    weights = rng.integers(1, 5, (TOKENS * TOPK, 1)).astype(np.float32) / 4
    gate_line = f"{GROUPS} --routing=gather:{TOKENS}:{TOPK} --attr-post-ops=glu:{order}:swish:1"
    first = compiled(f"--dt=f16:f16:f32 {gate_line} 40x{K}:{EXPERTS}x{K}x{2 * INNER}", target)
    hidden = cg.simulate(first, src=x, wei=w13, **routing)
    down = f"{GROUPS} --routing=scatter:{TOKENS}:{TOPK} --attr-post-ops=mul:f32:1 40x{INNER}:{EXPERTS}x{INNER}x{K}"
    got = cg.simulate(compiled(f"--dt=f32 {down}", target), src=hidden, wei=w2, **routing, post_op_0=weights)
    wanted = np.zeros((TOKENS, K))
    for slot, expert in enumerate(experts):
        gate, up = gate_and_up(x[slot // TOPK].astype(np.float64) @ w13[expert].astype(np.float64), order)
        wanted[slot // TOPK] += silu(gate) * up @ w2[expert].astype(np.float64) * weights[slot]
    np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_80", "sm_90a"])
def test_nan_and_infinity_reach_their_own_column_alone(target: str, order: str) -> None:
    code = compiled(f"--dt=f16:f16:f32 --attr-post-ops=glu:{order}:swish:1 16x32:32x{2 * INNER}", target)
    src, wei = np.ones((16, 32), np.float16), small((32, 2 * INNER), 2)
    gates, ups = gate_and_up(np.arange(2.0 * INNER), order)
    wei[0, int(gates[3])], wei[0, int(ups[5])] = np.nan, np.inf
    wei[0, int(gates[7])], wei[0, int(gates[9])] = np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        gate, up = gate_and_up(src.astype(np.float64) @ wei.astype(np.float64), order)
        wanted = silu(gate) * up
    assert np.isfinite(wanted).sum() >= 16 * (INNER - 4)
    np.testing.assert_allclose(cg.simulate(code, src=src, wei=wei), wanted, rtol=4e-6, atol=1e-6)


IN_GROUPS = "--dt=f16:s4:f16 --attr-fpmath=f16:true --attr-scales=wei:3:f16:32x16"
LINES = [
    f"--dt=bf16 {GROUPS} --routing=gather:20:2 --wtag=abc --attr-post-ops=glu:halves:swish:1+mul:f32:3 40x72:5x72x34",
    f"--dt=f16 {GROUPS} --bia-dt=f32 --bia_mask=2 --attr-post-ops=glu:interleaved:swish:1.702+mul:f32:1 40x72:5x72x80",
    f"--dt=s8:s8:f16 {GROUPS} --attr-scales=src:1+wei:5 --attr-post-ops=glu:halves:gelu_tanh 40x72:5x72x80",
    f"--dt=f16 {GROUPS} --routing=gather:{TOKENS}:2+scatter:40 --attr-post-ops=glu:halves:relu+sum 40x72:5x72x62",
    "--dt=f16:f16:f32 --grouped=1:3:9+0+7 --attr-post-ops=glu:halves:linear:2 21x16:16x26",
    "--dt=f32 --dtag=ba --attr-post-ops=glu:halves:relu+add:f32:3 33x40:40x36",
    "--dt=f16:f16:f32 --bia-dt=f16 --bia_mask=6 --attr-post-ops=glu:halves:linear:2:1 2x33x40:2x40x26",
    "--dt=f16 --attr-scales=dst:common:2 --attr-post-ops=glu:interleaved:logistic+sum 33x40:40x26",
    f"{IN_GROUPS} --attr-post-ops=glu:halves:swish:1 33x64:64x64",
    f"{IN_GROUPS} --attr-post-ops=glu:interleaved:elu:1 33x64:64x64",
    "--dt=u8:s8:s8 --attr-zero-points=src:common:3+dst:common:1 --attr-post-ops=glu:halves:relu 33x40:40x36",
    "--dt=bf16 --runtime_dims_masks=1 --attr-post-ops=glu:halves:gelu_erf 33x40:40x36",
    "--dt=f16 --wtag=BA16a16b --attr-post-ops=glu:halves:abs 33x40:40x64",
]


@pytest.mark.parametrize(("line", "target"), always(
    [(line, target) for target in TARGETS for line in LINES], lambda n, _: n // 4 % 3 == 1
))  # fmt: skip
def test_attributes_beside_a_gated_linear_unit(line: str, target: str) -> None:
    check(line, target)


@pytest.mark.parametrize("block", [2, 4, 16, 64, 128])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90a"])
def test_blocks_of_weights_may_hold_columns_of_the_gate_and_of_up(target: str, order: str, block: int) -> None:
    check(f"--dt=f16 --wtag=aB{block}b --attr-post-ops=glu:{order}:relu 9x24:24x64", target)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90a"])
def test_a_tile_has_gate_and_up_where_an_earlier_launch_unpacks_the_weights(target: str, order: str) -> None:
    """In memory 20 columns lie between a gate and its up, more than a tile may have."""
    check(f"--dt=f16:f6_e3m2:f16 --attr-post-ops=glu:{order}:linear:2:1 4x64:64x40", target)


CONFIGS = [
    ("gfx942", "tile=32x32x64 waves=2x1 mma=16x16x16 slots=3 stages=3"),
    ("gfx942", "tile=64x32x32 waves=1x1 mma=32x32x8 slots=2 subtiles=2"),
    ("gfx942", "tile=32x32x64 waves=1x1x2 mma=16x16x16 slots=2"),
    ("gfx942", "tile=16x64x32 waves=1x1 mma=16x16x16 slots=1 map=persist:4"),
    ("xehpc", "tile=32x32x32 waves=2x2 mma=16x8x16 slots=0 prefetch=2"),
    ("xehpc", "tile=32x64x32 waves=2x2 mma=16x8x16 slots=2"),
    ("sm_80", "tile=64x32x32 waves=2x2 mma=8x16x16 slots=2"),
    ("sm_90a", "tile=64x32x64 waves=1x4 mma=32x64x16 slots=4 copy=tensor"),
    ("sm_90a", "tile=64x64x64 waves=1x4 mma=64x64x16 slots=2 map=cols+persist:3"),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("target", "config"), CONFIGS)
def test_configs_of_gated_linear_units(target: str, config: str, order: str) -> None:
    check(f"--dt=f16:f16:f32 --attr-post-ops=glu:{order}:swish:1+add:f32:2 70x128:128x96", target, config)


@pytest.mark.parametrize("group", [8, 32, 64])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("target", "config"), [
    ("sm_90", "tile=32x32x64 waves=2x2 mma=8x4x4 slots=2 in=f32"),
    ("gfx950", "tile=32x32x64 waves=2x1 mma=16x16x4 slots=2 in=f32"),
    ("xehpc", "tile=32x64x64 waves=2x4 mma=16x16x1 slots=2 in=f32"),
])  # fmt: skip
def test_gate_and_up_have_scales_of_their_own_groups(target: str, config: str, order: str, group: int) -> None:
    """A lane of sm_90 holds neighbouring columns of a tile, which are those of a gate and of its up."""
    scales = f"--attr-scales=src:3:f32:1x64+wei:3:f32:64x{group}"
    line = f"--dt=f8_e4m3:f8_e4m3:f32 {scales} --attr-post-ops=glu:{order}:linear:2:1 5x128:128x128"
    check(line, target, config)


def test_sums_in_slices_are_not_gated() -> None:
    """Slices of K are sums of a part of the terms, whose function is not that of the whole sum."""
    line = "--dt=f16 --attr-post-ops=glu:halves:swish:1 32x128:128x64"
    with pytest.raises(cg.UserError, match="slices: wanted one"):
        compiled(line, "gfx942", "tile=32x32x32 waves=1x1 mma=16x16x16 slots=1 slices=2")


def test_the_reference_is_that_of_plain_indexing() -> None:
    for order in ORDERS:
        problem = parse_problem(f"--dt=f16:f16:f32 --bia-dt=f32 --bia_mask=2 --attr-post-ops=glu:{order}:relu 9x8:8x12")
        inputs = {name: np.asarray(fill) for name, fill in reference.fills(problem).items()}
        src, wei, bias = (inputs[name].astype(np.float64) for name in ("src", "wei", "bia"))
        gate, up = gate_and_up(src @ wei + bias, order)
        assert np.array_equal(reference.whole(problem, inputs, "dst"), np.maximum(gate, 0) * up)


# ---------------------------------------------------------------- the request


def test_a_gated_linear_unit_is_printed_as_it_is_read() -> None:
    problem = parse_problem("--dt=f16 --attr-post-ops=GLU:Halves:Swish:1.0+relu 3x4:4x6")
    assert isinstance(problem, cg.Matmul)
    assert problem.post_ops[0] == Glu("halves", Eltwise("swish", 1.0))
    assert str(problem.post_ops[0]) == "glu:halves:swish:1"
    assert parse_problem(str(problem)) == problem
    assert (problem.dst_dims, problem.wei_dims, problem.n) == ((3, 3), (4, 6), 6)


@pytest.mark.parametrize(("line", "said"), [
    ("--attr-post-ops=glu 3x4:4x6", "given glu without order or function, wanted one such as glu:halves:swish:1"),
    ("--attr-post-ops=glu:halves 3x4:4x6", "given glu without order or function"),
    ("--attr-post-ops=glu:swish:1 3x4:4x6", "given the order of gate and up 'swish', wanted one of halves interleaved"),
    ("--attr-post-ops=glu:halves:add 3x4:4x6", "given the function 'add'"),
    ("--attr-post-ops=relu+glu:halves:swish:1 3x4:4x6", "after another one, wanted it first"),
    ("--attr-post-ops=glu:halves:swish:1+glu:halves:swish:1 3x4:4x6", "after another one, wanted it first"),
    ("--attr-post-ops=glu:halves:swish:1 3x4:4x7", "of 7 columns, wanted an even number"),
    ("--runtime_dims_masks=:2 --attr-post-ops=glu:halves:swish:1 3x4:4x6", "columns known at launch"),
    ("--dt=f16 --dtag=aB16b --attr-post-ops=glu:halves:swish:1 3x4:4x6", "in a plain layout"),
    ("--dt=f8_e4m3 --attr-scales=dst:mx:e8m0:1x32 --attr-post-ops=glu:halves:swish:1 3x4:4x64",
     "with scales that the result decides, wanted other scales"),
    (f"{IN_GROUPS} --attr-post-ops=glu:halves:swish:1 3x64:64x40",
     "scales of 16 columns, wanted an even number that divides the columns of the gate"),
    ("--conv --dir=FWD_D --attr-post-ops=glu:halves:swish:1 mb1ic4ih4oc4oh4kh1", "glu:halves:swish:1, wanted"),
])  # fmt: skip
def test_gated_linear_units_are_refused_in_one_line(line: str, said: str) -> None:
    with pytest.raises((cg.UserError, cg.Unsupported)) as refused:
        cg.build(parse_problem(line), "gfx942")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value).partition(":\n")[0]


# ---------------------------------------------------------------- at random

_TYPES = ("f16:f16:f32", "f16", "bf16", "f32", "s8:s8:f16", "u8:s8:f32", "bf16:bf16:f32", "f16:f16:u8")
_FUNCTIONS = ("swish:1", "swish:1.702", "gelu_tanh", "gelu_erf", "relu", "logistic", "linear:2:1", "hardswish:0.5:1")


@st.composite
def lines(draw: st.DrawFn) -> str:
    """A gated product: plain, or in groups of rows, with gathered rows, scattered ones, or sums over slots."""
    k, columns = draw(st.integers(1, 80)), draw(st.integers(1, 50))
    words = [f"--dt={draw(st.sampled_from(_TYPES))}", draw(st.sampled_from(("", "--wtag=any", "--wtag=abx")))]
    ops = [f"glu:{draw(st.sampled_from(ORDERS))}:{draw(st.sampled_from(_FUNCTIONS))}"]
    words += draw(st.sampled_from(([], ["--attr-scales=wei:common:0.5"], ["--attr-scales=src:1+wei:common:f32"])))
    ops += draw(st.sampled_from(([], ["mul:f32:1"], ["add:f32:2", "relu"])))
    words.append("--attr-post-ops=" + "+".join(ops))
    if not draw(st.booleans()):
        words += draw(st.sampled_from(([], ["--bia-dt=f32", "--bia_mask=2"])))
        return " ".join([*filter(None, words), f"{draw(st.integers(1, 70))}x{k}:{k}x{2 * columns}"])
    sizes = draw(st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(any))
    rows, topk = sum(sizes), draw(st.integers(1, 4))
    words += draw(st.sampled_from(([], ["--bia-dt=bf16", "--bia_mask=2"])))
    gather = f"gather:{draw(st.integers(1, 30))}:{topk}"
    scatter = draw(
        st.sampled_from((f"scatter:{draw(st.integers(1, 40))}", f"scatter:{draw(st.integers(1, 20))}:{topk}"))
    )
    routing = draw(st.sampled_from(("", gather, scatter, f"{gather}+{scatter}")))
    words += [f"--grouped=0:{len(sizes)}:{'+'.join(map(str, sizes))}", f"--routing={routing}" if routing else ""]
    return " ".join([*filter(None, words), f"{rows}x{k}:{len(sizes)}x{k}x{2 * columns}"])


def check_drawn(target: str, line: str, place: int) -> None:
    """Check a line with one of the first configs that fit."""
    facts, problem = get(target).facts, parse_problem(line)
    try:
        check_supported(problem, facts)
    except cg.Unsupported:
        reject()
    *_, (chosen, _) = islice(fitting(problem, candidates(problem, facts), facts), place + 1)
    note(f"{line} on {target}: {chosen.config}")
    check(line, target, str(chosen.config), place)


@settings(FIXED, max_examples=6)
@given(st.sampled_from(TARGETS), lines(), st.integers(0, 20))
def test_drawn_lines(target: str, line: str, place: int) -> None:
    check_drawn(target, line, place)


@pytest.mark.sweep
@SWEEP
@given(st.sampled_from(TARGETS), lines(), st.integers(0, 20))
def test_many_drawn_lines(target: str, line: str, place: int) -> None:
    check_drawn(target, line, place)
