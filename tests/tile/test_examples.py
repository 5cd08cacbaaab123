"""Each example runs as it is, and is right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = [
    example
    for example in sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
    if "convgen.tile" in example.read_text()
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_is_right(example: Path) -> None:
    said = subprocess.run([sys.executable, example], check=True, capture_output=True, text=True).stdout
    found = re.fullmatch(r"\w+ on gfx942: greatest error (\S+)\n", said)
    assert found
    assert float(found[1]) < 1e-3
