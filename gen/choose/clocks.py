"""Modelled clocks of a launch in closed form, for many configs at a time.

For each block of K the matrix pipe, shared memory and the path from global memory take their own time and the slowest
sets the pace; workgroups run on compute units in rounds. The model ranks configs; it does not predict time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, lru_cache, partial
from itertools import groupby, product
from typing import Any

import numpy as np

from convgen.backends.tuning import tuning
from convgen.choose.block_work import BlockWork, OfferTraits
from convgen.choose.combinations import STAGING, SUBTILES, TILE, VARIANT, Configs, along, by_tile
from convgen.choose.launch_work import Launch, pace
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.mma import MmaAtom, shares
from convgen.ir.layout.order import IN_ROWS, Order
from convgen.ir.layout.turns import Persist
from convgen.ir.record import fields_of, frozen
from convgen.ir.types import Type
from convgen.passes.loop_trips import runs_late
from convgen.passes.messages.direct_copies import divides_columns
from convgen.plan.config import Config
from convgen.plan.copies import comes_out_even
from convgen.plan.registers import Counts, Numbers
from convgen.plan.variants.variant import Choices, Offer

MOST_IN_VECTORS = 64  #: registers; most accumulators of a lane that still leave enough vector registers; assumed
_PART = 4  #: least products of a part (`subtiles`) that hide the reads of the next part's fragments; assumed


@frozen
class Clocks:
    """The clocks of a launch, by cause.

    Workgroups run in `rounds`, `together` on a unit, and then the `remaining` ones. Each has a fixed part and its
    blocks of K. A block takes the longest of matrix, shared, loading and issue, a fraction of their sum, and `serial`,
    in which nothing else runs.
    """

    matrix: float  #: clocks; matrix pipe, for one block
    shared: float  #: clocks; shared memory
    loading: float  #: clocks; loads from global memory
    issue: float  #: clocks; loads and their addresses, and the fixed cost of a block of K
    serial: float  #: clocks; barriers and the waits at them
    blocks: float  #: blocks of K of a workgroup; where workgroups differ, the average on the busiest unit
    block: float  #: clocks; one block of a workgroup that has a unit to itself
    hidden: float  #: clocks; part of `block` that each further workgroup on the unit hides
    slowest: float  #: clocks; from one block to the next where only loads are awaited, 0 if all loads are issued ahead
    rounds: int  #: rounds in which a unit is full
    together: int  #: workgroups; resident on a unit
    remaining: int  #: workgroups after the full rounds
    tile: float  #: clocks; a workgroup besides its blocks
    storing: float  #: clocks; write of a workgroup's result, during which the unit writes no other
    tail: float  #: clocks; a fraction of all work, spread evenly, so that less work wins ties
    slice_reduction: float  #: clocks; reduction of slices, by further launches or by the last workgroup to arrive
    launch: float  #: clocks; the product's launch

    @property
    def total(self) -> float:
        """Return the clocks of the product with everything that it needs."""
        return self.launch + self.slice_reduction

    @property
    def pace(self) -> float:
        """Return the clocks from one block to the next of all workgroups together, at least the latency of loads."""
        return float(pace(self.block, self.hidden, self.slowest, self.together))


def _columns(launch: Launch) -> dict[str, Numbers]:
    """Return the fields of `Clocks` for all configs of a launch."""
    of_block = {name: getattr(launch.work, name) for name in ("matrix", "shared", "issue")}
    rest = [field.name for field in fields_of(Clocks) if field.name not in of_block]
    return {**of_block, **{name: getattr(launch, name) for name in rest}}


@frozen(eq=False)
class Table:
    """The configs of an offer that may fit, in the order of their combinations, with their modelled clocks."""

    offer: Offer
    reorder: tuple[str, ...]  #: inputs that an earlier launch reorders
    configs: Configs
    launch: Launch
    in_vectors: Numbers  #: whether accumulators live in vector registers
    rows: Numbers  #: number of each row's combination
    scores: Numbers  #: clocks; all products, by row
    depths: Numbers  #: by row: pipeline depth, the least of which wins among equal scores
    registers: Numbers  #: by row: vector registers of a lane, without accumulators in a file of their own

    def config(self, row: int) -> Config:
        """Return the config of a row."""
        place, configs, offer = self._place(row), self.configs, self.offer
        (m, n, k, waves_m, waves_n, waves_k), atom = configs.tiles[place[TILE]], configs.atoms[place[TILE]]
        staging = configs.stagings[place[STAGING]]
        persistent = self._at(self.launch.persistent, place)
        slices, at_a_time = self._at(self.launch.slices, place), self._at(self.launch.at_a_time, place)
        return Config(
            tile=(m, n, k),
            waves=(waves_m, waves_n),
            waves_k=waves_k,
            mma=(atom.n, atom.m, atom.k),
            slots=staging.slots,
            taps=configs.variants[place[VARIANT]].word,
            acc="v" if self._at(self.in_vectors, place) else "a",
            slices=slices,
            reorder=self.reorder,
            packed=offer.packed,
            sum="last" if at_a_time or (slices > 1 and self.launch.by_last) else "",
            at_a_time=at_a_time,
            subtiles=configs.subtiles[place[SUBTILES]],
            prefetch=staging.prefetch,
            types=offer.types(atom),
            stages=staging.stages,
            copy=staging.copy,
            map=self._turns(persistent) if persistent else IN_ROWS,
            **dict(offer.form.words),
        )

    def _turns(self, persistent: int) -> Order:
        """Return the order of persistent workgroups: back and forth where merged products have less and less work."""
        return Order(persist=Persist(persistent, snake=bool(self.launch.offer.form.merged)))

    def clocks(self, row: int) -> Clocks:
        """Return the parts of the clocks of a row's config."""
        at = self._place(row)
        return Clocks(**{name: self._at(column, at) for name, column in _columns(self.launch).items()})

    def _place(self, row: int) -> tuple[int, ...]:
        return tuple(map(int, np.unravel_index(self.rows[row], self.launch.dims)))

    @staticmethod
    def _at(column: Numbers, place: tuple[int, ...]) -> Any:
        return column[tuple(at if size > 1 else 0 for at, size in zip(place, column.shape))].item()


