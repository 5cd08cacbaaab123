"""Convolutions of small groups as sums over windows, of which a lane has whole ones: views.

    image[n, p] = sum over taps t and channels c of source[s, place(p, t)] * weights[n, t, c]

The result is the image or, of the same views, the weights: sums over positions p. N are the channels of all groups side
by side, as they lie in memory. With `outs` channels of the image in a group and `ins` of the source, n = g * outs + o
and s = g * ins + c. A lane has neighbours along N, and a block of neighbouring positions along the last two axes of
space. Position o of an axis and its tap k read the source at `step * o + growth * k`; cut into blocks of `count`
positions, at `step * count * block` and j further on, where neighbours whose windows overlap have the same j: it is
loaded once.

Each sum of an image is of taps in their order, outermost first, and for each of them of the source's channels. A lane's
sums of weights are of blocks of positions, of each block in the order of places of the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product as combinations
from math import gcd, prod

from convgen.ir.error import DoesNotFit
from convgen.ir.layout.digits import Index
from convgen.ir.layout.memory import Dim, TensorDim, View
from convgen.ir.record import evolve, frozen
from convgen.ir.types import scalar
from convgen.passes.messages.linear import linearize
from convgen.plan import views
from convgen.plan.blocks import Cuts
from convgen.plan.config import EXACT, Config, Own
from convgen.plan.contraction import Contraction, Product
from convgen.plan.copies import divide
from convgen.plan.lane_tile import sums_weights
from convgen.problem.conv import Conv
from convgen.problem.matmul import Problem


@frozen
class Window:
    """One axis of space: `count` neighbouring positions of a lane, and their taps."""

    taps: int
    count: int = 1
    step: int = 1  #: places of the source; from one position to the next
    growth: int = 1  #: places of the source; from one tap to the next
    run: int = 1  #: places that a message brings, where memory runs along them
    lead: int = 0  #: places before the first one that is read, so that this begins a message or is inside one
    flipped: bool = False  #: whether the weights are seen last tap first, as memory has them

    def reads(self, taps: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
        """By place of the source, which (position, tap) meet there."""
        found: dict[int, list[tuple[int, int]]] = {}
        for tap, position in combinations(taps, range(self.count)):
            found.setdefault(self.lead + position * self.step + tap * self.growth, []).append((position, tap))
        return dict(sorted(found.items()))

    def places(self, taps: int) -> int:
        """How many places the windows of all positions reach over with so many taps, in whole messages."""
        reached = self.lead + (self.count - 1) * self.step + (taps - 1) * self.growth + 1
        return -(-reached // self.run) * self.run

    def of_weights(self, tap: Index) -> Index:
        """Where the weights have a tap."""
        return self.taps - 1 - tap if self.flipped else tap


@frozen
class Windows(Product):
    """A sum over windows.

    `of_m`, the source, has the axes S, blocks of positions and, for each axis of space, places. Images have the axes N
    and positions. Weights that are read, `of_n`, have N, the taps of each axis of space and the channels of the source,
    or all of these as one axis; weights that are the result have N, and these as one.
    """

    axes: tuple[Window, ...] = ()
    #: Of the axes of space, outermost ones, of which the kernel takes the taps in a loop, or tiles of weights have one.
    looped: int = 0
    outs: int = 1  #: channels of the image in a group
    ins: int = 1  #: channels of the source in a group
    #: elements; where all weights of a channel lie side by side: between taps of each axis, and between channels
    flat: tuple[int, ...] = ()
    of_weights: bool = False  #: whether the result are the weights, and `of_n` is the image
    #: Coordinates of the source, by dims of blocks and places, that windows take out of range, where products with what
    #: they find there may be no zeros.
    halo: tuple[TensorDim, ...] = ()

    @property
    def m(self) -> int:
        return self.result.extent(1)

    @property
    def n(self) -> int:
        return self.result.extent(0)

    @property
    def k(self) -> int:
        return self.image.extent(1) if self.of_weights else self.products

    @property
    def image(self) -> View:
        """What has the positions of windows."""
        return self.of_n if self.of_weights else self.result

    @property
    def is_ragged(self) -> bool:
        """Whether some blocks have fewer positions than others."""
        return any(t.masked for t in self.image.index)

    @property
    def products(self) -> int:
        """Of a position, for each channel: taps, and channels of the source."""
        return prod(w.taps for w in self.axes) * self.ins

    @property
    def unrolled(self) -> tuple[Window, ...]:
        """The axes of which a lane has all taps at a time."""
        return self.axes[self.looped :]

    def sums(self, own: Own) -> int:
        """How many a lane has at a time, for each of its channels: those of a row leave when it is whole."""
        if self.of_weights:
            return prod(w.taps for w in self.unrolled) * self.ins
        down = self.axes[0]
        if self.looped or len(self.axes) != 2 or own.rows == 1:
            return own.positions
        return own.columns * min(own.rows, (down.taps - 1) * down.growth // down.step + 1)

    def registers(self, own: Own) -> int:
        """What a lane holds beside its sums: what is multiplied with the source, and two rows of that, estimate."""
        axes, elem = self.unrolled, self.of_m.memory.elem.bytes
        if self.of_weights:
            factors = -(-own.size * elem // 4) + own.channels * own.columns  # those of a row as products take them
        elif own.atom:
            factors = -(-own.channels // own.atom[0] * prod(w.taps for w in axes) * self.ins * elem // 4)
        else:
            factors = own.channels * prod(w.taps for w in axes) * self.ins
        row = own.channels // self.outs * self.ins * axes[-1].places(axes[-1].taps) if axes else own.channels
        return factors + 2 * -(-row * elem // 4)

    @property
    def run(self) -> int:
        """Places along the last axis of space that a message brings, where memory runs along them."""
        return self.axes[-1].run

    @property
    def weights_along_k(self) -> bool:
        """Whether memory runs along the source's channels in weights that are read."""
        return linearize(self.of_n).unit_axis == len(self.of_n.axes) - 1

    @property
    def runs_along_m(self) -> bool:
        """Whether memory runs along positions of the image."""
        return linearize(self.image).unit_axis == 1


