"""Padding contributes nothing, whatever it is multiplied with: what a kernel needs to know to sum without it.

Where a window reaches outside its tensor it finds zeros, and a sum of products with zeros is right as long as the other
factor is finite. Where that has an infinity or a NaN, no product with padding may be in the sum. A coordinate of
windows is a linear function of two kinds of dims, those of taps and those of pixels, of which one is summed. So sums
are made for one tap after the other, and what is outside at a tap is left out: rows of the result, or where pixels are
summed, elements of the other factor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import prod
from typing import Any

from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Digits, Space, stacked
from convgen.ir.layout.memory import Dim, SizedView, TensorDim, View
from convgen.ir.layout.mma import MmaTile
from convgen.ir.layout.tags import LETTERS, Layout
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type, f4_e2m1
from convgen.passes.messages.nibble_pairs import pairs_of
from convgen.plan.contraction import Product

Dims = tuple[Dim, ...]

_ROWS, _K = 0, 1  #: axes of a factor


@frozen
class Padding:
    """Sums of one tap at a time.

    The factors have the product's axes, taps, and where K is shared out, the first block of a share and the one behind
    its last. Taps that are summed are no part of K any more.
    """

    of_n: View
    of_m: View
    #: By factor whose windows reach outside, 0 that of N: coordinates by dims of its rows and of taps. A sum counts
    #: where all are in range.
    inside: dict[int, tuple[TensorDim, ...]]
    taps: Dims
    summed: bool  #: whether K has taps, not the rows
    run: int  #: positions from one tap to the next where they are or were; 0 where other dims of K are around them
    alone: bool = True  #: whether a matrix instruction's rows have one tap
    blocks: int = 0  #: of K, as deep as messages, for one tap, if it has taps
    shared: int = 0  #: blocks of all K, if it is shared out

    @property
    def count(self) -> int:
        """Taps."""
        return prod(d.padded for d in self.taps)

    @property
    def side(self) -> int:
        """The one factor whose windows reach outside, where its rows have taps."""
        (found,) = self.inside
        return found

    def has_taps(self, side: int) -> bool:
        """Whether rows of a factor have taps, which those of an instruction are counted by."""
        return not self.summed and side == self.side

    def decoded(self, side: int, row: Any, tap: Any) -> dict[str, Any]:
        """The dims of a row of a factor, and those of a tap."""
        rows = (self.of_n, self.of_m)[side].axes[_ROWS]
        return {**_decoded(rows, row), **_decoded(self.taps, tap)}


def piece(mma: MmaTile, facts: TargetFacts) -> MmaTile:
    """The part of a tile of which sums are made again at a time: rows and columns of one matrix instruction, as deep as
    a message brings them, by one subgroup.

    Where rows are dealt to all instructions of a workgroup, it is the first of these.
    """
    one, all_of_them = mma.atom.of_one(facts.atoms), mma.teams_m * mma.tiles_m * mma.parts
    return MmaTile(one, 1, 1, mma.pack, mma.pack, rows=mma.rows, parts=all_of_them if mma.rows else 1)


def windows(view: View) -> dict[int, TensorDim]:
    """Coordinates, by tensor dimension, that depend on rows and on K."""
    rows, summed = ({d.name for d in dims} for dims in view.axes[:2])
    used = ((n, t, names_in((t,))) for n, t in enumerate(view.index))
    return {n: t for n, t, names in used if names & rows and names & summed}


def halo(view: View) -> tuple[TensorDim, ...]:
    """Coordinates of windows that reach outside the tensor."""
    return tuple(t for t in windows(view).values() if t.masked)


def names_in(index: Iterable[TensorDim]) -> set[str]:
    return {name for t in index for name, _ in t.terms}


def kept_out(product: Product) -> tuple[TensorDim, ...]:
    """Coordinates of windows that reach outside, where products with padding may be no zeros."""
    factors = product.of_n, product.of_m
    spoiled = (view for view, other in zip(factors, factors[::-1]) if _has_more(other.memory.elem))
    return tuple(t for view in spoiled for t in halo(view))


def has_whole_pairs(product: Product) -> bool:
    """Whether two elements of 4 bits that share a byte are neighbours along K, outside windows, wherever sums without
    padding are made again: of these each lane loads neighbours along K only.
    """
    around = names_in(kept_out(product))
    for view in (product.of_n, product.of_m) if around else ():
        if view.memory.elem.bits == 4:
            found = pairs_of(view)
            if found is None or found[1] != _K or view.axes[_K][-1].name in around:
                return False
    return True


def _has_more(elem: Type) -> bool:
    """Whether a type has infinities or NaN."""
    return elem.is_float and elem is not f4_e2m1


def padding(product: Product, unit: MmaTile, *, shared: bool) -> Padding | None:
    """Of a kernel that multiplies by such tiles, K `shared` out or not; None where products with padding are zeros."""
    factors = product.of_n, product.of_m
    found = [n for n, view in enumerate(factors) if halo(view)]
    if not kept_out(product):
        return None
    names = {name for side in found for name in names_in(halo(factors[side]))}
    of_k = _span(factors[0].axes[_K], names)
    if len(found) > 1:
        return _summed(factors, found, of_k, unit, shared=shared)
    (side,) = found
    of_rows = _span(factors[side].axes[_ROWS], names)
    if _count(of_k) <= _count(of_rows):
        return _summed(factors, found, of_k, unit, shared=shared)
    return _of_rows(factors, side, of_rows, (unit.atom.n, unit.atom.m)[side])


def _summed(factors: Sequence[View], sides: Sequence[int], taps: Dims, unit: MmaTile, *, shared: bool) -> Padding:
    """Taps are taken out of K."""
    depth, tile_k = (steps * unit.atom.k for steps in (unit.pack, unit.steps * unit.teams_k))
    k = factors[0].axes[_K]
    inner = _behind(k, taps)
    *outer, last = tuple(d for d in k if d not in taps) or (Dim("one", 1, 1),)
    rest = (*outer, evolve(last, padded=-(-last.size // depth) * depth))
    apart = tuple(evolve(d, padded=d.size) for d in taps)
    masks, ends = _share(k, tile_k) if shared else ((), ())
    of_n, of_m = (
        _seen(view, (view.axes[0], rest, *view.axes[2:], apart, *((d,) for d in ends)), masks) for view in factors
    )
    run = inner if _count(k) == _count(taps) * inner else 0
    whole, blocks = -(-_count(k) // tile_k), _count(rest) // depth
    return Padding(
        of_n, of_m, {n: halo(factors[n]) for n in sides}, apart, True, run,
        blocks=blocks, shared=whole if shared else 0,
    )  # fmt: skip


def _share(k: Dims, tile_k: int) -> tuple[tuple[TensorDim, ...], Dims]:
    """Coordinates that are in range where K is in a share, by its dims and the blocks between which the share is."""
    blocks = -(-_count(k) // tile_k)
    position = tuple((d.name, _behind(k, (d,))) for d in k)
    ends = tuple(Dim(name, blocks + 1, blocks + 1) for name in ("share_begin", "share_end"))
    size = blocks * tile_k
    starts = 0, size  # it is from the first block on, and before the end
    return tuple(TensorDim(size, (*position, (d.name, -tile_k)), at, True) for d, at in zip(ends, starts)), ends


def _of_rows(factors: Sequence[View], side: int, own: Dims, rows: int) -> Padding:
    """Pixels are summed: where they are outside at a tap, the other factor has zeros."""
    view = factors[side]
    taps = tuple(evolve(d, name=f"{d.name}_tap") for d in own)
    names = {d.name: tap.name for d, tap in zip(own, taps)}
    run = _behind(view.axes[_ROWS], own)
    alone = run % rows == 0
    same = () if alone else tuple(TensorDim(1, ((d, 1), (tap, -1)), 0, True) for d, tap in names.items())
    outside = tuple(evolve(t, terms=tuple((names.get(name, name), coef) for name, coef in t.terms)) for t in halo(view))
    masks = ((), outside)
    of_n, of_m = (_seen(each, (*each.axes, taps), masks[n != side]) for n, each in enumerate(factors))
    return Padding(of_n, of_m, {side: same}, taps, False, run, alone)


def _span(dims: Dims, names: Collection[str]) -> Dims:
    """The dims from the first to the last of these names."""
    at = [n for n, d in enumerate(dims) if d.name in names]
    return dims[at[0] : at[-1] + 1]


def _decoded(dims: Dims, position: Any) -> dict[str, Any]:
    """The dims of a position along all of them; the first of more than one position is not reduced."""
    kept = [d for d in dims if d.padded > 1]
    digits = Digits(tuple(d.name for d in kept), stacked(Space.AXIS, [(d.name, d.padded) for d in reversed(kept)]))
    return {d.name: 0 for d in dims} | digits.coordinates({Space.AXIS: position}, overrun=True)


def _count(dims: Iterable[Dim]) -> int:
    return prod(d.padded for d in dims)


def _behind(dims: Dims, some: Dims) -> int:
    """Positions of the dims behind some of them."""
    return _count(dims[dims.index(some[-1]) + 1 :])


def _seen(view: View, axes: tuple[Dims, ...], masks: tuple[TensorDim, ...]) -> View:
    """A view with other axes, zero where a further coordinate is out of range; memory knows of none of these."""
    held, rank = view.layout, len(view.index)
    nowhere = (Digit(LETTERS[rank + n], t.size, Space.MEMORY, 0) for n, t in enumerate(masks))
    layout = Layout((*held.dims, *(t.size for t in masks)), (*nowhere, *held.blocks))
    changes: dict[str, Any] = {"layout": layout, "axes": axes, "index": (*view.index, *masks)}
    if isinstance(view, SizedView):
        changes["apart"] = (*view.apart, *(0 for _ in masks))
    return evolve(view, **changes)
