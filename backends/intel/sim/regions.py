"""Restrictions on register regions: one row each, with the place where it is written.

The sections named are those of Intel's programmer's reference manuals ("Register Region Restrictions"); Mesa's
brw_eu_validate.c quotes most of them, function by function, and IGC's HWConformity.cpp works round them, platform by
platform (HWCaps.inc says which). Where the two differ, IGC's form for the platform stands. The kernels of Intel's own
compiler keep all of these.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from convgen.backends.intel.sim.areas import INTEGERS, Area, Operation
from convgen.backends.intel.sim.operands import FLOATS
from convgen.backends.intel.sim.platforms import Platform

PARAMETERS = "PRM, General Restrictions on Regioning Parameters"
ALIGNMENT = "PRM, Region Alignment Rules"
TYPES = "PRM, General Restrictions Based on Operand Types"
CHANNELS = "PRM, Register Region Restrictions, floating-point and 64-bit data types"
MIXED = "PRM, Special Restrictions for Handling Mixed Mode Float Operations"
BRAIN = "Mesa, special_restrictions_for_mixed_float_mode; IGC, fixBFMixedMode"
HALVES = "IGC, fixUnalignedRegions, moves between f and packed hf"
THIRD = "IGC, isGoodAlign1TernarySrc and isGoodAlign1TernaryDst"
CROSSBAR = "PRM, Register Region Restrictions, Src0 and Src1 Restrictions; IGC, fixByteXBarRestriction"
VECTOR = "PRM, Immediate vectors; IGC, fixDstAlignmentWithVectorImm"

ANY = frozenset(("reg", "indirect", "imm"))
MOST_REGISTERS = 2  #: that a region may touch
MULTIPLIERS = {"mul": 1, "mac": 1, "mad": 2}  #: the source that may not be bf


@attrs.frozen
class InstructionRule:
    """What no instruction may do."""

    says: str
    source: str
    broken: Callable[[Operation, Area], bool]  #: given the destination
    platforms: Callable[[Platform], bool] = lambda platform: True


@attrs.frozen
class SourceRule:
    """What no source may do, given its number."""

    says: str
    source: str
    broken: Callable[[Operation, Area, int], bool]
    platforms: Callable[[Platform], bool] = lambda platform: True
    kinds: frozenset[str] = frozenset(("reg", "indirect"))  #: of operands that it looks at


# -- the region by itself ---------------------------------------------------------------------------------------------


def _row_crosses(op: Operation, area: Area) -> bool:
    """Whether a row of a source lies in two registers."""
    if area.each_row or not area.is_register:
        return False
    width, grf = max(area.region.width, 1), op.grf
    starts, ends = area.places[::width], area.places[width - 1 :: width] + area.size - 1
    return bool((starts // grf != ends // grf).any())


def _uneven(op: Operation, dst: Area) -> bool:
    """Whether a destination in two registers has more elements in one of them."""
    if not dst.is_register or dst.registers != MOST_REGISTERS:
        return False
    first = dst.places // op.grf == dst.places[0] // op.grf
    return bool(2 * first.sum() != op.lanes)


REGION_RULES = (
    SourceRule(
        "a row is wider than the execution size",
        PARAMETERS,
        lambda op, s, n: s.region.width > op.lanes,
    ),
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
    SourceRule(
        "a row crosses from register to register",
        PARAMETERS,
        lambda op, s, n: _row_crosses(op, s),
    ),
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
        lambda op, dst: op.op == "math" and _uneven(op, dst),
    ),
    InstructionRule(
        "the first channel is no multiple of the execution size",
        "Mesa, invalid_values",
        lambda op, dst: op.instruction.offset % op.lanes != 0,
    ),
)

# -- the destination against the type that the instruction computes in ------------------------------------------------


def _narrow_stride(op: Operation, dst: Area) -> bool:
    if op.lanes == 1 or dst.size >= op.execution_size or op.mixes_halves or "bf" in op.types:
        return False
    return (dst.stride or 0) < op.execution_size and not (dst.size == 1 and op.is_raw_move)


def _narrow_start(op: Operation, dst: Area) -> bool:
    if op.lanes == 1 or dst.size >= op.execution_size or op.mixes_halves or "bf" in op.types or not dst.is_register:
        return False
    start = dst.start % op.execution_size
    if dst.size == 1:
        beyond = op.execution_size == 4 and op.context.platform.byte_beyond_word
        return start > (3 if beyond else 1)
    return start != 0


def _half_of_integer(op: Operation, dst: Area) -> bool:
    """Whether integers become hf, or hf integers."""
    if op.lanes == 1:
        return False
    sources = {source.type for source in op.sources}
    if dst.type == "hf":
        return bool(sources & INTEGERS)
    return dst.type in INTEGERS and "hf" in sources


TYPE_RULES = (
    InstructionRule(
        "only a plain move has a packed destination of bytes",
        TYPES,
        lambda op, dst: op.lanes > 1 and dst.size == 1 and dst.is_packed and not op.is_raw_move,
    ),
    InstructionRule(
        "the destination's elements are narrower than the operation's, and not as far apart as those are wide",
        TYPES,
        _narrow_stride,
    ),
    InstructionRule(
        "the destination's elements are narrower than the operation's, and do not begin where those would",
        TYPES,
        _narrow_start,
    ),
    InstructionRule(
        "integers become hf or hf integers, and the destination is not dwords apart from a dword on",
        TYPES,
        lambda op, dst: _half_of_integer(op, dst) and (dst.stride != 4 or (dst.is_register and dst.start % 4 != 0)),
    ),
    SourceRule(
        "bytes cannot be src1 or src2",
        TYPES,
        lambda op, s, n: n > 0 and s.size == 1,
    ),
    SourceRule(
        "no conversion goes from bytes to 64 bits or back",
        TYPES,
        lambda op, s, n: op.dst is not None and {op.dst.size, s.size} == {1, 8},
    ),
    SourceRule(
        "no conversion goes from hf to 64 bits or back",
        TYPES,
        lambda op, s, n: (
            op.dst is not None and 8 in (op.dst.size, s.size) and bool({op.dst.type, s.type} & {"hf", "bf"})
        ),
    ),
    SourceRule(
        "one byte for all lanes cannot become floating point",
        "IGC, fixMov, noScalarByteToFloat",
        lambda op, s, n: op.dst is not None and op.dst.type in ("f", "hf") and s.size == 1 and s.is_scalar,
    ),
    SourceRule(
        "hf does not become d or w",
        "IGC, fixMov, noHFToInteger",
        lambda op, s, n: op.op == "mov" and op.dst is not None and s.type == "hf" and op.dst.type in ("d", "w"),
        lambda platform: not platform.half_to_integer,
    ),
    SourceRule(
        "math on hf has one element for all lanes",
        "IGC, fixMathInst, Wa_22016140776",
        lambda op, s, n: op.op == "math" and op.lanes > 1 and s.type == "hf" and (s.is_scalar or s.is_immediate),
        lambda platform: not platform.half_math_broadcast,
        ANY,
    ),
    InstructionRule(
        "sel gives words of dwords from an odd dword on",
        "IGC, fixSelCsel, hasSelWDstDwExecTypeAlignIssue",
        lambda op, dst: (
            op.op == "sel"
            and dst.type in ("w", "uw")
            and op.execution_size == 4
            and dst.is_register
            and dst.start % 8 != 0
        ),
        lambda platform: not platform.odd_word_select,
    ),
    SourceRule(
        "words from an odd one on make bytes more than a word apart",
        "IGC, fixOddAlignSrc1Region, Wa_14017715663",
        lambda op, s, n: (
            n == 1
            and s.type in ("w", "uw")
            and s.is_register
            and s.operand.sub % 2 == 1
            and op.dst is not None
            and op.dst.size == 1
            and op.dst.region.horizontal > 2
            and not op.dst.is_null
        ),
        lambda platform: not platform.odd_word_source,
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

# -- where channels lie -----------------------------------------------------------------------------------------------


def _moves_channel(op: Operation, source: Area, number: int) -> bool:
    """Whether lanes lie elsewhere in the source's register than in the destination's."""
    dst = op.dst
    if dst is None or op.lanes == 1 or number > 1 or not (op.is_float or op.is_long) or op.converts_halves:
        return False
    if source.operand.kind != "reg" or source.is_scalar or source.type == "bf" or dst.operand.kind == "indirect":
        return False
    return source.stride != dst.stride or source.start != dst.start


def _third_moves(op: Operation, source: Area, number: int) -> bool:
    """Whether src2, which cannot be regioned, lies elsewhere than the destination."""
    dst = op.dst
    if number != 2 or dst is None or op.lanes == 1 or source.operand.kind != "reg" or source.is_scalar:
        return False
    mixed = "bf" in op.types and "f" in op.types
    return source.start != dst.start or (source.stride != dst.stride and not mixed)


def _halves_apart(op: Operation, dst: Area) -> bool:
    """Whether a move between f and packed hf leaves the half register that belongs to its f operand.

    Channels of f in one register belong to either half of an hf register, at half their offset.
    """
    if not op.converts_halves or op.lanes == 1 or not dst.is_register:
        return False
    source, reach = op.sources[0], op.grf // 2
    half, full = (dst, source) if dst.type == "hf" else (source, dst)
    if full.is_immediate or full.is_scalar or not full.is_register:
        return half.start // reach != (half.start + 2 * op.lanes - 1) // reach
    return bool((full.places % op.grf // 2 != half.places % reach).any())


CHANNEL_RULES = (
    SourceRule(
        "channels lie elsewhere in its register than in the destination's",
        CHANNELS,
        _moves_channel,
    ),
    SourceRule(
        "channels of src2 lie elsewhere in its register than in the destination's",
        THIRD,
        _third_moves,
    ),
    SourceRule(
        "an architecture register takes part in a floating-point or 64-bit operation",
        CHANNELS,
        lambda op, s, n: s.operand.kind == "reg" and not s.is_register and (op.is_float or op.is_long),
    ),
    InstructionRule(
        "an architecture register takes part in a floating-point or 64-bit operation",
        CHANNELS,
        lambda op, dst: dst.operand.kind == "reg" and not dst.is_register and (op.is_float or op.is_long),
    ),
    SourceRule(
        "floating-point and 64-bit data have no address by row",
        CHANNELS,
        lambda op, s, n: s.each_row and (s.type in FLOATS or s.size == 8),
    ),
    SourceRule(
        "hf beside f has no indirect source",
        MIXED,
        lambda op, s, n: op.mixes_halves and s.operand.kind == "indirect",
    ),
    InstructionRule(
        "hf and f meet in a move only",
        "IGC, isIllegalMixedMode",
        lambda op, dst: op.op != "mov" and op.mixes_halves,
    ),
    InstructionRule(
        "more lanes of f than a register has become packed hf",
        HALVES,
        lambda op, dst: op.converts_halves and dst.type == "hf" and op.lanes > op.native_lanes,
    ),
    InstructionRule(
        "packed hf does not lie in the half register that belongs to the f operand",
        HALVES,
        _halves_apart,
    ),
)

# -- bf ---------------------------------------------------------------------------------------------------------------


def _brain_destination(op: Operation, dst: Area) -> bool:
    if dst.type != "bf" or op.lanes == 1 or not dst.is_register:
        return False
    half = dst.start % (op.grf // 2)
    return not (half == 0 if dst.is_packed else dst.region.horizontal == 2 and half in (0, 2))


BRAIN_RULES = (
    InstructionRule("all operands are bf", BRAIN, lambda op, dst: op.types == {"bf"}),
    InstructionRule(
        "bf meets another type than f",
        BRAIN,
        lambda op, dst: "bf" in op.types and not op.types <= {"bf", "f"},
    ),
    InstructionRule(
        "more lanes with bf than a register has of f",
        BRAIN,
        lambda op, dst: "bf" in op.types and op.lanes > op.native_lanes,
    ),
    InstructionRule(
        "the bf destination is neither packed into half a register nor spread over one",
        BRAIN,
        _brain_destination,
    ),
    InstructionRule(
        "a move to or from bf is predicated, sets flags, saturates or changes signs",
        "IGC, fixBFMove",
        lambda op, dst: (
            op.op == "mov"
            and "bf" in op.types
            and bool(
                op.instruction.predicate
                or op.instruction.condition
                or (dst.operand.saturate)
                or op.sources[0].operand.negate
                or op.sources[0].operand.absolute
            )
        ),
    ),
    SourceRule(
        "a bf element for all lanes, or a bf immediate",
        BRAIN,
        lambda op, s, n: s.type == "bf" and op.lanes > 1 and (s.is_scalar or s.is_immediate),
        kinds=ANY,
    ),
    SourceRule(
        "a multiplication's last factor is bf",
        BRAIN,
        lambda op, s, n: s.type == "bf" and MULTIPLIERS.get(op.op) == n,
    ),
    SourceRule(
        "the bf source is not packed into half a register",
        BRAIN,
        lambda op, s, n: (
            s.type == "bf"
            and s.is_register
            and op.lanes > 1
            and not s.is_scalar
            and not (s.is_packed and s.start % (op.grf // 2) == 0)
        ),
    ),
)

# -- words and bytes through the narrower crossbar --------------------------------------------------------------------


def _crossbar(op: Operation, source: Area, number: int) -> bool:
    """Whether a source of words or bytes cannot reach a destination of words or bytes.

    `stride` is of elements in a row, `even` says whether it holds from row to row; offsets are in elements.
    """
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
    return not _reachable((source.size, dst.size, step), stride, even, to, at, region.width, region.vertical)


def _reachable(
    kind: tuple[int, int, int], stride: int, even: bool, to: int, at: int, width: int, vertical: int
) -> bool:
    """The manual's cases, by (source bytes, destination bytes, destination stride)."""
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
        _crossbar,
        lambda platform: platform.narrow_crossbar,
    ),
)

# -- vector immediates ------------------------------------------------------------------------------------------------


def _vector_place(op: Operation, source: Area, number: int) -> bool:
    """A destination of dwords takes every other number of an integer vector, which suffices for up to 4 lanes."""
    dst = op.dst
    if dst is None or dst.operand.kind == "indirect" or source.type not in ("v", "uv", "vf"):
        return False
    apart = (4,) if source.type == "vf" else (2, 4) if op.lanes < 8 else (2,)
    return dst.start % 16 != 0 or dst.stride not in apart


VECTOR_RULES = (
    SourceRule("a vector of numbers meets a destination that it does not fit", VECTOR, _vector_place, kinds=ANY),
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


def broken(op: Operation) -> list[str]:
    """What an instruction breaks, each with its source."""
    platform, found = op.context.platform, []
    for rule in RULES:
        if not rule.platforms(platform):
            continue
        if isinstance(rule, InstructionRule):
            if op.dst is not None and rule.broken(op, op.dst):
                found.append(f"{rule.says} [{rule.source}]")
            continue
        for number, source in enumerate(op.sources):
            if source.operand.kind in rule.kinds and rule.broken(op, source, number):
                found.append(f"src{number}: {rule.says} [{rule.source}]")
    return found
