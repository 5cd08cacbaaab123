"""Problems as matrix products: views with M, N and K axes of each product's tensors, and views of further inputs.

Later modules see only products and the steps after their sums.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from math import gcd, prod
from typing import Any

from convgen.epilogue.numbered_rows import NumberedRows
from convgen.ir.error import DoesNotFit, Unsupported
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.memory import Dim, Global, SizedView, TensorDim, View
from convgen.ir.layout.tags import LETTERS, Layout
from convgen.ir.record import evolve, frozen
from convgen.ir.sizes import Extent, Size
from convgen.ir.types import SCALARS, Type, s32, scalar
from convgen.plan import directions
from convgen.plan.blocks import Cuts, Index
from convgen.plan.config import APART, COLUMNS, JOINED
from convgen.plan.contraction import (
    GATE,
    Contraction,
    Origin,
    Product,
    Tensor,
    along,
    buffer,
    dim_of,
    in_order,
    reordered,
)
from convgen.plan.directions import axes_of, batched, contractions_of, grouped, origin_of, tensor_of
from convgen.plan.grouped_axis import GroupedAxis
from convgen.problem.conv import Direction as Dir
from convgen.problem.grouping import OFFSETS
from convgen.problem.matmul import Matmul, Problem, grouping_of
from convgen.problem.routing import IDS
from convgen.problem.scales import Scale
from convgen.problem.tensors import TensorSpec
from convgen.problem.zero_points import ZeroPoint


@lru_cache(maxsize=2**6)
def products(
    problem: Problem,
    block: int,
    reorder: tuple[str, ...] = (),
    phases: str = APART,
    pixels: str = APART,
    joined_groups: int = 1,
) -> tuple[Product, ...]:
    """Return the products of a problem; the innermost dim of K is padded to a multiple of `block` (1: not at all).

    The inputs `reorder` are read from their reordered copies (see `reordered`). A config has the other arguments.
    DoesNotFit where nothing can be joined as `pixels` or `joined_groups` says, or blocks end between groups.

    The products write disjoint parts of the result. Products without terms are left out: positions of backward
    data that no window reaches, and all of backward weights without images (see `covers_result`).
    """
    whole = (_product(problem, c, block, reorder, pixels) for c in contractions_of(problem, phases, joined_groups))
    with_terms = (p for p in whole if p.m and p.n and p.k)
    if joined_groups == 1:
        return tuple(with_terms)
    try:
        return tuple(_of_groups_at_once(p, joined_groups) for p in with_terms)
    except Unsupported as error:
        raise DoesNotFit(f"groups={joined_groups}: {error}") from None


def _of_groups_at_once(product: Product, joined_groups: int) -> Product:
    """Return a product of several groups whose result between different ones is not stored.

    Its factors read the channels of all groups as one dim where these are neighbours in memory. DoesNotFit where blocks
    of the result have padding behind the last group: no product of two equal groups stores it.
    """
    pieces = dict(product.cuts.sizes).get(directions.OF_OUTPUTS, (joined_groups,))
    if prod(pieces) != joined_groups:
        given = f"groups={joined_groups}: blocks of {prod(pieces)} groups in {product.result.memory.name}"
        raise DoesNotFit(f"{given}, wanted blocks without padding")
    of_n, of_m = (
        _with_one_dim(_with_one_dim(v, directions.OF_OUTPUTS), directions.OF_INPUTS)
        for v in (product.of_n, product.of_m)
    )
    masks = tuple(map(product.cuts.coordinate, directions.of_one_group(joined_groups)))
    result = zero_outside(product.result, masks)
    return evolve(product, of_n=of_n, of_m=of_m, result=result)


def _with_one_dim(view: View, outer: str) -> View:
    """Return a view with a dim of its rows and the one inside it as one dim, where memory has them side by side."""
    rows = view.axes[0]
    at = next((n for n, d in enumerate(rows) if d.name == outer), len(rows))
    if at + 1 >= len(rows):
        return view
    inner = rows[at + 1]
    index = []
    for letter, t in zip(LETTERS, view.index):
        terms, is_blocked = dict(t.terms), len(view.layout.digits.of(letter)) > 1
        if terms.get(outer, 0) != inner.size * terms.get(inner.name, 0) or (is_blocked and outer in terms):
            return view
        index.append(evolve(t, terms=tuple((name, step) for name, step in t.terms if name != outer)))
    size = rows[at].size * inner.size
    joined = evolve(inner, size=size, padded=size)
    return evolve(view, axes=((*rows[:at], joined, *rows[at + 2 :]), *view.axes[1:]), index=tuple(index))


def stores_rest(problem: Problem) -> bool:
    """Whether launches of their own store the rest of the result: an epilogue may give it values other than zero."""
    return not isinstance(problem, Matmul) and problem.direction.is_forward


def untouched(problem: Problem) -> tuple[Product, ...]:
    """Return the rest of the result, whose sums have no terms, as products of which only the result has a meaning."""
    whole = (_product(problem, c, 1, must_reorder(problem)) for c in directions.untouched(problem))
    return tuple(p for p in whole if p.m and p.n)


def _product(
    problem: Problem, whole: Contraction, block: int, reorder: Collection[str], pixels: str = APART
) -> Product:
    """Return the product of a contraction (see `products`)."""
    split = _split(problem, whole, reorder).with_sizes(sizes(problem))
    contraction = _joined(split) if pixels == JOINED else split
    return _of_one_group(problem, contraction.product(block))


def _split(problem: Problem, whole: Contraction, reorder: Collection[str]) -> Contraction:
    """Return a contraction of the problem with dims cut where blocks of tensors end.

    Unsupported where a block has columns of a gate and of up: `must_reorder` then names the weights.
    """
    origin = origin_of(problem, whole)
    steps = _blocked_step_tensors(problem, origin)
    split = evolve(whole, origin=origin).reading(problem, reorder).in_blocks(steps)
    if GATE in dict(split.cuts.sizes):
        given = f"given {split.of_n.spec.name} of layout {split.of_n.spec.layout.tag} and a gated linear unit"
        raise Unsupported(f"{given}, wanted blocks that hold columns of the gate or of up alone", rule="blocked-layout")
    return split


def _joined(contraction: Contraction) -> Contraction:
    """Return the contraction with dims of K joined. Raises DoesNotFit where none can be."""
    joined = contraction.with_joined_k()
    if joined.k == contraction.k:
        raise DoesNotFit(f"pixels={JOINED}: wanted dims of K that both factors have side by side in memory")
    return joined


def _of_one_group(problem: Problem, product: Product) -> Product:
    """Return a product in groups as the views of one group: the result ends with its rows, or factors with its terms.

    Unsupported where the grouped dim is divided otherwise, too.
    """
    grouping = grouping_of(problem)
    if grouping is None:
        return product
    dim, axes = grouping.dim, (*product.result.axes[:2], product.of_m.axes[1])
    at = next((n for n, dims in enumerate(axes) if [d.name for d in dims] == [dim]), None)
    if at is None:
        given = f"given groups along {dim} and a layout in blocks, or scales of neighbours, along {dim}"
        raise Unsupported(f"{given}, wanted no other division of {dim}", rule="grouped-gemm")
    size, side = axes[at][0].size, at if at < len(product.result.axes[:2]) else None
    grouped = GroupedAxis(buffer(problem.tensor(OFFSETS)), grouping.count, size, side)

    def ending(view: View) -> View:
        return zero_outside(evolve(view, axes=(*view.axes, grouped.axis)), (grouped.until_end(dim),))

    if side is None:
        return evolve(product, grouped=grouped, of_n=ending(product.of_n), of_m=ending(product.of_m))
    return _with_routing(problem, evolve(product, grouped=grouped, result=ending(product.result)), axes[at][0], side)


def _with_routing(problem: Problem, product: Product, rows: Dim, side: int) -> Product:
    """Return a product whose rows have numbers in memory, if the problem has a routing: src by number is a factor."""
    routing = problem.routing if isinstance(problem, Matmul) else None
    if routing is None:
        return product
    ids = buffer(problem.tensor(IDS))
    if routing.scatter:
        product = evolve(product, scattered=NumberedRows("slot", ids, rows, routing.scatter.slots))
    if slots := slots_of(problem):
        product = evolve(product, result=slots.stored(product.result))
    if routing.gather is None:
        return product
    gathered = NumberedRows("token", ids, rows, routing.gather.tokens, routing.gather.topk)
    product = evolve(product, gathered=gathered)
    if side == 1:
        return evolve(product, of_m=gathered.view(product.of_m))
    return evolve(product, of_n=gathered.view(product.of_n))


def slots_of(problem: Problem) -> Slots | None:
    """Return the workspace for the rows that a product's result sums; None if it has no sums of several."""
    if not isinstance(problem, Matmul) or not problem.routing or not problem.routing.sums_slots:
        return None
    scatter = problem.routing.scatter
    assert scatter is not None
    elem = scalar(problem.result_type)
    memory = Global("slots", elem, scatter.slots * problem.columns * elem.bytes)
    return Slots(memory, scatter.tokens, scatter.topk, problem.columns)


