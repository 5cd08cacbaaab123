"""Place `s_waitcnt`: no wider than the data flow over the whole control-flow graph demands.

gfx9 counts outstanding vector memory operations (vmcnt, in order) and LDS and scalar memory operations (lgkmcnt; LDS in
order, scalar loads out of order, so with one of these outstanding only 0 tells). An operation of age n, with n younger
ones issued since, is done once the count is at most n (CDNA3 ISA 4.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from convgen.backends.amdgpu.isa import OPCODES
from convgen.backends.amdgpu.physical import Physical, Word
from convgen.backends.machine import Function, Instruction, Unit

#: Greatest count each field holds (CDNA3 ISA 4.4): a wait for more is clamped, which only waits longer.
FIELD_MAX = {"vmcnt": 63, "lgkmcnt": 15}

_COUNTER_OF = {Unit.GLOBAL: "vmcnt", Unit.SHARED: "lgkmcnt", Unit.SCALAR_MEMORY: "lgkmcnt"}

#: What an LDS operation leaves to wait for besides its registers: a barrier must find it done.
_LDS_ORDER = Word("lds order", 0)
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


State = dict[str, Ages]


def insert_waits(function: Function, physical: Physical) -> None:
    """Add the waits that `function`, its registers placed, needs."""
    entry: dict[int, State] = {0: {name: {} for name in FIELD_MAX}}
    work = [0]
    while work:
        index = work.pop(0)
        counters = {name: _Counter.of(ages) for name, ages in entry[index].items()}
        for i in function.blocks[index].instructions:
            _step(counters, i, physical)
        for s in function.successors(index):
            merged = {name: _youngest(entry.get(s, {}).get(name, {}), c.ages()) for name, c in counters.items()}
            if merged != entry.get(s):
                entry[s] = merged
                work.append(s)
    for index, block in enumerate(function.blocks):
        counters = {name: _Counter.of(ages) for name, ages in entry.get(index, {}).items()}
        block.instructions = list(_with_waits(block.instructions, counters, physical))


def _youngest(a: Ages, b: Ages) -> Ages:
    """What is outstanding on either path; the younger age asks for the stricter wait."""
    merged = dict(a)
    for w, age in b.items():
        merged[w] = min(age, merged.get(w, age))
    return merged


def _with_waits(
    body: Iterable[Instruction], counters: dict[str, _Counter], physical: Physical
) -> Iterator[Instruction]:
    for i in body:
        required = _step(counters, i, physical)
        if required:
            fields = tuple(f"{name}({min(n, FIELD_MAX[name])})" for name, n in required.items())
            clamped = [name for name, n in required.items() if n > FIELD_MAX[name]]
            yield Instruction(
                OPCODES["s_waitcnt"], modifiers=fields, comment=f"{', '.join(clamped)} clamped" if clamped else ""
            )
        yield i


def _step(counters: dict[str, _Counter], i: Instruction, physical: Physical) -> dict[str, int]:
    """Pass one instruction; returns the counts that must be waited for before it."""
    required: dict[str, int] = {}
    words = (_LDS_ORDER,) if i.barrier else (*physical.read(i), *physical.written(i))
    for name, counter in counters.items():
        count = counter.required(words)
        if count is not None:
            required[name] = count
            counter.wait(min(count, FIELD_MAX[name]))
    if i.op.unit in _COUNTER_OF:
        order = {Unit.SHARED: (_LDS_ORDER,), Unit.SCALAR_MEMORY: (_OUT_OF_ORDER,)}.get(i.op.unit, ())
        counters[_COUNTER_OF[i.op.unit]].issue((*physical.written(i), *order))
    return required
