"""Arithmetic that must not follow other arithmetic in its pipe, for the hardware keeps a source that both read.

Something of no use is put between. Neighbours are those in the order of the text, across blocks, as in IGC.

- XeHPC: what moves or chooses halves as they are has another bus than other arithmetic of the float pipe; of the
  sources that two such neighbours have in common, the second reads an old one (IGC, SWWA.cpp,
  `fixReadSuppressioninFPU0`). An addition of floats takes the place of IGC's `csel`, which writes a register.
- Xe2: a product, or its completion, that reads source 1 element by element does not find it behind one that reads some
  of its registers otherwise; a completion not behind other arithmetic either (IGC, SWWA.cpp, `mulMacRSWA`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from convgen.backends.intel.isa import OPCODES, TYPE_BYTES, Literal, Null, Region, Special, XeInstruction
from convgen.backends.intel.physical import Physical
from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Operand, Unit, VirtualRegister
from convgen.backends.machine.vectors import WORD_BYTES
from convgen.ir.record import evolve

Places = dict[VirtualRegister, int]
_Meet = Callable[[XeInstruction, XeInstruction], bool]
_PRODUCTS, _COMPLETED = ("mul",), ("mach", "macl")


def part_halves(function: Function, physical: Physical) -> tuple[Function, Places]:
    """The function with an addition ahead of what would read kept halves, and the place of what that reads."""
    payload, places = _payload("f")

    def meet(before: XeInstruction, i: XeInstruction) -> bool:
        if _moves_halves(before) == _moves_halves(i):
            return False
        return any(_is_same(a, b, physical) for a, b in zip(before.src, i.src))

    add = XeInstruction(OPCODES["add"], (Null("f"),), (payload, payload), lanes=1, comment="halves are read anew")
    return _parted(function, lambda i: i.floats, meet, add), places


def part_factors(function: Function, physical: Physical) -> tuple[Function, Places]:
    """The function with an addition ahead of what would read a kept factor, and the place of what that reads."""
    payload, places = _payload("uw")

    def meet(before: XeInstruction, i: XeInstruction) -> bool:
        if len(before.src) < 2 or not _multiplies(i) or not _is_flat(i, physical):
            return False
        if not _span(before, physical) & _span(i, physical):
            return False
        if _multiplies(before):
            return _completes(before) == _completes(i) and not _is_flat(before, physical)
        return _completes(i)

    add = XeInstruction(
        OPCODES["add"], (Null("uw"),), (payload, Literal(1, "uw")), lanes=1, comment="a factor is read anew"
    )
    return _parted(function, lambda i: not i.floats, meet, add), places


def _parted(function: Function, in_pipe: Callable[[XeInstruction], bool], meet: _Meet, put: XeInstruction) -> Function:
    """The function with an instruction between any two neighbours in a pipe that must not be neighbours."""
    before: XeInstruction | None = None

    def parted(block: BasicBlock) -> Iterator[Instruction]:
        nonlocal before
        for i in block.instructions:
            assert isinstance(i, XeInstruction)
            if i.op.unit is Unit.VALU and in_pipe(i):
                if before is not None and meet(before, i):
                    yield evolve(put)
                before = i
            yield i

    return function.rewritten(lambda _, block: parted(block))


def _payload(type: str) -> tuple[Region, Places]:
    """An element of the thread's payload, of r0, and the place of that."""
    r0 = VirtualRegister(-1, "v", 1, "r0")
    return Region(r0, 0, 1, type, 0, 0), {r0: 0}


def _is_same(a: Operand, b: Operand, physical: Physical) -> bool:
    """Whether two sources are one region of general registers."""
    if not (isinstance(a, Region) and isinstance(b, Region)) or "f" in (a.bank, b.bank):
        return False
    one, other = ((physical.byte(o), o.type, o.stride, o.signs) for o in (a, b))
    return one == other


def _moves_halves(i: XeInstruction) -> bool:
    """Whether halves go to the result as they are."""
    regions = [o for o in (*i.dst, *i.src) if isinstance(o, Region)]
    chosen = i.op.name == "sel" or (i.op.name == "mov" and not i.condition)
    return chosen and bool(regions) and all(o.type == "hf" and not (o.signs or o.saturated) for o in regions)


def _multiplies(i: XeInstruction) -> bool:
    return i.op.name in (*_PRODUCTS, *_COMPLETED)


def _completes(i: XeInstruction) -> bool:
    return i.op.name in _COMPLETED


def _span(i: XeInstruction, physical: Physical) -> int:
    """The registers that source 1 has elements in, one bit each."""
    factor, size = i.src[1], physical.lanes * WORD_BYTES
    if not isinstance(factor, Region) or factor.bank == "f":
        return 0
    begin = physical.byte(factor)
    last = begin + ((i.lanes - 1) * factor.stride + 1) * TYPE_BYTES[factor.type] - 1
    return (2 << last // size) - (1 << begin // size)


def _is_flat(i: XeInstruction, physical: Physical) -> bool:
    """Whether the elements of source 1 lie as those of the result do, whole elements of the operation apart."""
    width = max(TYPE_BYTES[o.type] for o in i.src if isinstance(o, (Region, Literal)))
    (at, apart), factor = _lies(i.dst[0], physical), i.src[1]
    return isinstance(factor, Region) and _lies(factor, physical) == (at, apart) and apart % width == 0


def _lies(o: Operand, physical: Physical) -> tuple[int, int]:
    """Where the first element is in its register, and how far behind it the next, in bytes."""
    if isinstance(o, Region):
        return physical.byte(o) % (physical.lanes * WORD_BYTES), o.stride * TYPE_BYTES[o.type]
    assert isinstance(o, (Special, Null))
    return 0, TYPE_BYTES[o.type]
