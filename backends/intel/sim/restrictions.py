"""Restrictions on single instructions that an assembler does not enforce: types, modifiers, accumulators.

Each comes from Mesa's brw_eu_validate.c, instruction_restrictions, which quotes Intel's manuals, or names its source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from convgen.backends.intel.sim.alu_steps import LOGIC
from convgen.backends.intel.sim.areas import INTEGERS, Area, Operation
from convgen.backends.intel.sim.operands import FLOATS
from convgen.backends.intel.sim.pipes import LONG_INTEGERS
from convgen.backends.intel.sim.platforms import Platform
from convgen.ir.record import frozen

MESA = "PRM, by Mesa, instruction_restrictions"
NARROW_INTEGERS = frozenset(("b", "ub", "w", "uw"))
SMALL_INTEGERS = frozenset(("w", "uw", "d", "ud"))


@frozen
class Restriction:
    """A restriction on instructions of some names (without names, on all); `kind` is that of the finding."""

    says: str
    is_broken: Callable[[Operation, Platform], bool]
    names: Collection[str] = ()
    source: str = MESA
    kind: str = "operation"


def _modified(area: Area) -> bool:
    return not area.is_immediate and (area.operand.negate or area.operand.absolute)


def _is_accumulator(area: Area) -> bool:
    return area.operand.kind == "reg" and area.operand.file == "acc"


def _multiplies_mixed_sizes(op: Operation, platform: Platform) -> bool:
    """Return whether a 32-bit integer is multiplied by a narrower one whose sign a modifier changes."""
    sizes = [source.size for source in op.sources]
    return max(sizes) == 4 and any(_modified(s) for s in op.sources if s.type in NARROW_INTEGERS)


def _multiplies_dword(op: Operation, platform: Platform) -> bool:
    """Return whether a product of dwords, of which the destination has the low half, saturates or sets flags."""
    dst, takes = op.dst, {source.type for source in op.sources} & {"d", "ud"}
    if dst is None or not takes or dst.type not in SMALL_INTEGERS:
        return False
    return dst.operand.saturate or bool(op.instruction.condition)


def _types(op: Operation) -> list[str]:
    return [source.type for source in op.sources]


def _chooses_unlike(op: Operation, platform: Platform) -> bool:
    """Return whether csel has types of two sizes, or integers and floats."""
    areas = [area for area in (op.dst, *op.sources) if area is not None]
    return len({area.size for area in areas}) > 1 or len({area.type in FLOATS for area in areas}) > 1


RESTRICTIONS = (
    Restriction(
        "the platform has no 64-bit integers",
        lambda op, p: not p.long_integers and bool(op.types & LONG_INTEGERS),
        source="IGC, noInt64",
        kind="type",
    ),
    Restriction(
        "the platform has no df", lambda op, p: not p.doubles and "df" in op.types, source="IGC, noFP64", kind="type"
    ),
    Restriction(
        "hf and bf cannot mix",
        lambda op, p: op.types >= {"hf", "bf"},
        source="Mesa, special_restrictions_for_mixed_float_mode",
        kind="type",
    ),
    Restriction(
        "a 32-bit integer is multiplied by a narrower one whose sign changes",
        _multiplies_mixed_sizes,
        ("mul",),
        "Wa_1604601757, by Mesa, instruction_restrictions",
    ),
    Restriction(
        "floating point is multiplied by an integer", lambda op, p: len({t in FLOATS for t in _types(op)}) > 1, ("mul",)
    ),
    Restriction(
        "an integer product becomes floating point",
        lambda op, p: op.is_float and bool(set(_types(op)) & INTEGERS),
        ("mul",),
    ),
    Restriction(
        "an integer factor is an accumulator",
        lambda op, p: any(_is_accumulator(s) and s.type in INTEGERS for s in op.sources),
        ("mul",),
    ),
    Restriction(
        "src0 is narrower than the 32-bit integer src1: exchange the factors",
        lambda op, p: op.sources[0].size < 4 and op.sources[1].type in ("d", "ud") and not op.sources[1].is_immediate,
        ("mul",),
    ),
    Restriction("the low half of a product cannot saturate or set flags", _multiplies_dword, ("mul",)),
    Restriction(
        "src0 and src1 are both accumulators",
        lambda op, p: _is_accumulator(op.sources[0]) and _is_accumulator(op.sources[1]),
        ("dp4a",),
    ),
    Restriction("a comparison needs a condition", lambda op, p: not op.instruction.condition, ("cmp", "cmpn")),
    Restriction(
        "sel has either a predicate or a condition",
        lambda op, p: bool(op.instruction.condition) == bool(op.instruction.predicate),
        ("sel",),
    ),
    Restriction("csel takes f, hf and integers of 16 and 32 bits of one size", _chooses_unlike, ("csel",)),
    Restriction("add3 takes integers of 16 and 32 bits", lambda op, p: not op.types <= SMALL_INTEGERS, ("add3",)),
    Restriction(
        "mad multiplies two integers of 32 bits",
        lambda op, p: all(s.type in INTEGERS and s.size == 4 for s in op.sources[1:]),
        ("mad",),
        "oneDNN, whose generator takes one of 16",
    ),
    Restriction(
        "an immediate of add3 has 16 bits",
        lambda op, p: any(s.is_immediate and s.type not in ("w", "uw") for s in op.sources),
        ("add3",),
    ),
    Restriction(
        "a logic operation takes an absolute value", lambda op, p: any(s.operand.absolute for s in op.sources), LOGIC
    ),
    Restriction(
        "a logic operation complements an accumulator",
        lambda op, p: any(_is_accumulator(s) and _modified(s) for s in op.sources),
        LOGIC,
    ),
    Restriction(
        "a logic operation sets flags by overflow or for not a number",
        lambda op, p: op.instruction.condition in ("ov", "un", "uo"),
        LOGIC,
    ),
    Restriction(
        "avg takes integers of up to 32 bits", lambda op, p: not op.types <= INTEGERS - LONG_INTEGERS, ("avg",)
    ),
    Restriction(
        "integers and floating point are added", lambda op, p: len({t in FLOATS for t in _types(op)}) > 1, ("add",)
    ),
    Restriction(
        "rotation has values of two sizes, or bytes",
        lambda op, p: op.dst is not None and (op.dst.size != op.sources[0].size or op.dst.size == 1),
        ("rol", "ror"),
        "IGC, fixRotate",
    ),
)


def violations(op: Operation) -> list[tuple[str, str]]:
    """Return the restrictions that an instruction breaks, as kinds and messages with their documents."""
    platform = op.context.platform
    return [
        (rule.kind, f"{rule.says} [{rule.source}]")
        for rule in RESTRICTIONS
        if (not rule.names or op.op in rule.names) and rule.is_broken(op, platform)
    ]
