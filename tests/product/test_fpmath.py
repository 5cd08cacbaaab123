"""Factors of f32 that `--attr-fpmath` lets be rounded, run on the strict simulators, exactly right."""

from __future__ import annotations

from random import Random

import pytest

from convgen import driver
from convgen.backends.target import get
from convgen.choose.choose import candidates
from convgen.ir.error import Unsupported
from convgen.ir.types import Type, bf16, f16, f32
from convgen.plan.atoms import input_atoms
from convgen.plan.config import Config
from convgen.problem.matmul import Problem, parse_problem
from convgen.run import verdict
from tests.product.problems import expect_right, right
from tests.strategies import always

TARGETS = "gfx90a", "gfx942", "gfx950", "xehpg", "xehpc", "sm_80", "sm_90a"
MODES = "bf16", "f16", "any", "tf32"
#: what is special -> the problem's line, without the mode
CASES = {
    "a product": "--dt=f32 33x96:96x48",
    "along rows": "--dt=f32 --stag=ba --wtag=ab 33x100:100x48",
    "one of 16 bits": "--dt=f32:bf16:f32 --wtag=ba 17x64:64x32",
    "a bias": "--dt=f32 --bia_dt=f32 17x64:64x32",
    "forward": "--dir=FWD_B --dt=f32 mb2ic16ih7oc24kh3ph1",
    "gradients of data": "--dir=BWD_D --dt=f32 mb2ic16ih7oc24kh3sh2ph1",
    "gradients of weights": "--dir=BWD_W --dt=f32 --stag=abx --wtag=abx --dtag=abx mb2ic16ih7oc24kh3ph1",
}


def problem_of(name: str, mode: str) -> Problem:
    return parse_problem(f"--attr-fpmath={mode} {CASES[name]}")


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(
    ("name", "mode", "target"),
    always(
        [(n, m, t) for t in TARGETS for m in MODES for n in CASES],
        lambda n, case: case in {("a product", "bf16", "sm_90a"), ("forward", "f16", "gfx942")},
    ),
)
def test_results_are_exact(name: str, mode: str, target: str) -> None:
    expect_right(verdict.run(driver.compile(driver.build(problem_of(name, mode), target))))


@pytest.mark.parametrize(
    ("mode", "types", "wanted"),
    [
        ("strict", "f32", {f32}),
        ("tf32", "f32", {f32}),
        ("bf16", "f32", {f32, bf16}),
        ("f16", "f32", {f32, f16}),
        ("any", "f32", {f32, bf16}),
        ("bf16", "f32:bf16:f32", {bf16}),
        ("bf16", "f32:f16:f32", {f32}),
        ("bf16", "f16", {f16}),
    ],
)
def test_a_mode_lets_factors_be_rounded_to_its_type(mode: str, types: str, wanted: set[Type]) -> None:
    problem = parse_problem(f"--dt={types} --attr-fpmath={mode} 64x64:64x64")
    assert {atom.a_elem for atom in input_atoms(problem, get("sm_90a").facts)} == wanted


def test_large_products_of_f32_are_multiplied_in_16_bits() -> None:
    problem = parse_problem("--dt=f32 --attr-fpmath=bf16 4096x4096:4096x4096")
    config = Config.parse(driver.build(problem, "sm_90a").config)
    assert (config.packed, config.copy, config.packs_converted) == (("src", "wei"), ("tensor",), True)


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_random_configs_are_right(target: str) -> None:
    random, ran = Random(f"fpmath {target}"), 0
    while ran < 20:
        problem = problem_of(random.choice(list(CASES)), random.choice(MODES))
        ranking = candidates(problem, get(target).facts)
        try:
            ran += right(problem, target, str(ranking[random.randrange(min(len(ranking) - 1, 400))].config)) is not None
        except Unsupported:
            continue
