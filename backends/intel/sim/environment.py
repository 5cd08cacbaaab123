"""What the groups of a batch share: memory, local memory, findings, counters, barriers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from convgen.backends.intel.sim.platforms import Platform
from convgen.backends.sim.causality import Causality
from convgen.backends.sim.findings import Reporter
from convgen.backends.sim.local import Lds, stamps_of
from convgen.backends.sim.memory import Allocation, Memory

if TYPE_CHECKING:
    from convgen.backends.intel.sim.state import ThreadGroup
    from convgen.backends.sim.arrays import U32


class Environment:
    """The surroundings of one batch of workgroups."""

    def __init__(
        self,
        platform: Platform,
        memory: Memory,
        slm: Lds,
        reporter: Reporter,
        counters: Counter[str],
        slots: int,
        waves: int,
        surfaces: dict[int, Allocation],
        *,
        barriers: int,
    ) -> None:
        self.platform = platform
        self.memory = memory
        self.slm = slm
        self.reporter = reporter
        self.counters = counters
        self.strict = True
        self.waves = waves  #: threads in a workgroup
        self.surfaces = surfaces  #: by binding table index
        self.barriers = barriers  #: that the kernel declares
        self.epoch: npt.NDArray[np.uint32] = np.ones(slots, np.uint32)  #: barriers passed, plus one, by workgroup
        self.arrived: npt.NDArray[np.int64] = np.zeros(slots, np.int64)  #: signals of the barrier under way
        self.causality = Causality()  #: of which nothing is tracked: nothing orders workgroups
        self.tickets = 0  #: global stores issued so far
        self.store_done: dict[tuple[int, int], int] = {}  #: epoch in which a store was fenced, by (ticket, thread)

    def stamps(self, group: ThreadGroup, ahead: int = 0) -> U32:
        """The local memory stamp of a clean access by each thread, [threads, 1], `ahead` epochs from now."""
        return stamps_of(self.epoch[group.slot] + np.uint32(ahead), group.wave)
