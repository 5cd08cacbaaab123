"""How docstrings begin: with what a function returns or does, not with a clause that stands for it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("ir", "passes", "gen", "backends", "bench", "examples")

#: "What is left of a limit", "The same as a table", "Of a workgroup": the noun is missing, or stands elsewhere.
_WITHOUT_NOUN = re.compile(r'^ *"""(?P<line>(What|Whatever|Whoever|Of|The same|Same|Those)\b.*?)("""|$)', re.M)


def without_noun(source: str) -> list[str]:
    """Return the first lines of docstrings that begin without a noun or a verb."""
    return [match["line"] for match in _WITHOUT_NOUN.finditer(source)]


def test_such_beginnings_are_noticed() -> None:
    source = '"""Of a wave."""\ndef f():\n    """The same, sorted."""\ndef g():\n    """Offset of a row."""\n'
    assert without_noun(source) == ["Of a wave.", "The same, sorted."]


def test_docstrings_begin_with_what_a_function_returns_or_does() -> None:
    files = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    bad = {path.relative_to(ROOT): lines for path in files if (lines := without_noun(path.read_text()))}
    assert not bad, f"docstrings that begin with What, Of, The same or Those: {bad}"
