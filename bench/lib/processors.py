"""Time of processors, in any Python: that of other compilers need not have what this project needs."""

from __future__ import annotations

from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage


def processor_seconds() -> float:
    """Of this process so far, and of those it started that have ended."""
    return sum(use.ru_utime + use.ru_stime for use in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))
