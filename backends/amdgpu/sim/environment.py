"""What the groups of a batch share: memory, LDS, findings, counters, barrier epochs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from convgen.backends.amdgpu.sim.archs import Arch
from convgen.backends.amdgpu.sim.hazards import HazardRules
from convgen.backends.amdgpu.sim.scratch import Scratch
from convgen.backends.sim.causality import Causality
from convgen.backends.sim.findings import Reporter
from convgen.backends.sim.local import Lds, stamps_of
from convgen.backends.sim.memory import Memory

if TYPE_CHECKING:
    from convgen.backends.sim.arrays import U32
from convgen.backends.amdgpu.sim.state import WaveGroup

IMAGE = "<code>"  #: the allocation that holds the code object's segments


class Environment:
    """The surroundings of one batch of workgroups."""

    def __init__(
        self,
        arch: Arch,
        memory: Memory,
        lds: Lds,
        reporter: Reporter,
        counters: Counter[str],
        slots: int,
        waves: int,
        *,
        strict: bool,
        scratch: Scratch,
        causality: Causality,
    ) -> None:
        self.arch = arch
        self.memory = memory
        self.lds = lds
        self.reporter = reporter
        self.counters = counters
        self.strict = strict
        self.image_base = memory.by_name[IMAGE].base if IMAGE in memory.by_name else 0
        self.waves = waves  #: waves in a workgroup
        self.scratch = scratch
        self.rules = HazardRules(arch.name)
        self.epoch: npt.NDArray[np.uint32] = np.ones(slots, np.uint32)  #: barriers passed, plus one, by workgroup
        self.causality = causality
        #: Epoch in which a store was waited for, by (ticket, wave). Later batches ask for it where they may acquire.
        self.store_done = causality.store_done if causality.tracked else {}

    def ticket(self) -> int:
        """The number of a new store or atomic operation."""
        self.causality.tickets += 1
        return self.causality.tickets

    def stamps(self, group: WaveGroup, ahead: int = 0) -> U32:
        """The LDS stamp of a clean access by each wave, [waves, 1], `ahead` epochs from now."""
        return stamps_of(self.epoch[group.slot] + np.uint32(ahead), group.wave)
