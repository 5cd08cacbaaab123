"""Where a decoded kernel spends its time: what is reached, basic blocks, the innermost loop with most matrix work.

Loops are found in the control flow, so that code of any compiler can be read. A family says only which instructions may
follow one (`Follows`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from convgen.backends.analysis import Line, Stretch
from convgen.backends.machine.loops import innermost, natural_loops


class Coded(Protocol):
    """An instruction at a place."""

    @property
    def address(self) -> int: ...

    @property
    def size(self) -> int: ...


I = TypeVar("I", bound=Coded)  # noqa: E741
#: Whether the next instruction may follow, and the addresses of a branch's targets.
Follows = Callable[[I], tuple[bool, Sequence[int]]]


def reachable(code: Sequence[I], entry: int, follows: Follows[I]) -> list[I]:
    """The instructions that index `entry` reaches, by address."""
    at = {i.address: n for n, i in enumerate(code)}
    seen: set[int] = set()
    pending = [entry]
    while pending:
        n = pending.pop()
        if n in seen or n >= len(code):
            continue
        seen.add(n)
        falls, targets = follows(code[n])
        pending += [n + 1] if falls else []
        pending += [at[target] for target in targets if target in at]
    return [code[n] for n in sorted(seen)]


def basic_blocks(code: Sequence[I], follows: Follows[I]) -> tuple[list[range], list[list[int]]]:
    """Basic blocks as ranges of indices, and the blocks that may follow each."""
    index = {i.address: n for n, i in enumerate(code)}
    leaders = {0}
    for n, i in enumerate(code):
        falls, targets = follows(i)
        leaders |= {index[target] for target in targets if target in index}
        gap = n + 1 < len(code) and code[n + 1].address != i.address + i.size
        leaders |= {n + 1} if n + 1 < len(code) and (not falls or targets or gap) else set()
    starts = sorted(leaders)
    blocks = [range(a, b) for a, b in zip(starts, [*starts[1:], len(code)])]
    number = {block[0]: n for n, block in enumerate(blocks)}
    graph = []
    for n, block in enumerate(blocks):
        falls, targets = follows(code[block[-1]])
        following = [n + 1] if falls and n + 1 < len(blocks) else []
        graph.append(following + [number[index[target]] for target in targets if target in index])
    return blocks, graph


def hottest(lines: Sequence[Line], blocks: Sequence[range], graph: Sequence[Sequence[int]]) -> tuple[int, Stretch]:
    """How many loops there are, and the innermost one with the most matrix work, else the longest, else all code."""
    loops = natural_loops(graph)
    hot = hottest_blocks(lines, blocks, graph)
    return len(loops), _stretch(lines, hot or blocks, bool(hot))


def hottest_blocks(lines: Sequence[Line], blocks: Sequence[range], graph: Sequence[Sequence[int]]) -> list[range]:
    """The basic blocks of the innermost loop with the most matrix work, else of the longest; none without loops."""
    inner = [[blocks[n] for n in body] for body in innermost(natural_loops(graph)).values()]

    def weight(body: Sequence[range]) -> tuple[int, int]:
        found = _stretch(lines, body, True)
        return found.flop, len(found.lines)

    return max(inner, key=weight, default=[])


def _stretch(lines: Sequence[Line], blocks: Sequence[range], is_loop: bool) -> Stretch:
    return Stretch(tuple(lines[i] for block in blocks for i in block), is_loop)
