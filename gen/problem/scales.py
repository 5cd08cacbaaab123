"""Scales: factors by which sums of src and weights are multiplied, and by which the destination is divided."""

from __future__ import annotations

import numpy as np

from convgen.ir.record import evolve, frozen
from convgen.ir.types import scalar
from convgen.problem import attribute_masks, attributes
from convgen.problem.attributes import Quantity

ROLES = ("src", "wei", "dst")
_OF_DEPTHWISE = tuple(f"{attributes.DEPTHWISE}{role}" for role in ("wei", "dst"))  #: roles of the post-op `dw`

#: Types of scales that become f32 in a kernel.
TYPES = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "e8m0")


#: The scales of the result that are computed: by the rule of the MX formats (OCP Microscaling Formats 1.0, 6.3), and as
#: NVFP4 has them.
COMPUTED = ("dst:mx:e8m0:1x32", "dst:dynamic_fp:f8_e4m3:1x16")


@frozen
class Scale(Quantity):
    """The scale of a tensor."""

    default_type = "f32"
    role: str
    mask: str = "common"
    value: float | None = None
    dtype: str = default_type
    groups: tuple[int, ...] = ()

    @property
    def is_one(self) -> bool:
        """Whether the scale is the constant 1."""
        return self.value == 1

    @property
    def is_dynamic(self) -> bool:
        """Whether the result decides the scale, which is then an output."""
        return self.mask in attribute_masks.DYNAMIC

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
        """Return the name of the tensor of scales, as an argument."""
        return f"{self.role}_scales"


def read(text: str) -> tuple[Scale, ...]:
    """Return the scales of a text that `attributes.scales` took, the last of each tensor, without those of 1."""
    scales = {scale.role: scale for scale in map(_scale, attributes.split_entries(text))}
    return tuple(scales[role] for role in (*ROLES, *_OF_DEPTHWISE) if role in scales and not scales[role].is_one)


def refused_beside_dw(text: str) -> str:
    """Return the rule that refuses a text beside the post-op `dw`, "" if none does."""
    for entry in attributes.split_entries(text):
        argument, mask, *_ = entry.split(":")
        if attributes.role(argument) not in (*ROLES, *_OF_DEPTHWISE):
            return "scales-argument"
        if mask.lower() in attribute_masks.DYNAMIC and str(_scale(entry)) not in COMPUTED:
            return "scales-dynamic"
        if _scale(entry).dtype not in TYPES:
            return "scales-type"
    return ""


def refused(text: str) -> str:
    """Return the rule that refuses a text without the post-op `dw`, "" if none does."""
    arguments = [entry.partition(":")[0] for entry in attributes.split_entries(text)]
    return "post-op-dw" if any(argument in _OF_DEPTHWISE for argument in arguments) else refused_beside_dw(text)


def _scale(entry: str) -> Scale:
    role, mask, *fields = entry.split(":")
    scale = Scale(attributes.role(role), str(int(mask)) if mask.isdigit() else mask.lower())
    if attribute_masks.is_single(scale.mask) and fields and not attributes.is_type(fields[0]):
        scale = evolve(scale, value=attributes.real(fields.pop(0)))
    dtype, groups = attributes.typed(fields)
    return evolve(scale, dtype=dtype or scale.dtype, groups=groups)
