"""Compile scalar ALU instructions. Results are one word per wave: arrays [waves]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from convgen.backends.amdgpu.sim.alu.operands import (
    WIDE,
    check_tuple,
    computed,
    constant_bits,
    join_words,
    split_words,
    words_of,
)
from convgen.backends.amdgpu.sim.alu.salu_table import SAVEEXEC, SCALAR_ROWS_BY_NAME, WREXEC, ScalarRow
from convgen.backends.amdgpu.sim.decode import EXEC, M0, SCC, Instruction, Operand
from convgen.backends.amdgpu.sim.hazards import Produces
from convgen.backends.amdgpu.sim.state import WaveGroup, scalar_bits
from convgen.backends.amdgpu.sim.step import Context, Run, Step, unsupported
from convgen.backends.sim.wave_arrays import Array
from convgen.ir.record import frozen

ScalarFetch = Callable[[WaveGroup], Array]
_VIEWS = {"i32": np.int32, "i64": np.int64}


def scalar_fetch(operand: Operand, kind: str, context: Context, instruction: Instruction) -> ScalarFetch:
    """Return a fetch of a scalar source [waves], or of a constant [1]."""
    view = _VIEWS.get(kind)
    if operand.kind == "s":
        check_tuple(operand, words_of(kind), context)
        row = operand.index
        if kind in WIDE:
            if view is not None:
                return lambda g: join_words(g.s[row], g.s[row + 1]).view(view)
            return lambda g: join_words(g.s[row], g.s[row + 1])
        if view is not None:
            return lambda g: g.s[row].view(view)
        return lambda g: g.s[row]
    bits = constant_bits(operand, kind, instruction)
    constant = np.atleast_1d(np.uint64(bits) if kind in WIDE else np.uint32(bits))
    value = constant if view is None else constant.view(view)
    return lambda g: value


def write_scalar(g: WaveGroup, row: int, value: Array, *, wide: bool) -> None:
    """Write one or two scalar registers; EXEC rebuilds the lane mask."""
    if wide:
        g.s[row], g.s[row + 1] = split_words(np.asarray(value).astype(np.uint64, copy=False))
    else:
        g.s[row] = np.asarray(value).astype(np.uint32, copy=False)
    if row in (EXEC, EXEC + 1):
        g.exec_changed()


def refuse_poisoned_exec(g: WaveGroup, step_instruction: Instruction) -> None:
    """Report an undefined EXEC, on which all later instructions depend, and continue as if it were defined."""
    for row in (EXEC, EXEC + 1):
        waves = g.scalar_poison(row)
        if waves is not None:
            if g.env.strict:
                g.env.reporter.at_first("poison", "EXEC depends on undefined data", step_instruction, g, waves)
            g.poison_scalar(row, None)


def _scc_fetch(g: WaveGroup) -> Array:
    result: Array = g.s[SCC]
    return result


def compile_salu(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a scalar ALU instruction; None for other mnemonics."""
    if instruction.name in SAVEEXEC or instruction.name in WREXEC:
        return _saveexec(instruction, context)
    if instruction.name.startswith("s_movrel"):
        return _relative(instruction, context)
    row = SCALAR_ROWS_BY_NAME.get(instruction.name)
    if row is None:
        return None
    operands = list(instruction.operands)
    target = operands.pop(0) if row.result else None
    if target is not None:
        check_tuple(target, words_of(row.result), context)
    fetches, registers = _sources(row, instruction, target, operands, context)
    wide, index = row.result in WIDE, -1 if target is None else target.index
    writes = scalar_bits(index, 2 if wide else 1) if index >= 0 else 0
    writes |= scalar_bits(SCC) if row.flag else 0
    run = _computation(row, fetches, index, wide)
    step = Step(instruction, "salu", run, sum_bits(registers), writes)
    if row.bitwise:
        bits = Bits(row.function, fetches, instruction.operands[1:], wide)
        step.run = _bitwise(run, step, bits, index, row.flag)
    else:
        step.run = _propagating(run, step, registers, index, wide, row.flag)
    if writes & scalar_bits(M0):
        step.produces = (Produces("m0", scalar_bits(M0)),)
    return step


