"""Traffic of a launch through its caches, from addresses that the simulator saw: an L1 per unit, an L2 per die.

Workgroups that run to their end show how much each reads. Others run only their first instructions to show which lines
workgroups share: all that one die runs at a time, and those of its next round. Workgroups go through their loops side
by side, so L2 fetches each line that any of them touches once. Die `w % dies` runs workgroup w, on its units in turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection

import attrs
import numpy as np
import numpy.typing as npt

from convgen.backends.sim.run import Buffers
from convgen.backends.simulation import Pages
from convgen.backends.timing import Machine, Moved
from convgen.ir.record import define, frozen

Ints = npt.NDArray[np.int64]

_UNITS = 2  #: units whose L1 is modelled line by line
_BUFFER_BIT, _GROUP_BIT = 30, 38  #: where the numbers of buffer and workgroup begin above the line number
_INSTRUCTIONS_MAX = 400_000  #: wave instructions of all workgroups that run only to show which lines they share


@define(eq=False)
class Reads:
    """The lines that workgroups read, recorded by `simulate`: each line of an instruction once a workgroup."""

    line: int  #: bytes
    groups: list[Ints] = attrs.Factory(list)  #: for each access, the workgroup of each line
    lines: list[Ints] = attrs.Factory(list)  #: for each access, line numbers, unique over buffers
    halves: int = 0  #: half lines, each once a workgroup and instruction
    stored: int = 0  #: bytes
    buffers: dict[str, int] = attrs.Factory(dict)  #: buffers that were read -> number

    def __call__(self, kind: str, buffer: str, groups: Ints, offsets: Ints, size: int) -> None:
        """Record an access ("store" or a load) of `size` bytes by lanes of some workgroups at offsets of a buffer."""
        if kind == "store":
            self.stored += len(offsets) * size
            return
        place = groups << _GROUP_BIT | self.buffers.setdefault(buffer, len(self.buffers)) << _BUFFER_BIT
        self.halves += len(_distinct(place | offsets // (self.line // 2)))
        both = _distinct(place | offsets // self.line)
        self.groups.append(both >> _GROUP_BIT)
        self.lines.append(both & (1 << _GROUP_BIT) - 1)

    @property
    def count(self) -> int:
        """Return the number of lines of all accesses."""
        return sum(map(len, self.lines))

    def of(self, groups: Collection[int]) -> Ints:
        """Return the distinct lines of some workgroups."""
        wanted = np.array(sorted(groups), np.int64)
        lines = [line[np.isin(group, wanted)] for group, line in zip(self.groups, self.lines, strict=True)]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *lines]))

    def misses(self, groups: Collection[int], capacity: int) -> tuple[int, int]:
        """Return the lines that some workgroups request of a cache of `capacity` lines, and those that miss."""
        wanted, cache = np.array(sorted(groups), np.int64), OrderedDict[int, None]()
        asked = [line[np.isin(group, wanted)] for group, line in zip(self.groups, self.lines, strict=True)]
        return sum(map(len, asked)), sum(count_misses(cache, lines, capacity) for lines in asked)


def count_misses(cache: OrderedDict[int, None], lines: Ints, most: int) -> int:
    """Return how many lines miss in a cache of `most` lines, and update the cache."""
    misses = 0
    for number in lines.tolist():
        if number in cache:
            cache.move_to_end(number)
            continue
        misses += 1
        cache[number] = None
        if len(cache) > most:
            cache.popitem(last=False)
    return misses


def _distinct(numbers: Ints) -> Ints:
    """Return the distinct numbers; neighbouring lanes, which mostly touch one line, are merged first for speed."""
    first = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=first[1:])
    return np.unique(numbers[first])


@frozen
class Distribution:
    """The distribution of a launch's workgroups over dies and units."""

    machine: Machine
    workgroups: int
    per_unit: int  #: workgroups that a unit runs at a time

    @property
    def units(self) -> int:
        """Return the units of a die."""
        return self.machine.units // self.machine.dies

    @property
    def in_flight(self) -> int:
        """Return the workgroups that a die runs at a time."""
        return self.units * self.per_unit

    def round(self, number: int) -> list[int]:
        """Return the workgroups of a round on the first die."""
        mine = range(0, self.workgroups, self.machine.dies)
        return list(mine[number * self.in_flight : (number + 1) * self.in_flight])

    def unit(self, number: int) -> list[int]:
        """Return the workgroups of the first round that share a unit."""
        return self.round(0)[number :: self.units]


