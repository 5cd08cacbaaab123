"""A request as the reference reads it: its tensors, the dimensions along which attributes differ, the types of sums.

The reference reads only the fields of a problem that restate its text. All that follows from them is computed again
from oneDNN's and benchdnn's documentation, so that a wrong conclusion of the planner shows as a wrong result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from convgen.ir.record import evolve, frozen
from convgen.problem.conv import Conv
from convgen.problem.deconv import Deconv
from convgen.problem.fused_conv import FusedConv
from convgen.problem.grouping import Grouping
from convgen.problem.matmul import Matmul, Problem
from convgen.problem.post_ops import Binary, Glu, Operand, Prelu, Sum
from convgen.problem.routing import Routing
from convgen.problem.scales import Scale
from convgen.problem.zero_points import ZeroPoint
from convgen.run import reference_fused as fused
from convgen.run import reference_types as types
from convgen.run.reference_memory import LETTERS, Indices

Attribute = Scale | ZeroPoint

#: Tensors that each direction reads, factors first, and writes (oneDNN's Developer Guide, "Convolution").
_DIRECTIONS = {
    "FWD_B": (("src", "wei", "bia"), ("dst",)),
    "FWD_D": (("src", "wei"), ("dst",)),
    "FWD_I": (("src", "wei"), ("dst",)),
    "BWD_D": (("wei", "diff_dst"), ("diff_src",)),
    "BWD_W": (("src", "diff_dst"), ("diff_wei",)),
    "BWD_WB": (("src", "diff_dst"), ("diff_wei", "diff_bia")),
}
_ROLES = ("src", "wei", "dst")
_BYTES = ("s8", "u8", "s4", "u4")  #: sums of which are s32 (oneDNN's Developer Guide, "Data Types")
OFFSETS = "offsets"  #: the end of each group, as oneDNN's grouped memory has it
IDS = "sorted_token_ids"  #: the slot of each row, as vLLM's fused MoE has it
_COMPUTED = ("mx", "dynamic_fp")  #: policies of scales that the primitive computes (benchdnn's knobs_attr.md, "Scales")
_WIDE = ("f16", "bf16", "f32")  #: to which factors that are dequantised are rounded


@frozen
class RequestedTensor:
    """A tensor of a request: its logical size, its type by benchdnn's name, and the text of its tag or strides."""

    name: str
    dims: tuple[int, ...]
    dtype: str
    tag: str


def inputs(problem: Problem) -> tuple[RequestedTensor, ...]:
    """Return the inputs: factors, bias, a destination that sums are added to, operands of attributes, groups."""
    if isinstance(problem, FusedConv):
        asked = fused.requests(problem)
        later = (evolve(own, name=asked.named(own.name)) for own in inputs(asked.second) if own.name != "src")
        return tuple({each.name: each for each in (*inputs(asked.first), *later)}.values())
    names, _ = _names(problem)
    adds = any(isinstance(op, Sum) for op in problem.post_ops)
    own = (tensor(problem, name) for name in (*names, *(("dst",) if adds else ())))
    groups, routed = grouping(problem), routing(problem)
    ends = (_dense(OFFSETS, (groups.count,), "s32"),) if groups else ()
    ids = (_dense(IDS, (problem.m,), "s32"),) if isinstance(problem, Matmul) and routed else ()
    return (*own, *_operands(problem), *ends, *ids)


def grouping(problem: Problem) -> Grouping | None:
    """Return the groups into which rows or terms of a product are divided, if there are any."""
    return problem.grouping if isinstance(problem, Matmul) else None


def routing(problem: Problem) -> Routing | None:
    """Return the rows by number of a product, if it has any."""
    return problem.routing if isinstance(problem, Matmul) else None


def gated(problem: Problem) -> Glu | None:
    """Return the gated linear unit of a product, which has a column of dst for two of the sums; None without one."""
    first = problem.post_ops[0] if problem.post_ops else None
    return first if isinstance(first, Glu) else None


def columns_of_gate_and_up(problem: Matmul, columns: Indices) -> tuple[Indices, Indices]:
    """Return the columns of the sums from which columns of dst follow: of the gate and of up.

    Halves are those of vLLM's `SiluAndMul` (x[..., :d], x[..., d:]); gpt-oss interleaves (x[..., ::2], x[..., 1::2]).
    """
    own = gated(problem)
    assert own is not None
    if own.order == "halves":
        return columns, columns + problem.n // 2
    return 2 * columns, 2 * columns + 1


def gathers(problem: Problem) -> bool:
    """Return whether rows of src have numbers."""
    routed = routing(problem)
    return routed is not None and routed.gather is not None


