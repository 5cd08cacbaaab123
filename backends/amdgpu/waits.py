"""Insert `s_waitcnt`, no stricter than the data flow over the whole control-flow graph demands.

gfx9 counts outstanding vector memory operations (vmcnt, in order) and LDS and scalar memory operations (lgkmcnt; LDS in
order among themselves, scalar loads in any order). While an operation is outstanding, so are the n in-order operations
issued after it. So a count of at most n shows that it is done (CDNA3 ISA 4.4); scalar loads only raise the count. Only
a count of 0 shows that a scalar load is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_

from convgen.backends.amdgpu.isa import OPCODES
from convgen.backends.amdgpu.physical import Physical, Words
from convgen.backends.machine.barrier_accesses import Ahead, accesses_ahead
from convgen.backends.machine.dataflow import walked
from convgen.backends.machine.instruction import Access, Function, Instruction, Unit
from convgen.ir.record import define

#: Greatest count that a wait can name. The field's largest value waits for nothing, since the counter never exceeds it
#: (CDNA3 ISA 4.4). A larger count is clamped, which only waits longer.
LARGEST = {"vmcnt": 62, "lgkmcnt": 14}

_SCALAR_MEMORY = Unit.SCALAR_MEMORY  # looking up an attribute of an Enum takes as long as ten names
_COUNTER_OF = {Unit.GLOBAL: "vmcnt", Unit.SHARED: "lgkmcnt", Unit.SCALAR_MEMORY: "lgkmcnt"}


@define(eq=False)
class _Operation:
    """An instruction as counters see it. A memory operation owns its result registers until it is done."""

    instruction: Instruction
    counter: str  #: name of its counter; empty if none
    touched: Words  #: registers read or written
    results: Words
    shared_accesses: tuple[Access, ...]  #: its shared-memory accesses
    is_out_of_order: bool  #: scalar load: may return before older operations of its counter and after younger ones

    @property
    def owns(self) -> bool:
        """Return whether any instruction may have to wait for it."""
        return bool(self.results) or bool(self.shared_accesses) or self.is_out_of_order


class _Operations(dict[Instruction, _Operation]):
    """The instructions of a function as operations, made on first use."""

    def __init__(self, physical: Physical) -> None:
        super().__init__()
        self.physical = physical

    def __missing__(self, i: Instruction) -> _Operation:
        results = self.physical.written(i)
        shared_accesses = tuple(a for a in (i.access, i.also) if a is not None and a.space == "shared")
        self[i] = operation = _Operation(
            i,
            _COUNTER_OF.get(i.op.unit, ""),
            self.physical.read(i) | results,
            results,
            shared_accesses,
            i.op.unit is _SCALAR_MEMORY,
        )
        return operation


#: outstanding operation -> number of in-order operations of its counter issued after it; 0 for a scalar load
Ages = Mapping[_Operation, int]

_LAST = 1 << 30  #: number of a scalar load: no later operation implies that it is done


@define
class _Counter:
    """The outstanding operations of one counter that an instruction may wait for, with their sequence numbers."""

    issued: int  #: in-order operations issued
    outstanding: dict[_Operation, int]
    owned: Words  #: registers that these operations own

    def last_owner(self, words: Words) -> int:
        """Return the number of the youngest operation that owns one of these registers; 0 if none does."""
        return max((n for o, n in self.outstanding.items() if o.results & words), default=0)

    def last_conflict(self, accesses: Iterable[Access]) -> int:
        """Return the number of the youngest operation that must be done before these accesses; 0 if there is none."""
        outstanding = [(access, n) for o, n in self.outstanding.items() for access in o.shared_accesses]
        return max((n for access, n in outstanding if any(_conflict(access, other) for other in accesses)), default=0)

    def required(self, number: int) -> int:
        """Return the count at which the operation with this number is done."""
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


def _conflict(access: Access, other: Access) -> bool:
    """Return whether `other`, maybe of another wave, may touch bytes that `access` writes, or write those it reads.

    Writes of one distribution over lanes and waves (`Access.distribution`) conflict with none of another wave.
    """
    if access.region != other.region or not (access.slot == other.slot or min(access.slot, other.slot) < 0):
        return False
    return not access.distribution or access.distribution != other.distribution if access.write else other.write


State = Mapping[str, Ages]


def insert_waits(function: Function, physical: Physical) -> Function:
    """Return the function, after allocation, with the waits that it needs."""
    ahead = accesses_ahead(function)
    operations = _Operations(physical)

    def walk(index: int, state: State) -> tuple[State, list[Instruction]]:
        counters = {name: _Counter.of(ages) for name, ages in state.items()}
        body = list(_with_waits(map(operations.__getitem__, function.blocks[index].instructions), counters, ahead))
        return {name: counter.ages() for name, counter in counters.items()}, body

    nothing: State = {name: {} for name in LARGEST}
    return walked(function, nothing, walk, _merge)


def _merge(a: State, b: State) -> State:
    """Return the operations outstanding on either path; the younger age demands the stricter wait."""
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
    """Pass one instruction; return the counts to wait for before it.

    A barrier needs all operations done that conflict with accesses after it. An access to shared memory waits for
    conflicting operations of the other counter, which complete in no order with it.
    """
    required: dict[str, int] = {}
    i = operation.instruction
    for name, counter in counters.items():
        awaited = counter.last_owner(operation.touched) if operation.touched & counter.owned else 0
        if i.op.barrier:
            awaited = counter.last_conflict(ahead[i])
        elif operation.shared_accesses and operation.counter != name:
            awaited = max(awaited, counter.last_conflict(operation.shared_accesses))
        count = counter.required(awaited) if awaited else None
        if i.op.drains and name == _COUNTER_OF[Unit.GLOBAL]:
            count = 0  # stores own nothing, so the count must reach 0
        if count is not None:
            required[name] = count
            counter.wait(min(count, LARGEST[name]))
    if operation.counter:
        counters[operation.counter].issue(operation)
    return required
