"""Rows of the vector instruction tables (CDNA3 ISA, "Vector ALU Operations")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convgen.ir.record import frozen

Function = Callable[..., Any]


@frozen
class VectorRow:
    """One vector instruction: result types, source types, function."""

    results: tuple[str, ...]
    sources: tuple[str, ...]
    function: Function
    #: the source words that a result word depends on: "all", "words" (word k), "low" (the low word on low words only),
    #: "select" (the source that the mask picks, and the mask)
    poison: str = "all"
    transcendental: bool = False
    dot: bool = False


def row(signature: str, function: Function, **flags: Any) -> VectorRow:
    """Return a row from its signature, such as "f32 = f32 f32"."""
    results, _, sources = signature.partition("=")
    return VectorRow(tuple(results.split()), tuple(sources.split()), function, **flags)
