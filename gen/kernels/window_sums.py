"""Tile-level IR of a sum over windows: for an image, or for weights.

For an image each lane computes whole sums, and stores a row of them when it is complete. For weights it sums over its
own positions, block after block; the sums of all lanes of a workgroup are reduced after the last block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from itertools import chain, product
from math import prod
from operator import and_

from convgen.epilogue.epilogue import Epilogue, Reader
from convgen.ir.expr import Add, Expr, Lane, Pack, Shuffle, Slice, Splat, Var, const, eq, lift, select, zeros
from convgen.ir.layout.digits import Digit, Index, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import View
from convgen.ir.layout.mma import BlockAtom
from convgen.ir.products import BlockMma
from convgen.ir.program import Kernel
from convgen.ir.types import VectorType, bool_, vector
from convgen.kernels.exact_padding import vectors_are_finite
from convgen.kernels.product import kernel_name
from convgen.kernels.window_loads import PLACES, ROOM, Row, Sums, Taps, WindowsKernel, as_digits, as_number, first_of
from convgen.plan.lane_tile import LaneTile
from convgen.plan.plan import Part, Plan
from convgen.plan.window_views import Window, Windows

_RECOMPUTED_TOGETHER = 16  #: registers; sums that are recomputed in one loop, which needs twice as many


def windows_kernel(plan: Plan, part: Part, result: View, epilogue: Epilogue, role: str) -> Kernel:
    """Return a kernel with one output tile in each workgroup and, for weights, one slice of the positions."""
    assert isinstance(plan.unit, LaneTile)
    assert isinstance(part.product, Windows)
    kind = _OfWeights if part.product.of_weights else _OfImageByBlocks if plan.unit.atom else _OfImage
    return kind(plan, part, part.product, plan.unit, kernel_name(plan, role)).build(result, epilogue)


class _OfImage(WindowsKernel):
    """Sums over taps and channels of the source; a lane has the weights of all taps of a turn.

    One position of the first row detects sums that padding may have turned into NaN: it uses all weights of its
    channels.
    """

    def _compute(self, tile: Mapping[str, Index]) -> None:
        tile_m, _, _ = self.plan.config.tile
        self.m0 = self.k.let("m0", tile["m"] * tile_m)
        self.reader = Reader(self.k, (self.n0, self.m0), ROOM)
        self.t0 = self.k.let("t0", tile["m"] * (tile_m // self.tile.lane_part.positions))
        if self.product.flat:
            layout = self._along_n(("w", self.tile.lane_part.channels * self.product.k))
            self.weights = self.k.load_view(
                "weights", self.product.of_n, (self.n0 * self.product.k,), layout, "load", "wei"
            )
        whole = self._whole_rows()
        if not self.product.halo:
            self._store_rows(whole)
            return
        first_sums, row = first = next(whole)
        start, count = row * self.tile.lane_part.columns * self._vectors_of_position, self._vectors_of_position
        with self.k.when(vectors_are_finite(self.k, self.plan.facts, first_sums[start : start + count])):
            self._store_rows(chain((first,), whole))
        with self.k.otherwise():
            self._recompute_and_store()

    @property
    def _vectors_of_position(self) -> int:
        """Return the vectors of sums of one position."""
        return self.tile.lane_part.channels // self._sums_type.lanes

    def _whole_rows(self) -> Iterator[tuple[Sums, int]]:
        """Yield a lane's sums each time one more row is complete, with the row's number."""
        begin = (zeros(self._sums_type),) * (self.tile.lane_part.positions * self._vectors_of_position)
        if not self.product.looped:
            yield from self._added(tuple(map(Taps, self.product.axes)), begin)
            return
        sums = self._looped(self.product.axes, (), begin)
        for row in range(self.tile.lane_part.rows):
            yield sums, row

    def _looped(self, axes: Sequence[Window], chosen: tuple[Taps, ...], sums: Sums) -> Sums:
        """Return the sums with the taps of the remaining axes added, those of outer axes in loops."""
        if len(chosen) == self.product.looped:
            *_, (whole, _) = self._added((*chosen, *map(Taps, axes)), sums)
            return whole
        names = [f"sum{n}" for n in range(len(sums))]
        with self.k.loop(f"taps_{len(chosen)}", 0, axes[0].taps, **dict(zip(names, sums))) as loop:
            next_sums = self._looped(axes[1:], (*chosen, Taps(axes[0], loop.var)), tuple(loop[n] for n in names))
            loop.yields(*next_sums)
        return tuple(loop.result(n) for n in names)

    def _added(self, taps: tuple[Taps, ...], sums: Sums) -> Iterator[tuple[Sums, int]]:
        """Yield the sums with these taps added, each time a row of them is complete."""
        added, loaded = list(sums), self._loaded(taps, self.t0)
        first = next(loaded)
        factors = self._factors(taps)
        reached = [_lane_rows(row) for row in self._rows(taps)]
        unread = Counter(chain(*reached))
        for (row, row_in_registers), completed in zip(chain((first,), loaded), reached):
            for element, positions, tap in self._products(row, row_in_registers, taps[-1]):
                for at, factor in enumerate(factors[tap], self._position(positions) * self._vectors_of_position):
                    added[at] = self._sum(element, factor, added[at])
            unread.subtract(completed)
            yield from ((tuple(added), complete) for complete in completed if not unread[complete])

    def _store_rows(self, rows: Iterable[tuple[Sums, int]]) -> None:
        """Store rows of a lane's positions."""
        lane = self.tile.lane_part
        count = lane.columns * self._vectors_of_position
        for sums, row in rows:
            packed: Expr = Pack(vector(self.plan.acc_type, lane.channels * lane.columns), sums[row * count :][:count])
            if self.along_m and lane.channels > 1:
                order = (m * lane.channels + n for n in range(lane.channels) for m in range(lane.columns))
                packed = Shuffle(packed, tuple(order))
            layout = self.tile.image(self.along_m).parts(lane.channels * lane.columns)[row]
            self._store(self.k.let("total", packed), layout, self.reader)

    def _recompute_and_store(self) -> None:
        """Recompute and store one position after another, tap by tap; a tap that is outside changes no sum."""
        k, lane, axes = self.k, self.tile.lane_part, self.product.axes
        begin = {f"sum{n}": zeros(self._sums_type) for n in range(self._vectors_of_position)}
        layout = first_of(self.tile.fragment(("n", "m"), (("n", lane.channels),), self.along_m), "m", lane.positions)
        with k.loop("position", 0, lane.positions) as position:
            with k.loop("tap", 0, prod(w.taps for w in axes), **begin) as loop:
                taps = tuple(map(Taps, axes, as_digits(loop.var, [w.taps for w in axes])))
                loop.yields(*self._added_inside(taps, position.var, [loop[name] for name in begin]))
            packed = Pack(vector(self.plan.acc_type, lane.channels), tuple(loop.result(name) for name in begin))
            self._store(k.let("total", packed), layout, Reader(k, (self.n0, self.m0 + position.var), ROOM))

    def _added_inside(self, taps: tuple[Taps, ...], position: Expr, sums: list[Expr]) -> list[Expr]:
        """Return the sums of a position with one tap of each axis added, where that is inside."""
        layout = self.tile.fragment(("s", "t"), (("s", self._sources),), self.along_m)
        places = self._places(taps, position)
        row, inside = self._load_source(self.s0, self.t0, places, layout), self._inside(self.t0, places)
        factors, added = self._factors(taps), sums
        for c in range(self._depth):
            element, pairs = self._element(row, 1, 0, c), zip(factors[*(0 for _ in taps), c], added, strict=True)
            added = [select(inside, self._sum(element, factor, total), total) for factor, total in pairs]
        return added

    def _factors(self, taps: Sequence[Taps]) -> dict[tuple[int, ...], tuple[Expr, ...]]:
        """Return, by tap and channel of the source, the weights for each vector of a position's sums."""
        numbers = *(t.numbers for t in taps), range(self.product.ins)
        return {tap: (self.k.let("factor", self._weight(taps, tap)),) for tap in product(*numbers)}

    def _weight(self, taps: Sequence[Taps], tap: tuple[int, ...]) -> Expr:
        """Return the weights of one tap of each axis and one channel of the source, along N."""
        product, (*numbers, c) = self.product, tap
        at = [t.of_weights(number) for t, number in zip(taps, numbers)]
        if product.flat:
            place = sum(n * stride for n, stride in zip((*at, c), product.flat))
            if isinstance(place, Expr):
                layout = first_of(self._along_n(("w", self.tile.lane_part.channels)), "w", product.k)
                start = self.n0 * product.k + place
                return self.k.load_view("weight", product.of_n, (start,), layout, "load", "wei").to(self._sums_type)
            order = tuple(n * product.k + place for n in range(self.tile.lane_part.channels))
            return Shuffle(self.weights, order).to(self._sums_type)
        layout = self._along_n(("n", self.tile.lane_part.channels))
        return self.k.load_view("weight", product.of_n, (self.n0, *at, c), layout, "load", "wei").to(self._sums_type)

    def _along_n(self, registers: tuple[str, int]) -> Fragment:
        """Return a layout along N, replicated in lanes along positions."""
        return self.tile.fragment((registers[0], "m"), (registers,), self.along_m).without("m")


