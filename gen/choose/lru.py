"""Memory traffic of a launch, simulated step by step through least-recently-used caches of blocks.

The units of a die share an L2; its misses go to the memory-side cache, if there is one, and then to memory. All
workgroups of a wave (here: the workgroups in flight on a die) use one block of each input per step, at once or each a
fixed number of steps behind. Blocks are those of a matrix product: halos that tiles of a convolution share are counted
for each tile (`traffic.py` shares them). The result is not counted.

Where units have a cache of their own, each workgroup's blocks go through it first. With `pitches`, L2 is modelled as
one cache for each set of channels over which a block of K lies: if the row pitch is a multiple of the channels' span,
all rows of a block lie in the same few channels, whose capacity is less than what a wave reads. In both cases the order
in which workgroups arrive matters: that of the launch, up to `ARRIVAL` of the wave late.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from math import gcd

import attrs
import numpy as np

from convgen.choose.panels import Ints
from convgen.choose.traffic import Flags, Moved, Schedule, Tiles
from convgen.ir.facts import Caches
from convgen.ir.record import frozen

#: Most lateness of a workgroup, as a share of its wave's workgroups. Assumed: in strict order one of six published hit
#: rates is missed by 12 points (4096x4096x4096 in groups of 4); from .2 to 2 all come out within 5.
ARRIVAL = 0.5
#: multiples of the golden ratio fill an interval evenly: a deterministic spread of lateness
_GOLDEN = 0.6180339887498949
LAGS = 9  #: a workgroup's lag, where modelled, is its number modulo this: 0 to 8 steps


@frozen(kw_only=True)
class Steps:
    """The blocks that a workgroup reads in each step along K, or along its slice."""

    count: int
    rows: int  #: bytes; block of the input along M
    columns: int  #: bytes; block of the input along N
    depth: int = 0  #: bytes; row of a block, along K
    pitches: tuple[int, int] = (0, 0)  #: bytes; between rows of each input; 0: channels are not modelled


class _Lru:
    """A cache of whole blocks that evicts the least recently used one."""

    def __init__(self, capacity: int) -> None:
        self._free, self._sizes = capacity, OrderedDict[int, int]()
        self.missed = 0

    def use(self, block: int, size: int) -> bool:
        """Use a block of `size` bytes and return whether it was cached."""
        blocks = self._sizes
        if block in blocks:
            blocks.move_to_end(block)
            return True
        self.missed += size
        self._free -= size
        blocks[block] = size
        while self._free < 0:
            self._free += blocks.popitem(last=False)[1]
        return False


@frozen
class _Pace:
    """The steps by which a workgroup lags behind the first, and its direction along K."""

    lag: int
    backwards: bool

    def step(self, time: int, steps: int) -> int:
        """Return the block of K at a time; -1 before the first and after the last."""
        k = time - self.lag
        return -1 if not 0 <= k < steps else steps - 1 - k if self.backwards else k


@frozen
class _Wave:
    """Workgroups in flight on a die: for each the numbers of its first blocks along M and N, and its pace."""

    blocks: list[tuple[int, int, _Pace]] = attrs.Factory(list)

    def paces(self) -> list[tuple[_Pace, list[int], list[int]]]:
        """Return, for each pace, the distinct first blocks along M and N."""
        firsts: dict[_Pace, tuple[dict[int, None], dict[int, None]]] = {}
        for row, column, pace in self.blocks:
            rows, columns = firsts.setdefault(pace, ({}, {}))
            rows[row] = columns[column] = None
        return [(pace, list(rows), list(columns)) for pace, (rows, columns) in firsts.items()]


class _Hierarchy:
    """The caches of a launch, and the bytes requested from all L2s."""

    def __init__(self, caches: Caches, units: int, steps: Steps) -> None:
        self._parts = _parts(steps, caches)
        self._steps, self._caches = steps, caches
        units_of_die = units // caches.dies if caches.unit_bytes else 0
        self._near = [[_Lru(caches.unit_bytes) for _ in range(units_of_die)] for _ in range(caches.dies)]
        self._l2 = [[_Lru(caches.l2_bytes // self._parts) for _ in range(self._parts)] for _ in range(caches.dies)]
        self._side = _Lru(caches.memory_side_bytes)
        self._requested = 0

    @property
    def ordered(self) -> bool:
        """Whether the order in which a wave's workgroups arrive matters."""
        return self._parts > 1 or self._caches.unit_bytes > 0

    def use(self, die: int, k: int, block: int, size: int, workgroup: int) -> None:
        near = self._near[die]
        if near and near[workgroup % len(near)].use(block, size):
            return
        self._requested += size
        part = _channel(k, self._steps, self._caches) % self._parts if self._parts > 1 else 0
        if not self._l2[die][part].use(block, size):
            self._side.use(block, size)

    def moved(self, workgroups: int) -> Moved:
        bytes_of_workgroup = self._steps.count * (self._steps.rows + self._steps.columns)
        requested = self._requested if any(self._near) else workgroups * bytes_of_workgroup
        filled = sum(part.missed for parts in self._l2 for part in parts)
        memory = self._side.missed if self._caches.memory_side_bytes else filled
        return Moved(float(requested), float(filled), float(memory))


