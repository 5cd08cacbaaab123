"""Padding contributes nothing, whatever it is multiplied with: what a kernel needs to know to sum without it.

Where a window reaches outside its tensor it finds zeros, and a sum of products with zeros is right as long as the other
factor is finite. Where that has an infinity or a NaN, no product with padding may be in the sum. A coordinate of
windows is a linear function of two kinds of dims, those of taps and those of pixels, of which one is summed. Taps are
taken one at a time, and the positions that meet at other ones are left out: along K by a mask of both factors, along
rows by a choice between two sums.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod
from typing import Any

import attrs

from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.memory import Dim, SizedView, TensorDim, View
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.layout.tags import LETTERS, Layout
from convgen.ir.node import replace
from convgen.plan.contraction import Product

_ROWS, _K = 0, 1  #: axes of a factor


@attrs.frozen
class Padding:
    """Sums of one tap at a time."""

    of_n: View  #: the product's factors with one more axis, taps: zero where a position along K does not meet one
    of_m: View
    side: int  #: whose windows reach outside: 0 that of N, 1 that of M
    inside: tuple[TensorDim, ...]  #: coordinates by dims of its rows and taps: a sum counts where they are in range
    taps: tuple[Dim, ...]  #: of the further axis
    axis: int  #: of the factor on which they are: 0 its rows, 1 K
    run: int  #: positions there from one tap to the next
    alone: bool  #: whether all positions that are multiplied together have one tap

    @property
    def count(self) -> int:
        return prod(d.padded for d in self.taps)


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


def padding(product: Product, atom: MmaAtom, tile_k: int) -> Padding | None:
    """What a kernel with blocks of K of this size needs; None where all products with padding are zeros."""
    factors = product.of_n, product.of_m
    found = [n for n, view in enumerate(factors) if halo(view)]
    if not found or not factors[1 - found[0]].memory.elem.is_float:
        return None
    (side,) = found
    view, rows = factors[side], (atom.n, atom.m)[side]
    moving = names_in(halo(view))
    spans = [_span(dims, moving) for dims in view.axes[:2]]
    axis = min((_ROWS, _K), key=lambda n: prod(d.size for d in spans[n]))
    own = spans[axis]
    taps = tuple(attrs.evolve(d, name=f"{d.name}_tap") for d in own)
    run = prod(d.padded for d in view.axes[axis][view.axes[axis].index(own[-1]) + 1 :])
    alone = run % (rows, tile_k)[axis] == 0
    met = tuple(_renamed(t, {d.name: tap.name for d, tap in zip(own, taps)}) for t in halo(view))
    same = () if alone else tuple(TensorDim(1, ((d.name, 1), (tap.name, -1)), 0, True) for d, tap in zip(own, taps))
    on_k, on_rows = (same, met) if axis == _K else (met, same)
    of_n, of_m = (_at_taps(each, taps, on_k) for each in factors)
    return Padding(of_n, of_m, side, on_rows, taps, axis, run, alone)


def _span(dims: tuple[Dim, ...], names: Collection[str]) -> tuple[Dim, ...]:
    """The dims from the first to the last of these names."""
    at = [n for n, d in enumerate(dims) if d.name in names]
    return dims[at[0] : at[-1] + 1]


def _renamed(t: TensorDim, names: dict[str, str]) -> TensorDim:
    return attrs.evolve(t, terms=tuple((names.get(name, name), coef) for name, coef in t.terms))


def _at_taps(view: View, taps: tuple[Dim, ...], masks: tuple[TensorDim, ...]) -> View:
    """A view with an axis of taps, zero where one of further coordinates is out of range; memory knows of neither."""
    held, rank = view.layout, len(view.index)
    nowhere = (Digit(LETTERS[rank + n], t.size, Space.MEMORY, 0) for n, t in enumerate(masks))
    layout = Layout((*held.dims, *(t.size for t in masks)), (*nowhere, *held.blocks))
    changes: dict[str, Any] = {"layout": layout, "axes": (*view.axes, taps), "index": (*view.index, *masks)}
    if isinstance(view, SizedView):
        changes["apart"] = (*view.apart, *(0 for _ in masks))
    return replace(view, **changes)
