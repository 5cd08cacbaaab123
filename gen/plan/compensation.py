"""Compensation terms for zero points and for u8 multiplied as s8: sums of one factor that are added to the product.

A factor is stored as x, means x - z with the zero point z, and is multiplied as x - o (o = 128 where u8 is multiplied
as s8, else 0). With w, y and p for the second factor,

    sum of (x - z) * (w - y) = sum of (x - o) * (w - p)      the product, over all K
                             + o * sum of w - K * o * p      over all K
                             - sum of z * (w - y)            where x is inside its tensor
                             + (p - y) * sum of x            over all K

An element outside its tensor is loaded as zero and becomes -o on its way to the product. `All K` therefore counts the
padding of blocks, and the sums are taken over elements as stored. Where windows reach outside the tensor of x, the
third term depends on the pixel: one launch sums it for each tap, a second one adds, for each pixel, the taps that are
inside.
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
from convgen.plan.padding import halo, names_in, window_coordinates
from convgen.problem.matmul import Problem
from convgen.problem.zero_points import ZeroPoint

_ONE = (Dim("one", 1, 1),)  #: an axis with one position

Axes = tuple[tuple[Dim, ...], ...]


@frozen
class Sums:
    """A launch that computes result[n, m]: the steps applied to the sum over r of (source - point) * factor, in s32."""

    role: str
    source: View  #: axes N, M, R
    result: View  #: axes N, M
    steps: tuple[Step, ...]
    factor: View | None = None  #: axes N, M, R
    point: View | int = 0  #: zero points of the source; axes N, M, R

    @property
    def reads(self) -> tuple[View, ...]:
        """Return the tensors that the launch reads."""
        return tuple(v for v in (self.source, self.factor, self.point) if isinstance(v, View))


@frozen
class Compensation:
    """The launches before the product's, in order, and the steps that add their results to the product."""

    launches: tuple[Sums, ...] = ()
    steps: tuple[Step, ...] = ()


def compensation(problem: Problem, product: Product, offsets: tuple[int, int], depth: Extent) -> Compensation:
    """Return the compensation of a product of length `depth` along K; `offsets` are the o of `of_n` and `of_m`."""
    if problem.acc_type != "s32":
        return Compensation()  # zero points of floats are subtracted before the product
    factors = [
        _Factor(view, offset, problem.zero_point(_name(view)))
        for view, offset in zip((product.of_n, product.of_m), offsets)
    ]
    builder = _CompensationBuilder(problem, product)
    w, x = sorted(factors, key=lambda f: _name(f.view) == "src")
    builder.weights(w, x, times(depth, -w.offset * x.offset))
    builder.source(x, w)
    return Compensation(tuple(builder.launches), tuple(builder.steps))


def _name(view: View) -> str:
    return view.memory.name.removesuffix("_reordered")


@frozen
class _Factor:
    view: View  #: axes rows, K, and the batch if there is one
    offset: int  #: o of the module's equation, subtracted on the way to the product
    point: ZeroPoint | None

    @property
    def known(self) -> int:
        """Return the zero point if the problem states its value, else 0."""
        return self.point.value or 0 if self.point else 0

    @property
    def batch(self) -> tuple[Dim, ...]:
        """Return the dims of the batch that index the factor's tensor."""
        used = names_in(self.view.index)
        return tuple(d for dims in self.view.axes[2:] for d in dims if d.name in used)

    @property
    def halo(self) -> tuple[TensorDim, ...]:
        """Return the coordinates along which windows reach outside the tensor."""
        return halo(self.view)

    @property
    def windows(self) -> dict[int, TensorDim]:
        """Return the coordinates that depend on both rows and K, by tensor dimension."""
        return window_coordinates(self.view)

    @property
    def is_plain(self) -> bool:
        """Whether the coordinates of windows have one stride each."""
        return all(len(self.view.layout.digits.of(LETTERS[n])) <= 1 for n in self.windows)

    @property
    def k_dims(self) -> tuple[Dim, ...]:
        """Return the dims of K without the padding of the product's blocks."""
        return tuple(evolve(d, padded=d.size) for d in self.view.axes[1])

    def over(self, others: tuple[Dim, ...], summed: tuple[Dim, ...]) -> View:
        """Return the factor's view with the axes N (its rows), M (`others`) and R (`summed`, the dims of the sum)."""
        return evolve(self.view, axes=(self.view.axes[0], others or _ONE, summed))