def numbered_memories(problem: Matmul) -> Iterator[Global]:
    """Yield the memory of src, of the result and of post-ops' operands whose rows have numbers."""
    routing = problem.routing
    if routing and routing.gather:
        yield buffer(problem.tensor("src"))
    if routing and routing.scatter:
        slots = slots_of(problem)
        yield slots.memory if slots else buffer(problem.tensor("dst"))
        yield from (buffer(t) for t in problem.inputs if t.name.startswith("post_op_") and t.dims[0] > 1)


def rows_and_columns(spec: TensorSpec) -> View:
    """Return a matrix as (N, M)."""
    rows, columns = spec.dims
    tensor = Tensor(spec, (along("m", rows), along("n", columns)))
    return tensor.view((dim_of("n", columns),), (dim_of("m", rows),))


@frozen
class Slots:
    """The workspace of a product whose result has sums of several rows: a row for each slot, before it is summed."""

    memory: Global
    tokens: int
    topk: int
    columns: int

    @property
    def _layout(self) -> Layout:
        return Layout.dense((self.tokens * self.topk, self.columns), (0, 1))

    @property
    def whole(self) -> View:
        """Return the slots as (N, M)."""
        rows = self.tokens * self.topk
        axes = (dim_of("n", self.columns),), (dim_of("m", rows),)
        return View(self.memory, self._layout, axes, (along("m", rows), along("n", self.columns)))

    @property
    def terms(self) -> View:
        """Return the slots as (N, M, terms), with the tokens as M."""
        sides = dim_of("n", self.columns), dim_of("m", self.tokens), dim_of("slot", self.topk)
        rows = TensorDim(self.tokens * self.topk, (("m", self.topk), ("slot", 1)))
        return View(self.memory, self._layout, tuple((side,) for side in sides), (rows, along("n", self.columns)))

    def stored(self, result: View) -> View:
        """Return the slots by the axes of a result, whose own coordinates are rows and columns, the rest masks."""
        rows, columns, *masks = result.index
        index = evolve(rows, size=self.tokens * self.topk), columns
        return zero_outside(View(self.memory, self._layout, result.axes, index), tuple(masks))