def scatters(problem: Problem, output: str) -> bool:
    """Return whether rows of an output are rows of the product by number, one each."""
    routed = routing(problem)
    return output == "dst" and routed is not None and routed.scatter is not None and routed.scatter.topk == 1


def sums_slots(problem: Problem) -> bool:
    """Return whether a row of dst is the sum of the slots of a token."""
    routed = routing(problem)
    return routed is not None and routed.scatter is not None and routed.scatter.topk > 1


def slot_count(problem: Problem) -> int:
    """Return the number of slots that rows may name."""
    routed = routing(problem)
    assert routed is not None
    named = [routed.gather.tokens * routed.gather.topk] if routed.gather else []
    return max([*named, *([slots_of_dst(problem)] if routed.scatter else [])])


def slots_of_dst(problem: Problem) -> int:
    """Return the number of slots of a scattered result."""
    routed = routing(problem)
    assert routed is not None
    assert routed.scatter is not None
    return routed.scatter.tokens * routed.scatter.topk


def has_slot(problem: Problem, slots: Indices) -> npt.NDArray[np.bool_]:
    """Return whether numbers name rows of a scattered result."""
    return (slots >= 0) & (slots < slots_of_dst(problem))


def slots_of(problem: Problem, slots: Indices, rows: Indices) -> Indices:
    """Return the rows of the result for the slots of some rows of the product, 0 where there is none."""
    is_numbered = scatters(problem, "dst") or sums_slots(problem)
    return np.where(has_slot(problem, slots), slots, 0) if is_numbered else rows


