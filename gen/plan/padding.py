"""Exact padding: sums to which padding contributes nothing, even where the other factor is infinite or NaN.

Where a window reaches outside its tensor, loads return zeros. A sum that includes products with these zeros is right as
long as the other factor is finite; with an infinity or NaN the product is NaN. A coordinate of windows is a linear
function of tap dims and pixel dims, one kind of which is summed over. The kernel therefore recomputes such sums one tap
at a time and leaves out what is outside at that tap: rows of the result, or, where pixels are summed, elements of the
other factor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import prod
from typing import Any

from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digits, Space, stacked
from convgen.ir.layout.memory import Dim, TensorDim, View
from convgen.ir.layout.mma import MmaTile
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type, has_nan
from convgen.passes.messages.packed_views import bytes_of
from convgen.plan.contraction import Product
from convgen.plan.views import zero_outside

Dims = tuple[Dim, ...]
Sides = tuple[int, ...]  #: factors; 0: N's, 1: M's

_ROWS, _K = 0, 1  #: axes of a factor's view


@frozen
class Padding:
    """Views for sums of one tap at a time.

    The factors have the product's axes, then one of taps and, where several workgroups share K, two more: the first
    block of a share and the block after its last. Taps are dims of K, from which they are then removed, or dims of the
    rows of one factor, where pixels are summed.
    """

    of_n: View
    of_m: View
    #: Per factor whose windows reach outside (0: N's, 1: M's): coordinates by dims of its rows and of taps. A product
    #: counts where all of them are in range.
    inside: dict[int, tuple[TensorDim, ...]]
    tested: Sides  #: factors that are multiplied by zeros; one sum of each of their rows is tested
    taps: Dims
    taps_in_k: bool  #: whether taps are dims of K, else of rows
    #: positions of K or rows from one tap to the next; 0 where other dims of K surround the taps, or taps are padded
    tap_step: int
    one_tap: bool = True  #: taps of rows: whether all rows of one matrix instruction have the same tap
    tap_blocks: int = 0  #: taps of K: blocks of K for one tap, each as deep as a message
    k_blocks: int = 0  #: taps of K: blocks of all of K, if several workgroups share it; else 0

    @property
    def count(self) -> int:
        """Return the number of taps."""
        return prod(d.padded for d in self.taps)

    @property
    def side(self) -> int:
        """Return the one factor whose windows reach outside, where its rows have taps."""
        (side,) = self.inside
        return side

    def has_taps(self, side: int) -> bool:
        """Whether rows of a factor have taps, so that an instruction's rows are numbered by tap."""
        return not self.taps_in_k and side == self.side

    def decoded(self, side: int, row: Any, tap: Any) -> dict[str, Any]:
        """Return the positions along the dims of a factor's row, and along those of a tap."""
        rows = (self.of_n, self.of_m)[side].axes[_ROWS]
        return {**_decoded(rows, row), **_decoded(self.taps, tap)}


def recomputed_tile(mma: MmaTile, facts: TargetFacts) -> MmaTile:
    """Return the part of a tile whose sums are recomputed at a time: a subgroup's single instruction.

    The part is as deep along K as a message. Where rows are distributed over all instructions of a workgroup, it
    belongs to the first of these.
    """
    one, all_of_them = mma.atom.of_one_subgroup(facts.atoms), mma.teams_m * mma.tiles_m * mma.parts
    return MmaTile(one, 1, 1, mma.pack, mma.pack, rows=mma.rows, parts=all_of_them if mma.rows else 1)


def window_coordinates(view: View) -> dict[int, TensorDim]:
    """Return the coordinates that depend on rows and on K, by tensor dimension."""
    rows, summed = ({d.name for d in dims} for dims in view.axes[:2])
    used = ((n, t, names_in((t,))) for n, t in enumerate(view.index))
    return {n: t for n, t, names in used if names & rows and names & summed}