@frozen
class _Kind:
    """The properties of a matrix instruction, besides its shape and clocks, that decide an offer's configs."""

    types: tuple[Type, Type, Type]
    spans: int
    in_shared: bool
    sum_bits: int
    choices: Choices
    traits: OfferTraits

    @classmethod
    def of(cls, offer: Offer, atom: MmaAtom, facts: TargetFacts) -> _Kind:
        choices = offer.variants[0].choices(offer, atom, facts)
        types, traits = (atom.a_elem, atom.b_elem, atom.acc), OfferTraits.of(offer, choices.variants, atom, facts)
        return cls(types, atom.spans, atom.in_shared, atom.sum_bits, choices, traits)


def ranked(
    offer: Offer,
    atoms: Iterable[MmaAtom],
    facts: TargetFacts,
    reorder: tuple[str, ...],
    group_sizes: tuple[int, ...] = (),
) -> Iterator[Table]:
    """Yield the configs whose tiles divide evenly and fit shared memory, with their scores.

    Instructions of one kind that follow each other share a table. `group_sizes` are the numbers of slices that the last
    arrival may add up at a time.
    """
    for kind, alike in groupby(atoms, lambda atom: _Kind.of(offer, atom, facts)):
        configs = _even_configs(len(offer.tap_rows), kind.choices, tuple(alike), facts, group_sizes)
        if all(configs.dims) and (table := _table(offer, configs, kind.traits, facts, reorder)):
            yield table


def _table(
    offer: Offer, configs: Configs, traits: OfferTraits, facts: TargetFacts, reorder: tuple[str, ...]
) -> Table | None:
    """Return the configs that may fit, with their scores; None if none does."""
    work, even = _work_and_fits(configs, traits, facts)
    launch, sums = Launch(configs, work, offer, facts), work.lane_registers.sums
    candidates = even & launch.is_new & launch.suits_ring & launch.has_scratch
    if not candidates.any():  # before the clocks of all configs are counted
        return None
    in_vectors, fits = _place_of_sums(sums, launch.registers, facts)
    rows = _by_atom(np.flatnonzero(np.broadcast_to(candidates & fits, launch.dims)), launch)
    clocks = offer.form.launches * (launch.launch + launch.slice_reduction)
    vectors = launch.registers - np.where(in_vectors, 0, sums)
    of_rows = (np.broadcast_to(column, launch.dims).ravel()[rows] for column in (clocks, launch.depths, vectors))
    return Table(offer, reorder, configs, launch, in_vectors, rows, *of_rows)


def _by_atom(rows: Numbers, launch: Launch) -> Numbers:
    """Return the rows sorted by matrix instruction, then by fill: the first row wins ties."""
    atoms = launch.configs.atom_numbers[np.unravel_index(rows, launch.dims)[TILE]]
    in_order: Numbers = rows[np.argsort(atoms, kind="stable")]
    return in_order


def _place_of_sums(sums: Counts, registers: Numbers, facts: TargetFacts) -> tuple[Numbers, Numbers]:
    """Return whether accumulators live in vector registers, and whether a config's registers suffice.

    They live in vector registers where they are few and all fit there, else in a file of their own, if there is one.
    """
    fit_together = np.asarray(registers <= facts.registers)
    if not facts.accumulators:
        return np.ones((), bool), fit_together
    in_vectors = (sums <= MOST_IN_VECTORS) & fit_together
    fit_apart = (sums <= facts.accumulators) & (registers - sums <= facts.registers)
    return in_vectors, in_vectors | fit_apart


def of_config(offer: Offer, config: Config, atom: MmaAtom, facts: TargetFacts) -> Clocks:
    """Return the parts of the clocks of one config."""
    configs = Configs.of(config, atom)
    work = BlockWork.of(configs, OfferTraits.of(offer, configs.variants, atom, facts), facts)
    columns = _columns(Launch(configs, work, offer, facts))
    return Clocks(**{name: column.item() for name, column in columns.items()})


