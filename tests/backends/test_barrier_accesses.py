"""What may follow a barrier before the next one, as walking all ways from it finds."""

from __future__ import annotations

from hypothesis import given, settings

from convgen.backends.machine.barrier_accesses import accesses_ahead
from convgen.backends.machine.instruction import Access, Function
from tests.backends.machines import functions
from tests.strategies import FIXED


def reached(function: Function, block: int, place: int) -> set[Access]:
    """The accesses that others may see, from a place in a block on, along each way as far as a barrier."""
    found: set[Access] = set()
    ways, seen = [(block, place)], {(block, place)}
    while ways:
        at, begin = ways.pop()
        for i in function.blocks[at].instructions[begin:]:
            if i.barrier:
                break
            found.update(a for a in i.accesses if a.space == "shared" and not a.private)
        else:
            further = {(n, 0) for n in function.successors(at)} - seen
            ways += further
            seen |= further
    return found


@settings(FIXED, max_examples=30)
@given(functions(pairs=True))
def test_accesses_up_to_the_next_barrier(function: Function) -> None:
    for n, i in enumerate(function.instructions()):
        if i.access is not None and n % 5 == 0:
            i.access = i.access._replace(private=True)
    ahead = dict(accesses_ahead(function))
    for number, block in enumerate(function.blocks):
        for at, i in enumerate(block.instructions):
            if i.barrier:
                assert set(ahead.pop(i)) == reached(function, number, at + 1)
    assert not ahead
