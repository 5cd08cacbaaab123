"""Problems as matrix products: views of the three tensors of each product with M, N and K axes.

| direction | M | N | K | product |
|---|---|---|---|---|
| forward | mb, o… | oc | k…, ic | dst = src * wei |
| backward data | mb, i… of one stride phase | ic | taps of that phase, oc | diff_src = diff_dst * wei |
| backward weights | oc | k…, ic | mb, o… | diff_wei = diff_dst * src |

N is the side along which the result lies contiguous in memory: the matrix unit holds neighbours along N in one lane.
Where the result's layout runs along the other side, the two change places. The order of the dims within an axis is that
of memory, so that what is contiguous stays together. Channels are those of one group: groups, and the matrices of a
batch, are a third axis, each position of which is a product by itself. Nothing after this module knows more of
convolution.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import product as combinations
from math import gcd, prod

import attrs

from convgen.ir.error import Unsupported
from convgen.ir.layout.memory import Dim, Global, SizedGlobal, SizedView, TensorDim, View
from convgen.ir.sizes import Extent, Size
from convgen.ir.types import Type, s32, scalar
from convgen.plan.blocks import WHOLE, Cuts
from convgen.problem.conv import Axis, Conv
from convgen.problem.conv import Direction as Dir
from convgen.problem.matmul import Matmul, Problem
from convgen.problem.tensors import TensorSpec

_NAMES = "dhw"
_MATRICES = {"src": "mk", "wei": "kn", "dst": "mn"}

Index = tuple[TensorDim, ...]


@attrs.frozen
class Product:
    """One matrix product: `of_n` (N, K) times `of_m` (M, K) makes `result` (N, M)."""

    of_n: View
    of_m: View
    result: View
    role: str = ""  #: name of the product among those of one problem
    cuts: Cuts = WHOLE  #: of the dims of the problem into those of the views

    @property
    def m(self) -> int:
        """Rows of the result."""
        return self.of_m.extent(0)

    @property
    def n(self) -> int:
        return self.of_n.extent(0)

    @property
    def k(self) -> int:
        """Length of the fused K axis, padding included."""
        return self.of_m.extent(1)

    @property
    def batch(self) -> int:
        """How many such products there are, one for each position of the views' last axis, if they have a third."""
        return self.result.extent(2) if len(self.result.axes) > 2 else 1

    @property
    def k_inner(self) -> Dim:
        """The innermost dimension of K: what a block of K may run along."""
        return self.of_m.axes[1][-1]


def products(problem: Problem, block: int, moved: Collection[str] = ()) -> tuple[Product, ...]:
    """The products of a problem; the innermost dimension of K is padded to a multiple of `block` (1: not at all).

    The inputs `moved` are read where a kernel before has put them (see `reordered`).

    They write disjoint parts of the result. What is a sum of nothing is left out: what no window reaches in backward
    data, all of it in backward weights without images (see `covers_result`).
    """
    steps = _in_steps(problem)
    found = (c.reading(problem, moved).in_blocks(steps).counted(sizes(problem)) for c in _contractions(problem))
    made = (c.product(block) for c in found)
    return tuple(p for p in made if p.m and p.n and p.k)


def sizes(problem: Problem) -> tuple[Size, ...]:
    """The sizes that are known at launch: at most the problem's, and multiples of what divides these, up to a chunk.

    Of a batch there may be any number.
    """
    if not problem.runtime:
        return ()
    divisors: dict[Dim, int] = {}
    for c in _contractions(problem):
        divisors |= {d: gcd(d.size, _PROMISED) for d in (*c.m, *c.n, *c.k)} | dict.fromkeys(c.batch, 1)
    chosen = ((d, divisor) for d, divisor in divisors.items() if d.name in problem.runtime)
    return tuple(Size(d.name, 0, s32, 1, d.size, divisor) for d, divisor in chosen)


_PROMISED = 16  #: elements: whole chunks of 16 bytes of any type


def beside(problem: Matmul, spec: TensorSpec, role: str, factor: View) -> View:
    """A tensor that is 1 long along dims of src or weights, or has one element for a group, by the axes of these."""
    index = tuple(_of_groups(problem, t) for t in _batched(spec, _MATRICES[role]))
    return View(buffer(spec), spec.layout, factor.axes, index)


