"""Order of a warp's accesses to shared memory: where `bar.warp.sync` stands.

Lanes of a warp progress independently (CUDA C++ Programming Guide, "Independent Thread Scheduling"): a lane sees what
another lane of its warp wrote only behind a barrier, of the workgroup or of the warp (PTX ISA, "bar.warp.sync").
Messages that write one slot write different bytes, or a lane its own again, so that a write needs none after a write.
"""

from __future__ import annotations

from itertools import chain

from convgen.ir.program import Kernel
from convgen.ir.record import define
from convgen.ir.stmt import Barrier, Block, ExitIf, For, If, Stmt
from convgen.passes.reach import Access, Accesses

Since = frozenset[Access]  #: accesses since the last barrier


def warp_barriers(kernel: Kernel) -> frozenset[Stmt]:
    """Return the accesses of a message-level kernel that need a barrier of the warp ahead of them."""
    flow = _Flow(Accesses((), of_subgroup=True), set())
    flow.walk(kernel.body, frozenset())
    return frozenset(flow.behind)


@define(eq=False)
class _Flow:
    """Walks the statements; `behind` collects the accesses that stand behind a barrier of the warp."""

    accesses: Accesses
    behind: set[Stmt]
    exits: tuple[list[Since], ...] = ()  #: accesses where loops are left early, outermost loop first

    def walk(self, s: Stmt, since: Since) -> Since:
        """Return the accesses since the last barrier behind a statement, given those before it."""
        match s:
            case Block(stmts):
                for inner in stmts:
                    since = self.walk(inner, since)
                return since
            case Barrier():
                return frozenset()
            case If(_, then, other):
                return self.walk(then, since) | self.walk(other, since)
            case For():
                return self._loop(s, since)
            case ExitIf():
                self.exits[-1].append(since)
                return since
        own = self.accesses[s]
        if not own:
            return since
        if s in self.behind or any(a.write != b.write and a.conflicts(b) for a in own for b in since):
            self.behind.add(s)
            return own
        return since | own

    def _loop(self, s: For, since: Since) -> Since:
        """Walk a loop until the accesses at its head stay; it may run no iteration."""
        self.exits = (*self.exits, [])
        head = since
        while True:
            end = self.walk(s.body, head)
            if end <= head:
                break
            head |= end
        *outer, left = self.exits
        self.exits = tuple(outer)
        return head.union(*chain([end], left))
