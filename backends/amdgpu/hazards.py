"""Place `s_nop`: the wait states that gfx9 leaves to software, from rows, over the whole control-flow graph.

A generation's table is that of the one before with the rows that differ. Each row names its source: a section of the
manuals, or LLVM's hazard recognizer where it alone asks. The numbers are those that the recognizer enforces; both are
obeyed. Any instruction counts one state, `s_nop n` counts n + 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

import attrs

from convgen.backends.amdgpu.isa import DPP, M0, OPCODES, READS_LANE, TRANS, WIDE_STORE
from convgen.backends.amdgpu.physical import Physical, Word, Words
from convgen.backends.amdgpu.tables import DGEMM, SGEMM, XDL
from convgen.backends.machine.dataflow import solve
from convgen.backends.machine.instruction import Function, Instruction, Reg, Unit


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
    TRANSCENDENTAL = "a transcendental instruction writes it"
    VALU_SCALAR = "a vector instruction writes a scalar register"
    WIDE_STORE = "a 96- or 128-bit store reads it as data"
    WIDE_STORE_SOFFSET = "the same with a scalar offset"
    SCALAR_M0 = "a scalar instruction writes M0"


class Use(Enum):
    """What a consumer does to a register."""

    MFMA_AB = "a matrix instruction reads it as srcA or srcB"
    MFMA_C = "a matrix instruction reads it as srcC, not as exactly the tuple that one of its class wrote"
    MFMA_CHAIN = "a matrix instruction reads as srcC exactly the tuple that one of its class wrote"
    VALU_READ = "a vector instruction reads a vector register"
    PLAIN_READ = "a vector instruction that is not transcendental reads it"
    VALU_WRITE = "a vector instruction overwrites it"
    MEMORY_READ = "a memory instruction reads it"
    MEMORY_WRITE = "a load overwrites it"
    LANE_READ = "v_readfirstlane reads it"
    DPP_READ = "a vector instruction reads it in another lane"
    SCALAR_TO_VALU = "a vector instruction reads a scalar register"
    SCALAR_TO_MEMORY = "a memory instruction reads a scalar register"
    DIRECT_M0 = "a load into shared memory reads M0"


@attrs.frozen
class Row:
    """`base + per_pass * passes` states must lie between an event and a use (passes: those of the matrix producer)."""

    base: int  #: states
    per_pass: int = 0  #: states
    two: int | None = attrs.field(default=None, kw_only=True)  #: states; behind two passes, where that is another rule
    source: str = attrs.field(kw_only=True)  #: what asks for it

    def states(self, passes: int) -> int:
        return self.two if passes == 2 and self.two is not None else self.base + self.per_pass * passes


#: By what a matrix instruction's row has as its hazard class: what it leaves as result and as addend.
_MATRIX_EVENTS: dict[str, tuple[Event, Event | None]] = {
    XDL: (Event.MFMA_RESULT, Event.MFMA_ADDEND),
    SGEMM: (Event.MFMA_F32_RESULT, Event.MFMA_F32_ADDEND),
    DGEMM: (Event.MFMA_F64_RESULT, None),
}

#: Sources: the rows on instructions in general, those on matrix instructions, and what only the recognizer asks for.
_ISA = "CDNA3 and CDNA4 ISA 4.5, Table 11"
_MATRIX = "CDNA3 ISA 7.5, Table 37; CDNA4 ISA 7.6, Table 38"
_LLVM = "LLVM GCNHazardRecognizer"

Rows = Mapping[tuple[Event, Use], Row]


def _result(event: Event, base: int, two: int | None = None) -> Rows:
    """What keeps the result of a matrix instruction on narrow or f32 inputs from being read or overwritten too early.

    Of a load that overwrites it the manuals do not speak.
    """
    taken = (Use.MFMA_AB, Use.VALU_READ, Use.VALU_WRITE, Use.MEMORY_READ)
    rows = {(event, use): Row(base, 1, two=two, source=_MATRIX) for use in taken}
    return {**rows, (event, Use.MEMORY_WRITE): Row(base, 1, two=two, source=_LLVM)}


#: The numbers are the recognizer's; the sections are where the manuals of later generations ask for the like.
CDNA2: Rows = {
    **_result(Event.MFMA_RESULT, 3),
    (Event.MFMA_RESULT, Use.MFMA_C): Row(0, 1, source=_MATRIX),
    (Event.MFMA_ADDEND, Use.VALU_WRITE): Row(-1, 1, source=_MATRIX),
    (Event.MFMA_ADDEND, Use.MEMORY_WRITE): Row(-1, 1, source=_LLVM),
    **_result(Event.MFMA_F32_RESULT, 3),
    (Event.MFMA_F32_RESULT, Use.MFMA_C): Row(0, 1, source=_MATRIX),
    (Event.MFMA_F32_ADDEND, Use.VALU_WRITE): Row(-1, 1, source=_LLVM),
    (Event.MFMA_F32_ADDEND, Use.MEMORY_WRITE): Row(-1, 1, source=_LLVM),
    (Event.MFMA_F64_RESULT, Use.MFMA_AB): Row(3, 1, source=_MATRIX),
    (Event.MFMA_F64_RESULT, Use.MFMA_C): Row(1, 1, source=_MATRIX),
    (Event.MFMA_F64_RESULT, Use.VALU_READ): Row(3, 1, source=_MATRIX),
    (Event.MFMA_F64_RESULT, Use.VALU_WRITE): Row(11, source=_MATRIX),
    (Event.MFMA_F64_RESULT, Use.MEMORY_READ): Row(18, source=_MATRIX),
    (Event.MFMA_F64_RESULT, Use.MEMORY_WRITE): Row(11, source=_LLVM),
    (Event.VALU_VECTOR, Use.MFMA_AB): Row(2, source=_MATRIX),
    (Event.VALU_VECTOR, Use.MFMA_C): Row(2, source=_MATRIX),
    (Event.VALU_VECTOR, Use.DPP_READ): Row(2, source=_ISA),
    (Event.VALU_BEFORE_F64, Use.MEMORY_READ): Row(2, source=_LLVM),
    (Event.VALU_SCALAR, Use.SCALAR_TO_MEMORY): Row(5, source=_ISA),
    (Event.WIDE_STORE, Use.VALU_WRITE): Row(1, source=_ISA),
    (Event.SCALAR_M0, Use.DIRECT_M0): Row(1, source=_ISA),
}
_NOT_ANY_MORE = Row(0, source=_LLVM)
CDNA3: Rows = {
    **CDNA2,
    (Event.MFMA_RESULT, Use.MFMA_C): Row(1, 1, source=_MATRIX),
    (Event.MFMA_RESULT, Use.MFMA_CHAIN): Row(0, two=2, source=_MATRIX),
    (Event.MFMA_F32_RESULT, Use.MFMA_CHAIN): Row(0, two=2, source=_MATRIX),
    **_result(Event.MFMA_F32_RESULT, 2),
    (Event.MFMA_F32_ADDEND, Use.VALU_WRITE): _NOT_ANY_MORE,
    (Event.MFMA_F32_ADDEND, Use.MEMORY_WRITE): _NOT_ANY_MORE,
    (Event.VALU_BEFORE_F64, Use.MEMORY_READ): _NOT_ANY_MORE,
    (Event.VALU_VECTOR, Use.LANE_READ): Row(1, source=f"{_ISA}, of v_readlane; {_LLVM}, of v_readfirstlane"),
    (Event.VALU_PART, Use.VALU_READ): Row(1, source=_ISA),
    (Event.TRANSCENDENTAL, Use.PLAIN_READ): Row(1, source=_ISA),
    (Event.VALU_SCALAR, Use.SCALAR_TO_VALU): Row(2, source=f"{_ISA}, of constants; {_LLVM}, of masks"),
    (Event.WIDE_STORE, Use.VALU_WRITE): Row(2, source=_ISA),
    (Event.WIDE_STORE_SOFFSET, Use.VALU_WRITE): Row(1, source="LLVM pull request 197267, measured on gfx950"),
}
CDNA4: Rows = {
    **CDNA3,
    **_result(Event.MFMA_RESULT, 4, two=5),
    (Event.MFMA_RESULT, Use.MFMA_C): Row(2, 1, source=_MATRIX),
    (Event.MFMA_F64_RESULT, Use.VALU_WRITE): Row(19, source=_MATRIX),
}
HAZARDS: dict[str, Rows] = {"gfx90a": CDNA2, "gfx942": CDNA3, "gfx950": CDNA4}

_M0: Words = (Word(M0, 0),)
_LONGEST = 20  #: states after which no row applies


@attrs.frozen
class _Mark:
    """What was done to a register: the event, the passes of a matrix producer, and the tuple it was part of."""

    event: Event
    passes: int = 0
    whole: Words = ()


#: register -> mark -> state in which it was made
History = dict[Word, dict[_Mark, int]]


class _Clock:
    """Walks a block: counts states, remembers marks."""

    def __init__(self, physical: Physical, target: str, history: History, *, curves: bool) -> None:
        """`curves` tells whether there are transcendental instructions at all."""
        self.physical, self.rows, self.curves = physical, HAZARDS[target], curves
        self.now = 0
        self.history = {w: dict(marks) for w, marks in history.items()}

    def step(self, i: Instruction) -> int:
        """Pass one instruction; returns the states of padding it needs before it."""
        missing = max(0, self._missing(i))
        self.now += missing + 1
        if i.op.hazard == DGEMM:
            for marks in self.history.values():
                if (made := marks.get(_Mark(Event.VALU_VECTOR))) is not None:
                    marks[_Mark(Event.VALU_BEFORE_F64)] = made
        for word, mark in _marks(i, self.physical):
            self.history.setdefault(word, {})[mark] = self.now
        return missing

    def _missing(self, i: Instruction) -> int:
        need, (own, _) = 0, _MATRIX_EVENTS.get(i.op.hazard, (None, None))
        for use, words in _uses(i, self.physical, self.curves):
            for w in words:
                for mark, made in self.history.get(w, {}).items():
                    passed = self.now - made
                    if passed >= _LONGEST:
                        continue
                    chained = use is Use.MFMA_C and words == mark.whole and mark.event is own
                    if row := self.rows.get((mark.event, Use.MFMA_CHAIN if chained else use)):
                        need = max(need, row.states(mark.passes) - passed)
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

    curves = any(i.op.hazard == TRANS for i in function.instructions())

    def transfer(index: int, history: History) -> History:
        clock = _Clock(physical, target, history, curves=curves)
        for i in function.blocks[index].instructions:
            clock.step(i)
        return clock.leave()

    nothing: History = {}
    entry = solve(function, nothing, transfer, _latest)
    return function.rewritten(
        lambda index, block: _with_nops(
            block.instructions, _Clock(physical, target, entry.get(index, nothing), curves=curves)
        )
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


def _uses(i: Instruction, physical: Physical, curves: bool) -> Iterator[tuple[Use, Words]]:
    """What an instruction does to which registers."""
    unit = i.op.unit
    if unit is Unit.MATRIX:
        # Overwriting a register that an earlier matrix or vector instruction wrote needs no states.
        yield Use.MFMA_AB, physical.operand(i.source("a")) + physical.operand(i.source("b"))
        yield Use.MFMA_C, physical.operand(i.source("c"))
    elif unit is Unit.VALU:
        for r in i.uses():
            yield (Use.SCALAR_TO_VALU if r.bank == "s" else Use.VALU_READ), physical.words(r)
            if i.op.hazard == READS_LANE:
                yield Use.LANE_READ, physical.words(r)
            if i.op.hazard == DPP:
                yield Use.DPP_READ, physical.words(r)
            if curves and i.op.hazard != TRANS:
                yield Use.PLAIN_READ, physical.words(r)
        yield Use.VALU_WRITE, physical.written(i)
    elif unit in (Unit.GLOBAL, Unit.SHARED):
        for r in i.uses():
            yield (Use.SCALAR_TO_MEMORY if r.bank == "s" else Use.MEMORY_READ), physical.words(r)
        yield Use.MEMORY_WRITE, physical.written(i)
        if M0 in i.flag_uses():
            yield Use.DIRECT_M0, _M0


def _marks(i: Instruction, physical: Physical) -> Iterator[tuple[Word, _Mark]]:
    """What an instruction leaves for later ones to respect."""
    unit = i.op.unit
    if unit is Unit.MATRIX:
        written, addend, (made, taken) = (
            physical.written(i),
            physical.operand(i.source("c")),
            _MATRIX_EVENTS[i.op.hazard],
        )
        result = _Mark(made, i.op.busy, written)
        yield from ((w, result) for w in written)
        if taken and addend != written:
            read = _Mark(taken, i.op.busy)
            yield from ((w, read) for w in addend)
    elif unit is Unit.VALU:
        scalar, vector = _Mark(Event.VALU_SCALAR), _Mark(Event.VALU_VECTOR)
        yield from ((w, scalar if w.bank == "s" else vector) for w in physical.written(i))
        if i.op.merges and i.modifiers:  # op_sel: the upper half
            part = _Mark(Event.VALU_PART)
            yield from ((w, part) for w in physical.written(i))
        if i.op.hazard == TRANS:
            late = _Mark(Event.TRANSCENDENTAL)
            yield from ((w, late) for w in physical.written(i))
    elif unit is Unit.SALU and M0 in i.flag_defs():
        yield from ((w, _Mark(Event.SCALAR_M0)) for w in _M0)
    elif i.op.hazard == WIDE_STORE:
        stored = _Mark(Event.WIDE_STORE_SOFFSET if isinstance(i.source("soffset"), Reg) else Event.WIDE_STORE)
        yield from ((w, stored) for w in physical.operand(i.source("data")))
