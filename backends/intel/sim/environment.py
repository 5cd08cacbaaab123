"""What the groups of a batch share on Xe: besides memory and findings, surfaces and barriers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from convgen.backends.intel.sim.platforms import Platform
from convgen.backends.sim.causality import Causality
from convgen.backends.sim.local import Lds
from convgen.backends.sim.memory import Allocation
from convgen.backends.sim.run import Run
from convgen.backends.sim.threads import Surroundings


class Environment(Surroundings):
    """The surroundings of one batch of workgroups."""

    def __init__(
        self,
        run: Run,
        platform: Platform,
        slm: Lds,
        slots: int,
        waves: int,
        surfaces: dict[int, Allocation],
        barriers: int,
        causality: Causality,
    ) -> None:
        super().__init__(run, slm, slots, waves, causality)
        self.platform = platform
        self.surfaces = surfaces  #: by binding table index
        self.barriers = barriers  #: that the kernel declares
        self.arrived: npt.NDArray[np.int64] = np.zeros(slots, np.int64)  #: signals of the barrier under way
