"""Memory traffic of a launch in closed form: which panels the workgroups in flight share in the caches.

A mapping is an array `tiles` by workgroup number in launch order: M and N tile, (workgroups, 2), or M, N and slice of
K, (workgroups, 3); -1 throughout where a workgroup has none. Workgroup w runs on die `w % dies`. Where workgroups
persist, `takers` names the workgroup that takes each row of the array; a workgroup takes its rows in turn. The
workgroups in flight on a die are a *wave* (elsewhere a wave is a subgroup), the waves of all dies at one
time a *round*.

All workgroups of a wave go through K together, so its L2 loads each panel once: the union of the panels of its M tiles
and of its N tiles. Data from an earlier wave is still cached only if everything read since fits; where K is walked
backwards every other round, the part that fits is cached. The memory-side cache is modelled with rounds in place of
waves. `lru.py` counts the same quantities step by step, without shared halos.
"""

from __future__ import annotations

from functools import cached_property
from math import gcd, prod

import numpy as np
import numpy.typing as npt

from convgen.choose.panels import Floats, Ints, Panels, distinct, panels
from convgen.ir.facts import Caches
from convgen.ir.layout.memory import View, stride
from convgen.ir.record import evolve, frozen
from convgen.plan.contraction import Product

Tiles = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

_OVERLAP = 2.5  #: exponent of the norm in which the clocks of work, fills and memory add up


@frozen(eq=False)
class Schedule:
    """The workgroup numbers that have tiles, in launch order: where and when they run."""

    number: Ints  #: number of the workgroup, or of the turn of a persistent one
    tile: Ints  #: (n, 3): M, N and slice of K
    die: Ints
    round: Ints
    backwards: Flags  #: whether K is walked from its end

    @classmethod
    def of(
        cls, tiles: Tiles, dies: int, in_flight: int, k_reversed: Flags | None = None, takers: Ints | None = None
    ) -> Schedule:
        """Return the schedule: workgroups go round the dies, `in_flight` at a time on each; empty ones end at once."""
        numbers = np.flatnonzero(tiles[:, 0] >= 0)
        if takers is None:
            die = numbers % dies
            turn = _counted(die) // in_flight
        else:
            taker, takers_index = np.unique(takers[numbers], return_inverse=True)
            die, turns = takers[numbers] % dies, _counted(takers[numbers])
            begun = _counted(taker % dies) // in_flight
            turn = begun[takers_index] * (int(turns.max(initial=0)) + 1) + turns
        backwards = np.zeros(len(numbers), np.bool_) if k_reversed is None else k_reversed[numbers]
        padded = np.zeros((len(numbers), 3), np.int64)
        padded[:, : tiles.shape[1]] = tiles[numbers]
        return cls(numbers, padded, die, turn, backwards)

    @property
    def rounds(self) -> int:
        return int(self.round.max(initial=-1)) + 1

    @property
    def slices(self) -> int:
        return int(self.tile[:, 2].max(initial=0)) + 1


def _counted(keys: Ints) -> Ints:
    """Return, for each key, how many equal keys precede it."""
    order, counts = np.argsort(keys, kind="stable"), np.bincount(keys)
    preceding = np.empty(len(keys), np.int64)
    preceding[order] = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts)
    return preceding


@frozen
class Moved:
    """Bytes that a launch reads."""

    requested: float  #: bytes; requested from L2 by all workgroups
    fill: float  #: bytes; loaded into the L2s of all dies
    memory: float  #: bytes; read from memory

    @property
    def hit_rate(self) -> float:
        """Return the hit rate of L2."""
        return 1 - self.fill / self.requested if self.requested else 1.0


@frozen
class Traffic(Moved):
    """Bytes that a launch reads, could read at best, and writes."""

    bound: float  #: bytes; fill with nothing kept between waves, for the best mapping
    unlimited: float  #: bytes; fill if a die kept everything that it ever read, for the best mapping
    result: float  #: bytes; written result
    channels: float  #: share of an L2's channels that a wave's results reach

    def clocks(self, caches: Caches, units: int, busy: float = 0.0) -> float:
        """Return the clocks by which mappings are ranked, with `busy` clocks of work on `units` units."""
        return _clocks(self.fill, self.memory, self.result, self.channels, caches, units, busy)