def halo(view: View) -> tuple[TensorDim, ...]:
    """Return the coordinates along which windows reach outside the tensor."""
    return tuple(t for t in window_coordinates(view).values() if t.masked)


def _with_halos(view: View) -> View:
    """Return the view with all its windows masked, as if each reached outside the tensor."""
    moving = window_coordinates(view).values()
    return evolve(view, index=tuple(evolve(t, masked=True) if t in moving else t for t in view.index))


def names_in(index: Iterable[TensorDim]) -> set[str]:
    return {name for t in index for name, _ in t.terms}


def unsafe_halo(factors: Sequence[View]) -> tuple[TensorDim, ...]:
    """Return the halo coordinates where padding may spoil sums: the other factor's type has infinities or NaN."""
    spoiled = (view for view, partner in zip(factors, factors[::-1]) if _has_non_finite(partner.memory.elem))
    return tuple(t for view in spoiled for t in halo(view))


def has_whole_pairs(product: Product) -> bool:
    """Whether two 4-bit elements in one byte are neighbours along K, outside windows, wherever sums are recomputed.

    A lane loads such elements only as neighbours along K.
    """
    window_dims = names_in(unsafe_halo((product.of_n, product.of_m)))
    for view in (product.of_n, product.of_m) if window_dims else ():
        if view.memory.elem.bits == 4:
            pairs = bytes_of(view)
            if pairs is None or pairs[1] != _K or view.axes[_K][-1].name in window_dims:
                return False
    return True


def _has_non_finite(elem: Type) -> bool:
    """Whether a type has infinities or NaN."""
    return elem.is_float and has_nan(elem)


def padding(product: Product, unit: MmaTile, images: Collection[int] = (), *, shared: bool) -> Padding | None:
    """Return the views for exact padding of a kernel with the tile `unit`; None where padding cannot spoil sums.

    `images` are factors that are packed as images (0: N's, 1: M's). At padded positions of K an image's windows read
    elements beyond them, which the second factor multiplies by zeros.
    """
    factors: Sequence[View] = (product.of_n, product.of_m)
    images = [n for n in images if any(d.padded > d.size for d in factors[n].axes[_K])]
    factors = tuple(_with_halos(view) if n in images else view for n, view in enumerate(factors))
    spoiling = [n for n in images if _has_non_finite(factors[n].memory.elem)]
    if not (unsafe_halo(factors) or spoiling):
        return None
    sides = [n for n, view in enumerate(factors) if halo(view)]
    tested = tuple(dict.fromkeys((*(1 - side for side in sides), *spoiling)))
    names = {name for side in sides for name in names_in(halo(factors[side]))}
    # Taps are enumerated along the side that has fewer of them; the other side has the pixels.
    of_k = _between(factors[0].axes[_K], names)
    if len(sides) > 1:
        return _with_taps_in_k(factors, sides, tested, of_k, unit, shared=shared)
    (side,) = sides
    of_rows = _between(factors[side].axes[_ROWS], names)
    if _count(of_k) <= _count(of_rows):
        return _with_taps_in_k(factors, sides, tested, of_k, unit, shared=shared)
    return _with_taps_in_rows(factors, side, tested, of_rows, (unit.atom.n, unit.atom.m)[side])


