"""Two kernels side by side: numbers that are those of `analyze` and `profile`, and sentences that follow from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import convgen as cg
from convgen.commands import cli
from convgen.explain import words
from convgen.explain.difference import _FOLLOWS, Difference, _is_alike, as_json
from convgen.explain.subject import Subject, of_code, of_problem
from convgen.plan.config import FIELDS, Config

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"
PROBLEM = cg.Matmul.parse("256x512:512x256", dt="f16")
TWO, ONE = (f"tile=64x64x32 waves=2x2 mma=32x32x8 slots={slots}" for slots in (2, 1))


@pytest.fixture(scope="module")
def sides() -> tuple[Subject, Subject]:
    return of_problem(PROBLEM, "gfx942", TWO), of_problem(PROBLEM, "gfx942", ONE)


def test_the_words_of_the_config_come_first(sides: tuple[Subject, Subject]) -> None:
    found = Difference.of(*sides)
    assert found.config() == [("slots", "2", "1")]
    told = found.sentences()
    assert told[0].startswith("slots is 2 in A and 1 in B (copies of the tile's inputs in shared memory")
    assert "shared bytes 16,384 to 8,192" in told[0]
    slower, factor = told[1].split(" takes ")[0], float(told[1].split(" takes ")[1].split()[0])
    a, b = (side.times.total for side in sides if side.times)
    assert slower == ("B" if b > a else "A")
    assert factor == pytest.approx(max(a, b) / min(a, b), abs=0.006)


def test_bounds_are_told(sides: tuple[Subject, Subject]) -> None:
    """Of both at once where they are the same."""
    large = of_problem(cg.Matmul.parse("2048x1024:1024x2048", dt="f16"), "gfx942")
    for found in (Difference.of(*sides), Difference.of(sides[0], large)):
        a, b = found.a.bound, found.b.bound
        told = " ".join(found.sentences())
        assert (f"Both are bound by {a}: {words.bound(a)}." in told) == (a == b)
        both = f"A is bound by {a} ({words.bound(a)}), B by {b} ({words.bound(b)})."
        assert (both in told) == (a != b)
        assert [as_json(found)[side]["bound"] for side in "ab"] == [a, b]


def test_what_is_alike() -> None:
    assert _is_alike(0.0, 0.0)
    assert _is_alike(1000.0, 1005.0)
    assert not _is_alike(1000.0, 1006.0)
    assert not _is_alike(0.0, 1.0)


def test_turned_round_it_is_the_reverse(sides: tuple[Subject, Subject]) -> None:
    there, back = Difference.of(*sides), Difference.of(*reversed(sides))
    assert back.config() == [(word, b, a) for word, a, b in there.config()]
    assert back.numbers() == {name: (b, a) for name, (a, b) in there.numbers().items()}
    assert back.stalls() == {k: (b, a) for k, (a, b) in there.stalls().items()}


def test_a_kernel_beside_itself(sides: tuple[Subject, Subject]) -> None:
    found = Difference.of(sides[0], sides[0])
    assert found.is_same
    assert found.config() == []
    assert found.sentences() == ["Both have the same instructions."]


def test_numbers_are_those_of_the_models(sides: tuple[Subject, Subject]) -> None:
    found = Difference.of(*sides)
    assert found.is_comparable
    for side in (found.a, found.b):
        assert side.launch is not None
        assert side.kernel is not None
        assert side.numbers["time, us"] == pytest.approx(side.launch.total)
        assert side.numbers["vgpr"] == side.kernel.registers["vgpr"]
        assert sum(side.stalls.values()) == pytest.approx(sum(t.stalled for t in side.timed), rel=0.02)
        assert sum(side.mix(of_loop=True).values()) == len(side.kernel.hot.lines)
        executed = side.launch.profile.instructions
        assert sum(side.mix(of_loop=False).values()) == pytest.approx(executed, rel=0.01)


def test_across_makers_and_targets_loops_are_compared(sides: tuple[Subject, Subject]) -> None:
    theirs = of_code(FOREIGN / "triton_gfx942_small_gemm_NT.hsaco", None)
    found = Difference.of(sides[0], theirs)
    assert found.is_comparable
    assert found.a.launch is None
    assert "clocks a kFLOP" in found.a.numbers
    assert found.config() == []
    xe = Difference.of(of_problem(PROBLEM, "xehpc"), sides[1])
    assert xe.sentences()[0] == "A is for xehpc, B for gfx942."
    assert xe.b.loop is not None


def test_causes_that_one_family_has_alone_are_not_compared() -> None:
    """LDS is a cause on AMD, the vector unit one on NVIDIA."""
    sides = [of_problem(cg.Matmul.parse("64x64:64x64", dt="f16"), target) for target in ("gfx942", "sm_80")]
    for pair in (sides, sides[::-1]):
        found = Difference.of(*pair)
        assert found.a.launch
        assert found.b.launch
        assert {*found.a.launch.causes} != {*found.b.launch.causes}
        assert any(text.startswith("Alone, launch would take") for text in found.sentences())


def test_a_loop_that_is_not_executed_is_none() -> None:
    layer = cg.Conv.parse("mb1ic64ih56oc64oh56kh3ph1", dir="FWD_D", dt="f16")
    unrolled = of_problem(layer, "gfx942")  # its only loops are those that make sums again
    found = Difference.of(unrolled, of_code(FOREIGN / "triton_gfx942_small_gemm_NT.hsaco", None))
    assert not found.a.has_loop
    assert found.b.has_loop
    assert not found.is_comparable
    assert any("Do not compare clocks" in sentence for sentence in found.sentences())


def test_words_have_meanings_defaults_and_consequences() -> None:
    assert _FOLLOWS.keys() == words.MEANINGS.keys() == FIELDS.keys()
    plain = Config.parse("tile=64x64x32 waves=2x2 mma=32x32x8")
    said = {word: value for word, value, _ in words.config_words(plain)}
    for word in FIELDS.keys() - said.keys():
        value = words.default(word)
        if value not in ("none", "0"):  # which no line can say
            assert Config.parse(f"{plain} {word}={value}") == plain


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = ["256x512:512x256", "--dt=f16"]
    assert cli.main(["gemm", *line, "--config", ONE, "-o", f"{tmp_path}/k"]) == 0
    assert cli.main(["diff", *line, "--config", TWO, f"{tmp_path}/k.launch.json"]) == 0
    text = capsys.readouterr().out
    assert "config  A  B\nslots   2  1\n" in text
    assert "an iteration has" in text
    assert cli.main(["diff", *line, "--config", TWO, "--config", ONE, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["config"] == {"slots": ["2", "1"]}
    assert found["a"]["config"].startswith("tile=64x64x32")
    assert f"{found['told'][0]}\n" in text
    assert cli.main(["diff", *line, "--config", TWO, "--json"]) == 0
    chosen = json.loads(capsys.readouterr().out)
    assert chosen["b"]["config"] == found["a"]["config"]
    assert chosen["a"]["config"] == cg.build(PROBLEM).config


def test_two_launches_of_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each side by its own grid, block and arguments is what its launch record says."""
    into, text = str(tmp_path), "256x512:512x256"
    for name, config in (("a", "tile=64x64x32 waves=2x2 mma=32x32x8"), ("b", "tile=128x64x32 waves=2x1 mma=32x32x8")):
        assert cli.main(["gemm", text, "--dt=f16", "--config", config, "-o", f"{into}/{name}"]) == 0
    assert cli.main(["diff", f"{into}/a.launch.json", f"{into}/b.launch.json", "--json"]) == 0
    wanted = json.loads(capsys.readouterr().out)
    sizes = ["--grid", "16", "--grid", "8", "--block", "256", "--block", "128"]
    sides = ["--arg", "src=zeros:f16:256x512", "--arg", "A:wei=zeros:f16:512x256", "--arg", "B:wei=zeros:f16:512x256"]
    command = ["diff", f"{into}/a.hsaco", f"{into}/b.hsaco", *sizes, *sides, "--json"]
    assert cli.main([*command, "--arg", "dst=f16:256x256"]) == 0
    assert json.loads(capsys.readouterr().out)["numbers"] == wanted["numbers"]
    assert wanted["numbers"]["workgroups"] == [16, 8]
    assert cli.main([*command, "--arg", "dst=f16:256x256", "--arg", "B:dst=f17:256x256"]) == 2
    own = ["--arg", "A:dst=f16:256x256", "--arg", "B:dst=f16:256x256"]
    assert cli.main([*command, "--arg", "dst=f17:256x256", *own]) == 0  # in neither
    capsys.readouterr()
    one = [
        f"{into}/a.hsaco",
        "--block",
        "256",
        *sides[:2],
        "--arg",
        "wei=zeros:f16:512x256",
        "--arg",
        "dst=f16:256x256",
    ]
    assert cli.main(["diff", *one, "--grid", "16", "--grid", "8", "--json"]) == 0
    halves = json.loads(capsys.readouterr().out)["numbers"]
    assert halves["workgroups"] == [16, 8]
    assert halves["time, us"][0] == wanted["numbers"]["time, us"][0]
