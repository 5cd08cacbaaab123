"""Restrictions on regions that follow from the types of an instruction: destinations, channels, bf."""

from __future__ import annotations

from convgen.backends.intel.sim.areas import INTEGERS, Area, Operation
from convgen.backends.intel.sim.operands import FLOATS
from convgen.backends.intel.sim.region_rule import (
    ANY,
    BRAIN,
    CHANNELS,
    HALVES,
    MIXED,
    MULTIPLIERS,
    THIRD,
    TYPES,
    InstructionRule,
    SourceRule,
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
    """Return whether integers become hf, or hf integers."""
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
        "the destination is narrower than the execution type, and its stride is below that type's size",
        TYPES,
        _narrow_stride,
    ),
    InstructionRule(
        "the destination is narrower than the execution type, and is not aligned to that type", TYPES, _narrow_start
    ),
    InstructionRule(
        "a conversion between integers and hf needs a destination aligned to 4 bytes with a stride of 4 bytes",
        TYPES,
        lambda op, dst: _half_of_integer(op, dst) and (dst.stride != 4 or (dst.is_register and dst.start % 4 != 0)),
    ),
    SourceRule("bytes cannot be src1 or src2", TYPES, lambda op, s, n: n > 0 and s.size == 1),
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

# -- where channels lie -----------------------------------------------------------------------------------------------


def _moves_channel(op: Operation, source: Area, number: int) -> bool:
    """Return whether lanes lie elsewhere in the source's register than in the destination's."""
    dst = op.dst
    if dst is None or op.lanes == 1 or number > 1 or not (op.is_float or op.is_long) or op.converts_halves:
        return False
    if source.operand.kind != "reg" or source.is_scalar or source.type == "bf" or dst.operand.kind == "indirect":
        return False
    return source.stride != dst.stride or source.start != dst.start


def _third_moves(op: Operation, source: Area, number: int) -> bool:
    """Return whether src2, which cannot be regioned, lies elsewhere than the destination."""
    dst = op.dst
    if number != 2 or dst is None or op.lanes == 1 or source.operand.kind != "reg" or source.is_scalar:
        return False
    mixed = "bf" in op.types and "f" in op.types
    return source.start != dst.start or (source.stride != dst.stride and not mixed)


def _halves_apart(op: Operation, dst: Area) -> bool:
    """Return whether a move between f and packed hf leaves the half register that belongs to its f operand.

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
    SourceRule("channels lie elsewhere in its register than in the destination's", CHANNELS, _moves_channel),
    SourceRule("channels of src2 lie elsewhere in its register than in the destination's", THIRD, _third_moves),
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
        "an operation on hf and f has an indirect source",
        MIXED,
        lambda op, s, n: op.mixes_halves and s.operand.kind == "indirect",
    ),
    InstructionRule(
        "an operation other than mov mixes hf and f",
        "IGC, isIllegalMixedMode",
        lambda op, dst: op.op != "mov" and op.mixes_halves,
    ),
    InstructionRule(
        "more lanes than a register has f elements are converted to packed hf",
        HALVES,
        lambda op, dst: op.converts_halves and dst.type == "hf" and op.lanes > op.native_lanes,
    ),
    InstructionRule("packed hf does not lie in the half register that belongs to the f operand", HALVES, _halves_apart),
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
        "bf is mixed with another type than f", BRAIN, lambda op, dst: "bf" in op.types and not op.types <= {"bf", "f"}
    ),
    InstructionRule(
        "an operation on bf has more lanes than a register has f elements",
        BRAIN,
        lambda op, dst: "bf" in op.types and op.lanes > op.native_lanes,
    ),
    InstructionRule(
        "the bf destination is neither packed into half a register nor spread over one", BRAIN, _brain_destination
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
                or dst.operand.saturate
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
        "a multiplication's last factor is bf", BRAIN, lambda op, s, n: s.type == "bf" and MULTIPLIERS.get(op.op) == n
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
