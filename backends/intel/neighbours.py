"""Separate arithmetic that must not follow other arithmetic in its pipe, because the hardware reuses a common source.

A useless instruction goes in between. Neighbours are those in program text, across blocks, as in IGC.

- XeHPC: plain moves and selections of f16 use another bus than other arithmetic of the float pipe. If two such
  neighbours share a source, the second reads a stale value (IGC, SWWA.cpp, `fixReadSuppressioninFPU0`). A float
  addition replaces IGC's `csel`, which writes a register.
- Xe2: `mul`, and `mach` or `macl`, with an element-wise source 1 read a stale value after their own kind with another
  region of some of these registers; `mach` and `macl` also after other arithmetic (IGC, SWWA.cpp, `mulMacRSWA`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from convgen.backends.intel.isa import OPCODES, TYPE_BYTES, Literal, Null, Region, Special, XeInstruction
from convgen.backends.intel.physical import Physical, Places
from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Operand, Unit, VirtualRegister
from convgen.backends.machine.vectors import WORD_BYTES
from convgen.ir.record import evolve

#: Whether the second of two neighbours in a pipe reads a stale value.
_Hazard = Callable[[XeInstruction, XeInstruction], bool]
_PRODUCTS, _COMPLETED = ("mul",), ("mach", "macl")


def separate_halves(function: Function, physical: Physical) -> tuple[Function, Places]:
    """Return the function with an addition before each stale read of f16, and the place of the addition's operand."""
    payload, places = _payload("f")

    def rereads_stale(before: XeInstruction, i: XeInstruction) -> bool:
        if _moves_halves(before) == _moves_halves(i):
            return False
        return any(_is_same(a, b, physical) for a, b in zip(before.src, i.src))

    add = XeInstruction(OPCODES["add"], (Null("f"),), (payload, payload), lanes=1, comment="separates two reads of f16")
    return _separated(function, lambda i: i.floats, rereads_stale, add), places


def separate_factors(function: Function, physical: Physical) -> tuple[Function, Places]:
    """Return the function with an addition before each stale read of a factor, and the place of its operand."""
    payload, places = _payload("uw")

    def rereads_stale(before: XeInstruction, i: XeInstruction) -> bool:
        if len(before.src) < 2 or not _multiplies(i) or not _is_flat(i, physical):
            return False
        if not _span(before, physical) & _span(i, physical):
            return False
        if _multiplies(before):
            return _completes(before) == _completes(i) and not _is_flat(before, physical)
        return _completes(i)

    add = XeInstruction(
        OPCODES["add"], (Null("uw"),), (payload, Literal(1, "uw")), lanes=1, comment="separates two reads of a factor"
    )
    return _separated(function, lambda i: not i.floats, rereads_stale, add), places


def _separated(
    function: Function, in_pipe: Callable[[XeInstruction], bool], rereads_stale: _Hazard, separator: XeInstruction
) -> Function:
    """Return the function with `separator` between neighbours in a pipe for which `rereads_stale` holds."""
    before: XeInstruction | None = None

    def separated(block: BasicBlock) -> Iterator[Instruction]:
        nonlocal before
        for i in block.instructions:
            assert isinstance(i, XeInstruction)
            if i.op.unit is Unit.VALU and in_pipe(i):
                if before is not None and rereads_stale(before, i):
                    yield evolve(separator)
                before = i
            yield i

    return function.rewritten(lambda _, block: separated(block))


def _payload(type: str) -> tuple[Region, Places]:
    """Return an element of r0, the thread's payload, and its place."""
    r0 = VirtualRegister(-1, "v", 1, "r0")
    return Region(r0, 0, 1, type, 0, 0), {r0: 0}


def _is_same(a: Operand, b: Operand, physical: Physical) -> bool:
    """Return whether two sources are one region of general registers."""
    if not (isinstance(a, Region) and isinstance(b, Region)) or "f" in (a.bank, b.bank):
        return False
    one, other = ((physical.byte(o), o.type, o.stride, o.signs) for o in (a, b))
    return one == other


def _moves_halves(i: XeInstruction) -> bool:
    """Return whether an instruction moves or selects f16 unchanged."""
    regions = [o for o in (*i.dst, *i.src) if isinstance(o, Region)]
    chosen = i.op.name == "sel" or (i.op.name == "mov" and not i.condition)
    return chosen and bool(regions) and all(o.type == "hf" and not (o.signs or o.saturated) for o in regions)


def _multiplies(i: XeInstruction) -> bool:
    return i.op.name in (*_PRODUCTS, *_COMPLETED)


def _completes(i: XeInstruction) -> bool:
    return i.op.name in _COMPLETED


def _span(i: XeInstruction, physical: Physical) -> int:
    """Return the registers that hold elements of source 1, one bit each."""
    factor, size = i.src[1], physical.lanes * WORD_BYTES
    if not isinstance(factor, Region) or factor.bank == "f":
        return 0
    begin = physical.byte(factor)
    last = begin + ((i.lanes - 1) * factor.stride + 1) * TYPE_BYTES[factor.type] - 1
    return (2 << last // size) - (1 << begin // size)


def _is_flat(i: XeInstruction, physical: Physical) -> bool:
    """Return whether elements of source 1 and of the result have equal offsets and strides (IGC, `isFlatRegRegion`)."""
    width = max(TYPE_BYTES[o.type] for o in i.src if isinstance(o, (Region, Literal)))
    (at, apart), factor = _offset_and_stride(i.dst[0], physical), i.src[1]
    return isinstance(factor, Region) and _offset_and_stride(factor, physical) == (at, apart) and apart % width == 0


def _offset_and_stride(o: Operand, physical: Physical) -> tuple[int, int]:
    """Return the offset of the first element in its register, and the stride, both in bytes."""
    if isinstance(o, Region):
        return physical.byte(o) % (physical.lanes * WORD_BYTES), o.stride * TYPE_BYTES[o.type]
    assert isinstance(o, (Special, Null))
    return 0, TYPE_BYTES[o.type]
