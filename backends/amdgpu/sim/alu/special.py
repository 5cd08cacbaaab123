"""Vector instructions that move data between lanes, between register files, or do nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.amdgpu.sim.alu.operands import check_tuple, raw_fetch, write_vector
from convgen.backends.amdgpu.sim.alu.salu import scalar_fetch, write_scalar
from convgen.backends.amdgpu.sim.alu.valu import VECTOR_MASK, vector_hazards, vector_step
from convgen.backends.amdgpu.sim.decode import EXEC, Instruction, require_plain
from convgen.backends.amdgpu.sim.hazards import Consumes
from convgen.backends.amdgpu.sim.state import WaveGroup, scalar_bits
from convgen.backends.amdgpu.sim.step import Context, Step, unsupported
from convgen.backends.sim.wave_arrays import ALL_BITS, Array, Bools, united

_NOTHING: frozenset[str] = frozenset()


def _lane_step(
    instruction: Instruction, run: Callable[[WaveGroup], None], reads: int, writes: int, select: int
) -> Step:
    """Return the step of readlane, readfirstlane or writelane, with hazards on its lane select and EXEC."""
    produces, consumes = vector_hazards(reads & ~select, writes)
    extra = (
        Consumes("first_lane_read" if "first" in instruction.name else "lane_read", reads & VECTOR_MASK),
        Consumes("lane_select", select),
        Consumes("exec_lane", scalar_bits(EXEC, 2)),
    )
    return Step(instruction, "valu", run, reads, writes, produces, consumes + tuple(u for u in extra if u.mask))


def _readfirstlane(instruction: Instruction, context: Context) -> Step:
    target, source = instruction.operands
    check_tuple(target, 1, context)
    check_tuple(source, 1, context)
    if source.kind != "v" or target.kind != "s":
        raise unsupported(instruction)
    register, row = context.vector(source), target.index

    def run(g: WaveGroup) -> None:
        lane = np.zeros(g.count, np.int64) if g.exec_full else g.exec.argmax(axis=1)
        waves = np.arange(g.count)
        write_scalar(g, row, g.v[register][waves, lane], wide=False)
        bad = g.vector_poison(register)
        g.poison_scalar(row, None if bad is None else bad[waves, lane])

    return _lane_step(instruction, run, context.bits(source), context.bits(target), 0)


def _readlane(instruction: Instruction, context: Context) -> Step:
    target, source, select = instruction.operands
    check_tuple(target, 1, context)
    check_tuple(source, 1, context)
    lane_of = scalar_fetch(select, "u32", context, instruction)
    register, row = context.vector(source), target.index

    def run(g: WaveGroup) -> None:
        waves = np.arange(g.count)
        lane = np.broadcast_to(lane_of(g), (g.count,)) & np.uint32(63)
        write_scalar(g, row, g.v[register][waves, lane], wide=False)
        bad = g.vector_poison(register)
        chosen = g.scalar_poison(select.index) if select.kind == "s" else None
        if bad is None or chosen is not None or register not in g.lane_bits:
            g.poison_scalar(row, united((None if bad is None else bad[waves, lane], chosen)))
        else:
            g.poison_scalar(row, np.where(bad[waves, lane], g.lane_bits[register][waves, lane], np.uint32(0)))

    reads = context.bits(source, select)
    return _lane_step(instruction, run, reads, context.bits(target), context.bits(select))


def _writelane(instruction: Instruction, context: Context) -> Step:
    target, source, select = instruction.operands
    check_tuple(target, 1, context)
    value_of = scalar_fetch(source, "u32", context, instruction)
    lane_of = scalar_fetch(select, "u32", context, instruction)
    register = context.vector(target)

    def run(g: WaveGroup) -> None:
        waves = np.arange(g.count)
        lane = np.broadcast_to(lane_of(g), (g.count,)) & np.uint32(63)
        g.v[register][waves, lane] = value_of(g)
        bits = g.undefined_bits(source.index) if source.kind == "s" else np.zeros(g.count, np.uint32)
        if bits.any() and not g.poison >> register & 1:
            g.vp[register] = False
            g.poison |= 1 << register
        if g.poison >> register & 1:
            g.vp[register][waves, lane] = bits != 0
            if bits.any():
                g.lane_bits.setdefault(register, np.full((g.count, 64), ALL_BITS, np.uint32))[waves, lane] = bits

    reads = context.bits(source, select)
    return _lane_step(instruction, run, reads, context.bits(target), context.bits(select))


def _accvgpr(instruction: Instruction, context: Context) -> Step:
    """Compile v_accvgpr_read/write/mov: a move between the two halves of the register file."""
    target, source = instruction.operands
    check_tuple(target, 1, context)
    fetch, register = raw_fetch(source, "u32", context, instruction), context.vector(target)
    origin = context.vector(source) if source.is_vector else -1

    def run(g: WaveGroup) -> None:
        write_vector(g, register, fetch(g))
        if origin in g.lane_bits:
            g.lane_bits[register] = g.lane_bits[origin].copy()

    return vector_step(instruction, context, run, (target,), ("u32",), (source,))


def _exchange(
    instruction: Instruction, context: Context, swap: Callable[[Array, Array], tuple[Array, Array]], role: str
) -> Step:
    """Compile an instruction that overwrites both of its vector operands with a rearrangement of the two."""
    first, second = instruction.operands[:2]
    for operand in (first, second):
        check_tuple(operand, 1, context)
        if operand.kind != "v":
            raise unsupported(instruction)
    a, b = context.vector(first), context.vector(second)
    both = context.bits(first, second)

    def run(g: WaveGroup) -> None:
        bad_a, bad_b = g.vector_poison(a), g.vector_poison(b)
        new_a, new_b = swap(g.v[a], g.v[b])
        new_a, new_b = new_a.copy(), new_b.copy()
        write_vector(g, a, new_a)
        write_vector(g, b, new_b)
        if bad_a is not None or bad_b is not None:
            clean: Bools = np.zeros((g.count, 64), np.bool_)
            rows = swap(clean if bad_a is None else bad_a, clean if bad_b is None else bad_b)
            rows = (rows[0].copy(), rows[1].copy())
            g.poison_vector(a, rows[0])
            g.poison_vector(b, rows[1])

    produces, consumes = vector_hazards(both, both)
    if role:
        consumes += (Consumes(role, both), Consumes("exec_permlane", scalar_bits(EXEC, 2)))
    return Step(instruction, "valu", run, both, both, produces, consumes)


def _permlane(rows: int) -> Callable[[Array, Array], tuple[Array, Array]]:
    """v_permlane{16,32}_swap: exchange odd groups of `rows` lanes of the first with even groups of the second."""

    def swap(a: Array, b: Array) -> tuple[Array, Array]:
        x, y = a.reshape(len(a), -1, 2, rows), b.reshape(len(b), -1, 2, rows)
        new_a = np.stack((x[:, :, 0], y[:, :, 0]), axis=2)
        new_b = np.stack((x[:, :, 1], y[:, :, 1]), axis=2)
        return new_a.reshape(a.shape), new_b.reshape(b.shape)

    return swap


_COMPILERS: Mapping[str, Callable[[Instruction, Context], Step]] = {
    "v_readfirstlane_b32": _readfirstlane,
    "v_readlane_b32": _readlane,
    "v_writelane_b32": _writelane,
    "v_accvgpr_read_b32": _accvgpr,
    "v_accvgpr_write_b32": _accvgpr,
    "v_accvgpr_mov_b32": _accvgpr,
    "v_swap_b32": lambda i, c: _exchange(i, c, lambda a, b: (b, a), ""),
    "v_permlane16_swap_b32": lambda i, c: _exchange(i, c, _permlane(16), "permlane"),
    "v_permlane32_swap_b32": lambda i, c: _exchange(i, c, _permlane(32), "permlane"),
    "v_nop": lambda i, c: Step(i, "valu", lambda g: None),
}


def compile_special(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of an instruction that this module knows; None for other mnemonics."""
    compiler = _COMPILERS.get(instruction.name)
    if compiler is None:
        return None
    require_plain(instruction, _NOTHING)
    return compiler(instruction, context)