@lru_cache(maxsize=256)
def _work_and_fits(configs: Configs, traits: OfferTraits, facts: TargetFacts) -> tuple[BlockWork, Numbers]:
    """Return the work of a block for all configs, and which of them fit in shared memory and are worth ranking."""
    work, atom = BlockWork.of(configs, traits, facts), configs.atom
    atom_m, atom_n, atom_k = (configs.of_atoms[name] for name in "mnk")
    m, n, k, subgroups_m, subgroups_n, subgroups_k = configs.sizes
    fits = work.slot_bytes * configs.of_stagings["slots"] <= facts.shared_bytes
    fits = fits & ((configs.of_stagings["slots"] > 0) | (not atom.in_shared))
    by_lanes = (configs.of_stagings["in_registers"] == 0) & ~configs.of_stagings["in_ring"]
    fits = fits & (~by_lanes | _divides_columns(configs, traits, facts))
    subtiles = along(SUBTILES, configs.subtiles)
    fits = fits & (m % (subgroups_m * atom_m * subtiles) == 0)
    products = m * n * k * atom.spans // (subgroups_m * subgroups_n * subgroups_k * atom_m * atom_n * atom_k)
    fits = fits & ((subtiles == 1) | (products >= _PART * subtiles))
    fits = fits & ((configs.of_stagings["slots"] > 0) | _fills_rows(k * atom.elem_bytes, facts))
    if atom.in_shared:  # by measurement, long rows pay only where products are in flight over a barrier
        late = runs_late(configs.of_stagings["slots"]) & (not traits.sums_outside)
        fits = fits & (late | ~np.isin(k * atom.elem_bytes, tuning(facts).long_rows))
    # By `convgen profile`, more slots do not pay for windows so narrow that their memory granules are loaded twice.
    narrow = k // max(1, traits.taps) * atom.elem_bytes < facts.core.global_granule
    fits = fits & ~(narrow & (configs.of_stagings["slots"] > 1) & (traits.taps > 0))
    return work, fits


def _divides_columns(configs: Configs, traits: OfferTraits, facts: TargetFacts) -> Numbers:
    """Return whether direct copies divide the columns of each input that reads from shared memory transpose."""
    m, n, _, subgroups_m, subgroups_n, subgroups_k = configs.sizes
    subgroups = subgroups_m * subgroups_n * subgroups_k
    width, elem = facts.chunk_bytes, configs.atom.elem_bytes
    divides = partial(divides_columns, elem_bytes=elem, width=width, lanes=facts.subgroup_size)
    even: Numbers = np.ones((), bool)
    for rows, load in zip((m, n), traits.loads):
        if load.by_reads or load.in_columns:
            even = even & by_tile(lambda rows, subgroups: divides(rows, subgroups=subgroups), rows, subgroups)
    return even


@lru_cache(maxsize=256)
def _even_configs(
    resident: int, offered: Choices, atoms: tuple[MmaAtom, ...], facts: TargetFacts, group_sizes: tuple[int, ...]
) -> Configs:
    """Return the tiles and grids of subgroups that instructions fill and whose copies divide evenly over the lanes.

    With `resident` taps, copies are rounded up to divide evenly. All problems of one type choose from one set of tiles.
    """
    is_even, sizes = cache(comes_out_even), (offered.tiles_m, offered.tiles_n, offered.tiles_k)
    tiles, of_tiles = [], []
    for atom, m, n, k, (wm, wn, wk) in product(atoms, *sizes, offered.grids):
        elem, spans = atom.elem_bytes, atom.spans
        if m % (wm * atom.m) or wn % spans or n % (wn // spans * atom.n) or k % (atom.k * wk):
            continue
        if not resident and k * elem in tuning(facts).deep_rows and 2 * (m + n) * k * elem > facts.shared_bytes:
            continue  # no drawn problem takes deep rows with a single slot
        if atom.in_shared and n != wn // spans * atom.n:  # the widest instruction reads the other factor least often
            continue
        if wk > 1 and not _has_shares(
            m // (wm * atom.m), n // (wn // spans * atom.n), k // max(1, resident) // wk, wk, atom, facts
        ):
            continue
        sides = zip((n, m), atom.depths(k))
        if resident or all(is_even(rows, depth, elem, facts, wm * wn * wk) for rows, depth in sides):
            tiles.append((m, n, k, wm, wn, wk))
            of_tiles.append(atom)
    return Configs(tiles, of_tiles, tuning(facts).subtiles, offered.variants, offered.stagings, group_sizes=group_sizes)


def _has_shares(tiles_m: int, tiles_n: int, k: int, subgroups_k: int, atom: MmaAtom, facts: TargetFacts) -> bool:
    """Whether subgroups along K read whole chunks, and their sums divide evenly among them."""
    steps = k // atom.k
    even = tiles_n % shares(subgroups_k, tiles_m)[0] == 0
    return even and steps * atom.a.registers * atom.elem_bytes >= facts.chunk_bytes


def _fills_rows(row_bytes: Numbers, facts: TargetFacts) -> Numbers:
    """Whether a row fills the widest rectangle of a 2-D message, a cache line; False without such messages."""
    return row_bytes >= (facts.planes.row if facts.planes else np.inf)
