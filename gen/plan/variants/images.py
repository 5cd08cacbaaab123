"""`taps=images`: K of weight gradients with images innermost: one pixel of all images, then the next pixel.

Where neither factor is contiguous along K, each lane of a load has its own positions along K. In memory order each lane
must compute its pixel, and whether the window is outside there. Windows do not move from image to image: with images
innermost all lanes of a load have one pixel, whose address is computed once for all of them.
"""

from __future__ import annotations

from math import prod

from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.memory import Dim, View
from convgen.ir.record import evolve
from convgen.plan.config import Config
from convgen.plan.contraction import Product
from convgen.plan.variants.plain import Loads, Plain
from convgen.plan.variants.variant import Offer

_TOGETHER = 32  #: positions along K of a load, usually of eight lanes with four each
#: Rows of a tap at which most tiles have a single tap. By `convgen profile`, images make launches with fewer rows 1 to
#: 4 % slower, and others 1 % faster on average.
_LEAST_ROWS = 128


def by_images(product: Product) -> Product:
    """Return the product with images innermost in K; DoesNotFit where images are no dim of K, or its only one."""
    order = _images_inside(product.of_n, product.of_m)
    if order is None:
        raise DoesNotFit("taps=images: wanted windows that move along K, and a number of images that is known")
    of_n, of_m = (
        View(v.memory, v.layout, (v.axes[0], order, *v.axes[2:]), v.index) for v in (product.of_n, product.of_m)
    )
    return evolve(product, of_n=of_n, of_m=of_m)


def are_worthwhile(of_n: View, of_m: View) -> bool:
    """Whether loads have one pixel, and mostly one tap."""
    rows = [v.axes[0] for v in (of_n, of_m) if any(len(_long(v, t.terms)) > 1 for t in v.index)]
    return fill_rectangles(of_n, of_m) and bool(rows) and all(dims[-1].size >= _LEAST_ROWS for dims in rows)


def fill_rectangles(of_n: View, of_m: View) -> bool:
    """Whether loads have one pixel, and the images fill all rows of a 2-D message's rectangle."""
    order = _images_inside(of_n, of_m)
    return order is not None and prod(d.size for d in order if _is_still(d, of_n, of_m)) % _TOGETHER == 0


def _images_inside(of_n: View, of_m: View) -> tuple[Dim, ...] | None:
    """Return K's dims with those that move no window innermost; None if that changes nothing or sizes are symbolic."""
    dims = of_n.axes[1]
    order = tuple(sorted(dims, key=lambda d: _is_still(d, of_n, of_m)))
    return None if order == dims or any(d.exact is not None for d in dims) else order


def _is_still(d: Dim, *views: View) -> bool:
    """Whether a dim is a coordinate of each tensor by itself."""
    return all(any(t.terms == ((d.name, 1),) and not t.masked for t in view.index) for view in views)


def _long(view: View, terms: tuple[tuple[str, int], ...]) -> list[str]:
    """Return the names of the dims in `terms` that have more than one position."""
    sizes = {d.name: d.size for dims in view.axes for d in dims}
    return [name for name, _ in terms if sizes[name] > 1]


class Images(Plain):
    word = "images"
    summary = "blocks of one pixel of many images"
    is_alone = True

    def product(self, plain: Product, config: Config, facts: TargetFacts) -> Product:
        return by_images(plain)

    def suits(self, offer: Offer, loads: Loads, deepest: int, chunk: int, facts: TargetFacts) -> bool:
        """Whether a surface offset can address the one pixel of a load for all lanes."""
        transposed = all(load.by_reads or not load.along_k for load in loads)
        return facts.checks_bounds and transposed and are_worthwhile(offer.of_n, offer.of_m)


VARIANT = Images()