def _with_taps_in_k(
    factors: Sequence[View], sides: Sequence[int], tested: Sides, taps: Dims, unit: MmaTile, *, shared: bool
) -> Padding:
    """Return the views where taps belong to K: they become an axis of their own."""
    depth, tile_k = (steps * unit.atom.k for steps in (unit.pack, unit.steps * unit.teams_k))
    k_dims = factors[0].axes[_K]
    inner = _positions_after(k_dims, taps)
    *outer, last = tuple(d for d in k_dims if d not in taps) or (Dim("one", 1, 1),)
    one_tap_k = (*outer, evolve(last, padded=-(-last.size // depth) * depth))
    tap_axis = tuple(evolve(d, padded=d.size) for d in taps)
    masks, share_dims = _share_masks(k_dims, tile_k) if shared else ((), ())
    further = (tap_axis, *((d,) for d in share_dims))
    of_n, of_m = (zero_outside(evolve(v, axes=(v.axes[0], one_tap_k, *v.axes[2:], *further)), masks) for v in factors)
    # Positions of K count taps only where no dim within the taps is padded, as runs are to whole chunks.
    counts_taps = all(d.padded == d.size for d in taps[1:])
    tap_step = inner if counts_taps and _count(k_dims) == _count(taps) * inner else 0
    k_blocks, tap_blocks = -(-_count(k_dims) // tile_k), _count(one_tap_k) // depth
    return Padding(
        of_n, of_m, {n: halo(factors[n]) for n in sides}, tested, tap_axis, True, tap_step,
        tap_blocks=tap_blocks, k_blocks=k_blocks if shared else 0,
    )  # fmt: skip


def _share_masks(k: Dims, tile_k: int) -> tuple[tuple[TensorDim, ...], Dims]:
    """Return coordinates that are in range inside a share of K, and the dims of the share's first and end block.

    For a position p along K these are p - first * tile_k, in range from the share's first block on, and
    p - end * tile_k + size, in range before its end.
    """
    blocks = -(-_count(k) // tile_k)
    position = tuple((d.name, _positions_after(k, (d,))) for d in k)
    share_dims = tuple(Dim(name, blocks + 1, blocks + 1) for name in ("share_begin", "share_end"))
    size = blocks * tile_k
    masks = (TensorDim(size, (*position, (d.name, -tile_k)), const, True) for d, const in zip(share_dims, (0, size)))
    return tuple(masks), share_dims


def _with_taps_in_rows(factors: Sequence[View], side: int, tested: Sides, dims: Dims, rows: int) -> Padding:
    """Return the views where pixels are summed: the other factor reads zeros at pixels that are outside at a tap.

    Where an instruction's rows have several taps, the masks `same_tap` leave only the rows of the current one.
    """
    view = factors[side]
    taps = tuple(evolve(d, name=f"{d.name}_tap") for d in dims)
    tap_names = {d.name: tap.name for d, tap in zip(dims, taps)}
    tap_step = _positions_after(view.axes[_ROWS], dims)
    one_tap = tap_step % rows == 0
    same_tap = () if one_tap else tuple(TensorDim(1, ((d, 1), (tap, -1)), 0, True) for d, tap in tap_names.items())
    by_tap = tuple(evolve(t, terms=tuple((tap_names.get(name, name), c) for name, c in t.terms)) for t in halo(view))
    masks = ((), by_tap)
    of_n, of_m = (zero_outside(evolve(v, axes=(*v.axes, taps)), masks[n != side]) for n, v in enumerate(factors))
    return Padding(of_n, of_m, {side: same_tap}, tested, taps, False, tap_step, one_tap)


def _between(dims: Dims, names: Collection[str]) -> Dims:
    """Return the dims from the first to the last of these names."""
    at = [n for n, d in enumerate(dims) if d.name in names]
    return dims[at[0] : at[-1] + 1]


def _decoded(dims: Dims, position: Any) -> dict[str, Any]:
    """Return the positions along each dim of a position along all; the outermost long dim takes the overrun."""
    long_dims = [d for d in dims if d.padded > 1]
    sizes = [(d.name, d.padded) for d in reversed(long_dims)]
    digits = Digits(tuple(d.name for d in long_dims), stacked(Space.AXIS, sizes))
    return {d.name: 0 for d in dims} | digits.coordinates({Space.AXIS: position}, overrun=True)


def _count(dims: Iterable[Dim]) -> int:
    return prod(d.padded for d in dims)


def _positions_after(dims: Dims, some: Dims) -> int:
    """Return the number of positions of the dims after the last of `some`."""
    return _count(dims[dims.index(some[-1]) + 1 :])
