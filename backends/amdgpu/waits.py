"""Place `s_waitcnt`: no wider than the data flow over the whole control-flow graph demands.

gfx9 counts outstanding vector memory operations (vmcnt, in order) and LDS and scalar memory operations (lgkmcnt; LDS in
order among themselves, scalar loads in any). An operation of age n, with n younger ones in its order issued since, is
done once the count is at most n (CDNA3 ISA 4.4): were it outstanding, so would those be, and scalar loads only add to
the count. Of a scalar load itself only 0 tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_

from convgen.backends.amdgpu.isa import OPCODES
from convgen.backends.amdgpu.physical import Physical, Words
from convgen.backends.machine.dataflow import walked
from convgen.backends.machine.epochs import Ahead, accesses_ahead
from convgen.backends.machine.instruction import Access, Function, Instruction, Unit
from convgen.ir.record import define

#: Greatest count that a wait can name: one below the field's largest, with which the counter is never above it and so
#: nothing is waited for (CDNA3 ISA 4.4). A wait for more is clamped, which only waits longer.
LARGEST = {"vmcnt": 62, "lgkmcnt": 14}

_SCALAR_MEMORY = Unit.SCALAR_MEMORY  # of an Enum, an attribute takes as long as ten names
_COUNTER_OF = {Unit.GLOBAL: "vmcnt", Unit.SHARED: "lgkmcnt", Unit.SCALAR_MEMORY: "lgkmcnt"}


@define(eq=False)
class _Operation:
    """An instruction as counters see it. One of memory owns its results, and what it does in shared memory."""

    instruction: Instruction
    counter: str  #: empty if none counts it
    touched: Words  #: registers read or written
    results: Words
    deeds: tuple[Access, ...]  #: in shared memory
    is_out_of_order: bool  #: a scalar load, which may return before older operations of its counter and behind younger

    @property
    def owns(self) -> bool:
        """Whether anything has to wait for it."""
        return bool(self.results) or bool(self.deeds) or self.is_out_of_order


class _Operations(dict[Instruction, _Operation]):
    """The instructions of a function as operations, each made once."""

    def __init__(self, physical: Physical) -> None:
        super().__init__()
        self.physical = physical

    def __missing__(self, i: Instruction) -> _Operation:
        results = self.physical.written(i)
        deeds = tuple(a for a in (i.access, i.also) if a is not None and a.space == "shared")
        self[i] = found = _Operation(
            i,
            _COUNTER_OF.get(i.op.unit, ""),
            self.physical.read(i) | results,
            results,
            deeds,
            i.op.unit is _SCALAR_MEMORY,
        )
        return found


#: outstanding operation -> how many in its counter's order were issued behind it; 0 of a scalar load
Ages = Mapping[_Operation, int]

_LAST = 1 << 30  #: the number of an operation that no later one tells of


@define
class _Counter:
    """The outstanding operations of one counter that own something, with the number under which each was issued."""

    issued: int  #: in order
    outstanding: dict[_Operation, int]
    owned: Words  #: registers that they own

    def owner(self, words: Words) -> int:
        """The youngest operation that owns one of these registers, by its number; 0 if none does."""
        return max((n for o, n in self.outstanding.items() if o.results & words), default=0)

    def meeting(self, accesses: Iterable[Access]) -> int:
        """The youngest operation whose deed an access to the same place must see done; 0 if there is none."""
        deeds = [(deed, n) for o, n in self.outstanding.items() for deed in o.deeds]
        return max((n for deed, n in deeds if any(_meet(deed, other) for other in accesses)), default=0)

    def required(self, number: int) -> int:
        """The count that tells that an operation is done."""
        return max(self.issued - number, 0)

    def wait(self, count: int) -> None:
        done = self.issued - count if count else _LAST
        self.outstanding = {o: n for o, n in self.outstanding.items() if n > done}
        self.owned = _owned(self.outstanding)

    def issue(self, operation: _Operation) -> None:
        if not operation.is_out_of_order:
            self.issued += 1
        if operation.owns:
            self.outstanding[operation] = _LAST if operation.is_out_of_order else self.issued
            self.owned |= operation.results

    def ages(self) -> Ages:
        return {o: max(self.issued - n, 0) for o, n in self.outstanding.items()}

    @classmethod
    def of(cls, ages: Ages) -> _Counter:
        issued = 1 + max(ages.values(), default=-1)
        numbers = {o: _LAST if o.is_out_of_order else issued - age for o, age in ages.items()}
        return cls(issued, numbers, _owned(ages))


def _owned(operations: Iterable[_Operation]) -> Words:
    return reduce(or_, (o.results for o in operations), 0)


def _meet(deed: Access, other: Access) -> bool:
    """Whether another access, maybe of another wave, may touch what a deed wrote, or write what it read."""
    if deed.region != other.region or not (deed.slot == other.slot or min(deed.slot, other.slot) < 0):
        return False
    return not deed.dealt or deed.dealt != other.dealt if deed.write else other.write


State = Mapping[str, Ages]


def insert_waits(function: Function, physical: Physical) -> Function:
    """The function, its registers placed, with the waits that it needs."""
    ahead = accesses_ahead(function)
    operations = _Operations(physical)

    def walk(index: int, state: State) -> tuple[State, list[Instruction]]:
        counters = {name: _Counter.of(ages) for name, ages in state.items()}
        body = list(_with_waits(map(operations.__getitem__, function.blocks[index].instructions), counters, ahead))
        return {name: counter.ages() for name, counter in counters.items()}, body

    nothing: State = {name: {} for name in LARGEST}
    return walked(function, nothing, walk, _merge)


def _merge(a: State, b: State) -> State:
    """What is outstanding on either path; the younger age asks for the stricter wait."""
    return {name: {o: min(a[name].get(o, age), age) for o, age in {**a[name], **b[name]}.items()} for name in a}


def _with_waits(body: Iterable[_Operation], counters: dict[str, _Counter], ahead: Ahead) -> Iterator[Instruction]:
    for operation in body:
        required = _step(counters, operation, ahead)
        if required:
            fields = tuple(f"{name}({min(n, LARGEST[name])})" for name, n in required.items())
            clamped = [name for name, n in required.items() if n > LARGEST[name]]
            yield Instruction(
                OPCODES["s_waitcnt"], modifiers=fields, comment=f"{', '.join(clamped)} clamped" if clamped else ""
            )
        yield operation.instruction


def _step(counters: dict[str, _Counter], operation: _Operation, ahead: Ahead) -> dict[str, int]:
    """Pass one instruction; returns the counts that must be waited for before it.

    A barrier must see done whatever an access ahead may touch; an access to shared memory the deeds of another counter
    at its place, with which it is in no order.
    """
    required: dict[str, int] = {}
    i = operation.instruction
    for name, counter in counters.items():
        awaited = counter.owner(operation.touched) if operation.touched & counter.owned else 0
        if i.op.barrier:
            awaited = counter.meeting(ahead[i])
        elif operation.deeds and operation.counter != name:
            awaited = max(awaited, counter.meeting(operation.deeds))
        count = counter.required(awaited) if awaited else None
        if i.op.drains and name == _COUNTER_OF[Unit.GLOBAL]:
            count = 0  # of stores nothing is left to tell whether they are under way
        if count is not None:
            required[name] = count
            counter.wait(min(count, LARGEST[name]))
    if operation.counter:
        counters[operation.counter].issue(operation)
    return required