def _computation(row: ScalarRow, fetches: list[ScalarFetch], index: int, wide: bool) -> Run:
    """Return the function that computes a row and writes its result from register `index` on (-1: none), and SCC."""
    compute, flag = computed(row.function, fetches), row.flag

    def run(g: WaveGroup) -> None:
        value = scc = compute(g)
        if flag == "given" and index >= 0:
            value, scc = value
        if index >= 0:
            write_scalar(g, index, value, wide=wide)
        if flag == "nonzero":
            g.s[SCC] = np.asarray(value) != 0
        elif flag == "given":
            g.s[SCC] = scc

    return run


def _sources(
    row: ScalarRow, instruction: Instruction, target: Operand | None, operands: list[Operand], context: Context
) -> tuple[list[ScalarFetch], list[tuple[int, ...]]]:
    """Return the fetches of a row's sources and the scalar registers of each; remove their operands from the list."""
    fetches: list[ScalarFetch] = []
    registers: list[tuple[int, ...]] = []
    for kind in row.sources:
        if kind == "scc":
            fetches.append(_scc_fetch)
            registers.append((SCC,))
        elif kind in ("k", "ku"):
            immediate = instruction.simm16 if kind == "k" else instruction.simm16 & 0xFFFF
            constant = np.array([immediate], np.int32 if kind == "k" else np.uint32)
            fetches.append(lambda g, constant=constant: constant)  # type: ignore[misc]
        elif kind in ("acc", "old"):
            assert target is not None
            fetches.append(scalar_fetch(target, row.result, context, instruction))
            registers.append((target.index,))
        else:
            operand = operands.pop(0)
            fetches.append(scalar_fetch(operand, kind, context, instruction))
            if operand.kind == "s":
                registers.append(tuple(range(operand.index, operand.index + words_of(kind))))
    return fetches, registers


def sum_bits(registers: list[tuple[int, ...]]) -> int:
    """Return the register set of some scalar registers."""
    bits = 0
    for group in registers:
        for register in group:
            bits |= scalar_bits(register)
    return bits


def _propagating(run: Run, step: Step, registers: list[tuple[int, ...]], index: int, wide: bool, flag: str) -> Run:
    """Return `run` followed by marking its results as undefined if a source is, register by register."""
    touched = step.reads | step.writes
    every = tuple(register for group in registers for register in group)
    instruction = step.instruction

    def poisoned(g: WaveGroup) -> None:
        if not g.poison & touched:
            run(g)
            return
        whole = g.waves_poison(every)
        run(g)
        if index >= 0:
            for k in range(2 if wide else 1):
                g.poison_scalar(index + k, whole)
        if flag:
            g.poison_scalar(SCC, whole)
        if index in (EXEC, EXEC + 1):
            refuse_poisoned_exec(g, instruction)

    return poisoned


@frozen(eq=False)
class Bits:
    """A bitwise function of scalar sources, whose undefined bits leave bits of the result undefined."""

    function: Callable[..., Array]
    fetches: list[ScalarFetch]
    sources: Sequence[Operand]  #: operands of the first fetches; further fetches are defined
    wide: bool

    def undefined(self, g: WaveGroup) -> tuple[Array, Array]:
        """Return the result with undefined bits taken as 0, and the result bits that depend on them."""
        choices: list[tuple[Array, ...]] = [(fetch(g),) for fetch in self.fetches]
        for number, source in enumerate(self.sources):
            if source.kind == "s":
                low = g.undefined_bits(source.index)
                bits = join_words(low, g.undefined_bits(source.index + 1)) if self.wide else low
                (value,) = choices[number]
                choices[number] = (value & ~bits, value | bits)
        first, *others = (self.function(*values) for values in product(*choices))
        matters = np.zeros_like(first)
        for other in others:
            matters = matters | (first ^ other)
        return first, matters


def poison_bits(g: WaveGroup, index: int, bits: Array, *, wide: bool) -> None:
    """Set the undefined bits of one or two scalar registers."""
    full = np.broadcast_to(bits, (g.count,))
    words = split_words(full.astype(np.uint64, copy=False)) if wide else (full.astype(np.uint32, copy=False),)
    for k, word in enumerate(words):
        g.poison_scalar(index + k, word.copy())


