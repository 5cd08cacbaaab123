"""Sums of convolutions by the definition: exact, in float64, for the requested rows and columns.

The law of each spatial axis is i = o*s - p + k*(d + 1); a tap k outside 0 <= i < I contributes nothing. In a transposed
convolution i is a position of dst and o one of src (oneDNN's Developer Guide, "Convolution and Deconvolution"). Tensors
are logical, with three spatial axes (absent ones of size 1). Sums are computed piece by piece, to save memory, and read
only the elements that they need: tensors may be `Fill`s, which compute elements when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt

from convgen.ir.record import evolve, frozen
from convgen.problem.conv import Axis, Conv
from convgen.problem.matmul import Matmul
from convgen.run import reference_request as request
from convgen.run.fills import Array, Fill
from convgen.run.reference_memory import Indices

Tensor = Array | Fill
Floats = npt.NDArray[np.float64]

#: (axis, positions along it, kernel tap) -> positions in the tensor that is read, and flags of those inside it
Law = Callable[[Axis, Indices, int], tuple[Indices, npt.NDArray[np.bool_]]]

_CHUNK_ELEMS = 1 << 22  #: elements gathered at a time: 32 MiB of float64


@frozen(eq=False)
class _Channels:
    """Channels as (group, number within the group), and the smallest grid that holds them all."""

    groups: Indices
    within: Indices
    place: tuple[Indices, Indices]  #: position of each channel in the grid

    @classmethod
    def of(cls, channels: Indices, size: int) -> _Channels:
        """Return channels for groups of `size` channels each."""
        groups, at_group = np.unique(channels // size, return_inverse=True)
        within, at_within = np.unique(channels % size, return_inverse=True)
        return cls(groups, within, (at_group, at_within))


@frozen(eq=False)
class Points:
    """Zero points of src and weights, each in the rank of its tensor, 1 long along broadcast dims."""

    src: Floats
    wei: Floats


def forward(problem: Conv, src: Tensor, wei: Tensor, rows: Indices, columns: Indices, zero: Points) -> Floats:
    """dst[n, oc, o] = sum over k and ic of (src[n, ic, i] - zero) * (wei[oc, ic, k] - zero).

    Rows (n, o...), columns oc. Zero points of src are those of channels.
    """
    chosen = _Channels.of(columns, problem.oc // problem.groups)
    places = np.ix_(chosen.groups, chosen.within)
    zeros = np.broadcast_to(zero.wei, request.size(problem, "wei"))
    weights, less = (np.asarray(_grouped_weights(problem, w)[places]) for w in (wei, zeros))
    taps = weights.astype(np.float64) - less.astype(np.float64)  # [g, oc, ic, k...]
    sizes = tuple(axis.o for axis in problem.axes)
    source = src.reshape(problem.mb, problem.ic, *(axis.i for axis in problem.axes))
    channels, law = np.broadcast_to(zero.src.reshape(-1), problem.ic), law_of(problem, "dst")
    return _gathered(problem, source, taps.transpose(3, 4, 5, 0, 2, 1), sizes, law, rows, chosen, channels)


def by_data(problem: Conv, wei: Tensor, diff_dst: Tensor, rows: Indices, columns: Indices) -> Floats:
    """diff_src[n, ic, i] = sum over k and oc of diff_dst[n, oc, o] * wei[oc, ic, k]; rows (n, i...), columns ic."""
    chosen = _Channels.of(columns, problem.ic // problem.groups)
    outputs = np.arange(problem.oc // problem.groups)
    taps = _grouped_weights(problem, wei)[np.ix_(chosen.groups, outputs, chosen.within)]  # [g, oc, ic, k...]
    sizes = tuple(axis.i for axis in problem.axes)
    source = diff_dst.reshape(problem.mb, problem.oc, *(axis.o for axis in problem.axes))
    none, law = np.zeros(problem.oc), law_of(problem, "diff_src")
    return _gathered(problem, source, taps.transpose(3, 4, 5, 0, 1, 2), sizes, law, rows, chosen, none)


def _grouped_weights(problem: Conv, wei: Tensor) -> Tensor:
    """Return the weights as [groups, oc and ic of one group, kd, kh, kw]."""
    kernel = (axis.k for axis in problem.axes)
    return wei.reshape(problem.groups, problem.oc // problem.groups, problem.ic // problem.groups, *kernel)


def window_axes(problem: Conv) -> tuple[Axis, ...]:
    """Return the axes with i positions over which windows move, and o windows; a deconvolution's move over dst."""
    if not request.is_transposed(problem):
        return problem.axes
    return tuple(evolve(axis, i=axis.o, o=axis.i) for axis in problem.axes)


def law_of(problem: Conv, output: str) -> Law:
    """Return the positions in the other tensor that a tap of an element of dst or diff_src multiplies."""
    return input_of if (output == "dst") is not request.is_transposed(problem) else output_of


def input_of(axis: Axis, o: Indices, k: int) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """Return the inputs that tap k of some outputs reads, and flags of those that exist."""
    i = o * axis.s - axis.p + k * (axis.d + 1)
    return i, (i >= 0) & (i < axis.i)


