"""Scales: factors by which sums of src and weights are multiplied, and by which the destination is divided."""

from __future__ import annotations

import numpy as np

from convgen.ir.record import evolve, frozen
from convgen.ir.types import scalar
from convgen.problem import attribute_masks, attributes

ROLES = ("src", "wei", "dst")

#: Types of scales that become f32 in a kernel.
TYPES = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "e8m0")


@frozen
class Scale:
    """The scale of a tensor: a known `value`, or a tensor that differs along the dims of a mask.

    A tensor whose mask has no bits holds one element, which the kernel reads. `groups` is the number of neighbours
    along each of the last dims that share a scale.
    """

    role: str
    mask: str = "common"
    value: float | None = None
    dtype: str = "f32"
    groups: tuple[int, ...] = ()

    def __str__(self) -> str:
        value = [] if self.value is None else [attributes.number(self.value)]
        groups = "x".join(map(str, self.groups))
        says_type = groups or self.dtype != "f32" or (self.value is None and attribute_masks.is_single(self.mask))
        dtype = [self.dtype] if says_type else []
        return ":".join([self.role, self.mask, *value, *dtype, *([groups] if groups else [])])

    @property
    def is_one(self) -> bool:
        """Whether the scale is the constant 1."""
        return self.value == 1

    @property
    def number(self) -> np.float32 | None:
        """The number that a kernel holds as a constant, rounded to its type; None for a tensor.

        It is infinite where the type is too narrow.
        """
        if self.value is None:
            return None
        with np.errstate(over="ignore"):
            return np.float32(np.array(self.value).astype(scalar(self.dtype).numpy))

    @property
    def name(self) -> str:
        """The name of the tensor of scales, as an argument."""
        return f"{self.role}_scales"

    def dims(self, size: tuple[int, ...], mask: int) -> tuple[int, ...]:
        """Return the sizes of the tensor of scales, for a scaled tensor of `size`."""
        return attribute_masks.dims(size, mask, self.groups)


def read(text: str) -> tuple[Scale, ...]:
    """The scales of a text that `attributes.scales` took; a scale of 1 is none, and the last of a tensor counts."""
    scales = {scale.role: scale for scale in map(_scale, attributes.split_entries(text))}
    return tuple(scales[role] for role in ROLES if role in scales and not scales[role].is_one)


def refused(text: str) -> str:
    """The rule by which a text is refused, if there is one."""
    for entry in attributes.split_entries(text):
        argument, mask, *_ = entry.split(":")
        if argument.startswith("attr_post_op_dw"):
            return "post-op-dw"
        if attributes.role(argument) not in ROLES:
            return "scales-argument"
        if mask.lower() in attribute_masks.DYNAMIC:
            return "scales-dynamic"
        if _scale(entry).dtype not in TYPES:
            return "scales-type"
    return ""


def _scale(entry: str) -> Scale:
    role, mask, *fields = entry.split(":")
    scale = Scale(attributes.role(role), str(int(mask)) if mask.isdigit() else mask.lower())
    if attribute_masks.is_single(scale.mask) and fields and not attributes.is_type(fields[0]):
        scale = evolve(scale, value=attributes.real(fields.pop(0)))
    dtype, groups = attributes.typed(fields)
    return evolve(scale, dtype=dtype or scale.dtype, groups=groups)
