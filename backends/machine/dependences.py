"""Dependences between the instructions of a basic block, with latencies in issue slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from convgen.backends.machine.barrier_accesses import Ahead
from convgen.backends.machine.instruction import Access, Instruction, VirtualRegister

#: Index of an instruction, whether it is of the loop's next iteration, and the instructions that must precede it: index
#: in the block -> issue slots until the instruction no longer waits for that one.
Dependences = tuple[int, bool, dict[int, int]]


def dependences(body: Sequence[Instruction], published: Ahead, iterations: int = 1) -> Iterator[Dependences]:
    """Yield the dependences within a block; with two `iterations` also those of a loop's next one on this.

    A memory access depends on accesses that it may conflict with; a barrier keeps shared-memory accesses on their side.
    A copy from global to shared memory may cross barriers, except the barrier that publishes it (`published`). In a
    loop all accesses may, since the next barrier comes soon; none crosses a barrier that orders it against another
    subgroup.
    """
    latencies, is_loop = [i.op.latency for i in body], iterations > 1
    registers = _Registers(latencies)
    flags, memory = _Flags(body, is_loop=is_loop), _Memory(body, published, is_loop=is_loop)
    for iteration in range(iterations):
        for n, i in enumerate(body):
            predecessors = registers.step(n, i, last=iteration > 0)
            for before in flags.step(n) if not iteration else ():
                predecessors[before] = max(predecessors.get(before, 0), 1)
            for before in memory.step(n, iteration, is_barrier=i.op.barrier):
                if before < len(body):  # the next iteration's own accesses do not matter
                    predecessors[before] = max(predecessors.get(before, 0), latencies[before] if i.op.barrier else 1)
            if predecessors:
                yield n, iteration > 0, predecessors


class _Kind(NamedTuple):
    """The common properties of some memory operations and barriers; each barrier is a kind of its own."""

    is_fence: bool
    barrier: Instruction | None
    origin: Access | None  #: source of a copy from one memory to another
    accesses: tuple[Access, ...]  #: all memory that it touches

    @property
    def is_shared(self) -> bool:
        """Return whether it touches shared memory."""
        return any(a.space == "shared" for a in self.accesses)


def _kind(i: Instruction) -> _Kind | None:
    """Return the kind of an instruction; None if it neither touches memory nor orders accesses."""
    if i.access is None and not i.op.barrier and not i.op.fence:
        return None
    return _Kind(i.op.fence, i if i.op.barrier else None, i.origin, i.accesses)


class _Memory:
    """The memory operations and barriers so far, by kind; which kinds must follow which is decided once a kind.

    Operations are numbered in order, those of the next iteration after those of this one; a set of them is a bit mask.
    """

    def __init__(self, body: Sequence[Instruction], published: Ahead, *, is_loop: bool) -> None:
        of_each = list(map(_kind, body))
        kinds = list(dict.fromkeys(kind for kind in of_each if kind is not None))
        number = {kind: n for n, kind in enumerate(kinds)}
        self._kinds = [-1 if kind is None else number[kind] for kind in of_each]  # of each instruction, by number
        self._before = [
            [n for n, other in enumerate(kinds) if _ordered(other, kind, published, is_loop=is_loop)] for kind in kinds
        ]
        self._members = [0] * len(kinds)
        self._preceding: dict[int, int] = {}  #: operation -> the operations that precede it, and itself
        self._awaited: dict[int, int] = {}  #: barrier -> the operations that it waits for

    def step(self, n: int, iteration: int, *, is_barrier: bool) -> list[int]:
        """Return the earlier operations that an instruction must follow, and record the instruction.

        The result omits what follows transitively: predecessors of a predecessor, and, for a barrier, operations that
        an earlier barrier has waited for.
        """
        kind = self._kinds[n]
        if kind < 0:
            return []
        remaining = 0
        for other in self._before[kind]:
            remaining |= self._members[other]
        place = iteration * len(self._kinds) + n
        preceding = 1 << place
        if is_barrier:
            self._awaited[place] = remaining
        predecessors = []
        while remaining:
            latest = remaining.bit_length() - 1
            predecessors.append(latest)
            preceding |= self._preceding[latest]
            remaining &= ~(1 << latest | self._awaited.get(latest, 0) if is_barrier else preceding)
        self._members[kind] |= 1 << place
        self._preceding[place] = preceding
        return predecessors


def _ordered(before: _Kind, after: _Kind, published: Ahead, *, is_loop: bool) -> bool:
    """Return whether two memory operations or barriers must keep their order.

    In a loop, accesses may cross barriers that do not publish them.
    """
    if before.is_fence or after.is_fence:
        return True
    if before.barrier is not None:
        return after.barrier is not None or after.is_shared
    if after.barrier is not None:
        if before.origin is None and not is_loop:
            return before.is_shared
        return any(a.conflicts(other) for a in before.accesses for other in published[after.barrier])
    for a in before.accesses:
        for b in after.accesses:
            if a.region == b.region and a.conflicts(b):
                return True
    return False


class _Flags:
    """The last setter of each flag that has a reader, its readers, and later setters without readers.

    Most scalar instructions set a flag without a reader; their order does not matter, as long as they stay between the
    setters with readers. A flag that a block sets last may have a reader in a later block, except in a loop body: the
    loop's branch sets its flag.
    """

    def __init__(self, body: Sequence[Instruction], *, is_loop: bool) -> None:
        self._body = body
        self._setters_with_readers = set(_setters_with_readers(body, is_loop))
        self._setter: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        self._idle: dict[str, list[int]] = {}  #: setters since, without readers

    def step(self, n: int) -> set[int]:
        """Return the instructions that instruction `n` must follow because of flags."""
        predecessors, i = set[int](), self._body[n]
        for flag in i.flag_uses():
            if flag in self._setter:
                predecessors.add(self._setter[flag])
            self._readers.setdefault(flag, []).append(n)
        for flag in i.flag_defs():
            predecessors.update(self._readers.get(flag, ()))
            if (n, flag) in self._setters_with_readers:
                predecessors.update(self._idle.pop(flag, ()))
                self._setter[flag], self._readers[flag] = n, []
            else:
                self._idle.setdefault(flag, []).append(n)
        return predecessors - {n}


def _setters_with_readers(body: Sequence[Instruction], is_loop: bool) -> Iterator[tuple[int, str]]:
    """Yield each instruction that sets a flag for a reader, with the flag."""
    asked: dict[str, bool] = {}  #: whether the next instruction that names the flag reads it
    for n in reversed(range(len(body))):
        for flag in body[n].flag_defs():
            if asked.get(flag, not is_loop):
                yield n, flag
            asked[flag] = False
        asked |= dict.fromkeys(body[n].flag_uses(), True)


#: Register tuple -> instructions that wrote or read it: index, first word, word past the last.
_History = dict[VirtualRegister, list[tuple[int, int, int]]]


class _Registers:
    """Last writers and readers of each register tuple, by overlapping words."""

    def __init__(self, latencies: Sequence[int]) -> None:
        self._latencies = latencies
        self._writes: _History = {}
        self._reads: _History = {}

    def step(self, n: int, i: Instruction, *, last: bool) -> dict[int, int]:
        """Return the instructions that instruction `n` must follow because of registers, with the latencies.

        Instruction `n` replaces the writers and readers of the words that it writes. Instructions of the `last`
        iteration are not recorded.
        """
        predecessors: dict[int, int] = {}
        writes, reads, latencies = self._writes, self._reads, self._latencies
        used = i.uses()
        for r in used:
            first, end = r.first, r.first + r.count
            for m, lo, hi in writes.get(r.vreg, ()):
                if lo < end and first < hi and predecessors.get(m, -1) < latencies[m]:
                    predecessors[m] = latencies[m]
        for r in i.defs():
            v, first, end = r.vreg, r.first, r.first + r.count
            for history, latency in ((writes, 1), (reads, 0)):
                if runs := history.get(v):
                    history[v] = remaining = []
                    for run in runs:
                        m, lo, hi = run
                        if lo < end and first < hi and predecessors.get(m, -1) < latency:
                            predecessors[m] = latency
                        if lo < first or end < hi:
                            remaining.append(run)
            if not last:
                writes.setdefault(v, []).append((n, first, end))
        for r in used if not last else ():
            reads.setdefault(r.vreg, []).append((n, r.first, r.first + r.count))
        return predecessors
