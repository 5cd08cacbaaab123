"""Restrictions on register regions: one row each, with the place where it is written.

The sections named are those of Intel's programmer's reference manuals ("Register Region Restrictions"); Mesa's
brw_eu_validate.c quotes most of them, function by function, and IGC's HWConformity.cpp works round them by platform
(HWCaps.inc). Where the two differ, the row has IGC's form for the platform. Kernels of Intel's compiler break none.
"""

from __future__ import annotations

from convgen.backends.intel.sim.areas import Area, Operation
from convgen.backends.intel.sim.operands import FLOATS
from convgen.backends.intel.sim.region_rule import (
    ALIGNMENT,
    ANY,
    CROSSBAR,
    MOST_REGISTERS,
    PARAMETERS,
    VECTOR,
    InstructionRule,
    SourceRule,
)
from convgen.backends.intel.sim.region_types import BRAIN_RULES, CHANNEL_RULES, TYPE_RULES

# -- the region by itself ---------------------------------------------------------------------------------------------


def _row_crosses(op: Operation, area: Area) -> bool:
    """Return whether a row of a source lies in two registers."""
    if area.each_row or not area.is_register:
        return False
    width, grf = max(area.region.width, 1), op.grf
    starts, ends = area.places[::width], area.places[width - 1 :: width] + area.size - 1
    return bool((starts // grf != ends // grf).any())


def _splits_unevenly(op: Operation, dst: Area) -> bool:
    """Return whether a destination in two registers has more elements in one of them."""
    if not dst.is_register or dst.registers != MOST_REGISTERS:
        return False
    first = dst.places // op.grf == dst.places[0] // op.grf
    return bool(2 * first.sum() != op.lanes)


REGION_RULES = (
    SourceRule("a row is wider than the execution size", PARAMETERS, lambda op, s, n: s.region.width > op.lanes),
    SourceRule(
        "a row of one element has a horizontal stride",
        PARAMETERS,
        lambda op, s, n: s.region.width == 1 and s.region.horizontal != 0,
    ),
    SourceRule(
        "the vertical stride of the only row is not width times horizontal stride",
        PARAMETERS,
        lambda op, s, n: (
            not s.each_row
            and s.region.width == op.lanes
            and s.region.horizontal != 0
            and s.region.vertical != s.region.width * s.region.horizontal
        ),
    ),
    SourceRule(
        "the region of a single lane has strides",
        PARAMETERS,
        lambda op, s, n: (
            not s.each_row and op.lanes == s.region.width == 1 and (s.region.vertical, s.region.horizontal) != (0, 0)
        ),
    ),
    SourceRule(
        "a region without strides is wider than one element",
        PARAMETERS,
        lambda op, s, n: (s.region.vertical, s.region.horizontal) == (0, 0) and s.region.width != 1,
    ),
    SourceRule("a row crosses from register to register", PARAMETERS, lambda op, s, n: _row_crosses(op, s)),
    SourceRule(
        f"it touches more than {MOST_REGISTERS} registers",
        ALIGNMENT,
        lambda op, s, n: s.is_register and not s.each_row and s.registers > MOST_REGISTERS,
    ),
    InstructionRule(
        f"the destination touches more than {MOST_REGISTERS} registers",
        ALIGNMENT,
        lambda op, dst: dst.is_register and dst.registers > MOST_REGISTERS,
    ),
    InstructionRule(
        "math does not split its destination evenly between two registers",
        ALIGNMENT,
        lambda op, dst: op.op == "math" and _splits_unevenly(op, dst),
    ),
    InstructionRule(
        "the first channel is no multiple of the execution size",
        "Mesa, invalid_values",
        lambda op, dst: op.instruction.offset % op.lanes != 0,
    ),
)

INDIRECT_RULES = (
    SourceRule(
        "src0 addressed through a0 meets a destination of two registers",
        "IGC, needIndirectSrcForCompressedInstWA, Wa_13010473643",
        lambda op, s, n: (
            n == 0
            and s.operand.kind == "indirect"
            and not s.each_row
            and not s.is_scalar
            and op.dst is not None
            and op.dst.is_register
            and op.dst.registers > 1
        ),
        lambda platform: not platform.indirect_crossing,
    ),
)

# -- words and bytes through the narrower crossbar --------------------------------------------------------------------


def _is_out_of_reach(op: Operation, source: Area, number: int) -> bool:
    """Return whether the crossbar cannot bring a source of words or bytes to a destination of words or bytes."""
    dst = op.dst
    if dst is None or number > 1 or op.lanes == 1 or dst.operand.kind == "indirect":
        return False
    if source.each_row and source.region.width == 1:
        return False
    step = dst.region.horizontal
    if max(dst.size, source.size) >= 4 or (dst.size == 2 and step > 1) or (dst.size == 1 and step > 2):
        return False
    region = source.region
    stride = region.vertical if region.width == 1 else region.horizontal
    even = region.width == 1 or region.horizontal * region.width == region.vertical or source.each_row
    if not even and dst.start % 4:
        return True
    to, at = dst.start // dst.size, source.start // source.size
    if number == 1 and dst.size == 1 and not op.context.platform.word_source_to_bytes:
        return stride >= 2
    return not _reaches((source.size, dst.size, step), stride, even, to, at, region.width, region.vertical)


def _reaches(kind: tuple[int, int, int], stride: int, even: bool, to: int, at: int, width: int, vertical: int) -> bool:
    """Return whether a source reaches a destination, by the manual's cases.

    `kind` is (source bytes, destination bytes, destination stride). `stride` is that of the source in a row, `even`
    says whether it also holds from row to row. `to` and `at` are the first elements of destination and source in their
    registers.
    """
    if kind == (2, 2, 1):
        return stride < 2 or (stride == 2 and even and to % 16 == at // 2)
    if kind == (2, 1, 2):
        return stride < 2 or (stride == 2 and even and to % 32 == at)
    if kind == (1, 2, 1):
        fits = {4: 2 * to % 16 == at // 2, 8: 2 * to % 8 == at // 4}
        return stride < 4 or (even and fits.get(stride, False))
    if kind == (1, 1, 2):
        fits = {4: to % 32 == at // 2, 8: to % 16 == at // 4}
        return stride < 4 or (even and fits.get(stride, False))
    if kind == (1, 1, 1) and width != 2:
        fits = {2: to % 32 == at // 2, 4: to % 16 == at // 4}
        return stride < 2 or (even and fits.get(stride, False))
    if kind == (1, 1, 1):
        pairs = {
            (1, 4): to % 32 == 2 * (at // 4) and at % 2 == 0,
            (2, 4): to % 32 == at // 2,
            (4, 8): to % 32 == at // 4,
        }
        near = vertical < (2 if stride == 2 else 4) if stride <= 2 else False
        return near or pairs.get((stride, vertical), False)
    return False


CROSSBAR_RULES = (
    SourceRule(
        "words or bytes lie where the destination's words or bytes cannot be reached",
        CROSSBAR,
        _is_out_of_reach,
        lambda platform: platform.narrow_crossbar,
    ),
)

# -- vector immediates ------------------------------------------------------------------------------------------------


def _misplaces_vector(op: Operation, source: Area, number: int) -> bool:
    """Return whether a vector immediate does not fit its destination's place or stride.

    A destination of dwords takes every other number of an integer vector, which has enough of them for 4 lanes.
    """
    dst = op.dst
    if dst is None or dst.operand.kind == "indirect" or source.type not in ("v", "uv", "vf"):
        return False
    apart = (4,) if source.type == "vf" else (2, 4) if op.lanes < 8 else (2,)
    return dst.start % 16 != 0 or dst.stride not in apart


VECTOR_RULES = (
    SourceRule("a vector of numbers meets a destination that it does not fit", VECTOR, _misplaces_vector, kinds=ANY),
    SourceRule(
        "there are no vectors of floating-point numbers",
        VECTOR,
        lambda op, s, n: s.type == "vf",
        lambda platform: not platform.float_vectors,
        ANY,
    ),
    SourceRule(
        "a vector of integers meets a floating-point destination",
        VECTOR,
        lambda op, s, n: s.type in ("v", "uv") and op.dst is not None and op.dst.type in FLOATS,
        lambda platform: not platform.float_vectors,
        ANY,
    ),
)

RULES: tuple[InstructionRule | SourceRule, ...] = (
    *REGION_RULES,
    *TYPE_RULES,
    *INDIRECT_RULES,
    *CHANNEL_RULES,
    *BRAIN_RULES,
    *CROSSBAR_RULES,
    *VECTOR_RULES,
)


def violations(op: Operation) -> list[str]:
    """Return the restrictions that an instruction breaks, as messages with their documents."""
    platform, findings = op.context.platform, []
    for rule in RULES:
        if not rule.platforms(platform):
            continue
        if isinstance(rule, InstructionRule):
            if op.dst is not None and rule.is_broken(op, op.dst):
                findings.append(f"{rule.says} [{rule.source}]")
            continue
        for number, source in enumerate(op.sources):
            if source.operand.kind in rule.kinds and rule.is_broken(op, source, number):
                findings.append(f"src{number}: {rule.says} [{rule.source}]")
    return findings