def tokens_of(problem: Problem, slots: Indices) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """Return the row of src that each slot names, 0 where there is none, and whether there is one."""
    routed = routing(problem)
    assert routed is not None
    gather = routed.gather
    assert gather is not None
    exists = (slots >= 0) & (slots < gather.tokens * gather.topk)
    return np.where(exists, slots // gather.topk, 0), exists


def outputs(problem: Problem) -> tuple[RequestedTensor, ...]:
    if isinstance(problem, FusedConv):
        return outputs(fused.requests(problem).second)
    _, names = _names(problem)
    computed = (_of_attribute(problem, each) for each in problem.scales if each.mask in _COMPUTED)
    return (*(tensor(problem, name) for name in names), *computed)


def tensors(problem: Problem) -> dict[str, RequestedTensor]:
    return {each.name: each for each in (*inputs(problem), *outputs(problem))}


def tensor(problem: Problem, name: str) -> RequestedTensor:
    """Return a factor, the bias, the result, or the gradient of one of these."""
    if isinstance(problem, FusedConv) and name == "dst":
        return tensor(fused.requests(problem).second, name)
    if name == "dst_scales":
        return next(each for each in outputs(problem) if each.name == name)
    role = name.removeprefix("diff_")
    if role == "bia":
        return _dense(name, _bias_dims(problem), problem.bias_type or sum_type(problem))
    n = _ROLES.index(role)
    given = (problem.stag, problem.wtag, problem.dtag)[n]
    dtype = (problem.src_type, problem.wei_type, problem.dst_type)[n]
    return RequestedTensor(name, size(problem, role), dtype, _any(problem, role) if given == "any" else given)


def is_transposed(problem: Problem) -> bool:
    """Return whether the request is a deconvolution."""
    return isinstance(problem, Deconv)


def size(problem: Problem, role: str) -> tuple[int, ...]:
    """Return the logical size of src, wei or dst."""
    if isinstance(problem, Matmul):
        routed = problem.routing
        tokens = routed.gather.tokens if routed and routed.gather else problem.m
        rows = routed.scatter.tokens if routed and routed.scatter else problem.m
        sizes = {
            "src": (*problem.src_batch, tokens, problem.k),
            "wei": (*problem.wei_batch, problem.k, problem.n),
            "dst": (*_batch(problem), rows, problem.n // 2 if gated(problem) else problem.n),
        }
        return sizes[role]
    if isinstance(problem, FusedConv) and role == "dst":
        return size(fused.requests(problem).second, role)
    axes, groups = problem.axes[5 - problem.ndims :], problem.groups
    if role == "src":
        return (problem.mb, problem.ic, *(a.i for a in axes))
    if role == "dst":
        return (problem.mb, problem.oc, *(a.o for a in axes))
    first = (groups,) if problem.has_groups else ()
    return (*first, problem.oc // groups, problem.ic // groups, *(a.k for a in axes))


def _batch(problem: Matmul) -> tuple[int, ...]:
    """Return the dims of dst before its rows and columns: those of the factors, or groups of terms."""
    if problem.grouping:
        return (problem.grouping.count,) if problem.grouping.dim == "k" else ()
    return tuple(b if a == 1 else a for a, b in zip(problem.src_batch, problem.wei_batch, strict=True))


def mask(problem: Problem, role: str, policy: str) -> int:
    """Return the bits of a mask or of a policy over the dims of src, wei or dst (benchdnn's knobs_attr.md,
    "Scales").
    """
    if policy.isdigit():
        return int(policy)
    rank = len(size(problem, role))
    if policy in ("per_oc", "per_ocic", "per_dim_1") and isinstance(problem, Matmul):
        columns, rows = 1 << rank - 1, 1 << rank - 2
        return rows | columns if policy == "per_ocic" else columns
    if policy in ("per_oc", "per_ocic") and role == "wei" and isinstance(problem, Conv):
        outputs, channels = (2, 4) if problem.has_groups else (1, 2)
        return {"per_oc": 3 if problem.has_groups else outputs, "per_ocic": outputs | channels}[policy]
    return _policy(policy, rank)


def _policy(policy: str, rank: int) -> int:
    """Return the mask of a policy for a tensor of `rank` dims."""
    if policy in ("per_tensor", *_COMPUTED):
        return (1 << rank) - 1
    named = {"common": "", "host_scalar": "", "per_oc": "1", "per_ocic": "01"}.get(policy)
    digits = policy.removeprefix("per_dim_") if named is None else named
    return sum(1 << int(digit) for digit in digits)


def spans(problem: Problem, attribute: Attribute) -> tuple[int, ...]:
    """Return how many neighbours along each dim of src, wei or dst share a scale or zero point: all, 1, or a group."""
    whole = size(problem, attribute.role)
    bits = mask(problem, attribute.role, attribute.mask)
    groups = (*(1 for _ in whole[len(attribute.groups) :]), *attribute.groups)
    return tuple(group if bits >> n & 1 else extent for n, (extent, group) in enumerate(zip(whole, groups)))


def scale(problem: Problem, role: str) -> Scale | None:
    """Return the scale of src, wei or dst."""
    return next((each for each in problem.scales if each.role == role), None)


def computed_scale(problem: Problem) -> Scale | None:
    """Return the scale of dst that the primitive computes, if it does."""
    return next((each for each in problem.scales if each.mask in _COMPUTED), None)


def zero_point(problem: Problem, role: str) -> ZeroPoint | None:
    """Return the zero point of src, wei or dst."""
    return next((each for each in problem.zero_points if each.role == role), None)


def attribute(problem: Problem, name: str) -> Attribute | None:
    """Return the scale or the zero point whose tensor has this name; None for other tensors."""
    role, _, kind = name.partition("_")
    of_kind: dict[str, Sequence[Attribute]] = {"scales": problem.scales, "zero_points": problem.zero_points}
    return next((each for each in of_kind.get(kind, ()) if each.role == role), None)


def is_dequantised(problem: Problem) -> bool:
    """Return whether factors are dequantised before they are multiplied: if a scale differs along the sum, or if
    weights with a zero point are multiplied by floats (oneDNN's Developer Guide, "Matrix Multiplication",
    decompression).
    """
    if not isinstance(problem, Matmul) or sum_type(problem) != "f32":
        return False
    return zero_point(problem, "wei") is not None or any(differs_along_k(problem, role) for role in ("src", "wei"))


def differs_along_k(problem: Matmul, role: str) -> bool:
    """Return whether src or weights have a scale that differs along K."""
    own, dim = scale(problem, role), -1 if role == "src" else -2
    return own is not None and spans(problem, own)[dim] < problem.k


def dequantised_type(problem: Matmul) -> str:
    """Return the type to which dequantised factors are rounded: that of `--attr-fpmath`, of src, or f32; the first
    with 16 bits or more that holds all numbers of both factors.
    """
    wide = [name for name in (problem.fpmath, problem.src_type, "f32") if name in _WIDE]
    return next(to for to in wide if all(types.holds(to, name) for name in (problem.src_type, problem.wei_type)))


def sum_type(problem: Problem) -> str:
    """Return the type of sums: s32 for integers without a scale along the sum; f64 if any tensor is f64; else f32."""
    names, _ = _names(problem)
    of = dict(zip(_ROLES, (problem.src_type, problem.wei_type, problem.dst_type), strict=True))
    if all(of[name.removeprefix("diff_")] in _BYTES for name in names[:2]):
        along = isinstance(problem, Matmul) and any(differs_along_k(problem, role) for role in ("src", "wei"))
        return "f32" if along else "s32"
    return "f64" if "f64" in of.values() else "f32"


def step_type(problem: Problem, output: str) -> str:
    """Return the type in which sums are processed: f32 for s32 sums, except with an integer bias; else that of sums.

    Sums of integers become floats of 16 and 8 bits by way of f32.
    """
    result = tensor(problem, output).dtype
    narrow = types.bits(result) <= 16 and not types.is_integer(result)
    needs_f32 = problem.scales or problem.post_ops or zero_point(problem, "dst") or narrow
    adds = "bia" in _names(problem)[0]
    is_whole = not adds or not problem.bias_type or types.is_integer(problem.bias_type)
    return "f32" if sum_type(problem) == "s32" and (needs_f32 or not is_whole) else sum_type(problem)


def _names(problem: Problem) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(problem, Matmul):
        return ("src", "wei", *(("bia",) if problem.bias_type else ())), ("dst",)
    return _DIRECTIONS[problem.direction.value]


def _bias_dims(problem: Problem) -> tuple[int, ...]:
    if isinstance(problem, Conv):
        return (problem.oc,)
    if groups := grouping(problem):
        return groups.count, problem.n  # benchdnn's driver_matmul.md, `bia_mask`
    sums = (*size(problem, "dst")[:-1], problem.n)
    return tuple(extent if problem.bias_mask >> n & 1 else 1 for n, extent in enumerate(sums))


def _any(problem: Problem, role: str) -> str:
    """Return the tag for a layout that convgen may choose: channels innermost, columns of weights contiguous; with
    groups of terms, rows of src contiguous.
    """
    if isinstance(problem, Conv):
        return "abxc" if role == "wei" and problem.has_groups else "axb"
    letters, groups = LETTERS[: len(size(problem, role))], grouping(problem)
    transposed = "src" if groups and groups.dim == "k" else "wei"
    return letters[:-2] + letters[:-3:-1] if role == transposed else letters


def _operands(problem: Problem) -> Iterator[RequestedTensor]:
    """Return the tensors of scales, post-ops and zero points whose values the request does not state."""
    read = (each for each in problem.scales if each.value is None and each.mask not in _COMPUTED)
    yield from (_of_attribute(problem, each) for each in read)
    for n, op in enumerate(problem.post_ops):
        if isinstance(op, Binary | Prelu):
            yield _of_post_op(problem, f"post_op_{n}", op.operand)
        if isinstance(op, Binary) and op.condition is not None:
            yield _of_post_op(problem, f"post_op_{n}_condition", op.condition)
    yield from (_of_attribute(problem, each) for each in problem.zero_points if each.value is None)


def _of_attribute(problem: Problem, attribute: Attribute) -> RequestedTensor:
    ending = "scales" if isinstance(attribute, Scale) else "zero_points"
    each = zip(size(problem, attribute.role), spans(problem, attribute), strict=True)
    bits = mask(problem, attribute.role, attribute.mask)
    dims = tuple(-(-extent // span) if bits >> n & 1 else 1 for n, (extent, span) in enumerate(each))
    return _dense(f"{attribute.role}_{ending}", dims, attribute.dtype)


def _of_post_op(problem: Problem, name: str, operand: Operand) -> RequestedTensor:
    """Return the operand of a post-op, in the layout of its strides or tag, else in that of the destination; without
    blocks if it is 1 long along some dimension.
    """
    whole = size(problem, "dst")
    if sums_slots(problem):
        whole = slots_of_dst(problem), whole[-1]
    bits = int(operand.mask) if operand.mask.isdigit() else _policy(operand.mask, len(whole))
    dims = tuple(extent if bits >> n & 1 else 1 for n, extent in enumerate(whole))
    given = operand.strides or operand.tag
    if given != "any":
        return RequestedTensor(name, dims, operand.dtype, given)
    is_blocked = any(character.isdigit() for character in problem.dtag)
    follows = not problem.dtag[:1].isdigit() and (dims == whole or not is_blocked)
    tag = problem.dtag if follows and problem.dtag != "any" else _any(problem, "dst")
    return RequestedTensor(name, dims, operand.dtype, tag)


def _dense(name: str, dims: tuple[int, ...], dtype: str) -> RequestedTensor:
    return RequestedTensor(name, dims, dtype, LETTERS[: len(dims)])


def depth(problem: Problem) -> int:
    """Return the number of products in the longest sum."""
    if isinstance(problem, Matmul):
        return problem.k
    taps = prod(axis.k for axis in problem.axes)
    positions = problem.mb * prod(axis.i if is_transposed(problem) else axis.o for axis in problem.axes)
    channels = {"F": problem.ic, "D": problem.oc}
    end = problem.direction.value
    return positions if "_W" in end else channels["F" if end[0] == "F" else "D"] // problem.groups * taps