@frozen
class WaveLengths:
    """Instructions of a wave: all that it executes, and how many suffice to see which lines workgroups share."""

    whole: int
    window: int


@frozen(eq=False)
class WholeRun:
    """Some workgroups that ran to their end, and what they read."""

    reads: Reads
    count: int  #: workgroups
    buffers: Buffers


@frozen(eq=False)
class PartialRuns:
    """Runs of some workgroups up to a number of instructions, which record their reads."""

    run: Callable[[tuple[int, ...], int], None]  #: given workgroups and the number
    batch: int  #: workgroups to run at a time
    waves: int  #: of a workgroup


def traffic_of(
    partial_runs: PartialRuns,
    reads: Reads,
    distribution: Distribution,
    l1_bytes: int,
    whole: WholeRun,
    lengths: WaveLengths,
) -> Moved:
    """Return the traffic of a launch; `partial_runs` record `reads`, and `l1_bytes` is the size of a unit's L1."""
    machine, scale = distribution.machine, distribution.workgroups / whole.count
    # L1 is requested `requested` bytes, and L2 is asked for what misses there.
    two_rounds = _run_two_rounds(partial_runs, reads, distribution, lengths)
    requested = whole.reads.count * scale * machine.line_bytes
    asked = requested * two_rounds.miss_rate(l1_bytes // machine.line_bytes)
    buffers = whole.buffers
    read = [buffers[name] for name in whole.reads.buffers if name in buffers]
    read_bytes = sum(len(buffer.data if isinstance(buffer, Pages) else buffer) for buffer in read)
    fill = min(asked, two_rounds.fill(whole.reads.count / whole.count))
    if read_bytes <= machine.l2_bytes:
        fill = min(fill, machine.dies * read_bytes)
    memory = min(fill, read_bytes) if machine.memory_side_bytes else fill
    loaded = whole.reads.halves * scale * machine.line_bytes // 2
    stored = whole.reads.stored * scale
    return Moved(loaded=loaded, requested=requested, asked=asked, fill=fill, memory=memory, stored=stored)


@frozen(eq=False)
class _TwoRounds:
    """The reads of the workgroups of a die's round, and of its next round unless they are too many."""

    distribution: Distribution
    rounds: tuple[list[int], list[int]]
    reads: Reads

    def miss_rate(self, capacity: int) -> float:
        """Return the miss rate of an L1 of `capacity` lines."""
        counts_by_unit = [
            self.reads.misses(self.distribution.unit(n), capacity) for n in range(min(_UNITS, self.distribution.units))
        ]
        asked, misses = (sum(counts) for counts in zip(*counts_by_unit))
        return misses / asked if asked else 1.0

    def fill(self, lines: float) -> float:
        """Return the bytes that all L2s fetch, if a workgroup touches `lines` lines, with repetition.

        A later round hits lines of the round before if that round fits in L2: between two reads of a line, L2 brings a
        whole round.
        """
        machine, count = self.distribution.machine, sum(map(len, self.rounds))
        bytes_of_a_line = machine.line_bytes * lines * count / max(1, self.reads.count)
        before, after = (self.reads.of(groups) for groups in self.rounds)
        first = len(before) * bytes_of_a_line
        mine, later = len(self.rounds[0]), self.distribution.workgroups / machine.dies - len(self.rounds[0])
        if later <= 0:
            return first * self.distribution.workgroups / mine
        per_group = first / mine
        if self.rounds[1]:
            is_cached = first <= machine.l2_bytes
            per_group = len(np.setdiff1d(after, before) if is_cached else after) * bytes_of_a_line / len(self.rounds[1])
        return machine.dies * (first + later * per_group)


def _run_two_rounds(
    partial_runs: PartialRuns, reads: Reads, distribution: Distribution, lengths: WaveLengths
) -> _TwoRounds:
    """Run the workgroups of two rounds, or of one, to their end or up to a limit of instructions."""
    first, second = distribution.round(0), distribution.round(1)
    waves = partial_runs.waves * (len(first) + len(second))
    most = min(lengths.whole, max(lengths.window, _INSTRUCTIONS_MAX // waves))
    second = second if waves * most <= _INSTRUCTIONS_MAX else []
    groups = [*first, *second]
    for n in range(0, len(groups), partial_runs.batch):
        partial_runs.run(tuple(groups[n : n + partial_runs.batch]), most)
    return _TwoRounds(distribution, (first, second), reads)
