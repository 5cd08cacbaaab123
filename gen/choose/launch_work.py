"""Clocks of one launch of each config: workgroups in rounds, each with its blocks of K and its result."""

from __future__ import annotations

from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from convgen.backends.tuning import tuning
from convgen.choose.block_work import LINE, BlockWork
from convgen.choose.combinations import FILL, VARIANT, Configs, along, by_tile
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.dispatch import makespan
from convgen.ir.layout.turns import SharedOut, Turns
from convgen.ir.record import evolve, frozen
from convgen.passes.loop_trips import runs_late
from convgen.passes.messages.linear import WORD
from convgen.plan.config import even_group_size, levels
from convgen.plan.registers import KEPT_FREE, MOST_AHEAD, PIECE, ROOM, Numbers, Pipeline
from convgen.plan.variants.variant import Offer

_SCRATCH = 2048  #: bytes of a subgroup for the exchange of a piece of its result; 1 to 1.75 KB where it is needed
_USUAL_SLOTS = 4  #: slots up to which `Tuning.exposed` holds; with more, proportionally less is exposed
_OVERLAP = 8  #: exponent of the norm in which clocks of units and of memory add up (`bench/fit_chooser.py`)
_ARRIVAL = 1600  #: clocks; from a slice's store of its sums until another may add them, by `convgen profile`
#: share of the issue clocks of code outside of loops that counts in a launch's time; the fit to MIOpen's f16 kernels on
#: an MI300X has .40 (`around` in `gen/profile/constants.json`)
_OUTSIDE_LOOPS = 0.42


def pace(block: Any, hidden: Any, slowest: Any, together: Any) -> Any:
    """Return the clocks from one block to the next of workgroups that run together, for numbers or arrays.

    Each further workgroup hides `hidden` clocks of a block; loads return no faster than `slowest`.
    """
    return np.maximum(block * together - hidden * (together - 1), slowest)


