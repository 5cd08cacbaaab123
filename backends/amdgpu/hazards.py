"""Insert `s_nop`: wait states that gfx9 leaves to software, from rows, over the whole control-flow graph.

A generation's table is the previous generation's with the rows that differ. Each row names its source: a section of the
manuals, or LLVM's hazard recognizer if only it has the rule. Numbers are the recognizer's; both sources are obeyed. Any
instruction counts one state, `s_nop n` counts n + 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache

import attrs

from convgen.backends.amdgpu.isa import DPP, M0, OPCODES, READS_LANE, TRANS, WIDE_STORE
from convgen.backends.amdgpu.physical import BEHIND_BANKS, SCALARS, Physical, Words
from convgen.backends.amdgpu.tables import DGEMM, SGEMM, XDL
from convgen.backends.machine.dataflow import walked
from convgen.backends.machine.instruction import Function, Instruction, Reg, Unit
from convgen.ir.record import define, frozen


class Event(Enum):
    """The access of a producer to a register."""

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
    WIDE_STORE_SOFFSET = "a 96- or 128-bit store with a scalar offset reads it as data"
    SCALAR_M0 = "a scalar instruction writes M0"

    __hash__ = object.__hash__  # inner loops use it as a key


class Use(Enum):
    """The access of a consumer to a register."""

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

    __hash__ = object.__hash__  # inner loops use it as a key


@frozen
class Row:
    """The wait states between an event and a use: `base + per_pass * passes` (passes of the matrix producer)."""

    base: int  #: states
    per_pass: int = 0  #: states
    #: states; after a producer of two passes, where a separate rule applies
    two: int | None = attrs.field(default=None, kw_only=True)
    source: str = attrs.field(kw_only=True)  #: source of the rule

    def states(self, passes: int) -> int:
        return self.two if passes == 2 and self.two is not None else self.base + self.per_pass * passes


#: Hazard class of a matrix instruction -> events of its result and its addend.
_MATRIX_EVENTS: dict[str, tuple[Event, Event | None]] = {
    XDL: (Event.MFMA_RESULT, Event.MFMA_ADDEND),
    SGEMM: (Event.MFMA_F32_RESULT, Event.MFMA_F32_ADDEND),
    DGEMM: (Event.MFMA_F64_RESULT, None),
}

#: Sources: rows on instructions in general, rows on matrix instructions, and rules of the recognizer alone.
_ISA = "CDNA3 and CDNA4 ISA 4.5, Table 11"
_MATRIX = "CDNA3 ISA 7.5, Table 37; CDNA4 ISA 7.6, Table 38"
_LLVM = "LLVM GCNHazardRecognizer"

Rows = Mapping[tuple[Event, Use], Row]


def _result(event: Event, base: int, two: int | None = None) -> Rows:
    """Return the rows that keep a result of a matrix instruction (narrow or f32 inputs) from early reads and writes.

    The manuals do not mention loads that overwrite it.
    """
    taken = (Use.MFMA_AB, Use.VALU_READ, Use.VALU_WRITE, Use.MEMORY_READ)
    rows = {(event, use): Row(base, 1, two=two, source=_MATRIX) for use in taken}
    return {**rows, (event, Use.MEMORY_WRITE): Row(base, 1, two=two, source=_LLVM)}


#: Numbers are the recognizer's; the sections are those of later generations' manuals that have similar rules.
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
_NO_LONGER = Row(0, source=_LLVM)
CDNA3: Rows = {
    **CDNA2,
    (Event.MFMA_RESULT, Use.MFMA_C): Row(1, 1, source=_MATRIX),
    (Event.MFMA_RESULT, Use.MFMA_CHAIN): Row(0, two=2, source=_MATRIX),
    (Event.MFMA_F32_RESULT, Use.MFMA_CHAIN): Row(0, two=2, source=_MATRIX),
    **_result(Event.MFMA_F32_RESULT, 2),
    (Event.MFMA_F32_ADDEND, Use.VALU_WRITE): _NO_LONGER,
    (Event.MFMA_F32_ADDEND, Use.MEMORY_WRITE): _NO_LONGER,
    (Event.VALU_BEFORE_F64, Use.MEMORY_READ): _NO_LONGER,
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

_M0: Words = 1 << BEHIND_BANKS


@frozen(eq=False)
class _Demand:
    """The wait states that an event demands of later uses of its registers."""

    event: Event
    states: Mapping[Use, int]  #: by use, without uses that need no wait
    horizon: int  #: states after which it demands nothing


@cache
def _demand(target: str, event: Event, passes: int) -> _Demand:
    """Return the demands of an event on a target; `passes` are those of its matrix instruction."""
    rows = {use: row.states(passes) for (of, use), row in HAZARDS[target].items() if of is event}
    states = {use: n for use, n in rows.items() if n > 0}
    f64_horizon = _demand(target, Event.VALU_BEFORE_F64, 0).horizon if event is Event.VALU_VECTOR else 0
    return _Demand(event, states, max((f64_horizon, *states.values())))


@define(eq=False)
class _Mark:
    """The event of one instruction, with its registers."""

    demand: _Demand
    words: Words

    def states(self, use: Use, words: Words, own: Event | None) -> int:
        """Return the states that a use of registers needs after the event.

        `own` is the result event of the consumer's class: adding to a result of that class needs fewer states.
        """
        if not self.words & words:
            return 0
        chained = words == self.words and self.demand.event is own and use is Use.MFMA_C
        return self.demand.states.get(Use.MFMA_CHAIN if chained else use, 0)


@define(eq=False)
class _Effects:
    """The registers that an instruction uses, and the marks that it leaves for later instructions."""

    instruction: Instruction
    touched: Words  #: registers of all uses
    marks: Sequence[_Mark]


class _AllEffects(dict[Instruction, _Effects]):
    """The effects of each instruction of a function on a target, computed on first use."""

    def __init__(self, function: Function, physical: Physical, target: str) -> None:
        super().__init__()
        self.physical, self.target = physical, target
        self.has_transcendentals = any(i.op.hazard == TRANS for i in function.instructions())
        self._before_f64: dict[_Mark, _Mark] = {}
        self._demands: dict[tuple[Event, int], _Demand] = {}

    def __missing__(self, i: Instruction) -> _Effects:
        written = self.physical.written(i)
        marks = []
        for event, words, passes in _events(i, self.physical, written):
            demand = self._demands.get((event, passes)) or self._new_demand(event, passes)
            if words and demand.horizon:
                marks.append(_Mark(demand, words))
        touched = self.physical.read(i) | written if i.op.unit in _USERS else 0
        self[i] = effects = _Effects(i, touched | _M0 if M0 in i.op.reads else touched, marks)
        return effects

    def uses(self, i: Instruction) -> Sequence[tuple[Use, Words]]:
        """Return the registers of an instruction by use."""
        return _uses(i, self.physical, self.has_transcendentals)

    def _new_demand(self, event: Event, passes: int) -> _Demand:
        demand = self._demands[event, passes] = _demand(self.target, event, passes)
        return demand

    def before_f64(self, mark: _Mark) -> _Mark:
        """Return the mark that replaces a vector instruction's mark once an f64 matrix instruction follows."""
        known = self._before_f64.get(mark)
        if known is None:
            demand = _demand(self.target, Event.VALU_BEFORE_F64, 0)
            known = self._before_f64[mark] = _Mark(demand, mark.words)
        return known


