"""Program control: branches, barriers, ends, no-ops and mode registers (CDNA3 ISA, "Program Flow Control")."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.amdgpu.sim.alu.operands import check_tuple, join_words
from convgen.backends.amdgpu.sim.decode import EXEC, M0, SCALAR_ROWS, SCC, VCC, Instruction
from convgen.backends.amdgpu.sim.ds_table import ATOMICS
from convgen.backends.amdgpu.sim.hazards import Consumes, Produces
from convgen.backends.amdgpu.sim.relative import GPR_INDEX, continue_at
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup, scalar_bits
from convgen.backends.amdgpu.sim.step import Context, Step, unsupported
from convgen.backends.amdgpu.sim.transfer import refuse_scalar_poison
from convgen.backends.sim.errors import Unsupported
from convgen.backends.sim.findings import LaunchStopped
from convgen.backends.sim.wave_arrays import Array

_NO_OPS = frozenset(
    "s_setprio s_icache_inv s_inst_prefetch s_ttracedata s_incperflevel s_decperflevel s_sethalt ds_nop".split()
)


def _either(row: int) -> Callable[[WaveGroup], Array]:
    return lambda g: (g.s[row] | g.s[row + 1]) != 0


def _flag(g: WaveGroup) -> Array:
    result: Array = g.s[SCC] != 0
    return result


def _not(condition: Callable[[WaveGroup], Array]) -> Callable[[WaveGroup], Array]:
    return lambda g: ~condition(g)


#: (condition, scalar registers it reads)
_CONDITIONS: Mapping[str, tuple[Callable[[WaveGroup], Array], tuple[int, ...]]] = {
    "s_cbranch_scc0": (_not(_flag), (SCC,)),
    "s_cbranch_scc1": (_flag, (SCC,)),
    "s_cbranch_vccz": (_not(_either(VCC)), (VCC, VCC + 1)),
    "s_cbranch_vccnz": (_either(VCC), (VCC, VCC + 1)),
    "s_cbranch_execz": (_not(_either(EXEC)), (EXEC, EXEC + 1)),
    "s_cbranch_execnz": (_either(EXEC), (EXEC, EXEC + 1)),
}
_HWREG = re.compile(r"hwreg\((?P<name>\w+)(?:,\s*(?P<offset>\d+),\s*(?P<size>\d+))?\)")
#: Stands for the hardware registers in hazards: a bit that no scalar register has.
_HARDWARE_REGISTER = scalar_bits(SCALAR_ROWS)


def compile_control(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a program control instruction; None for other mnemonics."""
    name = instruction.name
    if name == "s_nop":
        count = (instruction.words[0] & 0xF) + 1
        return Step(instruction, "nop", lambda g: None, wait_states=count)
    if name == "s_sleep":
        return Step(instruction, "other", lambda g: None, control="sleep")
    if name in _NO_OPS or name.startswith("s_cbranch_cdbg"):  # conditions that a debugger sets
        return Step(instruction, "other", lambda g: None)
    if name in ("s_sendmsg", "s_sendmsghalt"):
        m0 = scalar_bits(M0)
        return Step(instruction, "other", lambda g: None, consumes=(Consumes("m0_use", m0),))
    if name in ("s_endpgm", "s_endpgm_saved"):
        return Step(instruction, "other", lambda g: None, control="end")
    if name == "s_barrier":
        return Step(instruction, "barrier", _arrive, control="barrier")
    if name == "s_branch" or name in _CONDITIONS:
        return _branch(instruction, context)
    if name == "s_trap":
        return _trap(instruction)
    if name in ("s_setpc_b64", "s_swappc_b64", "s_getpc_b64", "s_call_b64"):
        return _program_counter(instruction, context)
    if name.startswith(("s_setreg", "s_getreg")):
        return _hardware_register(instruction, context)
    return None


def _access(pending: Pending) -> str:
    """Return the kind of an outstanding LDS operation: "read", "write" or "update"."""
    if pending.step.kind == "ds_read":
        return "read"
    return "update" if pending.step.instruction.name in ATOMICS else "write"


def _arrive(g: WaveGroup) -> None:
    """Block at the barrier; stamp LDS accesses that are outstanding, which the barrier does not order."""
    if g.env.strict and (g.lgkm or g.vm):
        ahead = g.env.stamps(g, ahead=1)
        for pending in (*g.lgkm, *g.vm):
            units = pending.payload[3] if len(pending.payload) > 3 else None
            if units is None:
                continue
            lanes, access = pending.payload[2], _access(pending)
            if lanes is None:
                g.env.local.cross_barrier(units, ahead, access, pending.step)
            else:
                where = np.broadcast_to(lanes, units.shape)
                mine = np.broadcast_to(ahead, units.shape)[where]
                g.env.local.cross_barrier(units[where], mine, access, pending.step)
    g.blocked = True


