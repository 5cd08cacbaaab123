"""What configs cost: the clocks of one launch by a closed form, of many configs at a time.

Per K block the matrix pipe, shared memory and the global path each take their time and the slowest sets the pace; tiles
go to compute units in rounds. It ranks, it does not predict.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import product
from typing import Any

import numpy as np

from convgen.backends.tuning import tuning
from convgen.choose.block_work import BlockWork, Kind
from convgen.choose.combinations import STAGING, SUBTILES, TILE, VARIANT, Configs, along, by_tile
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.dispatch import busiest
from convgen.ir.layout.mma import MmaAtom, shares
from convgen.ir.layout.turns import Turns
from convgen.ir.record import frozen
from convgen.ir.types import Type
from convgen.plan.config import Config, evenly, levels
from convgen.plan.copies import comes_out_even
from convgen.plan.registers import Counts, Numbers, Pipeline
from convgen.plan.variants.variant import Choices, Offer

_MOST_IN_VECTORS = 64  #: registers; accumulators of a lane that leave enough vector registers to the rest
_PART = 4  #: products of a part of a subgroup's tile, which hide that the next one's fragments are read
_SLICE_BLOCKS = 16  #: K blocks that a slice has at least
_ARRIVAL = 1600  #: clocks; from sums that are left to others that are there to be added, by `convgen profile`
_BESIDE = 0.42  #: of the clocks of code that no loop has, as MIOpen's kernels take it (`gen/profile/constants.json`)


@frozen
class Clocks:
    """The clocks of a launch, by cause.

    Workgroups run in `rounds`, `together` on a unit, and the `left` ones by themselves; each has a fixed part and its
    blocks of K. A block takes what the slowest of matrix, shared, moved and issue takes, a tenth of all of them, and
    `serial`, in which nothing else runs.
    """

    matrix: float  #: clocks; matrix pipe, of one block
    shared: float  #: clocks; shared memory
    moved: float  #: clocks; from global memory
    issue: float  #: clocks; loads and the search for their places, and what a block of K takes besides
    serial: float  #: clocks; barriers and what waits at them
    blocks: float  #: blocks of K of a workgroup; where they differ, on average of those of the busiest unit
    block: float  #: clocks; one block of a workgroup that has a unit to itself
    hidden: float  #: clocks; of it, that each further workgroup of the unit hides
    slowest: float  #: clocks; from one block to the next where only loads are waited for, 0 if they all leave ahead
    rounds: int  #: rounds of as many workgroups as a unit holds
    together: int  #: workgroups; resident on a unit
    left: int  #: workgroups behind the rounds
    tile: float  #: clocks; a workgroup beside its blocks
    put: float  #: clocks; in which a unit writes a workgroup's result, while it writes no other's
    tail: float  #: clocks; a share of all work, were it spread evenly, so that less of it wins ties
    besides: float  #: clocks; slices that meet, further launches
    launch: float  #: clocks; of the product's launch

    @property
    def total(self) -> float:
        """Of the product."""
        return self.launch + self.besides

    @property
    def pace(self) -> float:
        """Clocks from one block to the next of all that run together, no less than loads take to return."""
        return float(_pace(self.block, self.hidden, self.slowest, self.together))


def _pace(block: Any, hidden: Any, slowest: Any, together: Any) -> Any:
    """The same of so many workgroups: numbers, or arrays of them."""
    return np.maximum(block * together - hidden * (together - 1), slowest)


@frozen(eq=False)
class Table:
    """The configs of an offer that may fit, in the order of their combinations, with what they cost."""

    offer: Offer
    atom: MmaAtom
    moved: tuple[str, ...]  #: inputs that are reordered before
    configs: Configs
    columns: Mapping[str, Numbers]  #: fields of `Clocks`
    slices: Numbers
    at_a_time: Numbers  #: slices; that meet at a time, 0 where all do
    in_vectors: Numbers  #: whether accumulators live among the vector registers
    rows: Numbers  #: numbers of the combinations
    scores: Numbers  #: clocks; of each row, of all products
    depths: Numbers  #: of each row, by which the least of equal scores comes first
    registers: Numbers  #: of each row: vector registers of a lane, without accumulators that live elsewhere

    def config(self, row: int) -> Config:
        at, given, offer = self._place(row), self.configs, self.offer
        (m, n, k, waves_m, waves_n, waves_k), staging = given.tiles[at[TILE]], given.stagings[at[STAGING]]
        return Config(
            tile=(m, n, k),
            waves=(waves_m, waves_n),
            waves_k=waves_k,
            mma=(self.atom.n, self.atom.m, self.atom.k),
            slots=staging.slots,
            taps=given.variants[at[VARIANT]].word,
            acc="v" if self._at(self.in_vectors, at) else "a",
            slices=self._at(self.slices, at),
            reorder=self.moved,
            packed=offer.packed,
            sum="last" if (at_a_time := self._at(self.at_a_time, at)) else "",
            at_a_time=at_a_time,
            subtiles=given.subtiles[at[SUBTILES]],
            prefetch=staging.prefetch,
            types=offer.types(self.atom),
            stages=staging.stages,
            copy=staging.copy,
            **dict(offer.form.words),
        )

    def clocks(self, row: int) -> Clocks:
        at = self._place(row)
        return Clocks(**{name: self._at(column, at) for name, column in self.columns.items()})

    def _place(self, row: int) -> tuple[int, ...]:
        return tuple(map(int, np.unravel_index(self.rows[row], self.configs.dims)))

    @staticmethod
    def _at(column: Numbers, place: tuple[int, ...]) -> Any:
        return column[tuple(at if size > 1 else 0 for at, size in zip(place, column.shape))].item()


def ranked(
    offer: Offer, atom: MmaAtom, facts: TargetFacts, moved: tuple[str, ...], meetings: tuple[int, ...] = ()
) -> Table:
    """The configs that come out even and whose tiles fit shared memory, with their scores.

    Slices may meet by the last of so many of `meetings` at a time.
    """
    offered = offer.variants[0].choices(offer, atom, facts)
    configs = _even_configs(len(offer.taps), offered, atom, facts, meetings)
    if not all(configs.dims):
        return Table(offer, atom, moved, configs, {}, *[np.zeros(0, np.int64)] * 7)
    bounds = _bounds(configs, Kind.of(offer, configs.variants, atom, facts), atom, facts)
    counted = _clocks(configs, bounds.work, offer, atom, facts)
    in_vectors, fits = _place_of_sums(bounds.work.held.sums, counted.registers, facts)
    rows = np.flatnonzero(np.broadcast_to(bounds.fits & fits, configs.dims))
    clocks = offer.form.launches * (counted.columns["launch"] + counted.columns["besides"])
    scores, depths = (np.broadcast_to(each, configs.dims).ravel()[rows] for each in (clocks, counted.depths))
    ways = counted.columns, counted.slices, counted.at_a_time
    vectors = np.broadcast_to(counted.registers - np.where(in_vectors, 0, bounds.work.held.sums), configs.dims)
    return Table(offer, atom, moved, configs, *ways, in_vectors, rows, scores, depths, vectors.ravel()[rows])


def _place_of_sums(sums: Counts, registers: Numbers, facts: TargetFacts) -> tuple[Numbers, Numbers]:
    """Whether accumulators live among the vector registers, and whether all registers of a config suffice.

    They do where they are few and all fit there; else in a file of their own, if there is one.
    """
    together = np.asarray(registers <= facts.registers)
    if not facts.accumulators:
        return np.ones((), bool), together
    in_vectors = (sums <= _MOST_IN_VECTORS) & together
    apart = (sums <= facts.accumulators) & (registers - sums <= facts.registers)
    return in_vectors, in_vectors | apart


def of_config(offer: Offer, config: Config, atom: MmaAtom, facts: TargetFacts) -> Clocks:
    """What the clocks of one config consist of."""
    configs = Configs.of(config)
    work = BlockWork.of(configs, Kind.of(offer, configs.variants, atom, facts), atom, facts)
    counted = _clocks(configs, work, offer, atom, facts)
    return Clocks(**{name: column.item() for name, column in counted.columns.items()})


@frozen(eq=False)
class _Bounds:
    """Of the configs among which all products of a kind choose, what they need and which fit, registers apart."""

    work: BlockWork
    fits: Numbers


@lru_cache(maxsize=256)
def _bounds(configs: Configs, kind: Kind, atom: MmaAtom, facts: TargetFacts) -> _Bounds:
    work = BlockWork.of(configs, kind, atom, facts)
    m, n, k, subgroups_m, subgroups_n, subgroups_k = configs.sizes
    fits = work.slot_bytes * configs.of_stagings("slots") <= facts.shared_bytes
    subtiles = along(SUBTILES, configs.subtiles)
    fits = fits & (m % (subgroups_m * atom.m * subtiles) == 0)
    products = m * n * k * atom.spans // (subgroups_m * subgroups_n * subgroups_k * atom.m * atom.n * atom.k)
    fits = fits & ((subtiles == 1) | (products >= _PART * subtiles))
    fits = fits & ((configs.of_stagings("slots") > 0) | _fills_rows(k * atom.elem_bytes, facts))
    # By `convgen profile`, slots do not make up for windows so narrow that their granules come twice.
    narrow = k // max(1, kind.taps) * atom.elem_bytes < facts.core.global_granule
    fits = fits & ~(narrow & (configs.of_stagings("slots") > 1) & (kind.taps > 0))
    return _Bounds(work, fits)


@lru_cache(maxsize=256)
def _even_configs(
    resident: int, offered: Choices, atom: MmaAtom, facts: TargetFacts, meetings: tuple[int, ...]
) -> Configs:
    """Tiles with their grids of subgroups, which instructions fill and the lanes of a workgroup share out evenly.

    Of windows that are resident with so many taps, if any, copies are made even. All problems of one type choose among
    the same tiles.
    """
    elem, spans, is_even = atom.elem_bytes, atom.spans, cache(comes_out_even)
    found = []
    for m, n, k, (wm, wn, wk) in product(offered.tiles_m, offered.tiles_n, offered.tiles_k, offered.grids):
        if m % (wm * atom.m) or wn % spans or n % (wn // spans * atom.n) or k % (atom.k * wk):
            continue
        if wk > 1 and not _has_shares(
            m // (wm * atom.m), n // (wn // spans * atom.n), k // max(1, resident) // wk, wk, atom, facts
        ):
            continue
        if resident or all(is_even(rows, k, elem, facts, wm * wn * wk) for rows in (m, n)):
            found.append((m, n, k, wm, wn, wk))
    return Configs(found, tuning(facts).subtiles, offered.variants, offered.stagings, meetings=meetings)


def _has_shares(tiles_m: int, tiles_n: int, k: int, subgroups_k: int, atom: MmaAtom, facts: TargetFacts) -> bool:
    """Whether subgroups along K read whole chunks, and can share out their sums."""
    steps = k // atom.k
    even = tiles_n % shares(subgroups_k, tiles_m)[0] == 0
    return even and steps * atom.a.registers * atom.elem_bytes >= facts.chunk_bytes


def _fills_rows(row_bytes: Numbers, facts: TargetFacts) -> Numbers:
    """Whether rectangles are as wide as they may be: as a line of the cache."""
    return row_bytes >= (facts.planes.row if facts.planes else np.inf)


# ---------------------------------------------------------------- a launch


def _blocks(configs: Configs, offer: Offer, elem_bytes: int, facts: TargetFacts) -> Numbers:
    """K blocks, padding included."""
    tile_k = configs.sizes[2]
    of_variants = [
        by_tile(lambda k, v=variant: v.block(k, elem_bytes, facts.chunk_bytes), tile_k) for variant in configs.variants
    ]
    block = np.concatenate(of_variants, VARIANT)
    blocks: Numbers = -(-offer.outer * (-(-offer.inner // block) * block) // tile_k)
    return blocks


def _slices(offer: Offer, tiles: Numbers, blocks: Numbers, facts: TargetFacts) -> Numbers:
    """As many slices of K as it takes to give every unit work, each long enough to be worth its own result."""
    if offer.batch > 1 or offer.form.merged:
        return np.ones_like(blocks)
    slices: Numbers = np.maximum(1, np.minimum(facts.compute_units // tiles, blocks // _SLICE_BLOCKS))
    return slices


@frozen(eq=False)
class _Grid:
    """The workgroups of a launch before K is sliced: those of one product, or of several of different depth."""

    offer: Offer
    m: Numbers  #: of tiles
    n: Numbers

    def counts(self, m: Any, n: Any) -> list[tuple[Any, float]]:
        """Workgroups of each product with tiles of that size, and their depth beside that of the deepest."""
        products = self.offer.form.merged or ((self.offer.m, self.offer.n, 1),)
        deepest = max(depth for *_, depth in products)
        return [(-(-rows // m) * -(-columns // n), depth / deepest) for rows, columns, depth in products]

    @property
    def tiles(self) -> Numbers:
        """Of one of the batch."""
        all_tiles: Numbers = sum(count for count, _ in self.counts(self.m, self.n))
        return all_tiles

    @property
    def mean(self) -> Numbers:
        """The depth of a workgroup on average, beside that of the deepest."""
        all_depth: Numbers = sum(count * depth for count, depth in self.counts(self.m, self.n))
        return all_depth / self.tiles

    def on_busiest(self, a_unit: Numbers, held: Numbers, units: int) -> Numbers:
        """The same of the unit that ends last, which has so many workgroups in all and so many at a time."""
        if not self.offer.form.merged:
            return np.ones(())
        columns = np.broadcast_arrays(self.m, self.n, a_unit, held)
        known, places = np.unique(np.reshape(columns, (len(columns), -1)), axis=1, return_inverse=True)

        def depth(m: int, n: int, a_unit: int, held: int) -> float:
            grid = tuple((self.offer.batch * count, each) for count, each in self.counts(m, n))
            return _busiest(grid, units, held) / a_unit

        return np.array([depth(*each) for each in known.T.tolist()])[places].reshape(columns[0].shape)


_busiest = lru_cache(maxsize=2**10)(busiest)  #: tiles of one area mostly have the same grid


def _meeting(
    configs: Configs, offer: Offer, slices: Numbers, tiles: Numbers, turns: Turns | None, elem: Type, facts: TargetFacts
) -> tuple[Numbers, Numbers]:
    """Clocks in which slices meet, and how many at a time.

    All units leave sums; then they, or the last to arrive at each tile, add them up. Those that share K leave a part of
    each tile of theirs, and add up about as many tiles as they have.
    """
    (m, n, *_), tuned = configs.sizes, tuning(facts)
    tile, at_a_time = m * n * elem.bytes, np.full_like(slices, configs.at_a_time)
    if turns and turns.shared:
        at_each = turns.shared_turns + -(-turns.shared // turns.workgroups) * turns.sharers
        return at_each * tile / tuned.unit_rate, at_a_time
    if (slices == 1).all():
        return np.zeros(slices.shape), at_a_time
    left = slices * offer.m * offer.n * elem.bytes
    sums, each = left / (facts.compute_units * tuned.stream_rate), -(-tiles // facts.compute_units)
    given_back = np.minimum(left, tuned.dirty) / tuned.drain

    known, places = np.unique(slices, return_inverse=True)

    def by_last(counts: list[int]) -> tuple[Numbers, Numbers]:
        """For each known number of slices, so many at a time."""
        each_has = [(_members(n, count), _arrivals(n, count), count) for n, count in zip(known.tolist(), counts)]
        members, arrivals, count = (number[places].reshape(slices.shape) for number in np.array(each_has).T)
        added = members * tile / facts.core.global_rate + _ARRIVAL * arrivals
        met: Numbers = sums + given_back + each * _BESIDE * added
        return met, count

    if configs.at_a_time:
        met, at_a_time = by_last([configs.at_a_time] * len(known))
    elif configs.sum == "last":
        met = sums + each * slices * tile / tuned.unit_rate
    else:
        met = 2 * sums + given_back + tuned.launch
    for most in configs.meetings:
        other, count = by_last([evenly(n, most) for n in known.tolist()])
        at_a_time = np.where((other < met) & (slices > 1), count, at_a_time)
        met = np.minimum(met, other)
    return np.where(slices == 1, 0.0, met), at_a_time


def _members(slices: int, count: int) -> int:
    """Sums that whoever is the last everywhere adds up."""
    return sum(min(count, each) for each in (slices, *levels(slices, count)[:-1]))


def _arrivals(slices: int, count: int) -> int:
    return len(levels(slices, count))


@frozen(eq=False)
class _Counted:
    """A launch of each config: its clocks by field of `Clocks`, and what they follow from."""

    columns: dict[str, Numbers]
    slices: Numbers
    at_a_time: Numbers  #: slices; that meet at a time, 0 where all do
    registers: Numbers  #: registers; of a lane
    depths: Numbers  #: blocks of K from load to product where that is deep enough, elsewhere the most


def _clocks(configs: Configs, work: BlockWork, offer: Offer, atom: MmaAtom, facts: TargetFacts) -> _Counted:
    """One product, whose workgroups run in rounds of as many as a unit holds."""
    slots, tuned, core = configs.of_stagings("slots"), tuning(facts), facts.core
    grid = _Grid(offer, *configs.sizes[:2])
    tiles = grid.tiles
    k_blocks = _blocks(configs, offer, atom.elem_bytes, facts)
    slices = _slices(offer, tiles, k_blocks, facts)
    if configs.slices is not None:
        slices = np.full_like(slices, configs.slices)
    k_blocks = -(-k_blocks // slices)
    all_tiles = offer.batch * tiles * slices
    workgroups, longest, tiles_each, turns = all_tiles, k_blocks, 1, None
    if configs.persist:
        turns = Turns(configs.persist, all_tiles.item(), k_blocks.item(), configs.stagings[0].round)
        workgroups, longest = (np.full_like(tiles, number) for number in (turns.workgroups, turns.longest))
        tiles_each = turns.count
    a_unit = -(-workgroups // facts.compute_units)
    granule = core.register_granule
    pipeline, by_taps = Pipeline.of(configs.of_stagings), bool(offer.taps)
    registers = work.held.registers(k_blocks, pipeline, facts, by_taps=by_taps)
    by_registers = core.simd_registers // (-(-registers // granule) * granule) * core.simds // work.subgroups
    by_shared = np.where(slots > 0, facts.shared_bytes // (work.slot_bytes * np.maximum(1, slots)), by_registers)
    together = np.maximum(1, np.minimum(a_unit, np.minimum(by_shared, by_registers)))
    longest = longest * grid.on_busiest(a_unit, together, facts.compute_units)
    loops = pipeline.loops(k_blocks)
    serial = np.where(slots > 0, float(tuned.barrier), 0.0)
    # Outside a loop, resident windows are written behind the products of a block, whatever slots there are.
    by_turns = (slots == 1) | (by_taps & (slots > 0) & ~loops)
    serial = serial + np.where(by_turns, tuned.shared_exposed * work.shared + tuned.shared_latency, 0)
    # Blocks follow one another no faster than loads return, or prefetches, and what they bring is shared: those of as
    # many blocks are in flight. Where instructions move, loads of blocks that are no loop leave ahead of all of them.
    slowest = np.where(loops | (not core.reorders), tuned.load_latency / configs.of_stagings("awaited") + serial, 0.0)
    if not core.reorders:  # A subgroup copies and then multiplies: what it issues is hidden by others on its SIMD only.
        serial = serial + work.issue / np.maximum(1.0, together * work.subgroups / core.simds)
    # Where a SIMD has two waves of a workgroup, one hides half of what the other exposes.
    hides = offer.variants[0].trims or tuned.others_hide
    exposed = tuned.exposed * (np.clip(core.simds / work.subgroups, 0.5, 1.0) if hides else 1.0)
    busiest = np.maximum(np.maximum(work.matrix, work.shared), np.maximum(work.moved, work.issue))
    # Of one workgroup that has a unit to itself.
    block = busiest + serial + exposed * (work.matrix + work.shared + work.moved + work.issue)
    hidden = tuned.hidden * (block - busiest)
    tile = np.asarray((tuned.tile + work.met) * tiles_each)
    tail = tuned.tail * all_tiles * k_blocks * grid.mean * block / facts.compute_units
    besides, at_a_time = _meeting(configs, offer, slices, tiles * offer.batch, turns, atom.acc, facts)
    rounds, left = a_unit // together, a_unit % together

    tile_m, tile_n, *_ = configs.sizes
    # What slices leave is counted where they meet.
    put = np.where(slices == 1, tile_m * tile_n * offer.result.bytes / tuned.result_rate, 0.0)

    # Loads of a loop that come back in time behind those of as many blocks gain nothing by leaving earlier still: by
    # `convgen profile` of `bench/whole.py`, deeper ones take .99 to 1.01 of the time and up to 1.5 of the code.
    enough = loops & (configs.of_stagings("held") * (block - work.moved) * together >= tuned.load_latency)
    depths = np.where(enough, pipeline.depth, np.max(pipeline.depth))

    def of_round(together: Numbers) -> Any:
        return tile + together * put + longest * _pace(block, hidden, slowest, together)

    launch = rounds * of_round(together) + np.where(left > 0, of_round(left), 0.0) + tail
    columns = {
        "matrix": work.matrix, "shared": work.shared, "moved": work.moved, "issue": work.issue, "serial": serial,
        "blocks": longest, "block": block, "hidden": hidden, "slowest": slowest, "rounds": rounds, "together": together,
        "left": left, "tile": tile, "put": put, "tail": tail, "besides": besides, "launch": launch,
    }  # fmt: skip
    return _Counted(columns, slices, at_a_time, registers, depths)