def refusal(problem: Problem) -> str:
    """What lanes would want instead of a problem; empty where they compute it."""
    if not isinstance(problem, Conv):
        return "a convolution"
    if problem.runtime:
        return "sizes that are known before the launch"
    if any(problem.zero_point(t.name) is not None for t in problem.factors):
        return "no zero points of what is multiplied"
    if any(t.dtype not in _MULTIPLIED for t in problem.factors):
        return f"inputs of {', '.join(_MULTIPLIED)}"
    return ""


_MULTIPLIED = ("f16", "bf16", "f32", "f64", "s8", "u8")


def windows(problem: Problem, own: Own, config: Config, chunk_bytes: int) -> tuple[Windows, ...]:
    """The sums over windows of a convolution; DoesNotFit where a config of lanes suits no such problem."""
    if wanted := refusal(problem):
        raise DoesNotFit(f"mma={own}: wanted {wanted}")
    found = views.contractions(problem, config.reorder)
    if sums_weights(problem):
        made = [_Maker(_of_image(c), own, config.tile[0], chunk_bytes).weights() for c in found]
    else:
        made = [_Maker(c, own, config.tile[2], chunk_bytes).image() for c in found]
    exact = config.padding == EXACT
    return tuple(p if exact and p.of_n.memory.elem.is_float else evolve(p, halo=()) for p in made)


def _of_image(c: Contraction) -> Contraction:
    """What makes an image of the same three tensors as makes weights."""
    return evolve(c, m=c.k, n=c.m, k=c.n, of_m=c.of_n, of_n=c.result, result=c.of_m)


