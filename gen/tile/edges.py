"""Rows that end within a block: which registers lie inside a tensor, which at its edge, and which outside.

A message moves several elements of a lane only if all of them exist or none does. Where a row's length is no multiple
of a message, that is known for registers that lie inside in all lanes, and registers outside are not moved at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from convgen.ir.layout.digits import Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.record import frozen


@frozen
class Section:
    """Registers of a block from `start` on, with their layout.

    `size` is the row's length for bounds checks; 0: the section is outside; None: the dim's own length.
    """

    start: int
    layout: Fragment
    size: int | None = None


def sections(layout: Fragment, dim: str, begin: int, size: int) -> list[Section]:
    """Return the sections of a block that begins at `begin` along a dim of `size`; one if messages end evenly."""
    run = layout.contiguous(dim)
    if run == 1 or size % run == 0 or begin % run:
        return [Section(0, layout)]
    return list(_parts(layout, dim, begin, size, run))


def _parts(layout: Fragment, dim: str, begin: int, size: int, run: int) -> Iterator[Section]:
    others = sum((d.size - 1) * step for step, d in layout.stepped() if d.dim == dim and d.space != Space.REGISTER)
    for n, part in enumerate(layout.parts(run)):
        first = begin + part.partial(Space.REGISTER, 0)[dim]
        inside, outside = first + others + run <= size, first >= size
        yield Section(n * run, part, size // run * run if inside else 0 if outside else size)
