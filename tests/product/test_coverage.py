"""Runs execute every instruction of kernels that keep padding out of sums: no green run passes over code."""

from __future__ import annotations

import pytest

from convgen import driver
from convgen.backends import target as targets
from convgen.backends.intel.assemble import available
from convgen.ir.record import evolve
from convgen.problem.matmul import parse_problem
from convgen.run import reference, verdict
from convgen.run.code import Code
from convgen.show import report

pytestmark = pytest.mark.in_turn(2)

NHWC = "--stag=axb --wtag=axb --dtag=axb"
CASES = {
    "plain": ("gfx942", "--dir=FWD_D --dt=f16 mb1ic16ih6oc32kh3ph1", "tile=32x32x32 waves=1x2 mma=16x16x16 slots=2"),
    "resident": ("gfx942", f"--dir=FWD_D --dt=f16 mb1ic16ih6oc32kh3ph1 {NHWC}",
                 "tile=32x32x144 waves=1x2 mma=16x16x16 slots=1 taps=resident"),
    "depthwise": ("gfx90a", "--dir=FWD_D --dt=f16 g32mb1ic32ih6oc32kh3ph1", None),
    "merged stride phases": ("gfx950", "--dir=BWD_D --dt=f16 mb1ic16ih8oc32kh3ph1sh2",
                             "tile=32x16x64 waves=2x1 mma=16x16x32 slots=2 taps=fused grids=merged"),
    "gradient of weights in slices": ("gfx942", "--dir=BWD_WB --dt=bf16 mb2ic16ih6oc32kh3ph1",
                                      "tile=32x32x16 waves=1x2 mma=16x16x16 slots=1 taps=fused slices=2 sum=last"),
    "xehpc": ("xehpc", "--dir=FWD_D --dt=f16 mb1ic16ih6oc32kh3ph1", "tile=16x32x32 waves=1x2 mma=16x8x16 slots=2"),
    "xehpg": ("xehpg", "--dir=BWD_W --dt=f16 mb2ic8ih6oc32kh3ph1",
              "tile=16x16x16 waves=2x1 mma=8x8x16 slots=1 taps=fused"),
    "sm_90": ("sm_90", "--dir=FWD_D --dt=f16 mb1ic16ih6oc32kh3ph1",
              "tile=32x32x32 waves=1x2 mma=8x16x16 slots=3 copy=direct"),
    "sm_80": ("sm_80", "--dir=BWD_W --dt=bf16 mb2ic16ih6oc32kh3ph1",
              "tile=32x32x16 waves=1x2 mma=8x16x16 slots=2 taps=fused slices=2 sum=last"),
}  # fmt: skip


def compiled(name: str) -> Code:
    target, line, config = CASES[name]
    if target.startswith("xe") and not available("12p72"):
        pytest.skip("iga64 is not installed")
    return driver.compile(driver.build(parse_problem(line), target, config))


@pytest.mark.parametrize("groups", [None, 1])
@pytest.mark.parametrize("name", CASES)
def test_no_instruction_is_left_out(name: str, groups: int | None) -> None:
    """Integers alone leave the code out that recomputes sums."""
    code = compiled(name)
    outcome = verdict.run(code, groups=groups)
    assert outcome.passed
    assert outcome.specials is not None
    missed = [f"{one.kernel}+{place.pc:#x}: {place.instruction}" for one in outcome.coverage for place in one.missed]
    assert not missed, "\n".join(missed)


def test_places_are_the_instructions_that_analysis_reads() -> None:
    code = compiled("plain")
    assert code.object is not None
    (analysed,) = targets.analyze_code(code.object, "k.hsaco").kernels
    (covered,) = verdict.run(code).coverage
    assert covered.places == len(analysed.lines)


def test_integers_alone_miss_the_code_that_recomputes_sums() -> None:
    """The offsets of what a run misses are those that assembly has behind the vote."""
    code = compiled("plain")
    assert code.problem is not None
    outcome = verdict.run(code, arrays=reference.fill(code.problem))
    (stretch,) = outcome.coverage[0].stretches
    assert len(stretch) == len(outcome.coverage[0].missed) > 40


def test_a_report_names_what_was_never_executed() -> None:
    code = compiled("plain")
    assert code.problem is not None
    outcome = verdict.run(code, arrays=reference.fill(code.problem))
    labels = report.labels_of(code, outcome)
    rows = dict(report.outcome_rows(outcome, labels))
    (one,), told = outcome.coverage, report.outcome_json(outcome, labels)["places"]
    assert rows["places"] == f"{one.executed} of {one.places} instructions executed"
    first, last = one.missed[0], one.missed[-1]
    where = f"{code.name}+{first.pc:#x} to +{last.end:#x}: {len(one.missed)} instructions from `{first.instruction}`"
    (never,) = told["never"]
    assert rows["never"] == f"{where}, behind {never['label']}"
    assert f".{never['label']}:" in code.asm
    assert (told["of"], told["executed"], never["count"]) == (one.places, one.executed, len(one.missed))
    assert (never["begin"], never["end"]) == (first.pc, last.end)


def test_a_kernel_that_multiplies_padding_fails() -> None:
    """It has no code that recomputes sums, so integers execute all of it and find nothing wrong."""
    target, line, config = CASES["plain"]
    code = driver.compile(driver.build(parse_problem(line), target, f"{config} padding=zeros"))
    assert verdict.run(code).passed
    outcome = verdict.run(evolve(code, config=code.config.replace(" padding=zeros", "")))
    assert not outcome.passed
    assert outcome.mismatches
    assert not outcome.findings
