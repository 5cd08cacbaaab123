"""Zero points: integers at which src, weights or the destination count as zero, in the words of benchdnn."""

from __future__ import annotations

from math import prod

import attrs

from convgen.problem import attributes, masks

_ARGUMENTS = {"src": "src", "src0": "src", "wei": "wei", "dst": "dst"}
_TYPES = ("s32", "s8", "u8", "s4", "u4")
_KNOWN = ("common", "host_scalar")  #: policies of one value, which the kernel knows


@attrs.frozen
class ZeroPoint:
    """That of one argument: a value that is known, or a tensor that differs along the dims that a policy names."""

    argument: str
    policy: str
    value: int | None = None
    dtype: str = "s32"
    groups: tuple[int, ...] = ()  #: neighbours along each of the last dims that have one

    @property
    def is_known(self) -> bool:
        return self.value is not None

    @property
    def name(self) -> str:
        """Of the tensor."""
        return f"{self.argument}_zero_points"

    def dims(self, size: tuple[int, ...], mask: int) -> tuple[int, ...]:
        """Those of the tensor, for what it is the zero of."""
        each = (*(1 for _ in size[len(self.groups) :]), *self.groups)
        return masks.dims(tuple(-(-extent // count) for extent, count in zip(size, each)), mask)

    def __str__(self) -> str:
        value = [] if self.value is None else [str(self.value)]
        groups = "x".join(map(str, self.groups))
        dtype = [self.dtype] if groups or self.dtype != "s32" else []
        return ":".join([self.argument, self.policy, *value, *dtype, *([groups] if groups else [])])


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
        if groups and argument != "wei":
            return "zero-points-groups"
        if argument not in _ARGUMENTS or (dtype.removeprefix("dnnl_") or "s32") not in _TYPES:
            return "zero-points"
        if policy in ("mx", "dynamic_fp"):
            return "zero-points"
    return ""


def _is_known(policy: str) -> bool:
    return policy in _KNOWN or (policy.isdigit() and not int(policy))


def _read(entry: str) -> ZeroPoint:
    argument, policy, *fields = entry.lower().split(":")
    is_known = _is_known(policy)
    value = int(float(fields[0])) if is_known and fields else 0
    dtype, groups = (*fields[is_known:], "", "")[:2]
    each = tuple(map(int, groups.split("x"))) if groups else ()
    known = "common" if is_known else policy
    named = dtype.removeprefix("dnnl_") or "s32"
    return ZeroPoint(_ARGUMENTS[argument], known, value if is_known else None, named, each if prod(each) != 1 else ())
