"""Block messages of the old data ports: consecutive 16-byte words of a buffer, described by a header register."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.intel.sim.decode import Instruction, Message
from convgen.backends.intel.sim.execution_masks import active, flag_bits
from convgen.backends.intel.sim.late import note_late
from convgen.backends.intel.sim.lsc import active_count, surface_base
from convgen.backends.intel.sim.messages import STATELESS
from convgen.backends.intel.sim.payload import (
    check_length,
    check_range,
    elements,
    fill,
    land,
    registers,
    report_undefined,
    undefined,
)
from convgen.backends.intel.sim.slm import load_local, peek_local, store_local
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Context, Step, send_step, unsupported
from convgen.backends.intel.sim.stores import store_global
from convgen.backends.sim.global_access import load_lanes, peek_lanes
from convgen.backends.sim.wave_arrays import U64, Bools, any_along
from convgen.ir.record import evolve, frozen

#: Words of 16 bytes by the control field.
_WORDS: Mapping[int, int] = {0: 1, 2: 2, 3: 4, 4: 8, 5: 16}


@frozen
class Kind:
    """A block message: the place of its address in the header, and the address's unit."""

    stores: bool
    wide: bool = False  #: qword 0 is an address
    unit: int = 1
    alignment: int = 4


_KINDS: Mapping[tuple[str, int], Kind] = {
    ("dc0", 0): Kind(False, unit=16, alignment=16),
    ("dc0", 1): Kind(False),
    ("dc0", 8): Kind(True, unit=16, alignment=16),
    ("dc1", 0x14): Kind(False, wide=True),
    ("dc1", 0x15): Kind(True, wide=True, alignment=16),
}


def compile_blocks(
    instruction: Instruction,
    message: Message,
    number: int,
    control: int,
    binding: int,
    context: Context,
    *,
    local: bool,
) -> Step:
    """Return the step of a block message."""
    kind = _KINDS.get((message.unit, number))
    words = _WORDS.get(control & 7)
    if kind is None or words is None:
        raise unsupported(instruction, f"data port message {number:#x} with a header")
    layout = context.layout
    size = 16 * words
    data = registers(16, words, context)
    step = send_step(instruction, "send_slm" if local else "send_ugm", layout.grf_bits(message.src0.reg, 1))
    fits = check_range(context, "header", message.src0.reg, 1)
    if kind.stores:
        check_length(context, "a data payload", message.src1.length, data)
        fits &= check_range(context, "data payload", message.src1.reg, data)
        step.reads |= layout.grf_bits(message.src1.reg, data)
    else:
        fits &= check_range(context, "response", message.dst.reg, data)
        step.writes = layout.grf_bits(message.dst.reg, data)
    if instruction.predicate:
        step.reads |= flag_bits(instruction, context)
    if fits:
        step.run = _run(instruction, message, step, kind, binding, size, context, local=local)
    return step


def _address(
    instruction: Instruction, message: Message, kind: Kind, surface: int | None
) -> Callable[[ThreadGroup, Bools | None], U64]:
    """Return the step that reads the address (bytes) from a message's header, relative to a surface if there is one."""
    header = message.src0.reg
    first, count = (0, 2) if kind.wide else (2, 1)  # dwords of the header

    def address(g: ThreadGroup, lanes: Bools | None) -> U64:
        bad = undefined(g, header, 4, first + count)
        report_undefined(g, instruction, None if bad is None else bad[:, first:], lanes, "the address")
        if kind.wide:
            return elements(g, header, 8, 1).astype(np.uint64)
        offset = elements(g, header, 4, 3)[:, 2:].astype(np.uint64) * np.uint64(kind.unit)
        return offset if surface is None else offset + surface_base(g, instruction, surface)

    return address


def _run(
    instruction: Instruction,
    message: Message,
    step: Step,
    kind: Kind,
    binding: int,
    size: int,
    context: Context,
    *,
    local: bool,
) -> Callable[[ThreadGroup], None]:
    """Return the function that executes a block message."""
    dst, src = message.dst.reg, message.src1.reg
    active_lanes = active(evolve(instruction, exec_size=1), context)
    address = _address(instruction, message, kind, None if local or binding == STATELESS else binding)

    def reread(g: ThreadGroup, at: U64, lanes: Bools | None) -> None:
        data = peek_local(g, at, size, kind.alignment) if local else peek_lanes(g, at, size, lanes)
        fill(g, dst, 4, data[:, :, 0].T, lanes)

    def store(g: ThreadGroup) -> None:
        lanes = active_lanes(g)
        at = address(g, lanes)
        g.env.counters["slm_write_bytes" if local else "global_write_bytes"] += active_count(g, lanes, 1) * size
        values, bad = elements(g, src, 4, size // 4).T[:, :, None], undefined(g, src, 4, size // 4)
        if local:
            marks = None if bad is None else bad.T[:, :, None]
            store_local(g, step, at, size, kind.alignment, values, lanes, marks)
            return
        marks = None if bad is None else any_along(bad, 1, keepdims=True)
        report_undefined(g, instruction, marks, lanes, "the data")
        store_global(g, step, at, size, values, lanes, kind.alignment)

    def load(g: ThreadGroup) -> None:
        lanes = active_lanes(g)
        at = address(g, lanes)
        g.env.counters["slm_read_bytes" if local else "global_read_bytes"] += active_count(g, lanes, 1) * size
        if local:
            data, spoilt = load_local(g, step, at, size, kind.alignment, lanes)
        else:
            data, spoilt = load_lanes(g, step, at, size, lanes, kind.alignment)
        land(g, dst, 4, data[:, :, 0].T, lanes, None if spoilt is None else spoilt[:, :, 0].T)
        note_late(g, step.index, at, size, lanes, reread, local=local)

    return store if kind.stores else load
