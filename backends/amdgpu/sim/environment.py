"""The environment of a batch on CDNA: memory, findings, architecture, scratch, image and LDS addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from convgen.backends.amdgpu.sim.archs import Arch
from convgen.backends.amdgpu.sim.scratch import Scratch
from convgen.backends.sim.causality import Causality
from convgen.backends.sim.local import Lds
from convgen.backends.sim.run import Run
from convgen.backends.sim.threads import Surroundings
from convgen.backends.sim.wave_arrays import Array

if TYPE_CHECKING:
    from convgen.backends.amdgpu.sim.ds_access import LdsAddress, Located
    from convgen.backends.amdgpu.sim.state import WaveGroup

#: Names of the allocations of the code object's segments: read-only ones, and writable ones.
IMAGE, VARIABLES = "<code>", "<variables>"


class Environment(Surroundings):
    """The environment of one batch of workgroups."""

    def __init__(
        self,
        run: Run,
        arch: Arch,
        lds: Lds,
        slots: int,
        waves: int,
        causality: Causality,
        scratch: Scratch,
        *,
        strict: bool,
    ) -> None:
        super().__init__(run, lds, slots, waves, causality, strict=strict)
        self.arch = arch
        self.image_base = self.memory.by_name[IMAGE].base if IMAGE in self.memory.by_name else 0
        self.scratch = scratch
        self.workgroup = (1, 1, 1)  #: work-items along x, y and z
        #: Returns the initial v0 of a group: packed work-item ids [waves, lanes].
        self.work_items: Callable[[WaveGroup], Array] = lambda g: np.zeros(0, np.uint32)
        #: LDS address -> words of its register, workgroups, and what `LdsAddress.of` returned for them.
        self.located: dict[LdsAddress, tuple[bytes, Array, tuple[Located, int]]] = {}
