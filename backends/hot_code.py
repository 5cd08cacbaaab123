"""Find the hot code of a decoded kernel: reachable code, basic blocks, and where a wave spends its time.

Loops come from the control flow graph, so that kernels of any compiler can be read. A family supplies only the
successors of an instruction (`Follows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from convgen.backends.analysis import Line, Stretch
from convgen.backends.machine.loops import dominators, innermost, natural_loops

#: Iterations of work that code outside a loop may do: a software pipeline peels one per buffer, and has up to 4.
_PEELED = 4


class Coded(Protocol):
    """An instruction with its address and size, both in bytes."""

    @property
    def address(self) -> int: ...

    @property
    def size(self) -> int: ...


I = TypeVar("I", bound=Coded)  # noqa: E741
#: Returns whether control may fall through to the next instruction, and the addresses of a branch's targets.
Follows = Callable[[I], tuple[bool, Sequence[int]]]


def reachable(code: Sequence[I], entry: int, follows: Follows[I]) -> list[I]:
    """Return the instructions that can be reached from index `entry`, by ascending address."""
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
    """Return the basic blocks as ranges of indices, and the successors of each block."""
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
    """Return the number of loops, and the hot code."""
    hot, is_loop = hottest_blocks(lines, blocks, graph)
    return len(natural_loops(graph)), _stretch(lines, hot, is_loop)


def hottest_blocks(
    lines: Sequence[Line], blocks: Sequence[range], graph: Sequence[Sequence[int]]
) -> tuple[list[range], bool]:
    """Return the blocks of the hot code, and whether they form a loop. Without loops, all blocks are hot.

    The candidate is the innermost loop with the most matrix work; the longer one wins ties. A loop in which no unit
    works only waits, and counts as a part of the loop around it. If waves may skip the candidate, and the code that
    every wave runs once does over `_PEELED` times the work of an iteration, that straight-line code is hot instead:
    such a loop is a fix-up for rare cases.
    """
    natural = natural_loops(graph).items()
    loops = {header: body for header, body in natural if any(lines[i].unit for n in body for i in blocks[n])}
    if not loops:
        return list(blocks), False
    inner = {header: [blocks[n] for n in body] for header, body in innermost(loops).items()}
    header = max(inner, key=lambda n: _weight(lines, inner[n]))
    path = max(_dominating_paths(graph), key=lambda path: _weight(lines, [blocks[n] for n in path]), default=())
    once = [blocks[n] for n in path if not any(n in body for body in loops.values())]
    is_loop = header in path or _weight(lines, once)[0] <= _PEELED * _weight(lines, inner[header])[0]
    return (inner[header], True) if is_loop else (once, False)


def _dominating_paths(graph: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield, for each exit of the kernel, the blocks that lie on every path to it, ascending."""
    immediate = dominators(graph)
    for end in (n for n in immediate if not graph[n]):
        path = [end]
        while path[-1] != immediate[path[-1]]:
            path.append(immediate[path[-1]])
        yield sorted(path)


def _weight(lines: Sequence[Line], blocks: Sequence[range]) -> tuple[int, int]:
    """Return the matrix work (operations) and the number of instructions of some blocks."""
    stretch = _stretch(lines, blocks, True)
    return stretch.flop, len(stretch.lines)


def _stretch(lines: Sequence[Line], blocks: Sequence[range], is_loop: bool) -> Stretch:
    return Stretch(tuple(lines[i] for block in blocks for i in block), is_loop)
