"""Common part of the kernels of sums over windows: each lane loads the source of its windows, row by row.

A place of the source is loaded once and multiplied with all taps of all neighbouring positions that read it. Taps are
straight-line code; where there are many, those of outer spatial axes are a loop, or tiles of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import product, zip_longest
from operator import and_

from convgen.epilogue.epilogue import Epilogue, Reader
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, Lane, Shuffle, Slice, Var, const, lift
from convgen.ir.floats import fma
from convgen.ir.layout.digits import Digit, Digits, Index, Space, stacked
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import View
from convgen.ir.program import Kernel
from convgen.ir.record import frozen
from convgen.ir.types import VectorType, u32, vector
from convgen.plan.lane_tile import LaneTile
from convgen.plan.plan import Part, Plan
from convgen.plan.window_views import Window, Windows

PLACES = ("d", "h", "w")
_AT_A_TIME = 16  #: registers; sums that become results together
ROOM = 16  #: registers; for epilogue inputs that several of these share

_Reads = list[tuple[int, int]]  #: (position, tap) pairs of one axis
Row = tuple[tuple[int, _Reads], ...]  #: places of the outer spatial axes, and the (position, tap) pairs that read them
Sums = tuple[Expr, ...]  #: sums of a lane, each a vector along N: by position, or by tap


@frozen
class Taps:
    """The taps of one spatial axis in one turn of the loops: all of them, or the one that `counter` selects."""

    window: Window
    counter: Index | None = None

    @property
    def numbers(self) -> range:
        return range(1 if self.counter is not None else self.window.taps)

    @property
    def places(self) -> int:
        """Return the places of the source that the taps cover."""
        return self.window.places(len(self.numbers))

    @property
    def first(self) -> Index:
        """Return the first of the places."""
        return 0 if self.counter is None else self.counter * self.window.growth

    def of_weights(self, tap: int) -> Index:
        """Return the weights' coordinate of one of the `numbers`."""
        return self.window.of_weights(tap if self.counter is None else self.counter)