class _OfImageByBlocks(_OfImage):
    """Sums for an image by a matrix instruction: a block of lanes has one group's weights, a row in each lane."""

    @property
    def _atom(self) -> BlockAtom:
        assert self.tile.atom is not None
        return self.tile.atom

    @property
    def _sums_type(self) -> VectorType:
        return vector(self._atom.acc, self._atom.side)

    @property
    def _depth(self) -> int:
        return self.product.ins // self._atom.k

    def _sum(self, a: Expr, b: Expr, total: Expr) -> Var:
        return self.k.let("sum", BlockMma(self._atom, total, b, a))

    def _element(self, row: Expr, places: int, place: int, c: int) -> Var:
        channels, count, k = range(c * self._atom.k, (c + 1) * self._atom.k), self._sources, self._atom.k
        if self.product.run > 1:
            return self.k.let("seen", Shuffle(row, tuple(s * places + place for s in channels)))
        return self.k.let("seen", Slice(row, place * count + c * k, k))

    def _factors(self, taps: Sequence[Taps]) -> dict[tuple[int, ...], tuple[Expr, ...]]:
        factors: dict[tuple[int, ...], tuple[Expr, ...]] = {}
        atom, ins, outs = self._atom, self.product.ins, self.tile.lane_part.channels
        for numbers in product(*(t.numbers for t in taps)):
            at = [t.of_weights(number) for t, number in zip(taps, numbers)]
            loaded = self.k.load_view(
                "weight", self.product.of_n, (self.n0, *at, 0), self._rows_of_weights, "load", "wei"
            )
            for c in range(self._depth):
                starts = (tile * ins + c * atom.k for tile in range(outs // atom.side))
                factors[*numbers, c] = tuple(self.k.let("factor", Slice(loaded, start, atom.k)) for start in starts)
        return factors

    @cached_property
    def _rows_of_weights(self) -> Fragment:
        """Return the layout of one tap's weights, over channels of the image, taps and channels of the source."""
        tile, atom, ins = self.tile, self._atom, self.product.ins
        digits = (
            Digit("n", atom.side, Space.LANE, 1),
            Digit("n", tile.lane_part.channels // atom.side, Space.REGISTER, ins),
            Digit("n", tile.lanes[1], Space.LANE, tile.lanes[0]),
            Digit("n", tile.subgroups[1], Space.SUBGROUP, tile.subgroups[0]),
            Digit("c", ins, Space.REGISTER, 1),
        )
        dims = ("n", *PLACES[-len(self.product.axes) :], "c")
        return Fragment(dims, tuple(d for d in digits if d.size > 1))


def _lane_rows(row: Row) -> list[int]:
    """Return the numbers of a lane's rows of positions that read a row of the source."""
    return sorted({position for position, _ in row[-1][1]}) if row else [0]


class _OfWeights(WindowsKernel):
    """Sums over positions; a lane has the image's elements of a block of positions, for one turn of the loops."""

    def _compute(self, tile: Mapping[str, Index]) -> None:
        k, config = self.k, self.plan.config
        self.image = self.tile.image(self.along_m)
        taps = self._taps(tile["m"])
        begin = (zeros(self._sums_type),) * config.tile[0]
        names = [f"sum{n}" for n in range(len(begin))]
        with k.loop("blocks", 0, self.part.k_blocks, **dict(zip(names, begin))) as loop:
            block = k.let("block", loop.var + tile["k"] * self.part.k_blocks)
            loop.yields(*self._added(taps, block, tuple(loop[n] for n in names)))
        sums = tuple(loop.result(n) for n in names)
        self._store_reduced(self._recomputed(taps, tile["k"], sums) if self.product.halo else sums, self._row_of(tile))

    def _taps(self, tile: Index) -> tuple[Taps, ...]:
        """Return the taps of a tile: one of each looped axis, all of the others."""
        product = self.product
        counters = as_digits(tile, [w.taps for w in product.axes[: product.looped]])
        return (*map(Taps, product.axes, counters), *map(Taps, product.unrolled))

    def _recomputed(self, taps: tuple[Taps, ...], slice: Index, sums: Sums) -> Sums:
        """Return the sums; where padding may have made them NaN, recompute them one after the other.

        The sums of one tap detect it: they use all of the lane's elements of the image.
        """
        # `alone`, since in the reduction only one subgroup stores
        are_finite = vectors_are_finite(self.k, self.plan.facts, sums[:1], alone=True)
        spoiled = self.k.let("spoiled", select(are_finite, const(0), const(1)))
        result, together = list(sums), max(1, _RECOMPUTED_TOGETHER // self.tile.lane_part.channels)
        for first in range(0, len(sums), together):
            chosen = {f"sum{n}": sums[n] for n in range(len(sums))[first:][:together]}
            with self.k.loop("again", first, first + spoiled * len(chosen), **chosen) as loop:
                recomputed = self._of_one(taps, loop.var, slice)
                numbers = enumerate(chosen, first)
                loop.yields(*(select(eq(loop.var, n), recomputed, loop[name]) for n, name in numbers))
            result[first : first + len(chosen)] = map(loop.result, chosen)
        return tuple(result)

    def _of_one(self, taps: tuple[Taps, ...], number: Expr, slice: Index) -> Expr:
        """Return the sums of one number (taps, channel), over positions one after the other, without padding."""
        k, lane, (blocks, per_tile) = self.k, self.tile.lane_part, (self.part.k_blocks, self.plan.config.tile[2])
        looped, unrolled, ins = self.product.looped, self.product.unrolled, self.product.ins
        *at, c = as_digits(number, [*(w.taps for w in unrolled), ins])
        taps = (*taps[:looped], *map(Taps, unrolled, at))
        with k.loop("block", slice * blocks, (slice + 1) * blocks, total=zeros(self._sums_type)) as outer:
            t0 = outer.var * (per_tile // lane.positions)
            with k.loop("position", 0, lane.positions, total=outer["total"]) as loop:
                places, start = self._places(taps, loop.var), outer.var * per_tile + loop.var
                factor, exists = self._image_at(start)
                added = self._sum(self._element_alone(t0, places, c), factor, loop["total"])
                loop.yields(select(reduce(and_, exists, self._inside(t0, places)), added, loop["total"]))
            outer.yields(loop.result("total"))
        return outer.result("total")

    def _element_alone(self, t0: Expr, places: Sequence[Index], c: Index) -> Expr:
        """Return, for each of a lane's image channels, the source at these places in channel c of its group."""
        outs, ins, channels = self.product.outs, self.product.ins, self.tile.lane_part.channels
        layout = first_of(self.tile.fragment(("s", "t"), (("s", channels // outs),), self.along_m), "s", ins)
        elements = self._load_source(self.s0 + c, t0, places, layout)
        return Shuffle(elements, tuple(n // outs for n in range(channels))).to(self._sums_type)

    def _image_at(self, start: Expr) -> tuple[Expr, list[Expr]]:
        """Return a lane's image elements at one position of the tile, and the conditions for it to exist."""
        view, lane = self.product.of_n, self.tile.lane_part
        layout = first_of(self.tile.fragment(("n", "m"), (("n", lane.channels),), self.along_m), "m", lane.positions)
        elements = self.k.load_view("image", view, (self.n0, start), layout, "load", view.memory.name)
        dims = view.decode(1, start + layout.coords(self.k.subgroup, Lane(), 0)["m"])
        masked = [t for t in view.index if t.masked and t.terms and dims.keys() >= dict(t.terms).keys()]
        return elements.to(self._sums_type), [lift(t.at(dims), start) < t.size for t in masked]

    def _added(self, taps: tuple[Taps, ...], block: Expr, sums: Sums) -> Sums:
        """Return the sums with a block of positions added."""
        view, per_tile, name = self.product.of_n, self.plan.config.tile[2], self.product.of_n.memory.name
        image = self.k.load_view("image", view, (self.n0, block * per_tile), self.image, "load", name)
        exists = self._exists(block) if self.plan.acc_type.is_float else {}
        added, sizes = list(sums), [*(len(t.numbers) for t in taps), self.product.ins]
        factors: dict[int, Expr] = {}
        for row, row_in_registers in self._loaded(taps, block * (per_tile // self.tile.lane_part.positions)):
            for element, positions, tap in self._products(row, row_in_registers, taps[-1]):
                at, position = as_number(tap, sizes), self._position(positions)
                if position not in factors:
                    factors[position] = self.k.let("factor", self._at(image, position))
                total = self._sum(element, factors[position], added[at])
                for exists_there in (exists[n, i] for n, i in enumerate(positions) if (n, i) in exists):
                    mask = Splat(vector(bool_, total.type.lanes), exists_there)
                    total = self.k.let("sum", select(mask, total, added[at]))
                added[at] = total
        return tuple(added)

    def _exists(self, block: Expr) -> dict[tuple[int, int], Expr]:
        """Return, by (spatial axis, place in a lane's block), whether the position exists; only uncertain ones.

        Where it does not exist the image reads zero, but the source may be infinite, and the product must not count.
        """
        view, axes, exists = self.product.image, self.product.axes, dict[tuple[int, int], Expr]()
        start = block * self.plan.config.tile[2] + self.image.coords(self.k.subgroup, Lane(), 0)["m"]
        dims, axes_in_blocks = view.decode(1, start), [n for n, w in enumerate(axes) if w.count > 1]
        for n, dim in zip(reversed(axes_in_blocks), reversed(view.axes[1])):
            for t in (t for t in view.index if t.masked and dim.name in dict(t.terms)):
                for i in range(t.size % dim.size, dim.size):
                    exists[n, i] = self.k.let("exists", lift(t.at({**dims, dim.name: i}), block) < t.size)
        return exists

    def _at(self, image: Expr, position: int) -> Expr:
        """Return a lane's elements at one of its positions, along N."""
        lane = self.tile.lane_part
        row, column = divmod(position, lane.columns)
        distance, offset = (lane.columns, column) if self.along_m else (1, column * lane.channels)
        start = row * lane.columns * lane.channels + offset
        return Shuffle(image, tuple(start + n * distance for n in range(lane.channels))).to(self._sums_type)

    def _row_of(self, tile: Mapping[str, Index]) -> Expr:
        """Return the tile's first row, in the part of its slice where there are several."""
        mapping = self.part.mapping
        row = tile["k"] * mapping.counts[1] + tile["m"] if mapping.counts[3] > 1 else tile["m"]
        return self.k.let("row0", row * self.plan.config.tile[0])

    def _store_reduced(self, sums: Sums, row: Expr) -> None:
        """Store the sums, reduced over all lanes along positions, tap after tap, by one subgroup for each."""
        k, layout = self.k, self.tile.fragment(("n", "m"), (("n", self.tile.lane_part.channels),), self.along_m)
        for n, sums_of_tap in enumerate(sums):
            total, of_sums = k.reduce("total", sums_of_tap, layout, "m", Add, "meet")
            subgroup, _, _ = of_sums.owner(of_sums.coords(k.subgroup, 0, 0))
            with k.when(eq(k.subgroup, subgroup)):
                self._store(total, of_sums, Reader(k, (self.n0, row + n)))
