"""Find where `bar.warp.sync` must order a warp's accesses to shared memory.

Lanes of a warp progress independently (CUDA C++ Programming Guide, "Independent Thread Scheduling"): a lane sees what
another lane of its warp wrote only behind a barrier, of the workgroup or of the warp (PTX ISA, "bar.warp.sync").
Two writes need no barrier between them: messages that write one slot write different bytes, or each lane its own again.
Lane 0 alone releases a ring's slot, so a barrier of the warp must order the loads of the other lanes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from convgen.backends.nvidia.statement_flow import Flow
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.stmt import Barrier, LoadFactor, ReleaseSlot, Stmt, TensorLoad
from convgen.passes.reach import Access

Since = frozenset[Access]  #: accesses since the last barrier


def warp_barriers(kernel: Kernel, accesses: Mapping[Stmt, Since]) -> frozenset[Stmt]:
    """Return the statements of a message-level kernel that need a barrier of the warp ahead of their `accesses`."""
    flow = _AccessesSince(kernel, accesses)
    flow.walk(kernel.body, frozenset())
    return frozenset(flow.behind)


class _AccessesSince(Flow[Since]):
    """Accesses since the last barrier; `behind` collects those that need a barrier of the warp ahead of them."""

    def __init__(self, kernel: Kernel, accesses: Mapping[Stmt, Since]) -> None:
        super().__init__()
        self.accesses = accesses
        self.in_ring = {s.tile.region for s in statements(kernel.body) if isinstance(s, TensorLoad)}
        self.behind = set[Stmt]()

    def merged(self, a: Since, b: Since) -> Since:
        return a | b

    def renamed(self, state: Since, rename: Callable[[Access], Access]) -> Since:
        return frozenset(map(rename, state))

    def step(self, s: Stmt, since: Since, /) -> Since:
        if isinstance(s, Barrier):
            return frozenset()
        if isinstance(s, ReleaseSlot) and any(a.tile.region in self.in_ring for a in since):
            self.behind.add(s)
            return frozenset()
        accesses = self.accesses[s]
        if not accesses or isinstance(s, (LoadFactor, TensorLoad)):  # no lane's loads or stores
            return since
        if s in self.behind or any(a.write != b.write and a.conflicts(b) for a in accesses for b in since):
            self.behind.add(s)
            return accesses
        return since | accesses