def _of_groups(problem: Matmul, t: TensorDim) -> TensorDim:
    """A coordinate as the number of its group, if it goes in groups."""
    if t.size == 1:
        return TensorDim(1, ())
    ((name, _),) = t.terms
    sizes = problem.groups.get(name, ())
    return TensorDim(t.size, ((f"{name}g" if _is_split(sizes) else name, 1),))


def _is_split(sizes: tuple[int, ...]) -> bool:
    """Whether an axis is one of groups of neighbours."""
    return len(sizes) == 1 and sizes[0] > 1


def is_widened(problem: Problem, name: str) -> bool:
    """Whether an input has elements of 4 bits, which a launch before brings to bytes."""
    return any(spec.name == name and scalar(spec.dtype).bits == 4 for spec in problem.inputs)


def bytes_of(problem: Problem, name: str) -> TensorSpec:
    """A tensor, or where its elements have 4 bits the same in bytes, in a buffer of its own."""
    spec = problem.tensor(name)
    wide = {"s4": "s8", "u4": "u8"}.get(spec.dtype)
    return attrs.evolve(spec, name=f"{name}_bytes", dtype=wide) if wide else spec


def widening(problem: Problem, name: str) -> tuple[View, View]:
    """A tensor as it is and as bytes, both as (rows, columns)."""
    specs = problem.tensor(name), bytes_of(problem, name)
    rows, columns = (tuple(_dim(f"dim{n}", specs[0].dims[n]) for n in dims) for dims in _last_apart(len(specs[0].dims)))
    index = tuple(_same(d.name, d.size) for d in (*rows, *columns))
    source, target = (_Tensor(spec, index) for spec in specs)
    return source.view(rows, columns), target.view(rows, columns)


def _last_apart(rank: int) -> tuple[range, range]:
    return range(rank - 1), range(rank - 1, rank)


def operand_types(problem: Problem) -> tuple[Type, Type]:
    """The element types of `of_n` and `of_m`, which all products of a problem have on the same sides."""
    first, second = (scalar(t.dtype) for t in problem.factors)
    if first is not second:
        for made in products(problem, 1, must_move(problem)):
            return made.of_n.memory.elem, made.of_m.memory.elem
    return first, second


def operands(problem: Problem) -> tuple[View, View]:
    """N's and M's input of a product of a problem; which one that is does not matter."""
    made = products(problem, 1, must_move(problem))[0]
    return made.of_n, made.of_m


@lru_cache(maxsize=2**10)
def must_move(problem: Problem) -> tuple[str, ...]:
    """The inputs in blocks that no view follows, the fewest: they are read where a kernel before has put them.

    Raises Unsupported where it is the result that is in such blocks.
    """
    blocked = tuple(t.name for t in problem.factors if not t.layout.is_plain)
    for moved in ((), *((name,) for name in blocked)):
        with suppress(Unsupported):
            products(problem, 1, moved)
            return moved
    products(problem, 1, blocked)
    return blocked


def contractions(problem: Problem, moved: Collection[str] = ()) -> tuple[Contraction, ...]:
    """The products of a problem with something to sum, before M, N and K are axes of views (see `products`)."""
    steps = _in_steps(problem)
    found = (c.reading(problem, moved).in_blocks(steps) for c in _contractions(problem))
    return tuple(c for c in found if all(prod(d.size for d in dims) for dims in (c.m, c.n, c.k)))


def _contractions(problem: Problem) -> Iterable[Contraction]:
    if isinstance(problem, Matmul):
        return (_matmul(problem),)
    if problem.direction.is_forward:
        return (_forward(problem),)
    return _backward_data(problem) if problem.direction is Dir.BWD_D else (_backward_weights(problem),)


def covers_result(problem: Problem) -> bool:
    """Whether the products write every element of the result."""
    summed = (c for c in _contractions(problem) if prod(d.size for d in c.k))
    return sum(prod(d.size for d in (*c.m, *c.n, *c.batch)) for c in summed) == prod(problem.outputs[0].dims)