def output_of(axis: Axis, i: Indices, k: int) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """Return the outputs whose tap k reads some inputs, and flags of those that exist."""
    o, rest = np.divmod(i + axis.p - k * (axis.d + 1), axis.s)
    return o, (rest == 0) & (o >= 0) & (o < axis.o)


def _gathered(
    problem: Conv,
    source: Tensor,
    taps: Array,
    sizes: tuple[int, ...],
    law: Law,
    rows: Indices,
    chosen: _Channels,
    zero: Floats,
) -> Floats:
    """Return sums [rows, columns] over taps [k..., group, in, out]; rows are flat (n, positions of `sizes`), `law` has
    the positions in `source` [n, channels, positions...] that a tap multiplies; `zero` is subtracted per channel.
    """
    shape = (problem.mb, *sizes)
    if 2 * len(rows) > prod(shape):  # a copy pays when most rows are gathered, once a tap
        source = np.moveaxis(np.ascontiguousarray(np.moveaxis(np.asarray(source), 1, -1)), -1, 1)
    weights = taps.astype(np.float64, order="C")
    result = np.empty((len(rows), len(chosen.place[0])))
    step = max(1, _CHUNK_ELEMS // max(source.shape[1], weights.shape[3] * weights.shape[5]))
    for start in range(0, len(rows), step):
        chunk = slice(start, start + step)
        n, *places = np.unravel_index(rows[chunk], shape)
        sums = _over_taps(problem, source, weights, law, n, places, chosen.groups, zero)
        result[chunk] = sums[chosen.place[0], :, chosen.place[1]].T
    return result


def _over_taps(
    problem: Conv,
    source: Tensor,
    weights: Floats,
    law: Law,
    n: Indices,
    places: list[Indices],
    groups: Indices,
    zero: Floats,
) -> Floats:
    """Return sums [group, row, out]: one matrix product per tap, over the rows whose tap is inside the source."""
    sums = np.zeros((len(groups), len(n), weights.shape[5]))
    axes = window_axes(problem)
    for tap in product(*(range(axis.k) for axis in axes)):
        at, inside = zip(*map(law, axes, places, tap))
        where = np.flatnonzero(np.logical_and.reduce(inside))
        if len(where):
            operands = source[n[where], :, at[0][where], at[1][where], at[2][where]].astype(np.float64) - zero
            by_group = operands.reshape(len(where), problem.groups, -1)[:, groups]
            sums[:, where] += by_group.transpose(1, 0, 2) @ weights[tap]
    return sums


def by_weights(problem: Conv, src: Tensor, diff_dst: Tensor, rows: Indices, columns: Indices) -> Floats:
    """diff_wei[oc, ic, k] = sum over n and o of src[n, ic, i] * diff_dst[n, oc, o]; rows (k..., ic), columns oc.

    One matrix product per tap and piece of the input, of the channels that rows and columns need.
    """
    ic = problem.ic // problem.groups
    chosen = _Channels.of(columns, problem.oc // problem.groups)
    outputs = (chosen.groups[:, None] * (problem.oc // problem.groups) + chosen.within).ravel()
    source = src.reshape(problem.mb, problem.ic, *(axis.i for axis in problem.axes))
    gradient = diff_dst.reshape(problem.mb, problem.oc, *(axis.o for axis in problem.axes))
    result = np.empty((len(rows), len(columns)))
    for tap in np.unique(rows // ic):
        here = np.flatnonzero(rows // ic == tap)
        numbers, at_number = np.unique(rows[here] % ic, return_inverse=True)
        inputs = (chosen.groups[:, None] * ic + numbers).ravel()
        kernel = np.unravel_index(tap, tuple(axis.k for axis in problem.axes))
        axes = window_axes(problem)
        boxes = [outputs_inside(axis, int(k)) for axis, k in zip(axes, kernel)]
        strided = [_inputs(axis, int(k), box) for axis, k, box in zip(axes, kernel, boxes)]
        dense = [slice(box.start, box.stop) for box in boxes]
        at_source, at_gradient = (dense, strided) if request.is_transposed(problem) else (strided, dense)
        x, y = source[:, :, *at_source], gradient[:, :, *at_gradient]
        sums = _correlated(x, y, inputs, outputs, len(chosen.groups))
        result[here] = sums[chosen.place[0], :, chosen.place[1]].T[at_number]
    return result


def outputs_inside(axis: Axis, k: int) -> range:
    """Return the outputs whose tap k is inside the input."""
    offset = k * (axis.d + 1) - axis.p
    first = max(0, -(offset // axis.s))
    return range(first, max(first, min(axis.o, (axis.i - 1 - offset) // axis.s + 1)))


def _inputs(axis: Axis, k: int, outputs: range) -> slice:
    """Return the inputs that tap k of these outputs reads."""
    if not outputs:
        return slice(0, 0)
    first, last = (o * axis.s - axis.p + k * (axis.d + 1) for o in (outputs[0], outputs[-1]))
    return slice(first, last + 1, axis.s)


def _correlated(x: Tensor, y: Tensor, inputs: Indices, outputs: Indices, groups: int) -> Floats:
    """Return sums over n and positions, [group, in, out], of tensors [n, channels, d, h, w] whose positions agree."""

    def taken(tensor: Tensor, channels: Indices) -> Floats:
        chosen = tensor[:, channels].astype(np.float64)
        return chosen.reshape(len(tensor), groups, len(channels) // groups, -1)

    sums = np.zeros((groups, len(inputs) // groups, len(outputs) // groups))
    for piece in _pieces(x.shape, len(inputs) + len(outputs)):
        a, b = taken(x[piece], inputs), taken(y[piece], outputs)
        sums += np.matmul(a, b.transpose(0, 1, 3, 2)).sum(axis=0)
    return sums


def _pieces(shape: tuple[int, ...], channels: int) -> Iterator[tuple[slice, ...]]:
    """Yield boxes of n, d and h, with all channels, that cover a tensor; each holds at most `_CHUNK_ELEMS` elements."""
    n, _, d, h, w = shape
    if not n * d * h * w:
        return
    lines = max(1, _CHUNK_ELEMS // (channels * w))
    steps = max(1, lines // (d * h)), max(1, lines // h), min(lines, h)
    for start in product(*(range(0, size, step) for size, step in zip((n, d, h), steps))):
        image, *place = (slice(first, first + step) for first, step in zip(start, steps))
        yield image, slice(None), *place


def by_bias(diff_dst: Tensor, columns: Indices) -> Floats:
    """diff_bia[oc] = sum over n and o of diff_dst[n, oc, o], as one row."""
    sums = np.zeros((1, len(columns)))
    for n in range(len(diff_dst)):
        sums[0] += diff_dst[n, columns].reshape(len(columns), -1).astype(np.float64).sum(axis=1)
    return sums


def by_inner(problem: Matmul, src: Tensor, wei: Tensor, rows: Indices, columns: Indices, zero: Points) -> Floats:
    """dst[b..., m, n] = sum over k of (src[b..., m, k] - zero) * (wei[b..., k, n] - zero); rows (b..., m), columns n.

    A tensor of size 1 along a batch dimension is broadcast.
    """
    sums, batch = np.zeros((len(rows), len(columns))), request.size(problem, "dst")[:-2]
    for number in np.unique(rows // problem.m):
        here = np.flatnonzero(rows // problem.m == number)
        at = np.unravel_index(number, batch) if batch else ()
        of_src, of_wei, *points = (
            tensor[tuple(int(i) if size > 1 else 0 for i, size in zip(at, tensor.shape))]
            for tensor in (src, wei, zero.src, zero.wei)
        )
        sums[here] = _product(of_src, of_wei, Points(*points), rows[here] % problem.m, columns)
    return sums


def by_groups(
    problem: Matmul,
    src: Tensor,
    wei: Tensor,
    ends: Indices,
    rows: Indices,
    columns: Indices,
    zero: Points,
    slots: Indices | None = None,
) -> Floats:
    """Sums of a product in groups, group g from ends[g - 1] to ends[g] along M or K; rows (m) or (g, m), columns n.

    With `slots`, one for each of the rows, src has the rows of tokens; a slot of no token has a row of zeros.

    With groups of M, dst[m, n] = sum over k of src[m, k] * wei[g of m, k, n], with groups of K, dst[g, m, n] = sum over
    the k of g of src[m, k] * wei[k, n]; each factor less its zero point.
    """
    sums, groups = np.zeros((len(rows), len(columns))), request.grouping(problem)
    of_rows = groups is not None and groups.dim == "m"
    group_of = np.searchsorted(ends, rows, "right") if of_rows else rows // problem.m
    for number in np.unique(group_of[group_of < len(ends)]):
        begin, end = int(ends[number - 1]) if number else 0, int(ends[number])
        here = np.flatnonzero(group_of == number)
        if of_rows:
            points = evolve(zero, wei=zero.wei[min(number, len(zero.wei) - 1)])
            if slots is None:
                sums[here] = _product(src, wei[number], points, rows[here], columns)
                continue
            tokens, exists = request.tokens_of(problem, slots[here])
            sums[here[exists]] = _product(src, wei[number], points, tokens[exists], columns)
        else:
            sums[here] = _product(src[:, begin:end], wei[begin:end], zero, rows[here] % problem.m, columns)
    return sums


def _product(src: Tensor, wei: Tensor, zero: Points, rows: Indices, columns: Indices) -> Floats:
    """Return the product of two matrices, each less its zero points."""
    sums = np.zeros((len(rows), len(columns)))
    of_src, of_wei = np.broadcast_to(zero.src, src.shape), np.broadcast_to(zero.wei, wei.shape)
    step = max(1, _CHUNK_ELEMS // max(1, len(rows), len(columns)))
    for start in range(0, src.shape[1], step):
        here = slice(start, start + step)
        a, b = src[rows, here].astype(np.float64), wei[here, columns].astype(np.float64)
        sums += (a - of_src[rows, here]) @ (b - of_wei[here, columns])
    return sums
