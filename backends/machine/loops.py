"""Dominators and natural loops of a control flow graph given as lists of successors; node 0 is the entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Graph = Sequence[Sequence[int]]


def dominators(graph: Graph) -> dict[int, int]:
    """Return the immediate dominator of each reachable node; the entry's is itself.

    K. Cooper, T. Harvey, K. Kennedy: A Simple, Fast Dominance Algorithm, 2001.
    """
    order = list(_postorder(graph))
    rank = {node: number for number, node in enumerate(order)}
    predecessors: dict[int, list[int]] = {node: [] for node in order}
    for node in order:
        for successor in graph[node]:
            predecessors[successor].append(node)
    immediate = {0: 0}
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            known = [p for p in predecessors[node] if p in immediate]
            best = known[0]
            for other in known[1:]:
                best = _common(immediate, rank, best, other)
            if immediate.get(node) != best:
                immediate[node] = best
                changed = True
    return immediate


def _common(immediate: dict[int, int], rank: dict[int, int], a: int, b: int) -> int:
    while a != b:
        while rank[a] < rank[b]:
            a = immediate[a]
        while rank[b] < rank[a]:
            b = immediate[b]
    return a


def _postorder(graph: Graph) -> Iterator[int]:
    seen = {0}
    stack = [(0, iter(graph[0]))]
    while stack:
        node, successors = stack[-1]
        following = next((s for s in successors if s not in seen), None)
        if following is None:
            stack.pop()
            yield node
        else:
            seen.add(following)
            stack.append((following, iter(graph[following])))


def natural_loops(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Return header -> nodes of each natural loop, ascending; loops with one header are merged."""
    immediate = dominators(graph)
    predecessors: dict[int, list[int]] = {node: [] for node in immediate}
    for node in immediate:
        for successor in graph[node]:
            predecessors[successor].append(node)
    loops: dict[int, set[int]] = {}
    for node in sorted(immediate):
        for header in graph[node]:
            if _dominates(immediate, header, node):
                body = loops.setdefault(header, {header})
                pending = [node]
                while pending:
                    n = pending.pop()
                    if n not in body:
                        body.add(n)
                        pending += predecessors[n]
    return {header: tuple(sorted(body)) for header, body in sorted(loops.items())}


def innermost(loops: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """Return the loops that contain no other loop."""
    return {h: body for h, body in loops.items() if not any(other in body for other in loops if other != h)}


def _dominates(immediate: dict[int, int], a: int, b: int) -> bool:
    while b != a and b != immediate[b]:
        b = immediate[b]
    return a == b
