"""`taps=resident`: the source of a tile is loaded once for all taps, which read it at row offsets.

A block of K is some channels with all their taps. Rows of M count positions with a gap after each line, so that a tap's
offset is one number of rows everywhere: P = (n * H + h) * W + w. W exceeds a line of the result by enough that both
ends of a line of the source fall into gaps; one gap serves the end of a line and the beginning of the next. Row P of
the result at tap (kh, kw) then reads row P + kh * growth * W + kw * growth of the source, which is zero where that is
padding. Sums of rows in gaps are computed but not stored; M ends with the last position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product as combinations
from math import prod
from typing import Any

import attrs

from convgen.backends.tuning import tuning
from convgen.ir.error import DoesNotFit
from convgen.ir.facts import PlaneLimits, TargetFacts
from convgen.ir.layout.memory import Dim, SizedView, TensorDim, View
from convgen.ir.layout.mma import MmaAtom, MmaTile
from convgen.ir.record import evolve, frozen
from convgen.passes.messages.linear import linearize
from convgen.passes.messages.planes import plane_of
from convgen.plan import views
from convgen.plan.config import Config, Staging
from convgen.plan.contraction import Product, Tensor
from convgen.plan.inputs import ProductInput, with_gaps
from convgen.plan.padding import window_coordinates
from convgen.plan.variants.plain import need_no_registers
from convgen.plan.variants.variant import (
    TILE_M,
    Choices,
    Form,
    Inputs,
    Offer,
    Packings,
    Variant,
    matrix_unit,
    read_views,
    rings,
    tiles_k,
    tiles_n,
)
from convgen.problem.matmul import Problem

_RECTANGLE = 8  #: rows; the least rectangle of a 2-D message that is a block of a matrix input
_LEAST_TAPS = 4  #: fewest taps worth trying: windows of fewer taps reread little
_MORE_ROWS = (384, 512)  #: rows of further tile sizes, since each tile also reads a margin around its own rows
#: Pipelines worth trying, since slots are large and blocks take long; the first wins ties.
_STAGINGS = (Staging(1), Staging(2))


@frozen
class _Blocks:
    """The dim of channels, as blocks of `count` channels."""

    channels: str
    name: str  #: of the dim that counts blocks
    count: int

    def index(self, index: tuple[TensorDim, ...]) -> tuple[TensorDim, ...]:
        """Return coordinates with channels split into blocks."""

        def in_blocks(t: TensorDim) -> TensorDim:
            terms = [
                (((name, coef), (self.name, coef * self.count)) if name == self.channels else ((name, coef),))
                for name, coef in t.terms
            ]
            return evolve(t, terms=tuple(term for pair in terms for term in pair))

        return tuple(map(in_blocks, index))


@frozen
class Resident(Product):
    """A product whose blocks of K are channels with all taps, and the source of its windows as rows of one tile."""

    source: View = attrs.field(kw_only=True)  #: axes positions, channels and, if any, batch
    #: rows; offset of each tap's source row from the result's row, in the order of K
    tap_rows: tuple[int, ...] = attrs.field(kw_only=True)
    blocks: _Blocks = attrs.field(kw_only=True)

    def in_dims(self, tensor: Tensor) -> Tensor:
        cut = tensor.cut(self.cuts)
        return evolve(cut, index=self.blocks.index(cut.index))

    @property
    def reach(self) -> int:
        """Return the rows of the source after those of a tile that windows reach."""
        return max(self.tap_rows)


@frozen
class _Line:
    """A spatial axis: positions of the result, windows of stride 1, and a line of the source."""

    dim: Dim
    tap: Dim
    at: int  #: dimension of the tensor
    size: int  #: positions of the source
    growth: int  #: positions of the source between taps
    start: int  #: position of the source at the first tap of the first window
    grain: int = 1  #: positions; lines start at multiples of it

    @property
    def padded(self) -> int:
        """Return the least distance between lines at which taps beyond either end fall into a gap.

        Windows reach `apart` positions. With a distance below that, the last ones are read as the first positions of
        the next line. Both must lie outside the source: the last ones after its end, the first ones before its start.
        """
        apart = self.dim.size + (self.tap.size - 1) * self.growth
        least = max(self.dim.size, min(apart, max(self.size - self.start, apart + self.start)))
        return -(-least // self.grain) * self.grain


def resident(product: Product, tile_k: int, planes: PlaneLimits | None = None) -> Resident:
    """Return the product with blocks of K of some channels with all taps, `tile_k` elements; DoesNotFit if impossible.

    Where 2-D messages load rectangles of `planes`, lines are far enough apart that no rectangle spans two of them.
    """
    m, k = product.of_m.axes[:2]
    lines = _lines(product)
    if plane_of(linearize(product.of_m), planes):
        lines[-1] = evolve(lines[-1], grain=_RECTANGLE)
    taps = tuple(line.tap for line in lines)
    *outer, channels = k
    if tuple(outer) != taps or isinstance(product.of_m, SizedView) or channels.exact is not None:
        raise DoesNotFit("taps=resident: wanted taps around the channels, and sizes that are known")
    channels_of_block, uneven = divmod(tile_k, prod(tap.size for tap in taps))
    if uneven or not channels_of_block or channels.size % channels_of_block:
        spelled = " x ".join(str(tap.size) for tap in taps)
        raise DoesNotFit(
            f"taps=resident: tile K of {tile_k}, wanted {spelled} taps times a divisor of {channels.size} channels"
        )
    if m[-len(lines) :] != tuple(line.dim for line in lines):
        raise DoesNotFit("taps=resident: wanted positions of windows innermost in memory")
    blocks = Dim(f"{channels.name}_blocks", channels.size // channels_of_block, channels.size // channels_of_block)
    channels_dim = Dim(channels.name, channels_of_block, channels_of_block)
    rows = (*m[: -len(lines)], *(evolve(line.dim, padded=line.padded) for line in lines))
    k_dims = (blocks, *taps, channels_dim)
    cut = _Blocks(channels.name, blocks.name, channels_of_block)
    of_n, of_m = (evolve(view, index=cut.index(view.index)) for view in (product.of_n, product.of_m))
    return Resident(
        evolve(of_n, axes=(of_n.axes[0], k_dims, *of_n.axes[2:])),
        evolve(of_m, axes=(rows, k_dims, *of_m.axes[2:])),
        evolve(product.result, axes=(product.result.axes[0], rows, *product.result.axes[2:])),
        product.role,
        product.cuts,
        origin=product.origin,
        joined=product.joined,
        gap=_gap(rows),
        source=_source(of_m, lines, (blocks, channels_dim)),
        tap_rows=_tap_rows(lines),
        blocks=cut,
    )


def _gap(rows: tuple[Dim, ...]) -> int:
    """Return the empty rows after the last line of the last image, for which no workgroup is launched."""
    last = 0
    for d in rows:
        last = last * d.padded + d.size - 1
    return prod(d.padded for d in rows) - (last + 1)


def _lines(product: Product) -> list[_Line]:
    """Return the spatial axes, outermost first."""
    names = {d.name: d for axis in product.of_m.axes[:2] for d in axis}
    rows = [d.name for d in product.of_m.axes[0]]
    lines = []
    for at, t in window_coordinates(product.of_m).items():
        terms = {name: coef for name, coef in t.terms if name in names}
        position, *more = [name for name in terms if name in rows]
        tap, *others = [name for name in terms if name not in rows]
        if more or others or terms[position] != 1 or terms[tap] < 1 or len(terms) != len(t.terms):
            raise DoesNotFit("taps=resident: wanted windows in steps of 1")
        lines.append(_Line(names[position], names[tap], at, t.size, terms[tap], t.const))
    if not lines:
        raise DoesNotFit("taps=resident: wanted M's input to have windows")
    return sorted(lines, key=lambda line: rows.index(line.dim.name))


def _source(of_m: View, lines: list[_Line], k: tuple[Dim, ...]) -> View:
    """Return the view of the shared tile's rows: positions of the source, with the result's distance between lines."""
    index = list(of_m.index)
    for line in lines:
        masked = line.start < 0 or line.start + line.padded > line.size
        index[line.at] = TensorDim(line.size, ((line.dim.name, 1),), line.start, masked)
    outer = of_m.axes[0][: -len(lines)]
    rows = (*outer, *(Dim(line.dim.name, line.padded, line.padded) for line in lines))
    return evolve(of_m, axes=(rows, k, *of_m.axes[2:]), index=tuple(index))


def _tap_rows(lines: list[_Line]) -> tuple[int, ...]:
    steps = [line.growth * prod(inner.padded for inner in lines[n + 1 :]) for n, line in enumerate(lines)]
    places = (range(line.tap.size) for line in lines)
    return tuple(sum(at * step for at, step in zip(chosen, steps)) for chosen in combinations(*places))


class ResidentWindows(Variant):
    word = "resident"
    summary = "blocks of some channels with all taps, whose source is in shared memory once for all taps"
    by_taps = True
    rows_are_free = False

    def refusals(self, problem: Problem, config: Config, facts: TargetFacts) -> Iterator[str]:
        if not config.slots:
            yield "taps=resident: wanted shared memory"
        if config.slices > 1 or config.map.shares:
            yield "taps=resident: wanted one slice"
        if config.types or problem.runtime:
            yield "taps=resident: wanted inputs that are not converted, of sizes that are known"

    def lay_out(self, problem: Problem, config: Config, facts: TargetFacts) -> tuple[MmaTile, Sequence[Product]]:
        """Return the instructions of one tap's tile, and the products, all with equal numbers of taps."""
        matrix_unit(problem, config, facts)  # raises DoesNotFit for the whole tile, before its K is cut by taps
        plain = views.products(problem, 1, config.reorder, config.phases, config.pixels, config.joined_groups)
        products = tuple(resident(each, config.tile[2], facts.planes) for each in plain)
        if len({len(each.tap_rows) for each in products}) > 1:
            raise DoesNotFit("taps=resident: products have different counts of taps")
        channels = config.tile[2] // len(products[0].tap_rows) if products else config.tile[2]
        return matrix_unit(problem, evolve(config, tile=(*config.tile[:2], channels)), facts), products

    def inputs(
        self, problem: Problem, product: Product, packings: Packings, unit: Any, config: Config, facts: TargetFacts
    ) -> Inputs:
        """Return N's input, with a run for each tap in a block, and M's input, with resident windows."""
        assert isinstance(product, Resident)
        if packings[1]:
            raise DoesNotFit(f"packed={product.of_m.memory.name}: its windows are resident")
        (tile_m, tile_n, tile_k), count = config.tile, len(product.tap_rows)
        channels = tile_k // count  # of a block
        of_n = ProductInput.of_n(read_views(product, packings)[0], unit, config, facts)
        source = ProductInput.of_m(product.source, unit, config, facts)
        copy_n, copy_m = config.paths
        path_n = of_n.path_at_offsets((tile_n, tile_k), tile_n, run=channels, reads=config.waves[0], copy=copy_n)
        path_m = source.path_at_offsets((tile_m + product.reach, channels), tile_m, reads=count, copy=copy_m)
        path_n, path_m = with_gaps((path_n, evolve(path_m, tap_rows=product.tap_rows)), facts)
        return path_n, path_m

    def offers(self, form: Form, facts: TargetFacts) -> Iterator[Offer]:
        """Yield an offer for windows with so many taps that rereading costs more than the source's shared memory."""
        product = form.product
        taps = prod(d.size for d in product.of_m.axes[1][:-1])
        if form.launches > 1 or form.merged or form.is_sized or taps < _LEAST_TAPS:
            return
        with suppress(DoesNotFit):
            windows_of = resident(product, product.k, facts.planes)
            yield evolve(Offer.of(form, self), m=windows_of.m, tap_rows=windows_of.tap_rows)

    def choices(self, offer: Offer, atom: MmaAtom, facts: TargetFacts) -> Choices:
        channels = (k for k in tiles_k(atom, facts) if k % atom.k == 0 and offer.inner % k == 0)
        blocks = tuple(k * len(offer.tap_rows) for k in channels)
        through: tuple[Staging, ...] = _STAGINGS
        if atom.in_shared and need_no_registers(offer.loads(atom, facts), atom.elem_bytes, facts):
            through += tuple(evolve(staging, stages=1, copy=("direct",)) for staging in _STAGINGS)
            through += rings(tuning(facts).resident_rings)
        stagings = () if offer.types(atom) else through
        return Choices(TILE_M + _MORE_ROWS, tiles_n(facts), blocks, tuning(facts).grids, (self,), stagings)


VARIANT = ResidentWindows()