def whole_result(problem: Problem) -> View:
    """All of the result as (N, M)."""
    if isinstance(problem, Matmul) or problem.direction is not Dir.BWD_D:
        (contraction,) = _contractions(problem)
        return contraction.reading(problem, must_move(problem)).fused().in_blocks().product(1).result
    axes = _axes(problem)
    index = (_same("mb", problem.mb), _same("ic", problem.ic), *(_same(f"i{n}", a.i) for n, a in axes))  # of all groups
    tensor = _Tensor(_tensor(problem, "diff_src"), index)
    channels: tuple[Dim, ...] = (_dim("ic", problem.ic),)
    positions: tuple[Dim, ...] = (_dim("mb", problem.mb), *(_dim(f"i{n}", a.i) for n, a in axes))
    cuts = Cuts.of((*channels, *positions), [(tensor.spec, tensor.index)])
    tensor, channels, positions = tensor.cut(cuts), cuts.dims(channels), cuts.dims(positions)
    sides = (channels, positions) if tensor.runs_along(channels) else (positions, channels)
    return tensor.view(*(_order(side, tensor, tensor) for side in sides))


def operand(problem: Problem, part: Product, name: str, role: str = "dst") -> View:
    """A tensor that a step reads as (N, M), the same all along a side on which it does not depend.

    Its dims are those of src, of weights or of dst, `role`, or 1.
    """
    tensor = _Tensor(problem.tensor(name), _operand_index(problem, name, role)).cut(part.cuts).counted(sizes(problem))
    return tensor.view(*over_result(part, tensor.index))


def over_result(part: Product, index: Index) -> tuple[tuple[Dim, ...], ...]:
    """The axes of the result for a tensor with these coordinates; without dims where it is the same all along."""
    used = {name for t in index for name, _ in t.terms}
    sides = (
        side if used.intersection(d.name for d in side) else (_dim(f"any{n}", part.result.extent(n)),)
        for n, side in enumerate(part.result.axes[:2])
    )
    return *sides, *part.result.axes[2:]


def operand_over(problem: Problem, part: Product, name: str, role: str, *axes: tuple[Dim, ...]) -> View:
    """A tensor with the dims of src, of weights or of dst, `role`, or 1, by some axes."""
    tensor = _Tensor(problem.tensor(name), _operand_index(problem, name, role)).cut(part.cuts)
    return tensor.counted(sizes(problem)).view(*axes)


def summed(problem: Problem) -> dict[str, Extent]:
    """How many positions there are along the dims of K, by their names before they are cut."""
    (contraction,) = _contractions(problem)
    return {d.name: d.extent for d in contraction.counted(sizes(problem)).k}


def _in_steps(problem: Problem) -> list[_Tensor]:
    """The tensors in blocks that steps behind the sums read: they have the dims of the result."""
    steps = (t for t in problem.inputs if t not in problem.factors and t not in problem.outputs)
    return [_Tensor(t, _operand_index(problem, t.name, "dst")) for t in steps if not t.layout.is_plain]


def is_along_k(problem: Problem, name: str, role: str) -> bool:
    """Whether an operand differs along dims that are summed."""
    result = {term for t in _operand_index(problem, "dst", "dst") for term, _ in t.terms}
    return any(term not in result for t in _operand_index(problem, name, role) for term, _ in t.terms)


def _operand_index(problem: Problem, name: str, role: str) -> Index:
    index = _coordinates(problem)[name if name == "bia" and isinstance(problem, Conv) else role]
    if isinstance(problem, Matmul):
        index = tuple(_grouped(problem, t) for t in index)
    return tuple(t if size != 1 else TensorDim(1, ()) for t, size in zip(index, problem.tensor(name).dims))


def _coordinates(problem: Problem) -> dict[str, Index]:
    """Those of src, of weights, of dst and of the channels that a bias has, of what is computed forward."""
    if isinstance(problem, Matmul):
        return {role: _batched(problem.tensor(role), dims) for role, dims in _MATRICES.items()}
    _, _, src, wei, dst = _forward_dims(problem)
    return {"src": src, "wei": wei, "dst": dst, "bia": dst[1:2]}


def bias_gradient(problem: Problem) -> View | None:
    """diff_dst as (N, K), of which the sums along K are the gradient of the bias; None if that is not wanted."""
    if isinstance(problem, Matmul) or problem.direction is not Dir.BWD_WB:
        return None
    alone = attrs.evolve(problem, groups=1, has_groups=False)  # each channel is summed by itself
    positions, _, _, _, index = _forward_dims(alone)
    tensor, channels = _Tensor(_tensor(problem, "diff_dst"), index), (_dim("oc", problem.oc),)
    cuts = Cuts.of((*channels, *positions), [(tensor.spec, tensor.index)])
    tensor = tensor.cut(cuts)
    return tensor.view(cuts.dims(channels), _order(cuts.dims(positions), tensor, tensor))


