"""Place `s_nop`: the wait states that gfx9 leaves to software, from rows, over the whole control-flow graph.

Each row names its source: a section of the manuals, or LLVM's hazard recognizer where it alone asks. The numbers are
those that the recognizer enforces for each target; both are obeyed. Any instruction counts one state, `s_nop n` counts
n + 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache

import attrs

from convgen.backends.amdgpu.isa import OPCODES
from convgen.backends.amdgpu.physical import Physical, Word, Words
from convgen.backends.dataflow import solve
from convgen.backends.machine import Function, Instruction, Reg, Unit


class Event(Enum):
    """What a producer did to a register."""

    MFMA_RESULT = "a matrix instruction on narrow inputs writes it"
    MFMA_F32_RESULT = "a matrix instruction on f32 writes it"
    MFMA_F64_RESULT = "a matrix instruction on f64 writes it"
    MFMA_ADDEND = "a matrix instruction on narrow inputs reads it as srcC"
    MFMA_F32_ADDEND = "a matrix instruction on f32 reads it as srcC"
    VALU_VECTOR = "a vector instruction writes a vector register"
    VALU_BEFORE_F64 = "a vector instruction writes it, and a matrix instruction on f64 comes behind that"
    VALU_PART = "a vector instruction writes part of a vector register"
    VALU_SCALAR = "a vector instruction writes a scalar register"
    WIDE_STORE = "a 96- or 128-bit store reads it as data"
    WIDE_STORE_SOFFSET = "the same with a scalar offset"


class Use(Enum):
    """What a consumer does to a register."""

    MFMA_AB = "a matrix instruction reads it as srcA or srcB"
    MFMA_C = "a matrix instruction reads it as srcC, not as exactly the tuple that was written"
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
    per_pass: int
    source: str

    def states(self, target: str, passes: int) -> int:
        return self.base[_TARGETS.index(target)] + self.per_pass * passes


_TARGETS = ("gfx90a", "gfx942", "gfx950")

_NONE = -64  #: a base that no number of passes lifts above zero

#: The inputs of a matrix instruction, by the end of its mnemonic: what it leaves as result and as addend.
_MATRIX_EVENTS = (
    (re.compile(r"_?f64$"), Event.MFMA_F64_RESULT, None),
    (re.compile(r"x\d_?f32$"), Event.MFMA_F32_RESULT, Event.MFMA_F32_ADDEND),
    (re.compile(""), Event.MFMA_RESULT, Event.MFMA_ADDEND),
)

#: Sources: the rows on instructions in general, those on matrix instructions, and what only the recognizer asks for.
_ISA = "CDNA3 and CDNA4 ISA 4.5, Table 11"
_MATRIX = "CDNA3 ISA 7.5, Table 37; CDNA4 ISA 7.6, Table 38"
_LLVM = "LLVM GCNHazardRecognizer"

#: What D of a matrix instruction must be kept from beside a load that overwrites it, of which the manuals do not speak.
_TAKEN = (Use.MFMA_AB, Use.VALU_READ, Use.VALU_WRITE, Use.MEMORY_READ)

ROWS = (
    *(Row(Event.MFMA_RESULT, use, (3, 3, 4), 1, _MATRIX) for use in _TAKEN),
    Row(Event.MFMA_RESULT, Use.MEMORY_WRITE, (3, 3, 4), 1, _LLVM),
    Row(Event.MFMA_RESULT, Use.MFMA_C, (0, 1, 2), 1, _MATRIX),
    Row(Event.MFMA_ADDEND, Use.VALU_WRITE, (-1, -1, -1), 1, _MATRIX),
    Row(Event.MFMA_ADDEND, Use.MEMORY_WRITE, (-1, -1, -1), 1, _LLVM),
    *(Row(Event.MFMA_F32_RESULT, use, (3, 2, 2), 1, _MATRIX) for use in _TAKEN),
    Row(Event.MFMA_F32_RESULT, Use.MEMORY_WRITE, (3, 2, 2), 1, _LLVM),
    Row(Event.MFMA_F32_RESULT, Use.MFMA_C, (0, 0, 0), 1, _MATRIX),
    Row(Event.MFMA_F32_ADDEND, Use.VALU_WRITE, (-1, _NONE, _NONE), 1, _LLVM),
    Row(Event.MFMA_F32_ADDEND, Use.MEMORY_WRITE, (-1, _NONE, _NONE), 1, _LLVM),
    Row(Event.MFMA_F64_RESULT, Use.MFMA_AB, (3, 3, 3), 1, _MATRIX),
    Row(Event.MFMA_F64_RESULT, Use.MFMA_C, (1, 1, 1), 1, _MATRIX),
    Row(Event.MFMA_F64_RESULT, Use.VALU_READ, (3, 3, 3), 1, _MATRIX),
    Row(Event.MFMA_F64_RESULT, Use.VALU_WRITE, (11, 11, 19), 0, _MATRIX),
    Row(Event.MFMA_F64_RESULT, Use.MEMORY_READ, (18, 18, 18), 0, _MATRIX),
    Row(Event.MFMA_F64_RESULT, Use.MEMORY_WRITE, (11, 11, 11), 0, _LLVM),
    Row(Event.VALU_VECTOR, Use.MFMA_AB, (2, 2, 2), 0, _MATRIX),
    Row(Event.VALU_VECTOR, Use.MFMA_C, (2, 2, 2), 0, _MATRIX),
    Row(Event.VALU_VECTOR, Use.LANE_READ, (0, 1, 1), 0, f"{_ISA}, of v_readlane; {_LLVM}, of v_readfirstlane"),
    Row(Event.VALU_BEFORE_F64, Use.MEMORY_READ, (2, 0, 0), 0, _LLVM),
    Row(Event.VALU_PART, Use.VALU_READ, (0, 1, 1), 0, _ISA),
    Row(Event.VALU_SCALAR, Use.SCALAR_TO_VALU, (0, 2, 2), 0, f"{_ISA}, of constants; {_LLVM}, of masks"),
    Row(Event.VALU_SCALAR, Use.SCALAR_TO_MEMORY, (5, 5, 5), 0, _ISA),
    Row(Event.WIDE_STORE, Use.VALU_WRITE, (1, 2, 2), 0, _ISA),
    Row(Event.WIDE_STORE_SOFFSET, Use.VALU_WRITE, (0, 1, 1), 0, "LLVM pull request 197267, measured on gfx950"),
)

_LONGEST = 20  #: states after which no row applies


@attrs.frozen
class _Mark:
    """What was done to a register: the event, the passes of a matrix producer, and the tuple it was part of."""

    event: Event
    passes: int = 0
    whole: Words = ()


@cache
def _needs(event: Event, target: str) -> tuple[tuple[Use, Row], ...]:
    return tuple((r.use, r) for r in ROWS if r.event is event and r.states(target, 64) > 0)


#: register -> mark -> state in which it was made
History = dict[Word, dict[_Mark, int]]


class _Clock:
    """Walks a block: counts states, remembers marks."""

    def __init__(self, physical: Physical, target: str, history: History) -> None:
        self.physical, self.target = physical, target
        self.now = 0
        self.history = {w: dict(marks) for w, marks in history.items()}

    def step(self, i: Instruction) -> int:
        """Pass one instruction; returns the states of padding it needs before it."""
        missing = max(0, self._missing(i))
        self.now += missing + 1
        if i.op.unit is Unit.MATRIX and _matrix_events(i.op.name)[0] is Event.MFMA_F64_RESULT:
            for marks in self.history.values():
                if (made := marks.get(_Mark(Event.VALU_VECTOR))) is not None:
                    marks[_Mark(Event.VALU_BEFORE_F64)] = made
        for word, mark in _marks(i, self.physical):
            self.history.setdefault(word, {})[mark] = self.now
        return missing

    def _missing(self, i: Instruction) -> int:
        need = 0
        for use, words in _uses(i, self.physical):
            for w in words:
                for mark, made in self.history.get(w, {}).items():
                    passed = self.now - made
                    if passed >= _LONGEST or (use is Use.MFMA_C and words == mark.whole):
                        continue
                    for wanted, row in _needs(mark.event, self.target):
                        if wanted is use:
                            need = max(need, row.states(self.target, mark.passes) - passed)
        return need

    def leave(self) -> History:
        """The marks that still matter, relative to the end of the block."""
        out: History = {}
        for w, marks in self.history.items():
            recent = {m: made - self.now for m, made in marks.items() if self.now - made < _LONGEST}
            if recent:
                out[w] = recent
        return out


def insert_nops(function: Function, physical: Physical, target: str) -> Function:
    """The function, waits in place, with the no-ops that it needs on `target`."""

    def transfer(index: int, history: History) -> History:
        clock = _Clock(physical, target, history)
        for i in function.blocks[index].instructions:
            clock.step(i)
        return clock.leave()

    nothing: History = {}
    entry = solve(function, nothing, transfer, _latest)
    return function.rewritten(
        lambda index, block: _with_nops(block.instructions, _Clock(physical, target, entry.get(index, nothing)))
    )


def _latest(a: History, b: History) -> History:
    """What either path has left; the later of two marks asks for more."""
    out = {w: dict(marks) for w, marks in a.items()}
    for w, marks in b.items():
        held = out.setdefault(w, {})
        for mark, made in marks.items():
            held[mark] = max(made, held.get(mark, made))
    return out


def _with_nops(body: Iterable[Instruction], clock: _Clock) -> Iterator[Instruction]:
    for i in body:
        left = clock.step(i)
        while left > 0:
            step = min(left, 16)
            yield Instruction(OPCODES["s_nop"], modifiers=(str(step - 1),))
            left -= step
        yield i


def _uses(i: Instruction, physical: Physical) -> Iterator[tuple[Use, Words]]:
    """What an instruction does to which registers."""
    unit = i.op.unit
    if unit is Unit.MATRIX:
        # Overwriting a register that an earlier matrix or vector instruction wrote needs no states.
        a, b, *addend = (physical.words(r) for r in i.uses())
        yield Use.MFMA_AB, a + b
        yield from ((Use.MFMA_C, words) for words in addend)
    elif unit is Unit.VALU:
        lane = i.op.name == "v_readfirstlane_b32"
        for r in i.uses():
            yield (Use.SCALAR_TO_VALU if r.bank == "s" else Use.VALU_READ), physical.words(r)
            if lane:
                yield Use.LANE_READ, physical.words(r)
        yield Use.VALU_WRITE, physical.written(i)
    elif unit in (Unit.GLOBAL, Unit.SHARED):
        for r in i.uses():
            yield (Use.SCALAR_TO_MEMORY if r.bank == "s" else Use.MEMORY_READ), physical.words(r)
        yield Use.MEMORY_WRITE, physical.written(i)


@cache
def _matrix_events(name: str) -> tuple[Event, Event | None]:
    return next((made, taken) for end, made, taken in _MATRIX_EVENTS if end.search(name))


def _marks(i: Instruction, physical: Physical) -> Iterator[tuple[Word, _Mark]]:
    """What an instruction leaves for later ones to respect."""
    unit = i.op.unit
    if unit is Unit.MATRIX:
        written, (made, taken) = physical.written(i), _matrix_events(i.op.name)
        result = _Mark(made, i.op.busy, written)
        yield from ((w, result) for w in written)
        addend = i.src[2]
        if taken and isinstance(addend, Reg) and physical.words(addend) != written:
            read = _Mark(taken, i.op.busy)
            yield from ((w, read) for w in physical.words(addend))
    elif unit is Unit.VALU:
        scalar, vector = _Mark(Event.VALU_SCALAR), _Mark(Event.VALU_VECTOR)
        yield from ((w, scalar if w.bank == "s" else vector) for w in physical.written(i))
        if i.op.merges and i.modifiers:  # op_sel: the upper half
            part = _Mark(Event.VALU_PART)
            yield from ((w, part) for w in physical.written(i))
    elif unit is Unit.GLOBAL and not i.dst and isinstance(i.src[0], Reg) and i.src[0].count >= 3:
        stored = _Mark(Event.WIDE_STORE_SOFFSET if isinstance(i.src[3], Reg) else Event.WIDE_STORE)
        yield from ((w, stored) for w in physical.words(i.src[0]))
