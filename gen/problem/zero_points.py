"""Zero points: integers at which src, weights or the destination count as zero, in the words of benchdnn."""

from __future__ import annotations

from collections.abc import Sequence

from convgen.ir.record import frozen
from convgen.problem import attribute_masks, attributes
from convgen.problem.attributes import Quantity

_ARGUMENTS = ("src", "wei", "dst")
_TYPES = ("s32", "s8", "u8", "s4", "u4")


@frozen
class ZeroPoint(Quantity):
    """The zero point of a tensor."""

    default_type = "s32"
    role: str
    mask: str
    value: int | None = None
    dtype: str = default_type
    groups: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the tensor of zero points, as an argument."""
        return f"{self.role}_zero_points"


def read(text: str) -> tuple[ZeroPoint, ...]:
    """Return the zero points of a text that `attributes.zero_points` took and that is not `refused`, without zeros."""
    points = (_read(entry) for entry in attributes.split_entries(text))
    by_role = {point.role: point for point in points if point.value != 0}
    return tuple(by_role[name] for name in _ARGUMENTS if name in by_role)


def refused(text: str) -> str:
    """Return the rule that refuses a text, "" if none does."""
    for entry in attributes.split_entries(text):
        argument, policy, *fields = entry.lower().split(":")
        dtype, _ = attributes.typed(fields[_has_value(policy, fields) :])
        if (
            attributes.role(argument) not in _ARGUMENTS
            or (dtype or "s32") not in _TYPES
            or policy in attribute_masks.DYNAMIC
        ):
            return "zero-points"
    return ""


def _has_value(policy: str, fields: Sequence[str]) -> bool:
    """Whether an entry gives its one value, which the kernel knows then."""
    return attribute_masks.is_single(policy) and bool(fields) and not attributes.is_type(fields[0])


def _read(entry: str) -> ZeroPoint:
    argument, policy, *fields = entry.lower().split(":")
    role = attributes.role(argument)
    value = int(float(fields.pop(0))) if _has_value(policy, fields) else None
    policy = "common" if attribute_masks.is_single(policy) else policy
    dtype, groups = attributes.typed(fields)
    return ZeroPoint(role, policy, value, dtype or "s32", groups)
