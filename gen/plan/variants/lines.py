"""`taps=lines`: taps along a row of pixels and their few channels, padded to whole chunks.

A line of a window is its taps along a row of pixels with all their channels. Channels are padded to a power of two, so
that lines begin at whole words wherever windows do, and taps until they fill whole chunks. In an image with padded
channels (`packing.py`) a line is one run of memory, and a block of K is whole lines or a part of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import prod

from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.memory import Dim, View
from convgen.ir.record import evolve
from convgen.passes.messages.linear import WORD
from convgen.plan.config import Config
from convgen.plan.contraction import Product
from convgen.plan.copies import next_power_of_two
from convgen.plan.loads import OperandLoad, view_load
from convgen.plan.padding import names_in, window_coordinates
from convgen.plan.variants import runs
from convgen.plan.variants.runs import along_memory
from convgen.plan.variants.variant import CHUNK_ISSUE, ELEMENT_ISSUE, Form, Offer, Variant


def in_lines(product: Product, facts: TargetFacts) -> Product:
    """Return the product with lines of whole chunks; DoesNotFit without lines, or where channels fill chunks."""
    views = product.of_n, product.of_m
    elem = views[0].memory.elem
    chunk = max(1, facts.chunk_bytes // elem.bytes)
    for view in views:
        if line := _line(view):
            tap, channels = line
            most = next_power_of_two(max(channels.size, WORD // elem.bytes))
            if most >= chunk:
                raise DoesNotFit(f"taps=lines: {channels.size} channels fill chunks of {chunk}")
            taps = chunk // most
            dims = evolve(tap, padded=-(-tap.size // taps) * taps), evolve(channels, padded=most)
            of_n, of_m, result = (_with_lines(v, dims) for v in (*views, product.result))
            return evolve(product, of_n=of_n, of_m=of_m, result=result)
    raise DoesNotFit("taps=lines: wanted taps contiguous in memory, channels innermost, of sizes that are known")


def _line(view: View) -> tuple[Dim, Dim] | None:
    """Return the dims of a line, taps and channels of a pixel; None without one.

    Taps are on the axis with the fewer positions along windows.
    """
    names = names_in(window_coordinates(view).values())
    axis = min(view.axes[:2], key=lambda axis: prod(d.size for d in axis if d.name in names))
    if sum(d.name not in names for d in axis) != 1:
        return None
    return next(((dims[0], dims[1]) for dims in along_memory(view, axis) if len(dims) == 2), None)


def _with_lines(view: View, dims: tuple[Dim, Dim]) -> View:
    """Return the view with these padded dims innermost on their axis."""
    names = [d.name for d in dims]

    def longer(axis: tuple[Dim, ...]) -> tuple[Dim, ...]:
        rest = tuple(d for d in axis if d.name not in names)
        return (*rest, *dims) if len(rest) < len(axis) else axis

    return View(view.memory, view.layout, tuple(map(longer, view.axes)), view.index)


class Lines(Variant):
    word = "lines"
    summary = "blocks of taps along a row of pixels, channels padded to a power of two and taps to whole chunks"
    packs_images = True

    def product(self, plain: Product, config: Config, facts: TargetFacts) -> Product:
        return in_lines(plain, facts)

    def offers(self, form: Form, facts: TargetFacts) -> Iterator[Offer]:
        """Yield lines where lanes would load pixels in less than words; only packed images make them worthwhile."""
        if form.launches > 1 or form.merged or form.has_columns or form.is_sized or facts.checks_bounds:
            return
        product = form.product
        views = product.of_m, product.of_n
        if min(view_load(v, facts).widest * v.memory.elem.bytes for v in views) >= WORD:
            return
        if any(runs.VARIANT.offers(form, facts)):
            return
        with suppress(DoesNotFit):
            yield Offer.of(evolve(form, product=in_lines(product, facts)), self)

    def issue(self, load: OperandLoad, inner: int, chunk: int) -> float:
        """Return the slots of a load: a line has one address for a block; scalar loads compute each element's tap."""
        if load.widest > 1:
            return 1.0
        return CHUNK_ISSUE if not load.along_k or inner % chunk == 0 else ELEMENT_ISSUE


VARIANT = Lines()
