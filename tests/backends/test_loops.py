"""Dominators and loops, compared with their definitions on random graphs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from convgen.backends.machine.loops import dominators, innermost, natural_loops

GRAPHS = st.integers(1, 8).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, n - 1), max_size=2), min_size=n, max_size=n)
)


def reach(graph: list[list[int]], without: int | None = None) -> set[int]:
    """The nodes that the entry reaches on paths that avoid one node."""
    seen: set[int] = set()
    pending = [] if without == 0 else [0]
    while pending:
        n = pending.pop()
        if n not in seen and n != without:
            seen.add(n)
            pending += graph[n]
    return seen


@given(GRAPHS)
def test_dominators_are_on_every_path(graph: list[list[int]]) -> None:
    immediate = dominators(graph)
    assert set(immediate) == reach(graph)
    for node in immediate:
        chain = {node}
        at = node
        while at != immediate[at]:
            at = immediate[at]
            chain.add(at)
        assert chain == {d for d in immediate if d == node or node not in reach(graph, without=d)}


@given(GRAPHS)
def test_loops_are_entered_at_their_header(graph: list[list[int]]) -> None:
    reached = reach(graph)
    for header, body in natural_loops(graph).items():
        assert header in body
        assert any(header in graph[n] for n in body)
        for node in reached - set(body):
            assert all(s == header or s not in body for s in graph[node])
        assert not (set(body) - {header}) & reach(graph, without=header)


def test_nested_loops() -> None:
    #  0 -> 1 -> 2 -> 3 -> 2 (inner), 3 -> 4 -> 1 (outer), 4 -> 5; 5 -> 5 (alone)
    graph = [[1], [2], [3], [2, 4], [1, 5], [5, 6], []]
    assert natural_loops(graph) == {1: (1, 2, 3, 4), 2: (2, 3), 5: (5,)}
    assert innermost(natural_loops(graph)) == {2: (2, 3), 5: (5,)}


def test_a_cycle_with_two_entries_is_no_loop() -> None:
    assert natural_loops([[1, 2], [2], [1]]) == {}
