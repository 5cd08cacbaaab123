"""Views of convolutions with small groups as sums over windows, each window summed by one lane.

    image[n, p] = sum over taps t and channels c of source[s, place(p, t)] * weights[n, t, c]

The result is the image or, with the same views, the weights: then sums run over positions p. N counts the channels of
all groups side by side, as in memory. With `outs` channels of the image in a group and `ins` of the source, n = g *
outs + o and s = g * ins + c. A lane has neighbours along N and a block of neighbouring positions along the last two
spatial axes. Position o of an axis and its tap k read the source at `step * o + growth * k`. With blocks of `count`
positions this is `step * count * block` plus an offset j inside the block; neighbours whose windows overlap share j,
and each j is loaded once.

Each sum of an image runs over taps in order, outermost first, and within a tap over the source's channels. A lane's
sums of weights run over blocks of positions, and within a block over places of the source in order.
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
from convgen.plan.config import EXACT, Config, LanePart
from convgen.plan.contraction import Contraction, Product
from convgen.plan.copies import divide
from convgen.plan.lane_tile import sums_weights
from convgen.problem.conv import Conv
from convgen.problem.matmul import Problem


@frozen
class Window:
    """One spatial axis: `count` neighbouring positions of a lane, and their taps."""

    taps: int
    count: int = 1
    step: int = 1  #: places of the source from one position to the next
    growth: int = 1  #: places of the source from one tap to the next
    run: int = 1  #: places that one message loads, where memory is contiguous along them
    lead: int = 0  #: places before the first one read, so that the first message is aligned
    flipped: bool = False  #: whether the weights' coordinate runs from the last tap, so that it grows in memory

    def reads(self, taps: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
        """Return, for each place of the source, the (position, tap) pairs that read it."""
        readers: dict[int, list[tuple[int, int]]] = {}
        for tap, position in combinations(taps, range(self.count)):
            readers.setdefault(self.lead + position * self.step + tap * self.growth, []).append((position, tap))
        return dict(sorted(readers.items()))

    def places(self, taps: int) -> int:
        """Return the places that the windows of all positions cover with this many taps, in whole messages."""
        reached = self.lead + (self.count - 1) * self.step + (taps - 1) * self.growth + 1
        return -(-reached // self.run) * self.run

    def of_weights(self, tap: Index) -> Index:
        """Return the weights' coordinate of a tap."""
        return self.taps - 1 - tap if self.flipped else tap