def simulate(
    tiles: Tiles,
    steps: Steps,
    caches: Caches,
    units: int,
    per_unit: int = 1,
    *,
    k_reversed: Flags | None = None,
    takers: Ints | None = None,
    lag: bool = False,
) -> Moved:
    """Return the bytes moved by a launch on `units` compute units of all dies, `per_unit` workgroups on each."""
    in_flight = max(1, units // caches.dies) * per_unit
    schedule = Schedule.of(tiles, caches.dies, in_flight, k_reversed, takers)
    all_caches = _Hierarchy(caches, units, steps)
    for waves in _rounds(schedule, steps, lag):
        accesses = [_arrivals(wave, steps) if all_caches.ordered else _together(wave, steps) for wave in waves]
        for time in range(steps.count + (LAGS - 1) * lag):
            for die, accesses_at in enumerate(accesses):
                for access in accesses_at(time):
                    all_caches.use(die, *access)
    return all_caches.moved(len(schedule.number))


def _rounds(at: Schedule, steps: Steps, lag: bool) -> Iterator[list[_Wave]]:
    """Yield the waves of each round, by die; blocks are numbered by tile, slice and step, blocks along N last."""
    blocks = (at.tile[:, :2] * at.slices + at.tile[:, 2:]) * steps.count
    blocks[:, 1] += int(blocks[:, 0].max(initial=0)) + steps.count
    order = np.argsort(at.round, kind="stable")
    ends = np.searchsorted(at.round[order], np.arange(at.rounds + 1)).tolist()
    for begin, end in pairwise(ends):
        waves = [_Wave() for _ in range(int(at.die.max()) + 1)]
        for n in order[begin:end].tolist():
            wave = waves[at.die[n]].blocks
            pace = _Pace(len(wave) % LAGS if lag else 0, bool(at.backwards[n]))
            wave.append((int(blocks[n, 0]), int(blocks[n, 1]), pace))
        yield waves


Access = tuple[int, int, int, int]  #: step, block, bytes, workgroup of the wave
Users = Callable[[int], Iterable[Access]]


def _together(wave: _Wave, steps: Steps) -> Users:
    """Return a function from a time to the accesses of a wave, each block once: rows, then columns."""
    paces = wave.paces()

    def used(time: int) -> Iterator[Access]:
        for pace, rows, columns in paces:
            k = pace.step(time, steps.count)
            if k >= 0:
                yield from ((k, row + k, steps.rows, 0) for row in rows)
                yield from ((k, column + k, steps.columns, 0) for column in columns)

    return used


def _arrivals(wave: _Wave, steps: Steps) -> Users:
    """Return a function from a time to the accesses of each workgroup, in the order of their arrival."""
    turns = np.arange(len(wave.blocks))

    def used(time: int) -> Iterator[Access]:
        late = (turns + 1) * (time + 1) * _GOLDEN % 1
        for n in np.argsort(turns + ARRIVAL * len(turns) * late, kind="stable").tolist():
            row, column, pace = wave.blocks[n]
            k = pace.step(time, steps.count)
            if k >= 0:
                yield k, row + k, steps.rows, n
                yield k, column + k, steps.columns, n

    return used


def _parts(steps: Steps, caches: Caches) -> int:
    """Return the number of equal caches that model L2: one for each set of channels that a block of K may occupy."""
    if not all(steps.pitches):
        return 1
    # distinct places, within the span of all channels, at which rows of an input start
    starts = max(caches.camp_bytes // gcd(pitch, caches.camp_bytes) for pitch in steps.pitches)
    reached = min(caches.channels, starts * max(1, steps.depth // caches.channel_bytes))
    return max(1, caches.channels // reached)


def _channel(k: int, steps: Steps, caches: Caches) -> int:
    """Return the index of the channel set of a block of K, not wrapped."""
    return k * steps.depth // max(steps.depth, caches.channel_bytes, 1)