class _Maker:
    """Makes the views of a contraction that makes an image; see the fields of `Windows` for what they are."""

    def __init__(self, contraction: Contraction, own: Own, unrolled: int, chunk_bytes: int) -> None:
        self.own, self.unrolled, self.chunk_bytes = own, unrolled, chunk_bytes
        self.c = c = contraction
        names = {d.name for d in c.m}
        #: by tap, the coordinate of the source that it is part of, and the position that it goes with
        self.met = {
            d.name: (n, next(name for name, _ in t.terms if name in names))
            for d in c.k
            for n, t in enumerate(c.of_m.index)
            if d.name in dict(t.terms) and names.intersection(dict(t.terms))
        }
        if any(len(c.of_m.index[n].terms) > 2 for n, _ in self.met.values()):
            raise DoesNotFit(f"mma={own}: wanted positions and taps that are not in blocks")
        self.taps = tuple(d for d in c.k if d.name in self.met)
        self.channels = tuple(d for d in c.k if d.name not in self.met)
        self.positions = {d.name: d for d in c.m}
        counts = [1] * len(self.taps) + [own.rows, own.columns]
        self.counts = counts[len(counts) - len(self.taps) :]

    def image(self) -> Windows:
        """The sums that make the image."""
        c = self.c
        outs, ins = (prod(d.size for d in dims) for dims in (c.n, self.channels))
        if len(self.taps) < 2 and self.own.rows > 1:
            raise DoesNotFit(f"mma={self.own}: there is one axis of space, wanted one row a lane")
        divide("channels of a lane over those of a group", self.own.channels, outs)
        if atom := self.own.atom:
            divide("channels of a group over the instruction's K", ins, atom[2])
            divide("channels of a group over the instruction's side", outs, atom[0])
            if outs != self.own.channels:
                raise DoesNotFit(f"mma={self.own}: wanted the {outs} channels of a group in a lane")
        kept = [self.unrolled >= ins * prod(d.size for d in self.taps[n:]) for n in range(len(self.taps) + 1)]
        looped = kept.index(True) if True in kept else len(self.taps)
        axes = tuple(self._window(d, count, n < looped) for n, (d, count) in enumerate(zip(self.taps, self.counts)))
        cuts = self._cuts()
        outer, inner = self._order(cuts)
        n, s = (*c.batch, *c.n), (*c.batch, *self.channels)
        image = evolve(c.result, index=cuts.index(c.result.spec.layout, c.result.index))
        weights, flat = self._weights(n, axes, looped)
        source = self._source(s, outer, axes)
        return Windows(
            weights, source, image.view(n, (*outer, *inner)), c.role,
            Cuts((*c.cuts.sizes, *cuts.sizes)), axes, looped, outs, ins, flat, halo=self._halo(source),
        )  # fmt: skip

    def weights(self) -> Windows:
        """The sums that make the weights."""
        of_image, c = self.image(), self.c
        if self.unrolled != (wanted := of_image.ins * prod(w.taps for w in of_image.unrolled)):
            raise DoesNotFit(f"tile M of {self.unrolled}, wanted {wanted}: all taps of some axes of space")
        result = c.of_n.view((*c.batch, *c.n), (*self.taps, *self.channels))
        return evolve(of_image, of_n=of_image.result, result=result, flat=(), of_weights=True)

    def _cuts(self) -> Cuts:
        """Of the positions into blocks."""
        found = []
        for tap, count in zip(self.taps, self.counts):
            position = self.positions[self.met[tap.name][1]]
            if count > 1:
                found.append((position.name, (count, -(-position.size // count))))
        return Cuts(tuple(found))

    def _order(self, cuts: Cuts) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
        """The dims of blocks, as they lie in memory, and those within a block."""
        result, blocks = self.c.result, dict(cuts.sizes)
        in_memory = sorted(self.c.m, key=lambda d: (d.size > 1, -abs(result.stride(d.name))))
        pieces = {d.name: cuts.dims((d,)) for d in self.c.m}
        inner = tuple(pieces[at][-1] for at in (self.met[tap.name][1] for tap in self.taps) if at in blocks)
        return tuple(pieces[d.name][0] for d in in_memory), inner

    def _window(self, tap: Dim, count: int, looped: bool) -> Window:
        index, position = self.met[tap.name]
        t = self.c.of_m.index[index]
        step, growth = (dict(t.terms)[name] for name in (position, tap.name))
        unit = self._unit(t, position, tap, count)
        weights = [dict(w.terms).get(tap.name, 0) for w in self.c.of_n.index]
        run = 1 if looped else self._run(t, count * step, unit)
        flipped = any(coef < 0 for coef in weights)
        return Window(tap.size, count, step // unit, growth // unit, run, t.const % run, flipped)

    def _unit(self, t: TensorDim, position: str, tap: Dim, count: int) -> int:
        """What all the places that are read are multiples of."""
        terms = dict(t.terms)
        return gcd(terms[position] if count > 1 else 0, terms[tap.name] if tap.size > 1 else 0) or 1

    def _run(self, t: TensorDim, block: int, unit: int) -> int:
        """Places of the widest message that is all inside the tensor or all outside, if memory runs along them."""
        source = self.c.of_m
        if unit > 1 or source.spec.layout.step(source.index.index(t), 1) > 1:
            return 1
        return gcd(self.chunk_bytes // scalar(source.spec.dtype).bytes, t.size, block)

    def _source(self, s: tuple[Dim, ...], outer: tuple[Dim, ...], axes: tuple[Window, ...]) -> View:
        index, places = list(self.c.of_m.index), []
        for tap, w, count in zip(self.taps, axes, self.counts):
            n, position = self.met[tap.name]
            t = index[n]
            unit = self._unit(t, position, tap, count)
            size = w.places(w.taps)
            blocks = self.positions[position].size
            if count > 1:
                blocks = -(-blocks // count)
            step = dict(t.terms)[position] * count
            const = t.const - w.lead * unit
            reach = const + step * (blocks - 1) + (size - 1) * unit
            block = f"{position}_1" if count > 1 else position
            terms = ((block, step), (f"at_{tap.name}", unit))
            index[n] = TensorDim(t.size, terms, const, const < 0 or reach >= t.size)
            places.append((Dim(f"at_{tap.name}", size, size),))
        return evolve(self.c.of_m, index=tuple(index)).view(s, outer, *places)

    def _halo(self, source: View) -> tuple[TensorDim, ...]:
        own = {n for n, _ in self.met.values() if self.c.of_m.index[n].masked}
        return tuple(t for n, t in enumerate(source.index) if n in own)

    def _weights(self, n: tuple[Dim, ...], axes: tuple[Window, ...], looped: int) -> tuple[View, tuple[int, ...]]:
        """The weights, and the elements between taps of each axis and between channels if all lie side by side."""
        last = {tap.name: tap.size - 1 for tap, w in zip(self.taps, axes) if w.flipped}
        tensor = evolve(self.c.of_n, index=tuple(_flipped(t, last) for t in self.c.of_n.index))
        k = sorted((*self.taps, *self.channels), key=lambda d: -tensor.stride(d.name))
        dims = sorted((*n, *k), key=lambda d: d.size > 1)  # those of one position outermost
        by_lanes = not self.own.atom and not looped
        if by_lanes and len(self.channels) == 1 and _are_dense([tensor.stride(d.name) for d in dims], dims):
            apart = (tensor.stride(d.name) for d in (*self.taps, *self.channels))
            return tensor.view(tuple(dims)), tuple(apart)
        return tensor.view(n, *((tap,) for tap in self.taps), self.channels), ()


def _are_dense(strides: Sequence[int], dims: Sequence[Dim]) -> bool:
    """Whether dims, outermost first, lie in memory without gaps."""
    reached = 1
    for stride, d in zip(reversed(strides), reversed(dims)):
        if d.size > 1 and stride != reached:
            return False
        reached *= d.size
    return True


def _flipped(t: TensorDim, last: Mapping[str, int]) -> TensorDim:
    """The coordinate as a function of dims counted from their end."""
    terms = tuple((name, -coef if name in last else coef) for name, coef in t.terms)
    return evolve(t, terms=terms, const=t.const + sum(coef * last.get(name, 0) for name, coef in t.terms))
