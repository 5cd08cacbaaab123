"""Scales and zero points as logs tell them: along which dims they differ and their type, but often not their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from convgen.ir.caret import PointedError
from convgen.ir.error import Unsupported
from convgen.problem import attributes

#: The knob of each kind: its grammar, and the rule by which a single value that is known only at launch is refused.
_KINDS: dict[str, tuple[Callable[[str], str], str]] = {
    "attr-scales": (attributes.scales, "scales-runtime"),
    "attr-zero-points": (attributes.zero_points, "zero-points-runtime"),
}


def knob(name: str, entries: Iterable[str]) -> dict[str, str]:
    """The knob of entries `ARG:MASK[:VALUE][:TYPE[:GROUPS]]`, where a single value may be missing.

    Raises Unsupported where the grammar of the knob has no value that is known only at launch.
    """
    grammar, rule = _KINDS[name]
    said = list(entries)
    for entry in said:
        try:
            grammar(entry)
        except PointedError:
            given = f"given {entry} as {name.removeprefix('attr-')}"
            raise Unsupported(f"{given}, wanted values that are known before the launch", rule=rule) from None
    return {name: "+".join(said)} if said else {}
