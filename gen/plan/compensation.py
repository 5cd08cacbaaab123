"""What is added to a product whose factors are less than what is multiplied, or more: sums of the other factor.

A factor stands in memory as x, counts as x - z with a zero point z, and is multiplied as x - o: u8 as s8 is less by
o = 128. With w, y and p for the other factor,

    sum of (x - z) * (w - y) = sum of (x - o) * (w - p)      the product, over all K
                             + o * sum of w - K * o * p      over all K
                             - sum of z * (w - y)            where x is inside its tensor
                             + (p - y) * sum of x            over all K

An element outside its tensor is a zero, which on its way to the product becomes -o like any other; so `all K` counts
what pads blocks, and what sums are of is as it is in memory. Where windows reach outside the tensor of x, the third
term depends on the pixel: it is summed for each tap first, and for each pixel over the taps that are inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import prod

from convgen.epilogue.epilogue import Step
from convgen.epilogue.steps import Affine, Bias
from convgen.ir.error import DoesNotFit
from convgen.ir.layout.digits import plus, times
from convgen.ir.layout.memory import Dim, Global, TensorDim, View, stride
from convgen.ir.layout.tags import LETTERS, Layout
from convgen.ir.record import evolve, frozen
from convgen.ir.sizes import Extent
from convgen.ir.types import s32
from convgen.plan import views
from convgen.plan.contraction import Product
from convgen.plan.padding import halo, names_in, windows
from convgen.problem.matmul import Problem
from convgen.problem.zero_points import ZeroPoint

_ONE = (Dim("one", 1, 1),)  #: an axis with one position

Axes = tuple[tuple[Dim, ...], ...]


@frozen
class Sums:
    """A launch: result[n, m] is what the steps make of the sum over r of (source - shift) * factor, in s32."""

    role: str
    source: View  #: axes N, M, R
    result: View  #: axes N, M
    steps: tuple[Step, ...]
    factor: View | None = None  #: axes N, M, R
    shift: View | int = 0  #: axes N, M, R

    @property
    def reads(self) -> tuple[View, ...]:
        """The tensors that are summed."""
        return tuple(v for v in (self.source, self.factor, self.shift) if isinstance(v, View))


@frozen
class Compensation:
    """The launches before the product's, in order, and what is to be added to its sums."""

    sums: tuple[Sums, ...] = ()
    steps: tuple[Step, ...] = ()


def compensation(problem: Problem, product: Product, less: tuple[int, int], depth: Extent) -> Compensation:
    """Of `of_n` and `of_m`, multiplied as so much less than they are, over so many positions along K."""
    if problem.acc_type != "s32":
        return Compensation()  # zero points of floats are taken off before
    factors = [
        _Factor(view, by, problem.zero_point(_name(view))) for view, by in zip((product.of_n, product.of_m), less)
    ]
    made = _Maker(problem, product)
    w, x = sorted(factors, key=lambda f: _name(f.view) == "src")
    made.weights(w, x, times(depth, -w.less * x.less))
    made.source(x, w)
    return Compensation(tuple(made.sums), tuple(made.steps))


def _name(view: View) -> str:
    return view.memory.name.removesuffix("_reordered")


@frozen
class _Factor:
    view: View  #: axes rows, K, and the batch if there is one
    less: int
    point: ZeroPoint | None

    @property
    def known(self) -> int:
        """The zero point, if it is known."""
        return self.point.value or 0 if self.point else 0

    @property
    def batch(self) -> tuple[Dim, ...]:
        """The dims of a batch on which it depends."""
        used = names_in(self.view.index)
        return tuple(d for dims in self.view.axes[2:] for d in dims if d.name in used)

    @property
    def halo(self) -> tuple[TensorDim, ...]:
        """Coordinates of windows that reach outside the tensor."""
        return halo(self.view)

    @property
    def windows(self) -> dict[int, TensorDim]:
        """Coordinates, by tensor dimension, that depend on rows and on K."""
        return windows(self.view)

    @property
    def is_plain(self) -> bool:
        """Whether the coordinates of windows have one stride each."""
        return all(len(self.view.layout.digits.of(LETTERS[n])) <= 1 for n in self.windows)

    @property
    def k_dims(self) -> tuple[Dim, ...]:
        """Those of K, without what pads blocks of the product."""
        return tuple(evolve(d, padded=d.size) for d in self.view.axes[1])

    def over(self, others: tuple[Dim, ...], summed: tuple[Dim, ...]) -> View:
        """Its rows, other dims, and those along which it is to be summed, as the axes N, M, R."""
        return evolve(self.view, axes=(self.view.axes[0], others or _ONE, summed))


