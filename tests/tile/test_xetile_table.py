"""The table of XeTile's integration tests says what is there."""

from __future__ import annotations

import re
from pathlib import Path

from convgen.tile.tile_kernel import TileKernel
from tests.tile import kernels, xetile_kernels

ROOT = Path(__file__).parents[2]


def rows() -> list[tuple[str, str]]:
    """What stands in docs/tile.md: XeTile's test, and the kernels here or why there are none."""
    text = (ROOT / "docs" / "tile.md").read_text()
    table = text.partition("| XeTile's test | kernel here |\n|---|---|\n")[2].partition("\n\n")[0]
    return [(name, what) for name, what in re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.M)]


def test_every_test_of_theirs_has_a_row() -> None:
    names = [name for name, _ in rows()]
    assert len(names) == len(set(names)) == 54


def test_every_kernel_that_is_named_exists_and_runs() -> None:
    """In a test of this folder, that is."""
    tests = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("test_*.py")))
    for name, what in rows():
        named = re.findall(r"`(\w+)`", what)
        assert named or what.startswith("not: "), name
        for kernel in named:
            found = getattr(xetile_kernels, kernel, None) or getattr(kernels, kernel, None)
            assert isinstance(found, TileKernel), (name, kernel)
            assert re.search(rf"\b{kernel}[(,]", tests), (name, kernel)
