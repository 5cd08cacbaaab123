"""Place `s_nop`: the wait states that gfx9 leaves to software, from rows, over the whole control-flow graph.

Sources: CDNA2/3/4 ISA, "Manually Inserted Wait States", as LLVM's hazard recognizer enforces them for each target. Any
instruction counts one state, `s_nop n` counts n + 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import attrs

from convgen.backends.amdgpu.isa import OPCODES
from convgen.backends.amdgpu.physical import Physical, Word
from convgen.backends.machine import Function, Instruction, Reg, Unit


class Event(Enum):
    """What a producer did to a register."""

    MFMA_RESULT = "a matrix instruction writes it"
    MFMA_ADDEND = "a matrix instruction reads it as srcC"
    VALU_VECTOR = "a vector instruction writes a vector register"
    VALU_SCALAR = "a vector instruction writes a scalar register"
    WIDE_STORE = "a 96- or 128-bit store reads it as data"
    WIDE_STORE_SOFFSET = "the same with a scalar offset"


class Use(Enum):
    """What a consumer does to a register."""

    MFMA_AB = "a matrix instruction reads it as srcA or srcB"
    MFMA_C = "a matrix instruction reads it as srcC, not as exactly the same tuple"
    VALU_READ = "a vector instruction reads a vector register"
    VALU_WRITE = "a vector instruction overwrites it"
    MEMORY_READ = "a memory instruction reads it"
    MEMORY_WRITE = "a load overwrites it"
    LANE_READ = "v_readfirstlane reads it"
    SCALAR_TO_VALU = "a vector instruction reads a scalar register"
    SCALAR_TO_MEMORY = "a memory instruction reads a scalar register"


@attrs.frozen
class Row:
    """`use` needs `base + per_pass * passes` states after `event`, by target (passes: those of the matrix producer)."""

    event: Event
    use: Use
    base: tuple[int, int, int]  #: gfx90a, gfx942, gfx950
    per_pass: int = 0

    def states(self, target: str, passes: int) -> int:
        return self.base[_TARGETS.index(target)] + self.per_pass * passes


_TARGETS = ("gfx90a", "gfx942", "gfx950")

ROWS = (
    *(
        Row(Event.MFMA_RESULT, use, (3, 3, 4), 1)
        for use in (Use.MFMA_AB, Use.VALU_READ, Use.VALU_WRITE, Use.MEMORY_READ, Use.MEMORY_WRITE)
    ),
    Row(Event.MFMA_RESULT, Use.MFMA_C, (0, 1, 2), 1),
    Row(Event.MFMA_ADDEND, Use.VALU_WRITE, (-1, -1, -1), 1),
    Row(Event.MFMA_ADDEND, Use.MEMORY_WRITE, (-1, -1, -1), 1),
    Row(Event.VALU_VECTOR, Use.MFMA_AB, (2, 2, 2)),
    Row(Event.VALU_VECTOR, Use.MFMA_C, (2, 2, 2)),
    Row(Event.VALU_VECTOR, Use.LANE_READ, (0, 1, 1)),
    Row(Event.VALU_SCALAR, Use.SCALAR_TO_VALU, (0, 2, 2)),
    Row(Event.VALU_SCALAR, Use.SCALAR_TO_MEMORY, (5, 5, 5)),
    Row(Event.WIDE_STORE, Use.VALU_WRITE, (1, 2, 2)),
    Row(Event.WIDE_STORE_SOFFSET, Use.VALU_WRITE, (0, 1, 1)),
)

_LONGEST = 20  #: states after which no row applies

#: (event, passes, register, tuple it was part of) -> states since
History = dict[tuple[Event, int, Word, tuple[Word, ...]], int]


def insert_nops(function: Function, physical: Physical, target: str) -> None:
    """Add the no-ops that `function`, waits in place, needs on `target`."""
    rows = _by_event(target)
    entry: dict[int, History] = {0: {}}
    work = [0]
    while work:
        index = work.pop(0)
        history = dict(entry[index])
        for i in function.blocks[index].instructions:
            history = _advance(history, i, _missing(history, i, physical, rows), physical)
        for s in function.successors(index):
            merged = _merge(entry.get(s), history)
            if merged != entry.get(s):
                entry[s] = merged
                work.append(s)
    for index, block in enumerate(function.blocks):
        block.instructions = list(_with_nops(block.instructions, dict(entry.get(index, {})), physical, rows))


Rows = dict[Event, tuple[tuple[Use, Row, str], ...]]


def _by_event(target: str) -> Rows:
    return {e: tuple((r.use, r, target) for r in ROWS if r.event is e) for e in Event}


def _merge(a: History | None, b: History) -> History:
    if a is None:
        return dict(b)
    out = dict(a)
    for key, distance in b.items():
        out[key] = min(distance, out.get(key, distance))
    return out


def _with_nops(body: list[Instruction], history: History, physical: Physical, rows: Rows) -> Iterator[Instruction]:
    for i in body:
        missing = _missing(history, i, physical, rows)
        left = missing
        while left > 0:
            step = min(left, 16)
            yield Instruction(OPCODES["s_nop"], modifiers=(str(step - 1),))
            left -= step
        history = _advance(history, i, missing, physical)
        yield i


def _missing(history: History, i: Instruction, physical: Physical, rows: Rows) -> int:
    """How many more states must pass before `i` may issue."""
    if not history:
        return 0
    uses = list(_uses(i, physical))
    need = 0
    for (event, passes, word, whole), distance in history.items():
        for use, row, target in rows[event]:
            for consumed, words in uses:
                if consumed is use and word in words and not (use is Use.MFMA_C and words == whole):
                    need = max(need, row.states(target, passes) - distance)
    return need


def _uses(i: Instruction, physical: Physical) -> Iterator[tuple[Use, tuple[Word, ...]]]:
    """What an instruction does to which registers."""
    unit = i.op.unit
    reads = [(n, r, physical.words(r)) for n, r in enumerate(i.src) if isinstance(r, Reg)]
    writes = physical.written(i)
    if unit is Unit.MATRIX:
        yield from ((Use.MFMA_C if n == 2 else Use.MFMA_AB, words) for n, _, words in reads)
        same = next((words for n, _, words in reads if n == 2), ())
        if writes != same:
            yield Use.MFMA_C, writes
    elif unit is Unit.VALU:
        lane = i.op.name == "v_readfirstlane_b32"
        for _, r, words in reads:
            yield (Use.SCALAR_TO_VALU if r.bank == "s" else Use.VALU_READ), words
            if lane:
                yield Use.LANE_READ, words
        yield Use.VALU_WRITE, writes
    elif unit in (Unit.GLOBAL, Unit.SHARED):
        yield from ((Use.SCALAR_TO_MEMORY if r.bank == "s" else Use.MEMORY_READ, words) for _, r, words in reads)
        yield Use.MEMORY_WRITE, writes


def _advance(history: History, i: Instruction, nops: int, physical: Physical) -> History:
    """The history after `i`, which stood `nops` states of padding behind."""
    passed = nops + 1
    out: History = {}
    for key, distance in history.items():
        if distance + passed <= _LONGEST:
            out[key] = distance + passed
    unit = i.op.unit
    if unit is Unit.MATRIX:
        written = physical.written(i)
        for w in written:
            out[(Event.MFMA_RESULT, i.op.busy, w, written)] = 0
        addend = i.src[2]
        if isinstance(addend, Reg) and physical.words(addend) != written:
            for w in physical.words(addend):
                out[(Event.MFMA_ADDEND, i.op.busy, w, ())] = 0
    elif unit is Unit.VALU:
        for w in physical.written(i):
            event = Event.VALU_SCALAR if w.bank == "s" else Event.VALU_VECTOR
            out[(event, 0, w, ())] = 0
    elif unit is Unit.GLOBAL and not i.dst and isinstance(i.src[0], Reg) and i.src[0].count >= 3:
        event = Event.WIDE_STORE_SOFFSET if isinstance(i.src[3], Reg) else Event.WIDE_STORE
        for w in physical.words(i.src[0]):
            out[(event, 0, w, ())] = 0
    return out
