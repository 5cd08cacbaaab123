"""LDS clocks of a kernel's LDS instructions, without running the kernel.

In nearly all kernels LDS addresses follow from the thread's number. The integer and scalar instructions before and in
the loop are executed once on the lanes of one workgroup; loads give zero, no branch is taken and no lane is masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from convgen.backends.amdgpu.sim.archs import BankPhases
from convgen.backends.amdgpu.sim.banks import wave_conflicts
from convgen.backends.amdgpu.sim.compile import Program
from convgen.backends.amdgpu.sim.decode import EXEC, Instruction
from convgen.backends.amdgpu.sim.ds_table import elements_of
from convgen.backends.amdgpu.sim.simulate import waves_at_entry
from convgen.backends.amdgpu.sim.state import WaveGroup, scalar_bits
from convgen.backends.amdgpu.sim.step import Context
from convgen.backends.sim.errors import SimulatorError, Unsupported
from convgen.backends.sim.wave_arrays import Array, Bools
from convgen.ir.record import evolve, frozen

Floats = npt.NDArray[np.float64]

_COMPUTES = ("valu", "salu")


def lds_clocks(code: bytes, kernel: str, threads: int, order: Iterable[int]) -> Mapping[int, float]:
    """Return index of an LDS read or write in `order` -> mean LDS clocks of one wave's access.

    `order` lists the instructions in execution order.
    """
    program, waves = waves_at_entry(code, kernel, threads)
    clocks: dict[int, float] = {}
    for index in order:
        instruction = program.instructions[index]
        if instruction.name.startswith("ds_"):
            access = access_of(program.context, instruction)
            if access is not None:
                base = waves.v[access.register].astype(np.int64)
                clocks[index] = float(access.clocks(base, waves.exec).mean())
        else:
            _compute(program, index, waves)
    return clocks


def _compute(program: Program, index: int, waves: WaveGroup) -> None:
    """Execute an instruction if it only computes; one that cannot be executed leaves its result unchanged."""
    try:
        step = program.compile(index)
        if step.kind in _COMPUTES and not step.control and not step.writes & scalar_bits(EXEC, 2):
            with np.errstate(all="ignore"):  # loaded zeros may divide by zero
                step.run(waves)
    except (SimulatorError, Unsupported, ArithmeticError):
        return


@frozen
class Access:
    """The addresses of an LDS read or write."""

    register: int  #: address register
    offsets: tuple[int, ...]  #: bytes; offset of each element that it moves
    size: int  #: bytes; size of an element
    phases: BankPhases

    def clocks(self, base: Array, active: Bools) -> Floats:
        """Return the LDS clocks of each wave [waves], from the address register `base` [waves, lanes].

        A phase takes its clock even if its lanes are off.
        """
        width = max(1, self.size // 4)
        each = (wave_conflicts(self.phases, (base + offset) >> 2, width, active) for offset in self.offsets)
        return np.asarray(len(self.offsets) * len(self.phases.phases) + sum(each), np.float64)


def access_of(context: Context, instruction: Instruction) -> Access | None:
    """Return the access of an LDS instruction; None if it does not read or write by address."""
    # A transposing read has the addresses of a plain one.
    elements = elements_of(evolve(instruction, name=instruction.name.partition("_tr_")[0]))
    if elements is None:
        return None
    size = elements.width.size
    phases = context.arch.banks["read" if elements.reads else "write", max(4, size)]
    return Access(context.vector(instruction.operands[int(elements.reads)]), elements.offsets, size, phases)