@frozen
class _Left:
    """Sums that a launch leaves for those behind it: dense, the last dims innermost."""

    name: str
    dims: tuple[Dim, ...]

    @property
    def layout(self) -> Layout:
        return Layout.dense((d.size for d in self.dims), tuple(range(len(self.dims))))

    @property
    def index(self) -> tuple[TensorDim, ...]:
        return tuple(TensorDim(d.size, ((d.name, 1),)) for d in self.dims)

    def view(
        self, *axes: tuple[Dim, ...], at: Mapping[str, TensorDim] | None = None, halo: tuple[TensorDim, ...] = ()
    ) -> View:
        """The sums by some axes, `at` other places along some dims; where a `halo` leaves its range they are zero."""
        memory = Global(self.name, s32, self.layout.size_elems * s32.bytes)
        index = tuple((at or {}).get(d.name, t) for d, t in zip(self.dims, self.index))
        sizes = (*self.layout.dims, *(t.size for t in halo))
        layout = Layout.strided(sizes, (*self.layout.strides(), *(0 for _ in halo))) if halo else self.layout
        return View(memory, layout, axes, (*index, *halo))


class _Maker:
    """Collects launches and steps for one product."""

    def __init__(self, problem: Problem, product: Product) -> None:
        self.problem, self.product = problem, product
        self.sums: list[Sums] = []
        self.steps: list[Step] = []

    def weights(self, w: _Factor, x: _Factor, both: Extent) -> None:
        """The terms with sums of weights."""
        scale = x.less
        if x.point and x.point.is_known and not x.halo:
            scale -= x.known
            each = times(self._count(w.k_dims), x.known)
            steps = self._points_of_rows(w, (w.view.axes[0], w.batch or _ONE), each)
            self._rows(w, scale, plus(both, times(each, w.known)), steps)
            return
        if scale:
            self._rows(w, scale, both)
        if x.point:
            self._inside(w, x)

    def _count(self, dims: tuple[Dim, ...]) -> Extent:
        """Positions that exist along some dims of K, along pieces of them, or along several that are one."""
        extents, joined = views.summed(self.problem), self.product.joined
        apart = (each for d in dims for each in (joined.dims if joined and d.name == joined.name else (d,)))
        names = dict.fromkeys(d.name.partition("_")[0] for d in apart)
        found: Extent = reduce(times, (extents[name] for name in names if name in extents), 1)
        return found

    def source(self, x: _Factor, w: _Factor) -> None:
        """The term with sums of the source."""
        if w.point is None or w.point.is_known:
            if w.less - w.known:
                self._rows(x, w.less - w.known, 0)
            return
        left = self._rows(x, 1, 0, add=False)
        view = left.view(*views.over_result(self.product, left.index))
        if w.less:
            self.steps.append(Bias(view, scale=w.less))
        self.steps.append(Bias(view, views.operand(self.problem, self.product, w.point.name, "wei"), -1))

    def _rows(
        self, own: _Factor, scale: int, shift: Extent, steps: tuple[Step, ...] = (), *, add: bool = True
    ) -> _Left:
        """Sums of rows along all of K, multiplied and shifted; they are added to the product.

        Windows take sums of bytes that are made before where these are fewer bytes than what they sum.
        """
        moving = names_in(own.windows.values())
        taps, rest = (tuple(d for d in own.k_dims if (d.name in moving) == inside) for inside in (True, False))
        saves = own.is_plain and prod(d.size for d in taps) > 1 and prod(d.size for d in rest) > s32.bytes
        source = self._by_position(own, taps, rest) if saves else own.over(own.batch, own.k_dims)
        return self._left(f"sums_{_name(own.view)}", source, own.batch, (Affine(scale, shift), *steps), add=add)

    def _by_position(self, own: _Factor, taps: tuple[Dim, ...], rest: tuple[Dim, ...]) -> View:
        """What windows take of sums along the rest of K, which are made once for each position of the tensor."""
        moving = names_in(own.windows.values())
        places = {n: Dim(f"at{n}", t.size, t.size) for n, t in own.windows.items()}
        index = tuple(
            TensorDim(t.size, ((places[n].name, 1),)) if n in places else t for n, t in enumerate(own.view.index)
        )
        kept = (d for d in own.view.axes[0] if d.name not in moving)
        rows = tuple(sorted((*kept, *places.values()), key=lambda d: -stride(own.view.layout, index, d.name)))
        source = evolve(own.view, axes=(rows, own.batch or _ONE, rest), index=index)
        left = self._left(f"sums_at_{_name(own.view)}", source, own.batch, (), add=False)
        at = {places[n].name: t for n, t in own.windows.items()}
        return left.view(own.view.axes[0], own.batch or _ONE, taps, at=at)

    def _points_of_rows(self, w: _Factor, axes: Axes, scale: Extent) -> tuple[Step, ...]:
        """What is to be added of the zero points of rows, where these are a tensor."""
        if w.point is None or w.point.is_known:
            return ()
        return (Bias(views.operand_over(self.problem, self.product, w.point.name, "wei", *axes), scale=scale),)

    def _inside(self, w: _Factor, x: _Factor) -> None:
        """What the zero point of x takes away, where x is inside its tensor."""
        moving = names_in(x.halo)
        taps = tuple(d for d in w.k_dims if d.name in moving)
        summed = tuple(d for d in w.k_dims if d.name not in moving) or _ONE
        pixels = tuple(d for d in x.view.axes[0] if d.name in moving)
        left = self._weighted(w, x, (*w.batch, *taps), summed, add=not x.halo)
        if x.halo:
            source = left.view(w.view.axes[0], (*w.batch, *pixels), taps or _ONE, halo=x.halo)
            self._left("sums_inside", source, (*w.batch, *pixels), ())

    def _weighted(
        self, w: _Factor, x: _Factor, others: tuple[Dim, ...], summed: tuple[Dim, ...], *, add: bool
    ) -> _Left:
        """The sums of -z * (w - y), for each of `others`."""
        assert x.point is not None
        source, role = w.over(others, summed), "sums_points"
        if x.point.is_known:
            each = times(self._count(summed), x.known)
            steps = Affine(-x.known, times(each, w.known)), *self._points_of_rows(w, source.axes[:2], each)
            return self._left(role, source, others, steps, add=add)
        factor = views.operand_over(self.problem, self.product, x.point.name, "src", *source.axes)
        joined = self.product.joined
        if joined and names_in(factor.index) & {d.name for d in joined.dims}:
            raise DoesNotFit(f"taps={joined.name}s: wanted {x.point.name} alike along channels, which these hold")
        shift: View | int = w.known
        if w.point and not w.point.is_known:
            shift = views.operand_over(self.problem, self.product, w.point.name, "wei", *source.axes)
        return self._left(role, source, others, (Affine(-1, 0),), factor, shift, add=add)

    def _left(
        self,
        name: str,
        source: View,
        others: tuple[Dim, ...],
        steps: tuple[Step, ...],
        factor: View | None = None,
        shift: View | int = 0,
        *,
        add: bool = True,
    ) -> _Left:
        """A launch that leaves sums by rows and `others`; unless others want them they are added to the product."""
        role = f"{name}_{self.product.role}" if self.product.role else name
        left = _Left(role, (*others, *source.axes[0]))
        self.sums.append(Sums(role, source, left.view(*source.axes[:2]), steps, factor, shift))
        if add:
            self.steps.append(Bias(left.view(*views.over_result(self.product, left.index))))
        return left
