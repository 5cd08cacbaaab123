"""Which instructions of a basic block must follow which others, and how much later they need not wait for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from convgen.backends.machine.epochs import Ahead
from convgen.backends.machine.instruction import Access, Instruction, VirtualRegister

#: The place of an instruction in the block, whether it is of the next turn of the block, which is a loop, and what it
#: must not stand before: places in the block, each with a latency; issued so many slots later it need not wait.
Dependences = tuple[int, bool, dict[int, int]]


def dependences(body: Sequence[Instruction], published: Ahead, turns: int = 1) -> Iterator[Dependences]:
    """The dependences within a block; with two turns, of a loop, also those of the next turn on this one.

    Memory accesses depend on accesses that they may conflict with; a barrier keeps those of shared memory on its side.
    What goes there from global memory may be under way across barriers, but for the one by which it is `published`. So
    may all accesses in a loop, where the next barrier comes soon: none moves to where another subgroup meets it.
    """
    latencies = [i.op.latency for i in body]
    registers, flags, memory = (
        _Registers(latencies),
        _Flags(body, is_loop=turns > 1),
        _Memory(body, published, turns > 1),
    )
    for turn in range(turns):
        for n, i in enumerate(body):
            found = registers.step(n, i, last=turn > 0)
            for before in flags.step(n) if not turn else ():
                found[before] = max(found.get(before, 0), 1)
            for before in memory.step(n, turn, is_barrier=i.op.barrier):
                if before < len(body):  # of what follows only this turn matters
                    found[before] = max(found.get(before, 0), latencies[before] if i.op.barrier else 1)
            if found:
                yield n, turn > 0, found


#: What kinds are told apart by: whether it is a fence, the barrier that it is, the memory that it touches and reads.
_Signs = tuple[bool, Instruction | None, Access | None, Access | None, Access | None]


class _Kind(NamedTuple):
    """What memory operations and barriers of one kind have in common; each barrier is a kind of its own."""

    is_fence: bool
    barrier: Instruction | None
    access: Access | None
    origin: Access | None
    accesses: tuple[Access, ...]  #: all that it touches
    is_shared: bool  #: whether that is in shared memory, some of it

    @classmethod
    def of(
        cls,
        is_fence: bool,
        barrier: Instruction | None,
        access: Access | None,
        origin: Access | None,
        also: Access | None,
    ) -> _Kind:
        accesses = tuple(a for a in (access, origin, also) if a is not None)
        return cls(is_fence, barrier, access, origin, accesses, any(a.space == "shared" for a in accesses))


def _signs(i: Instruction) -> _Signs | None:
    """Those of an instruction; None of one that neither touches memory nor keeps others in order."""
    if i.access is None and not i.op.barrier and not i.op.fence:
        return None
    return i.op.fence, i if i.op.barrier else None, i.access, i.origin, i.also


class _Memory:
    """The memory operations and barriers so far, by kind: which kinds follow which is decided once.

    They are numbered as they come, those of the next turn behind those of this one; sets of them are bits.
    """

    def __init__(self, body: Sequence[Instruction], published: Ahead, across: bool) -> None:
        signs = list(map(_signs, body))
        number = {each: n for n, each in enumerate(dict.fromkeys(each for each in signs if each is not None))}
        kinds = [_Kind.of(*each) for each in number]
        self._kinds = [-1 if each is None else number[each] for each in signs]  # by number
        self._before = [
            [n for n, other in enumerate(kinds) if _ordered(other, kind, published, across)] for kind in kinds
        ]
        self._members = [0] * len(kinds)
        self._behind: dict[int, int] = {}  #: what each follows, and itself
        self._awaited: dict[int, int] = {}  #: what each barrier waits for

    def step(self, n: int, turn: int, *, is_barrier: bool) -> list[int]:
        """The operations so far that an instruction must follow; it joins them, if it is one.

        Whoever follows another follows, too, what that one does: this goes without saying. So does, of what a barrier
        waits for, only what another barrier has waited for.
        """
        kind = self._kinds[n]
        if kind < 0:
            return []
        left = 0
        for other in self._before[kind]:
            left |= self._members[other]
        place = turn * len(self._kinds) + n
        behind = 1 << place
        if is_barrier:
            self._awaited[place] = left
        found = []
        while left:
            latest = left.bit_length() - 1
            found.append(latest)
            behind |= self._behind[latest]
            left &= ~(1 << latest | self._awaited.get(latest, 0) if is_barrier else behind)
        self._members[kind] |= 1 << place
        self._behind[place] = behind
        return found


def _ordered(before: _Kind, after: _Kind, published: Ahead, across: bool) -> bool:
    """Whether two memory operations (or barriers) must keep their order; accesses may go `across` barriers, or none."""
    if before.is_fence or after.is_fence:
        return True
    if before.barrier is not None:
        return after.barrier is not None or after.is_shared
    if after.barrier is not None:
        if before.origin is None and not across:
            return before.is_shared
        return any(a.conflicts(other) for a in before.accesses for other in published[after.barrier])
    for a in before.accesses:
        for b in after.accesses:
            if a.region == b.region and a.conflicts(b):
                return True
    return False


class _Flags:
    """Who set each flag last for somebody, who has read it, and who has set it since for nobody.

    Most scalar instructions set a flag that none reads. They stand between those that are read, in any order. Behind a
    block somebody may read what it has set last, but behind the body of a loop the flag of its branch is set.
    """

    def __init__(self, body: Sequence[Instruction], *, is_loop: bool) -> None:
        self._body = body
        self._wanted = set(_wanted(body, is_loop))
        self._setter: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        self._idle: dict[str, list[int]] = {}  #: who has set it since

    def step(self, n: int) -> set[int]:
        """The instructions that one must follow for its flags."""
        found, i = set[int](), self._body[n]
        for flag in i.flag_uses():
            if flag in self._setter:
                found.add(self._setter[flag])
            self._readers.setdefault(flag, []).append(n)
        for flag in i.flag_defs():
            found.update(self._readers.get(flag, ()))
            if (n, flag) in self._wanted:
                found.update(self._idle.pop(flag, ()))
                self._setter[flag], self._readers[flag] = n, []
            else:
                self._idle.setdefault(flag, []).append(n)
        return found - {n}


def _wanted(body: Sequence[Instruction], is_loop: bool) -> Iterator[tuple[int, str]]:
    """Which instructions set which flags for somebody."""
    asked: dict[str, bool] = {}  #: whether who names it next reads it
    for n in reversed(range(len(body))):
        for flag in body[n].flag_defs():
            if asked.get(flag, not is_loop):
                yield n, flag
            asked[flag] = False
        asked |= dict.fromkeys(body[n].flag_uses(), True)


#: Which instructions wrote words of a register tuple, or read them: the first word, and the one behind the last.
_History = dict[VirtualRegister, list[tuple[int, int, int]]]


class _Registers:
    """Last writers and readers of each register tuple, by overlapping words."""

    def __init__(self, latencies: Sequence[int]) -> None:
        self._latencies = latencies
        self._writes: _History = {}
        self._reads: _History = {}

    def step(self, n: int, i: Instruction, *, last: bool) -> dict[int, int]:
        """The instructions that the next one must follow for its registers, and how much later.

        It takes the place of those whose words it writes; the `last` ones of a turn are not remembered themselves.
        """
        found: dict[int, int] = {}
        writes, reads, latencies = self._writes, self._reads, self._latencies
        used = i.uses()
        for r in used:
            first, end = r.first, r.first + r.count
            for m, lo, hi in writes.get(r.vreg, ()):
                if lo < end and first < hi and found.get(m, -1) < latencies[m]:
                    found[m] = latencies[m]
        for r in i.defs():
            v, first, end = r.vreg, r.first, r.first + r.count
            for history, latency in ((writes, 1), (reads, 0)):
                if runs := history.get(v):
                    history[v] = left = []
                    for run in runs:
                        m, lo, hi = run
                        if lo < end and first < hi and found.get(m, -1) < latency:
                            found[m] = latency
                        if lo < first or end < hi:
                            left.append(run)
            if not last:
                writes.setdefault(v, []).append((n, first, end))
        for r in used if not last else ():
            reads.setdefault(r.vreg, []).append((n, r.first, r.first + r.count))
        return found
