"""Types of src, weights and dst in any combination: supported ones are generated, and docs/generate.md lists them."""

from __future__ import annotations

import random
import re
from itertools import product
from pathlib import Path

import pytest

import convgen as cg
from convgen.backends import target as targets
from convgen.commands import generate
from convgen.ir.types import f64
from convgen.problem.grammar import DATA_TYPES
from convgen.problem.matmul import parse_problem
from convgen.run import verdict

pytestmark = pytest.mark.in_turn(2)

SHAPES = {"conv": "--dir=FWD_D mb1ic16ih4oc16kh1", "gemm": "16x32:32x16"}
TARGETS = targets.names()
GENERATE = Path(__file__).parents[2] / "docs" / "generate.md"

Triple = tuple[str, str, str]

EVERY: list[Triple] = [(src, wei, dst) for src in DATA_TYPES for wei in DATA_TYPES for dst in DATA_TYPES]


def refusal(triple: Triple, target: str, driver: str) -> tuple[str, str] | None:
    """The rule and the line by which `--check` refuses; None where it says supported."""
    problem = parse_problem(f"--dt={':'.join(triple)} {SHAPES[driver]}")
    try:
        generate.check(problem, target)
    except cg.Unsupported as error:
        return error.rule, str(error)
    return None


def outcome(triple: Triple, target: str, driver: str) -> tuple[str, str] | None:
    """How the generator refuses; None where it makes code that launches kernels."""
    problem = parse_problem(f"--dt={':'.join(triple)} {SHAPES[driver]}")
    try:
        code = cg.compile(cg.build(problem, target))
    except cg.Unsupported as error:
        return error.rule, str(error)
    assert code.record.launches
    assert code.asm
    return None


def agree(triple: Triple, target: str, driver: str) -> None:
    told = refusal(triple, target, driver)
    assert outcome(triple, target, driver) == told, (triple, target, driver)
    if told is not None:
        rule, line = told
        assert rule == "types"
        assert re.fullmatch(r"given .*, wanted .*", line)


def drawn(target: str, driver: str, count: int) -> list[Triple]:
    """Some combinations, half of which are supported."""
    every = list(EVERY)
    random.Random(f"{target} {driver}").shuffle(every)
    taken = [triple for triple in every[: 16 * count] if refusal(triple, target, driver) is None]
    refused = [triple for triple in every[: 16 * count] if triple not in taken]
    return taken[:count] + refused[:count]


@pytest.mark.parametrize("driver", SHAPES)
@pytest.mark.parametrize("target", TARGETS)
def test_a_sample_is_generated_if_and_only_if_it_is_supported(target: str, driver: str) -> None:
    for triple in drawn(target, driver, 4):
        agree(triple, target, driver)


@pytest.mark.sweep
@pytest.mark.parametrize("src", DATA_TYPES)
@pytest.mark.parametrize("driver", SHAPES)
@pytest.mark.parametrize("target", TARGETS)
def test_every_combination_is_generated_if_and_only_if_it_is_supported(target: str, driver: str, src: str) -> None:
    """19^3 combinations a target and driver: an hour in all."""
    for wei, dst in product(DATA_TYPES, repeat=2):
        agree((src, wei, dst), target, driver)


@pytest.mark.parametrize(
    ("triple", "target"),
    [
        (("f16", "f16", "f64"), "gfx90a"),
        (("f32", "f32", "f64"), "gfx950"),
        (("s8", "s8", "f8_e4m3"), "gfx950"),
        (("s8", "s4", "f8_e5m2"), "gfx950"),
        (("e8m0", "f16", "f16"), "gfx942"),
        (("f8_e4m3fnuz", "e8m0", "f8_e4m3fnuz"), "xehpc"),
        (("f16", "f16", "f4_e3m0"), "gfx942"),
        (("f4_e3m0", "f16", "f16"), "gfx942"),
        (("f16", "f16", "f64"), "xehpg"),
        (("boolean", "f16", "f16"), "gfx90a"),
    ],
)
@pytest.mark.parametrize("driver", SHAPES)
def test_combinations_that_were_once_taken_and_then_refused(driver: str, triple: Triple, target: str) -> None:
    agree(triple, target, driver)


@pytest.mark.parametrize("target", ["gfx942", "gfx950", "xehpc"])
@pytest.mark.parametrize(
    "line",
    [
        "--dt=f8_e4m3fnuz:s8:u4 --dir=BWD_D mb1ic16ih4oc16kh3ph1",
        "--dt=f8_e4m3:s8:u8 --dir=BWD_D mb1ic16ih5oc16kh1sh2",  # with elements that no tap reaches
        "--dt=u8:s32:s8 --bia-dt=f32 --dir=BWD_W mb2ic16ih4oc16kh3ph1",
    ],
)
def test_gradients_that_are_sums_of_integers_have_the_type_of_their_tensor(line: str, target: str) -> None:
    """The result of BWD_D has the type of src, that of BWD_W the type of weights; a bias beside changes neither."""
    problem = parse_problem(line)
    generate.check(problem, target)
    assert verdict.run(cg.compile(cg.build(problem, target))).passed


# ---------------------------------------------------------------- the table of docs/generate.md


def table() -> dict[str, tuple[set[str], set[str]]]:
    """By the type of sums: the types of inputs and of results that a row of docs/generate.md names."""
    section = GENERATE.read_text().partition("| inputs | sums, bias | result |\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()[1:]]
    names = [tuple({*re.findall(r"`(\w+)`", cell)} for cell in (inputs, results)) for inputs, _, results in rows]
    return {sums[:3]: (own[0], own[1]) for (_, sums, _), own in zip(rows, names, strict=True)}


def stated(triple: Triple, target: str, driver: str) -> bool:
    """Whether the table has a combination."""
    (src, wei, dst), rows = triple, table()
    factors, (any_two, results) = {src, wei}, rows["f32"]
    if driver == "conv" and factors & {"e8m0", "f6_e2m3", "f6_e3m2"}:
        return False
    if factors <= rows["s32"][0]:
        return dst in rows["s32"][1]
    if "f64" in triple or "s32" in factors:
        return (
            any(a.acc is f64 for a in targets.get(target).facts.atoms)
            and dst == "f64"
            and factors <= any_two | rows["f64"][0]
        )
    return factors <= any_two and dst in results


def test_the_table_has_the_three_types_of_sums() -> None:
    assert set(table()) == {"f32", "s32", "f64"}
    assert table()["f64"] == ({"f64", "s32"}, {"f64"})


@pytest.mark.parametrize("target", TARGETS)
def test_the_table_of_types_is_true_of_a_sample(target: str) -> None:
    for triple in random.Random(target).sample(EVERY, 300):
        assert stated(triple, target, "gemm") == (refusal(triple, target, "gemm") is None), triple


@pytest.mark.sweep
@pytest.mark.parametrize("driver", SHAPES)
@pytest.mark.parametrize("target", TARGETS)
def test_the_table_of_types_is_true(target: str, driver: str) -> None:
    for triple in EVERY:
        assert stated(triple, target, driver) == (refusal(triple, target, driver) is None), triple
