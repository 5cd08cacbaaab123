"""`taps=shifted`: rows of pixels as runs along K, which taps shift: gradients of weights with channels first.

Memory then has the pixels of a row side by side, in src as in diff_dst. A tap shifts a row of src by pixels, which may
be parts of words: messages bring whole words, and are trimmed (see `runs`). Taps come before channels among the rows of
src's tile, so that memory is contiguous along K alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convgen.backends.tuning import tuning
from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.memory import Dim, View
from convgen.ir.record import evolve
from convgen.plan.contraction import Product
from convgen.plan.padding import names_in, window_coordinates
from convgen.plan.variants.runs import Runs, in_runs
from convgen.plan.variants.variant import Form, Offer

_ROWS, _K = 0, 1  #: axes of a factor's view


def in_rows(product: Product, tile_k: int, facts: TargetFacts) -> Product:
    """Return the product with rows of pixels as runs along K; DoesNotFit without such runs, or taps that move them."""
    sides = [n for n, view in enumerate((product.of_n, product.of_m)) if _long_taps(view)]
    if len(sides) != 1:
        raise DoesNotFit("taps=shifted: wanted windows of one factor, with taps among its rows")
    (side,) = sides
    windows = (product.of_n, product.of_m)[side]
    if _moving(windows, _ROWS) > _moving(windows, _K):  # rows are pixels, and K has the taps: see `runs`
        raise DoesNotFit("taps=shifted: wanted taps among the rows of windows, and pixels along K")
    taps = _long_taps(windows)
    of_n, of_m = (_taps_first(v, taps, _ROWS) for v in (product.of_n, product.of_m))
    result = _taps_first(product.result, taps, side)
    return in_runs(evolve(product, of_n=of_n, of_m=of_m, result=result), tile_k, facts, (_K,))


def _long_taps(view: View) -> set[str]:
    """Return the dims of a view's rows along which its windows move, of several positions."""
    moving = names_in(window_coordinates(view).values())
    return {d.name for d in view.axes[_ROWS] if d.name in moving and d.size > 1}


def _moving(view: View, axis: int) -> int:
    """Return the positions along an axis to which a view's windows move; pixels outnumber taps."""
    moving = names_in(window_coordinates(view).values())
    return prod(d.size for d in view.axes[axis] if d.name in moving)


def _taps_first(view: View, taps: set[str], axis: int) -> View:
    """Return the view with taps as the outermost dims of an axis."""
    dims: tuple[Dim, ...] = tuple(sorted(view.axes[axis], key=lambda d: d.name not in taps))
    axes = (*view.axes[:axis], dims, *view.axes[axis + 1 :])
    return View(view.memory, view.layout, axes, view.index)


class Shifted(Runs):
    word = "shifted"
    summary = "blocks of rows of pixels, as memory has them, which taps move"

    def in_runs(self, product: Product, tile_k: int, facts: TargetFacts) -> Product:
        return in_rows(product, tile_k, facts)

    def offers(self, form: Form, facts: TargetFacts) -> Iterator[Offer]:
        """Yield blocks of whole rows where tuning says so."""
        if tuning(facts).runs_of_pixels:
            yield from super().offers(form, facts)


VARIANT = Shifted()
