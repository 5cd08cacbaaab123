"""Processor time, in any Python: other compilers' Pythons may lack the packages that this project needs."""

from __future__ import annotations

from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage


def processor_seconds() -> float:
    """Return the processor seconds of this process and of its ended children so far."""
    return sum(use.ru_utime + use.ru_stime for use in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))