def _clocks(
    fill: float, memory: float, result: float, channels: float, caches: Caches, units: int, busy: float = 0.0
) -> float:
    """Return the clocks of work, fills, memory and stores; nothing hides the stores of results.

    A unit stores at its own rate, a wave at most at that of the channels that it reaches. Loads overlap with work, up
    to what a norm of 2.5 leaves over (fitted to public times of matrix products).
    """
    stores = min(units * caches.result_rate, channels * caches.dies * caches.channels * caches.store_rate)
    parts = busy + result / stores, fill / caches.fill_rate, memory / caches.memory_rate
    return float(sum(part**_OVERLAP for part in parts) ** (1 / _OVERLAP))


@frozen(eq=False)
class Operands:
    """Memory that the tiles of a product read and write; `rows` and `columns` are panels along M and N."""

    rows: Panels
    columns: Panels
    tile: tuple[int, int]
    result_bytes: float
    result_elem: int  #: bytes
    result_pitch: int  #: bytes; from one position along M to the next; 0 if these are not evenly apart

    @classmethod
    def of(cls, part: Product, tile: tuple[int, int], caches: Caches) -> Operands:
        """Return the operands of a product cut into tiles of M x N."""
        rows, columns = (panels(v, n, caches.line_bytes) for v, n in zip((part.of_m, part.of_n), tile))
        elem = part.result.memory.elem.bytes
        pitch = row_pitch(part.result, 1)
        return cls(rows, columns, tile, float(part.m * part.n * elem), elem, pitch)


