"""Clocks that one block of K of a workgroup takes on each unit of a core, for many configs at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from math import gcd

import numpy as np

from convgen.backends.tuning import tuning
from convgen.choose.combinations import SUBTILES, VARIANT, Configs, along, by_tile
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.fragment import DWORD
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.record import frozen
from convgen.plan.copies import chunk_elems, pitch_of, rounded_rows
from convgen.plan.loads import OperandLoad
from convgen.plan.registers import LaneRegisters, Numbers, masks_of
from convgen.plan.variants.variant import Offer, Variant

#: issue slots of a 2-D load, which has no masks and one address for all lanes, divided by those of a load with an
#: address a lane; tuned by hand
_RECTANGLE_ISSUE = 0.3
#: bytes; shortest row of a tile with gaps that the simulator writes at full rate; shorter ones take twice as long
_WHOLE_ROW = 128
LINE = 128  #: bytes; greatest length of a line of a bulk copy
_GAPS = 1 / 64  #: share of a shared tile that gaps take, as `find_gaps` leaves them


@frozen(cache_hash=True)
class OfferTraits:
    """The properties of an offer, besides types, that decide the cost of a block of K."""

    taps: int  #: taps of resident windows; 0 without any
    reach: int  #: rows beyond a tile that resident windows reach
    loads: tuple[OperandLoad, OperandLoad]  #: loads of M's and N's input
    masks: tuple[int, int]  #: masks of each of these loads, as `LaneRegisters` counts them
    #: by input and variant: issue slots of a load, divided by those of a load with one address along K for each block
    issue_slots: tuple[tuple[float, ...], ...]
    pieces: tuple[tuple[int, ...], ...]  #: by input and variant: messages in place of one, where padded runs end in it
    sums_outside: bool  #: sums are kept outside of the instruction, which adds up one block, or one tap, at a time

    @classmethod
    def of(cls, offer: Offer, variants: Sequence[Variant], atom: MmaAtom, facts: TargetFacts) -> OfferTraits:
        loads, chunk = offer.loads(atom, facts), facts.chunk_bytes // atom.elem_bytes
        issue_slots = tuple(
            tuple(_issue_slots(each, offer.inner, chunk, load, facts) for each in variants) for load in loads
        )
        pieces = tuple(tuple(_pieces(each, offer.inner, chunk, load, facts) for each in variants) for load in loads)
        masks = masks_of(offer.of_m, loads[0].trimmed), masks_of(offer.of_n, loads[1].trimmed)
        outside = offer.form.sums_outside(atom)
        return cls(len(offer.tap_rows), max(offer.tap_rows, default=0), loads, masks, issue_slots, pieces, outside)


def _issue_slots(variant: Variant, inner: int, chunk: int, load: OperandLoad, facts: TargetFacts) -> float:
    """Return the issue slots of a load, divided by those of a load with one address along K for each block."""
    if load.trimmed:
        return tuning(facts).trim if load.along_k else tuning(facts).trim_rows
    return _RECTANGLE_ISSUE if load.as_rectangles else variant.issue(load, inner, chunk)


def _pieces(variant: Variant, inner: int, chunk: int, load: OperandLoad, facts: TargetFacts) -> int:
    """Return the messages in place of one along K, as none passes the end of a padded run of `inner` elements."""
    is_padded = variant.block(chunk, facts.chunk_bytes // chunk, facts.chunk_bytes) > 1
    if not is_padded or not load.along_k or load.by_reads or load.trimmed:
        return 1
    return load.widest // gcd(load.widest, inner)


@frozen(eq=False)
class BlockWork:
    """Clocks on each unit of a core, and other resources, of one block of K of a workgroup alone on the core."""

    matrix: Numbers  #: clocks; matrix pipe
    shared: Numbers  #: clocks; shared memory
    loading: Numbers  #: clocks; loads from global memory
    issue: Numbers  #: clocks; loads and their addresses, and the fixed cost of a block of K
    slot_bytes: Numbers  #: bytes; one slot in shared memory
    reduction: Numbers  #: clocks; reduction of a tile over subgroups along K
    lane_registers: LaneRegisters
    subgroups: Numbers

    @classmethod
    def of(cls, configs: Configs, traits: OfferTraits, facts: TargetFacts) -> BlockWork:
        """Return the work of a block for the given configs."""
        b = _Block(configs, traits, facts)
        return cls(b.matrix, b.shared, b.loading, b.issue, b.slot_bytes, b.reduction, b.lane_registers, b.subgroups)


class _Block:
    """Arithmetic for one block of K, from the sizes of its tile."""

    def __init__(self, configs: Configs, traits: OfferTraits, facts: TargetFacts) -> None:
        self.traits, self.atom, self.facts, self.elem = traits, configs.atom, facts, configs.atom.elem_bytes
        self.atom_m, self.atom_n, self.atom_k = (configs.of_atoms[name] for name in "mnk")
        self.atom_clocks = configs.of_atoms["clocks"]
        self.m, self.n, self.k, self.subgroups_m, self.subgroups_n, self.subgroups_k = configs.sizes
        self.subtiles, self.slots = along(SUBTILES, configs.subtiles), configs.of_stagings["slots"]
        self.through_registers = configs.of_stagings["in_registers"] > 0
        self.in_ring = configs.of_stagings["in_ring"]
        self.issue_slots = [along(VARIANT, slots) for slots in traits.issue_slots]
        self.pieces = [along(VARIANT, pieces) for pieces in traits.pieces]
        self.subgroups = self.subgroups_m * self.subgroups_n * self.subgroups_k
        self.lanes = facts.subgroup_size * self.subgroups
        self.simds = np.minimum(self.subgroups, facts.core.simds)
        self.depth = self.k // max(1, traits.taps)  #: elements along K of one tap

    @property
    def has_gaps(self) -> bool:
        """Whether gaps follow the rows of shared memory, as for resident windows in rows."""
        return self.traits.taps > 0 and not self.facts.tiles_as_fragments

    # ------------------------------------------------------------ what is copied

    @cached_property
    def sides(self) -> tuple[tuple[Numbers, Numbers], tuple[Numbers, Numbers]]:
        """Return rows and columns of M's and N's input; rows of resident windows are rounded up to divide evenly."""
        (_, of_m), (of_n, _) = self.atom.depths(self.depth), self.atom.depths(self.k)
        sides = (self.m + self.traits.reach, of_m), (self.n, of_n)
        if not self.traits.taps:
            return sides
        even = partial(rounded_rows, elem_bytes=self.elem, facts=self.facts)
        of_m, of_n = (
            (by_tile(lambda r, c, s: even(r, c, subgroups=s), *side, self.subgroups), side[1]) for side in sides
        )
        return of_m, of_n

    @cached_property
    def copied(self) -> Numbers:
        """Return the bytes of both inputs."""
        (rows_m, cols_m), (rows_n, cols_n) = self.sides
        total: Numbers = (rows_m * cols_m + rows_n * cols_n) * self.elem
        return total

    @property
    def slot_bytes(self) -> Numbers:
        """Return the bytes of a slot, gaps between rows included."""
        gaps: Numbers
        if not self.has_gaps:
            gap_of = partial(by_tile, lambda cols: pitch_of(cols, self.elem, self.facts)[0] - cols)
            of_n, of_m = map(gap_of, self.atom.depths(self.k))
            gaps = (self.n * of_n + self.m * of_m) * self.elem
            return self.copied + gaps
        # A gap is two chunks where more than two lanes read along a row of more than two chunks, else one.
        chunk = self.facts.chunk_bytes
        several = (self.facts.subgroup_size // self.atom_m > 2) & (self.depth * self.elem > 2 * chunk)
        gaps = (self.sides[0][0] + self.sides[1][0]) * chunk * (1 + several)
        return self.copied + gaps

    @cached_property
    def messages(self) -> list[Numbers]:
        """Return the loads of each lane for M's and N's input."""
        return [by_tile(partial(self._messages, load), *side, self.subgroups) for load, side in self._loads]

    def _messages(self, load: OperandLoad, rows: int, cols: int, subgroups: int) -> float:
        at_once = load.upto(chunk_elems(rows, cols, self.elem, self.facts, subgroups))
        return at_once.messages(rows, cols, self.facts.subgroup_size * subgroups, self.elem)

    @property
    def _loads(self) -> list[tuple[OperandLoad, tuple[Numbers, Numbers]]]:
        return list(zip(self.traits.loads, self.sides))

    # ------------------------------------------------------------ clocks

    @cached_property
    def products(self) -> Numbers:
        """Return the matrix instructions of a block."""
        products: Numbers = (self.m // self.atom_m) * (self.n // self.atom_n) * (self.k // self.atom_k)
        return products

    @property
    def matrix(self) -> Numbers:
        clocks: Numbers = self.products * self.atom_clocks * self.atom.spans / self.simds
        by_fragments = self.facts.shared_factors and not self.atom.in_shared
        return clocks * (tuning(self.facts).fragment_products if by_fragments else 1.0)

    @cached_property
    def read_bytes(self) -> Numbers:
        """Return the bytes of fragments that all subgroups read, from shared memory or the nearest cache.

        The subgroups that one instruction spans each read their own rows of N's input, and one share of M's.
        """
        of_n, of_m = self.atom.depths(self.k)
        read: Numbers = self.n * self.subgroups_m * of_n + self.m * self.subgroups_n // self.atom.spans * of_m
        return read * self.elem * (not self.atom.in_shared)

    @property
    def read_in_place_bytes(self) -> Numbers:
        """Return the bytes that instructions read from shared memory by themselves: each reads both of its factors."""
        read: Numbers = self.products * (self.atom_m + self.atom_n) * self.atom_k * self.elem * self.atom.in_shared
        return tuning(self.facts).in_place_reads * read

    @property
    def shared(self) -> Numbers:
        """Return the clocks of reads of fragments and of writes to shared memory, with the writes' bank conflicts."""
        core, tuned = self.facts.core, tuning(self.facts)
        conflicts = np.maximum(1.0, tuned.conflict_free_row / (self.k * self.elem))
        written = sum(
            rows * cols * self.elem * (1.0 if load.along_k else conflicts) for load, (rows, cols) in self._loads
        )
        if self.has_gaps:  # rows that are written at a time share banks
            rows, cols = self.sides[0]
            written = written + rows * cols * self.elem * (cols * self.elem < _WHOLE_ROW)
        is_full = (1 + _GAPS) * self.copied * self.slots > self.facts.shared_bytes
        written = np.where(is_full, tuned.unpadded, 1.0) * written / core.shared_rate
        return (self.read_bytes + self.read_in_place_bytes) / core.shared_read_rate + np.where(
            self.slots > 0, written, 0
        )

    @property
    def loading(self) -> Numbers:
        """Return the clocks to load both inputs: by bytes, or by messages if these take longer."""
        core, tuned = self.facts.core, tuning(self.facts)
        chunk, loads = self.facts.chunk_bytes, np.zeros(())
        for load, number, pieces in zip(self.traits.loads, self.messages, self.pieces):
            is_narrow = load.widest * self.elem < chunk * pieces
            clocks = np.where(is_narrow, tuned.narrow_clocks, tuned.load_clocks)
            loads = loads + number * pieces * clocks * self.subgroups
        by_lanes = np.maximum(self.loaded_bytes / core.global_rate, loads)
        return np.where(self.in_ring, self.lines * tuned.line_clocks, by_lanes)

    @property
    def lines(self) -> Numbers:
        """Return the lines of bulk copies: parts of rows, or of columns in transposed tiles."""
        total: Numbers = np.zeros(())
        for load, (rows, cols) in self._loads:
            length, count = (cols, rows) if load.along_k and not load.by_reads else (rows, cols)
            total = total + count * np.ceil(length * self.elem / LINE)
        return total

    @property
    def loaded_bytes(self) -> Numbers:
        """Return the bytes of memory that a block loads: both inputs, in whole granules."""
        return sum((self._granules(load, *side) for load, side in self._loads), np.zeros(()))

    def _granules(self, load: OperandLoad, rows: Numbers, cols: Numbers) -> Numbers:
        granule = self.facts.core.global_granule
        along_k = load.along_k and not load.by_reads
        run = np.minimum(self.depth, cols)
        runs, run = (rows * cols // run, run) if along_k else (cols, rows)
        whole_bytes: Numbers = runs * (-(-run * self.elem // granule) * granule)
        return whole_bytes

    @property
    def issue(self) -> Numbers:
        """Return the clocks to issue a block's loads and copies.

        Without shared memory the loads of the tile are prefetches, and each subgroup loads its fragments as well.
        """
        tuned = tuning(self.facts)
        slots_of_loads = [
            number * slots * (1 + tuned.masked * masks)
            for number, slots, masks in zip(self.messages, self.issue_slots, self.traits.masks)
        ]
        through_registers = sum(
            slots * (tuned.issue_of_elements if load.widest == 1 else tuned.issue_through_registers)
            for load, slots in zip(self.traits.loads, slots_of_loads)
        )
        fragment_messages = self.read_bytes / (self.facts.chunk_bytes * self.lanes) * np.maximum(*self.issue_slots)
        transposed = sum(rows * cols for load, (rows, cols) in self._loads if not load.along_k) * self.elem / DWORD
        turns = self.through_registers * tuned.transpose * transposed / self.lanes
        clocks_of_reads = tuned.read * self.fragment_reads + turns
        messages = np.where((self.slots > 0) & self.through_registers, through_registers, sum(slots_of_loads))
        clocks_of_loads = (messages + np.where(self.slots > 0, 0, fragment_messages)) * tuned.message
        by_lanes = clocks_of_loads + np.where(self.slots > 0, clocks_of_reads, 0) + tuned.block
        moves = max(1, self.traits.taps) * self.traits.sums_outside
        moved_sums = self.m * self.n * self.subgroups_k / self.lanes * moves
        of_subgroup = np.where(self.in_ring, 0, by_lanes) + moved_sums
        clocks: Numbers = of_subgroup * self.subgroups / self.simds
        return clocks

    @property
    def fragment_reads(self) -> Numbers:
        """Return the reads of a subgroup's fragments, by parts of its tile."""
        at_once = self.facts.block_bytes or self.facts.chunk_bytes * self.facts.subgroup_size
        part = self.m // (self.subgroups_m * self.atom.spans * self.subtiles)
        sides = zip((self.n // self.subgroups_n, part), self.atom.depths(self.k))
        of_n, of_m = (np.ceil(rows * depth * self.elem / at_once) for rows, depth in sides)
        reads: Numbers = (self.subtiles * of_m + of_n) * (not self.atom.in_shared)
        return reads

    @property
    def reduction(self) -> Numbers:
        """Return the clocks to reduce the sums of subgroups along K, piece by piece; 0 without such subgroups."""
        core, latency = self.facts.core, tuning(self.facts).shared_latency
        sums = self.m * self.n * self.atom.acc.bytes * self.subgroups_k
        piece_bytes = np.maximum(self.m * self.k, self.n * self.k) * self.elem * self.slots
        pieces = np.ceil(sums / np.where(piece_bytes > 0, piece_bytes, self.facts.shared_bytes))
        clocks = sums / core.shared_rate + sums / core.shared_read_rate + pieces * 2 * latency
        return np.where(self.subgroups_k > 1, clocks, 0.0)

    # ------------------------------------------------------------ registers

    @property
    def lane_registers(self) -> LaneRegisters:
        lanes = self.facts.subgroup_size
        of_n, of_m = self.atom.depths(self.depth)
        held = self.m // (self.subgroups_m * self.subtiles * self.atom.spans) * of_m + self.n // self.subgroups_n * of_n
        sums = (1 + self.traits.sums_outside) * self.m * self.n * self.subgroups_k
        return LaneRegisters(
            sums=sums * self.atom.acc.bytes // (4 * self.lanes),
            fragments=held * self.elem * (not self.atom.in_shared) // (4 * lanes * self.subgroups_k),
            copied=self.through_registers * self.copied // (4 * self.lanes),
            masks=sum(number * masks for number, masks in zip(self.messages, self.traits.masks)) * ~self.in_ring,
        )