def sizes(problem: Problem) -> tuple[Size, ...]:
    """Return the sizes that are known only at launch, each at most the problem's.

    The host guarantees that a size of M, N or K is a multiple of gcd(the problem's size, `_PROMISED`). Batch sizes may
    be any number.
    """
    if not problem.runtime:
        return ()
    divisors: dict[Dim, int] = {}
    for c in contractions_of(problem):
        divisors |= {d: gcd(d.size, _PROMISED) for d in (*c.m, *c.n, *c.k)} | dict.fromkeys(c.batch, 1)
    chosen = ((d, divisor) for d, divisor in divisors.items() if d.name in problem.runtime)
    return tuple(Size(d.name, 0, s32, 1, d.size, divisor) for d, divisor in chosen)


_PROMISED = 16  #: elements; whole chunks of 16 bytes for any type


def group_view(problem: Matmul, spec: TensorSpec, attribute: Scale | ZeroPoint, factor: View, cuts: Cuts) -> View:
    """Return a tensor of scales or zero points by the axes of a factor: the dims of the product after `cuts`.

    Along each dim of src or weights `spec` has one element, one for each position, or one for each group. Past the end
    of K it reads zero, also where the last group is shorter: zeros times an infinite scale would be NaN. For this,
    coordinates along K are added to the tensor with stride 0, as masks.
    """
    coordinates = batched(problem.tensor(attribute.role), problem.matrix(attribute.role))
    dims = list(zip(coordinates, problem.spans(attribute), spec.dims, strict=True))
    index = tuple(grouped(problem, t, span) if size > 1 else TensorDim(1, ()) for t, span, size in dims)
    masks = tuple(
        evolve(grouped(problem, t), masked=True)
        for t, span, size in dims
        if size > 1 and t.size % span and any(name == "k" for name, _ in t.terms)
    )
    masked = Tensor(evolve(spec, layout=_with_masks(spec.layout, masks)), (*index, *masks)).cut(cuts)
    tensor = Tensor(spec, index).with_sizes(sizes(problem)).cut(cuts)
    rows, k, *products = factor.axes
    if not {d.name for d in k}.intersection(name for t in masked.index for name, _ in t.terms):
        k = (dim_of("any1", factor.extent(1)),)  # lanes take its one element also where K is padded
    return zero_outside(tensor.view(rows, k, *products), masked.index[len(index) :])


