"""Masks of benchdnn: the dims of a tensor along which an attribute differs, as bits or as the name of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convgen.ir.error import Unsupported

SINGLE = ("common", "host_scalar")  #: policies of one value for the whole tensor
DYNAMIC = ("mx", "dynamic_fp")  #: policies of values that the result decides

#: policy -> its bits, where a tensor gives it no others
_BITS = {
    **dict.fromkeys(SINGLE, 0b0),
    "per_dim_0": 0b1,
    **dict.fromkeys(("per_oc", "per_dim_1"), 0b10),
    **dict.fromkeys(("per_ocic", "per_dim_01"), 0b11),
    "per_dim_2": 0b100,
    "per_dim_3": 0b1000,
}


def bits(text: str, ndims: int, own: Mapping[str, int] | None = None) -> int:
    """Return the bits of a mask over a tensor of `ndims` dims; `own` maps policies to other bits for it.

    Raises Unsupported, by the rule `mask`, for bits of dims that the tensor lacks.
    """
    policies = {**_BITS, **dict.fromkeys(("per_tensor", *DYNAMIC), (1 << ndims) - 1), **(own or {})}
    bits_of_mask = int(text) if text.isdigit() else policies.get(text)
    if bits_of_mask is None or bits_of_mask >> ndims:
        raise Unsupported(f"given the mask {text} of a tensor of {ndims} dimensions, wanted one of these", rule="mask")
    return bits_of_mask


def is_single(policy: str) -> bool:
    """Whether a policy, or bits, mean one value for the whole tensor."""
    return policy in SINGLE or (policy.isdigit() and not int(policy))


def spans(size: Sequence[int], mask: int, groups: Sequence[int] = ()) -> tuple[int, ...]:
    """Return how many neighbours along each dim of a tensor of `size` share one element: all along dims without a bit.

    `groups` gives the sizes of groups along the last dims; the last group of a dim may be shorter.
    """
    group_sizes = (*(1 for _ in size[len(groups) :]), *groups)
    pairs = zip(size, group_sizes, strict=True)
    return tuple(count if mask >> n & 1 else max(1, extent) for n, (extent, count) in enumerate(pairs))


def dims(size: Sequence[int], mask: int, groups: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the size of a tensor with one element for each group of a tensor of `size` (see `spans`)."""
    extents_and_spans = zip(size, spans(size, mask, groups), strict=True)
    return tuple(-(-extent // span) if mask >> n & 1 else 1 for n, (extent, span) in enumerate(extents_and_spans))