#: mark -> state number of its last event
History = dict[_Mark, int]


class _Clock:
    """Walks a block: counts states and keeps marks."""

    def __init__(self, all_effects: _AllEffects, history: History) -> None:
        self.all_effects = all_effects
        self.now = 0
        self._remember(dict(history))

    def _remember(self, history: History) -> None:
        self.history = history
        self.marked = 0  # registers of all marks
        for mark in history:
            self.marked |= mark.words

    def step(self, i: Instruction) -> int:
        """Pass one instruction; return the wait states that it needs before it."""
        effects = self.all_effects[i]
        missing = self._needed_states(effects) if self.marked & effects.touched else 0
        self.now += missing + 1
        if i.op.hazard == DGEMM:
            for mark, state in tuple(self.history.items()):
                if mark.demand.event is Event.VALU_VECTOR:
                    self.history[self.all_effects.before_f64(mark)] = state
        for mark in effects.marks:
            self.history[mark] = self.now
            self.marked |= mark.words
        return missing

    def _needed_states(self, effects: _Effects) -> int:
        self._remember(self._live_marks())
        marks = [(mark, state) for mark, state in self.history.items() if mark.words & effects.touched]
        if not marks:
            return 0
        uses, own = self.all_effects.uses(effects.instruction), _result_of(effects.instruction)
        return max(
            [0, *(mark.states(use, words, own) - self.now + state for mark, state in marks for use, words in uses)]
        )

    def _live_marks(self) -> History:
        """Return the marks that still demand wait states."""
        return {mark: state for mark, state in self.history.items() if mark.demand.horizon > self.now - state}

    def leave(self) -> History:
        """Return the marks that still demand wait states, relative to the end of the block."""
        return {mark: state - self.now for mark, state in self._live_marks().items()}


