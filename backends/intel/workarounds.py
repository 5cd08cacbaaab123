"""Defects of production steppings that instructions go round, as Intel's compiler does (`Generation.workarounds`).

Each is applied behind allocation, by registers, and ahead of the scoreboard, which then counts what is put in.

- Matrix instructions keep what they read of source 1 for the next one; behind a masked message with a result, too long.
  In a kernel with such messages a `mov` writes the first register of source 1 to itself ahead of the
  first matrix instruction of a block, and of the first one behind each such message (IGC, SWWA.cpp,
  `insertDummyMovForHWRSWADPAS`, and its output for DG2; oneDNN, `rsFix`).
- They keep it too long behind arithmetic that writes it, too: chains begin with two sources 1 (`leads.py`).
- Pipes keep sources of arithmetic too long where the next instruction reads them otherwise: of XeHPC's halves, of Xe2's
  products (`neighbours.py`).
- With 256 registers a thread's end may meet what the arithmetic pipes keep: a `csel` of each pipe stands ahead of the
  last message (IGC, SWWA.cpp, `insertDummyCsel`).
- Atomic operations that give nothing back may be under way when a thread ends: a fence stands between (IGC,
  PrologEpilog.cpp, `insertFenceBeforeEOT`; selection emits it, for it has a response).
- What lies behind the end of a thread is fetched: it must be an instruction (IGC, SWWA.cpp, `HWWorkaround`; the printer
  adds it).

docs/workarounds.md lists the others that were looked at, and why they do not apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convgen.backends.intel.isa import OPCODES, Message, XeInstruction, region
from convgen.backends.intel.leads import Places, lead_chains
from convgen.backends.intel.neighbours import part_factors, part_halves
from convgen.backends.intel.physical import Physical
from convgen.backends.intel.tables import Generation, Workaround
from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Reg, Unit

LARGE_FILE = 256  #: registers of a thread
_CSEL_LANES = 4


def refresh_sources(function: Function) -> Function:
    """The function with a `mov` ahead of matrix instructions that may read an old source 1, if messages are masked."""
    if not any(map(_is_masked_load, function.instructions())):
        return function
    return function.rewritten(lambda _, block: _refreshed(block))


def _refreshed(block: BasicBlock) -> Iterator[Instruction]:
    is_fresh = False
    for i in block.instructions:
        if i.op.unit is Unit.MATRIX and not is_fresh:
            source = i.src[1]
            assert isinstance(source, Reg)
            first = region(source.words(0, 1), "ud")
            yield XeInstruction(OPCODES["mov"], (first,), (first,), lanes=_lanes(i), comment="source 1 is read anew")
            is_fresh = True
        yield i
        is_fresh = is_fresh and not _is_masked_load(i)


def _lanes(i: Instruction) -> int:
    assert isinstance(i, XeInstruction)
    return i.lanes


def _is_masked_load(i: Instruction) -> bool:
    """Whether a message brings something to the lanes of a mask only."""
    return isinstance(i, XeInstruction) and isinstance(i.op, Message) and i.predicate is not None and bool(i.dst)


def settle_pipes(function: Function) -> Function:
    """The function with a selection on integers and one on floats ahead of its end, whose results nobody reads."""
    return function.rewritten(lambda _, block: _settled(block.instructions))


def _settled(instructions: Sequence[Instruction]) -> Iterator[Instruction]:
    for before, i in zip((None, *instructions), instructions):
        if i.op.ends:
            assert before is not None
            (payload,) = before.uses()  # where the thread's payload stood at first: it has been moved
            for type, at in (("w", 0), ("f", _CSEL_LANES)):
                own = region(payload, type, at)
                yield XeInstruction(OPCODES["csel"], (own,), (own, own, own), lanes=_CSEL_LANES, condition="eq")
        yield i


def applied(function: Function, physical: Physical, generation: Generation, registers: int) -> tuple[Function, Places]:
    """The function, of so many registers a thread, with what workarounds put in, and the places of tuples put in."""
    workarounds, places = generation.workarounds, Places()
    refreshed = refresh_sources if Workaround.SOURCE_1_KEPT in workarounds else _unchanged
    if Workaround.SOURCE_1_KEPT_BEHIND_ARITHMETIC in workarounds:
        function, places = lead_chains(function, physical, generation.dpas_chains, registers, refreshed)
    else:
        function = refreshed(function)
    for workaround, part in ((Workaround.HALVES_KEPT, part_halves), (Workaround.FACTORS_KEPT, part_factors)):
        if workaround in workarounds:
            function, added = part(function, physical)
            places = {**places, **added}
    if Workaround.END_WITH_LARGE_FILE in workarounds and registers == LARGE_FILE:
        function = settle_pipes(function)
    return function, places


def _unchanged(function: Function) -> Function:
    return function
