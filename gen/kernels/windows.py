"""Build the tile-level IR of a sum over windows: each lane loads what its windows see, multiplies and adds.

Nothing is shared and no lane needs another's elements. A place of the source is loaded once and met with all taps of
all neighbours that read it. Taps are straight-line code, those of outer axes of space a loop where they are many.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import attrs

from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, Pack, Shuffle, Slice, zeros
from convgen.ir.floats import fma
from convgen.ir.layout.digits import Index
from convgen.ir.layout.fragment import Fragment
from convgen.ir.program import Kernel
from convgen.ir.types import VectorType, vector
from convgen.kernels.epilogue import Reader
from convgen.kernels.product import kernel_name
from convgen.plan.plan import Part, Plan
from convgen.plan.windows import LaneTile, Window, Windows

_PLACES = ("d", "h", "w")
_AT_A_TIME = 16  #: registers; of sums that become results together
_ROOM = 16  #: registers; for what several of these read alike

_Met = list[tuple[int, int]]  #: (position, tap) of one axis
Sums = tuple[Expr, ...]  #: of a lane's positions, along N each


def windows_kernel(plan: Plan, part: Part, role: str) -> Kernel:
    """One output tile a workgroup."""
    assert isinstance(plan.unit, LaneTile)
    assert isinstance(part.product, Windows)
    return _WindowsKernel(plan, part, part.product, plan.unit, kernel_name(plan, role)).build()


@attrs.frozen
class _Taps:
    """The taps of one axis of space of one turn: all of them, or one that a loop counts."""

    window: Window
    counter: Expr | None = None

    @property
    def numbers(self) -> range:
        return range(1 if self.counter is not None else self.window.taps)

    @property
    def places(self) -> int:
        """Of the source, that they reach over."""
        return self.window.places(len(self.numbers))

    @property
    def first(self) -> Index:
        """The first of the places."""
        return 0 if self.counter is None else self.counter * self.window.growth

    def of_weights(self, tap: int) -> Index:
        """Where the weights have one of the `numbers`."""
        return self.window.of_weights(tap if self.counter is None else self.counter)


class _WindowsKernel:
    def __init__(self, plan: Plan, part: Part, product: Windows, tile: LaneTile, name: str) -> None:
        self.plan, self.part, self.product, self.tile = plan, part, product, tile
        self.along_m = product.runs_along_m
        self.k = KernelBuilder(name, part.mapping.grid, plan.subgroups, plan.facts.subgroup_size)

    def build(self) -> Kernel:
        k, result, (tile_m, tile_n, _) = self.k, self.product.result, self.plan.config.tile
        buffers = self.product.of_m.memory, self.product.of_n.memory, *self.part.epilogue.reads, result.memory
        k.params += dict.fromkeys(buffers)
        with k.tile_of(self.part.mapping) as tile:
            m0, n0 = k.let("m0", tile["m"] * tile_m), k.let("n0", tile["n"] * tile_n)
            self.n0 = n0
            self.t0 = k.let("t0", tile["m"] * (tile_m // self.tile.own.positions))
            self.s0 = k.let("s0", tile["n"] * (tile_n // self.product.outs * self.product.ins))
            self._store(k.let("total", self._whole(self._sums())), m0)
        return k.done()

    def _store(self, total: Expr, m0: Expr) -> None:
        """Store what the epilogue makes of the sums, few at a time if that takes more than registers."""
        k, epilogue, whole, result = self.k, self.part.epilogue, self.tile.sums(self.along_m), self.product.result
        reader, start = Reader(k, (self.n0, m0), _ROOM), 0
        for layout in (whole,) if epilogue.is_light else whole.parts(_AT_A_TIME):
            piece = Slice(total, start, layout.registers)
            stored = epilogue.apply(k, piece, epilogue.load(reader, layout))
            k.store_view(result, (self.n0, m0), stored, layout, "store", result.memory.name)
            start += layout.registers

    @property
    def _held(self) -> VectorType:
        """What a lane has along N."""
        return vector(self.plan.acc_type, self.tile.own.channels)

    def _whole(self, sums: Sums) -> Expr:
        """The sums of all positions in the order of the result's layout."""
        channels, positions = self.tile.own.channels, self.tile.own.positions
        packed = Pack(vector(self.plan.acc_type, channels * positions), sums)
        if not self.along_m or channels == 1:
            return packed
        return Shuffle(packed, tuple(m * channels + n for n in range(channels) for m in range(positions)))

    def _sums(self) -> Sums:
        product = self.product
        begin = (zeros(self._held),) * self.tile.own.positions
        if product.flat:
            layout = self._along_n({"w": self.tile.own.channels * product.k})
            self.weights = self.k.load_view("weights", product.of_n, (self.n0 * product.k,), layout, "load", "wei")
        return self._looped(product.axes, (), begin)

    def _looped(self, axes: Sequence[Window], chosen: tuple[_Taps, ...], sums: Sums) -> Sums:
        """The sums with the taps of axes that remain added, those of outer axes in loops."""
        if len(chosen) == self.product.looped:
            return self._added((*chosen, *map(_Taps, axes)), sums)
        names = [f"sum{n}" for n in range(len(sums))]
        with self.k.loop(f"taps_{len(chosen)}", 0, axes[0].taps, **dict(zip(names, sums))) as loop:
            inside = self._looped(axes[1:], (*chosen, _Taps(axes[0], loop.var)), tuple(loop[n] for n in names))
            loop.yields(*inside)
        return tuple(loop.result(n) for n in names)

    def _added(self, taps: tuple[_Taps, ...], sums: Sums) -> Sums:
        """The sums with these taps added, row of the source by row; the next row is on its way meanwhile."""
        *outer, inner = taps
        added, at_inner = list(sums), inner.window.reads(inner.numbers)
        known: dict[tuple[int, ...], Expr] = {}
        rows = list(product(*(t.window.reads(t.numbers).items() for t in outer)))
        ahead = iter(rows)
        coming = self._row(taps, next(ahead))
        for row in rows:
            held, after = coming, next(ahead, None)
            coming = self._row(taps, after) if after else held
            for place, reads in at_inner.items():
                for c in range(self.product.ins):
                    source = self.k.let("seen", self._seen(held, inner.places, place, c))
                    for met in product(*(pairs for _, pairs in row), reads):
                        at = self._position([position for position, _ in met])
                        tap = *(tap for _, tap in met), c
                        if tap not in known:
                            known[tap] = self.k.let("factor", self._weight(taps, tap[:-1], c))
                        added[at] = self.k.let("sum", self._product(source, known[tap], added[at]))
        return tuple(added)

    def _product(self, a: Expr, b: Expr, total: Expr) -> Expr:
        return fma(a, b, total) if self.plan.acc_type.is_float else total + a * b

    def _position(self, at: Sequence[int]) -> int:
        """The number of a lane's position by those along the axes of space."""
        found = 0
        for window, position in zip(self.product.axes, at):
            found = found * window.count + position
        return found

    # ------------------------------------------------------------ loads

    def _row(self, taps: Sequence[_Taps], met: Sequence[tuple[int, _Met]]) -> Expr:
        """A row of the source, at places of the outer axes of space: channels and places along the last axis."""
        *outer, inner = taps
        dims = ("s", "t", *_PLACES[-len(taps) :])
        registers = {"s": self._sources, dims[-1]: inner.places}
        order = dict(reversed(registers.items())) if self.product.run > 1 else registers
        layout = self.tile.fragment(dims, order, self.along_m)
        rows = (t.first + place for t, (place, _) in zip(outer, met))
        at = (self.s0, self.t0, *rows, inner.first)
        return self.k.load_view("row", self.product.of_m, at, layout, "load", self.product.of_m.memory.name)

    @property
    def _sources(self) -> int:
        """Channels of the source that a lane reads."""
        return self.tile.own.channels // self.product.outs * self.product.ins

    def _seen(self, row: Expr, places: int, place: int, c: int) -> Expr:
        """For each of a lane's channels of the result, what stands at a place of a row in the source's channel c."""
        product, count = self.product, self._sources
        channels = [n // product.outs * product.ins + c for n in range(self.tile.own.channels)]
        order = (s * places + place if product.run > 1 else place * count + s for s in channels)
        return Shuffle(row, tuple(order)).to(self._held)

    def _weight(self, taps: Sequence[_Taps], numbers: Sequence[int], c: int) -> Expr:
        """The weights of one tap of each axis, along N."""
        product, at = self.product, [t.of_weights(number) for t, number in zip(taps, numbers)]
        if product.flat:
            place = sum(n * apart for n, apart in zip((*at, c), product.flat))
            order = tuple(n * product.k + place for n in range(self.tile.own.channels))
            return Shuffle(self.weights, order).to(self._held)
        layout = self._along_n({"n": self.tile.own.channels})
        return self.k.load_view("weight", product.of_n, (self.n0, *at, c), layout, "load", "wei").to(self._held)

    def _along_n(self, registers: dict[str, int]) -> Fragment:
        """The same for all lanes along M."""
        return self.tile.fragment((*registers, "m"), registers, self.along_m).without("m")
