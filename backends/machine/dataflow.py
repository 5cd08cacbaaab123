"""Forward data flow over a machine function's blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import TypeVar

from convgen.backends.machine.instruction import Function, Instruction

S = TypeVar("S")

#: Visits of a block after which facts are only added to it. A pass that inserts instructions can remove facts again, so
#: plain visits need not reach a fixed point; for reducible loops they do after one or two visits per nesting level.
_FREE_VISITS = 16


def solve(function: Function, start: S, transfer: Callable[[int, S], S], merge: Callable[[S, S], S]) -> dict[int, S]:
    """Return the facts on entry to each reachable block: a solution of `entry = merge of predecessors' exits`.

    `transfer(block, facts)` returns the facts at the end of a block. Each visit starts from the exits of predecessors,
    not from the block's previous facts, so that facts disappear once no path brings them. The lowest block whose facts
    may have changed goes next: loops settle before the code after them is visited.
    """
    blocks = range(len(function.blocks))
    successors = [function.successors(index) for index in blocks]
    predecessors = [[p for p in blocks if index in successors[p]] for index in blocks]
    entry: dict[int, S] = {}
    leaving: dict[int, S] = {}
    visits = [0] * len(blocks)
    waiting = set(blocks[:1])
    while waiting:
        index = min(waiting)
        waiting.remove(index)
        facts = [leaving[p] for p in predecessors[index] if p in leaving]
        facts += [start] if index == 0 else []
        facts += [entry[index]] if visits[index] >= _FREE_VISITS else []
        now = reduce(merge, facts)
        if index not in entry or now != entry[index]:
            entry[index] = now
            visits[index] += 1
            leaving[index] = transfer(index, now)
            waiting.update(successors[index])
    return entry


def walked(
    function: Function, start: S, walk: Callable[[int, S], tuple[S, Iterable[Instruction]]], merge: Callable[[S, S], S]
) -> Function:
    """Return the function with the instructions that `walk` makes of each block, given the facts on entry.

    `walk(block, facts)` returns the facts at the end and the instructions. Each block keeps the result of its last
    walk, which used the facts of the solution; unreachable blocks are walked from `start`.
    """
    bodies: dict[int, Iterable[Instruction]] = {}

    def transfer(index: int, facts: S) -> S:
        leaving, bodies[index] = walk(index, facts)
        return leaving

    solve(function, start, transfer, merge)
    return function.rewritten(lambda index, block: bodies[index] if index in bodies else walk(index, start)[1])