@frozen(eq=False)
class _Grid:
    """The workgroups of a launch before K is sliced: of one product, or of several whose K have different lengths."""

    offer: Offer
    m: Numbers  #: rows of a tile
    n: Numbers

    def counts(self, m: Any, n: Any) -> list[tuple[Any, float]]:
        """Return, for each product, its workgroups with tiles of m x n, and its length of K over the longest."""
        if self.offer.form.product.grouped:  # numbers of tiles beyond the usual ones have no work
            down, across = self.offer.form.product.usual_tiles(m, n)
            return [(down * across, 1.0)]
        products = self.offer.form.merged or ((self.offer.m, self.offer.n, 1),)
        deepest = max(depth for *_, depth in products)
        return [(-(-rows // m) * -(-columns // n), depth / deepest) for rows, columns, depth in products]

    @property
    def tiles(self) -> Numbers:
        """Return the tiles of one product of the batch, or of all merged products."""
        all_tiles: Numbers = sum(count for count, _ in self.counts(self.m, self.n))
        return all_tiles

    @property
    def mean(self) -> Numbers:
        """Return the average length of K of a workgroup, over that of the longest."""
        all_depth: Numbers = sum(count * depth for count, depth in self.counts(self.m, self.n))
        return all_depth / self.tiles

    def on_busiest(self, per_unit: Numbers, together: Numbers, units: int) -> Numbers:
        """Return the average length of K (see `mean`) on the unit that ends last, with `per_unit` workgroups in all."""
        if not self.offer.form.merged:
            return np.ones(())
        numbers = np.broadcast_arrays(self.m, self.n, per_unit, together)
        distinct, which = np.unique(np.reshape(numbers, (len(numbers), -1)), axis=1, return_inverse=True)

        def depth(m: int, n: int, per_unit: int, together: int) -> float:
            grid = tuple((self.offer.batch * count, each) for count, each in self.counts(m, n))
            return _makespan(grid, units, together) / per_unit

        return np.array([depth(*each) for each in distinct.T.tolist()])[which].reshape(numbers[0].shape)


_makespan = lru_cache(maxsize=2**10)(makespan)  #: tiles of equal area mostly have equal grids


class Launch:
    """One launch of an offer's product, for all configs at a time, in rounds of as many workgroups as a unit holds.

    Where configs leave it open, K is cut into the slices that give each unit at most 1, 2, ... workgroups (a fill).
    """

    def __init__(self, configs: Configs, work: BlockWork, offer: Offer, facts: TargetFacts) -> None:
        self.configs, self.work, self.offer, self.atom, self.facts = configs, work, offer, configs.atom, facts
        self.tuned, self.core = tuning(facts), facts.core
        self.slots = configs.of_stagings["slots"]
        self.pipeline = Pipeline.of(configs.of_stagings.__getitem__)
        self.grid = _Grid(offer, *configs.sizes[:2])
        self.by_taps = bool(offer.tap_rows)
        self.in_ring = configs.of_stagings["in_ring"]

    # ------------------------------------------------------------ workgroups and their blocks

    @cached_property
    def _tile_blocks(self) -> Numbers:
        """Return the blocks of K of a tile, padding included."""
        blocks: Numbers = -(-self.offer.outer * self._padded_inner // self.configs.sizes[2])
        return blocks

    @cached_property
    def _padded_inner(self) -> Numbers:
        """Return the extent of the innermost dim of K, padding included."""
        padded: Numbers = -(-self.offer.inner // self._padded_to) * self._padded_to
        return padded

    @cached_property
    def _padded_to(self) -> Numbers:
        """Return the elements to whose multiples the innermost dim of K is padded."""
        elem, chunk = self.atom.elem_bytes, self.facts.chunk_bytes
        tile_k = self.configs.sizes[2]
        by_variant = [by_tile(lambda k, v=each: v.block(k, elem, chunk), tile_k) for each in self.configs.variants]
        return np.concatenate(by_variant, VARIANT)

    @property
    def has_scratch(self) -> Numbers:
        """Return whether shared memory has room for the scratch tiles by which lanes widen their stores."""
        exchanges = self.atom.in_shared and self.tuned.exchanged_message > self.offer.result.bytes
        scratch = np.where(self.slices == 1, _SCRATCH * exchanges * self.work.subgroups, 0)
        fits: Numbers = self.work.slot_bytes * self.slots + scratch <= self.facts.shared_bytes
        return fits

    @property
    def suits_ring(self) -> Numbers:
        """Return whether bulk copies, if a config has any, suit its variant and read no padding between pixels.

        They bring no rows that have numbers.
        """
        if self.offer.form.product.gathered:
            return ~self.in_ring
        along_k = any(load.along_k for load in self.offer.loads(self.atom, self.facts))
        of_variants = along(VARIANT, [each.suits_rings for each in self.configs.variants])
        suits: Numbers = ~self.in_ring | (of_variants & (along_k | (self.offer.inner % self._padded_to == 0)))
        return suits

    @property
    def runs_late(self) -> Numbers:
        """Return whether the products of a block still run while the next block begins."""
        stays = self.atom.in_shared and not self.offer.form.sums_outside(self.atom)
        late: Numbers = runs_late(self.slots) & stays
        return late

    @cached_property
    def slices(self) -> Numbers:
        """Return the slices of K, each long enough to be worth its own result."""
        if self.configs.slices is not None:
            return np.full_like(self._tile_blocks, self.configs.slices)
        return np.concatenate([slices for slices, _ in self._fillings], FILL)

    @property
    def is_new(self) -> Numbers:
        """Return whether a config has more slices than with a smaller fill."""
        return np.concatenate([is_new for _, is_new in self._fillings], FILL)

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the lengths of all axes."""
        return len(self.slices), *self.configs.dims

    @cached_property
    def _fillings(self) -> list[tuple[Numbers, Numbers]]:
        """Return the slices of each fill, and where the fill before has fewer; fills without such configs are left out.

        The smallest fill adds all of its configs.
        """
        by_fill = [self._filling(fill) for fill in range(1, self.tuned.fills + 1)]
        more = [more_slices > slices for slices, more_slices in pairwise(by_fill)]
        fillings = [(by_fill[0], np.ones_like(by_fill[0], bool)), *zip(by_fill[1:], more)]
        return [(slices, is_new) for slices, is_new in fillings if is_new.any()]

    def _filling(self, fill: int) -> Numbers:
        """Return the slices that give each unit at most `fill` workgroups."""
        blocks = self._tile_blocks
        groups = self.offer.form.product.grouped
        if self.offer.form.merged or (groups and (groups.side is None or not self.facts.tickets)):
            return np.ones_like(blocks)
        tiles = self.offer.batch * self.grid.tiles
        most = np.minimum(fill * self.facts.compute_units // tiles, blocks // self.tuned.slice_blocks)
        slices: Numbers = np.maximum(1, most)
        return slices

    @property
    def by_last(self) -> bool:
        """Return whether the last workgroup to arrive reduces slices: by the config, or in groups of rows always."""
        return self.configs.sum == "last" or self.offer.form.product.grouped is not None

    @cached_property
    def k_blocks(self) -> Numbers:
        """Return the blocks of K of a slice."""
        return -(-self._tile_blocks // self.slices)

    @cached_property
    def all_tiles(self) -> Numbers:
        """Return the tiles of the whole batch, each slice counted."""
        return self.offer.batch * self.grid.tiles * self.slices

    @cached_property
    def turns(self) -> Turns | None:
        """Return the turns of persistent workgroups, for the one config that has them; else None.

        Turns of whole tiles whose copies another role starts count as workgroups (`persists`).
        """
        persist = self.configs.persist
        if not persist or (self.in_ring.all() and persist.shared is SharedOut.NONE):
            return None
        return Turns(persist, self.all_tiles.item(), self.k_blocks.item(), self.configs.stagings[0].round)

    @cached_property
    def per_unit(self) -> Numbers:
        """Return the workgroups of the fullest compute unit."""
        workgroups = np.full_like(self.grid.tiles, self.turns.workgroups) if self.turns else self.all_tiles
        per_unit: Numbers = -(-workgroups // self.facts.compute_units)
        return per_unit

    @cached_property
    def registers(self) -> Numbers:
        """Return the registers of a lane."""
        lane = self.work.lane_registers
        # With a single slot, barriers separate loads from products: an assembler that schedules has little to overlap.
        factor = np.where(self.slots > 1, self.tuned.registers_through_copy, 1.0)
        lane = evolve(lane, copied=np.asarray(lane.copied * factor))
        return lane.registers(self.k_blocks, self.pipeline, self.facts, by_taps=self.by_taps)

    @cached_property
    def together(self) -> Numbers:
        """Return the workgroups that run on a unit at a time."""
        core, work, granule = self.core, self.work, self.core.register_granule
        granted = -(-self.registers // granule) * granule
        copying = self.facts.roles.team * self.in_ring if self.facts.roles else 0
        by_registers = core.simd_registers // granted * core.simds // (work.subgroups + copying)
        by_shared = self.facts.shared_bytes // (work.slot_bytes * np.maximum(1, self.slots))
        by_shared = np.where(self.slots > 0, by_shared, by_registers)
        together: Numbers = np.maximum(1, np.minimum(self.per_unit, np.minimum(by_shared, by_registers)))
        return together

    @cached_property
    def blocks(self) -> Numbers:
        """Return the blocks of K of a workgroup; where workgroups differ, the average on the unit that ends last."""
        blocks = np.full_like(self.grid.tiles, self.turns.longest) if self.turns else self.k_blocks
        return blocks * self.grid.on_busiest(self.per_unit, self.together, self.facts.compute_units)

    @cached_property
    def loops(self) -> Numbers:
        """Whether the blocks of a slice form a loop."""
        return self.pipeline.loops(self.k_blocks)

    # ------------------------------------------------------------ clocks of a block

    @cached_property
    def _waits(self) -> Numbers:
        """Return the clocks of a block at barriers and, with one buffer, in waits for shared memory."""
        tuned = self.tuned
        # Products that still run when the next block begins hide its barrier.
        barrier = np.where((self.slots > 0) & ~self.runs_late, float(tuned.barrier), 0.0)
        # Outside a loop, resident windows are written after the products of a block, whatever the number of slots.
        in_turn = (self.slots == 1) | (self.by_taps & (self.slots > 0) & ~self.loops)
        # Copies without registers into the only slot wait until the block before is multiplied, but for the first one.
        direct = (self.slots == 1) & (self.configs.of_stagings["in_registers"] == 0)
        loads = np.where(direct, tuned.latency_of_blocks * (1 - 1 / self.k_blocks), 0.0)
        shared = tuned.shared_exposed * self.work.shared + tuned.shared_latency
        by_lanes = barrier + loads + np.where(in_turn, shared, 0)
        return np.where(self.in_ring, self.tuned.ring_block, by_lanes)

    @cached_property
    def serial(self) -> Numbers:
        """Return the clocks of a block in which nothing else of the workgroup runs.

        Where instructions stay in order a subgroup copies, then multiplies: only other subgroups on its SIMD hide its
        issue.
        """
        if self.core.reorders:
            return self._waits
        on_simd = np.maximum(1.0, self.together * self.work.subgroups / self.core.simds)
        serial: Numbers = self._waits + self.work.issue / on_simd
        return serial

    @cached_property
    def slowest(self) -> Numbers:
        """Return the clocks from one block to the next where only loads or prefetches are awaited.

        The pipeline keeps loads of `Staging.awaited` blocks in flight. Lanes that copy do so behind the barrier of a
        block, when the products of the block before have left its slot; a ring's slot is filled once it is free. Where
        the scheduler hoists loads, all loads of straight-line blocks are issued ahead.
        """
        ahead = self.configs.of_stagings["awaited"] - (self.runs_late & ~self.in_ring)
        between_blocks = self.tuned.latency_of_blocks / np.maximum(ahead, 1) + self._waits
        hoists = self.core.reorders and self.tuned.hoists_loads
        return np.where(self.loops | (not hoists), between_blocks, 0.0)

    @cached_property
    def loading(self) -> Numbers:
        """Return the clocks to load both inputs of a block; in a ring, lines outside of the tensors take longer."""
        outside: Numbers = np.zeros(())
        inside_k = self.offer.inner / self._padded_inner
        sides = zip(self.offer.loads(self.atom, self.facts), self.configs.sizes, (self.offer.m, self.offer.n))
        for load, rows, extent in sides:
            if load.along_k and not load.by_reads:
                outside = outside + rows - inside_k * extent / -(-extent // rows)
        lines = np.ceil(self.configs.sizes[2] * self.atom.elem_bytes / LINE)
        return self.work.loading + np.where(self.in_ring, outside * lines * self.tuned.line_outside, 0.0)

    @cached_property
    def _busiest(self) -> Numbers:
        """Return the clocks of a block on its busiest unit."""
        work = self.work
        return np.maximum(np.maximum(work.matrix, work.shared), np.maximum(self.loading, work.issue))

    @cached_property
    def block(self) -> Numbers:
        """Return the clocks of a block of a workgroup that has a unit to itself."""
        tuned, work = self.tuned, self.work
        # If a SIMD has two waves of a workgroup, one hides half of the other's exposed clocks.
        hides = self.offer.variants[0].trims or tuned.subgroups_overlap
        by_lanes = tuned.exposed * np.minimum(1.0, _USUAL_SLOTS / np.maximum(1, self.slots))
        exposed = np.where(self.in_ring, tuned.ring_exposed / np.maximum(1, self.slots), by_lanes)
        exposed = exposed * (np.clip(self.core.simds / work.subgroups, 0.5, 1.0) if hides else 1.0)
        block: Numbers = self._busiest + self.serial + exposed * (work.matrix + work.shared + self.loading + work.issue)
        return block

    @cached_property
    def hidden(self) -> Numbers:
        """Return the clocks of a block that each further workgroup on the unit hides."""
        share = np.where(self.work.issue < self._busiest, self.tuned.hidden, self.tuned.hidden_by_issue)
        hidden: Numbers = share * (self.block - self._busiest)
        return hidden

    @cached_property
    def depths(self) -> Numbers:
        """Return the pipeline depth of loops whose loads return in time; elsewhere the greatest depth of any config.

        Loads that return in time gain nothing by an earlier issue: by `convgen profile` of `bench/whole.py`, deeper
        pipelines take .99 to 1.01 of the time and up to 1.5 of the code.
        """
        in_time = self.configs.of_stagings["in_registers"] * (self.block - self.loading) * self.together
        enough = self.loops & (in_time >= self.tuned.latency_of_blocks)
        return np.where(enough, self.pipeline.depth, np.max(self.pipeline.depth))

    # ------------------------------------------------------------ clocks of the launch

    @cached_property
    def persists(self) -> Numbers:
        """Return whether workgroups take several tiles, the copies of the next one while they finish one.

        Groups of rows leave numbers of tiles without work, and tiles of few rows: on an H200 eight products of 8 and of
        32 groups take up to 1.09 of the time with persistent workgroups, six of them more than without.
        """
        chosen = self.configs.slices is None or self.configs.persist is not None
        groups = self.offer.form.product.grouped
        even = not (groups and groups.side is not None)
        several: Numbers = self.in_ring & (self.per_unit > self.together) & (chosen and even)
        return several

    @cached_property
    def persistent(self) -> Numbers:
        """Return the workgroups that a launch has where they take several tiles; 0 where each takes one."""
        return np.where(self.persists, self.facts.compute_units * self.together, 0)

    @cached_property
    def tile(self) -> Numbers:
        """Return the clocks of a workgroup besides its blocks; if it takes several tiles, of each of them."""
        tiles_each = self.turns.count if self.turns else 1
        each = np.where(self.persists, self.tuned.ring_tile, self.tuned.tile)
        return np.asarray((each + self.work.reduction + self.waiting) * tiles_each)

    @cached_property
    def waiting(self) -> Numbers:
        """Return the clocks of a tile in waits for the epilogue's inputs, of which registers hold some at a time."""
        tuned, work, words = self.tuned, self.work, self.offer.form.operand_bytes / WORD
        if not words or not tuned.operand_latency:
            return np.zeros(())
        tile_m, tile_n, *_ = self.configs.sizes
        lanes = work.subgroups * self.facts.subgroup_size
        beside_sums = self.facts.registers - work.lane_registers.sums
        before = np.where(self.in_ring, np.maximum(0, self.facts.registers - self.registers - KEPT_FREE), 0)
        at_a_time = np.clip(ROOM * beside_sums, PIECE * words, MOST_AHEAD * PIECE * words)
        rounds: Numbers = np.ceil(np.maximum(0, tile_m * tile_n * words / lanes - before) / at_a_time)
        return np.where(self.slices == 1, rounds * tuned.operand_latency, 0.0)

    @cached_property
    def storing(self) -> Numbers:
        """Return the clocks in which a unit writes a workgroup's result; for slices `slice_reduction` counts it."""
        tile_m, tile_n, *_ = self.configs.sizes
        written = tile_m * tile_n * self.offer.result.bytes / self.tuned.result_rate
        return np.where(self.slices == 1, written, 0.0)

    @cached_property
    def tail(self) -> Numbers:
        """Return a fraction of all work's clocks, spread evenly, so that less work wins ties."""
        work = self.all_tiles * self.k_blocks * self.grid.mean * self.block
        tail: Numbers = self.tuned.tail * work / self.facts.compute_units
        return tail

    @cached_property
    def rounds(self) -> Numbers:
        """Return the rounds in which a unit is full."""
        return self.per_unit // self.together

    @cached_property
    def remaining(self) -> Numbers:
        """Return the workgroups of a unit after the full rounds."""
        return self.per_unit % self.together

    @cached_property
    def launch(self) -> Numbers:
        """Return the clocks of the product's launch."""
        of_remaining = np.where(self.remaining > 0, self._round(self.remaining), 0.0)
        once = np.where(self.persists, self.tuned.tile - self.tuned.ring_tile, 0)
        on_units: Numbers = self.rounds * self._round(self.together) + of_remaining + once + self.tail
        if not self.tuned.memory_share:
            return on_units
        together: Numbers = (on_units**_OVERLAP + self._streaming**_OVERLAP) ** (1 / _OVERLAP)
        return together

    @property
    def _streaming(self) -> Numbers:
        """Return the clocks that memory takes for both inputs and, without slices, the result, each byte once."""
        offer, result = self.offer, self.offer.form.product.result.memory
        once = 1 + offer.form.operand_bytes / result.elem.bytes  # the result, and what the epilogue reads beside it
        streamed = offer.of_m.memory.bytes + offer.of_n.memory.bytes + once * result.bytes * (self.slices == 1)
        return np.asarray(streamed / (self.tuned.memory_share * self.facts.caches.memory_rate))

    def _round(self, together: Numbers) -> Any:
        """Return the clocks in which a unit runs `together` workgroups; they run out of step if `tuning.staggered`."""
        in_blocks = self.blocks * pace(self.block, self.hidden, self.slowest, together)
        if not self.tuned.staggered:
            return self.tile + together * self.storing + in_blocks
        alone = self.tile + self.storing + self.blocks * pace(self.block, self.hidden, self.slowest, 1)
        return np.maximum(alone, np.maximum(in_blocks, together * self.storing))

    # ------------------------------------------------------------ slices

    @cached_property
    def slice_reduction(self) -> Numbers:
        """Return the clocks of the reduction of slices, further launches included."""
        return self._reduction_and_group_size[0]

    @cached_property
    def at_a_time(self) -> Numbers:
        """Return the slices that are added at a time, 0 where all are."""
        return self._reduction_and_group_size[1]

    @cached_property
    def _reduction_and_group_size(self) -> tuple[Numbers, Numbers]:
        """Return the clocks to reduce slices, and how many slices are added at a time.

        All units store sums; then all units, or the last workgroup to arrive at each tile, add them up. A stream-K
        workgroup stores the sums of each of its turns on a shared tile. The shared tiles are distributed over
        workgroups as evenly as possible, and reducing one reads the sums of all its sharers.
        """
        configs, tuned, slices = self.configs, self.tuned, self.slices
        tile_bytes = configs.sizes[0] * configs.sizes[1] * self.atom.acc.bytes
        at_a_time, turns = np.full_like(slices, configs.at_a_time), self.turns
        if turns and turns.shared:
            tiles_added = turns.shared_turns + -(-turns.shared // turns.workgroups) * turns.sharers
            return tiles_added * tile_bytes / tuned.unit_rate, at_a_time
        if (slices == 1).all():
            return np.zeros(slices.shape), at_a_time
        by_last = _ByLast(self, tile_bytes)
        if configs.at_a_time:
            clocks, at_a_time = by_last.clocks([configs.at_a_time] * len(by_last.distinct))
        elif self.by_last:
            clocks = by_last.store + by_last.tiles_of_unit * slices * tile_bytes / tuned.unit_rate
        else:
            clocks = 2 * by_last.store + by_last.write_back + tuned.launch
        for group_size in configs.group_sizes:
            in_groups, sizes = by_last.clocks([even_group_size(n, group_size) for n in by_last.distinct.tolist()])
            at_a_time = np.where((in_groups < clocks) & (slices > 1), sizes, at_a_time)
            clocks = np.minimum(clocks, in_groups)
        return np.where(slices == 1, 0.0, clocks), at_a_time


class _ByLast:
    """Reduction of slices by the last workgroup to arrive at each tile."""

    def __init__(self, launch: Launch, tile_bytes: Numbers) -> None:
        offer, facts, tuned = launch.offer, launch.facts, launch.tuned
        sum_bytes = launch.slices * offer.batch * offer.m * offer.n * launch.atom.acc.bytes
        self.slices, self.tile_bytes, self.facts = launch.slices, tile_bytes, facts
        #: clocks in which all units write the sums
        self.store = sum_bytes / (facts.compute_units * tuned.stream_rate)
        #: tiles that one unit reduces
        self.tiles_of_unit = -(-(launch.grid.tiles * offer.batch) // facts.compute_units)
        #: clocks in which caches write back what a launch has written
        self.write_back = np.minimum(sum_bytes, tuned.dirty) / tuned.drain
        self.distinct, self._places = np.unique(self.slices, return_inverse=True)

    def clocks(self, group_sizes: list[int]) -> tuple[Numbers, Numbers]:
        """Return, by config, the clocks of the reduction in groups, and the size of the groups.

        `group_sizes` has an entry for each distinct number of slices.
        """
        sizes = zip(self.distinct.tolist(), group_sizes, strict=True)
        numbers = [(_members(n, size), len(levels(n, size)), size) for n, size in sizes]
        shape = self.slices.shape
        members, arrivals, at_a_time = (number[self._places].reshape(shape) for number in np.array(numbers).T)
        of_tile = members * self.tile_bytes / self.facts.core.global_rate + _ARRIVAL * arrivals
        clocks: Numbers = self.store + self.write_back + self.tiles_of_unit * _OUTSIDE_LOOPS * of_tile
        return clocks, at_a_time


def _members(slices: int, group_size: int) -> int:
    """Return the number of sums that a workgroup adds up if it arrives last on every level."""
    return sum(min(group_size, members) for members in (slices, *levels(slices, group_size)[:-1]))