def _with_masks(layout: Layout, masks: Sequence[TensorDim]) -> Layout:
    """Return the layout with a further dim for each mask, of stride 0."""
    dims = (Digit(LETTERS[n], t.size, Space.MEMORY, 0) for n, t in enumerate(masks, len(layout.dims)))
    return Layout((*layout.dims, *(t.size for t in masks)), (*dims, *layout.blocks))


def is_widened(problem: Problem, name: str) -> bool:
    """Whether an input has 4-bit elements, which an earlier launch widens to bytes."""
    return any(spec.name == name and scalar(spec.dtype).bits == 4 for spec in problem.inputs)


def in_bytes(problem: Problem, name: str) -> TensorSpec:
    """Return a tensor, or its copy in bytes, in a buffer of its own, where it has 4-bit elements."""
    spec = problem.tensor(name)
    wide = {"s4": "s8", "u4": "u8"}.get(spec.dtype)
    return evolve(spec, name=f"{name}_bytes", dtype=wide) if wide else spec


def widening(problem: Problem, name: str) -> tuple[View, View]:
    """Return a tensor and its copy in bytes, both as (rows, columns); the last dim longer than 1 is the columns."""
    specs = problem.tensor(name), in_bytes(problem, name)
    index = [along(f"dim{n}", size) if size > 1 else TensorDim(1, ()) for n, size in enumerate(specs[0].dims)]
    *outer, inner = [dim_of("one", 1), *(dim_of(name, t.size) for t in index for name, _ in t.terms)]
    source, target = (Tensor(spec, tuple(index)) for spec in specs)
    rows = tuple(outer) or (inner,)
    return source.view(rows, (inner,)), target.view(rows, (inner,))


def factor_types(problem: Problem) -> tuple[Type, Type]:
    """Return the element types of `of_n` and `of_m`, equal for all products of a problem."""
    first, second = (scalar(t.dtype) for t in problem.factors)
    if first is not second or first.is_by_bytes:
        for product in products(problem, 1, must_reorder(problem)):
            return product.of_n.memory.elem, product.of_m.memory.elem
    return first, second


def factors(problem: Problem) -> tuple[View, View]:
    """Return N's and M's input of the first product of a problem."""
    first = products(problem, 1, must_reorder(problem))[0]
    return first.of_n, first.of_m


def stored_factors(problem: Problem) -> tuple[View, View]:
    """Return N's and M's input of the first product of a problem, packed elements as they are stored."""
    first = products(problem, 1, _without_views(problem))[0]
    return first.of_n, first.of_m


def by_bytes(problem: Problem) -> tuple[str, ...]:
    """Return the factors of 6-bit floats, which an earlier launch unpacks unless instructions take their bytes."""
    return tuple(t.name for t in problem.factors if t.dtype in SCALARS and SCALARS[t.dtype].is_by_bytes)


@lru_cache(maxsize=2**10)
def must_reorder(problem: Problem) -> tuple[str, ...]:
    """Return the fewest inputs that must be reordered: blocked ones that no view describes, and 6-bit floats.

    Raises Unsupported where the blocks of the result are the obstacle.
    """
    names = (*_without_views(problem), *by_bytes(problem))
    return tuple(t.name for t in problem.factors if t.name in names)


@lru_cache(maxsize=2**10)
def _without_views(problem: Problem) -> tuple[str, ...]:
    """Return the fewest blocked inputs that must be reordered because no view describes them."""
    blocked = tuple(t.name for t in problem.factors if not t.layout.is_plain)
    for reorder in ((), *((name,) for name in blocked)):
        with suppress(Unsupported):
            products(problem, 1, reorder)
            return reorder
    products(problem, 1, blocked)
    return blocked


def nonempty_contractions(problem: Problem, reorder: Collection[str]) -> tuple[Contraction, ...]:
    """Return the non-empty products of a problem before M, N and K are axes of views (see `products`)."""
    split = (_split(problem, c, reorder) for c in contractions_of(problem))
    return tuple(c for c in split if all(prod(d.size for d in dims) for dims in (c.m, c.n, c.k)))


