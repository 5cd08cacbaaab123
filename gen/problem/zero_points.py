"""Zero points: integers at which src, weights or the destination count as zero, in the words of benchdnn."""

from __future__ import annotations

from collections.abc import Sequence

from convgen.ir.record import frozen
from convgen.problem import attribute_masks, attributes

_ARGUMENTS = ("src", "wei", "dst")
_TYPES = ("s32", "s8", "u8", "s4", "u4")


@frozen
class ZeroPoint:
    """The zero point of src, wei or dst (`role`): a known value, or a tensor that differs along the dims of a mask.

    A tensor whose mask has no bits holds one element, which the kernel reads.
    """

    role: str
    mask: str
    value: int | None = None
    dtype: str = "s32"
    groups: tuple[int, ...] = ()  #: neighbours along each of the last dims that have one

    @property
    def is_known(self) -> bool:
        return self.value is not None

    @property
    def name(self) -> str:
        """The name of the tensor of zero points."""
        return f"{self.role}_zero_points"

    def dims(self, size: tuple[int, ...], mask: int) -> tuple[int, ...]:
        """Return the sizes of the tensor of zero points, for a quantised tensor of `size`."""
        return attribute_masks.dims(size, mask, self.groups)

    def __str__(self) -> str:
        value = [] if self.value is None else [str(self.value)]
        groups = "x".join(map(str, self.groups))
        says_type = groups or self.dtype != "s32" or (self.value is None and attribute_masks.is_single(self.mask))
        dtype = [self.dtype] if says_type else []
        return ":".join([self.role, self.mask, *value, *dtype, *([groups] if groups else [])])


def read(text: str) -> tuple[ZeroPoint, ...]:
    """The zero points of a text that `attributes.zero_points` took and that is not `refused`; zeros change nothing."""
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
