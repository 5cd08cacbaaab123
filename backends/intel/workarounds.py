"""Workarounds for defects of production steppings, as in Intel's compiler (`Generation.workarounds`).

They run after allocation, since they depend on registers, and before the scoreboard, which then covers what they
insert.

- A matrix instruction may reuse a stale source 1 of the previous one after a masked message with a result. In a kernel
  with masked loads a `mov` writes the first register of source 1 to itself before the first matrix instruction of a
  block, and before the first one after each masked load (IGC, SWWA.cpp, `insertDummyMovForHWRSWADPAS`, and its output
  for DG2; oneDNN, `rsFix`).
- Matrix instructions also reuse source 1 after arithmetic has written it: chains begin with two sources 1 (`leads.py`).
- Pipes also reuse sources of arithmetic if the next instruction reads them differently: f16 on XeHPC, products on Xe2
  (`neighbours.py`).
- With 256 registers the end of a thread may conflict with sources that the arithmetic pipes hold: a `csel` of each pipe
  stands before the last message (IGC, SWWA.cpp, `insertDummyCsel`).
- Atomic operations without a result may be in flight when a thread ends: a fence waits for them (IGC, PrologEpilog.cpp,
  `insertFenceBeforeEOT`; selection emits it, since it has a response).
- Hardware fetches past the end of a thread: an instruction must follow (IGC, SWWA.cpp, `HWWorkaround`; the printer adds
  it).

docs/workarounds.md lists the defects that were considered and do not apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convgen.backends.intel.isa import OPCODES, Message, XeInstruction, as_register, region
from convgen.backends.intel.leads import lead_chains
from convgen.backends.intel.neighbours import separate_factors, separate_halves
from convgen.backends.intel.physical import Physical, Places
from convgen.backends.intel.tables import Generation, Workaround
from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Unit

LARGE_FILE = 256  #: registers of a thread
_CSEL_LANES = 4


def refresh_sources(function: Function) -> Function:
    """Return the function with a `mov` before matrix instructions that may read a stale source 1.

    Only kernels with masked messages need it.
    """
    if not any(map(_is_masked_load, function.instructions())):
        return function
    return function.rewritten(lambda _, block: _refreshed(block))


def _refreshed(block: BasicBlock) -> Iterator[Instruction]:
    is_fresh = False
    for i in block.instructions:
        if i.op.unit is Unit.MATRIX and not is_fresh:
            assert isinstance(i, XeInstruction)
            first = region(as_register(i.src[1]).words(0, 1), "ud")
            yield XeInstruction(OPCODES["mov"], (first,), (first,), lanes=i.lanes, comment="refreshes source 1")
            is_fresh = True
        yield i
        is_fresh = is_fresh and not _is_masked_load(i)


def _is_masked_load(i: Instruction) -> bool:
    """Return whether an instruction is a message with a result and a mask."""
    return isinstance(i, XeInstruction) and isinstance(i.op, Message) and i.predicate is not None and bool(i.dst)


def settle_pipes(function: Function) -> Function:
    """Return the function with an integer and a float `csel` before its end, whose results are unused."""
    return function.rewritten(lambda _, block: _settled(block.instructions))


def _settled(instructions: Sequence[Instruction]) -> Iterator[Instruction]:
    """Yield the instructions of a block; each `csel` reads r0, of which the last message sends a copy."""
    for number, i in enumerate(instructions):
        if i.op.ends:
            (sent,) = i.uses()
            writers = (w for w in reversed(instructions[:number]) if sent.vreg in {r.vreg for r in w.defs()})
            (payload,) = next(writers).uses()
            for type, at in (("w", 0), ("f", _CSEL_LANES)):
                own = region(payload, type, at)
                yield XeInstruction(OPCODES["csel"], (own,), (own, own, own), lanes=_CSEL_LANES, condition="eq")
        yield i


def applied(function: Function, physical: Physical, generation: Generation, registers: int) -> tuple[Function, Places]:
    """Return the function with its workarounds, and the places of inserted tuples (`registers` a thread)."""
    workarounds, places = generation.workarounds, Places()

    def refreshed(function: Function) -> Function:
        return refresh_sources(function) if Workaround.SOURCE_1_KEPT in workarounds else function

    if Workaround.SOURCE_1_KEPT_BEHIND_ARITHMETIC in workarounds:
        function, places = lead_chains(function, physical, generation.dpas_chains, registers, refreshed)
    else:
        function = refreshed(function)
    for workaround, part in ((Workaround.HALVES_KEPT, separate_halves), (Workaround.FACTORS_KEPT, separate_factors)):
        if workaround in workarounds:
            function, added = part(function, physical)
            places = {**places, **added}
    if Workaround.END_WITH_LARGE_FILE in workarounds and registers == LARGE_FILE:
        function = settle_pipes(function)
    return function, places