@frozen
class _StoredSums:
    """Sums that one launch stores for later launches: a dense tensor, its last dim innermost."""

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
        """Return the sums by the given axes, zero outside `halo`; `at` replaces the coordinates of some dims."""
        memory = Global(self.name, s32, self.layout.size_elems * s32.bytes)
        index = tuple((at or {}).get(d.name, t) for d, t in zip(self.dims, self.index))
        sizes = (*self.layout.dims, *(t.size for t in halo))
        layout = Layout.strided(sizes, (*self.layout.strides(), *(0 for _ in halo))) if halo else self.layout
        return View(memory, layout, axes, (*index, *halo))


class _CompensationBuilder:
    """Collector of the compensation launches and steps of one product."""

    def __init__(self, problem: Problem, product: Product) -> None:
        self.problem, self.product = problem, product
        self.launches: list[Sums] = []
        self.steps: list[Step] = []

    def weights(self, w: _Factor, x: _Factor, constant: Extent) -> None:
        """Add the terms with sums of weights, and the `constant` that does not depend on them."""
        scale = x.offset
        if x.point and x.point.is_known and not x.halo:
            scale -= x.known
            points = times(self._count(w.k_dims), x.known)
            steps = self._points_of_rows(w, (w.view.axes[0], w.batch or _ONE), points)
            self._rows(w, scale, plus(constant, times(points, w.known)), steps)
            return
        if scale:
            self._rows(w, scale, constant)
        if x.point:
            self._inside(w, x)

    def _count(self, dims: tuple[Dim, ...]) -> Extent:
        """Count the positions along dims of K without padding; pieces of a split dim count once, as the whole dim."""
        extents, joined = views.k_lengths(self.problem, self.product), self.product.joined
        separate = (part for d in dims for part in (joined.dims if joined and d.name == joined.name else (d,)))
        names = dict.fromkeys(d.name.partition("_")[0] for d in separate)
        count: Extent = reduce(times, (extents[name] for name in names if name in extents), 1)
        return count

    def source(self, x: _Factor, w: _Factor) -> None:
        """Add the term with sums of the source."""
        if w.point is None or w.point.is_known:
            if w.offset - w.known:
                self._rows(x, w.offset - w.known, 0)
            return
        sums = self._rows(x, 1, 0, add=False)
        view = sums.view(*views.result_axes(self.product, sums.index))
        if w.offset:
            self.steps.append(Bias(view, scale=w.offset))
        self.steps.append(Bias(view, views.view_over_result(self.problem, self.product, w.point.name, "wei"), -1))

    def _rows(
        self, factor: _Factor, scale: int, constant: Extent, steps: tuple[Step, ...] = (), *, add: bool = True
    ) -> _StoredSums:
        """Add a launch that sums rows along all of K; the sums are scaled, the `constant` is added and,
        if `add`, they are added to the product.

        Where the sums of single positions take fewer bytes than the elements, a preceding launch makes these sums, and
        windows add them up.
        """
        moving = names_in(factor.windows.values())
        taps, summed = (tuple(d for d in factor.k_dims if (d.name in moving) == inside) for inside in (True, False))
        saves = factor.is_plain and prod(d.size for d in taps) > 1 and prod(d.size for d in summed) > s32.bytes
        source = self._by_position(factor, taps, summed) if saves else factor.over(factor.batch, factor.k_dims)
        return self._launch(
            f"sums_{_name(factor.view)}", source, factor.batch, (Affine(scale, constant), *steps), add=add
        )

    def _by_position(self, factor: _Factor, taps: tuple[Dim, ...], summed: tuple[Dim, ...]) -> View:
        """Add a launch that sums each position of the tensor along `summed`; return the view that windows read."""
        moving = names_in(factor.windows.values())
        window_dims = {n: Dim(f"at{n}", t.size, t.size) for n, t in factor.windows.items()}
        index = tuple(
            TensorDim(t.size, ((window_dims[n].name, 1),)) if n in window_dims else t
            for n, t in enumerate(factor.view.index)
        )
        other_rows = (d for d in factor.view.axes[0] if d.name not in moving)
        dims = (*other_rows, *window_dims.values())
        rows = tuple(sorted(dims, key=lambda d: -stride(factor.view.layout, index, d.name)))
        source = evolve(factor.view, axes=(rows, factor.batch or _ONE, summed), index=index)
        sums = self._launch(f"sums_at_{_name(factor.view)}", source, factor.batch, (), add=False)
        at = {window_dims[n].name: t for n, t in factor.windows.items()}
        return sums.view(factor.view.axes[0], factor.batch or _ONE, taps, at=at)

    def _points_of_rows(self, w: _Factor, axes: Axes, scale: Extent) -> tuple[Step, ...]:
        """Return the step that adds the zero points of rows, scaled, where they are a tensor; else no step."""
        if w.point is None or w.point.is_known:
            return ()
        return (Bias(views.view_over(self.problem, self.product, w.point.name, "wei", *axes), scale=scale),)

    def _inside(self, w: _Factor, x: _Factor) -> None:
        """Add the term -sum of z * (w - y), taken where x is inside its tensor."""
        moving = names_in(x.halo)
        taps = tuple(d for d in w.k_dims if d.name in moving)
        summed = tuple(d for d in w.k_dims if d.name not in moving) or _ONE
        pixels = tuple(d for d in x.view.axes[0] if d.name in moving)
        weighted = self._weighted(w, x, (*w.batch, *taps), summed, add=not x.halo)
        if x.halo:
            source = weighted.view(w.view.axes[0], (*w.batch, *pixels), taps or _ONE, halo=x.halo)
            self._launch("sums_inside", source, (*w.batch, *pixels), ())

    def _weighted(
        self, w: _Factor, x: _Factor, others: tuple[Dim, ...], summed: tuple[Dim, ...], *, add: bool
    ) -> _StoredSums:
        """Add a launch with the sums of -z * (w - y), one for each position of `others`."""
        assert x.point is not None
        source, role = w.over(others, summed), "sums_points"
        if x.point.is_known:
            points = times(self._count(summed), x.known)
            steps = Affine(-x.known, times(points, w.known)), *self._points_of_rows(w, source.axes[:2], points)
            return self._launch(role, source, others, steps, add=add)
        factor = views.view_over(self.problem, self.product, x.point.name, "src", *source.axes)
        joined = self.product.joined
        if joined and names_in(factor.index) & {d.name for d in joined.dims}:
            raise DoesNotFit(
                f"taps={joined.name}s: wanted {x.point.name} constant along channels, part of a {joined.name}"
            )
        point: View | int = w.known
        if w.point and not w.point.is_known:
            point = views.view_over(self.problem, self.product, w.point.name, "wei", *source.axes)
        factor = views.zero_outside(factor, self._ragged(summed))
        return self._launch(role, source, others, (Affine(-1, 0),), factor, point, add=add)

    def _ragged(self, summed: tuple[Dim, ...]) -> tuple[TensorDim, ...]:
        """Return the coordinates along `summed` that reach into padding of blocks, with their true sizes.

        Weights are stored as 0 there, and 0 less their zero point is not 0.
        """
        names, cuts = {d.name for d in summed}, self.product.cuts
        whole = (
            TensorDim(size, ((name, 1),))
            for name, size in views.k_lengths(self.problem, self.product).items()
            if isinstance(size, int)
        )
        pieces = (t for dim in whole for t in cuts.index(Layout.dense((dim.size,), (0,)), (dim,)))
        return tuple(t for t in pieces if t.masked and names_in((t,)) <= names)

    def _launch(
        self,
        name: str,
        source: View,
        others: tuple[Dim, ...],
        steps: tuple[Step, ...],
        factor: View | None = None,
        point: View | int = 0,
        *,
        add: bool = True,
    ) -> _StoredSums:
        """Add a launch that stores sums by row and `others`; with `add`, the product adds them as a bias."""
        role = f"{name}_{self.product.role}" if self.product.role else name
        stored = _StoredSums(role, (*others, *source.axes[0]))
        self.launches.append(Sums(role, source, stored.view(*source.axes[:2]), steps, factor, point))
        if add:
            self.steps.append(Bias(stored.view(*views.result_axes(self.product, stored.index))))
        return stored
