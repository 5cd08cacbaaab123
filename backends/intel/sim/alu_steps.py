"""Common parts of instructions that compute: sources, registers, conditions and working type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convgen.backends.intel.sim import alu_table as table
from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.sim.execution_masks import check_flag, flag_bits
from convgen.backends.intel.sim.operands import FLOATS, Reader, address_bits, source
from convgen.backends.intel.sim.pipes import pipe_of
from convgen.backends.intel.sim.results import Writer, target
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Context, Step, unsupported
from convgen.backends.sim.wave_arrays import Array, Bools, united

LOGIC = frozenset(("and", "or", "xor", "not"))


def parts_of(instruction: Instruction, context: Context) -> tuple[list[Reader], Writer, Step]:
    """Return the sources and the destination of an instruction, and its step; the caller sets `run`."""
    logical, lanes = instruction.op in LOGIC or instruction.op == "bfn", instruction.exec_size
    sources = [source(o, lanes, instruction, context, logical=logical) for o in instruction.sources]
    destination = target(instruction.dst, lanes, instruction, context)
    return sources, destination, _new_step(instruction, context, sources, destination)


def _new_step(instruction: Instruction, context: Context, sources: list[Reader], destination: Writer) -> Step:
    """Return a step with the registers that an instruction uses."""
    reads, writes = context.layout.control_bits, destination.bits
    for item in sources:
        reads |= item.bits
    if instruction.predicate or (instruction.op == "sel" and not instruction.condition):
        reads |= flag_bits(instruction, context)
    if instruction.condition and instruction.op not in ("sel", "csel"):
        check_flag(instruction, context)
        writes |= flag_bits(instruction, context)
    if instruction.dst is not None and instruction.dst.kind == "indirect":
        reads |= address_bits(instruction.dst, 1, context)
    pipe = pipe_of(instruction, context.platform)
    kind = "math" if instruction.op == "math" else "alu"
    return Step(instruction, kind, lambda g: None, pipe=pipe, reads=reads, writes=writes)


def union(sources: list[Reader], g: ThreadGroup) -> Bools | None:
    """Return the lanes in which any source is undefined; None if there are none."""
    return united([item.undefined(g) for item in sources])


def condition_of(instruction: Instruction, context: Context) -> Callable[[Array, Array | int], Array] | None:
    """Return the comparison with zero that a conditional modifier asks for."""
    if not instruction.condition:
        return None
    check_flag(instruction, context)
    if instruction.condition == "eo":
        return lambda value, zero: np.ones(value.shape, np.bool_)
    if instruction.condition in ("un", "uo"):
        return lambda value, zero: np.isnan(value)
    if instruction.condition not in table.COMPARE:
        raise unsupported(instruction, f"condition {instruction.condition}")
    return table.COMPARE[instruction.condition]


def float_type(instruction: Instruction) -> str:
    """Return the floating-point type that an instruction computes in, "" for integers."""
    kinds = {o.type for o in instruction.sources if o.type in FLOATS}
    for name in ("df", "f", "vf", "hf", "bf"):
        if name in kinds:
            return "f" if name == "vf" else name
    return ""
