"""Accesses of LDS instructions: addresses, reads and writes with race stamps, bank conflicts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from convgen.backends.amdgpu.sim.archs import BankPhases
from convgen.backends.amdgpu.sim.banks import bank_conflicts
from convgen.backends.amdgpu.sim.decode import EXEC, Instruction, Operand
from convgen.backends.amdgpu.sim.hazards import Consumes
from convgen.backends.amdgpu.sim.state import WaveGroup, scalar_bits
from convgen.backends.amdgpu.sim.step import Context, Step
from convgen.backends.amdgpu.sim.transfer import active
from convgen.backends.sim.local import Stretch
from convgen.backends.sim.wave_arrays import Array, Bools, all_bits, any_along, most
from convgen.backends.simulation import Source
from convgen.ir.record import frozen

#: Bytes of an LDS access -> bytes; alignment that it needs.
ALIGNMENT: Mapping[int, int] = {1: 1, 2: 2, 4: 4, 8: 8, 12: 16, 16: 16}


@frozen(eq=False, slots=False)
class Located:
    """The LDS addresses of one access, lane by lane, with the stamps of races that they cover."""

    place: Array  #: byte offsets in the LDS of the batch [waves, lanes]
    size: int  #: bytes per lane
    lanes: Bools | None  #: lanes that take part (None: all)
    units: Array  #: indices of the stamps that they cover
    sound: bool  #: whether the addresses broke no rule

    @cached_property
    def stretch(self) -> Stretch:
        return Stretch.of(self.place, self.size)


class LdsAddress:
    """An address of an LDS instruction, resolved anew, with its bank conflicts, only when the lanes' words change."""

    def __init__(self, register: int, offset: int, size: int, phases: BankPhases | None) -> None:
        self.register, self.offset, self.size, self.phases = register, offset, size, phases
        self._pattern, self._cycles = b"", 0

    def of(self, g: WaveGroup, step: Step) -> tuple[Located, int]:
        """Return the addresses, and the cycles lost to bank conflicts."""
        words = g.v[self.register].tobytes()
        cached = g.env.located.get(self)
        if cached is not None and g.exec_full and words == cached[0] and g.slot is cached[1]:
            return cached[2]
        address = g.v[self.register].astype(np.int64) + self.offset
        located = locate(g, step, address, self.size), self._conflicts(g, address)
        if g.exec_full and located[0].sound:
            g.env.located[self] = words, g.slot, located
        return located

    def _conflicts(self, g: WaveGroup, address: Array) -> int:
        if self.phases is None:
            return 0
        pattern = (address - address[:, :1]).tobytes()
        if not g.exec_full or pattern != self._pattern:
            cycles = bank_conflicts(self.phases, address >> 2, max(self.size // 4, 1), g.exec)
            if not g.exec_full:
                return cycles
            self._pattern, self._cycles = pattern, cycles
        return self._cycles


def locate(
    g: WaveGroup,
    step: Step,
    address: Array,
    size: int,
    alignment: int = 0,
    lanes: Bools | None = None,
    aligned: Source | None = None,
) -> Located:
    """Check the byte addresses [waves, lanes] of an access and return where it leads.

    A lane beyond the workgroup's allocation is reported and takes no part; an unaligned one is reported. `alignment` is
    by default that of the size, `lanes` the active ones; `aligned` is the document of the alignment rule if it is not
    that of plain accesses. Register and offset add up modulo 2^32: since CI a negative base works with an offset that
    compensates it (LLVM, AMDGPUISelDAGToDAG.cpp, isDSOffsetLegal).
    """
    alignment = alignment or ALIGNMENT[size]
    lds, lanes = g.env.local, active(g) if lanes is None else lanes
    used, sound = address if lanes is None else np.where(lanes, address, 0), True
    if most(used) + size > lds.size:
        used = used & 0xFFFFFFFF
        beyond = used + size > lds.size
        beyond = beyond if lanes is None else beyond & lanes
        if beyond.any():
            sound = False
            _report_beyond(g, step, used, size, beyond)
            lanes = ~beyond if lanes is None else lanes & ~beyond
            used = np.where(lanes, used, 0)
    if all_bits(used) & (alignment - 1):
        sound = False
        bad = (used & (alignment - 1)) != 0
        what = f"LDS access of {size} bytes not aligned to {alignment}"
        g.env.reporter.at_first("misaligned", what, step.instruction, g, bad, aligned)
    place = used + (g.slot * lds.stride)[:, None]
    across = not sound and lds.grain > 1 and all_bits(place) & (lds.grain - 1)
    units = lds.units_across(place, size) if across else lds.units(place, size)
    return Located(place, size, lanes, units, sound)


def _report_beyond(g: WaveGroup, step: Step, address: Array, size: int, lanes: Bools) -> None:
    """Report the first of some lanes that access LDS beyond the workgroup's allocation."""
    row, lane = (int(i) for i in np.argwhere(lanes)[0])
    message = (
        f"accesses {size} bytes at LDS address {int(address[row, lane]):#x}, the workgroup has {g.env.local.size:#x}"
        " bytes: what the kernel declares and the launch adds (--lds)"
    )
    g.env.reporter.add("lds-bounds", message, step.instruction, g, row, lane)


def read_lds(g: WaveGroup, step: Step, at: Located, *, guess: bool = False) -> tuple[Array, Bools | None]:
    """Read LDS and stamp the read; return data and undefined words [words, waves, lanes].

    A `guess` is a read whose value a compare-and-swap may check later; it may be stale.
    """
    lds, lanes, units = g.env.local, at.lanes, at.units
    data = lds.load(at.stretch)
    if not g.env.strict:
        return data, None
    if lanes is None:
        undefined = lds.note_read(g, step, units, g.stamp, guess=guess)
    else:
        some = np.broadcast_to(lanes, units.shape)
        mine = np.broadcast_to(g.stamp, units.shape)[some]
        flat = lds.note_read(g, step, units[some], mine, guess=guess)
        undefined = None
        if flat is not None:
            undefined = np.zeros(units.shape, np.bool_)
            undefined[some] = flat
    poison = None
    if undefined is not None:
        words = max(at.size // 4, 1)
        if len(undefined) > 1 and len(undefined) * lds.grain != at.size:
            undefined = any_along(undefined, 0)[None]
        poison = any_along(undefined.reshape(words, -1, *at.place.shape), 1) if len(undefined) > words else undefined
        poison = np.repeat(poison, words // len(poison), axis=0)
    return data, poison


def write_lds(g: WaveGroup, step: Step, at: Located, values: Array, poison: Bools | None) -> None:
    """Write LDS and stamp the write; `poison` flags undefined words."""
    lds, place, units = g.env.local, at.place, at.units
    some = None if at.lanes is None else at.lanes & np.ones(place.shape, np.bool_)
    if not g.env.strict:
        if some is None:
            lds.store(at.stretch, values)
        else:
            lds.store(at.stretch.lanes_of(some), values[:, some])
        return
    clean: Array | int = 1
    if poison is not None:
        if len(units) * lds.grain != at.size:
            poison = any_along(poison, 0)[None]
        per = max(len(units) // len(poison), 1)
        merged = poison if len(units) >= len(poison) else any_along(poison.reshape(len(units), -1, *place.shape), 1)
        clean = (~np.repeat(merged, per, axis=0)).astype(np.uint32)
    if some is None:
        lds.write(g, step, at.stretch, values, units, g.stamp, clean)
    else:
        mine = np.broadcast_to(g.stamp, place.shape)[some]
        kept = clean if isinstance(clean, int) else clean[:, some]
        lds.write(g, step, at.stretch.lanes_of(some), values[:, some], units[:, some], mine, kept, np.argwhere(some))


def data_poison(g: WaveGroup, registers: tuple[int, ...]) -> Bools | None:
    """Return flags of undefined store data [registers, waves, lanes]; None if all are defined."""
    rows = [g.vector_poison(register) for register in registers]
    if all(row is None for row in rows):
        return None
    clean: Bools = np.zeros((g.count, 64), np.bool_)
    return np.stack([clean if row is None else row for row in rows])


def ds_step(instruction: Instruction, context: Context, kind: str, loads: Operand | None, *others: Operand) -> Step:
    """Return a step with the registers and hazards of an LDS instruction; the caller sets `run`."""
    reads, touched = scalar_bits(EXEC, 2), context.bits(*others)
    writes = 0 if loads is None else context.bits(loads)
    consumes = [Consumes("mem_read", touched)]
    if writes:
        consumes.append(Consumes("mem_write", writes))
    return Step(instruction, kind, lambda g: None, reads | touched, writes, (), tuple(consumes))