def insert_nops(function: Function, physical: Physical, target: str) -> Function:
    """Return the function, after waits are inserted, with the no-ops that it needs on `target`."""
    all_effects = _AllEffects(function, physical, target)

    def walk(index: int, history: History) -> tuple[History, list[Instruction]]:
        clock = _Clock(all_effects, history)
        body = list(_with_nops(function.blocks[index].instructions, clock))
        return clock.leave(), body

    nothing: History = {}
    return walked(function, nothing, walk, _latest)


def _latest(a: History, b: History) -> History:
    """Return the marks of either path; the later of two demands more."""
    return {mark: max(state, a.get(mark, state)) for mark, state in (a | b).items()}


def _with_nops(body: Iterable[Instruction], clock: _Clock) -> Iterator[Instruction]:
    for i in body:
        states = clock.step(i)
        while states > 0:
            step = min(states, 16)
            yield Instruction(OPCODES["s_nop"], modifiers=(str(step - 1),))
            states -= step
        yield i


#: By unit: uses of scalar registers read, other registers read, registers written.
_USES = {
    Unit.VALU: (Use.SCALAR_TO_VALU, Use.VALU_READ, Use.VALU_WRITE),
    Unit.GLOBAL: (Use.SCALAR_TO_MEMORY, Use.MEMORY_READ, Use.MEMORY_WRITE),
    Unit.SHARED: (Use.SCALAR_TO_MEMORY, Use.MEMORY_READ, Use.MEMORY_WRITE),
}
_USERS = {Unit.MATRIX, *_USES}
_OTHER_READS = {READS_LANE: Use.LANE_READ, DPP: Use.DPP_READ}  #: further uses, by hazard class
_VALU, _SCALAR, _VECTOR = Unit.VALU, Event.VALU_SCALAR, Event.VALU_VECTOR  # names are faster than members of an Enum


def _result_of(i: Instruction) -> Event | None:
    """Return the result event of a matrix instruction's class; None for other instructions."""
    return _MATRIX_EVENTS[i.op.hazard][0] if i.op.hazard in _MATRIX_EVENTS else None


_PLAIN_SOURCES = 3  #: sources of a matrix instruction without scales


def _uses(i: Instruction, physical: Physical, has_transcendentals: bool) -> list[tuple[Use, Words]]:
    """Return the uses of registers by an instruction; sets of registers may be empty."""
    hazard = i.op.hazard
    if hazard in _MATRIX_EVENTS:
        # Overwriting a register that an earlier matrix or vector instruction wrote needs no states.
        factors = physical.operand(i.source("a")) | physical.operand(i.source("b"))
        if len(i.src) > _PLAIN_SOURCES:
            factors |= physical.operand(i.source("scales of a")) | physical.operand(i.source("scales of b"))
        return [(Use.MFMA_AB, factors), (Use.MFMA_C, physical.operand(i.source("c")))]
    kinds = _USES.get(i.op.unit)
    if kinds is None:
        return []
    scalar, vector, overwrites = kinds
    read = physical.read(i)
    uses = [(scalar, read & SCALARS), (vector, read & ~SCALARS), (overwrites, physical.written(i))]
    if hazard in _OTHER_READS:
        uses.append((_OTHER_READS[hazard], read))
    if has_transcendentals and hazard != TRANS and i.op.unit is _VALU:
        uses.append((Use.PLAIN_READ, read))
    if M0 in i.flag_uses():
        uses.append((Use.DIRECT_M0, _M0))
    return uses


def _events(i: Instruction, physical: Physical, written: Words) -> Iterator[tuple[Event, Words, int]]:
    """Yield the events of an instruction with their registers, and the passes of a matrix instruction."""
    op = i.op
    if op.hazard in _MATRIX_EVENTS:
        addend = physical.operand(i.source("c"))
        result, addend_event = _MATRIX_EVENTS[op.hazard]
        yield result, written, op.busy
        if addend_event and addend != written:
            yield addend_event, addend, op.busy
    elif op.unit is _VALU:
        yield _SCALAR, written & SCALARS, 0
        yield _VECTOR, written & ~SCALARS, 0
        if op.merges and i.modifiers:  # op_sel: the upper half
            yield Event.VALU_PART, written, 0
        if op.hazard == TRANS:
            yield Event.TRANSCENDENTAL, written, 0
    elif op.hazard == WIDE_STORE:
        event = Event.WIDE_STORE_SOFFSET if isinstance(i.source("soffset"), Reg) else Event.WIDE_STORE
        yield event, physical.operand(i.source("data")), 0
    elif M0 in i.flag_defs():
        yield Event.SCALAR_M0, _M0, 0
