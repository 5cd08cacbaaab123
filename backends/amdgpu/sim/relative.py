"""Relative addressing of vector registers: s_set_gpr_idx_on, _off, _mode and _idx (CDNA3 ISA 6.6, "VGPR Indexing").

While MODE.GPR_IDX_EN is set, M0[7:0] is added to the vector register numbers of VALU instructions in the roles that
M0[15:12] names. Register numbers are fixed when an instruction is compiled, so each (index, roles) has a copy of the
program's text, compiled with the sums; setting the index jumps to the corresponding instruction of another copy. While
s_setvskip has set MODE.VSKIP, a copy runs whose vector instructions do nothing (CDNA3 ISA 4.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from convgen.backends.amdgpu.sim.alu.salu import scalar_fetch
from convgen.backends.amdgpu.sim.alu.valu_table import VECTOR_ROWS
from convgen.backends.amdgpu.sim.decode import M0, Instruction, Operand
from convgen.backends.amdgpu.sim.state import WaveGroup, scalar_bits
from convgen.backends.amdgpu.sim.step import Context, Step, unsupported
from convgen.backends.amdgpu.sim.transfer import refuse_scalar_poison
from convgen.backends.sim.findings import LaunchStopped
from convgen.ir.record import evolve, frozen

if TYPE_CHECKING:
    from convgen.backends.sim.wave_arrays import Array

GPR_INDEX = 1 << 27  #: MODE.GPR_IDX_EN
_VECTOR = ("v_", "ds_", "global_", "flat_", "scratch_", "buffer_", "tbuffer_")
_DESTINATION = 8  #: the role bit of the destination; 1, 2 and 4 are those of source 0, 1 and 2


@frozen
class Copy:
    """The key of a copy: the index added to register numbers, and the roles as in M0[15:12] (0: the plain text)."""

    index: int = 0
    roles: int = 0
    skips: bool = False  #: whether vector instructions do nothing


class Copies:
    """The copies of a program's text, concatenated in its lists; each ends with a step that reports leaving it."""

    def __init__(self, size: int, steps: list[Step | None], executed: list[int]) -> None:
        self.size, self.steps, self.executed = size, steps, executed
        self.known: list[Copy] = [Copy()]

    def locate(self, index: int) -> tuple[Copy, int]:
        """Return the copy that an index lies in, and the instruction's number in the text."""
        number, place = divmod(index, self.size + 1)
        return self.known[number], place

    def place(self, copy: Copy, index: int) -> int:
        """Return the index of an instruction in `copy`, which is appended if it is new."""
        if copy not in self.known:
            room = (len(self.known) + 1) * (self.size + 1) - 1 - len(self.steps)
            self.steps.extend([None] * room)
            self.executed.extend([0] * room)
            self.known.append(copy)
        return self.known.index(copy) * (self.size + 1) + index % (self.size + 1)


def end_of_copy(last: Instruction) -> Step:
    """Return the step after the last instruction of a copy, which reports that execution leaves the code."""

    def run(g: WaveGroup) -> None:
        g.env.reporter.add("control", "execution leaves the kernel's code: a jump or a missing end", None, g)
        raise LaunchStopped

    return Step(last, "other", run)


def with_moved_registers(instruction: Instruction, copy: Copy) -> Instruction:
    """Return an instruction with the index added to its vector registers. Raises Unsupported for unusual operands."""
    if not instruction.name.startswith("v_"):
        return instruction
    row = VECTOR_ROWS.get(instruction.name)
    plain = row is not None and "acc" not in row.sources and "rev_" not in instruction.name
    if not (plain or instruction.name.startswith("v_pk_")) or instruction.encoding in ("sdwa", "dpp"):
        raise unsupported(instruction, "under relative addressing")
    results = 1 if row is None else len(row.results)
    operands = list(instruction.operands)
    for number, operand in enumerate(operands):
        role = _DESTINATION if number < results else 1 << (number - results)
        if operand.kind == "v" and copy.roles & role:
            operands[number] = _moved(operand, copy.index)
    return evolve(instruction, operands=tuple(operands))


def _moved(operand: Operand, by: int) -> Operand:
    return evolve(operand, index=operand.index + by, text=f"{operand.text} + {by}")


