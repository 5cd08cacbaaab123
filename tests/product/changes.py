"""Small changes to a kernel's text, for tests that want each of them to be noticed."""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class Change:
    """Line `number` of the text, from 0, becomes `text` (nothing if empty)."""

    number: int
    text: str
    what: str

    def applied(self, text: str) -> str:
        """The whole text with the change."""
        lines = text.splitlines()
        lines[self.number] = self.text
        return "\n".join(lines) + "\n"


def described(changes: Sequence[Change]) -> str:
    """A line for each."""
    return "\n".join(f"line {change.number + 1}: {change.what}" for change in changes)
