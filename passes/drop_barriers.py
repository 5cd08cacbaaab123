"""Remove barriers that order nothing.

A barrier is needed where an access to shared memory may come before it and a conflicting one after it, with no other
barrier between either and this one. Dropping one brings the neighbours of others together, so barriers go one by one.
In a workgroup of one subgroup none is needed: it sees its own accesses in order.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

import attrs

from convgen.ir.expr import Const, Expr
from convgen.ir.memory import Shared
from convgen.ir.mutate import postorder
from convgen.ir.program import Kernel
from convgen.ir.stmt import (
    Barrier,
    Block,
    Copy,
    ExitIf,
    For,
    If,
    LoadShared,
    SharedRead,
    SharedWrite,
    Stmt,
    StoreShared,
    block,
)
from convgen.passes.ownership import private_tiles


@attrs.frozen(cache_hash=True)
class _Access:
    """A touch of a shared tile; `slot` is None where it is not a constant."""

    tile: Shared
    slot: int | None
    write: bool

    def conflicts(self, other: _Access) -> bool:
        same = self.tile is other.tile and (self.write or other.write)
        return same and (self.slot is None or other.slot is None or self.slot == other.slot)


def _access(s: Stmt, private: Container[Shared]) -> frozenset[_Access]:
    """What a statement touches that other subgroups may touch as well."""
    match s:
        case Copy() | StoreShared() | LoadShared() if s.tile not in private:
            return frozenset([_Access(s.tile, _constant(s.slot), not isinstance(s, LoadShared))])
        case SharedRead() | SharedWrite() if not s.site.private:
            slot = s.site.slot if s.site.slot >= 0 else None
            return frozenset([_Access(s.tile, slot, isinstance(s, SharedWrite))])
    return frozenset()


def _constant(slot: Expr) -> int | None:
    return slot.bits if isinstance(slot, Const) else None


def drop_barriers(kernel: Kernel) -> Kernel:
    """The kernel without barriers that order nothing; either level."""
    body, private = kernel.body, private_tiles(kernel)
    while True:
        barriers = [s for s in postorder(body) if isinstance(s, Barrier)]
        before, after = _Reach(True, private), _Reach(False, private)
        before.walk(body, frozenset())
        after.walk(body, frozenset())
        alone = kernel.subgroups == 1
        useless = next((b for b in barriers if alone or not _meet(before.met[b], after.met[b])), None)
        if useless is None:
            return kernel if body is kernel.body else kernel.replace(body=body)
        body = _without(body, useless)


def _meet(before: Iterable[_Access], after: Iterable[_Access]) -> bool:
    later = tuple(after)
    return any(a.conflicts(b) for a in before for b in later)


class _Reach:
    """The accesses that may lie between a barrier and its neighbour (or the kernel's end), in one direction."""

    def __init__(self, forward: bool, private: Container[Shared]) -> None:
        self.private = private
        self.ordered: Callable[[Iterable[Stmt]], Iterable[Stmt]] = iter if forward else lambda s: reversed(tuple(s))
        self.met: dict[Barrier, frozenset[_Access]] = {}

    def walk(self, s: Stmt, seen: frozenset[_Access]) -> frozenset[_Access]:
        """What may lie behind `s` since the last barrier, given what lies ahead; notes what each barrier meets."""
        match s:
            case Block(stmts):
                for x in self.ordered(stmts):
                    seen = self.walk(x, seen)
                return seen
            case Barrier():
                self.met[s] = self.met.get(s, frozenset()) | seen
                return frozenset()
            case If(_, then, other):
                return self.walk(then, seen) | self.walk(other, seen)
            case For():
                once = self.walk(s.body, seen)
                again = self.walk(s.body, seen | once)
                # The loop may not run at all, or be left in its middle.
                inside = [n for n in postorder(s.body) if isinstance(n, Stmt)]
                if any(isinstance(n, ExitIf) for n in inside):
                    again = again.union(*(_access(n, self.private) for n in inside))
                return seen | once | again
        return seen | _access(s, self.private)


def _without(s: Stmt, useless: Barrier) -> Stmt:
    match s:
        case Block(stmts):
            return block(*(_without(x, useless) for x in stmts if x is not useless))
        case If(cond, then, other):
            return If(cond, _without(then, useless), _without(other, useless))
        case For():
            body = _without(s.body, useless)
            return For(s.var, s.begin, s.end, s.carried, s.inits, body, s.yields, s.results, s.label)
    return block() if s is useless else s
