"""Infinities and NaNs in a few inputs, which reach code that small integers never reach.

Padding contributes nothing to a sum. A kernel whose windows reach outside their tensor therefore recomputes sums that
are not finite (docs/architecture.md, "Padding and infinities"). Padding is multiplied by weights in forward and
backward data, and by the results of windows (the gradient of dst, or src of a deconvolution) in gradients of weights.
One or two columns of a sampled output tile get a special value in that factor: the subgroups with these columns
recompute their sums, all others must keep theirs. The last of several tiles also gets a special value in the tensor
that windows move over.

Blocks of a result's layout have padding, which must be zero. A kernel may compute sums there, products of zeros with
elements of either factor. So each tile with such padding gets special values in both factors.

Groups of a product have neighbours, whose rows and terms must not reach their results. So a group gets special values
beside its first and last row or term.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from convgen.ir.record import frozen
from convgen.problem.conv import Axis, Conv
from convgen.problem.fused_conv import FusedConv
from convgen.problem.matmul import Matmul, Problem
from convgen.run import reference_types as types
from convgen.run.accuracy import is_curved
from convgen.run.code import OutputRegion
from convgen.run.fills import Fill
from convgen.run.oracle import input_of, law_of, output_of, outputs_inside, window_axes
from convgen.run.reference_fused import requests
from convgen.run.reference_memory import Indices, has_padding
from convgen.run.reference_request import (
    IDS,
    gathers,
    grouping,
    is_transposed,
    outputs,
    size,
    sums_slots,
    tensor,
    tokens_of,
)
from convgen.run.reference_request import inputs as inputs_of

Index = tuple[int, ...]


@frozen
class Special:
    """An element of an input that becomes infinite or NaN; `turn` selects which."""

    tensor: str
    index: Index
    turn: int


def pads(problem: Problem) -> bool:
    """Return whether windows reach into padding that is multiplied by values that may be infinite or NaN."""
    problem = _last(problem)
    if isinstance(problem, Matmul) or all(0 in output.dims for output in outputs(problem)):
        return False
    output = outputs(problem)[0].name
    scatters = output != "diff_wei" and law_of(problem, output) is output_of
    outside = _outside_sources if scatters else _outside_results
    reaches = any(outside(axis, k) for axis in window_axes(problem) for k in range(axis.k))
    return reaches and bool(_kinds(problem, _beside_padding(problem)))


def pads_blocks(problem: Problem) -> bool:
    """Return whether blocks of an output have padding, where sums may multiply zeros by infinities or NaNs."""
    problem = _last(problem)
    factors = inputs_of(problem)[:2]
    return any(map(has_padding, outputs(problem))) and any(_kinds(problem, factor.name) for factor in factors)


def has_groups(problem: Problem) -> bool:
    """Return whether a product has several groups, whose neighbours may be infinite or NaN."""
    groups = grouping(problem)
    return groups is not None and groups.count > 1 and any(_kinds(problem, t.name) for t in inputs_of(problem)[:2])


def _outside_results(axis: Axis, k: int) -> bool:
    """Return whether tap k of any output is outside the input."""
    return len(outputs_inside(axis, k)) < axis.o


def _outside_sources(axis: Axis, k: int) -> bool:
    """Return whether tap k of any input belongs to an output that does not exist."""
    i = np.arange(axis.i)
    is_read = (i + axis.p - k * (axis.d + 1)) % axis.s == 0
    return bool((is_read & ~output_of(axis, i, k)[1]).any())


def placed(problem: Problem, inputs: Mapping[str, Fill], regions: Sequence[OutputRegion]) -> dict[str, Fill]:
    """Return the inputs with infinities and NaNs added that the given output tiles read; one region per tile."""
    if isinstance(problem, FusedConv):
        asked = requests(problem)
        own = {spec.name: asked.named(spec.name) for spec in inputs_of(asked.second) if spec.name != "src"}
        later = placed(asked.second, {name: inputs[call] for name, call in own.items()}, regions)
        return {**inputs, **{own[name]: fill for name, fill in later.items()}}
    changed: dict[str, dict[Index, float]] = {}
    ids = np.asarray(inputs[IDS]).astype(np.int64) if gathers(problem) else None
    for special in _specials(problem, [r for r in regions if r.rows.size and r.columns.size], ids):
        if kinds := _kinds(problem, special.tensor):
            changed.setdefault(special.tensor, {})[special.index] = kinds[special.turn % len(kinds)]
    return {name: fill.with_values(changed.get(name, {})) for name, fill in inputs.items()}


def _last(problem: Problem) -> Problem:
    """Return the problem whose result is that of the call: of a fused one, the depthwise convolution."""
    return requests(problem).second if isinstance(problem, FusedConv) else problem


def count(inputs: Mapping[str, Fill]) -> int:
    """Return the number of elements that were replaced by special values."""
    changes = (
        ((number, value) for number, value in fill.changed if not np.isfinite(value)) for fill in inputs.values()
    )
    return sum(len({number for number, _ in special}) for special in changes)


def _kinds(problem: Problem, name: str) -> tuple[float, ...]:
    """Return the special values of a tensor's type; NaN alone before functions that are undefined at infinities.

    docs/ir.md tells which, such as `gelu` of minus infinity.
    """
    dtype = tensor(problem, name).dtype
    if not types.has_nan(dtype):
        return ()
    all_kinds = types.has_infinity(dtype) and not is_curved(problem.post_ops)
    return (np.nan, np.inf, -np.inf) if all_kinds else (np.nan,)


def _beside_padding(problem: Conv) -> str:
    """Return the name of the factor that is multiplied by padding."""
    return _of_windows(problem)[1] if outputs(problem)[0].name == "diff_wei" else "wei"


def _of_windows(problem: Conv) -> tuple[str, str]:
    """Return the factors of a gradient of weights: the one over which windows move, and the one with their results."""
    return ("diff_dst", "src") if is_transposed(problem) else ("src", "diff_dst")


def _specials(problem: Problem, regions: Sequence[OutputRegion], ids: Indices | None) -> Iterator[Special]:
    last = regions[-1] if len(regions) > 1 else None
    for number, region in enumerate(regions):
        if isinstance(problem, Matmul):
            groups = grouping(problem)
            yield from _of_groups(problem, region, ids) if groups else _of_product(problem, region, number)
            continue
        with_source = region is last or region.has_padding
        match region.output:
            case "dst" | "diff_src":
                yield from _of_taps(problem, region, 2 * number, with_source=with_source)
            case "diff_wei":
                yield from _of_positions(problem, region, 2 * number, with_source=with_source)


def _of_product(problem: Matmul, region: OutputRegion, turn: int) -> Iterator[Special]:
    """Yield a special in the weights' last row, where a loop over K ends, and one in the source's first column."""
    *batch, m = np.unravel_index(int(region.rows[len(region.rows) // 2]), size(problem, "dst")[:-1])
    n = int(region.columns[len(region.columns) // 2])
    for name, sizes, last in (("wei", problem.wei_batch, (problem.k - 1, n)), ("src", problem.src_batch, (int(m), 0))):
        if problem.k:
            yield Special(name, (*(int(at) if size > 1 else 0 for at, size in zip(batch, sizes)), *last), turn)
            turn += 1


def _of_groups(problem: Matmul, region: OutputRegion, ids: Indices | None) -> Iterator[Special]:
    """Yield specials in the rows, or in the terms of both factors, before and behind the group of a tile.

    With rows by number, whose slots are `ids`, also one in a row of src that no row of the product has, if there is
    one. Where rows of dst are sums over slots, the group is that of any row.
    """
    groups = grouping(problem)
    assert groups is not None
    rows = (problem.m,) if groups.dim == "m" else size(problem, "dst")[:-1]
    middle = int(region.rows[len(region.rows) // 2])
    *number, m = np.unravel_index(middle % problem.m if sums_slots(problem) else middle, rows)
    n, ends = int(region.columns[len(region.columns) // 2]), np.cumsum(groups.sizes)
    group = int(number[0]) if number else int(np.searchsorted(ends, m, "right"))
    begin, end = int(ends[group]) - groups.sizes[group], int(ends[group])
    for turn, at in enumerate(at for at in (end, begin - 1) if 0 <= at < ends[-1]):
        if number:
            yield Special("src", (int(m), at), turn)
            yield Special("wei", (at, n), turn)
        elif ids is None:
            yield Special("src", (at, problem.k - 1), turn)
        else:
            tokens, exists = tokens_of(problem, ids)
            yield Special("src", (int(tokens[at]), problem.k - 1), turn)
            unused = np.setdiff1d(np.arange(size(problem, "src")[0]), tokens[exists])
            yield from (Special("src", (int(token), 0), turn + 1) for token in unused[:1])


def _neighbours(region: OutputRegion) -> tuple[int, int]:
    """Return two neighbouring columns of a tile, or its only one."""
    at = len(region.columns) // 3
    return int(region.columns[at]), int(region.columns[min(at + 1, len(region.columns) - 1)])


def _of_taps(problem: Conv, region: OutputRegion, turn: int, *, with_source: bool) -> Iterator[Special]:
    """Yield specials in weights, if possible at taps that are outside for some rows of a tile and inside for others."""
    forward = region.output == "dst"
    own, summed = (problem.oc, problem.ic) if forward else (problem.ic, problem.oc)
    law, sizes, axes = (
        law_of(problem, region.output),
        tuple(a.o if forward else a.i for a in problem.axes),
        window_axes(problem),
    )
    n, *places = np.unravel_index(region.rows, (problem.mb, *sizes))
    taps = _taps([[law(axis, at, k)[1] for k in range(axis.k)] for axis, at in zip(axes, places)])
    if not taps:
        return
    own, summed = own // problem.groups, summed // problem.groups
    for column, tap, across in zip(_neighbours(region), (taps[0], taps[-1]), (0, summed - 1)):
        group, within = divmod(column, own)
        channels = (within, across) if forward else (across, within)
        groups = (group,) if problem.has_groups else ()
        yield Special("wei", (*groups, *channels, *_spatial(problem, tap)), turn)
        turn += 1
    if with_source:
        positions = [law(axis, at, k) for axis, at, k in zip(axes, places, taps[0])]
        row = int(np.flatnonzero(np.logical_and.reduce([inside for _, inside in positions]))[-1])
        channel = _neighbours(region)[0] // own * summed
        at = _spatial(problem, [int(at[row]) for at, _ in positions])
        yield Special("src" if forward else "diff_dst", (int(n[row]), channel, *at), turn)


def _taps(inside: Sequence[Sequence[npt.NDArray[np.bool_]]]) -> list[Index]:
    """Return the taps that are inside for some rows: only those that are outside for others, if there are any.

    `inside` has flags by axis, tap and row.
    """
    rows = np.einsum("ar,br,cr->abc", *(np.array(along, np.int64) for along in inside))
    mixed = (rows > 0) & (rows < inside[0][0].size)
    return [(int(d), int(h), int(w)) for d, h, w in np.argwhere(mixed if mixed.any() else rows > 0)]


def _of_positions(problem: Conv, region: OutputRegion, turn: int, *, with_source: bool) -> Iterator[Special]:
    """Yield specials in the results of windows at the first and last position, which some taps see beside padding."""
    moved, results = _of_windows(problem)
    axes, row = window_axes(problem), int(region.rows[len(region.rows) // 2])
    ends = (0, *(0 for _ in axes)), (problem.mb - 1, *(axis.o - 1 for axis in axes))
    for column, (n, *at) in zip(_neighbours(region), ends):
        yield Special(results, (n, _channel(problem, results, row, column), *_spatial(problem, at)), turn)
        turn += 1
    tap = [int(k) for k in np.unravel_index(row // (problem.ic // problem.groups), tuple(axis.k for axis in axes))]
    boxes = [outputs_inside(axis, k) for axis, k in zip(axes, tap)]
    if with_source and all(boxes):
        places = [int(input_of(axis, np.array(box[0]), k)[0]) for axis, k, box in zip(axes, tap, boxes)]
        channel = _channel(problem, moved, row, _neighbours(region)[0])
        yield Special(moved, (0, channel, *_spatial(problem, places)), turn)


def _channel(problem: Conv, tensor: str, row: int, column: int) -> int:
    """Return the channel of a factor, of all groups, that an element of the gradient of weights sums."""
    ic, oc = problem.ic // problem.groups, problem.oc // problem.groups
    return column if tensor == "diff_dst" else column // oc * ic + row % ic


def _spatial(problem: Conv, along: Sequence[int]) -> Index:
    """Drop the axes that the problem does not have from values along all three."""
    return tuple(along[5 - problem.ndims :])