def covers_result(problem: Problem, phases: str = APART) -> bool:
    """Whether the products write every element of the result."""
    with_terms = [c for c in contractions_of(problem, phases) if prod(d.size for d in c.k)]
    if phases == COLUMNS or isinstance(problem, Matmul):  # each position is in a phase, or a product, that has terms
        return bool(with_terms)
    return sum(prod(d.size for d in (*c.m, *c.n, *c.batch)) for c in with_terms) == prod(problem.outputs[0].dims)


def whole_result(problem: Problem) -> View:
    """Return the whole result as (N, M)."""
    if isinstance(problem, Matmul) or problem.convolution.direction is not Dir.BWD_D:
        (contraction,) = contractions_of(problem)
        return contraction.reading(problem, must_reorder(problem)).fused().in_blocks().product(1).result
    axes, ic = axes_of(problem), problem.convolution.ic  # channels of all groups
    index = (along("mb", problem.mb), along("ic", ic), *(along(f"i{n}", a.i) for n, a in axes))
    tensor = Tensor(tensor_of(problem, "src"), index)
    channels: tuple[Dim, ...] = (dim_of("ic", ic),)
    positions: tuple[Dim, ...] = (dim_of("mb", problem.mb), *(dim_of(f"i{n}", a.i) for n, a in axes))
    cuts = Cuts.of((*channels, *positions), [(tensor.spec, tensor.index)])
    tensor, channels, positions = tensor.cut(cuts), cuts.dims(channels), cuts.dims(positions)
    sides = (channels, positions) if tensor.runs_along(channels) else (positions, channels)
    return tensor.view(*(in_order(side, tensor, tensor) for side in sides))


def without_padding(problem: Problem, result: View) -> View:
    """Return a view of the result whose stores and atomic additions leave out the padding of blocks.

    A sum in padding is not zero where zeros are multiplied by an infinity or a NaN, or where u8 is multiplied as s8.
    A plain layout has no padding, and its view may have joined dims.
    """
    dims = problem.outputs[0].dims
    if problem.outputs[0].layout.is_plain:
        return result
    masks = result.index[len(dims) :]  # coordinates of `zero_outside`
    index = (evolve(t, size=n, masked=True) if t.size > n else t for t, n in zip(result.index, dims))
    layout = evolve(result.layout, dims=(*dims, *result.layout.dims[len(dims) :]))
    return evolve(result, layout=layout, index=(*index, *masks))


def zero_outside(view: View, masks: tuple[TensorDim, ...]) -> View:
    """Return the view with masked coordinates added, outside which it reads zero: dims of the tensor with stride 0."""
    if not masks:
        return view
    changes: dict[str, Any] = {"layout": _with_masks(view.layout, masks), "index": (*view.index, *masks)}
    if isinstance(view, SizedView):
        changes["apart"] = (*view.apart, *(0 for _ in masks))
    return evolve(view, **changes)


def view_over_result(problem: Problem, part: Product, name: str, role: str = "dst") -> View:
    """Return a tensor that a step reads, as (N, M), broadcast along sides on which it does not depend.

    Each of its dims is that of src, weights or dst (`role`), or 1.
    """
    index = _without_single(_coordinates_of(problem, part.origin, name, role), part.origin.k)
    tensor = Tensor(in_bytes(problem, name), index)
    tensor = part.in_dims(tensor).with_sizes(sizes(problem))
    view = tensor.view(*result_axes(part, tensor.index))
    numbered = {"src": part.gathered, "dst": part.scattered}.get(role)
    return numbered.view(view) if numbered else view


def result_axes(part: Product, index: Index) -> tuple[tuple[Dim, ...], ...]:
    """Return the axes of the result for a tensor with these coordinates; a broadcast side has one dim without terms.

    DoesNotFit where the tensor differs along dims that are fused in the result.
    """
    used = {name for t in index for name, _ in t.terms}
    if part.joined and (fused := used.intersection(d.name for d in part.joined.dims)):
        names = " and ".join(sorted(fused))
        raise DoesNotFit(f"taps=runs: a tensor beside the result differs along {names}, which is part of a run")
    sides = (
        side if used.intersection(d.name for d in side) else (dim_of(f"any{n}", part.result.extent(n)),)
        for n, side in enumerate(part.result.axes[:2])
    )
    return *sides, *part.result.axes[2:]


def view_over(problem: Problem, part: Product, name: str, role: str, *axes: tuple[Dim, ...]) -> View:
    """Return a tensor by some axes; each of its dims is that of src, weights or dst (`role`), or 1.

    Along the given axes a dim of size 1 is that single position; it is not broadcast over the padding of its block.
    """
    names = {d.name.partition("_")[0] for dims in axes for d in dims}  # names before dims were split
    index = _coordinates_of(problem, part.origin, name, role, exact=names)
    tensor = part.in_dims(Tensor(in_bytes(problem, name), index))
    return tensor.with_sizes(sizes(problem)).view(*axes)


