"""docs/silicon.md and README show what docs/silicon.json holds."""

from __future__ import annotations

import json
from pathlib import Path

from lib import cuda_report

from tests.conftest import blessing

ROOT = Path(__file__).parents[1]
PROBLEMS = ("listed", "drawn")
FOUND = json.loads((ROOT / "docs" / "silicon.json").read_text())


def test_the_page_shows_the_figures_of_the_json() -> None:
    page = ROOT / "docs" / "silicon.md"
    text = page.read_text()
    wanted = cuda_report.filled(text, cuda_report.page_parts(FOUND))
    if blessing():
        page.write_text(wanted)
    else:
        assert text == wanted, "docs/silicon.md: look at the change, then ./dev bless"


def test_the_readme_counts_the_problems_that_ran() -> None:
    exact = sum(FOUND[name]["outcomes"]["exact"] for name in PROBLEMS if name in FOUND)
    assert f"| {exact} exact, 0 wrong |" in (ROOT / "README.md").read_text()


def test_nothing_was_wrong() -> None:
    assert not FOUND["instructions"]["differ"]
    assert not FOUND["sums"]["differ"]
    assert set(FOUND["uses"].values()) == {"right"}
    assert not any(row["errors"] for row in FOUND["sanitizer"].values())
    for name in PROBLEMS:
        assert name not in FOUND or FOUND[name]["outcomes"].keys() <= {"exact", "refused"}