def _bitwise(run: Run, step: Step, bits: Bits, index: int, flag: str) -> Run:
    """Return `run` followed by marking undefined result bits. SCC is defined if a defined bit is set, or if all are."""
    touched = step.reads | step.writes

    def poisoned(g: WaveGroup) -> None:
        if not g.poison & touched:
            run(g)
            return
        value, matters = bits.undefined(g)
        unknown = g.scalar_poison(SCC) if step.reads & scalar_bits(SCC) else None
        if unknown is not None:
            matters = np.where(unknown, ~matters.dtype.type(0), matters)
        run(g)
        poison_bits(g, index, matters, wide=bits.wide)
        if flag:
            g.poison_scalar(SCC, np.broadcast_to((matters != 0) & (value & ~matters == 0), (g.count,)))
        if index in (EXEC, EXEC + 1):
            refuse_poisoned_exec(g, step.instruction)

    return poisoned


def _saveexec(instruction: Instruction, context: Context) -> Step:
    saves = instruction.name in SAVEEXEC
    function = SAVEEXEC[instruction.name] if saves else WREXEC[instruction.name]
    target, source = instruction.operands
    if target.kind != "s":
        raise unsupported(instruction)
    check_tuple(target, 2, context)
    fetch = scalar_fetch(source, "u64", context, instruction)
    source_registers = (source.index, source.index + 1) if source.kind == "s" else ()
    reads = sum_bits([source_registers, (EXEC, EXEC + 1)])
    bits = Bits(function, [fetch, lambda g: join_words(g.s[EXEC], g.s[EXEC + 1])], [source], wide=True)

    def run(g: WaveGroup) -> None:
        value = fetch(g)
        if g.poison & reads:
            poison_bits(g, EXEC, bits.undefined(g)[1], wide=True)
        old = join_words(g.s[EXEC], g.s[EXEC + 1])
        new = function(value, old)
        write_scalar(g, target.index, old if saves else new, wide=True)
        write_scalar(g, EXEC, new, wide=True)
        g.s[SCC] = (g.s[EXEC] | g.s[EXEC + 1]) != 0
        for register in (target.index, target.index + 1, SCC):
            g.poison_scalar(register, None)
        refuse_poisoned_exec(g, instruction)

    return Step(instruction, "salu", run, reads, scalar_bits(target.index, 2) | scalar_bits(EXEC, 2) | scalar_bits(SCC))


def _relative(instruction: Instruction, context: Context) -> Step:
    """Compile s_movrels and s_movreld: M0 is added to the register number of the source or of the destination."""
    target, source = instruction.operands
    wide, from_source = instruction.name.endswith("b64"), instruction.name.startswith("s_movrels")
    moved, fixed = (source, target) if from_source else (target, source)
    if moved.kind != "s":
        raise unsupported(instruction)
    count, room = 2 if wide else 1, context.descriptor.sgprs
    check_tuple(fixed, count, context)
    every = scalar_bits(0, room)
    reads = scalar_bits(M0) | (every if from_source else context.bits(source))
    step = Step(instruction, "salu", lambda g: None, reads, context.bits(target) if from_source else every)
    fetch = scalar_fetch(fixed, "u64" if wide else "u32", context, instruction) if not from_source else None

    def run(g: WaveGroup) -> None:
        places = moved.index + g.s[M0].astype(np.int64)
        outside = (places < 0) | (places + count > room)
        if outside.any():
            message = f"M0 leads to s{int(places[outside][0])}, the kernel has {room} scalar registers"
            g.env.reporter.at_first("register-range", message, instruction, g, outside)
            places = np.where(outside, moved.index, places)
        value = None if fetch is None else np.broadcast_to(fetch(g), (g.count,))
        for word in range(count):
            if value is None:
                _gather(g, places + word, target.index + word)
            else:
                _scatter(g, (value >> value.dtype.type(32 * word)).astype(np.uint32), places + word)

    return step.running(run)


def _gather(g: WaveGroup, rows: Array, target: int) -> None:
    """Copy one scalar register, another for each wave, to `target`."""
    poisons = [g.scalar_poison(int(row)) for row in rows]
    spoiled = np.array([bad is not None and bool(bad[wave]) for wave, bad in enumerate(poisons)])
    unknown = g.scalar_poison(M0)
    g.s[target] = g.s[rows, np.arange(g.count)]
    g.poison_scalar(target, spoiled if unknown is None else spoiled | unknown)


def _scatter(g: WaveGroup, value: Array, rows: Array) -> None:
    """Write one scalar register, another for each wave."""
    g.s[rows, np.arange(g.count)] = value
    for row in np.unique(rows):
        before = g.scalar_poison(int(row))
        if before is not None:
            g.poison_scalar(int(row), before & (rows != row))
