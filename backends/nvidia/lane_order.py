"""Find where `bar.warp.sync` must order a warp's accesses to shared memory.

Lanes of a warp progress independently (CUDA C++ Programming Guide, "Independent Thread Scheduling"): a lane sees what
another lane of its warp wrote only behind a barrier, of the workgroup or of the warp (PTX ISA, "bar.warp.sync").
Two writes need no barrier between them: messages that write one slot write different bytes, or each lane its own again.
"""

from __future__ import annotations

from collections.abc import Mapping

from convgen.backends.nvidia.statement_flow import Flow
from convgen.ir.program import Kernel
from convgen.ir.stmt import Barrier, Stmt
from convgen.passes.reach import Access

Since = frozenset[Access]  #: accesses since the last barrier


def warp_barriers(kernel: Kernel, accesses: Mapping[Stmt, Since]) -> frozenset[Stmt]:
    """Return the statements of a message-level kernel that need a barrier of the warp ahead of their `accesses`."""
    flow = _AccessesSince(accesses)
    flow.walk(kernel.body, frozenset())
    return frozenset(flow.behind)


class _AccessesSince(Flow[Since]):
    """Accesses since the last barrier; `behind` collects those that need a barrier of the warp ahead of them."""

    def __init__(self, accesses: Mapping[Stmt, Since]) -> None:
        super().__init__()
        self.accesses = accesses
        self.behind = set[Stmt]()

    def merged(self, a: Since, b: Since) -> Since:
        return a | b

    def step(self, s: Stmt, since: Since, /) -> Since:
        if isinstance(s, Barrier):
            return frozenset()
        accesses = self.accesses[s]
        if not accesses:
            return since
        if s in self.behind or any(a.write != b.write and a.conflicts(b) for a in accesses for b in since):
            self.behind.add(s)
            return accesses
        return since | accesses
