"""Which instructions of a basic block must follow which others, and how much later they need not wait for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from convgen.backends.machine.epochs import Ahead
from convgen.backends.machine.instruction import Access, Instruction, Reg, VirtualRegister


class Edge(NamedTuple):
    """`after` must not stand before `before`; issued `latency` slots later it need not wait."""

    before: int  #: places in the block
    after: int
    latency: int
    carried: bool = False  #: `after` is of the next turn of the block, which is a loop


def dependences(body: Sequence[Instruction], published: Ahead, turns: int = 1) -> Iterator[Edge]:
    """The dependences within a block, each once; with two turns also those of the next turn on this one.

    Memory accesses depend on accesses that they may conflict with; a barrier keeps those of shared memory on its side.
    What goes there from global memory may be under way across barriers, but for the one by which it is `published`.
    """
    latencies = [i.op.latency for i in body]
    used, defined = [_runs(i.uses()) for i in body], [_runs(i.defs()) for i in body]
    named = [(*i.flag_uses(), *i.flag_defs()) for i in body]
    registers, flags, memory = _Registers(), dict[str, int](), _Memory(body, published)
    for turn in range(turns):
        for n, i in enumerate(body):
            found: dict[int, int] = {}  # before -> latency
            registers.follow(used[n], defined[n], latencies, found)
            for flag in named[n]:
                if flag in flags:
                    found[flags[flag]] = max(found.get(flags[flag], 0), 1)
            for before in memory.follow(n):
                found[before] = max(found.get(before, 0), latencies[before] if i.op.barrier else 1)
            for before, latency in found.items():
                yield Edge(before, n, latency, turn > 0)
            registers.overwrite(defined[n])
            if turn:  # of what follows only this turn matters
                for flag in named[n]:
                    flags.pop(flag, None)
            else:
                registers.add(n, used[n], defined[n])
                flags.update(dict.fromkeys(named[n], n))
                memory.add(n)


#: Words of a register tuple: from the first to the one behind the last.
_Run = tuple[VirtualRegister, int, int]


def _runs(registers: Sequence[Reg]) -> list[_Run]:
    return [(r.vreg, r.first, r.first + r.count) for r in registers]


class _Kind(NamedTuple):
    """What memory operations and barriers are told apart by; each barrier is a kind of its own."""

    is_fence: bool
    barrier: Instruction | None
    access: Access | None
    origin: Access | None

    @property
    def accesses(self) -> tuple[Access, ...]:
        """All that it touches."""
        return tuple(a for a in (self.access, self.origin) if a is not None)

    @classmethod
    def of(cls, i: Instruction) -> _Kind | None:
        if i.access is None and not i.op.barrier and not i.op.fence:
            return None
        return cls(i.op.fence, i if i.op.barrier else None, i.access, i.origin)


class _Memory:
    """The memory operations and barriers so far, by kind: which kinds follow which is decided once."""

    def __init__(self, body: Sequence[Instruction], published: Ahead) -> None:
        self._kinds = [_Kind.of(i) for i in body]
        members: dict[_Kind, list[int]] = {kind: [] for kind in self._kinds if kind is not None}
        self._members = members
        self._before = {
            kind: [members[other] for other in members if _ordered(other, kind, published)] for kind in members
        }

    def follow(self, n: int) -> Iterator[int]:
        """The operations so far that an instruction must follow."""
        kind = self._kinds[n]
        if kind is not None:
            for members in self._before[kind]:
                yield from members

    def add(self, n: int) -> None:
        """An instruction joins them if it is one."""
        kind = self._kinds[n]
        if kind is not None:
            self._members[kind].append(n)


def _ordered(before: _Kind, after: _Kind, published: Ahead) -> bool:
    """Whether two memory operations (or barriers) must keep their order."""
    if before.is_fence or after.is_fence:
        return True
    if after.barrier is not None and before.origin is not None and before.access is not None:
        return any(before.access.conflicts(other) for other in published[after.barrier])
    if before.barrier is not None or after.barrier is not None:
        other = after if before.barrier is not None else before
        return other.barrier is not None or any(a.space == "shared" for a in other.accesses)
    return any(a.conflicts(b) for a in before.accesses for b in after.accesses)


class _Registers:
    """Last writers and readers of each register tuple, by overlapping words."""

    def __init__(self) -> None:
        self._writes: dict[VirtualRegister, list[tuple[int, int, int]]] = {}
        self._reads: dict[VirtualRegister, list[tuple[int, int, int]]] = {}

    def follow(
        self, used: Sequence[_Run], defined: Sequence[_Run], latencies: Sequence[int], found: dict[int, int]
    ) -> None:
        """Find the instructions that one with these operands must follow, and how much later."""
        for v, first, end in used:
            for n, lo, hi in self._writes.get(v, ()):
                if lo < end and first < hi and found.get(n, -1) < latencies[n]:
                    found[n] = latencies[n]
        for v, first, end in defined:
            for n, lo, hi in self._writes.get(v, ()):
                if lo < end and first < hi and found.get(n, 0) < 1:
                    found[n] = 1
            for n, lo, hi in self._reads.get(v, ()):
                if lo < end and first < hi:
                    found.setdefault(n, 0)

    def overwrite(self, defined: Sequence[_Run]) -> None:
        """Forget those whose words have all been written again."""
        for v, first, end in defined:
            for table in (self._writes, self._reads):
                if v in table:
                    table[v] = [(n, lo, hi) for n, lo, hi in table[v] if lo < first or end < hi]

    def add(self, n: int, used: Sequence[_Run], defined: Sequence[_Run]) -> None:
        """An instruction becomes one of them."""
        for table, runs in ((self._writes, defined), (self._reads, used)):
            for v, first, end in runs:
                table.setdefault(v, []).append((n, first, end))