def _enter(g: WaveGroup, copies: Copies) -> None:
    """Continue each wave in the copy that M0 and MODE select."""
    if not g.mode & GPR_INDEX:
        continue_at(g, [copies.place(Copy(), g.pc)])
        return
    words: Array = g.s[M0] & np.uint32(0xF0FF)
    continue_at(g, [copies.place(Copy(int(word) & 0xFF, int(word) >> 12), g.pc) for word in words])


def continue_at(g: WaveGroup, targets: list[int]) -> None:
    """Let each wave continue at its index among `targets`, or all at the only one."""
    g.targets = None
    if len(set(targets)) == 1:
        g.pc = targets[0]
    else:
        g.targets = np.array(targets)


def continue_in_copy(step: Step, copies: Copies) -> None:
    """Make a step that writes M0 under relative addressing continue in the copy for the new index."""
    inner = step.run

    def run(g: WaveGroup) -> None:
        inner(g)
        refuse_scalar_poison(g, step, scalar_bits(M0), (M0,), "the index of registers", always=True)
        _enter(g, copies)

    step.run, step.control = run, "branch"


def is_vector(instruction: Instruction) -> bool:
    """Return whether an instruction is a vector instruction, which MODE.VSKIP skips."""
    return instruction.name.startswith(_VECTOR)


def _compile_skip(instruction: Instruction, context: Context, copies: Copies) -> Step:
    """Compile s_setvskip: the bit of operand 0 that operand 1 numbers tells whether vector instructions are skipped."""
    value, bit = instruction.operands
    fetches = [scalar_fetch(operand, "u32", context, instruction) for operand in (value, bit)]
    rows = tuple(operand.index for operand in (value, bit) if operand.kind == "s")
    reads = context.bits(value, bit)

    def run(g: WaveGroup) -> None:
        refuse_scalar_poison(g, step, reads, rows, "whether to skip vector instructions", always=True)
        if g.mode & GPR_INDEX:
            raise unsupported(instruction, "under relative addressing")
        word, place = (np.broadcast_to(fetch(g), (g.count,)) for fetch in fetches)
        skips = (word >> (place & np.uint32(31)) & np.uint32(1)) != 0
        continue_at(g, [copies.place(Copy(skips=bool(each)), g.pc) for each in skips])

    step = Step(instruction, "salu", run, reads, control="branch")
    return step


def compile_index(instruction: Instruction, context: Context, copies: Copies) -> Step | None:
    """Return the step of s_set_gpr_idx_* or s_setvskip; None for other mnemonics."""
    if instruction.name == "s_setvskip":
        return _compile_skip(instruction, context, copies)
    if not instruction.name.startswith("s_set_gpr_idx_"):
        return None
    name = instruction.name.removeprefix("s_set_gpr_idx_")
    m0 = scalar_bits(M0)
    if name == "off":

        def leave(g: WaveGroup) -> None:
            g.mode &= ~GPR_INDEX
            _enter(g, copies)

        return Step(instruction, "salu", leave, control="branch")
    # SOPC has the roles in its second source, SOPP in its immediate; both leave the other bits of M0 alone.
    roles = np.uint32((instruction.words[0] >> (8 if name == "on" else 0)) & 0xF)
    takes_index = name in ("on", "idx")
    kept = np.uint32({"on": 0xFFFF0F00, "idx": 0xFFFFFF00, "mode": 0xFFFF0FFF}[name])
    fetch = scalar_fetch(instruction.operands[0], "u32", context, instruction) if takes_index else None
    reads = m0 | (context.bits(instruction.operands[0]) if takes_index else 0)
    rows = (instruction.operands[0].index,) if reads & ~m0 else ()

    def run(g: WaveGroup) -> None:
        refuse_scalar_poison(g, step, reads, rows, "the index of registers", always=True)
        word = g.s[M0] & kept
        if fetch is not None:
            word = word | (fetch(g) & np.uint32(0xFF))
        if name != "idx":
            word = word | roles << np.uint32(12)
        g.s[M0] = word
        g.poison_scalar(M0, None)
        if name == "on":
            g.mode |= GPR_INDEX
        _enter(g, copies)

    step = Step(instruction, "salu", run, reads if rows else 0, m0, control="branch")
    return step
