"""Exact padding: sums that padding has turned into NaN are recomputed without it.

The loop over K also sums products with padding: zeros of windows outside the tensor, or, beside an image whose lines
are longer than a window, zeros of weights. They are zero unless the other factor is infinite or NaN somewhere. Then all
sums of that factor's row are not finite, so one sum for each row detects it. A subgroup that finds a sum that
is not finite recomputes its sums, and so do the subgroups that branch with it: each its own, without shared memory, for
one matrix instruction's part of the tile after the other, one tap at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from math import gcd
from operator import and_

from convgen.epilogue.epilogue import along
from convgen.ir.build import Index, KernelBuilder
from convgen.ir.expr import Expr, Lane, Pack, Shuffle, Slice, const, eq, lift, maximum, minimum, select, zeros
from convgen.ir.facts import TargetFacts
from convgen.ir.floats import fma
from convgen.ir.layout.digits import Digits, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import View
from convgen.ir.layout.mma import MmaTile
from convgen.ir.record import evolve, frozen
from convgen.ir.types import u32, vector
from convgen.ir.votes import AllLanes
from convgen.kernels.agree import all_agree
from convgen.plan.inputs import InputPath
from convgen.plan.padding import Padding, recomputed_tile
from convgen.plan.plan import Part, Plan

TileSums = Sequence[tuple[Expr, Fragment]]  #: sums of parts of a tile, and their distribution over lanes
At = Callable[[Expr, Expr], Sequence[Index]]  #: coordinates of a row's block of K: row, position along K, product
Begin = Callable[[Fragment, Sequence[Index]], Expr]  #: start value of the sums at a place, in a layout
#: a fragment of an input, in the type in which it is multiplied
Load = Callable[[InputPath, Sequence[Index], Fragment], Expr]

_DIMS = "nm"
_OWN = "own"  #: dim that numbers positions of one subgroup
_LINKS = 96  #: products in one chain of additions: passes that walk an expression recurse several frames for each
_TOGETHER = 4  #: elements; sums that are tested together, for vector units that take several at a time


def sums_are_finite(k: KernelBuilder, facts: TargetFacts, padding: Padding, sums: TileSums) -> Expr:
    """Whether a tile's sums are finite in all lanes.

    One sum of each row of a factor that is multiplied by zeros is tested: if an element of that row is not finite, none
    of its sums is. Subgroups that branch together get one answer.
    """
    tested = []
    for total, layout in sums:
        for side in padding.tested:
            one_a_row, order = along(layout, _DIMS[side])
            tested.append(Shuffle(total, tuple(order.index(n) for n in range(one_a_row.registers))))
    sentinel = k.let("seen", _zero_if_finite(tested))
    return all_agree(k, facts, eq(sentinel, sentinel))


def vectors_are_finite(k: KernelBuilder, facts: TargetFacts, vectors: Sequence[Expr], *, alone: bool = False) -> Expr:
    """Whether all elements of some vectors are finite, in all lanes, also of subgroups that branch together.

    With `alone` each subgroup decides by itself; it is for kernels whose subgroups branch apart in any case.
    """
    sentinel = _zero_if_finite(vectors)
    holds = eq(sentinel, sentinel)
    return AllLanes(holds) if alone else all_agree(k, facts, holds)


def _zero_if_finite(vectors: Sequence[Expr]) -> Expr:
    """Return, in each lane, zero if all elements of some vectors are finite, else NaN."""
    elem, count = vectors[0].type.elem, gcd(_TOGETHER, *(v.type.lanes for v in vectors))
    zero = zeros(vector(elem, count))
    parts: list[Expr] = [Slice(v, n, count) for v in vectors for n in range(0, v.type.lanes, count)]
    chain, *others = _chained(parts, zero)
    while others:
        chain, *others = _chained([chain, *others], zero)
    total: Expr = const(0, elem)
    for n in range(count):
        total = fma(Pack(elem, (Slice(chain, n, 1),)), const(0, elem), total)
    return total


def _chained(parts: Sequence[Expr], zero: Expr) -> list[Expr]:
    """Return values that are zero if all parts are finite, one for each chain of at most `_LINKS` parts."""
    runs = (parts[at : at + _LINKS] for at in range(0, len(parts), _LINKS))
    return [reduce(lambda total, part: fma(part, zero, total), run, zero) for run in runs]


@frozen
class Recomputation:
    """Recomputation of one subgroup's part of a tile, one matrix instruction's rows and columns (a piece) at a time."""

    k: KernelBuilder
    plan: Plan
    part: Part
    padding: Padding
    at: At
    load: Load
    begin: Begin
    blocks: tuple[Expr, Expr]  #: blocks of K: the first of this slice or share, and the one after its last

    @property
    def unit(self) -> MmaTile:
        """Return the piece of a tile whose sums are recomputed at a time."""
        return recomputed_tile(self.plan.mma, self.plan.facts)

    @property
    def _parts(self) -> int:
        """Return the parts of a block of K, each as deep as the unit."""
        return self.plan.mma.steps * self.plan.mma.teams_k // self.unit.steps

    @contextmanager
    def pieces(self) -> Iterator[tuple[Index, Index]]:
        """Open loops over the pieces of the tile; yield where a piece begins within the workgroup's tile."""
        k, (of_n, of_m), atom = self.k, map(self._positions, _DIMS), self.unit.atom
        counts = [positions.count(_OWN) // side for positions, side in zip((of_n, of_m), (atom.n, atom.m))]
        steps = atom.n, self.unit.rows or atom.m
        with k.loop("piece_n", 0, counts[0]) as across, k.loop("piece_m", 0, counts[1]) as down:
            at_n, at_m = (
                positions.coordinates({_OWN: loop.var * side, Space.SUBGROUP: k.subgroup})[dim]
                for positions, loop, side, dim in zip((of_n, of_m), (across, down), steps, _DIMS)
            )
            yield k.let("at_n", at_n), k.let("at_m", at_m)

    def _positions(self, dim: str) -> Digits:
        """Return a dim of the workgroup's tile as (subgroup, number of a position among the subgroup's own)."""
        own = (d if d.space == Space.SUBGROUP else evolve(d, space=_OWN) for d in self.plan.mma.reduced_d.of(dim))
        digits = Digits((dim,), tuple(own))
        return digits.renumbered(_OWN, lambda step, _: step).merged(_OWN)

    def sums(self, start: tuple[Expr, Expr]) -> Expr:
        """Return the sums of the piece that begins at `start`."""
        k, padding = self.k, self.padding
        share = self._share()
        first_tap, count = self._taps(start, share)
        parts = self._parts
        blocks = (0, padding.tap_blocks) if padding.taps_in_k else tuple(end * parts for end in self.blocks)
        with k.loop("taps", 0, count, total=self.begin(self.unit.d, start)) as tap_loop:
            tap = k.let("tap", (first_tap + tap_loop.var) % padding.count)
            with k.loop("blocks", *blocks, total=tap_loop["total"]) as block_loop:
                a = self._factor(self.part.of_n, padding.of_n, self.unit.a, (start[0], block_loop.var, tap, *share))
                b = self._factor(self.part.of_m, padding.of_m, self.unit.b, (start[1], block_loop.var, tap, *share))
                next_total: Expr = k.mma("added", self.unit, block_loop["total"], a, b)
                for side in padding.inside:
                    next_total = self._only_inside(side, start[side], tap, next_total, block_loop["total"])
                block_loop.yields(next_total)
            tap_loop.yields(block_loop.result("total"))
        return tap_loop.result("total")

    def _factor(self, path: InputPath, view: View, layout: Fragment, place: Sequence[Expr]) -> Expr:
        """Return a fragment of an input: a part of a block of K at one tap, from a row on, within a share of K."""
        (row, part, *others), depth = place, self.unit.steps * self.unit.atom.k
        parts = self._parts
        _, at, *batch = self.at(row, part // parts)
        at = part * depth if self.padding.taps_in_k else at + part % parts * depth
        return self.load(evolve(path, view=view, tile=None, copy=None), (row, at, *batch, *others), layout)

    def _share(self) -> tuple[Expr, ...]:
        """Return the first block of K of this share and the one after its last, if K is shared."""
        padding, (begin, end) = self.padding, self.blocks
        if not padding.k_blocks:
            return ()
        first, last = (lift(self.at(begin, block)[1], begin) // self.plan.config.tile[2] for block in (begin, end - 1))
        begin, end = minimum(first, last), maximum(first, last) + 1  # the share may be walked backwards
        return tuple(
            self.k.let(f"share_{n}", minimum(at, padding.k_blocks)) for n, at in (("begin", begin), ("end", end))
        )

    def _taps(self, start: tuple[Expr, Expr], share: Sequence[Expr]) -> tuple[Index, Index]:
        """Return the first tap and the number of taps of the share of K, or of the piece's rows from `start` on."""
        padding, rows, tile_k = self.padding, (self.unit.atom.n, self.unit.atom.m), self.plan.config.tile[2]
        if not padding.tap_step or (padding.taps_in_k and not share):
            return 0, padding.count
        if share:
            positions = [at * tile_k for at in share]
        else:
            positions = [start[padding.side], start[padding.side] + rows[padding.side]]
        first_tap = self.k.let("first_tap", positions[0] // padding.tap_step)
        if not padding.taps_in_k and padding.one_tap:
            return first_tap, 1
        if not padding.taps_in_k and self.plan.facts.lockstep:
            # Subgroups that branch together loop over equally many taps; a tap changes the sums of its own rows only.
            most_taps = (rows[padding.side] + padding.tap_step - 2) // padding.tap_step + 1
            return first_tap, min(most_taps, padding.count)
        # Computed without the variable of the first tap, so that a constant distance is recognised: it is uniform.
        count = (positions[1] - 1) // padding.tap_step - positions[0] // padding.tap_step + 1
        return first_tap, minimum(count, padding.count - first_tap if padding.taps_in_k else padding.count)

    def _only_inside(self, side: int, start: Expr, tap: Expr, with_product: Expr, without_product: Expr) -> Expr:
        """Return the sums with the product in rows of a factor that are inside the tensor at a tap, else without it."""
        layout, dim = self.unit.d, _DIMS[side]
        if not self.padding.inside[side]:
            return with_product
        one_a_row, order = along(layout, dim)
        lane = one_a_row.partial(Space.LANE, Lane())[dim]
        rows = [start + lane + one_a_row.partial(Space.REGISTER, n)[dim] for n in range(one_a_row.registers)]
        inside = [self._inside(side, row, tap) for row in rows]
        if len(inside) == 1:
            return select(inside[0], with_product, without_product)
        parts = (
            select(inside[n], Slice(with_product, r, 1), Slice(without_product, r, 1)) for r, n in enumerate(order)
        )
        return Pack(with_product.type, tuple(parts))

    def _inside(self, side: int, row: Expr, tap: Expr) -> Expr:
        """Whether a row of a factor is inside the tensor at a tap."""
        dims, masked = self.padding.decoded(side, row, tap), self.padding.inside[side]
        conditions: list[Expr] = [lift(t.at(dims), row).to(u32) < const(t.size, u32) for t in masked]
        return reduce(and_, conditions)