def reordered(problem: Problem, name: str) -> TensorSpec:
    """An input in the layout that its tag `any` means, in a buffer of its own."""
    spec = attrs.evolve(problem, stag="any", wtag="any", dtag="any").tensor(name)
    return attrs.evolve(spec, name=f"{name}_reordered")


def reordering(problem: Problem, name: str) -> tuple[View, View]:
    """An input where it is and where it goes, both as (rows, what is contiguous where it goes)."""
    specs = problem.tensor(name), reordered(problem, name)
    dims = tuple(_dim(f"dim{n}", size) for n, size in enumerate(specs[0].dims))
    index = tuple(_same(d.name, d.size) for d in dims)
    cuts = Cuts.of(dims, [(spec, index) for spec in specs])
    source, target = (_Tensor(spec, index).cut(cuts) for spec in specs)
    *outer, inner = _order(dims, _Tensor(specs[1], index), _Tensor(specs[1], index))
    rows = _order(cuts.dims(outer), source, target)
    return source.view(rows, cuts.dims((inner,))), target.view(rows, cuts.dims((inner,)))


# ---------------------------------------------------------------- making views


@attrs.frozen
class _Tensor:
    """A tensor and its coordinates as linear functions of the product's dims."""

    spec: TensorSpec
    index: Index
    sizes: tuple[Size, ...] = ()  #: those of its dims that are known at launch

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Of the tensor's dims."""
        known = {size.name: size for size in self.sizes}
        names = (t.terms[0][0] if t.terms else "" for t in self.index)
        return tuple(known.get(name, t.size) for name, t in zip(names, self.index))

    def counted(self, sizes: tuple[Size, ...]) -> _Tensor:
        """The same with those of these sizes that it has."""
        own = {name for t in self.index for name, _ in t.terms}
        return attrs.evolve(self, sizes=tuple(size for size in sizes if size.name in own))

    def stride(self, dim: str) -> int:
        """Distance in memory, in elements, between neighbours along a dim."""
        layout = self.spec.layout
        return sum(layout.step(n, coef) for n, t in enumerate(self.index) for name, coef in t.terms if name == dim)

    def cut(self, cuts: Cuts) -> _Tensor:
        """The same with pieces of the dims for coordinates."""
        return attrs.evolve(self, index=cuts.index(self.spec.layout, self.index)) if cuts.sizes else self

    def runs_along(self, dims: tuple[Dim, ...]) -> bool:
        """Whether neighbours along one of the dims are neighbours in memory."""
        return any(d.size > 1 and self.stride(d.name) == 1 for d in dims)

    def view(self, *axes: tuple[Dim, ...]) -> View:
        memory, layout = buffer(self.spec), self.spec.layout.padded
        if not self.sizes:
            return View(memory, layout, axes, self.index)
        held = SizedGlobal(memory.name, memory.elem, memory.bytes, self.extents)
        return SizedView(held, layout, axes, self.index, layout.strides_of(self.extents))


def buffer(spec: TensorSpec) -> Global:
    """The kernel argument that holds a tensor."""
    elem = scalar(spec.dtype)
    return Global(spec.name, elem, elem.size(spec.layout.size_elems))


