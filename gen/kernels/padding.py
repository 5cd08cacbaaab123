"""Sums in which padding has no part, made again where a factor is not finite.

What the loop over K sums holds products with padding, too: zeros, unless the other factor has an infinity or a NaN
somewhere. Then all sums of its row are not finite, so that one for each row tells. A subgroup that finds such ones
makes its sums again: alone, without shared memory, one matrix instruction's part of its tile after the other, and one
tap at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from math import gcd
from operator import and_

import attrs

from convgen.ir.build import Index, KernelBuilder
from convgen.ir.expr import Expr, Lane, Pack, Shuffle, Slice, const, eq, lift, minimum, select, zeros
from convgen.ir.floats import fma
from convgen.ir.layout.digits import Space, plus
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mma import MmaTile
from convgen.ir.types import u32, vector
from convgen.ir.votes import AllLanes
from convgen.kernels.epilogue import along
from convgen.plan.padding import Padding
from convgen.plan.plan import Operand, Part, Plan

Whole = Sequence[tuple[Expr, Fragment]]  #: sums of parts of a tile, and how they are distributed
Load = Callable[[Operand, Sequence[Index], Fragment], Expr]  #: a fragment of an operand, as it is multiplied

_DIMS = "nm"
_TOGETHER = 4  #: elements; of sums that are looked at together, where vector units take some at a time


def finite(padding: Padding, sums: Whole) -> Expr:
    """Whether one sum for each row of the factor without windows is finite, in all lanes."""
    seen = []
    for total, layout in sums:
        few, order = along(layout, _DIMS[1 - padding.side])
        seen.append(Shuffle(total, tuple(order.index(n) for n in range(few.registers))))
    elem, count = seen[0].type.elem, gcd(_TOGETHER, *(each.type.lanes for each in seen))
    none = zeros(vector(elem, count))
    found: Expr = none
    for each in seen:
        for n in range(0, each.type.lanes, count):
            found = fma(Slice(each, n, count), none, found)
    any_of_them: Expr = const(0, elem)
    for n in range(count):
        any_of_them = fma(Pack(elem, (Slice(found, n, 1),)), const(0, elem), any_of_them)
    return AllLanes(eq(any_of_them, any_of_them))


@attrs.frozen
class Anew:
    """The sums of one subgroup's part of a tile, of one matrix instruction's rows and columns at a time."""

    k: KernelBuilder
    plan: Plan
    part: Part
    padding: Padding
    load: Load

    @property
    def unit(self) -> MmaTile:
        """A block of K of one matrix instruction's rows and columns, by one subgroup."""
        mma = self.plan.mma
        return MmaTile(mma.atom.of_one(self.plan.facts.atoms), 1, 1, mma.steps, mma.pack)

    @contextmanager
    def pieces(self) -> Iterator[tuple[Index, Index]]:
        """The suite runs for each piece of the tile; where it begins within the workgroup's."""
        k, mma = self.k, self.plan.mma
        own = mma.d.partial(Space.SUBGROUP, k.subgroup)
        with k.loop("piece_n", 0, mma.tiles_n) as across, k.loop("piece_m", 0, mma.tiles_m * mma.parts) as down:
            m = down.var % mma.tiles_m * mma.atom.m + down.var // mma.tiles_m * (mma.d.extent("m") // mma.parts)
            yield k.let("at_n", plus(across.var * mma.atom.n, own["n"])), k.let("at_m", plus(m, own["m"]))

    def sums(
        self, at: tuple[Expr, Expr], blocks: tuple[Expr, Expr], position: Callable[[Expr, Expr], Sequence[Index]]
    ) -> Expr:
        """The sums over blocks of K of the piece that begins there; `position` says where a block of K of a row is."""
        k, unit, padding = self.k, self.unit, self.padding
        with k.loop("again", *blocks, total=zeros(unit.acc_type)) as loop:
            _, start, *_ = position(at[0], loop.var)
            first, turns = self._taps(start if padding.axis else at[padding.side])
            with k.loop("taps", 0, turns, total=loop["total"]) as taps:
                tap = k.let("tap", (first + taps.var) % padding.count)
                factors = [
                    self.load(attrs.evolve(o, view=view, tile=None, copy=None), (*position(row, loop.var), tap), layout)
                    for o, view, row, layout in zip(
                        (self.part.of_n, self.part.of_m), (padding.of_n, padding.of_m), at, (unit.a, unit.b)
                    )
                ]
                added = k.mma("added", unit, taps["total"], *factors)
                taps.yields(self._chosen(at[padding.side], tap, added, taps["total"]))
            loop.yields(taps.result("total"))
        return loop.result("total")

    def _taps(self, start: Index) -> tuple[Index, Index]:
        """The first tap that positions from `start` on meet, and how many."""
        padding, unit = self.padding, self.unit
        length = self.plan.config.tile[2] if padding.axis else (unit.atom.n, unit.atom.m)[padding.side]
        first = self.k.let("first_tap", start // padding.run)
        if padding.alone:
            return first, 1
        return first, minimum((start + (length - 1)) // padding.run - first + 1, padding.count)

    def _chosen(self, start: Expr, tap: Expr, added: Expr, before: Expr) -> Expr:
        """The sums to which rows that are inside at a tap have something added."""
        padding, layout, dim = self.padding, self.unit.d, _DIMS[self.padding.side]
        if not padding.inside:
            return added
        few, order = along(layout, dim)
        lane = few.partial(Space.LANE, Lane())[dim]
        rows = [start + lane + few.partial(Space.REGISTER, n)[dim] for n in range(few.registers)]
        inside = [self._inside(row, tap) for row in rows]
        if len(inside) == 1:
            return select(inside[0], added, before)
        parts = (select(inside[n], Slice(added, r, 1), Slice(before, r, 1)) for r, n in enumerate(order))
        return Pack(added.type, tuple(parts))

    def _inside(self, row: Expr, tap: Expr) -> Expr:
        view = (self.padding.of_n, self.padding.of_m)[self.padding.side]
        dims = {**view.decode(0, row), **view.decode(len(view.axes) - 1, tap)}
        conditions: list[Expr] = [lift(t.at(dims), row).to(u32) < const(t.size, u32) for t in self.padding.inside]
        return reduce(and_, conditions)
