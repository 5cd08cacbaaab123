"""Accesses to shared memory between barriers: what may lie between a barrier and its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from convgen.ir.expr import Const
from convgen.ir.layout.memory import Shared
from convgen.ir.mutate import statements
from convgen.ir.stmt import Barrier, Block, ExitIf, For, If, LoadShared, Stmt, StoreShared, TileCopy


class Access(NamedTuple):
    """An access to a shared tile; `slot` is None if it is no constant, and in an overlay: its slots lie elsewhere."""

    tile: Shared
    slot: int | None
    write: bool

    def conflicts(self, other: Access) -> bool:
        same = self.tile.region == other.tile.region and (self.write or other.write)
        return same and (self.slot is None or other.slot is None or self.slot == other.slot)

    def shifted(self, by: int) -> Access:
        """Return the access as another iteration of a circular loop names it: `by` is what it adds to slots."""
        slots = self.tile.slots
        return self if self.slot is None or slots == 1 else self._replace(slot=(self.slot + by) % slots)

    def anywhere(self) -> Access:
        """Return the access as code outside a circular loop sees it: to any slot if there are several."""
        return self if self.tile.slots == 1 else self._replace(slot=None)


class Accesses(dict[Stmt, frozenset[Access]]):
    """The accesses of statements to tiles that other subgroups may access, too; or, `of_subgroup`, to all tiles."""

    def __init__(self, private: Container[Shared], *, of_subgroup: bool = False) -> None:
        super().__init__()
        self.private, self.of_subgroup = private, of_subgroup

    def __missing__(self, s: Stmt) -> frozenset[Access]:
        counts = s.site and (self.of_subgroup or not s.site.private)
        self[s] = frozenset(self._found(s)) if counts else frozenset()
        return self[s]

    def _found(self, s: Stmt) -> Iterator[Access]:
        slot = s.site.slot if s.site and s.site.slot >= 0 else None
        if isinstance(s, (TileCopy, LoadShared, StoreShared)):
            slot = s.slot.bits if isinstance(s.slot, Const) and s.tile.region == s.tile.name else None
        tiles = (m for m in s.memory() if isinstance(m, Shared) and m not in self.private)
        return (Access(tile, slot, tile in s.writes) for tile in tiles)


class Reach:
    """The accesses that may lie between a barrier and the next barrier (or the kernel's end), in one direction."""

    def __init__(self, forward: bool, accesses: Mapping[Stmt, frozenset[Access]]) -> None:
        self.accesses = accesses
        self.forward = forward
        self.ordered: Callable[[Iterable[Stmt]], Iterable[Stmt]] = iter if forward else lambda s: reversed(tuple(s))
        self.at: dict[Barrier, frozenset[Access]] = {}

    def walk(self, s: Stmt, seen: frozenset[Access]) -> frozenset[Access]:
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
                return self._loop(s, seen)
        return seen | self.accesses[s]

    def _loop(self, s: For, seen: frozenset[Access]) -> frozenset[Access]:
        """Return the accesses since the last barrier behind a loop, which may not run at all."""
        head = seen if self.forward or not s.circular else frozenset(a.anywhere() for a in seen)
        end = self.walk(s.body, head)
        while not (next_head := self._next_iteration(s, end)) <= head:
            head |= next_head
            end = self.walk(s.body, head)
        inside = list(statements(s.body))
        if any(isinstance(n, ExitIf) for n in inside):
            end = end.union(*(self.accesses[n] for n in inside))
        return seen | (frozenset(a.anywhere() for a in end) if self.forward and s.circular else end)

    def _next_iteration(self, s: For, end: frozenset[Access]) -> frozenset[Access]:
        """Return accesses of an iteration as the one that the walk takes next names them."""
        return frozenset(a.shifted(-1 if self.forward else 1) for a in end) if s.circular else end
