"""Problems as contractions, the only place that knows the word convolution.

| direction | M | N | K | product |
|---|---|---|---|---|
| forward | mb, o… | oc | k…, ic | dst = src * wei |
| backward data | mb, i… of one stride phase | ic | taps of that phase, oc | diff_src = diff_dst * wei |
| backward weights | oc | k…, ic | mb, o… | diff_wei = diff_dst * src |

Channels are those of one group: groups, and the matrices of a batch, are a third axis, each position of which is a
product by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product as combinations
from math import gcd, prod

import attrs

from convgen.ir.layout.memory import Dim, TensorDim
from convgen.plan.blocks import Index
from convgen.plan.contraction import Contraction, Tensor, along, dim_of
from convgen.problem.conv import Axis, Conv
from convgen.problem.conv import Direction as Dir
from convgen.problem.matmul import Matmul, Problem
from convgen.problem.tensors import TensorSpec

_NAMES = "dhw"
#: names of the rows and columns of the matrices of each tensor
MATRICES = {"src": "mk", "wei": "kn", "dst": "mn"}


def contractions_of(problem: Problem) -> Iterable[Contraction]:
    if isinstance(problem, Matmul):
        return (_matmul(problem),)
    if problem.direction.is_forward:
        return (_forward(problem),)
    return _backward_data(problem) if problem.direction is Dir.BWD_D else (_backward_weights(problem),)


def coordinates(problem: Problem) -> dict[str, Index]:
    """Those of src, of weights, of dst and of the channels that a bias has, of what is computed forward."""
    if isinstance(problem, Matmul):
        return {role: batched(problem.tensor(role), dims) for role, dims in MATRICES.items()}
    _, _, src, wei, dst = forward_dims(problem)
    return {"src": src, "wei": wei, "dst": dst, "bia": dst[1:2]}


def _matmul(problem: Matmul) -> Contraction:
    """dst[b..., m, n] = sum over k of src[b..., m, k] * wei[b..., k, n]; a tensor of size 1 along b is read again."""
    src, wei, dst = map(problem.tensor, MATRICES)
    index = {role: tuple(grouped(problem, t) for t in own) for role, own in coordinates(problem).items()}
    return Contraction(
        (dim_of("m", problem.m),),
        _in_groups("n", problem.n, problem.groups["n"]),
        _in_groups("k", problem.k, problem.groups["k"]),
        Tensor(src, index["src"]),
        Tensor(wei, index["wei"]),
        Tensor(dst, index["dst"]),
        batch=tuple(dim_of(f"b{i}", size) for i, size in enumerate(dst.dims[:-2]) if size != 1),
    )


def _in_groups(name: str, size: int, sizes: tuple[int, ...]) -> tuple[Dim, ...]:
    """K or N, the number of a group apart where neighbours share what they are multiplied by."""
    if not is_split(sizes):
        return (dim_of(name, size),)
    return dim_of(f"{name}g", size // sizes[0]), dim_of(name, sizes[0])


def grouped(problem: Matmul, t: TensorDim) -> TensorDim:
    """A coordinate where K and N may go in groups."""
    sizes = problem.groups.get(t.terms[0][0] if t.terms else "", ())
    if not is_split(sizes):
        return t
    ((name, _),) = t.terms
    return attrs.evolve(t, terms=((f"{name}g", sizes[0]), (name, 1)))


def batched(spec: TensorSpec, matrix: str) -> Index:
    """The coordinates of a tensor of matrices; where one of a batch is 1 long, it is read again."""
    *sizes, rows, columns = spec.dims
    batch = (along(f"b{i}", size) if size > 1 else TensorDim(size, ()) for i, size in enumerate(sizes))
    return *batch, along(matrix[0], rows), along(matrix[1], columns)


def axes_of(problem: Conv) -> list[tuple[str, Axis]]:
    return list(zip(_NAMES[5 - problem.ndims :], problem.spatial))


def tensor_of(problem: Conv, name: str) -> TensorSpec:
    return next(t for t in problem.tensors if t.name == name)


def _input_coordinate(name: str, axis: Axis) -> TensorDim:
    """i = o * s + k * (d + 1) - p; masked only where a window reaches outside."""
    reach = (axis.o - 1) * axis.s + (axis.k - 1) * (axis.d + 1) - axis.p
    outside = axis.p > 0 or reach >= axis.i
    return TensorDim(axis.i, ((f"o{name}", axis.s), (f"k{name}", axis.d + 1)), -axis.p, outside)


def _weight_index(problem: Conv, taps: Index) -> Index:
    group = (along("g", problem.groups) if problem.groups > 1 else TensorDim(1, ()),) if problem.has_groups else ()
    return (*group, *(along(name, size) for name, size in _of_group(problem).items()), *taps)


def _of_group(problem: Conv) -> dict[str, int]:
    """Output and input channels of one group."""
    return {name: getattr(problem, name) // problem.groups for name in ("oc", "ic")}


def _channels(problem: Conv, name: str) -> TensorDim:
    """The coordinate along a tensor's channels, those of all groups."""
    size = _of_group(problem)[name]
    group = (("g", size),) if problem.groups > 1 else ()
    return TensorDim(size * problem.groups, (*group, (name, 1)))


def _groups(problem: Conv) -> tuple[Dim, ...]:
    return (dim_of("g", problem.groups),) if problem.groups > 1 else ()


def forward_dims(problem: Conv) -> tuple[tuple[Dim, ...], tuple[Dim, ...], Index, Index, Index]:
    """Output positions, taps, and the coordinates of src, of weights and of dst."""
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
        Tensor(tensor_of(problem, "diff_dst"), dst),
        Tensor(tensor_of(problem, "src"), src),
        Tensor(tensor_of(problem, "diff_wei"), wei),
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
    return prod(_Phase.count(axis) for _, axis in axes_of(problem))


def _backward_data(problem: Conv) -> Iterator[Contraction]:
    """A product for each combination of stride phases that has something to sum."""
    axes, channels = axes_of(problem), _of_group(problem)
    images = along("mb", problem.mb)
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
            (dim_of("mb", problem.mb), *(dim_of(f"i{p.name}", p.positions) for p in chosen)),
            (dim_of("ic", channels["ic"]),),
            (*(dim_of(f"k{p.name}", count) for p, count in zip(chosen, taps)), dim_of("oc", channels["oc"])),
            Tensor(tensor_of(problem, "diff_dst"), (images, _channels(problem, "oc"), *diff_dst)),
            Tensor(tensor_of(problem, "wei"), _weight_index(problem, wei)),
            Tensor(tensor_of(problem, "diff_src"), (images, _channels(problem, "ic"), *diff_src)),
            role,
            _groups(problem),
        )


def is_split(sizes: tuple[int, ...]) -> bool:
    """Whether an axis is one of groups of neighbours."""
    return len(sizes) == 1 and sizes[0] > 1