@attrs.frozen
class Contraction:
    """A product before M and N, and the order of the dims, are settled."""

    m: tuple[Dim, ...]
    n: tuple[Dim, ...]
    k: tuple[Dim, ...]
    of_m: _Tensor
    of_n: _Tensor
    result: _Tensor
    role: str = ""
    batch: tuple[Dim, ...] = ()  #: each position is a product by itself
    cuts: Cuts = WHOLE  #: of the problem's dims into these

    def in_blocks(self, others: Collection[_Tensor] = ()) -> Contraction:
        """The same with dims cut where blocks of the tensors' layouts end, `others` included."""
        tensors = self.of_m, self.of_n, self.result
        cuts = Cuts.of((*self.m, *self.n, *self.k, *self.batch), [(t.spec, t.index) for t in (*tensors, *others)])
        if not cuts.sizes:
            return self
        m, n, k, batch = map(cuts.dims, (self.m, self.n, self.k, self.batch))
        of_m, of_n, result = (t.cut(cuts) for t in tensors)
        return Contraction(m, n, k, of_m, of_n, result, self.role, batch, cuts)

    def fused(self) -> Contraction:
        """The same result where the batch is part of N: right for who writes all of it alike."""
        return attrs.evolve(self, n=(*self.batch, *self.n), batch=())

    def reading(self, problem: Problem, moved: Collection[str]) -> Contraction:
        """The same with some inputs read where they were moved to."""
        of_m, of_n = (
            attrs.evolve(t, spec=reordered(problem, t.spec.name)) if t.spec.name in moved else t
            for t in (self.of_m, self.of_n)
        )
        return attrs.evolve(self, of_m=of_m, of_n=of_n)

    def counted(self, sizes: tuple[Size, ...]) -> Contraction:
        """The same where some sizes are known at launch."""
        if not sizes:
            return self
        exact = {size.name: size for size in sizes}
        sides = (self.m, self.n, self.k, self.batch)
        m, n, k, batch = (tuple(attrs.evolve(d, exact=exact.get(d.name)) for d in dims) for dims in sides)
        of_m, of_n, result = (t.counted(sizes) for t in (self.of_m, self.of_n, self.result))
        return attrs.evolve(self, m=m, n=n, k=k, batch=batch, of_m=of_m, of_n=of_n, result=result)

    def product(self, block: int) -> Product:
        """The views; M and N are exchanged where the result is contiguous along M."""
        if not self.result.runs_along(self.n) and self.result.runs_along(self.m):
            return attrs.evolve(self, m=self.n, n=self.m, of_m=self.of_n, of_n=self.of_m)._ordered(block)
        return self._ordered(block)

    def _ordered(self, block: int) -> Product:
        m, n, k = _order(self.m, self.result, self.of_m), _order(self.n, self.result, self.of_n), self.k
        # K follows the tensor that lies contiguous along it, the larger one if that does not decide.
        k = _order(k, *sorted((self.of_m, self.of_n), key=lambda t: (not t.runs_along(k), -prod(t.spec.dims))))
        inner = k[-1]
        k = (*k[:-1], attrs.evolve(inner, padded=-(-inner.size // block) * block))
        batch = (_order(self.batch, self.result, self.of_m),) if self.batch else ()
        views = self.of_n.view(n, k, *batch), self.of_m.view(m, k, *batch), self.result.view(n, m, *batch)
        return Product(*views, self.role, self.cuts)


def _order(dims: tuple[Dim, ...], first: _Tensor, second: _Tensor) -> tuple[Dim, ...]:
    """The dims as they lie in memory, outermost first; dims of one position go outermost.

    Where a dim does not occur in the first tensor (or both run alike) the second decides.
    """

    def place(d: Dim) -> tuple[bool, int, int]:
        return d.size > 1, -abs(first.stride(d.name)), -abs(second.stride(d.name))

    return tuple(sorted(dims, key=place))


def _dim(name: str, size: int) -> Dim:
    return Dim(name, size, size)


def _same(name: str, size: int) -> TensorDim:
    return TensorDim(size, ((name, 1),))


# ---------------------------------------------------------------- the problems


def _matmul(problem: Matmul) -> Contraction:
    """dst[b..., m, n] = sum over k of src[b..., m, k] * wei[b..., k, n]; a tensor of size 1 along b is read again."""
    src, wei, dst = map(problem.tensor, _MATRICES)
    index = {role: tuple(_grouped(problem, t) for t in own) for role, own in _coordinates(problem).items()}
    return Contraction(
        (_dim("m", problem.m),),
        _in_groups("n", problem.n, problem.groups["n"]),
        _in_groups("k", problem.k, problem.groups["k"]),
        _Tensor(src, index["src"]),
        _Tensor(wei, index["wei"]),
        _Tensor(dst, index["dst"]),
        batch=tuple(_dim(f"b{i}", size) for i, size in enumerate(dst.dims[:-2]) if size != 1),
    )


def _in_groups(name: str, size: int, sizes: tuple[int, ...]) -> tuple[Dim, ...]:
    """K or N, the number of a group apart where neighbours share what they are multiplied by."""
    if not _is_split(sizes):
        return (_dim(name, size),)
    return _dim(f"{name}g", size // sizes[0]), _dim(name, sizes[0])


def _grouped(problem: Matmul, t: TensorDim) -> TensorDim:
    """A coordinate where K and N may go in groups."""
    sizes = problem.groups.get(t.terms[0][0] if t.terms else "", ())
    if not _is_split(sizes):
        return t
    ((name, _),) = t.terms
    return attrs.evolve(t, terms=((f"{name}g", sizes[0]), (name, 1)))


def _batched(spec: TensorSpec, matrix: str) -> Index:
    """The coordinates of a tensor of matrices; where one of a batch is 1 long, it is read again."""
    *sizes, rows, columns = spec.dims
    batch = (_same(f"b{i}", size) if size > 1 else TensorDim(size, ()) for i, size in enumerate(sizes))
    return *batch, _same(matrix[0], rows), _same(matrix[1], columns)


def _axes(problem: Conv) -> list[tuple[str, Axis]]:
    return list(zip(_NAMES[5 - problem.ndims :], problem.spatial))


def _tensor(problem: Conv, name: str) -> TensorSpec:
    return next(t for t in problem.tensors if t.name == name)


def _input_coordinate(name: str, axis: Axis) -> TensorDim:
    """i = o * s + k * (d + 1) - p; masked only where a window reaches outside."""
    reach = (axis.o - 1) * axis.s + (axis.k - 1) * (axis.d + 1) - axis.p
    outside = axis.p > 0 or reach >= axis.i
    return TensorDim(axis.i, ((f"o{name}", axis.s), (f"k{name}", axis.d + 1)), -axis.p, outside)


def _weight_index(problem: Conv, taps: Index) -> Index:
    group = (_same("g", problem.groups) if problem.groups > 1 else TensorDim(1, ()),) if problem.has_groups else ()
    return (*group, *(_same(name, size) for name, size in _of_group(problem).items()), *taps)


def _of_group(problem: Conv) -> dict[str, int]:
    """Output and input channels of one group."""
    return {name: getattr(problem, name) // problem.groups for name in ("oc", "ic")}


def _channels(problem: Conv, name: str) -> TensorDim:
    """The coordinate along a tensor's channels, those of all groups."""
    size = _of_group(problem)[name]
    group = (("g", size),) if problem.groups > 1 else ()
    return TensorDim(size * problem.groups, (*group, (name, 1)))


def _groups(problem: Conv) -> tuple[Dim, ...]:
    return (_dim("g", problem.groups),) if problem.groups > 1 else ()


def _forward_dims(problem: Conv) -> tuple[tuple[Dim, ...], tuple[Dim, ...], Index, Index, Index]:
    """Output positions, taps, and the coordinates of src, of weights and of dst."""
    axes = _axes(problem)
    positions = (_dim("mb", problem.mb), *(_dim(f"o{n}", a.o) for n, a in axes))
    taps = tuple(_dim(f"k{n}", a.k) for n, a in axes)
    images = _same("mb", problem.mb)
    src = (images, _channels(problem, "ic"), *(_input_coordinate(n, a) for n, a in axes))
    wei = _weight_index(problem, tuple(_same(f"k{n}", a.k) for n, a in axes))
    dst = (images, _channels(problem, "oc"), *(_same(f"o{n}", a.o) for n, a in axes))
    return positions, taps, src, wei, dst


def _forward(problem: Conv) -> Contraction:
    positions, taps, src, wei, dst = _forward_dims(problem)
    return Contraction(
        positions,
        (_dim("oc", _of_group(problem)["oc"]),),
        (*taps, _dim("ic", _of_group(problem)["ic"])),
        _Tensor(_tensor(problem, "src"), src),
        _Tensor(_tensor(problem, "wei"), wei),
        _Tensor(_tensor(problem, "dst"), dst),
        batch=_groups(problem),
    )


def _backward_weights(problem: Conv) -> Contraction:
    positions, taps, src, wei, dst = _forward_dims(problem)
    return Contraction(
        (_dim("oc", _of_group(problem)["oc"]),),
        (*taps, _dim("ic", _of_group(problem)["ic"])),
        positions,
        _Tensor(_tensor(problem, "diff_dst"), dst),
        _Tensor(_tensor(problem, "src"), src),
        _Tensor(_tensor(problem, "diff_wei"), wei),
        batch=_groups(problem),
    )


@attrs.frozen
class _Phase:
    """One residue of (i + p) modulo the stride along an axis: there backward data is a convolution of stride 1.

    With i + p = s*q + r, a tap k contributes where k*(d + 1) = r modulo s. With g = gcd(d + 1, s) these are the taps
    first + (s/g)*j, and o = q + (r - first*(d + 1))/s - j*(d + 1)/g. Taps are counted downwards, so that o grows with
    the tap as in the forward convolution; q is counted from the first that is an input position.
    """

    axis: Axis
    name: str
    first_tap: int  #: least tap that contributes

    @staticmethod
    def count(axis: Axis) -> int:
        """How many residues have taps: each of the first taps has one of its own."""
        return min(axis.k, axis.s // gcd(axis.d + 1, axis.s))

    @property
    def residue(self) -> int:
        return self.first_tap * (self.axis.d + 1) % self.axis.s

    @property
    def _first_q(self) -> int:
        return -((self.residue - self.axis.p) // self.axis.s)

    @property
    def positions(self) -> int:
        """Input positions of this residue."""
        first = self._first_q * self.axis.s + self.residue - self.axis.p
        return max(0, -(-(self.axis.i - first) // self.axis.s))

    @property
    def is_empty(self) -> bool:
        """Whether its sums are of nothing: it has no positions, or all taps lead outside diff_dst."""
        if not self.positions:
            return True
        taps, _, _, diff_dst = self.coordinates()
        (_, growth), start = diff_dst.terms[1], diff_dst.const
        return start >= self.axis.o or start + self.positions - 1 + (taps - 1) * growth < 0

    def coordinates(self) -> tuple[int, TensorDim, TensorDim, TensorDim]:
        """Taps, and the coordinates along this axis of diff_src, of the weights and of diff_dst."""
        a, first, g = self.axis, self.first_tap, gcd(self.axis.d + 1, self.axis.s)
        step = a.s // g
        taps = -(-(a.k - first) // step)
        last = first + (taps - 1) * step
        start = self._first_q + (self.residue - last * (a.d + 1)) // a.s
        growth = (a.d + 1) // g
        reach = start + self.positions - 1 + (taps - 1) * growth
        q, k = f"i{self.name}", f"k{self.name}"
        diff_src = TensorDim(a.i, ((q, a.s),), self._first_q * a.s + self.residue - a.p)
        wei = TensorDim(a.k, ((k, -step),), last)
        diff_dst = TensorDim(a.o, ((q, 1), (k, growth)), start, start < 0 or reach >= a.o)
        return taps, diff_src, wei, diff_dst


def phases(problem: Conv) -> int:
    """How many products backward data takes at most: one for each combination of residues that have taps."""
    return prod(_Phase.count(axis) for _, axis in _axes(problem))


def _backward_data(problem: Conv) -> Iterator[Contraction]:
    """A product for each combination of stride phases that has something to sum."""
    axes, channels = _axes(problem), _of_group(problem)
    images = _same("mb", problem.mb)
    of_axes = [
        sorted((_Phase(axis, name, tap) for tap in range(_Phase.count(axis))), key=lambda p: p.residue)
        for name, axis in axes
    ]
    for chosen in combinations(*of_axes):
        if any(p.is_empty for p in chosen):
            continue
        taps, diff_src, wei, diff_dst = zip(*(p.coordinates() for p in chosen))
        role = "".join(f"{p.name}{p.residue}" for p in chosen if p.axis.s > 1)
        yield Contraction(
            (_dim("mb", problem.mb), *(_dim(f"i{p.name}", p.positions) for p in chosen)),
            (_dim("ic", channels["ic"]),),
            (*(_dim(f"k{p.name}", count) for p, count in zip(chosen, taps)), _dim("oc", channels["oc"])),
            _Tensor(_tensor(problem, "diff_dst"), (images, _channels(problem, "oc"), *diff_dst)),
            _Tensor(_tensor(problem, "wei"), _weight_index(problem, wei)),
            _Tensor(_tensor(problem, "diff_src"), (images, _channels(problem, "ic"), *diff_src)),
            role,
            _groups(problem),
        )
