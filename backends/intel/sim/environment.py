"""The environment of a batch on Xe: memory, findings, surfaces and barriers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from convgen.backends.intel.sim.platforms import Platform
from convgen.backends.sim.causality import Causality
from convgen.backends.sim.device_memory import Allocation
from convgen.backends.sim.run import Run
from convgen.backends.sim.threads import Surroundings

if TYPE_CHECKING:
    from convgen.backends.intel.sim.adversary import Adversary
    from convgen.backends.intel.sim.slm import Slm


class Environment(Surroundings):
    """The environment of one batch of workgroups."""

    local: Slm

    def __init__(
        self,
        run: Run,
        platform: Platform,
        slm: Slm,
        slots: int,
        waves: int,
        surfaces: dict[int, Allocation],
        barriers: int,
        causality: Causality,
        *,
        fused: bool,
        adversary: Adversary | None = None,
    ) -> None:
        super().__init__(run, slm, slots, waves, causality)
        self.platform = platform
        self.fused = fused  #: threads 2k and 2k + 1 have one instruction pointer
        self.adversary = adversary  #: delays loads and orders threads
        self.surfaces = surfaces  #: by binding table index
        self.barriers = barriers  #: number of barriers that the kernel declares
        self.arrived: npt.NDArray[np.int64] = np.zeros(slots, np.int64)  #: signals of the barrier under way
