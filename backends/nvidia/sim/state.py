"""The state of a group of warps, or of parts of warps, that stand at one instruction.

A row is a warp with a mask of lanes. Threads of a warp that diverge become two rows in two groups, each with its own
copy of the registers; merging puts them together again. Values of lanes outside the mask are meaningless.

A register is an array [rows, lanes] that no instruction changes in place, so that groups share arrays. `poison` flags
undefined values; None stands for none. A register that is None was never written, or nobody reads it again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from typing import TYPE_CHECKING, Self

import numpy as np

from convgen.backends.sim.threads import Threads
from convgen.backends.sim.wave_arrays import Array, Bools
from convgen.ir.record import frozen

if TYPE_CHECKING:
    from convgen.backends.nvidia.sim.environment import Environment
    from convgen.backends.nvidia.sim.operands import Putter

LANES = 32
WARPGROUP = 4  #: warps
#: Places where a warp may wait besides the barriers 0 to 15: wgmma.wait_group, setmaxnreg, barrier.cluster.wait.
PRODUCTS, REGISTERS, CLUSTER = 16, 17, 18
_BY_ROW = ("slot", "group_id", "wave", "thread", "waiting_at")


@frozen
class Flight:
    """A product of wgmma in flight. `results` and `factors` are the registers of D and A, as sets of bits."""

    accumulators: tuple[int, ...]  #: numbers of the registers of D, in order
    results: int
    factors: int
    shape: str  #: n and the type of D: only products with an equal one may share sums in flight
    age: int = -1  #: groups committed since its own; -1 until it is committed


class WarpGroup(Threads):
    """Warps, or parts of warps, with one program counter."""

    env: Environment

    def __init__(self, env: Environment, slot: Array, group_id: Array, wave: Array, mask: Bools) -> None:
        super().__init__(env, slot, group_id, wave)
        self.thread: Array = slot * env.waves + wave  #: number of the warp in the batch
        self.r: list[Array | None] = [None] * len(env.dtypes)
        self.p: list[Bools | None] = [None] * len(env.dtypes)
        self.mask = mask  #: lanes of the group
        self.shape: tuple[int, ...] = mask.shape
        self.polled = False  #: whether the group has just read memory that other threads may change
        self.waiting_at: Array = np.full(self.count, -1)  #: barrier at which each warp waits
        #: Destination and operation of a bar.red, whose result is written when the barrier is complete.
        self.awaiting: tuple[Putter, str] | None = None
        self.flights: tuple[Flight, ...] = ()  #: products of wgmma in flight
        self.in_flight = 0  #: registers of the products in flight, as a set of bits
        self.landed: tuple[Flight, ...] = ()  #: products that have ended since the last wgmma.fence
        self.touched = -1  #: registers accessed by other instructions since the last wgmma.fence; -1: no fence yet
        #: Products that may stay in flight, or registers a thread, at the instruction where blocked warps wait.
        self.needed = 0
        self.ready()

    def ready(self) -> None:
        """Let all lanes of the group take part in the next instruction."""
        self.shape = self.mask.shape
        self.guard: Bools | None = None  #: lanes that the instruction's predicate selects; None for all
        self.active = self.mask  #: lanes that execute the instruction
        self.every = bool(self.mask.all())  #: whether these are all lanes of all rows

    @property
    def lanes(self) -> Bools | None:
        """Return the lanes that execute the instruction; None for all."""
        return None if self.every else self.active

    def outstanding_stores(self) -> Collection[int]:
        """Return no tickets: program order holds among a thread's accesses to one address."""
        return ()

    def signature(self) -> tuple[object, ...]:
        return (self.blocked, id(self.env), self.flights)

    def fly(self, flights: tuple[Flight, ...]) -> None:
        """Set the products in flight."""
        self.flights, self.in_flight = flights, 0
        for flight in flights:
            self.in_flight |= flight.results | flight.factors

    def await_rows(self, ready: Bools, at: int, needed: int, *, resumes: bool = False) -> None:
        """Let rows that are not `ready` wait at the instruction that the group has just executed, and repeat it later.

        Rows that are ready repeat it now, or go on if the instruction `resumes` behind itself. `at` is PRODUCTS,
        REGISTERS or CLUSTER; `needed`: products that may stay in flight, or registers a thread.
        """
        self.needed = needed
        self.waiting_at = np.where(ready, -1, at)
        here = self.pc - 1
        following = 2 * self.pc if resumes else 2 * here
        self.targets = np.where(self.mask, np.where(ready, following, 2 * here + 1)[:, None], -1)

    # -- registers ----------------------------------------------------------------------------------------------------

    def read(self, number: int) -> Array:
        """Return a register, unsigned or bool [rows, lanes]."""
        value = self.r[number]
        if value is None:
            value = np.zeros(self.shape, self.env.dtypes[number])
            self.r[number], self.p[number] = value, np.ones(self.shape, np.bool_)
        return value

    def put(self, number: int, value: Array, poison: Bools | None = None) -> None:
        """Write a register in the lanes that execute the instruction."""
        if value.shape != self.shape:
            value = np.broadcast_to(value, self.shape)
        dtype = self.env.dtypes[number]
        if value.dtype != dtype:
            value = np.ascontiguousarray(value).view(dtype)
        if self.guard is not None:
            old, undefined = self.read(number), self.p[number]
            value = np.where(self.guard, value, old)
            if poison is not None or undefined is not None:
                new: Array | bool = False if poison is None else poison
                poison = np.where(self.guard, new, False if undefined is None else undefined)
        if poison is not None:
            poison = np.broadcast_to(poison, self.shape)
        self.r[number], self.p[number] = value, poison

    def undefined(self, numbers: Sequence[int]) -> Bools | None:
        """Return flags of the lanes in which any of some registers is undefined; None if there are none."""
        union: Bools | None = None
        for number in numbers:
            if self.r[number] is None:
                self.read(number)
            flags = self.p[number]
            if flags is not None:
                union = flags if union is None else union | flags
        return union

    def flags(self, numbers: Sequence[int]) -> Bools:
        """Return flags [rows, lanes] of the lanes in which any of some registers is undefined."""
        undefined = self.undefined(numbers)
        return np.zeros(self.shape, np.bool_) if undefined is None else undefined

    # -- splitting and merging ----------------------------------------------------------------------------------------

    def select(self, rows: Array) -> Self:
        mask = np.zeros(self.shape, np.bool_)
        mask[rows] = self.mask[rows]
        return self.part(mask, self.pc)

    def part(self, mask: Bools, pc: int) -> Self:
        """Return the group of some lanes, which goes on at `pc` with the registers that are read from there."""
        rows = np.flatnonzero(mask.any(axis=1))
        part = copy(self)
        part.pc, part.targets = pc, None
        whole = len(rows) == self.count
        for name in _BY_ROW:
            setattr(part, name, getattr(self, name)[rows])
        part.count = len(rows)
        part.mask = mask if whole else mask[rows]
        part.ready()
        part.r, part.p = [None] * len(self.r), [None] * len(self.p)
        for number in self.env.live(pc):
            value, flags = self.r[number], self.p[number]
            if value is None:
                continue
            part.r[number] = value if whole else value[rows]
            if flags is not None:
                kept = (flags if whole else flags[rows]) & part.mask
                part.p[number] = kept if kept.any() else None
        return part

    def reversed(self) -> Self:
        """Put the warps of this group, which has not executed anything yet, in descending order; return the group."""
        for name in (*_BY_ROW, "mask"):
            setattr(self, name, getattr(self, name)[::-1].copy())
        self.ready()
        return self

    def merge(self, other: Self) -> Self:
        """Return both groups as one; two parts of a warp become one row."""
        merged = copy(self)
        threads = np.concatenate((self.thread, other.thread))
        unique, first = np.unique(threads, return_index=True)
        order = np.sort(first)  # row of the result -> row of this group and, behind its rows, of the other group
        place = np.empty(len(unique), np.int64)
        place[np.argsort(first, kind="stable")] = np.arange(len(unique))
        second = place[np.searchsorted(unique, other.thread)]  # row of the result for each row of the other group
        pick = np.repeat(order[:, None], LANES, axis=1)  # [rows, lanes] of the result -> row, as in `order`
        # rows of the other group whose warp has a row in this group, too: their lanes join that row
        theirs = np.flatnonzero(order[second] != np.arange(len(second)) + self.count)
        pick[second[theirs]] = np.where(other.mask[theirs], (theirs + self.count)[:, None], pick[second[theirs]])
        flat = pick * LANES + np.arange(LANES)
        plain = not len(theirs)
        for name in _BY_ROW:
            setattr(merged, name, np.concatenate((getattr(self, name), getattr(other, name)))[order])
        merged.count, merged.targets = len(order), None
        merged.mask = np.concatenate((self.mask, other.mask)).reshape(-1)[flat]
        merged.issued = max(self.issued, other.issued)
        merged.touched = self.touched | other.touched
        merged.ready()
        merged.r, merged.p = [None] * len(self.r), [None] * len(self.p)
        for number in self.env.live(self.pc):
            if self.r[number] is None and other.r[number] is None:
                continue
            value = np.concatenate((self.read(number), other.read(number)))
            merged.r[number] = value if plain else value.reshape(-1)[flat]
            mine, their = self.p[number], other.p[number]
            if mine is None and their is None:
                continue
            flags = np.concatenate(
                [np.zeros(g.shape, np.bool_) if p is None else p for g, p in ((self, mine), (other, their))]
            )
            poison = flags.reshape(-1)[flat] & merged.mask
            merged.p[number] = poison if poison.any() else None
        return merged
