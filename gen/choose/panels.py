"""Memory that the tiles along one axis of a view read, over all of its other axis.

A tile is a range of consecutive positions along the rows of an input. With all of K it reads its panel: in a matrix
product some whole rows; in a convolution the pixels under its windows, which neighbouring tiles share. A panel is a set
of intervals of *granules*. A granule is the part of the tensor at one place of the coordinates that the rows move, so
in channels-last memory a pixel with all channels. The sets follow from the tensor dimensions, whatever the direction:

- along the innermost coordinate that the rows move, a run of rows and the taps over it are one interval;
- along the coordinates around it, taps are enumerated;
- a coordinate that K moves to as many places as the rows do counts as a whole, or modulo K's step if that exceeds 1.

Forward and backward data come out exact, in elements. In backward weights all taps together are exact too, but by the
last rule a tile of one tap counts the border that the tap never reaches: a sixth too much for 3x3 on images 14 wide.
Gaps of less than a line between windows count as read. Not modelled: lines that straddle granules, and lines of which
only some channels or taps are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product as combinations
from math import gcd, prod

import numpy as np
import numpy.typing as npt

from convgen.ir.layout.memory import Dim, TensorDim, View
from convgen.ir.record import frozen

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@frozen(eq=False)
class Panels:
    """The panels of all tiles: disjoint intervals [start, end) of granules, those of tile t from `first[t]`."""

    first: Ints  #: (tiles + 1); index of each tile's first interval
    start: Ints
    end: Ints
    span: int  #: number of granules
    granule: float  #: bytes of a granule
    requested: float  #: bytes that one whole tile requests, halos and repeats included

    @property
    def tiles(self) -> int:
        return len(self.first) - 1

    def union(self, group: Ints, tile: Ints, groups: int) -> Floats:
        """Return the bytes of the union of panels in each of `groups` groups; pairs (group, tile) are distinct."""
        counts = self.first[tile + 1] - self.first[tile]
        intervals = _ranges(self.first[tile], counts)
        owners = np.repeat(group, counts)
        if len(intervals) == 0:
            return np.zeros(groups)
        start, end, owners = _merged(self.start[intervals], self.end[intervals], owners, self.span)
        return self.granule * np.bincount(owners, end - start, groups).astype(np.float64)

    @cached_property
    def whole(self) -> float:
        """Bytes of the union of all panels."""
        tiles = np.arange(self.tiles)
        return float(self.union(np.zeros_like(tiles), tiles, 1)[0])


def distinct(values: Ints) -> Ints:
    """Return the values sorted, each once. (`numpy.unique` also imports masked arrays, which is slow.)"""
    ordered = np.sort(values)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))] if len(ordered) else ordered


def _ranges(first: Ints, counts: Ints) -> Ints:
    """Return the concatenated ranges of `counts` integers from each of `first`."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts - first, counts)


def _merged(start: Ints, end: Ints, group: Ints, span: int) -> tuple[Ints, Ints, Ints]:
    """Return disjoint intervals with the same unions, group by group; none where windows read nothing."""
    if not len(start):
        return start, end, group
    base = group * (span + 1)  # one free granule, so that no interval reaches into the next group
    start, end = start + base, end + base
    order = np.argsort(start, kind="stable")  # a stable sort is fast where runs are already in order
    start, reach = start[order], np.maximum.accumulate(end[order])
    opens = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    closes = np.concatenate((opens[1:], [len(start)])) - 1
    group = group[order][opens]
    return start[opens] - base[order][opens], reach[closes] - group * (span + 1), group