class WindowsKernel:
    """Base class of the kernels for images and for weights: the tile, and the source row by row."""

    def __init__(self, plan: Plan, part: Part, product: Windows, tile: LaneTile, name: str) -> None:
        self.plan, self.part, self.product, self.tile = plan, part, product, tile
        self.along_m = product.runs_along_m
        self.k = KernelBuilder(name, part.mapping.grid, plan.subgroups, plan.facts.subgroup_size)

    def build(self, result: View, epilogue: Epilogue) -> Kernel:
        k, (_, tile_n, _) = self.k, self.plan.config.tile
        self.result, self.epilogue = result, epilogue
        buffers = self.product.of_m.memory, self.product.of_n.memory, *epilogue.reads, result.memory
        k.params += dict.fromkeys(buffers)
        with k.tile_of(self.part.mapping) as tile:
            self.n0 = k.let("n0", tile["n"] * tile_n)
            self.s0 = k.let("s0", tile["n"] * (tile_n // self.product.outs * self.product.ins))
            self._compute(tile)
        return k.done()

    def _compute(self, tile: Mapping[str, Index]) -> None:
        """Add the sums and their store."""
        raise NotImplementedError

    def _store(self, total: Expr, whole: Fragment, reader: Reader) -> None:
        """Store the epilogue's results, in small pieces if it takes registers."""
        k, epilogue, start = self.k, self.epilogue, 0
        for layout in (whole,) if epilogue.is_light else whole.parts(_AT_A_TIME):
            piece = Slice(total, start, layout.registers)
            stored = epilogue.apply(k, piece, epilogue.load(reader, layout))
            k.store_view(self.result, reader.at, stored, layout, "store", self.result.memory.name)
            start += layout.registers

    @property
    def _sums_type(self) -> VectorType:
        """Return the type of a lane's vector along N."""
        return vector(self.plan.acc_type, self.tile.lane_part.channels)

    def _sum(self, a: Expr, b: Expr, total: Expr) -> Var:
        """Return the product of `a` and `b` added to a sum."""
        return self.k.let("sum", fma(a, b, total) if self.plan.acc_type.is_float else total + a * b)

    # ------------------------------------------------------------ the source

    @staticmethod
    def _rows(taps: Sequence[Taps]) -> list[Row]:
        """Return the rows of the source that a block of positions reads."""
        return list(product(*(t.window.reads(t.numbers).items() for t in taps[:-1])))

    def _loaded(self, taps: Sequence[Taps], t0: Index) -> Iterator[tuple[Row, Expr]]:
        """Yield the rows for blocks of positions from `t0` on, each while the next one loads."""
        rows = self._rows(taps)
        next_row = self._row(taps, rows[0], t0)
        for row, following in zip_longest(rows, rows[1:]):
            row_in_registers = next_row
            if following is not None:
                next_row = self._row(taps, following, t0)
            yield row, row_in_registers

    def _row(self, taps: Sequence[Taps], reads: Row, t0: Index) -> Expr:
        """Load a row of the source at places of the outer spatial axes: channels, and places along the last axis."""
        *outer, inner = taps
        dims = ("s", "t", *PLACES[-len(taps) :])
        registers = ("s", self._sources), (dims[-1], inner.places)
        order = tuple(reversed(registers)) if self.product.run > 1 else registers
        layout = self.tile.fragment(dims, order, self.along_m)
        rows = (t.first + place for t, (place, _) in zip(outer, reads))
        at = (self.s0, t0, *rows, inner.first)
        return self.k.load_view("row", self.product.of_m, at, layout, "load", self.product.of_m.memory.name)

    @property
    def _depth(self) -> int:
        """Return the multiply-adds of a tap: one for each source channel of a group."""
        return self.product.ins

    @property
    def _sources(self) -> int:
        """Return the channels of the source that a lane reads."""
        return self.tile.lane_part.channels // self.product.outs * self.product.ins

    def _element(self, row: Expr, places: int, place: int, c: int) -> Var:
        """Return a row's element at a place for each image channel of a lane: that of source channel c of its group."""
        product, count = self.product, self._sources
        channels = [n // product.outs * product.ins + c for n in range(self.tile.lane_part.channels)]
        order = (s * places + place if product.run > 1 else place * count + s for s in channels)
        return self.k.let("seen", Shuffle(row, tuple(order)).to(self._sums_type))

    def _products(
        self, row: Row, row_in_registers: Expr, inner: Taps
    ) -> Iterator[tuple[Var, tuple[int, ...], tuple[int, ...]]]:
        """Yield (element, position, tap), the source's factor of each product, for each place of a row and its readers.

        The last number of a tap is the source's channel.
        """
        for place, reads in inner.window.reads(inner.numbers).items():
            for c in range(self._depth):
                element = self._element(row_in_registers, inner.places, place, c)
                for pairs in product(*(pairs for _, pairs in row), reads):
                    positions, taps = zip(*pairs)
                    yield element, positions, (*taps, c)

    def _position(self, at: Sequence[int]) -> int:
        """Return the number of a lane's position from those along the spatial axes."""
        return as_number(at, [w.count for w in self.product.axes])

    # ------------------------------------------------------------ one position of a lane, one tap of each axis

    def _places(self, taps: Sequence[Taps], position: Index) -> list[Index]:
        """Return the places that one tap reads for a position of a block, along the spatial axes."""
        numbers = as_digits(position, [w.count for w in self.product.axes])
        return [t.first + (t.window.lead + n * t.window.step) for t, n in zip(taps, numbers)]

    def _load_source(self, s: Index, t0: Index, places: Sequence[Index], layout: Fragment) -> Var:
        """Load the source at these places, from the channel `s` on."""
        view = self.product.of_m
        return self.k.load_view("alone", view, (s, t0, *places), layout.over(len(view.axes)), "load", view.memory.name)

    def _inside(self, t0: Expr, places: Sequence[Index]) -> Expr:
        """Whether the places are inside the tensor."""
        view = self.product.of_m
        block = self.tile.fragment(("s", "t"), (), self.along_m).coords(self.k.subgroup, Lane(), 0)["t"]
        dims = view.decode(1, block + t0) | {dim.name: place for (dim,), place in zip(view.axes[2:], places)}
        return reduce(and_, (lift(t.at(dims), t0).to(u32) < const(t.size, u32) for t in self.product.halo))


def as_number(at: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the number with these digits of given sizes, the outermost first."""
    number = 0
    for digit, size in zip(at, sizes, strict=True):
        number = number * size + digit
    return number


def as_digits(number: Index, sizes: Sequence[int]) -> list[Index]:
    """Return the digits of a number, of given sizes, the outermost first."""
    dims = [(str(n), size) for n, size in enumerate(sizes)]
    digits = Digits(tuple(name for name, _ in dims), stacked(Space.AXIS, tuple(reversed(dims))))
    return list(digits.coordinates({Space.AXIS: number}, overrun=True).values())


def first_of(layout: Fragment, dim: str, count: int) -> Fragment:
    """Return the layout with `count` times as many positions along a dim, at the first of every `count`."""
    return Fragment(layout.dims, (Digit(dim, count, Space.FIXED, 0), *layout.digits))
