"""Rows that end within a block: which registers lie inside a tensor, which at its edge, and which outside.

A message may be wide only if all of its elements of a lane exist or none does. Where a row's length is no multiple of a
message, messages stay wide for registers that lie inside in all lanes, and registers outside are not moved at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from convgen.ir.layout.digits import Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.record import frozen


@frozen
class Section:
    """Registers of a block from `start` on, with their layout."""

    start: int
    fragment: Fragment
    #: elements; length of a row for bounds checks, which may be rounded down to whole messages; None: the tensor's own
    row: int | None = None
    outside: bool = False  #: whether no element of the section is in the tensor


def sections(fragment: Fragment, dim: str, begin: int, size: int) -> list[Section]:
    """Return the sections of a block that begins at `begin` along a dim of `size` elements.

    There is one where all messages fit as they are, or where none does because the block begins within a message.
    """
    run = fragment.contiguous(dim)
    if run == 1 or size % run == 0 or begin % run:
        return [Section(0, fragment)]
    return list(_sections_of_messages(fragment, dim, begin, size, run))


def _sections_of_messages(fragment: Fragment, dim: str, begin: int, size: int, run: int) -> Iterator[Section]:
    """Yield a section for each message of `run` elements."""
    farthest_lane = sum(
        (d.size - 1) * step for step, d in fragment.stepped() if d.dim == dim and d.space != Space.REGISTER
    )
    for n, part in enumerate(fragment.parts(run)):
        first = begin + part.partial(Space.REGISTER, 0)[dim]
        inside = first + farthest_lane + run <= size
        # Rounded down, the row's length is a multiple of the message, and messages of the section stay wide.
        yield Section(n * run, part, size // run * run if inside else size, outside=first >= size)