@frozen(eq=False)
class TrafficCount:
    """The numbers of a launch's traffic, each computed on demand: a single number rules out many launches."""

    at: Schedule
    operands: Operands
    caches: Caches
    units: int

    @classmethod
    def of(
        cls,
        tiles: Tiles,
        operands: Operands,
        caches: Caches,
        units: int,
        per_unit: int = 1,
        k_reversed: Flags | None = None,
        takers: Ints | None = None,
    ) -> TrafficCount:
        """Return the counts of a launch on `units` compute units of all dies, `per_unit` workgroups on each."""
        in_flight = max(1, units // caches.dies) * per_unit
        return cls(Schedule.of(tiles, caches.dies, in_flight, k_reversed, takers), operands, caches, units)

    @property
    def traffic(self) -> Traffic:
        """Return all numbers of the traffic."""
        at, operands, wave = self.at, self.operands, self._wave
        return Traffic(
            requested=len(wave) * (operands.rows.requested + operands.columns.requested) / at.slices,
            fill=self.fill,
            memory=self.memory,
            bound=_bound(operands, wave, at.slices),
            unlimited=_bound(operands, at.die, at.slices),
            result=operands.result_bytes,
            channels=self.channels,
        )

    def clocks(self, memory: float | None = None) -> float:
        """Return the clocks by which mappings are ranked; `memory` replaces the counted bytes from memory."""
        memory = self.memory if memory is None else memory
        return _clocks(self.fill, memory, self.operands.result_bytes, self.channels, self.caches, self.units)

    @cached_property
    def fill(self) -> float:
        """Return the bytes loaded into the L2s of all dies."""
        return _read(self.at, self.operands, self.at.die, self.caches.dies, self.caches.l2_bytes, self._direction)

    @cached_property
    def memory(self) -> float:
        """Return the bytes read from memory."""
        at, size = self.at, self.caches.memory_side_bytes
        return _read(at, self.operands, np.zeros_like(at.die), 1, size, self._direction[:, :1]) if size else self.fill

    @cached_property
    def channels(self) -> float:
        """Return the share of an L2's channels that a wave's results reach."""
        return _channels(self.at, self.operands, self._wave, self.caches)

    @cached_property
    def _wave(self) -> Ints:
        return self.at.round * self.caches.dies + self.at.die

    @cached_property
    def _direction(self) -> Flags:
        """Return whether most workgroups of each wave, by round and die, walk K backwards."""
        shape = self.at.rounds, self.caches.dies
        if not self.at.backwards.any():
            return np.zeros(shape, np.bool_)
        backwards, total = (np.bincount(self._wave, weights, prod(shape)) for weights in (self.at.backwards, None))
        return (backwards * 2 > total).reshape(shape)


def _read(at: Schedule, operands: Operands, place: Ints, places: int, capacity: int, direction: Flags) -> float:
    """Return the bytes that caches of `capacity`, one a place, load: the unions of waves less what is still cached.

    Panels are reused as a whole; panels that overlap share their common part among as many rounds as fit together.
    """
    sides = _sides(at, operands, place, places)
    read = np.sum([side.bytes for side in sides], 0)  # by round and place
    if at.rounds < 2:  # no earlier round has left data
        return float(read.sum())
    whole = operands.rows.whole + operands.columns.whole
    read_before = np.concatenate((np.zeros((1, places)), np.cumsum(read, 0)))
    reverses = np.zeros_like(direction)
    reverses[1:] = direction[1:] != direction[:-1]
    total = float(read.sum()) - sum(side.cached(read_before, reverses, capacity, whole) for side in sides)
    rounds_that_fit = int(capacity // max(1.0, read.max(initial=0)))
    if rounds_that_fit < 2:
        return total
    merged_rounds = _sides(evolve(at, round=at.round // rounds_that_fit), operands, place, places)
    return min(total, sum(float(side.bytes.sum()) for side in merged_rounds))


def _sides(at: Schedule, operands: Operands, place: Ints, places: int) -> list[_Side]:
    return [_Side.of(side, at, n, place, places) for n, side in enumerate((operands.rows, operands.columns))]


@frozen(eq=False)
class _Side:
    """The distinct panels of one input that each wave reads, as (round, place, tile)."""

    round: Ints
    place: Ints
    before: Ints  #: the last round in which the place read that panel, -1 if none
    bytes: Floats  #: (rounds, places); bytes of the unions
    panel_bytes: Floats  #: (rounds, places); bytes, a panel's part of its wave's union

    @classmethod
    def of(cls, panels: Panels, at: Schedule, axis: int, place: Ints, places: int) -> _Side:
        rounds, slices = at.rounds, at.slices
        key = distinct(((at.tile[:, axis] * slices + at.tile[:, 2]) * places + place) * rounds + at.round)
        owner, turn = np.divmod(key, rounds)
        tile, place = np.divmod(owner, places)
        before = np.full(len(key), -1)
        before[1:] = np.where(owner[1:] == owner[:-1], turn[:-1], -1)
        wave = turn * places + place
        tile, part = np.divmod(tile, slices)
        union = _of_slices(panels, wave, tile, part, slices, rounds * places)
        panel_bytes = union / np.maximum(np.bincount(wave, minlength=rounds * places), 1)
        shape = rounds, places
        return cls(turn, place, before, union.reshape(shape), panel_bytes.reshape(shape))

    def cached(self, read_before: Floats, reverses: Flags, capacity: int, whole: float) -> float:
        """Return the bytes that are still cached from the last round that read them.

        `read_before` (rounds + 1, places) are the bytes read before each round, of `whole` in all. `reverses` marks
        rounds in which K changes direction: they reread the latest data first, so the cached part of a panel is the
        capacity over the data of both rounds.
        """
        reread = np.flatnonzero(self.before >= 0)
        turn, place, before = self.round[reread], self.place[reread], self.before[reread]
        panel_bytes = self.panel_bytes[turn, place]
        read_since = np.minimum(read_before[turn, place] - read_before[before, place], whole)
        share_cached = np.where(read_since <= capacity, 1.0, 0.0)
        next_round = reverses[turn, place] & (before == turn - 1)
        if not next_round.any():
            return float((panel_bytes * share_cached).sum())
        wave = turn * read_before.shape[1] + place
        shared = np.bincount(wave[next_round], panel_bytes[next_round], read_before[1:].size)[wave]
        both_rounds = read_before[turn + 1, place] - read_before[turn - 1, place] - shared
        fits = np.minimum(1.0, capacity / np.maximum(both_rounds, 1.0))
        return float((panel_bytes * np.where(next_round, np.maximum(share_cached, fits), share_cached)).sum())


def _of_slices(panels: Panels, wave: Ints, tile: Ints, part: Ints, slices: int, waves: int) -> Floats:
    """Return the bytes of the union of the panels of each wave, of which a slice reads its part of K.

    Slices read disjoint parts unless taps over one pixel fall into several: these read what they request, at most all.
    """
    if slices == 1:
        return panels.union(wave, tile, waves)
    group = wave * slices + part
    union = panels.union(group, tile, waves * slices)
    requested = np.bincount(group, minlength=waves * slices) * panels.requested
    read = np.maximum(union, np.minimum(union * slices, requested)) / slices
    total: Floats = read.reshape(waves, slices).sum(1)
    return total


def _bound(operands: Operands, group: Ints, slices: int) -> float:
    """Return the bytes if each group's tiles formed the best rectangle: a panel for each of its rows and columns."""
    rows, columns = operands.rows, operands.columns
    row, column = rows.whole / rows.tiles, columns.whole / columns.tiles
    total = 0.0
    of_size = np.bincount(np.bincount(group))
    for size in np.flatnonzero(of_size).tolist():
        height = np.arange(1, min(rows.tiles, size) + 1)
        width = np.minimum(-(-size // height), columns.tiles)
        total += of_size[size] * float((height * row + width * column)[height * width >= size].min(initial=np.inf))
    return total / slices


def _channels(at: Schedule, operands: Operands, wave: Ints, caches: Caches) -> float:
    """Return the share of channels that the results of a wave reach, averaged over waves.

    Rows whose pitch is a multiple of the channels' span all begin in one channel, so only the columns matter.
    """
    spread = gcd(operands.result_pitch, caches.camp_bytes)
    if caches.channels == 1 or spread < caches.camp_bytes or not len(wave):
        return 1.0
    columns = distinct(wave * operands.columns.tiles + at.tile[:, 1])
    waves_of_columns, column = np.divmod(columns, operands.columns.tiles)
    width = operands.tile[1] * operands.result_elem
    first = column * width // caches.channel_bytes
    count = min(caches.channels, max(1, width // caches.channel_bytes))
    reached = (first[:, None] + np.arange(count)) % caches.channels
    reached_channels = distinct((waves_of_columns[:, None] * caches.channels + reached).ravel())
    waves = len(distinct(waves_of_columns))
    return len(reached_channels) / (waves * caches.channels)


# ---------------------------------------------------------------- warnings


def channel_warning(view: View, caches: Caches) -> str | None:
    """Return a warning if all rows begin in one channel of L2, so that few channels hold a block of K."""
    pitch = row_pitch(view)
    if caches.channels == 1 or not pitch or pitch % caches.camp_bytes:
        return None
    return (
        f"rows of {view.memory.name} lie {pitch} B apart, a multiple of {caches.camp_bytes} B: all begin in one"
        " cache channel; pad the leading dimension"
    )


def row_pitch(view: View, axis: int = 0) -> int:
    """Return the bytes between neighbours along an axis; 0 where they are contiguous."""
    dim = next((d for d in reversed(view.axes[axis]) if d.size > 1), None)
    if dim is None:
        return 0
    pitch = abs(stride(view.layout, view.index, dim.name)) * view.memory.elem.bytes
    return pitch if pitch > view.memory.elem.bytes else 0


def half_order_warning(name: str, remaps: bool, groups: bool, traffic: Traffic, default: Traffic) -> str | None:
    """Return a warning if a mapping is only a die remap, or only groups, and reads more than the default."""
    if remaps == groups or traffic.fill <= default.fill:
        return None
    missing = "groups" if remaps else "a die remap"
    more = traffic.fill / default.fill
    return f"{name} without {missing} fills L2 {more:.2f} times as much as no mapping: wanted both or neither"
