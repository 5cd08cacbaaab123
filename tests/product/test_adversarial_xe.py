"""Kept Xe kernels with loads that read as late as their waits, and threads in the orders that they like least.

Both are what hardware may do. A kernel that is right only because a load was quick, or because the threads of a
workgroup keep step, computes something else then. Findings fail a run as well.
"""

from __future__ import annotations

from functools import partial

import pytest

import convgen as cg
from convgen import driver
from convgen.backends.intel import sim
from convgen.backends.intel.assemble import available
from convgen.ir.error import ConvgenError
from convgen.plan.config import Config
from convgen.problem.matmul import parse_problem
from convgen.run import reference, verdict
from tests.conftest import FOLDER

PLATFORMS = {"xehpg": "12p71", "xehpc": "12p72", "xe2": "xe2"}  #: the assembler's names
TILES = 4  #: output tiles of a kernel that are run
ONE_TILE = 200_000_000  #: multiplications of a tile, from which on only one is run
IN_EVERY_RUN = 4  #: kernels a target, of the cheapest third; `./dev test-all` takes all


def _cases(target: str) -> list[tuple[str, str]]:
    """(problem, config) of the kept kernels of a target."""
    rows = (line.split(" | ") for line in (FOLDER / "kept" / f"{target}.txt").read_text().splitlines())
    return [(problem, config) for _, problem, config in rows]


def work(case: tuple[str, str]) -> int:
    """Return the multiplications of an output tile, those of padding counted."""
    problem, config = case
    n, m, _ = Config.parse(config).tile
    return reference.depth(parse_problem(problem)) * n * m


def complaint(target: str, problem: str, config: str, adversary: sim.Adversary) -> str | None:
    """Return what is wrong with a kernel's run under an adversary; None where nothing is."""
    try:
        code = cg.compile(driver.build(parse_problem(problem), target, config))
    except ConvgenError as error:
        return f"is refused: {error}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim, "simulate", partial(sim.simulate, adversary=adversary))
        outcome = verdict.run(code, groups=1 if work((problem, config)) > ONE_TILE else TILES)
    kinds = sorted({finding.kind for finding in outcome.findings})
    return None if outcome.passed else f"{', '.join(kinds) or 'no finding'}; {outcome.mismatches} elements wrong"


def _complaints(target: str, cases: list[tuple[str, str]], seed: int) -> list[str]:
    if not available(PLATFORMS[target]):
        pytest.skip(f"this iga64 does not know {target}")
    found = []
    for problem, config in cases:
        what = complaint(target, problem, config, sim.Adversary(seed))
        if what is not None:
            found.append(f"{problem} | {config}: {what}")
    return found


@pytest.mark.parametrize("target", PLATFORMS)
def test_a_few_kernels_do_not_depend_on_timing(target: str) -> None:
    cases = _cases(target)
    cheap = sorted(cases, key=work)[: len(cases) // 3]
    found = _complaints(target, cheap[:: len(cheap) // IN_EVERY_RUN][:IN_EVERY_RUN], 0)
    assert not found, "\n".join(found)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("target", PLATFORMS)
def test_no_kernel_depends_on_timing(target: str, seed: int) -> None:
    found = _complaints(target, _cases(target), seed)
    assert not found, "\n".join(found)
