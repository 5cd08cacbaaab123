"""Contractions: products of tensors before M, N and K become axes of views, and the step that makes them views.

N is the side along which the result is contiguous in memory: the matrix instruction keeps neighbours along N in one
lane. Where the result is contiguous along M, M and N are exchanged. Dims within an axis keep their order in memory, so
that contiguous elements stay together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import prod
from typing import Any

import attrs

from convgen.epilogue.numbered_rows import NumberedRows
from convgen.ir.layout.digits import Index as Number
from convgen.ir.layout.memory import Dim, Global, SizedGlobal, SizedView, TensorDim, View, stride
from convgen.ir.layout.tags import Layout
from convgen.ir.record import evolve, frozen
from convgen.ir.sizes import Extent, Size
from convgen.ir.types import bf16, f16, scalar
from convgen.plan.blocks import WHOLE, Cuts, Index
from convgen.plan.grouped_axis import GroupedAxis
from convgen.problem.matmul import Problem
from convgen.problem.tensors import TensorSpec

REORDERED = "_reordered"  #: ends the name of an input's reordered copy
GATE = "gate"  #: dim of N along which the gate (0) and up (1) of a gated linear unit differ; the result lacks it


@frozen
class Joined:
    """Dims of a view fused into one dim, the last of them innermost, after `lead` positions that hold no element."""

    name: str  #: name of the fused dim
    dims: tuple[Dim, ...]
    lead: int
    index: tuple[TensorDim, ...]  #: coordinates of the tensor by the dims

    def separated(self, at: Mapping[str, Any]) -> dict[str, Any]:
        """Return positions along the separate dims; a position along the fused dim is split into them."""
        positions = {name: position for name, position in at.items() if name != self.name}
        if self.name in at:
            rest = at[self.name] - self.lead
            for d in self.dims[:0:-1]:
                positions[d.name], rest = rest % d.size, rest // d.size
            positions[self.dims[0].name] = rest
        return positions


@frozen
class Origin:
    """A contraction before its dims are cut: coordinates of tensors by role, and the dims of K."""

    coordinates: tuple[tuple[str, Index], ...] = ()
    k: tuple[Dim, ...] = ()

    def index(self, *names: str) -> Index:
        """Return the coordinates of the first of some roles that has its own."""
        known = dict(self.coordinates)
        return next(known[name] for name in names if name in known)


@frozen
class Product:
    """One matrix product: `of_n` (N, K) times `of_m` (M, K) makes `result` (N, M)."""

    of_n: View
    of_m: View
    result: View
    role: str = ""  #: name of the product among those of one problem
    cuts: Cuts = WHOLE  #: from the dims of the problem to those of the views
    joined: Joined | None = attrs.field(default=None, kw_only=True)  #: fused dims of the result, if any
    gap: int = attrs.field(default=0, kw_only=True)  #: rows; empty ones after the last row of the result
    grouped: GroupedAxis | None = attrs.field(default=None, kw_only=True)  #: groups of rows, columns or terms, if any
    gathered: NumberedRows | None = attrs.field(default=None, kw_only=True)  #: rows of a factor by number, if any
    scattered: NumberedRows | None = attrs.field(default=None, kw_only=True)  #: rows of the result by number, if any
    origin: Origin = attrs.field(kw_only=True)  #: where steps after the sums find their tensors

    @property
    def stored(self) -> View:
        """Return the result as it is stored, with rows by number if the result has such."""
        return self.scattered.view(self.result) if self.scattered else self.result

    def in_dims(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the problem by the dims of the views."""
        return tensor.cut(self.cuts)

    @property
    def m(self) -> int:
        """Return the number of rows that are positions of the result."""
        return self.of_m.extent(0) - self.gap

    @property
    def n(self) -> int:
        return self.of_n.extent(0)

    @property
    def along_k(self) -> View:
        """Return the factor by whose elements K counts: the one with more, if bytes pack the other's numbers."""
        return max(self.of_m, self.of_n, key=lambda view: view.extent(1))

    @property
    def k(self) -> int:
        """Return the length of the fused K axis, padding included."""
        return self.along_k.extent(1)

    @property
    def batch(self) -> int:
        """Return the number of products of equal size: the length of the views' third axis, 1 without one.

        Groups of rows or columns are no such products.
        """
        if self.grouped and self.grouped.side is not None:
            return 1
        return self.result.extent(2) if len(self.result.axes) > 2 else 1

    def tiles(self, tile_m: Number, tile_n: Number) -> tuple[Number, Number]:
        """Return the tiles along M and N of one of the products, for numbers or arrays of a tile's sides.

        With groups of rows or columns, return the most tiles that groups of any sizes take.
        """
        return self._tiles((tile_m, tile_n), GroupedAxis.most_tiles)

    def usual_tiles(self, tile_m: Number, tile_n: Number) -> tuple[Number, Number]:
        """Return the tiles as `tiles` does, with groups of rows or columns those that groups usually take."""
        return self._tiles((tile_m, tile_n), GroupedAxis.usual_tiles)

    def _tiles(
        self, sides: tuple[Number, Number], of_groups: Callable[[GroupedAxis, Number], Number]
    ) -> tuple[Number, Number]:
        """Return the tiles along M and N, with groups of rows or columns the number that `of_groups` gives."""
        counts = [-(-size // side) for size, side in zip((self.m, self.n), sides)]
        if self.grouped and self.grouped.side is not None:
            at = 1 - self.grouped.side
            counts[at] = of_groups(self.grouped, sides[at])
        return counts[0], counts[1]

    @property
    def k_inner(self) -> Dim:
        """Return the innermost dim of K, along which a block of K may run."""
        return self.along_k.axes[1][-1]


@frozen
class Tensor:
    """A tensor and its coordinates as linear functions of the product's dims."""

    spec: TensorSpec
    index: Index
    sizes: tuple[Size, ...] = ()  #: sizes of its dims that are known only at launch

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Return the extents of the tensor's dims; a size known only at launch is symbolic."""
        known = {size.name: size for size in self.sizes}
        names = (t.terms[0][0] if t.terms else "" for t in self.index)
        return tuple(known.get(name, t.size) for name, t in zip(names, self.index))

    def with_sizes(self, sizes: tuple[Size, ...]) -> Tensor:
        """Return the tensor with those of the launch-time sizes that occur in its coordinates."""
        own = {name for t in self.index for name, _ in t.terms}
        return evolve(self, sizes=tuple(size for size in sizes if size.name in own))

    def stride(self, dim: str) -> int:
        """Return the distance in memory between neighbours along a dim, in elements."""
        return stride(self.spec.layout, self.index, dim)

    def cut(self, cuts: Cuts) -> Tensor:
        """Return the tensor with coordinates in terms of the pieces of split dims."""
        return evolve(self, index=cuts.index(self.spec.layout, self.index)) if cuts.sizes else self

    def runs_along(self, dims: tuple[Dim, ...]) -> bool:
        """Whether neighbours along one of the dims are neighbours in memory."""
        return any(d.size > 1 and self.stride(d.name) == 1 for d in dims)

    def joined(self, outer: Dim, inner: Dim) -> Tensor | None:
        """Return the tensor with `outer` counted by `inner`, as one dim; None where memory has them apart.

        Each of them must be a whole coordinate, so that no window moves along it.
        """
        at = {d.name: n for d in (outer, inner) for n, t in enumerate(self.index) if d.name in dict(t.terms)}
        layout = self.spec.layout
        if len(at) < 2 or not layout.is_plain:
            return None
        places = at[outer.name], at[inner.name]
        of_outer, of_inner = (self.index[n] for n in places)
        whole = all(t.size == d.size and not t.masked for t, d in ((of_outer, outer), (of_inner, inner)))
        if not whole or self.stride(outer.name) != self.stride(inner.name) * inner.size:
            return None
        size, index = outer.size * inner.size, list(self.index)
        index[places[0]] = evolve(of_outer, size=1, terms=tuple(t for t in of_outer.terms if t[0] != outer.name))
        index[places[1]] = evolve(of_inner, size=size)
        sizes = {places[0]: 1, places[1]: size}
        dims = (sizes.get(n, old) for n, old in enumerate(layout.dims))
        spec = evolve(self.spec, layout=Layout.strided(dims, layout.strides()))
        return evolve(self, spec=spec, index=tuple(index))

    def view(self, *axes: tuple[Dim, ...]) -> View:
        memory, layout = buffer(self.spec), self.spec.layout.padded
        if not self.sizes:
            return View(memory, layout, axes, self.index)
        sized = SizedGlobal(memory.name, memory.elem, memory.bytes, self.extents)
        return SizedView(sized, layout, axes, self.index, layout.strides_of(self.extents))


def buffer(spec: TensorSpec) -> Global:
    """Return the kernel argument that holds a tensor."""
    elem = scalar(spec.dtype)
    return Global(spec.name, elem, elem.size(spec.layout.size_elems))


@frozen
class Contraction:
    """A product before it is settled which side is M, which is N, and in which order the dims are."""

    m: tuple[Dim, ...]
    n: tuple[Dim, ...]
    k: tuple[Dim, ...]
    of_m: Tensor
    of_n: Tensor
    result: Tensor
    role: str = ""
    batch: tuple[Dim, ...] = ()  #: dims whose positions are separate products
    cuts: Cuts = WHOLE  #: from the problem's dims to the dims of this contraction
    origin: Origin = Origin()  #: the contraction as the problem has it
    by_factors: bool = False  #: whether M and N are in the order of the factors' memory, not of the result's

    def in_blocks(self, others: Collection[Tensor] = ()) -> Contraction:
        """Return the contraction with dims split where blocks of the layouts of its tensors, and of `others`, end."""
        tensors = self.of_m, self.of_n, self.result
        cuts = Cuts.of((*self.m, *self.n, *self.k, *self.batch), [(t.spec, t.index) for t in (*tensors, *others)])
        if not cuts.sizes:
            return self
        m, n, k, batch = map(cuts.dims, (self.m, self.n, self.k, self.batch))
        of_m, of_n, result = (t.cut(cuts) for t in tensors)
        return Contraction(m, n, k, of_m, of_n, result, self.role, batch, cuts, self.origin, self.by_factors)

    def fused(self) -> Contraction:
        """Return the contraction with the batch as part of N: correct for a launch that treats all results equally."""
        return evolve(self, n=(*self.batch, *self.n), batch=())

    def reading(self, problem: Problem, reorder: Collection[str]) -> Contraction:
        """Return the contraction with the inputs in `reorder` read from their reordered copies."""
        of_m, of_n = (
            evolve(t, spec=reordered(problem, t.spec.name)) if t.spec.name in reorder else t
            for t in (self.of_m, self.of_n)
        )
        return evolve(self, of_m=of_m, of_n=of_n)

    def with_joined_k(self) -> Contraction:
        """Return the contraction with dims of K that both factors have side by side in memory as one dim."""
        first, *rest = self._k_in_order
        k, of_m, of_n = [first], self.of_m, self.of_n
        for inner in rest:
            outer = k[-1]
            if outer.size == 1 or of_m.sizes or of_n.sizes:
                k.append(inner)
                continue
            joined_m, joined_n = of_m.joined(outer, inner), of_n.joined(outer, inner)
            if joined_m and joined_n:
                of_m, of_n = joined_m, joined_n
                k[-1] = dim_of(inner.name, outer.size * inner.size)
            else:
                k.append(inner)
        return evolve(self, k=tuple(k), of_m=of_m, of_n=of_n)

    def with_sizes(self, sizes: tuple[Size, ...]) -> Contraction:
        """Return the contraction with symbolic extents for the sizes that are known only at launch."""
        if not sizes:
            return self
        exact = {size.name: size for size in sizes}
        sides = (self.m, self.n, self.k, self.batch)
        m, n, k, batch = (tuple(evolve(d, exact=exact.get(d.name)) for d in dims) for dims in sides)
        of_m, of_n, result = (t.with_sizes(sizes) for t in (self.of_m, self.of_n, self.result))
        return evolve(self, m=m, n=n, k=k, batch=batch, of_m=of_m, of_n=of_n, result=result)

    def product(self, block: int) -> Product:
        """Return the product's views; M and N are exchanged where the result is contiguous along M."""
        if not self.result.runs_along(self.n) and self.result.runs_along(self.m):
            return evolve(self, m=self.n, n=self.m, of_m=self.of_n, of_n=self.of_m)._ordered(block)
        return self._ordered(block)

    @property
    def _k_in_order(self) -> tuple[Dim, ...]:
        """Return K in the order of the factor that is contiguous along it; if that does not decide, the larger one."""
        k = self.k
        return in_order(k, *sorted((self.of_m, self.of_n), key=lambda t: (not t.runs_along(k), -prod(t.spec.dims))))

    def _ordered(self, block: int) -> Product:
        m, n = (
            in_order(dims, *((factor, self.result) if self._leads(factor, dims) else (self.result, factor)))
            for dims, factor in ((self.m, self.of_m), (self.n, self.of_n))
        )
        k = self._k_in_order
        inner = k[-1]
        k = (*k[:-1], evolve(inner, padded=-(-inner.size // block) * block))
        batch = (in_order(self.batch, self.result, self.of_m),) if self.batch else ()
        views = self.of_n.view(n, k, *batch), self.of_m.view(m, k, *batch), self.result.view(n, m, *batch)
        return Product(*views, self.role, self.cuts, origin=self.origin)

    def _leads(self, factor: Tensor, dims: tuple[Dim, ...]) -> bool:
        """Return whether memory of a factor, not of the result, decides the order of M or N: also of one reordered.

        Gate and up of a column are neighbours whatever the factor has, so that a tile has both.
        """
        return self.by_factors or (factor.spec.name.endswith(REORDERED) and GATE not in [d.name for d in dims])


def in_order(dims: tuple[Dim, ...], first: Tensor, second: Tensor) -> tuple[Dim, ...]:
    """Return the dims in memory order, outermost first; dims of size 1 come first.

    Where a dim does not occur in the first tensor, or has the same stride as another, the second tensor decides.
    """

    def memory_order(d: Dim) -> tuple[bool, int, int]:
        return d.size > 1, -abs(first.stride(d.name)), -abs(second.stride(d.name))

    return tuple(sorted(dims, key=memory_order))


def dim_of(name: str, size: int) -> Dim:
    return Dim(name, size, size)


def along(name: str, size: int) -> TensorDim:
    return TensorDim(size, ((name, 1),))


def reordered(problem: Problem, name: str) -> TensorSpec:
    """Return an input with the default layout (tag `any`), in a buffer of its own; floats of 6 bits are unpacked."""
    spec = evolve(problem, stag="any", wtag="any", dtag="any").tensor(name)
    dtype = _unpacked_type(problem) if scalar(spec.dtype).is_by_bytes else spec.dtype
    return evolve(spec, name=f"{name}{REORDERED}", dtype=dtype)


def _unpacked_type(problem: Problem) -> str:
    """Return the type of unpacked floats of 6 bits, which both hold: bf16 if they are multiplied in it, else f16."""
    types = [scalar(t.dtype) for t in problem.factors]
    in_bf16 = problem.fpmath == bf16.name and all(map(bf16.holds, types))
    return bf16.name if in_bf16 or bf16 in types else f16.name
