"""Compile decoded instructions into steps: find the module that knows the mnemonic, keep what the engine needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache

from convgen.backends.amdgpu.sim.alu.packed import compile_packed
from convgen.backends.amdgpu.sim.alu.salu import compile_salu
from convgen.backends.amdgpu.sim.alu.scaled import compile_scaled
from convgen.backends.amdgpu.sim.alu.special import compile_special
from convgen.backends.amdgpu.sim.alu.valu import compile_valu
from convgen.backends.amdgpu.sim.archs import Arch
from convgen.backends.amdgpu.sim.code_object import KernelInfo
from convgen.backends.amdgpu.sim.control import compile_control
from convgen.backends.amdgpu.sim.decode import M0, Instruction, follows
from convgen.backends.amdgpu.sim.ds import compile_ds
from convgen.backends.amdgpu.sim.ds_lanes import compile_ds_lanes
from convgen.backends.amdgpu.sim.ds_table import ATOMICS, elements_of
from convgen.backends.amdgpu.sim.formats import compile_typed
from convgen.backends.amdgpu.sim.hazards import HazardRules
from convgen.backends.amdgpu.sim.mfma import compile_mfma
from convgen.backends.amdgpu.sim.relative import (
    Copies,
    compile_index,
    continue_in_copy,
    end_of_copy,
    is_vector,
    with_moved_registers,
)
from convgen.backends.amdgpu.sim.scalar_stores import compile_scalar_store
from convgen.backends.amdgpu.sim.scopes import compile_cache, is_operation
from convgen.backends.amdgpu.sim.smem import compile_smem
from convgen.backends.amdgpu.sim.smfmac import compile_smfmac
from convgen.backends.amdgpu.sim.state import scalar_bits
from convgen.backends.amdgpu.sim.step import Context, Step, Text, unsupported
from convgen.backends.amdgpu.sim.transfer import STORES
from convgen.backends.amdgpu.sim.vmem import compile_vmem
from convgen.backends.amdgpu.sim.waits import compile_waitcnt
from convgen.backends.amdgpu.sim.work_items import with_id_check
from convgen.backends.hot_code import reachable

_COMPILERS: tuple[Callable[[Instruction, Context], Step | None], ...] = (
    compile_waitcnt,
    compile_control,
    compile_salu,
    compile_smem,
    compile_scalar_store,
    compile_valu,
    compile_special,
    compile_packed,
    compile_scaled,
    compile_mfma,
    compile_smfmac,
    compile_ds_lanes,
    compile_ds,
    compile_cache,
    compile_typed,
    compile_vmem,
)


def _power_of_two_part(size: int) -> int:
    return size & -size


def _lds_grain(instructions: tuple[Instruction, ...]) -> int:
    """Return the bytes that one LDS race stamp covers: the narrowest access of the code, at most 16.

    An offset that is no multiple of its access size narrows the stamp, too, as the data may then be unaligned.
    """
    grain = 16
    for instruction in instructions:
        name = instruction.name
        if elements := elements_of(instruction):
            size = elements.width.size
            grain = min(grain, *(_power_of_two_part(offset or size) for offset in (size, *elements.offsets)))
        elif name in ATOMICS:
            grain = min(grain, ATOMICS[name][1])
        elif "_tr_b" in name:
            grain = min(grain, 8 if "b64" in name else 4)
        elif "lds" in instruction.modifiers or "_load_lds_" in name:
            grain = min(grain, 4)  # M0 is aligned to four bytes, whatever the width
    return grain


def _store_grain(instructions: tuple[Instruction, ...]) -> int:
    """Return the bytes that one stamp on device memory covers: the narrowest store of the code, at most 4.

    An offset that is no multiple of 4 narrows the stamp, too, as the data may then be unaligned.
    """
    if any("_store_format" in instruction.name for instruction in instructions):
        return 1
    stores = [(i, STORES.get(i.name.rpartition("_store_")[2])) for i in instructions]
    stored = [(width.size, _power_of_two_part(i.number("offset") or 4)) for i, width in stores if width is not None]
    return min([4, *(part for parts in stored for part in parts)])


@lru_cache(maxsize=16)
def _text(instructions: tuple[Instruction, ...], acquire: str) -> Text:
    """Return the properties of a code object's whole text, which its kernels share.

    `acquire` names the instruction that acquires stores of other workgroups.
    """
    return Text(
        {instruction.address: index for index, instruction in enumerate(instructions)},
        _lds_grain(instructions),
        _store_grain(instructions),
        any("_atomic_cmpswap" in i.name for i in instructions),
        any(i.name.startswith("ds_cmpst_rtn_") for i in instructions),
        any(is_operation(i, acquire) for i in instructions),
    )


class Program:
    """A kernel's instructions, compiled when first executed."""

    def __init__(self, kernel: KernelInfo, arch: Arch, approximate: int | None = None) -> None:
        self.kernel = kernel
        self.instructions = kernel.instructions
        self.rules = HazardRules(arch.name)
        text = _text(kernel.instructions, arch.scope.acquire)
        self.context = Context(arch, kernel.descriptor, text, approximate=approximate)
        self.steps: list[Step | None] = [None] * len(kernel.instructions)
        self.executed = [0] * len(kernel.instructions)  #: wave-instructions, by instruction
        self.copies = Copies(len(kernel.instructions), self.steps, self.executed)

    @cached_property
    def places(self) -> list[Instruction]:
        """Return the instructions that control flow reaches from the kernel's entry without computed jumps."""
        return reachable(self.instructions, self.kernel.entry, follows)

    def compile(self, index: int) -> Step:
        """Compile the instruction at an index, which may lie in a copy of the text (`relative`), and keep the step."""
        copy, index_in_text = self.copies.locate(index)
        if index_in_text == len(self.instructions):
            return self._set(index, end_of_copy(self.instructions[-1]))
        instruction = self.instructions[index_in_text]
        if copy.roles:
            instruction = with_moved_registers(instruction, copy)
        elif copy.skips and is_vector(instruction):
            return self._set(index, Step(instruction, "other", lambda g: None))
        self.context.faults, self.context.base = [], index - index_in_text
        step = compile_index(instruction, self.context, self.copies) or self._compiled(instruction)
        if copy.roles and step.writes & scalar_bits(M0) and not step.control:
            continue_in_copy(step, self.copies)
        step.overwrites = step.writes if step.kind == "salu" else 0
        step.faults = tuple(self.context.faults)
        step.produces = self.rules.relevant(step.produces)
        step.consumes = self.rules.constrained(step.consumes)
        for use in step.consumes:
            step.touches |= use.mask
        return self._set(index, step)

    def _set(self, index: int, step: Step) -> Step:
        self.steps[index] = step
        return step

    def _compiled(self, instruction: Instruction) -> Step:
        for compiler in _COMPILERS:
            step = compiler(instruction, self.context)
            if step is not None:
                return with_id_check(step, instruction, self.context)
        raise unsupported(instruction)
