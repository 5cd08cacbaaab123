"""The constants of the time model: one entry for each kind of kernels on a chip, with its source."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files

from convgen.ir.record import frozen
from convgen.profile.closed import Terms


@frozen
class Entry:
    """The constants of one kind of kernels, and their error on the rows that they were fitted to."""

    #: maker/chip/type, `_out_` and the type of results where the table states it, further properties
    kind: str
    source: str  #: the table of measurements
    rows: int
    median: float  #: per cent; median over rows of |predicted / measured - 1|, in the measured unit
    mean: float  #: per cent; mean over rows of |predicted / measured - 1|
    bias: float  #: median of predicted / measured
    terms: Terms


@lru_cache(maxsize=1)
def known() -> dict[str, Entry]:
    """Return the entries that `launch_times.constants_for` reaches; `bench/lib/entries.py` adds those of the bench."""
    return entries((files("convgen.profile") / "constants.json").read_text())


def entries(text: str) -> dict[str, Entry]:
    """Return the entries of a file's text, by kind. Raises ValueError, KeyError or TypeError on any other text."""
    listed = [Entry(**{**entry, "terms": Terms(**entry["terms"])}) for entry in json.loads(text)["entries"]]
    return {entry.kind: entry for entry in listed}
