"""Place `s_waitcnt`: no wider than the data flow over the whole control-flow graph demands.

gfx9 counts outstanding vector memory operations (vmcnt, in order) and LDS and scalar memory operations (lgkmcnt; LDS in
order, scalar loads out of order, so with one of these outstanding only 0 tells). An operation of age n, with n younger
ones issued since, is done once the count is at most n (CDNA3 ISA 4.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from convgen.backends.amdgpu.isa import DIRECT, OPCODES
from convgen.backends.amdgpu.physical import Physical, Word
from convgen.backends.machine.dataflow import solve
from convgen.backends.machine.epochs import Ahead, accesses_ahead
from convgen.backends.machine.instruction import Access, Function, Instruction, Unit

#: Greatest count that a wait can name: one below the field's largest, with which the counter is never above it and so
#: nothing is waited for (CDNA3 ISA 4.4). A wait for more is clamped, which only waits longer.
LARGEST = {"vmcnt": 62, "lgkmcnt": 14}

_COUNTER_OF = {Unit.GLOBAL: "vmcnt", Unit.SHARED: "lgkmcnt", Unit.SCALAR_MEMORY: "lgkmcnt"}

#: Marks a scalar load, which may return before older operations of its counter.
_OUT_OF_ORDER = Word("out of order", 0)

Ages = Mapping[Word, int]


@attrs.define
class _Counter:
    """The outstanding operations of one counter: for each register, when the youngest that owns it was issued."""

    issued: int = 0
    done: int = 0  # operations up to this one have completed
    last: dict[Word, int] = attrs.field(factory=dict)

    def required(self, words: Iterable[Word]) -> int | None:
        """The count to wait for before `words` may be touched; None if they are not outstanding."""
        youngest = max((self.last.get(w, 0) for w in words), default=0)
        if youngest <= self.done:
            return None
        return 0 if self.last.get(_OUT_OF_ORDER, 0) > self.done else self.issued - youngest

    def wait(self, count: int) -> None:
        self.done = max(self.done, self.issued - count)

    def issue(self, words: Iterable[Word]) -> None:
        self.issued += 1
        self.last.update(dict.fromkeys(words, self.issued))

    def ages(self) -> Ages:
        return {w: self.issued - n for w, n in self.last.items() if n > self.done}

    @classmethod
    def of(cls, ages: Ages) -> _Counter:
        issued = 1 + max(ages.values(), default=-1)
        return cls(issued, 0, {w: issued - age for w, age in ages.items()})


State = Mapping[str, Ages]


def insert_waits(function: Function, physical: Physical) -> Function:
    """The function, its registers placed, with the waits that it needs."""
    ahead = accesses_ahead(function)

    def transfer(index: int, state: State) -> State:
        counters = _counters(state)
        for i in function.blocks[index].instructions:
            _step(counters, i, physical, ahead)
        return {name: counter.ages() for name, counter in counters.items()}

    nothing: State = {name: {} for name in LARGEST}
    entry = solve(function, nothing, transfer, _merge)
    return function.rewritten(
        lambda index, block: _with_waits(block.instructions, _counters(entry.get(index, nothing)), physical, ahead)
    )


def _counters(state: State) -> dict[str, _Counter]:
    return {name: _Counter.of(ages) for name, ages in state.items()}


def _merge(a: State, b: State) -> State:
    """What is outstanding on either path; the younger age asks for the stricter wait."""
    return {name: {w: min(a[name].get(w, age), age) for w, age in {**a[name], **b[name]}.items()} for name in a}


# ---------------------------------------------------------------- barriers


def _order_words(i: Instruction) -> tuple[Word, ...]:
    """What an operation leaves outstanding besides its registers: its deed in shared memory, or its disorder."""
    if i.op.unit is Unit.SCALAR_MEMORY:
        return (_OUT_OF_ORDER,)
    return (_deed(i.access),) if i.access is not None and i.access.space == "shared" else ()


def _deed(access: Access) -> Word:
    return Word(_write(access.region, access.dealt) if access.write else f"read {access.region}", access.slot)


def _write(region: str, dealt: int) -> str:
    return f"write {region}, {dealt} bytes a lane" if dealt else f"write {region}"


def _published(counter: _Counter, ahead: Mapping[Access, None]) -> Iterator[Word]:
    """The outstanding deeds that a barrier must see done, for an access ahead may touch the same place."""
    for access in ahead:
        deeds = [_write(access.region, n) for n in (0, *DIRECT) if not n or n != access.dealt]
        deeds += [f"read {access.region}"] if access.write else []
        for w in counter.last:
            if w.bank in deeds and (w.number == access.slot or min(w.number, access.slot) < 0):
                yield w


def _crossed(i: Instruction, name: str, counter: _Counter) -> Iterator[Word]:
    """The outstanding deeds of another counter, which are in no order with this wave's own access to the same place."""
    if i.access is not None and i.access.space == "shared" and _COUNTER_OF[i.op.unit] != name:
        yield from _published(counter, {i.access: None})


def _with_waits(
    body: Iterable[Instruction], counters: dict[str, _Counter], physical: Physical, ahead: Ahead
) -> Iterator[Instruction]:
    for i in body:
        required = _step(counters, i, physical, ahead)
        if required:
            fields = tuple(f"{name}({min(n, LARGEST[name])})" for name, n in required.items())
            clamped = [name for name, n in required.items() if n > LARGEST[name]]
            yield Instruction(
                OPCODES["s_waitcnt"], modifiers=fields, comment=f"{', '.join(clamped)} clamped" if clamped else ""
            )
        yield i


def _step(counters: dict[str, _Counter], i: Instruction, physical: Physical, ahead: Ahead) -> dict[str, int]:
    """Pass one instruction; returns the counts that must be waited for before it."""
    required: dict[str, int] = {}
    for name, counter in counters.items():
        touched = (*physical.read(i), *physical.written(i), *_crossed(i, name, counter))
        count = counter.required(_published(counter, ahead[i]) if i.barrier else touched)
        if i.op.drains and name == _COUNTER_OF[Unit.GLOBAL]:
            count = 0  # of stores nothing is left to tell whether they are under way
        if count is not None:
            required[name] = count
            counter.wait(min(count, LARGEST[name]))
    if i.op.unit in _COUNTER_OF:
        counters[_COUNTER_OF[i.op.unit]].issue((*physical.written(i), *_order_words(i)))
    return required
