"""Problems as contractions: the only module of the plan that knows convolutions.

| direction | M | N | K | product |
|---|---|---|---|---|
| forward | mb, o… | oc | k…, ic | dst = src * wei |
| backward data | mb, i… of one stride phase | ic | taps of that phase, oc | diff_src = diff_dst * wei |
| backward data, columns | mb, i… of one phase | phases, ic | most taps of a phase, oc | diff_src = diff_dst * wei |
| backward weights | oc | k…, ic | mb, o… | diff_wei = diff_dst * src |

The roles are those of `Conv.convolution`: a transposed convolution is backward data of one, with other tensors.
Channels are those of one group. Groups, and the matrices of a batch, are a third axis, each position of which is a
separate product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product as combinations
from math import prod

from convgen.ir.error import DoesNotFit
from convgen.ir.layout.memory import Dim, TensorDim
from convgen.ir.record import evolve
from convgen.plan.blocks import Index
from convgen.plan.config import APART, COLUMNS
from convgen.plan.contraction import GATE, Contraction, Origin, Tensor, along, dim_of
from convgen.plan.phases import Columns, Phase, Untapped
from convgen.problem.conv import Axis, Conv
from convgen.problem.conv import Direction as Dir
from convgen.problem.matmul import MATRICES, OUTPUTS, Matmul, Problem
from convgen.problem.tensors import TensorSpec

_NAMES = "dhw"


def contractions_of(problem: Problem, phases: str = APART, joined_groups: int = 1) -> Iterable[Contraction]:
    """Return the products of a problem, each of `joined_groups` groups.

    DoesNotFit where its stride phases cannot be arranged as `phases` says, or products cannot have several groups.
    """
    columns = (_phases_as_columns(problem),) if phases == COLUMNS else ()
    if joined_groups > 1:
        return (_backward_weights_of_groups(problem, joined_groups),)
    if columns:
        return columns
    if isinstance(problem, Matmul):
        return (_matmul(problem),)
    direction = problem.convolution.direction
    if direction.is_forward:
        return (_forward(problem),)
    return _backward_data(problem) if direction is Dir.BWD_D else (_backward_weights(problem),)


def product_count(problem: Problem) -> int:
    """Return the number of matrix products of equal size in a contraction: groups, or matrices of a batch."""
    return problem.groups if isinstance(problem, Conv) else prod(problem.dst_dims[:-2])


def origin_of(problem: Problem, contraction: Contraction) -> Origin:
    """Return where the steps after the sums of one of the problem's contractions find their tensors.

    These are the coordinates of src, weights and dst, and of a bias whose dims are not those of dst.
    """
    if isinstance(problem, Matmul):
        of_roles = {role: batched(problem.tensor(role), problem.matrix(role)) for role in MATRICES}
        if problem.grouping:
            of_roles["bia"] = (_along_batch(0, problem.grouping.count), along("n", problem.n))
        elif problem.glu:
            of_roles["bia"] = (*of_roles["dst"][:-1], along("n", problem.n))
    else:
        tensors = contraction.of_m, contraction.of_n, contraction.result
        of_roles = {t.spec.name.removeprefix("diff_"): t.index for t in tensors}
        of_roles["bia"] = of_roles["dst"][1:2]
    return Origin(tuple(of_roles.items()), contraction.k)


def _matmul(problem: Matmul) -> Contraction:
    """Return the contraction dst[b..., m, n] = sum over k of src[b..., m, k] * wei[b..., k, n], b = 1 broadcast.

    Groups are the batch, in the tensors that have a matrix for each; `GroupedAxis` has their rows or terms.
    """
    src, wei, dst = map(problem.tensor, MATRICES)
    index = {
        role: tuple(grouped(problem, t) for t in batched(problem.tensor(role), problem.matrix(role)))
        for role in MATRICES
    }
    return Contraction(
        _split_into_groups(problem, "m", problem.m),
        _split_into_groups(problem, "n", problem.n),
        _split_into_groups(problem, "k", problem.k),
        Tensor(src, index["src"]),
        Tensor(wei, index["wei"]),
        Tensor(dst, index["dst"]),
        batch=_batch(problem),
    )


def _batch(problem: Matmul) -> tuple[Dim, ...]:
    if problem.grouping:
        return (dim_of("b0", problem.grouping.count),)
    return tuple(dim_of(f"b{i}", size) for i, size in enumerate(problem.dst_dims[:-2]) if size != 1)


def _split_into_groups(problem: Matmul, name: str, size: int) -> tuple[Dim, ...]:
    """Return M, N or K as dims: one, or one for the position in the smallest groups and one for each level of groups.

    Outermost first: the number of the largest group, then of a smaller one within it, then the position.
    """
    *inner, (outermost, step) = _digits(problem, name)
    ends = (step for _, step in _digits(problem, name)[1:])
    within = [dim_of(digit, end // start) for (digit, start), end in zip(inner, ends, strict=True)]
    return dim_of(outermost, -(-size // step)), *reversed(within)


def grouped(problem: Matmul, t: TensorDim, span: int = 1) -> TensorDim:
    """Return a coordinate along M, N or K by the dims of `_split_into_groups`; `span` positions share an element.

    The coordinate is masked where the last group is shorter than the others.
    """
    for name, _ in t.terms:
        digits = _digits(problem, name)
        last, count = digits[-1][1], -(-t.size // span)
        terms = tuple((digit, step // span) for digit, step in reversed(digits) if step >= span)
        return TensorDim(count, terms, masked=-(-t.size // last) * last > count * span)
    return t


def _digits(problem: Matmul, name: str) -> list[tuple[str, int]]:
    """Return (dim, positions that one step along it moves) of M, N or K, innermost first; a batch dim has one.

    With a gated linear unit N has a further dim, `GATE`, along which gate and up differ, and dst's columns lack it.
    """
    if name == OUTPUTS:
        before = _digits(problem, "n")
        halved = 2 if before[0][0] == GATE else 1
        return [(digit, step // halved) for digit, step in before if digit != GATE]
    first = 2 if name == "n" and problem.glu and problem.glu.alternates else 1
    digits = [(f"{name}{'g' * level}", step) for level, step in enumerate((first, *problem.groups.get(name, ())))]
    if name != "n" or problem.glu is None:
        return digits
    return [(GATE, 1), *digits] if problem.glu.alternates else [*digits, (GATE, problem.n // 2)]


def batched(spec: TensorSpec, matrix: str) -> Index:
    """Return the coordinates of a tensor of matrices; a batch dim of size 1 is broadcast."""
    *sizes, rows, columns = spec.dims
    batch = (_along_batch(i, size) for i, size in enumerate(sizes))
    return *batch, along(matrix[0], rows), along(matrix[1], columns)


def _along_batch(number: int, size: int) -> TensorDim:
    return along(f"b{number}", size) if size > 1 else TensorDim(size, ())


def axes_of(problem: Conv) -> list[tuple[str, Axis]]:
    """Return the axes of the problem's convolution, by their letters."""
    return list(zip(_NAMES[5 - problem.ndims :], problem.convolution.spatial))


