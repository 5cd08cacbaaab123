"""Remove barriers that order nothing.

A barrier is needed if an access to shared memory may precede it and a conflicting one may follow, with no other barrier
between either and this one. Removing a barrier extends the reach of its neighbours, so barriers are removed one at a
time. A workgroup of one subgroup needs none: it sees its own accesses in order.

Direct copies (global to shared memory without registers) take long, and a barrier waits for the copies it publishes. So
the barrier before reads of such a tile stays even if an earlier one would suffice: the earlier one would wait for
copies that are read iterations later.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import NamedTuple

from convgen.ir.expr import Const
from convgen.ir.layout.memory import Shared
from convgen.ir.mutate import rewrite, statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import Barrier, Block, Copy, DirectCopy, ExitIf, For, If, LoadShared, Stmt, StoreShared, empty
from convgen.passes.messages.ownership import private_tiles


class _Access(NamedTuple):
    """An access to a shared tile; `slot` is None if it is not a constant."""

    tile: Shared
    slot: int | None
    write: bool

    def conflicts(self, other: _Access) -> bool:
        same = self.tile.region == other.tile.region and (self.write or other.write)
        return same and (self.slot is None or other.slot is None or self.slot == other.slot)


class _Accesses(dict[Stmt, frozenset[_Access]]):
    """The accesses of statements to tiles that other subgroups may access, too."""

    def __init__(self, private: Container[Shared]) -> None:
        super().__init__()
        self.private = private

    def __missing__(self, s: Stmt) -> frozenset[_Access]:
        self[s] = frozenset(self._found(s)) if s.site and not s.site.private else frozenset()
        return self[s]

    def _found(self, s: Stmt) -> Iterator[_Access]:
        slot = s.site.slot if s.site and s.site.slot >= 0 else None
        if isinstance(s, (Copy, DirectCopy, LoadShared, StoreShared)):
            slot = s.slot.bits if isinstance(s.slot, Const) and s.tile.region == s.tile.name else None
        tiles = (m for m in s.memory() if isinstance(m, Shared) and m not in self.private)
        return (_Access(tile, slot, tile in s.writes) for tile in tiles)


def drop_barriers(kernel: Kernel) -> Kernel:
    """Remove barriers that order nothing; either level."""
    body, accesses = kernel.body, _Accesses(private_tiles(kernel))
    copied = {s.tile for s in statements(body) if isinstance(s, DirectCopy)}  # tiles that direct copies write
    while True:
        barriers = [s for s in statements(body) if isinstance(s, Barrier)]
        before, after = _Reach(True, accesses), _Reach(False, accesses)
        before.walk(body, frozenset())
        after.walk(body, frozenset())
        is_alone = kernel.subgroups == 1
        orders = ((b, _conflict(before.at[b], after.at[b]) or _reads(copied, after.at[b])) for b in barriers)
        useless = next((b for b, needed in orders if is_alone or not needed), None)
        if useless is None:
            return evolve(kernel, body=body)
        body = _without(body, useless)


def _without(body: Stmt, useless: Barrier) -> Stmt:
    return rewrite(body, {type(useless): lambda b: empty if b is useless else b})


def _conflict(before: Iterable[_Access], after: Iterable[_Access]) -> bool:
    later = tuple(after)
    return any(a.conflicts(b) for a in before for b in later)


def _reads(tiles: Container[Shared], after: Iterable[_Access]) -> bool:
    return any(a.tile in tiles and not a.write for a in after)


class _Reach:
    """The accesses that may lie between a barrier and the next barrier (or the kernel's end), in one direction."""

    def __init__(self, forward: bool, accesses: _Accesses) -> None:
        self.accesses = accesses
        self.ordered: Callable[[Iterable[Stmt]], Iterable[Stmt]] = iter if forward else lambda s: reversed(tuple(s))
        self.at: dict[Barrier, frozenset[_Access]] = {}  #: accesses that reach each barrier

    def walk(self, s: Stmt, seen: frozenset[_Access]) -> frozenset[_Access]:
        """Return the accesses since the last barrier behind `s`, given those before `s`; note them at barriers.

        "Behind" and "before" follow the direction of the walk.
        """
        match s:
            case Block(stmts):
                for x in self.ordered(stmts):
                    seen = self.walk(x, seen)
                return seen
            case Barrier():
                self.at[s] = self.at.get(s, frozenset()) | seen
                return frozenset()
            case If(_, then, other):
                return self.walk(then, seen) | self.walk(other, seen)
            case For():
                once = self.walk(s.body, seen)
                again = once if once <= seen else self.walk(s.body, seen | once)
                # The loop may not run at all, or an exit may leave it.
                inside = list(statements(s.body))
                if any(isinstance(n, ExitIf) for n in inside):
                    again = again.union(*(self.accesses[n] for n in inside))
                return seen | once | again
        return seen | self.accesses[s]
