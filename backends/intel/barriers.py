"""Barriers and their fences: loads and stores of local memory that conflict across a barrier, and needless fences.

All threads run one program, so accesses of other threads up to the next barrier are equal to those of this thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from convgen.backends.intel.isa import OPCODES, Message
from convgen.backends.machine.dataflow import walked
from convgen.backends.machine.instruction import Access, Function, Instruction, Unit

_Pending = frozenset[Access | None]  #: stores that no fence has published yet


def touches_local(i: Instruction, *, stores: bool) -> bool:
    """Return whether an instruction stores to (`stores`), or loads from, shared local memory."""
    return isinstance(i.op, Message) and i.op.unit is Unit.SHARED and i.op.stores == stores


def conflict(a: Access | None, b: Access | None) -> bool:
    """Return whether other threads may touch a common byte; an unknown access (None) may touch all."""
    return a is None or b is None or (not a.private and a.conflicts(b))


def overwrites(store: Access | None, load: Access | None) -> bool:
    """Return whether a store may change bytes that a load of this thread reads."""
    return store is None or load is None or store.conflicts(load)


def behind_signals(function: Function, *, stores: bool) -> Iterator[tuple[Instruction, list[Instruction]]]:
    """Yield each barrier signal with the stores or loads of local memory between it and the next signals."""
    for index, block in enumerate(function.blocks):
        for n, signal in enumerate(block.instructions):
            if signal.op is OPCODES["signal"]:
                yield signal, list(_until_signal(function, index, n + 1, stores))


def signals(function: Function) -> Iterator[tuple[Instruction, Instruction | None]]:
    """Yield each signal with the fence ahead of it, if one orders all earlier accesses to local memory.

    Fences always order stores; they order loads only on generations where a fence cannot overtake a load
    (`Generation.loads_overtaken`).
    """
    for block in function.blocks:
        fence: Instruction | None = None
        for i in block.instructions:
            if i.op is OPCODES["signal"]:
                yield i, fence
            if i.op is OPCODES["fence"]:
                fence = i
            elif touches_local(i, stores=False) or touches_local(i, stores=True) or i.op is OPCODES["signal"]:
                fence = None


def _until_signal(function: Function, index: int, first: int, stores: bool) -> Iterator[Instruction]:
    seen: list[int] = []
    pending = [(index, first)]
    while pending:
        at, begin = pending.pop()
        rest = function.blocks[at].instructions[begin:]
        here = list(takewhile(lambda i: i.op is not OPCODES["signal"], rest))
        yield from (i for i in here if touches_local(i, stores=stores))
        further = [s for s in function.successors(at) if s not in seen] if len(here) == len(rest) else []
        pending += [(s, 0) for s in further]
        seen += further


def drop_fences(function: Function) -> Function:
    """Return the function without needless fences: after their barrier no thread loads what was stored before.

    The next fence publishes the stores of a removed one.
    """
    loads = dict(behind_signals(function, stores=False))
    following = {
        fence: loads[signal] for block in function.blocks for fence, signal in _fenced_signals(block.instructions)
    }

    def needed(fence: Instruction, pending: _Pending) -> bool:
        return any(conflict(store, load.access) for store in pending for load in following[fence])

    def walk(index: int, pending: _Pending) -> tuple[_Pending, list[Instruction]]:
        remaining: list[Instruction] = []
        for i in function.blocks[index].instructions:
            drops = i.op is OPCODES["fence"] and not needed(i, pending)
            if not drops:
                remaining.append(i)
            if i.op is OPCODES["fence"]:
                pending = pending if drops else frozenset()
            elif touches_local(i, stores=True):
                pending |= {i.access}
        return pending, remaining

    return walked(function, _Pending(), walk, lambda a, b: a | b)


def delay_signals(function: Function) -> Function:
    """Return the function with arithmetic between a fence and its signal, if some follows them.

    A message has no room for a token wait (`syncs.py`); the arithmetic waits for the fence, so no wait stands alone.
    """
    return function.rewritten(lambda _, block: _delayed(block.instructions))


def _delayed(instructions: Sequence[Instruction]) -> list[Instruction]:
    order = list(instructions)
    for n, (first, second, third) in enumerate(zip(instructions, instructions[1:], instructions[2:])):
        fenced = first.op is OPCODES["fence"] and second.op is OPCODES["signal"]
        if fenced and third.op.unit is Unit.VALU and not (third.op.port or third.op.fence):
            order[n + 1 : n + 3] = third, second
    return order


def _fenced_signals(instructions: list[Instruction]) -> Iterator[tuple[Instruction, Instruction]]:
    """Yield each fence with the signal after it."""
    fences = [i for i in instructions if i.op is OPCODES["fence"]]
    signals = [i for i in instructions if i.op is OPCODES["signal"]]
    return zip(fences, signals, strict=True)
