"""Place `s_waitcnt`: no wider than the data flow over the whole control-flow graph demands.

gfx9 counts outstanding vector memory operations (vmcnt, in order) and LDS and scalar memory operations (lgkmcnt; LDS in
order, scalar loads out of order, so with one of these outstanding only 0 tells). Each counter is a queue, newest first;
entry i is done once the count is at most i. At a join, entries of equal age are united.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from convgen.backends.amdgpu.isa import OPCODES
from convgen.backends.amdgpu.physical import Physical, Word
from convgen.backends.machine import Function, Instruction, Unit

#: Greatest count each field holds (CDNA3 ISA 4.4): a wait for more is clamped, which only waits longer.
FIELD_MAX = {"vmcnt": 63, "lgkmcnt": 15}

_BARRIER = Word("lds", 0)  # stands for "visible to the other waves" in an event of the LDS queue
_UNORDERED = Word("smem", 0)  # marks a scalar load, which may return out of order

Event = frozenset[Word]
Queue = tuple[Event, ...]


@attrs.frozen
class _State:
    """The outstanding events of both counters, newest first."""

    vmcnt: Queue = ()
    lgkmcnt: Queue = ()

    def merge(self, other: _State) -> _State:
        return _State(_merge(self.vmcnt, other.vmcnt), _merge(self.lgkmcnt, other.lgkmcnt))


def _merge(a: Queue, b: Queue) -> Queue:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return tuple(e | shorter[i] if i < len(shorter) else e for i, e in enumerate(longer))


def insert_waits(function: Function, physical: Physical) -> None:
    """Add the waits that `function`, its registers placed, needs."""
    entry: dict[int, _State] = {0: _State()}
    work = [0]
    while work:
        index = work.pop(0)
        state = entry[index]
        for i in function.blocks[index].instructions:
            state = _after(state, i, _required(state, i, physical), physical)
        for s in function.successors(index):
            merged = entry[s].merge(state) if s in entry else state
            if merged != entry.get(s):
                entry[s] = merged
                work.append(s)
    for index, block in enumerate(function.blocks):
        block.instructions = list(_with_waits(block.instructions, entry.get(index, _State()), physical))


def _with_waits(body: list[Instruction], state: _State, physical: Physical) -> Iterator[Instruction]:
    for i in body:
        required = _required(state, i, physical)
        if required:
            fields = [f"{name}({min(n, FIELD_MAX[name])})" for name, n in required.items()]
            clamped = [name for name, n in required.items() if n > FIELD_MAX[name]]
            note = f"{', '.join(clamped)} clamped" if clamped else ""
            yield Instruction(OPCODES["s_waitcnt"], modifiers=tuple(fields), comment=note)
        state = _after(state, i, required, physical)
        yield i


def _required(state: _State, i: Instruction, physical: Physical) -> dict[str, int]:
    """The counts to wait for before `i`, only where the counter may be higher."""
    if i.op.name == "s_endpgm":
        return {}
    words = physical.touched(i) | {_BARRIER} if i.barrier else physical.touched(i)
    out: dict[str, int] = {}
    for name, queue in (("vmcnt", state.vmcnt), ("lgkmcnt", state.lgkmcnt)):
        newest = next((age for age, event in enumerate(queue) if event & words), None)
        if newest is None:
            continue
        unordered = any(_UNORDERED in event for event in queue)
        out[name] = 0 if unordered else newest
    return out


def _after(state: _State, i: Instruction, required: dict[str, int], physical: Physical) -> _State:
    vm, lgkm = (queue[: required.get(name, len(queue))] for name, queue in attrs.asdict(state, recurse=False).items())
    written = frozenset(physical.written(i))
    if i.op.unit is Unit.GLOBAL:
        vm = (written, *vm)
    elif i.op.unit is Unit.SHARED:
        lgkm = (written | {_BARRIER}, *lgkm)
    elif i.op.unit is Unit.SCALAR_MEMORY:
        lgkm = (written | {_UNORDERED}, *lgkm)
    # Counters saturate: anything older is covered by a wait for the field's greatest value.
    return _State(_saturate(vm, FIELD_MAX["vmcnt"]), _saturate(lgkm, 2 * FIELD_MAX["lgkmcnt"]))


def _saturate(queue: Queue, depth: int) -> Queue:
    if len(queue) <= depth + 1:
        return queue
    oldest: Event = frozenset().union(*queue[depth:])
    return (*queue[:depth], oldest)
