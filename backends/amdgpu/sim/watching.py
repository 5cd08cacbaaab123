"""Show waves to a caller while they run: before each instruction, or before the instructions at some places."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convgen.backends.amdgpu.sim.code_object import CodeObject, KernelInfo
from convgen.backends.amdgpu.sim.state import WaveGroup
from convgen.backends.amdgpu.sim.step import Step
from convgen.backends.sim.errors import SimulatorError
from convgen.backends.sim.wave_arrays import U32, Array, Bools
from convgen.backends.simulation import Scrutiny
from convgen.ir.record import frozen


@frozen(eq=False)
class Halt:
    """Waves about to execute an instruction together. Arrays are copies; their first axis is the wave."""

    kernel: str
    pc: int  #: bytes from the kernel's start
    instruction: str
    line: str  #: FILE:LINE of the source, where the object has debug information
    group: WaveGroup  #: the waves themselves, not to be changed
    step: Step  #: the compiled instruction

    @property
    def workgroups(self) -> Array:
        """Linear ids [waves]."""
        return self.group.group_id.copy()

    @property
    def waves(self) -> Array:
        """Numbers within the workgroups [waves]."""
        return self.group.wave.copy()

    @property
    def active(self) -> Bools:
        """EXEC [waves, 64 lanes]."""
        return self.group.exec.copy()

    @property
    def outstanding(self) -> tuple[int, int]:
        """Operations that vmcnt counts and lgkmcnt counts."""
        return len(self.group.vm), len(self.group.lgkm)

    @property
    def vectors(self) -> U32:
        """Vector registers [waves, registers, 64 lanes]; accumulation registers follow from the accum_offset on."""
        return np.moveaxis(self.group.v, 1, 0).copy()

    @property
    def scalars(self) -> U32:
        """Scalar registers [waves, 129] by their number (VCC 106, M0 124, EXEC 126); SCC is 128."""
        return np.moveaxis(self.group.s, 1, 0).copy()

    @property
    def undefined(self) -> tuple[Bools, Bools]:
        """Flags of undefined vector registers [waves, registers, 64] and scalar registers [waves, 129]."""
        g = self.group
        vectors = np.stack([_or_none(g.vector_poison(n), (g.count, 64)) for n in range(len(g.v))], axis=1)
        scalars = np.stack([_or_none(g.scalar_poison(n), (g.count,)) for n in range(len(g.s))], axis=1)
        return vectors, scalars


def _or_none(row: Bools | None, shape: tuple[int, ...]) -> Bools:
    return np.zeros(shape, np.bool_) if row is None else row


def watcher(code: CodeObject, kernel: KernelInfo, scrutiny: Scrutiny) -> Callable[[WaveGroup, Step], None] | None:
    """Return the function to call before each step, None without `scrutiny.watch`.

    Raises SimulatorError for a place where no instruction starts.
    """
    watch, entry = scrutiny.watch, kernel.descriptor.entry
    if watch is None:
        return None
    starts = {instruction.address for instruction in kernel.instructions}
    wanted = set()
    for place in scrutiny.places:
        address = code.symbols.get(place, -1) if isinstance(place, str) else entry + place
        if address not in starts:
            where = place if isinstance(place, str) else f"{place:#x}"
            raise SimulatorError(f"given the place {where}, where no instruction of {kernel.name} starts")
        wanted.add(address)

    def look(g: WaveGroup, step: Step) -> None:
        address = step.instruction.address
        if not wanted or address in wanted:
            watch(Halt(kernel.name, address - entry, step.instruction.text, code.line(address), g, step))

    return look
