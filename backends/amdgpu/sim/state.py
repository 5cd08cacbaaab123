"""The state of a group of waves that have executed one sequence of instructions so far.

Arrays have a wave axis: vector registers are [register, wave, lane], scalar registers [register, wave]. The program
counter, outstanding operations and hazard history are common to all waves of a group.

Register bits: sets of registers are Python integers; vector register r is bit r (accumulation registers follow at the
descriptor's accum_offset), scalar register n is bit SCALAR_BIT + n.

Poison marks undefined values. A register's poison row counts only while its bit is set in `poison`, so a defined
register costs nothing. Scalar registers have poison by bit: compilers build lane masks that are defined for active
lanes only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from convgen.backends.amdgpu.sim.decode import EXEC, SCALAR_ROWS
from convgen.backends.sim.threads import Threads
from convgen.backends.sim.wave_arrays import ALL_BITS, U32, Array, Bools, united
from convgen.ir.record import define, evolve

if TYPE_CHECKING:
    from convgen.backends.amdgpu.sim.environment import Environment
    from convgen.backends.amdgpu.sim.hazards import Event
    from convgen.backends.amdgpu.sim.step import Step

LANES = 64
SCALAR_BIT = 512


def scalar_bits(index: int, count: int = 1) -> int:
    """Return the register set of `count` scalar registers from `index`."""
    return ((1 << count) - 1) << (SCALAR_BIT + index)


def vector_bits(index: int, count: int = 1) -> int:
    """Return the register set of `count` vector registers from unified index `index`."""
    return ((1 << count) - 1) << index


def unpack_lanes(low: U32, high: U32) -> Bools:
    """Unpack two words per wave into one flag per lane [waves, 64]."""
    pair = np.stack((low, high), axis=1).astype("<u4", copy=False)
    return np.unpackbits(pair.view(np.uint8), axis=1, bitorder="little").view(np.bool_)


def pack_lanes(lanes: Bools) -> tuple[U32, U32]:
    """Pack one flag per lane [waves, 64] into two words per wave."""
    words = np.packbits(lanes, axis=1, bitorder="little").view(np.uint32)
    return words[:, 0], words[:, 1]


@define(eq=False)
class Pending:
    """An issued memory operation that no wait has forced to complete (land) yet.

    `payload` holds arrays whose second-to-last axis is the wave; `land` writes them to registers or memory.
    """

    step: Step
    kind: str  #: "vm", "ds", "smem", "flat" or "flat_memory" (a flat operation without a lane in LDS)
    writes: int  #: register bits in flight
    payload: tuple[Array | None, ...]
    land: Callable[[WaveGroup, Pending], None]
    tickets: tuple[int, ...] = ()  #: identify global stores

    def take(self, rows: Array) -> Pending:
        """Return the operation for some of the waves."""
        parts = tuple(None if part is None else part.take(rows, axis=-2) for part in self.payload)
        return evolve(self, payload=parts)


class WaveGroup(Threads):
    """Waves with one program counter, one history and their own registers."""

    env: Environment
    arrays: ClassVar = {**Threads.arrays, "v": 1, "vp": 1, "s": 1, "sp": 1, "exec": 0, "stamp": 0}

    def __init__(self, env: Environment, slot: Array, group_id: Array, wave: Array, registers: int) -> None:
        super().__init__(env, slot, group_id, wave)
        n = self.count
        self.now = 0  #: wait states issued so far
        self.vm: list[Pending] = []
        self.lgkm: list[Pending] = []
        self.inflight = 0
        self.events: list[Event] = []
        self.watched = 0  #: registers of all events
        self.polled = False  #: whether an atomic operation has just returned, as in a loop that polls a flag
        self.mode = 0
        self.matrices: dict[tuple[object, ...], tuple[int, Array]] = {}  #: decoded matrix operands: registers, numbers
        self.matrix_bits = 0  #: registers that `matrices` depends on
        self.v: U32 = np.zeros((registers, n, LANES), np.uint32)
        self.vp: Bools = np.ones((registers, n, LANES), np.bool_)
        self.s: U32 = np.zeros((SCALAR_ROWS, n), np.uint32)
        self.sp: U32 = np.full((SCALAR_ROWS, n), ALL_BITS, np.uint32)  #: undefined bits
        #: Undefined bits by lane of vector registers that v_writelane wrote; other poisoned lanes are wholly undefined
        self.lane_bits: dict[int, U32] = {}
        self.poison = vector_bits(0, registers) | scalar_bits(0, SCALAR_ROWS)
        self.exec: Bools = np.ones((n, LANES), np.bool_)
        self.exec_full = True
        self.stamp: U32 = env.stamps(self)

    def forget_matrices(self, bits: int) -> None:
        """Drop the decoded matrix operands that depend on registers about to be written."""
        self.matrices = {key: entry for key, entry in self.matrices.items() if not entry[0] & bits}
        self.matrix_bits = 0
        for kept, _ in self.matrices.values():
            self.matrix_bits |= kept

    def outstanding_stores(self) -> set[int]:
        return {ticket for pending in (*self.vm, *self.lgkm) for ticket in pending.tickets}

    # -- exec ---------------------------------------------------------------------------------------------------------

    def exec_changed(self) -> None:
        """Rebuild the lane mask from the scalar rows of EXEC."""
        self.exec = unpack_lanes(self.s[EXEC], self.s[EXEC + 1])
        self.exec_full = bool(self.exec.all())

    def active_lanes(self) -> int:
        """Return the number of active lanes of all waves."""
        return self.count * LANES if self.exec_full else int(self.exec.sum())

    # -- poison -------------------------------------------------------------------------------------------------------

    def poison_vector(self, register: int, lanes: Bools | None) -> None:
        """Set the poison of the active lanes of a vector register; None means clean."""
        bit = 1 << register
        if lanes is None:
            if self.poison & bit:
                if self.exec_full:
                    self.poison &= ~bit
                else:
                    self.vp[register] &= ~self.exec
            return
        row = self.vp[register]
        if self.exec_full:
            row[...] = lanes
        elif self.poison & bit:
            np.copyto(row, lanes, where=self.exec)
        else:
            np.logical_and(lanes, self.exec, out=row)
        if row.any():
            self.poison |= bit
        else:
            self.poison &= ~bit

    def poison_scalar(self, register: int, undefined: Bools | U32 | None) -> None:
        """Set the poison of a scalar register, by wave or by wave and bit; None means clean."""
        bit = 1 << (SCALAR_BIT + register)
        if undefined is None or not undefined.any():
            self.poison &= ~bit
            return
        self.sp[register] = np.where(undefined, ALL_BITS, 0) if undefined.dtype == np.bool_ else undefined
        self.poison |= bit

    def vector_poison(self, register: int) -> Bools | None:
        """Return the poisoned lanes of a vector register, None when there are none."""
        return self.vp[register] if self.poison >> register & 1 else None

    def scalar_poison(self, register: int) -> Bools | None:
        """Return the waves for which a scalar register is poisoned, None when there are none."""
        return self.sp[register] != 0 if self.poison >> (SCALAR_BIT + register) & 1 else None

    def undefined_bits(self, register: int) -> U32:
        """Return the bits of a scalar register that are undefined, [waves]."""
        clean = not self.poison >> (SCALAR_BIT + register) & 1
        return np.zeros(self.count, np.uint32) if clean else self.sp[register].copy()

    def lanes_poison(self, registers: tuple[int, ...]) -> Bools | None:
        """Return the lanes poisoned in any of some vector registers."""
        return united(map(self.vector_poison, registers))

    def waves_poison(self, registers: tuple[int, ...]) -> Bools | None:
        """Return the waves poisoned in any of some scalar registers."""
        return united(map(self.scalar_poison, registers))

    # -- splitting and merging ----------------------------------------------------------------------------------------

    def select(self, rows: Array) -> Self:
        part = super().select(rows)
        part._forget()
        part.events = list(self.events)
        part.vm = [pending.take(rows) for pending in self.vm]
        part.lgkm = [pending.take(rows) for pending in self.lgkm]
        part.lane_bits = {register: bits[rows] for register, bits in self.lane_bits.items()}
        part.exec_full = bool(part.exec.all())
        return part

    def _forget(self) -> None:
        """Drop cached state that belongs to the waves of another group."""
        self.matrices, self.matrix_bits, self.polled = {}, 0, False

    def signature(self) -> tuple[object, ...]:
        queues = tuple(
            tuple((id(p.step), tuple(part is None for part in p.payload)) for p in queue)
            for queue in (self.vm, self.lgkm)
        )
        return (self.pc, self.blocked, self.mode, queues, id(self.env))

    def merge(self, other: Self) -> Self:
        """Return both groups as one, with hazard histories united by age."""
        self._settle()
        other._settle()
        both = super().merge(other)
        both._forget()
        both.poison = self.poison | other.poison
        both.exec_full = self.exec_full and other.exec_full
        both.vm = [_join(a, b) for a, b in zip(self.vm, other.vm, strict=True)]
        both.lgkm = [_join(a, b) for a, b in zip(self.lgkm, other.lgkm, strict=True)]
        both.lane_bits = {
            register: np.concatenate([_bits_of(part, register) for part in (self, other)])
            for register in {**self.lane_bits, **other.lane_bits}
        }
        later = [event._replace(time=event.time - other.now + self.now) for event in other.events]
        both.events = sorted(dict.fromkeys((*self.events, *later)), key=lambda event: event.time)
        both.watched = self.watched | other.watched
        return both

    def _settle(self) -> None:
        """Clear the poison rows of registers that are clean."""
        for rows, first in ((self.vp, 0), (self.sp, SCALAR_BIT)):
            for register in range(len(rows)):
                if not self.poison >> (first + register) & 1:
                    rows[register] = 0


def _bits_of(g: WaveGroup, register: int) -> U32:
    bits = g.lane_bits.get(register)
    return np.full((g.count, LANES), ALL_BITS, np.uint32) if bits is None else bits


def _join(first: Pending, second: Pending) -> Pending:
    parts = tuple(
        None if a is None or b is None else np.concatenate((a, b), axis=-2)
        for a, b in zip(first.payload, second.payload, strict=True)
    )
    return evolve(first, payload=parts, tickets=first.tickets + second.tickets)
