"""Compiled instructions of CDNA, and the context that compiling one needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from convgen.backends.amdgpu.sim.archs import Arch
from convgen.backends.amdgpu.sim.code_object import Descriptor
from convgen.backends.amdgpu.sim.decode import Instruction, Operand
from convgen.backends.amdgpu.sim.hazards import Consumes, Produces
from convgen.backends.amdgpu.sim.state import WaveGroup, scalar_bits, vector_bits
from convgen.backends.sim.step import Ready
from convgen.backends.sim.step import unsupported as unsupported
from convgen.ir.record import define, frozen

Run = Callable[[WaveGroup], None]
#: Kinds of instructions that the report counts.
KINDS = (
    "mfma valu salu smem ds_read ds_write vmem_load vmem_store lds_dma atomic waitcnt barrier branch nop other"
).split()
#: Kinds of instructions that do nothing if EXEC is zero (CDNA3 ISA 3.3); matrix instructions do not read it (7.1).
BY_LANES = frozenset("valu ds_read ds_write vmem_load vmem_store lds_dma atomic".split())


@define(eq=False)
class Step(Ready[Instruction, WaveGroup]):
    """A compiled instruction. `control` is "", "branch" (run has set `pc`), "wait", "sleep", "barrier" or "end"."""

    produces: tuple[Produces, ...] = ()
    consumes: tuple[Consumes, ...] = ()
    touches: int = 0  #: registers of all `consumes`
    wait_states: int = 1
    overwrites: int = 0  #: scalar registers that the scalar ALU writes: older events on them are stale


@frozen
class Text:
    """Properties of a code object's whole text: a kernel may reach any of its instructions."""

    index_of: Mapping[int, int]  #: instruction index by address
    lds_grain: int  #: bytes; part of LDS that one race stamp covers
    global_grain: int  #: bytes; part of device memory that one race stamp covers
    #: whether compare-and-swaps on device memory exist, which show whether earlier loads were stale
    has_global_swaps: bool
    has_lds_swaps: bool
    acquires: bool  #: whether any instruction acquires other workgroups' stores


@define
class Context:
    """Context of compiling an instruction: the architecture, the kernel's register allocation, its text."""

    arch: Arch
    descriptor: Descriptor
    text: Text
    faults: list[tuple[str, str]] = attrs.field(factory=list)  #: (kind, message) of the instruction being compiled
    approximate: int | None = None  #: seed of the errors of transcendental instructions; None: rounded correctly
    base: int = 0  #: index of the copy of the text that is being compiled (`relative`)

    def place(self, address: int) -> int:
        """Return the index of the instruction at an address in the copy being compiled; -1 if none starts there."""
        index = self.text.index_of.get(address)
        return -1 if index is None else self.base + index

    def vector(self, operand: Operand) -> int:
        """Return the unified index of the first register of a vector operand."""
        return operand.index + (self.descriptor.accum_offset if operand.kind == "a" else 0)

    def bits(self, *operands: Operand) -> int:
        """Return the register set of operands; constants have none."""
        registers = 0
        for operand in operands:
            if operand.is_vector:
                registers |= vector_bits(self.vector(operand), operand.count)
            elif operand.kind == "s":
                registers |= scalar_bits(operand.index, operand.count)
        return registers

    def registers(self, operand: Operand) -> tuple[int, ...]:
        """Return the unified indices of a vector operand's registers."""
        first = self.vector(operand)
        return tuple(range(first, first + operand.count))


def scalar_registers(*operands: Operand) -> tuple[int, ...]:
    """Return the scalar registers of some operands; vector registers and constants do not count."""
    return tuple(r for o in operands if o.kind == "s" for r in range(o.index, o.index + o.count))
