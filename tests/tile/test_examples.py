"""Each example, and each that docs/tile.md shows, is right on all targets."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.in_turn(6)

ROOT = Path(__file__).parents[2]
EXAMPLES = [e for e in sorted((ROOT / "examples").glob("*.py")) if "convgen.tile" in e.read_text()]
TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpc", "xehpg", "sm_90")
SHOWN = re.findall(r"```python run\n(.*?)```", (ROOT / "docs" / "tile.md").read_text(), re.S)
_ERROR = re.compile(r"\w+ on (\w+): greatest error (\S+)\n")


def named(code: str) -> str:
    """The name of the kernel of an example in the documentation."""
    found = re.search(r"^def (\w+)\(", code, re.M)
    assert found
    return found[1]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs_by_itself_for_gfx942(example: Path) -> None:
    said = subprocess.run([sys.executable, example], check=True, capture_output=True, text=True).stdout
    found = _ERROR.fullmatch(said)
    assert found
    assert found[1] == "gfx942"
    assert float(found[2]) < 1e-3


@pytest.mark.parametrize("target", [*TARGETS, "sm_90a"])
@pytest.mark.parametrize(
    ("example", "arguments"), [("layer_norm", ()), ("attention", ("64",)), ("attention", ("128",))], ids=str
)
def test_an_example_is_right(
    example: str, arguments: tuple[str, ...], target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(ROOT / "examples" / f"{example}.py"))["main"](target, *arguments)
    found = _ERROR.fullmatch(capsys.readouterr().out)
    assert found
    assert found[1] == target
    assert float(found[2]) < 1e-3


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("code", SHOWN, ids=named)
def test_what_the_documentation_shows_is_right(code: str, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each prints comparisons with numpy, all of them true; targets stand in it by name."""
    changed = code.replace('("gfx942", "xehpc")', '("gfx942",)')
    changed = re.sub(r'"(?:gfx942|xehpc)"', f'"{target}"', changed)
    exec(compile(changed, named(code), "exec"), {})
    said = capsys.readouterr().out
    assert "True" in said
    assert "False" not in said
