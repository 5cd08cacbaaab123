"""Zero points: integers at which src, weights or the destination count as zero, in the words of benchdnn."""

from __future__ import annotations

import attrs

from convgen.problem import attributes
from convgen.problem.masks import SINGLE

_ARGUMENTS = {"src": "src", "src0": "src", "wei": "wei", "dst": "dst"}
_TYPES = ("s32", "s8", "u8")


@attrs.frozen
class ZeroPoint:
    """That of one argument: a value that is known, or a tensor that differs along the dims that a policy names."""

    argument: str
    policy: str
    value: int | None = None
    dtype: str = "s32"

    @property
    def is_known(self) -> bool:
        return self.value is not None

    @property
    def name(self) -> str:
        """Of the tensor."""
        return f"{self.argument}_zero_points"

    def __str__(self) -> str:
        value = "" if self.value is None else f":{self.value}"
        return f"{self.argument}:{self.policy}{value}" + (f":{self.dtype}" if self.dtype != "s32" else "")


def read(text: str) -> tuple[ZeroPoint, ...]:
    """The zero points of a text that `attributes.zero_points` took and that is not `refused`; zeros change nothing."""
    found = (_read(entry) for entry in attributes.split_entries(text))
    by_argument = {point.argument: point for point in found if point.value != 0}
    return tuple(by_argument[name] for name in ("src", "wei", "dst") if name in by_argument)


def refused(text: str) -> str:
    """By which rule a text is refused, if it is."""
    for entry in attributes.split_entries(text):
        argument, policy, *fields = entry.lower().split(":")
        is_known = _is_known(policy)
        dtype, groups = (*fields[is_known:], "", "")[:2]
        if groups or policy == "per_ocic":
            return "zero-points-groups"
        if argument not in _ARGUMENTS or (dtype.removeprefix("dnnl_") or "s32") not in _TYPES:
            return "zero-points"
        if policy in ("mx", "dynamic_fp"):
            return "zero-points"
    return ""


def _is_known(policy: str) -> bool:
    return policy in SINGLE or (policy.isdigit() and not int(policy))


def _read(entry: str) -> ZeroPoint:
    argument, policy, *fields = entry.lower().split(":")
    is_known = _is_known(policy)
    value = int(float(fields[0])) if is_known and fields else 0
    dtype = (*fields[is_known:], "")[0].removeprefix("dnnl_") or "s32"
    return ZeroPoint(_ARGUMENTS[argument], "common" if is_known else policy, value if is_known else None, dtype)
