"""Where a decoded kernel spends its time: what is reached, basic blocks, the innermost loop with most matrix work, or
code that every wave runs through once where that has far more of it.

Loops are found in the control flow, so that code of any compiler can be read. A family says only which instructions may
follow one (`Follows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from convgen.backends.analysis import Line, Stretch
from convgen.backends.machine.loops import dominators, innermost, natural_loops

#: Iterations whose work code outside of a loop may have: pipelines leave as many behind as they have buffers, up to 4.
_AROUND = 4


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
    """How many loops there are, and the hot code."""
    found, is_loop = hottest_blocks(lines, blocks, graph)
    return len(natural_loops(graph)), _stretch(lines, found, is_loop)


def hottest_blocks(
    lines: Sequence[Line], blocks: Sequence[range], graph: Sequence[Sequence[int]]
) -> tuple[list[range], bool]:
    """The innermost loop with the most matrix work, else the longest, and that it is a loop; without loops all code.

    Where waves may skip that loop, and code that each of them runs through once has more work than belongs to a loop's
    beginning and end, that code: so loops are that make something good which is rarely wrong.
    """
    loops = natural_loops(graph)
    if not loops:
        return list(blocks), False
    inner = {header: [blocks[n] for n in body] for header, body in innermost(loops).items()}
    header = max(inner, key=lambda n: _weight(lines, inner[n]))
    way = max(_ways(graph), key=lambda way: _weight(lines, [blocks[n] for n in way]), default=())
    once = [blocks[n] for n in way if not any(n in body for body in loops.values())]
    is_loop = header in way or _weight(lines, once)[0] <= _AROUND * _weight(lines, inner[header])[0]
    return (inner[header], True) if is_loop else (once, False)


def _ways(graph: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Of each end of the kernel the blocks on all ways to it, ascending."""
    immediate = dominators(graph)
    for end in (n for n in immediate if not graph[n]):
        way = [end]
        while way[-1] != immediate[way[-1]]:
            way.append(immediate[way[-1]])
        yield sorted(way)


def _weight(lines: Sequence[Line], blocks: Sequence[range]) -> tuple[int, int]:
    """Matrix work and length."""
    found = _stretch(lines, blocks, True)
    return found.flop, len(found.lines)


def _stretch(lines: Sequence[Line], blocks: Sequence[range], is_loop: bool) -> Stretch:
    return Stretch(tuple(lines[i] for block in blocks for i in block), is_loop)
