"""bench/refusals.py: how often the back end refuses what the plan believes to fit."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from rich.console import Console

from convgen.problem.conv import Conv
from tests import samples

BENCH = Path(__file__).parents[2] / "bench"
#: The scalars of sums made again without padding do not suffice for instructions of 32 x 32.
REFUSED = Conv.parse(
    "mb3ic131oc131_id4od1kd1sd2dd3pd0_ih4oh3kh5sh3dh2ph0_iw4ow1kw1sw2dw3pw0",
    dir="BWD_D", dt="u8:bf16:bf16", stag="dcabe", wtag="edacb", attr_deterministic=True,
)  # fmt: skip
MOST = 2  #: configs; refused of 99 problems in 100


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("refusals")


def test_a_row_tells_what_was_refused_and_what_was_taken(refusals: ModuleType) -> None:
    row = refusals.refused(REFUSED, "gfx942")
    assert row.refusals
    assert all(why.startswith("bank s has no 1 free words") and "mma=16x16x16" in why for why in row.refusals)
    assert "mma=16x16x16" in row.config
    assert row.planned == 0


def test_a_report_has_a_line_a_target(refusals: ModuleType) -> None:
    rows = [refusals.Row("gfx942", REFUSED, 0, ("a", "b"), "tile", 1.0), refusals.Row("xehpc", REFUSED, 3, (), "", 2.0)]
    console = Console(width=160, record=True)
    console.print(refusals.report(rows))
    lines = [line.split("│")[1:-1] for line in console.export_text().splitlines() if line.startswith("│")]
    cells = {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}
    assert cells["gfx942"] == ["1", "0", "2.00", "2", "2", "2", "0.0", "1.00", "1.0"]
    assert cells["xehpc"] == ["1", "1", "0.00", "0", "0", "0", "3.0", "2.00", "2.0"]
    assert cells["all"][:6] == ["2", "1", "1.00", "2", "2", "2"]


def test_problems_are_drawn_alike_each_time(refusals: ModuleType) -> None:
    first, second = (refusals.drawn("gfx942", 3, 1) for _ in range(2))
    assert first == second
    assert len(first) == 3


@pytest.mark.sweep
def test_the_back_end_refuses_two_configs_at_most_of_99_problems_in_100(refusals: ModuleType) -> None:
    counts = [
        len(refusals.refused(problem, target).refusals)
        for target in samples.TARGETS
        for problem in refusals.drawn(target, 40, 0)
    ]
    assert np.percentile(counts, 99, method="higher") <= MOST
