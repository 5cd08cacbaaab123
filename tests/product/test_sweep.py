"""All listed problems in all directions, types, layouts and targets: one in sixty here, all with `./dev test-all`.

The whole sweep runs as batches that keep a journal in `.sweep/`: started again, it goes on where it stopped, unless the
sources have changed meanwhile.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from convgen import driver
from convgen.commands import cli
from convgen.ir.record import evolve
from convgen.problem.conv import Conv, Direction
from convgen.run import verdict
from tests.product.problems import expect_right, generated

_ROOT = Path(__file__).parents[2]
_GROUPS = 24  #: workgroups simulated of a problem; of the chosen ones fewer
_FEW_GROUPS = 8
_DIRECTIONS = "FWD_B BWD_D BWD_WB"
_BACKWARD = "BWD_D BWD_W BWD_WB"

#: (target, directions, type, tag of src and dst, every so manieth problem)
_PLAN = (
    ("gfx942", _DIRECTIONS, "f16", "any", 1),
    ("gfx942", _DIRECTIONS, "f32", "any", 1),
    ("gfx942", _DIRECTIONS, "bf16", "any", 3),
    ("gfx942", _DIRECTIONS, "f64", "any", 3),
    ("gfx942", _DIRECTIONS, "f16", "abx", 3),
    ("gfx90a", _DIRECTIONS, "f16", "any", 3),
    ("gfx950", _DIRECTIONS, "f16", "any", 3),
    ("xehpc", "FWD_D", "f16", "any", 1),
    ("xehpc", _BACKWARD, "f16", "any", 3),
    ("xehpc", "FWD_B", "bf16", "any", 4),
    ("xehpg", "FWD_D", "f16", "any", 1),
    ("xehpg", _BACKWARD, "f16", "any", 3),
    ("xehpg", "FWD_B", "bf16", "any", 4),
)


def cases(directions: str, dt: str, tag: str, step: int) -> list[Conv]:
    """The problems of one line of the plan."""
    return [
        evolve(p, direction=Direction(direction), stag=tag, dtag=tag)
        for direction in directions.split()
        for p in generated(dt)[::step]
    ]


def is_chosen(target: str, problem: Conv) -> bool:
    """One in 128, by hash."""
    return hashlib.sha256(f"{target} {problem}".encode()).digest()[0] < 256 / 128


CHOSEN = [
    pytest.param(target, p, id=f"{target} {p}")
    for target, directions, dt, tag, step in _PLAN
    for p in cases(directions, dt, tag, step)
    if is_chosen(target, p)
]


@pytest.mark.parametrize(("target", "problem"), CHOSEN)
def test_chosen_ones(target: str, problem: Conv) -> None:
    outcome = verdict.run(driver.compile(driver.build(problem, target)), groups=_FEW_GROUPS)
    assert outcome.checked
    expect_right(outcome)


def sources() -> str:
    """A digest of what makes kernels and judges them."""
    digest = hashlib.sha256()
    for folder in ("ir", "passes", "gen", "backends"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@pytest.mark.sweep
@pytest.mark.parametrize(("target", "directions", "dt", "tag", "step"), _PLAN, ids=lambda v: str(v).replace(" ", "+"))
def test_all(target: str, directions: str, dt: str, tag: str, step: int, tmp_path: Path) -> None:
    kept = _ROOT / ".sweep"
    kept.mkdir(exist_ok=True)
    journal = kept / f"{sources()}-{target}-{directions.replace(' ', '+')}-{dt}-{tag}.sqlite"
    batch = tmp_path / "problems"
    batch.write_text("".join(f"--reset {p}\n" for p in cases(directions, dt, tag, step)))
    # pytest-xdist has a worker on each core already; alone, the batch takes them all.
    jobs = ["--jobs", "1"] if "PYTEST_XDIST_WORKER" in os.environ else []
    run = ["--run", "--run-groups", str(_GROUPS), "--target", target, "--resume", str(journal)]
    assert cli.main(["batch", str(batch), *run, *jobs]) == 0