@frozen
class Windows(Product):
    """A sum over windows.

    `of_m`, the source, has the axes S, blocks of positions, and places for each spatial axis. Images have the axes N
    and positions. Weights that are read, `of_n`, have N, the taps of each spatial axis and the channels of the source,
    or all of them as one axis; weights that are the result have N, and the rest as one axis.
    """

    axes: tuple[Window, ...] = ()
    #: Number of outermost spatial axes whose taps the kernel loops over, or of which a tile of weights has one tap.
    looped: int = 0
    outs: int = 1  #: channels of the image in a group
    ins: int = 1  #: channels of the source in a group
    #: elements; distances between taps of each axis and between channels, if a channel's weights are contiguous
    flat: tuple[int, ...] = ()
    of_weights: bool = False  #: whether the result is the weights, and `of_n` the image
    #: Coordinates of the source, by dims of blocks and places, that leave its range; empty where products with padding
    #: are zero, or may be NaN (padding=zeros).
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
        """Return the view with the positions of windows."""
        return self.of_n if self.of_weights else self.result

    @property
    def is_ragged(self) -> bool:
        """Whether some blocks have fewer positions than others."""
        return any(t.masked for t in self.image.index)

    @property
    def products(self) -> int:
        """Return the products of one position and channel: taps x channels of the source."""
        return prod(w.taps for w in self.axes) * self.ins

    @property
    def unrolled(self) -> tuple[Window, ...]:
        """Return the axes all of whose taps a lane has at a time."""
        return self.axes[self.looped :]

    def sums(self, lane: LanePart) -> int:
        """Return the sums of each channel that a lane keeps at a time; complete rows are stored."""
        if self.of_weights:
            return prod(w.taps for w in self.unrolled) * self.ins
        down = self.axes[0]
        if self.looped or len(self.axes) != 2 or lane.rows == 1:
            return lane.positions
        return lane.columns * min(lane.rows, (down.taps - 1) * down.growth // down.step + 1)

    def registers(self, lane: LanePart) -> int:
        """Return the estimated registers of a lane beside its sums: the second factor, and two rows of the source."""
        axes, elem = self.unrolled, self.of_m.memory.elem.bytes
        if self.of_weights:
            factors = -(-lane.size * elem // 4) + lane.channels * lane.columns  # one row converted for the products
        elif lane.atom:
            factors = -(-lane.channels // lane.atom[0] * prod(w.taps for w in axes) * self.ins * elem // 4)
        else:
            factors = lane.channels * prod(w.taps for w in axes) * self.ins
        row = lane.channels // self.outs * self.ins * axes[-1].places(axes[-1].taps) if axes else lane.channels
        return factors + 2 * -(-row * elem // 4)

    @property
    def run(self) -> int:
        """Return the places along the last spatial axis that one message loads."""
        return self.axes[-1].run

    @property
    def weights_along_k(self) -> bool:
        """Whether memory is contiguous along the source's channels in weights that are read."""
        return linearize(self.of_n).unit_axis == len(self.of_n.axes) - 1

    @property
    def runs_along_m(self) -> bool:
        """Whether memory is contiguous along positions of the image."""
        return linearize(self.image).unit_axis == 1


def refusal(problem: Problem) -> str:
    """Return what `mma=fma` requires and the problem lacks; empty where lanes can compute it."""
    if not isinstance(problem, Conv):
        return "a convolution"
    if problem.runtime:
        return "sizes that are known before the launch"
    if any(problem.zero_point(t.name) is not None for t in problem.factors):
        return "inputs without zero points"
    if any(t.dtype not in _MULTIPLIED for t in problem.factors):
        return f"inputs of {', '.join(_MULTIPLIED)}"
    return ""


_MULTIPLIED = ("f16", "bf16", "f32", "f64", "s8", "u8")


def windows(problem: Problem, lane: LanePart, config: Config, chunk_bytes: int) -> tuple[Windows, ...]:
    """Return the sums over windows of a convolution, one a launch; DoesNotFit where the config does not suit it."""
    if wanted := refusal(problem):
        raise DoesNotFit(f"mma={lane}: wanted {wanted}")
    contractions = views.nonempty_contractions(problem, config.reorder)
    if sums_weights(problem):
        products = [_WindowsBuilder(_of_image(c), lane, config.tile[0], chunk_bytes).weights() for c in contractions]
    else:
        products = [_WindowsBuilder(c, lane, config.tile[2], chunk_bytes).image() for c in contractions]
    exact = config.padding == EXACT
    return tuple(p if exact and p.of_n.memory.elem.is_float else evolve(p, halo=()) for p in products)


def _of_image(c: Contraction) -> Contraction:
    """Return the contraction whose result is the image, from the one whose result is the weights: equal tensors."""
    return evolve(c, m=c.k, n=c.m, k=c.n, of_m=c.of_n, of_n=c.result, result=c.of_m)


class _WindowsBuilder:
    """Builder of the views of `Windows`, from a contraction whose result is an image.

    `tile_products` are the products of a sum that a lane has in straight-line code: the config's tile along K,
    or along M for weights.
    """

    def __init__(self, contraction: Contraction, lane: LanePart, tile_products: int, chunk_bytes: int) -> None:
        self.lane_part, self.tile_products, self.chunk_bytes = lane, tile_products, chunk_bytes
        self.c = c = contraction
        names = {d.name for d in c.m}
        #: tap name -> (dimension of the source that it moves along, position name on that dimension)
        self.axis_of_tap = {
            d.name: (n, next(name for name, _ in t.terms if name in names))
            for d in c.k
            for n, t in enumerate(c.of_m.index)
            if d.name in dict(t.terms) and names.intersection(dict(t.terms))
        }
        if any(len(c.of_m.index[n].terms) > 2 for n, _ in self.axis_of_tap.values()):
            raise DoesNotFit(f"mma={lane}: wanted positions and taps that are not in blocks")
        self.taps = tuple(d for d in c.k if d.name in self.axis_of_tap)
        self.channels = tuple(d for d in c.k if d.name not in self.axis_of_tap)
        self.positions = {d.name: d for d in c.m}
        counts = [1] * len(self.taps) + [lane.rows, lane.columns]
        self.counts = counts[len(counts) - len(self.taps) :]

    def image(self) -> Windows:
        """Return the sums with the image as result."""
        c = self.c
        outs, ins = (prod(d.size for d in dims) for dims in (c.n, self.channels))
        if len(self.taps) < 2 and self.lane_part.rows > 1:
            raise DoesNotFit(f"mma={self.lane_part}: there is one axis of space, wanted one row a lane")
        divide("channels of a lane over those of a group", self.lane_part.channels, outs)
        if atom := self.lane_part.atom:
            divide("channels of a group over the instruction's K", ins, atom[2])
            divide("channels of a group over the instruction's side", outs, atom[0])
            if outs != self.lane_part.channels:
                raise DoesNotFit(f"mma={self.lane_part}: wanted the {outs} channels of a group in a lane")
        kept = [self.tile_products >= ins * prod(d.size for d in self.taps[n:]) for n in range(len(self.taps) + 1)]
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
            Cuts((*c.cuts.sizes, *cuts.sizes)), axes, looped, outs, ins, flat, halo=self._halo(source), origin=c.origin,
        )  # fmt: skip

    def weights(self) -> Windows:
        """Return the sums with the weights as result."""
        of_image, c = self.image(), self.c
        if self.tile_products != (wanted := of_image.ins * prod(w.taps for w in of_image.unrolled)):
            raise DoesNotFit(f"tile M of {self.tile_products}, wanted {wanted}: all taps of some axes of space")
        result = c.of_n.view((*c.batch, *c.n), (*self.taps, *self.channels))
        return evolve(of_image, of_n=of_image.result, result=result, flat=(), of_weights=True)

    def _cuts(self) -> Cuts:
        """Return the split of positions into blocks."""
        sizes = []
        for tap, count in zip(self.taps, self.counts):
            position = self.positions[self.axis_of_tap[tap.name][1]]
            if count > 1:
                sizes.append((position.name, (count, -(-position.size // count))))
        return Cuts(tuple(sizes))

    def _order(self, cuts: Cuts) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
        """Return the dims that count blocks, in memory order, and those within a block."""
        result, blocks = self.c.result, dict(cuts.sizes)
        in_memory = sorted(self.c.m, key=lambda d: (d.size > 1, -abs(result.stride(d.name))))
        pieces = {d.name: cuts.dims((d,)) for d in self.c.m}
        inner = tuple(pieces[at][-1] for at in (self.axis_of_tap[tap.name][1] for tap in self.taps) if at in blocks)
        return tuple(pieces[d.name][0] for d in in_memory), inner

    def _window(self, tap: Dim, count: int, looped: bool) -> Window:
        """Return the axis of a tap with `count` positions in a lane; a `looped` axis loads single places."""
        index, position = self.axis_of_tap[tap.name]
        t = self.c.of_m.index[index]
        step, growth = (dict(t.terms)[name] for name in (position, tap.name))
        unit = self._unit(t, position, tap, count)
        weights = [dict(w.terms).get(tap.name, 0) for w in self.c.of_n.index]
        run = 1 if looped else self._run(t, count * step, unit)
        flipped = any(coef < 0 for coef in weights)
        return Window(tap.size, count, step // unit, growth // unit, run, t.const % run, flipped)

    def _unit(self, t: TensorDim, position: str, tap: Dim, count: int) -> int:
        """Return the greatest common divisor of the distances between places that a lane reads."""
        terms = dict(t.terms)
        return gcd(terms[position] if count > 1 else 0, terms[tap.name] if tap.size > 1 else 0) or 1

    def _run(self, t: TensorDim, block: int, unit: int) -> int:
        """Return the places of the widest message that is wholly inside or outside the tensor; 1 for single places."""
        source = self.c.of_m
        if unit > 1 or source.spec.layout.step(source.index.index(t), 1) > 1:
            return 1
        return gcd(self.chunk_bytes // scalar(source.spec.dtype).bytes, t.size, block)

    def _source(self, s: tuple[Dim, ...], outer: tuple[Dim, ...], axes: tuple[Window, ...]) -> View:
        """Return the source with the axes S, blocks of positions and, by spatial axis, places in a block's windows."""
        index, places = list(self.c.of_m.index), []
        for tap, w, count in zip(self.taps, axes, self.counts):
            n, position = self.axis_of_tap[tap.name]
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
        moved_dims = {n for n, _ in self.axis_of_tap.values() if self.c.of_m.index[n].masked}
        return tuple(t for n, t in enumerate(source.index) if n in moved_dims)

    def _weights(self, n: tuple[Dim, ...], axes: tuple[Window, ...], looped: int) -> tuple[View, tuple[int, ...]]:
        """Return the weights, and the elements between taps of each axis and channels if a channel's are contiguous."""
        last = {tap.name: tap.size - 1 for tap, w in zip(self.taps, axes) if w.flipped}
        tensor = evolve(self.c.of_n, index=tuple(_flipped(t, last) for t in self.c.of_n.index))
        k = sorted((*self.taps, *self.channels), key=lambda d: -tensor.stride(d.name))
        dims = sorted((*n, *k), key=lambda d: d.size > 1)  # dims of size 1 outermost
        by_lanes = not self.lane_part.atom and not looped
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
    """Return the coordinate as a function of dims counted from their end."""
    terms = tuple((name, -coef if name in last else coef) for name, coef in t.terms)
    return evolve(t, terms=terms, const=t.const + sum(coef * last.get(name, 0) for name, coef in t.terms))
