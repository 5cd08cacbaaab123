"""An instruction made ready to execute, and what the engine needs to know about it."""

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
#: Those whose instructions do nothing where EXEC is zero (CDNA3 ISA 3.3); matrix instructions do not read it (7.1).
BY_LANES = frozenset("valu ds_read ds_write vmem_load vmem_store lds_dma atomic".split())


@define(eq=False)
class Step(Ready[Instruction, WaveGroup]):
    """`control` is "", "branch" (run has set `pc`), "wait", "sleep", "barrier" or "end"."""

    produces: tuple[Produces, ...] = ()
    consumes: tuple[Consumes, ...] = ()
    touches: int = 0  #: registers of all `consumes`
    wait_states: int = 1
    overwrites: int = 0  #: scalar registers that the scalar ALU writes: older events on them are stale


@frozen
class Text:
    """What all instructions of a code object together say of each: any of its kernels may come to any of them."""

    index_of: Mapping[int, int]  #: instruction index by address
    lds_grain: int  #: bytes that one race stamp covers in LDS
    global_grain: int  #: the same in device memory
    swaps: bool  #: whether there are compare-and-swaps, which find out whether loads were stale
    local_swaps: bool  #: the same of LDS
    tracked: bool  #: whether any instruction acquires other workgroups' stores


@define
class Context:
    """What compiling an instruction may ask: the architecture, the kernel's register allocation, its text."""

    arch: Arch
    descriptor: Descriptor
    text: Text
    faults: list[tuple[str, str]] = attrs.field(factory=list)  #: of the instruction being compiled
    approximate: int | None = None  #: seed of the errors of transcendental instructions; None for results without
    base: int = 0  #: index of the copy of the text that is being compiled (`relative`)

    def place(self, address: int) -> int:
        """Index of the instruction at an address, in the same copy of the text; -1 where there is none."""
        index = self.text.index_of.get(address)
        return -1 if index is None else self.base + index

    def vector(self, operand: Operand) -> int:
        """Unified index of the first register of a vector operand."""
        return operand.index + (self.descriptor.accum_offset if operand.kind == "a" else 0)

    def bits(self, *operands: Operand) -> int:
        """The register set of operands; constants have none."""
        found = 0
        for operand in operands:
            if operand.is_vector:
                found |= vector_bits(self.vector(operand), operand.count)
            elif operand.kind == "s":
                found |= scalar_bits(operand.index, operand.count)
        return found

    def registers(self, operand: Operand) -> tuple[int, ...]:
        """Unified indices of a vector operand's registers."""
        first = self.vector(operand)
        return tuple(range(first, first + operand.count))
