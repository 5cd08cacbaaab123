"""Which instructions of a basic block must follow which others, and how much later they need not wait for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from convgen.backends.machine.epochs import Ahead
from convgen.backends.machine.instruction import Access, Instruction, VirtualRegister


class Edge(NamedTuple):
    """`after` must not stand before `before`; issued `latency` slots later it need not wait."""

    before: int  #: places in the block
    after: int
    latency: int
    carried: bool = False  #: `after` is of the next turn of the block, which is a loop


def dependences(body: Sequence[Instruction], published: Ahead, turns: int = 1) -> Iterator[Edge]:
    """The dependences within a block; with two turns also those of the next turn on this one.

    Memory accesses depend on accesses that they may conflict with; a barrier keeps those of shared memory on its side.
    What goes there from global memory may be under way across barriers, but for the one by which it is `published`.
    """
    count = len(body)
    registers = _RegisterHistory()
    flags: dict[str, int] = {}
    earlier: list[tuple[int, _Memory]] = []
    for n in range(turns * count):
        i, carried = body[n % count], n >= count
        found = [
            (before, body[before % count].op.latency if kind == "raw" else 0 if kind == "war" else 1)
            for before, kind in registers.dependences(n, i)
        ]
        for flag in (*i.flag_uses(), *i.flag_defs()):
            if flags.get(flag, n) != n:
                found.append((flags[flag], 1))
            flags[flag] = n
        if i.access is not None or i.op.barrier or i.op.fence:
            this = _Memory(i, i.accesses)
            found += (
                (before, e.instruction.op.latency if i.op.barrier else 1)
                for before, e in earlier
                if _ordered(e, this, published)
            )
            if not carried:
                earlier.append((n, this))
        for before, latency in found:
            if before < count:
                yield Edge(before, n % count, latency, carried)


class _Memory(NamedTuple):
    """A memory operation or a barrier, with all that it touches."""

    instruction: Instruction
    accesses: tuple[Access, ...]


def _ordered(before: _Memory, after: _Memory, published: Ahead) -> bool:
    """Whether two memory operations (or barriers) must keep their order."""
    first, second = before.instruction, after.instruction
    if first.op.fence or second.op.fence:
        return True
    if second.op.barrier and first.origin is not None and first.access is not None:
        return any(first.access.conflicts(other) for other in published[second])
    if first.op.barrier or second.op.barrier:
        other = after if first.op.barrier else before
        return other.instruction.op.barrier or any(a.space == "shared" for a in other.accesses)
    for a in before.accesses:
        for b in after.accesses:
            if a.conflicts(b):
                return True
    return False


class _RegisterHistory:
    """Last writers and readers of each register tuple, by overlapping words."""

    def __init__(self) -> None:
        self._writes: dict[VirtualRegister, list[tuple[int, int, int]]] = {}
        self._reads: dict[VirtualRegister, list[tuple[int, int, int]]] = {}

    def dependences(self, n: int, i: Instruction) -> Iterator[tuple[int, str]]:
        """Earlier instructions that `i` (number n) must follow; then `i` becomes part of the history."""
        for r in i.uses():
            yield from (
                (w, "raw") for w, lo, hi in self._writes.get(r.vreg, ()) if lo < r.first + r.count and r.first < hi
            )
        for r in i.defs():
            lo, hi = r.first, r.first + r.count
            yield from ((w, "waw") for w, a, b in self._writes.get(r.vreg, ()) if a < hi and lo < b and w != n)
            yield from ((u, "war") for u, a, b in self._reads.get(r.vreg, ()) if a < hi and lo < b and u != n)
        for r in i.defs():
            lo, hi = r.first, r.first + r.count
            for table in (self._writes, self._reads):
                table[r.vreg] = [(m, a, b) for m, a, b in table.get(r.vreg, ()) if not (lo <= a and b <= hi)]
            self._writes[r.vreg].append((n, lo, hi))
        for r in i.uses():
            self._reads.setdefault(r.vreg, []).append((n, r.first, r.first + r.count))
