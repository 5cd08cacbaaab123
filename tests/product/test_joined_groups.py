"""`groups=N`: gradients of weights of several groups by one product, of which the sums within a group are stored."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen.problem.conv import Conv
from convgen.problem.matmul import parse_problem
from convgen.run import reference, verdict
from tests.product.problems import outcome_of
from tests.strategies import always

pytestmark = pytest.mark.in_turn(6)

#: Target -> configs of tiles that end within a group, and that hold several products
CONFIGS = {
    "gfx90a": ("tile=32x32x32 waves=1x1 mma=16x16x16 slots=1", "tile=64x96x32 waves=2x2 mma=16x16x16 slices=3"),
    "gfx942": ("tile=32x48x32 waves=1x1 mma=16x16x16 slots=1", "tile=64x32x32 waves=2x2 mma=16x16x16 slices=2"),
    "gfx950": ("tile=32x32x64 waves=1x2 mma=16x16x32 slots=0", "tile=96x32x32 waves=1x2 mma=16x16x32 slices=2"),
    "xehpg": ("tile=32x32x32 waves=2x2 mma=16x8x16 slots=1", "tile=32x32x16 waves=2x2 mma=16x8x16 slots=1 slices=2"),
    "xehpc": ("tile=32x48x32 waves=1x1 mma=16x8x16 slots=0", "tile=32x32x32 waves=2x2 mma=16x8x16 slots=1 slices=2"),
    "sm_80": ("tile=32x32x32 waves=2x1 mma=8x16x16 taps=fused copy=direct", "tile=96x16x32 waves=2x1 mma=8x16x16"),
    "sm_90a": ("tile=64x32x64 waves=1x4 mma=32x64x16 slots=2 taps=fused copy=direct",
               "tile=96x16x32 waves=2x1 mma=8x16x16"),
}  # fmt: skip
LINE = "--dir=BWD_W --dt=f16 --stag=axb --wtag={tag} --dtag=axb mb2g12ic48oc96ih7oh7kh3ph1"
TAGS = "axb", "abdec", "any"


def gradient(problem: Conv, arrays: dict[str, Any]) -> Any:
    """The gradient of the weights of 2-D groups by plain indexing."""
    src, diff_dst = (arrays[name].astype(np.float64) for name in ("src", "diff_dst"))
    (h, w), g = problem.axes[-2:], problem.groups
    padded = np.pad(src, ((0, 0), (0, 0), (h.p, h.p), (w.p, w.p)))
    ic, oc = problem.ic // g, problem.oc // g
    found = np.zeros((g, oc, ic, h.k, w.k))
    for n, y, x in product(range(g), range(h.k), range(w.k)):
        under = padded[:, n * ic : (n + 1) * ic, y : y + h.o * h.s : h.s, x : x + w.o * w.s : w.s]
        found[n, :, :, y, x] = np.einsum("nohw,nihw->oi", diff_dst[:, n * oc : (n + 1) * oc], under)
    return found


def drawn(problem: Conv) -> dict[str, Any]:
    """Small integers, of which every sum is exact."""
    rng = np.random.default_rng(problem.groups)
    return {t.name: rng.integers(-3, 4, t.dims).astype(reference.numpy_type(t.dtype)) for t in problem.inputs}


def compiled(line: str, target: str, config: str) -> tuple[Conv, Any]:
    problem = parse_problem(line)
    assert isinstance(problem, Conv)
    return problem, cg.compile(cg.build(problem, target, config))


@pytest.mark.parametrize("count", [2, 4, 12])
@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("target", CONFIGS)
def test_sums_within_a_group_are_stored(target: str, tag: str, count: int) -> None:
    for config in CONFIGS[target]:
        problem, code = compiled(LINE.format(tag=tag), target, f"{config} groups={count}")
        arrays = drawn(problem)
        found = cg.simulate(code, **arrays).astype(np.float64)
        assert np.array_equal(found, gradient(problem, arrays))


@pytest.mark.parametrize("target", CONFIGS)
def test_slices_are_added_by_atomics(target: str) -> None:
    line = LINE.format(tag="axb").replace("--dt=f16", "--dt=f16:f32:f16")
    config = f"{CONFIGS[target][0]} slices=2 sum=atomic groups=4"
    problem, code = compiled(line, target, config)
    arrays = drawn(problem)
    assert np.array_equal(cg.simulate(code, **arrays).astype(np.float64), gradient(problem, arrays))
    assert verdict.run(code).passed


@pytest.mark.parametrize("tag", TAGS)
def test_bulk_copies_bring_the_channels_of_several_groups(tag: str) -> None:
    config = "tile=64x64x64 waves=1x4 mma=64x64x16 slots=3 taps=fused slices=2 groups=16 copy=tensor"
    line = LINE.format(tag=tag).replace("g12ic48oc96", "g32ic128oc128")
    problem, code = compiled(line, "sm_90a", config)
    arrays = drawn(problem)
    assert np.array_equal(cg.simulate(code, **arrays).astype(np.float64), gradient(problem, arrays))


@pytest.mark.parametrize("special", [np.nan, np.inf], ids=["nan", "inf"])
@pytest.mark.parametrize("target", CONFIGS)
def test_infinities_and_nans_stay_in_their_group(target: str, special: float) -> None:
    problem, code = compiled(LINE.format(tag="axb"), target, f"{CONFIGS[target][0]} groups=4")
    arrays = drawn(problem)
    arrays["src"][1, 4 * 5 + 1, 3, 3] = special
    found, wanted = cg.simulate(code, **arrays).astype(np.float64), gradient(problem, arrays)
    others = np.arange(12) != 5
    assert np.array_equal(found[others], wanted[others])
    assert np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize("tag", TAGS)
def test_samples_of_tiles_know_which_weights_they_hold(tag: str) -> None:
    for config, count in zip(CONFIGS["gfx942"], (3, 12)):
        _, code = compiled(LINE.format(tag=tag), "gfx942", f"{config} groups={count}")
        for tiles in (1, 3):
            outcome = verdict.run(code, groups=tiles, seed=tiles)
            assert outcome.passed
            assert outcome.checked


#: layouts of src, diff_wei and diff_dst whose blocks end within a group, at its end, and behind several groups
BLOCKS = [("aBcd8b", "axb", "aBcd8b"), ("aBcd16b", "any", "aBcd16b"), ("aBcd8b", "aBCde4c4b", "axb")]


@pytest.mark.parametrize(("src", "wei", "dst"), BLOCKS)
@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90a"])
def test_groups_of_blocked_layouts_are_computed_together(target: str, src: str, wei: str, dst: str) -> None:
    line = LINE.format(tag=wei).replace("--stag=axb", f"--stag={src}").replace("--dtag=axb", f"--dtag={dst}")
    assert outcome_of(line, target, 1, f"{CONFIGS[target][0]} groups=4") == "passed"


@pytest.mark.parametrize(("src", "wei", "dst"), BLOCKS)
def test_the_chooser_takes_blocked_layouts(src: str, wei: str, dst: str) -> None:
    line = f"--dir=BWD_W --dt=f16 --stag={src} --wtag={wei} --dtag={dst} mb2g8ic64oc64ih7oh7kh3ph1"
    assert " groups=8" in cg.build(parse_problem(line), "sm_90a").config


def test_blocks_that_end_between_groups_leave_the_chooser_single_groups() -> None:
    line = "--dir=BWD_W --dt=f16 --stag=aBcd24b --wtag=axb --dtag=axb mb2g6ic48oc48ih5oh5kh3ph1"
    assert " groups=" not in cg.build(parse_problem(line), "gfx942").config
    with pytest.raises(cg.UserError, match="groups=2: given src of layout aBcd24b, wanted blocks that end where"):
        cg.build(parse_problem(line), "gfx942", f"{CONFIGS['gfx942'][0]} groups=2")


@pytest.mark.parametrize("words", ["--dir=BWD_WB", "--deconv --dir=BWD_W", "--deconv --dir=BWD_WB"])
@pytest.mark.parametrize("tag", TAGS)
def test_gradients_of_a_bias_and_of_deconvolutions(tag: str, words: str) -> None:
    line = LINE.format(tag=tag).replace("--dir=BWD_W", words)
    _, code = compiled(line, "gfx942", f"{CONFIGS['gfx942'][0]} groups=4")
    for tiles in (None, 2):
        outcome = verdict.run(code, groups=tiles, seed=1)
        assert outcome.passed
        assert outcome.checked


def test_the_chooser_takes_as_many_groups_as_fill_an_instruction() -> None:
    for channels, count in ((4, 16), (8, 8), (16, 4)):
        shape = f"mb32g32ic{32 * channels}oc{32 * channels}ih28oh28kh3ph1"
        line = f"--dir=BWD_W --dt=f16 --stag=axb --wtag=axb --dtag=axb {shape}"
        assert f" groups={count} " in cg.build(parse_problem(line), "sm_90a").config


@pytest.mark.parametrize(("line", "words", "message"), [
    (LINE.format(tag="axb").replace("BWD_W", "FWD_D"), "groups=4", "groups=4: wanted weight gradients of known sizes"),
    (LINE.format(tag="axb"), "groups=5", "groups=5: wanted weight gradients of known sizes, in a multiple of 5 groups"),
    ("--dt=f16 8x8:8x8", "groups=2", "groups=2: wanted weight gradients of known sizes"),
    (LINE.format(tag="axb"), "groups=4 phases=columns", "phases=columns: wanted backward data"),
    ("--dir=BWD_D --dt=f16 mb2g12ic48oc96ih8oh4kh3ph1sh2", "groups=4 phases=columns", "groups=4: wanted weight grad"),
    ("--dir=BWD_W --dt=f16 --wtag=Abcde8a g4mb1ic8oc16ih5kh1", "groups=4", "groups=4: blocks of 8 groups in diff_wei"),
])  # fmt: skip
def test_refused_groups(line: str, words: str, message: str) -> None:
    with pytest.raises(cg.UserError, match=message):
        cg.build(parse_problem(line), "gfx942", f"tile=32x32x32 waves=1x1 mma=16x16x16 slots=1 {words}")


def random_line(rng: random.Random) -> tuple[str, int]:
    """A random gradient of weights in groups of few channels, and a number of groups for one product."""
    groups, ic, oc = rng.choice((2, 6, 8, 12, 16)), rng.choice((1, 2, 3, 4, 8, 16)), rng.choice((1, 2, 4, 6, 8))
    size, k, stride = rng.choice((5, 8, 11)), rng.choice((1, 3)), rng.choice((1, 1, 2))
    out = (size + 2 * (k // 2) - k) // stride + 1
    types = rng.choice(("f16", "bf16", "f16:f32:f16", "bf16:f32:bf16"))
    tags = " ".join(f"--{name}={rng.choice(('axb', 'abx', 'any', 'aBcd8b'))}" for name in ("stag", "dtag"))
    shape = f"mb{rng.choice((1, 3))}g{groups}ic{groups * ic}oc{groups * oc}ih{size}oh{out}kh{k}sh{stride}ph{k // 2}"
    count = rng.choice([n for n in range(2, groups + 1) if groups % n == 0])
    return f"--dir={rng.choice(('BWD_W', 'BWD_WB'))} --dt={types} {tags} --wtag={rng.choice(TAGS)} {shape}", count


@pytest.mark.parametrize(("target", "seed"), always(
    [(target, seed) for seed in range(30) for target in CONFIGS], lambda n, _: n % 19 == 0
))  # fmt: skip
def test_random_groups_at_once(target: str, seed: int) -> None:
    """A random problem is right on a target, or is refused in one line: not all configs suit all types."""
    rng = random.Random(seed)
    line, count = random_line(rng)
    outcome = outcome_of(line, target, seed, f"{rng.choice(CONFIGS[target])} groups={count}")
    assert outcome == "passed" or outcome.startswith("given ")