def tensor_of(problem: Conv, role: str) -> TensorSpec:
    """Return the tensor with a role in the problem's convolution: src, wei or dst, or the gradient of one."""
    name = problem.of_roles[role]
    return next(t for t in problem.tensors if t.name in (name, f"diff_{name}"))


def _input_coordinate(name: str, axis: Axis) -> TensorDim:
    """Return i = o * s + k * (d + 1) - p; masked only where a window reaches outside the tensor."""
    reach = (axis.o - 1) * axis.s + (axis.k - 1) * (axis.d + 1) - axis.p
    outside = axis.p > 0 or reach >= axis.i
    return TensorDim(axis.i, ((f"o{name}", axis.s), (f"k{name}", axis.d + 1)), -axis.p, outside)


def _weight_index(problem: Conv, taps: Index) -> Index:
    group = (along("g", problem.groups) if problem.groups > 1 else TensorDim(1, ()),) if problem.has_groups else ()
    sizes = _of_group(problem)
    channels = (problem.of_roles[name] for name in ("oc", "ic"))  # a transposed convolution has its outputs first, too
    return (*group, *(along(name, sizes[name]) for name in channels), *taps)


def _of_group(problem: Conv) -> dict[str, int]:
    """Return the output and input channels of one group of the problem's convolution."""
    convolution = problem.convolution
    return {name: getattr(convolution, name) // problem.groups for name in ("oc", "ic")}


def _channels(problem: Conv, name: str) -> TensorDim:
    """Return the coordinate along a tensor's channels, over all groups."""
    size = _of_group(problem)[name]
    group = (("g", size),) if problem.groups > 1 else ()
    return TensorDim(size * problem.groups, (*group, (name, 1)))


def _groups(problem: Conv) -> tuple[Dim, ...]:
    return (dim_of("g", problem.groups),) if problem.groups > 1 else ()


def forward_dims(problem: Conv) -> tuple[tuple[Dim, ...], tuple[Dim, ...], Index, Index, Index]:
    """Return output positions, taps, and the coordinates of src, weights and dst."""
    axes = axes_of(problem)
    positions = (dim_of("mb", problem.mb), *(dim_of(f"o{n}", a.o) for n, a in axes))
    taps = tuple(dim_of(f"k{n}", a.k) for n, a in axes)
    images = along("mb", problem.mb)
    src = (images, _channels(problem, "ic"), *(_input_coordinate(n, a) for n, a in axes))
    wei = _weight_index(problem, tuple(along(f"k{n}", a.k) for n, a in axes))
    dst = (images, _channels(problem, "oc"), *(along(f"o{n}", a.o) for n, a in axes))
    return positions, taps, src, wei, dst


def _forward(problem: Conv) -> Contraction:
    positions, taps, src, wei, dst = forward_dims(problem)
    return Contraction(
        positions,
        (dim_of("oc", _of_group(problem)["oc"]),),
        (*taps, dim_of("ic", _of_group(problem)["ic"])),
        Tensor(tensor_of(problem, "src"), src),
        Tensor(tensor_of(problem, "wei"), wei),
        Tensor(tensor_of(problem, "dst"), dst),
        batch=_groups(problem),
    )


def _backward_weights(problem: Conv) -> Contraction:
    positions, taps, src, wei, dst = forward_dims(problem)
    return Contraction(
        (dim_of("oc", _of_group(problem)["oc"]),),
        (*taps, dim_of("ic", _of_group(problem)["ic"])),
        positions,
        Tensor(tensor_of(problem, "dst"), dst),
        Tensor(tensor_of(problem, "src"), src),
        Tensor(tensor_of(problem, "wei"), wei),
        batch=_groups(problem),
    )


#: dims: the number of a group among those of one product, for output and for input channels
OF_OUTPUTS, OF_INPUTS = "go", "gi"


def have_joined_groups(problem: Problem, joined_groups: int) -> bool:
    """Whether products of a problem can have so many groups: those of weight gradients.

    The result between different groups is not stored. Other products would multiply another group's infinities by zero.
    """
    if not isinstance(problem, Conv) or problem.runtime:
        return False
    if problem.convolution.direction not in (Dir.BWD_W, Dir.BWD_WB):
        return False
    return 1 < joined_groups <= problem.groups and problem.groups % joined_groups == 0


def _backward_weights_of_groups(problem: Problem, joined_groups: int) -> Contraction:
    """Return the product of weight gradients of several groups at a time: M and N are those of one group times them."""
    if not isinstance(problem, Conv) or not have_joined_groups(problem, joined_groups):
        raise DoesNotFit(
            f"groups={joined_groups}: wanted weight gradients of known sizes, in a multiple of {joined_groups} groups"
        )
    plain, sizes = _backward_weights(problem), _of_group(problem)
    outer = problem.groups // joined_groups

    def channels(name: str, of: str) -> TensorDim:
        size = sizes[name]
        around = (("g", joined_groups * size),) if outer > 1 else ()
        return TensorDim(size * problem.groups, (*around, (of, size), (name, 1)))

    def replaced(t: Tensor, at: int, coordinate: TensorDim) -> Tensor:
        return Tensor(t.spec, (*t.index[:at], coordinate, *t.index[at + 1 :]))

    number = TensorDim(problem.groups, (*((("g", joined_groups),) if outer > 1 else ()), (OF_OUTPUTS, 1)))
    *taps, inputs = plain.n
    return evolve(
        plain,
        m=(dim_of(OF_OUTPUTS, joined_groups), *plain.m),
        n=(*taps, dim_of(OF_INPUTS, joined_groups), inputs),
        of_m=replaced(plain.of_m, 1, channels("oc", OF_OUTPUTS)),
        of_n=replaced(plain.of_n, 1, channels("ic", OF_INPUTS)),
        result=replaced(plain.result, 0, number),
        batch=(dim_of("g", outer),) if outer > 1 else (),
        by_factors=True,
    )


def of_one_group(joined_groups: int) -> tuple[TensorDim, ...]:
    """Return the coordinates that leave their range between different groups of a product of so many."""
    if joined_groups == 1:
        return ()
    return (TensorDim(1, ((OF_INPUTS, 1), (OF_OUTPUTS, -1)), masked=True),)


def phase_count(problem: Conv) -> int:
    """Return the most kernels of backward data: one for each combination of stride phases.

    Without steps after the sums, one kernel writes the zeros of all phases that have no taps.
    """
    fills = problem.direction.is_forward
    return prod(axis.s if fills else Phase.count(axis) for _, axis in axes_of(problem))


def _backward_data(problem: Conv) -> Iterator[Contraction]:
    """Yield one product for each combination of stride phases that has taps."""
    by_axis = [Phase.with_taps(axis, name) for name, axis in axes_of(problem)]
    for chosen in combinations(*by_axis):
        if not any(p.is_empty for p in chosen):
            yield _of_phases(problem, chosen)


def untouched(problem: Problem) -> Iterator[Contraction]:
    """Yield the rest of backward data's result, whose sums have no terms: contractions of which only it has a meaning.

    There is one for each combination of stride phases without taps.
    """
    if isinstance(problem, Matmul) or problem.convolution.direction is not Dir.BWD_D:
        return
    by_axis = [(*Phase.with_taps(axis, name), *Untapped.of(axis, name)) for name, axis in axes_of(problem)]
    for chosen in combinations(*by_axis):
        if any(p.is_empty for p in chosen) and all(p.positions for p in chosen):
            yield _of_phases(problem, chosen)


def _of_phases(problem: Conv, phases: Sequence[Phase]) -> Contraction:
    """Return the product of one stride phase along each axis."""
    channels, images = _of_group(problem), along("mb", problem.mb)
    taps, diff_src, wei, diff_dst = zip(*(p.coordinates() for p in phases))
    role = "".join(f"{p.name}{p.residue}" for p in phases if p.axis.s > 1)
    return Contraction(
        (dim_of("mb", problem.mb), *(dim_of(f"i{p.name}", p.positions) for p in phases)),
        (dim_of("ic", channels["ic"]),),
        (*(dim_of(f"k{p.name}", count) for p, count in zip(phases, taps)), dim_of("oc", channels["oc"])),
        Tensor(tensor_of(problem, "dst"), (images, _channels(problem, "oc"), *diff_dst)),
        Tensor(tensor_of(problem, "wei"), _weight_index(problem, wei)),
        Tensor(tensor_of(problem, "src"), (images, _channels(problem, "ic"), *diff_src)),
        role,
        _groups(problem),
    )


def have_columns(problem: Problem) -> bool:
    """Whether the stride phases of a problem can be columns of one product.

    Weights of missing taps are 0, which less a zero point is not 0.
    """
    if not isinstance(problem, Conv) or problem.convolution.direction is not Dir.BWD_D or problem.runtime:
        return False
    if problem.zero_point("wei") is not None:
        return False
    axes = [axis for _, axis in axes_of(problem)]
    return any(axis.s > 1 for axis in axes) and all(Columns.suit(axis) for axis in axes)


def _phases_as_columns(problem: Problem) -> Contraction:
    """Return one product of all stride phases: N is phases x channels of diff_src, M the positions of one phase."""
    if not isinstance(problem, Conv) or not have_columns(problem):
        wanted = "backward data with strides, taps at each input position, known sizes and no zero point of weights"
        raise DoesNotFit(f"phases={COLUMNS}: wanted {wanted}")
    columns, channels = [Columns.of(axis, name) for name, axis in axes_of(problem)], _of_group(problem)
    images = along("mb", problem.mb)
    diff_src, wei, diff_dst = zip(*(c.coordinates() for c in columns))
    return Contraction(
        (dim_of("mb", problem.mb), *(dim_of(f"i{c.name}", c.positions) for c in columns)),
        (*(dim_of(c.phase, c.count) for c in columns if c.count > 1), dim_of("ic", channels["ic"])),
        (*(dim_of(f"k{c.name}", c.taps) for c in columns), dim_of("oc", channels["oc"])),
        Tensor(tensor_of(problem, "dst"), (images, _channels(problem, "oc"), *diff_dst)),
        Tensor(tensor_of(problem, "wei"), _weight_index(problem, wei)),
        Tensor(tensor_of(problem, "src"), (images, _channels(problem, "ic"), *diff_src)),
        batch=_groups(problem),
    )
