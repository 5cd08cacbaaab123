"""Lines: taps along a row of pixels and their few channels padded to whole chunks.

A line of a window is its taps along a row of pixels with all their channels. Channels are padded to a power of two, so
that lines begin at whole words wherever windows do, and taps to as many as make whole chunks: so much of an image with
as many channels (`packing.py`) is one run of memory, and a block of K is whole lines or parts of one.
"""

from __future__ import annotations

from math import prod

from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.memory import Dim, View
from convgen.ir.record import evolve
from convgen.passes.messages.linear import WORD
from convgen.plan.contraction import Product
from convgen.plan.copies import power_of_two
from convgen.plan.padding import names_in, windows
from convgen.plan.runs import along_memory


def in_lines(product: Product, facts: TargetFacts) -> Product:
    """The product with lines of whole chunks; DoesNotFit where windows have none, or channels are chunks."""
    views = product.of_n, product.of_m
    elem = views[0].memory.elem
    chunk = max(1, facts.chunk_bytes // elem.bytes)
    for view in views:
        if found := _line(view):
            tap, channels = found
            most = power_of_two(2 * max(channels.size, WORD // elem.bytes) - 1)
            if most >= chunk:
                raise DoesNotFit(f"taps=lines: {channels.size} channels fill chunks of {chunk}")
            taps = chunk // most
            dims = evolve(tap, padded=-(-tap.size // taps) * taps), evolve(channels, padded=most)
            of_n, of_m, result = (_with_lines(v, dims) for v in (*views, product.result))
            return evolve(product, of_n=of_n, of_m=of_m, result=result)
    raise DoesNotFit("taps=lines: wanted windows along which memory runs, channels innermost, of sizes that are known")


def _line(view: View) -> tuple[Dim, Dim] | None:
    """The dims that make a line: taps, and behind one another the channels of each. Pixels are more than taps."""
    names = names_in(windows(view).values())
    axis = min(view.axes[:2], key=lambda axis: prod(d.size for d in axis if d.name in names))
    if sum(d.name not in names for d in axis) != 1:
        return None
    return next(((dims[0], dims[1]) for dims in along_memory(view, axis) if len(dims) == 2), None)


def _with_lines(view: View, dims: tuple[Dim, Dim]) -> View:
    """The view with these dims, longer, innermost on their axis."""
    names = [d.name for d in dims]

    def longer(axis: tuple[Dim, ...]) -> tuple[Dim, ...]:
        rest = tuple(d for d in axis if d.name not in names)
        return (*rest, *dims) if len(rest) < len(axis) else axis

    return View(view.memory, view.layout, tuple(map(longer, view.axes)), view.index)
