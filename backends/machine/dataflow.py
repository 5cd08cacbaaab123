"""Forward data flow over a machine function's blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import TypeVar

from convgen.backends.machine.instruction import Function, Instruction

S = TypeVar("S")

#: Visits of a block after which facts are only added to it. Facts that make a pass insert something can take other
#: facts away, so that plain visits need not settle; in code with reducible loops they do after one or two a nesting
#: level.
_FREE_VISITS = 16


def solve(function: Function, start: S, transfer: Callable[[int, S], S], merge: Callable[[S, S], S]) -> dict[int, S]:
    """The facts on entry to each block that can be reached: a solution of `entry = merge of predecessors' exits`.

    `transfer(block, facts)` gives the facts at the end of a block. Each visit starts from the exits of predecessors,
    not from what was there before, so that nothing lingers that no path brings any more. The first block whose facts
    may have changed comes next: loops settle before what follows them is looked at.
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
    function: Function,
    start: S,
    walk: Callable[[int, S], tuple[S, Iterable[Instruction]]],
    merge: Callable[[S, S], S],
) -> Function:
    """The function with the instructions that a walk through each block makes of it, given the facts on entry.

    `walk(block, facts)` gives them behind the facts at the end. Each block keeps what its last walk made, which was
    from the facts of the solution; blocks that cannot be reached are walked from the start.
    """
    made: dict[int, Iterable[Instruction]] = {}

    def transfer(index: int, facts: S) -> S:
        leaving, made[index] = walk(index, facts)
        return leaving

    solve(function, start, transfer, merge)
    return function.rewritten(lambda index, block: made[index] if index in made else walk(index, start)[1])