@frozen
class _Run:
    """A tensor coordinate that rows move: the row dim, its coefficient, and the offsets that K adds.

    Where K moves the coordinate to at least as many places as rows do, in steps of `size`, all places that are equal
    modulo `size` count as one (`wraps`).
    """

    dim: str
    coef: int
    const: int
    offsets: tuple[int, ...]  #: ascending, distinct
    size: int  #: positions of the coordinate; the step of K if it wraps
    wraps: bool = False

    def places(self, index: Ints, offset: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return the coordinate at positions `index` of the row dim with an offset of K, and where it is inside."""
        at = self.const + self.coef * index + offset
        if self.wraps:
            return at % self.size, np.ones(at.shape, np.bool_)
        return at, (at >= 0) & (at < self.size)

    def classes(self, rows: int) -> int:
        """Return the number of remainders that the rows take, evenly spread over places; 1 if it does not wrap."""
        return len({(self.const + self.coef * n) % self.size for n in range(rows)}) if self.wraps else 1


def panels(view: View, tile: int, line_bytes: int) -> Panels:
    """Return the panels of tiles of `tile` consecutive positions of axis 0 of an input, over all of axis 1."""
    view = view.of_axes(2)
    rows, k = ({d.name: d.size for d in axis} for axis in view.axes)
    elem = view.memory.elem.bytes
    gaps = _coordinates(view, rows)
    runs = {dim: run for dim in gaps if (run := _run(dim, rows, k))}
    coordinate_of = {run.dim: dim for dim, run in runs.items() if not run.wraps}
    innermost = next((n for n, d in reversed(list(enumerate(view.axes[0]))) if d.name in coordinate_of), None)
    tiles = -(-view.extent(0) // tile)
    requested = float(tile * prod(k.values()) * elem)
    if innermost is None:
        granule_bytes = elem * prod(reach(dim, {**rows, **k}) for dim in gaps)
        start, end = np.zeros(tiles, np.int64), np.ones(tiles, np.int64)
        return Panels(np.arange(tiles + 1), start, end, 1, granule_bytes, requested)
    dim = coordinate_of[view.axes[0][innermost].name]
    along_run = runs.pop(dim)
    outside = [d.name for d in view.axes[0][:innermost]]
    around = {other: run for other, run in runs.items() if run.dim in outside}
    unmoved = (other for other in gaps if other != dim and (other not in around or around[other].wraps))
    granule_bytes = elem * prod(reach(other, {**rows, **k}) for other in unmoved)
    classes = prod(run.classes(rows[run.dim]) for run in around.values())
    step, share = _step(along_run, gaps[dim], line_bytes)
    intervals = list(_intervals(_segments(view, innermost, tile), along_run, list(around.values()), step))
    span = prod(run.size for run in around.values()) * _width(along_run, step)
    columns: list[Ints] = [np.concatenate(part) for part in zip(*intervals)]
    start, end, of = _merged(columns[0], columns[1], columns[2], span)
    first = np.searchsorted(of, np.arange(tiles + 1))
    return Panels(first, start, end, span, granule_bytes * share / classes, requested)


def _coordinates(view: View, rows: dict[str, int]) -> dict[TensorDim, int]:
    """Return the tensor's coordinates with the bytes between neighbours along each.

    Where rows move several dims of one coordinate (blocks, and positions in a block), each of them is a coordinate.
    """
    coordinates: dict[TensorDim, int] = {}
    for n, t in enumerate(view.index):
        moving = [term for term in t.terms if rows.get(term[0], 1) > 1]
        parts = {t: 1}
        if len(moving) > 1:
            parts = {TensorDim(rows[name], ((name, 1),)): coef for name, coef in moving}
            parts[TensorDim(t.size, tuple(term for term in t.terms if term not in moving))] = 1
        coordinates |= {part: view.layout.step(n, coef) * view.memory.elem.bytes for part, coef in parts.items()}
    return coordinates


def _run(dim: TensorDim, rows: dict[str, int], k: dict[str, int]) -> _Run | None:
    """Return a coordinate as rows move it; None where no row does, or where K moves it to as many places, one apart."""
    moving = [(name, coef) for name, coef in dim.terms if name in rows and rows[name] > 1]
    if not moving:
        return None
    ((name, coef),) = moving  # see `_coordinates`
    of_k = [(k[other], c) for other, c in dim.terms if k.get(other, 1) > 1]
    if prod(n for n, _ in of_k) < rows[name]:
        offsets = {sum(chosen) for chosen in combinations(*(range(0, n * c, c) for n, c in of_k))}
        return _Run(name, coef, dim.const, tuple(sorted(offsets)), dim.size)
    classes = gcd(*(c for _, c in of_k))
    return _Run(name, coef, dim.const, (0,), classes, wraps=True) if classes > 1 else None


def reach(dim: TensorDim, sizes: dict[str, int]) -> int:
    """Return the number of positions that a coordinate takes.

    They form one run if no step exceeds the reach of the smaller steps; otherwise they are enumerated.
    """
    first, length = dim.const, 1
    for name, coef in sorted(dim.terms, key=lambda term: abs(term[1])):
        steps = sizes.get(name, 1) - 1
        if steps < 0 or (steps and abs(coef) > length):
            break
        first, length = first + min(0, coef * steps), length + abs(coef) * steps
    else:
        return max(0, min(first + length, dim.size) - max(first, 0))
    places = np.array([dim.const])
    for name, coef in dim.terms:
        places = np.unique(places[:, None] + coef * np.arange(sizes.get(name, 1)))
    return int(((places >= 0) & (places < dim.size)).sum())


def _step(run: _Run, gap_bytes: int, line_bytes: int) -> tuple[int, float]:
    """Return the positions that one granule stands for, and the share of granules in a run that is read.

    All positions that are read lie whole steps apart: a stride without taps in between reads every other pixel only.
    """
    step = abs(gcd(run.coef, *(o - run.offsets[0] for o in run.offsets)))
    if gap_bytes * step <= line_bytes:
        return 1, 1.0
    stride = abs(run.coef) // step
    return step, len({(o - run.offsets[0]) // step % stride for o in run.offsets}) / stride


def _width(run: _Run, step: int) -> int:
    """Return the granules along the run's coordinate."""
    return -(-run.size // step)


@frozen(eq=False)
class _Segments:
    """Runs [low, high) along the innermost dim, each of one tile, at one place of the surrounding dims."""

    tile: Ints
    low: Ints
    high: Ints
    outer: dict[str, Ints]


def _segments(view: View, inner: int, tile: int) -> _Segments:
    """Return the tiles' ranges of positions, cut where the innermost dim wraps around."""
    dims = view.axes[0]
    dim, within = dims[inner], prod(d.padded for d in dims[inner + 1 :])
    rows = view.extent(0)
    begin = np.arange(0, rows, tile)
    low, high = begin // within, -(-np.minimum(begin + tile, rows) // within)
    line = low // dim.padded
    counts = (high - 1) // dim.padded - line + 1
    of = np.repeat(np.arange(len(begin)), counts)
    line = _ranges(line, counts)
    start = line * dim.padded
    starts = np.maximum(low[of] - start, 0)
    ends = np.minimum(high[of] - start, dim.size)
    return _Segments(of, starts, ends, _split(line, dims[:inner]))


def _split(position: Ints, dims: Sequence[Dim]) -> dict[str, Ints]:
    positions: dict[str, Ints] = {}
    for dim in reversed(dims):
        position, positions[dim.name] = np.divmod(position, dim.padded)
    return positions


def _intervals(segments: _Segments, along: _Run, around: list[_Run], step: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield (start, end, tile) of the granules that the segments read, for each choice of surrounding taps."""
    ends = along.const + along.coef * np.stack([segments.low, segments.high - 1])
    low, high = ends.min(0) + along.offsets[0], ends.max(0) + along.offsets[-1]
    # Positions count from the first one that is read, in steps.
    phase = (along.const + along.offsets[0]) % step
    low, high = np.maximum((low - phase) // step, 0), np.minimum((high - phase) // step + 1, _width(along, step))
    exists = (segments.high > segments.low) & (high > low)
    for taps in combinations(*(run.offsets for run in around)):
        base, inside = np.zeros_like(low), exists
        for run, tap in zip(around, taps):
            place, inside_run = run.places(segments.outer[run.dim], tap)
            base, inside = base * run.size + place, inside & inside_run
        base = base * _width(along, step)
        yield (base + low)[inside], (base + high)[inside], segments.tile[inside]
