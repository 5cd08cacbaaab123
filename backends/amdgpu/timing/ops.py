"""Instructions as the CU model sees them: port, clocks, and waits."""

from __future__ import annotations

from enum import IntEnum

from convgen.backends.amdgpu.costs import line_of
from convgen.backends.amdgpu.sim.compile import Program
from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.waits import LGKM_MAX, VM_MAX, allowed
from convgen.backends.amdgpu.tables import WAVE
from convgen.backends.sim.errors import SimulatorError, Unsupported
from convgen.ir.record import frozen

SLOT = 4  #: clocks from one instruction of a wave to the next (CDNA3 ISA, "Wavefront")
#: clocks; least time of a vector memory instruction on the address pipe: 4 lanes a clock (fits MIOpen's rows)
_ADDRESSES = 16
_GLOBAL_BYTES = 64  #: bytes a clock from the nearest cache to registers
_LDS_BYTES = 128  #: bytes a clock of the LDS port


class Port(IntEnum):
    """A resource that takes one instruction at a time."""

    VALU = 0
    MATRIX = 1
    SALU = 2
    LDS = 3
    GLOBAL = 4
    NONE = 5


@frozen(eq=False)
class Op:
    """One instruction as a wave executes it; equal ones are one object."""

    port: Port
    issue: int  #: clocks until its wave issues the next one
    busy: float = 0.0  #: clocks of the matrix unit, the LDS or the address pipe
    is_scalar_load: bool = False
    #: Largest vmcnt and lgkmcnt at which the wave goes on; None: no wait for that counter
    waits: tuple[int | None, int | None] | None = None
    is_barrier: bool = False
    reads: int = 0  #: bits of vector registers
    writes: int = 0
    at: int = 0  #: address

    @property
    def is_matrix(self) -> bool:
        """Return whether it is a matrix instruction."""
        return self.port is Port.MATRIX


def op_of(
    instruction: Instruction, arch: str, registers: tuple[int, int], lds: float | None = None, lanes: int = WAVE
) -> Op:
    """Return an instruction that reads and writes these vector registers, as bits.

    `lds` are the clocks of its LDS access, if known; `lanes` the lanes that access memory.
    """
    line, at = line_of(instruction, 0, arch), instruction.address
    reads, writes = (bits & _VECTORS for bits in registers)
    match line.kind:
        case "mfma":
            return Op(Port.MATRIX, SLOT, SLOT * line.slots, reads=reads, writes=writes, at=at)
        case "valu":
            return Op(Port.VALU, SLOT * line.slots, reads=reads, writes=writes, at=at)
        case "ds_read" | "ds_write" | "ds_other":
            moved = sum(line.bytes.values()) or 4 * WAVE
            return Op(Port.LDS, SLOT, lds or moved / _LDS_BYTES, reads=reads, writes=writes, at=at)
        case "vmem_load" | "vmem_store" | "vmem_atomic":
            share = max(line.bytes.values(), default=4 * WAVE) * lanes / WAVE
            busy = max(_ADDRESSES, share / _GLOBAL_BYTES) if lanes else float(SLOT)
            return Op(Port.GLOBAL, SLOT, busy, reads=reads, writes=writes, at=at)
        case "smem":
            return Op(Port.SALU, SLOT, is_scalar_load=True, at=at)
        case "waitcnt":
            return Op(Port.NONE, SLOT, waits=_waits(instruction), at=at)
        case "barrier":
            return Op(Port.NONE, SLOT, is_barrier=True, at=at)
        case "nop":
            return Op(Port.NONE, SLOT * line.slots, at=at)
        case _:
            return Op(Port.SALU, SLOT, at=at)


def _waits(instruction: Instruction) -> tuple[int | None, int | None]:
    """Return the counts of s_waitcnt; a field's largest value waits for nothing, since the counter holds no more."""
    vm, lgkm = allowed(instruction)
    return vm if vm < VM_MAX else None, lgkm if lgkm < LGKM_MAX else None


_VECTORS = (1 << 512) - 1


def registers_of(program: Program, index: int) -> tuple[int, int]:
    """Return the registers that an instruction reads and writes, as bits; none if the simulator does not know it."""
    try:
        step = program.compile(index)
    except (SimulatorError, Unsupported):
        return 0, 0
    return step.reads, step.writes