def k_lengths(problem: Problem, part: Product) -> dict[str, Extent]:
    """Return the number of positions along the dims of K, by their names before they are split."""
    known = {size.name: size for size in sizes(problem)}
    return {d.name: evolve(d, exact=known.get(d.name)).extent for d in part.origin.k}


def _blocked_step_tensors(problem: Problem, origin: Origin) -> list[Tensor]:
    """Return the blocked tensors that steps after the sums read; they have the dims of the result."""
    steps = (t for t in problem.inputs if t not in problem.factors and t not in problem.outputs)
    return [Tensor(t, _coordinates_of(problem, origin, t.name, "dst")) for t in steps if not t.layout.is_plain]


def is_along_k(problem: Problem, name: str, role: str) -> bool:
    """Whether a tensor differs along dims that are summed."""
    for contraction in contractions_of(problem):
        result = {d.name for dims in (contraction.m, contraction.n, contraction.batch) for d in dims}
        origin = origin_of(problem, contraction)
        index = _without_single(_coordinates_of(problem, origin, name, role), origin.k)
        if any(term not in result for t in index for term, _ in t.terms):
            return True
    return False


def _coordinates_of(problem: Problem, origin: Origin, name: str, role: str, *, exact: Collection[str] = ()) -> Index:
    """Return a tensor's coordinates; a dim of size 1 is broadcast, or, if named in `exact`, a single position."""
    index = origin.index(name, role)
    dims = problem.tensor(name).dims
    broadcast = [size == 1 and not (t.size == 1 and _is_dim(t, exact)) for t, size in zip(index, dims)]
    if isinstance(problem, Matmul):
        attribute = problem.attribute(name)
        spans = problem.spans(attribute) if attribute else (1,) * len(dims)
        index = tuple(grouped(problem, t, span) for t, span in zip(index, spans))
    return tuple(TensorDim(1, ()) if is_broadcast else t for t, is_broadcast in zip(index, broadcast))


def _without_single(index: Index, summed: tuple[Dim, ...]) -> Index:
    """Return coordinates without summed dims of one position, as the channels in a depthwise convolution's group."""
    single = {d.name for d in summed if d.size == 1}
    return tuple(evolve(t, terms=tuple((name, step) for name, step in t.terms if name not in single)) for t in index)


def _is_dim(t: TensorDim, names: Collection[str]) -> bool:
    """Whether a coordinate is the position along one of some dims."""
    return t.terms in [((name, 1),) for name in names] and not t.const


def bias_gradient(problem: Problem) -> View | None:
    """Return diff_dst as (N, K), whose sums along K are the gradient of the bias; None if that is not asked for."""
    if isinstance(problem, Matmul) or problem.direction is not Dir.BWD_WB:
        return None
    axes = list(zip("dhw"[5 - problem.ndims :], problem.spatial))
    positions = (dim_of("mb", problem.mb), *(dim_of(f"o{n}", a.o) for n, a in axes))
    index = (along("mb", problem.mb), along("oc", problem.oc), *(along(f"o{n}", a.o) for n, a in axes))
    tensor, channels = Tensor(problem.tensor("diff_dst"), index), (dim_of("oc", problem.oc),)
    cuts = Cuts.of((*channels, *positions), [(tensor.spec, tensor.index)])
    tensor = tensor.cut(cuts)
    return tensor.view(cuts.dims(channels), in_order(cuts.dims(positions), tensor, tensor))


def reordering(problem: Problem, name: str) -> tuple[View, View]:
    """Return an input's original and reordered view, both as (rows, elements contiguous in the reordered one)."""
    specs = problem.tensor(name), reordered(problem, name)
    dims = tuple(dim_of(f"dim{n}", size) for n, size in enumerate(specs[0].dims))
    index = tuple(along(d.name, d.size) for d in dims)
    cuts = Cuts.of(dims, [(spec, index) for spec in specs])
    source, target = (Tensor(spec, index).cut(cuts) for spec in specs)
    *outer, inner = in_order(dims, Tensor(specs[1], index), Tensor(specs[1], index))
    rows = in_order(cuts.dims(outer), source, target)
    return source.view(rows, cuts.dims((inner,))), target.view(rows, cuts.dims((inner,)))
