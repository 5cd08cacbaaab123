"""Values that loops of a tile kernel carry, but that nothing reads.

A kernel whose loops use the same names has such values: each loop binds a name that an earlier loop has bound.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from convgen.tile.trace import Loop, Statement, Value, all_statements, arguments

_Carried = tuple[str, Value, Value]


def drop_unread(suite: Sequence[Statement]) -> None:
    """Remove from loops the carried values that no later iteration reads, and no statement outside the loop."""
    inside = {s: set(all_statements(s.body)) for s in all_statements(suite) if isinstance(s, Loop)}
    kept: dict[Loop, list[_Carried]] = {loop: [] for loop in inside}
    readers = [(s, arguments(s)) for s in all_statements(suite) if not isinstance(s, Loop)]

    def reads(loop: Loop) -> Iterator[tuple[bool, Container[Value]]]:
        """Yield values that are read, and whether iterations of a loop read them, or else statements outside it."""
        for statement, values in readers:
            yield statement in inside[loop], values
        for other, entries in kept.items():
            firsts, lasts = [first for _, first, _ in entries], [last for *_, last in entries]
            yield other in inside[loop], firsts
            yield other is loop or other in inside[loop], lasts

    def is_read(loop: Loop, first: Value, last: Value) -> bool:
        return any((first if by_iterations else last) in values for by_iterations, values in reads(loop))

    changed = True
    while changed:
        changed = False
        for loop in inside:
            more = [c for c in loop.carried if c not in kept[loop] and is_read(loop, *c[1:])]
            kept[loop] += more
            changed = changed or bool(more)
    for loop in inside:
        loop.carried = [c for c in loop.carried if c in kept[loop]]
