"""The constants of the time model, one entry for each kind of kernels on a chip, with where they are from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs

from convgen.ir.error import UserError
from convgen.ir.record import frozen
from convgen.profile.closed import Terms

_FIGURES = 4  #: significant ones of a constant


@frozen
class Entry:
    """The constants of one kind of kernels, and how well they told the rows that they were fitted to."""

    kind: str  #: chip/type, and what else tells kernels apart
    source: str  #: the table of measurements
    rows: int
    median: float  #: per cent; of |predicted / measured - 1|, over rows, in the unit of what was measured
    mean: float  #: per cent
    bias: float  #: median of predicted / measured
    terms: Terms

    def as_json(self) -> dict[str, Any]:
        """As the file has it."""
        return attrs.asdict(self)


def rounded(terms: Terms) -> Terms:
    """Constants as they are kept."""
    return Terms(**{name: float(f"{value:.{_FIGURES}g}") for name, value in attrs.asdict(terms).items()})


def read(path: Path) -> dict[str, Entry]:
    """The entries of a file, by kind.

    Raises UserError if it is not such a file.
    """
    try:
        return _entries(path.read_text())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"given {path} that does not hold constants of the time model: {error}") from None


def write(path: Path, entries: Iterable[Entry]) -> None:
    """Entries, sorted by kind."""
    found = [entry.as_json() for entry in sorted(entries, key=lambda e: e.kind)]
    path.write_text(json.dumps({"entries": found}, indent=1) + "\n")


@lru_cache(maxsize=1)
def known() -> dict[str, Entry]:
    """The entries that come with convgen."""
    return _entries((files("convgen.profile") / "constants.json").read_text())


def _entries(text: str) -> dict[str, Entry]:
    given = [Entry(**{**entry, "terms": Terms(**entry["terms"])}) for entry in json.loads(text)["entries"]]
    return {entry.kind: entry for entry in given}