def _branch(instruction: Instruction, context: Context) -> Step:
    target = context.place(instruction.address + 4 + 4 * instruction.simm16)
    following = context.place(instruction.address + instruction.size)
    if instruction.name == "s_branch":

        def jump(g: WaveGroup) -> None:
            g.targets = None
            g.pc = target

        return Step(instruction, "branch", jump, control="branch")
    condition, registers = _CONDITIONS[instruction.name]
    reads = 0
    for register in registers:
        reads |= scalar_bits(register)
    step = Step(instruction, "branch", lambda g: None, reads, control="branch")

    def run(g: WaveGroup) -> None:
        if g.poison & reads and g.env.strict:
            bad = g.waves_poison(registers)
            if bad is not None and len(registers) == 2:  # a bit that is set and defined decides it
                bad &= ~np.any([g.s[r] & ~g.undefined_bits(r) for r in registers], axis=0)
            if bad is not None and bad.any():
                g.env.reporter.at_first("poison", "the branch depends on undefined data", instruction, g, bad)
        taken = condition(g)
        g.targets = None
        if taken.all():
            g.pc = target
        elif taken.any():
            g.targets = np.where(taken, target, following)
        else:
            g.pc = following

    return step.running(run)


def _trap(instruction: Instruction) -> Step:
    """Stop the launch with a finding: `llvm.trap` and failed assertions become s_trap."""

    def run(g: WaveGroup) -> None:
        g.env.reporter.add("trap", "the kernel stops itself", instruction, g)
        raise LaunchStopped

    return Step(instruction, "other", run)


def _program_counter(instruction: Instruction, context: Context) -> Step:
    """Compile s_getpc, s_setpc, s_swappc and s_call; addresses are those of the loaded image."""
    name = instruction.name
    place = instruction.address + 4 + 4 * instruction.simm16 if name == "s_call_b64" else None
    following = instruction.address + instruction.size
    target = instruction.operands[0] if name != "s_setpc_b64" else None
    source = instruction.operands[-1] if name not in ("s_getpc_b64", "s_call_b64") else None
    for operand in (target, source):
        if operand is not None:
            check_tuple(operand, 2, context)
    reads = 0 if source is None else context.bits(source)
    writes = 0 if target is None else context.bits(target)
    control = "" if source is None and place is None else "branch"
    base_index = context.base
    step = Step(instruction, control or "salu", lambda g: None, reads, writes, control=control)

    def run(g: WaveGroup) -> None:
        base = g.env.image_base
        goal = None if place is None else np.full(g.count, place, np.int64)
        if source is not None:
            refuse_scalar_poison(g, step, reads, (source.index, source.index + 1), "the jump target", always=True)
            goal = join_words(g.s[source.index], g.s[source.index + 1]).astype(np.int64) - base
        if target is not None:
            g.s[target.index] = (base + following) & 0xFFFFFFFF
            g.s[target.index + 1] = (base + following) >> 32
            g.poison_scalar(target.index, None)
            g.poison_scalar(target.index + 1, None)
        if goal is not None:
            indices = [context.text.index_of.get(int(address)) for address in goal]
            continue_at(g, [-1 if index is None else base_index + index for index in indices])

    return step.running(run)


def _hardware_register(instruction: Instruction, context: Context) -> Step:
    """Compile s_getreg and s_setreg on MODE; other registers read as 0. Only round-to-nearest-even is simulated."""
    match = _HWREG.search(instruction.text)
    if match is None:
        raise unsupported(instruction)
    offset, size = int(match["offset"] or 0), int(match["size"] or 32)
    is_mode = match["name"] == "HW_REG_MODE"
    uses = (Consumes("hwreg", _HARDWARE_REGISTER),)
    if instruction.name == "s_getreg_b32":
        target = instruction.operands[0]
        check_tuple(target, 1, context)

        def get(g: WaveGroup) -> None:
            value = g.mode if is_mode else 0
            g.s[target.index] = value >> offset & ((1 << size) - 1)
            g.poison_scalar(target.index, None)

        return Step(instruction, "salu", get, 0, context.bits(target), consumes=uses)
    immediate = instruction.name == "s_setreg_imm32_b32"
    source = next((o for o in instruction.operands if o.kind != "word"), None)
    if source is None:
        raise unsupported(instruction)

    def put(g: WaveGroup) -> None:
        if is_mode:
            values = {instruction.words[1]} if immediate else {int(value) for value in g.s[source.index]}
            _set_mode(g, instruction, values, offset, size)

    reads = 0 if immediate else context.bits(source)
    produces = (Produces("setreg", _HARDWARE_REGISTER),)
    return Step(instruction, "salu", put, reads, 0, produces, uses)


def _set_mode(g: WaveGroup, instruction: Instruction, values: set[int], offset: int, size: int) -> None:
    """Write `size` bits of MODE from bit `offset` on; `values` are those of the waves. Raises Unsupported."""
    if len(values) != 1:
        raise Unsupported(f"`{instruction.text}`: waves of one group set different modes")
    mask = ((1 << size) - 1) << offset
    if mask & GPR_INDEX:
        raise Unsupported(f"`{instruction.text}`: MODE.GPR_IDX_EN is simulated where s_set_gpr_idx_* sets it")
    g.mode = (g.mode & ~mask) | (values.pop() << offset & mask)
    if g.mode & 0xF:
        raise Unsupported(f"`{instruction.text}`: only round to nearest even is simulated")
