"""Candidate configs, best first by a model of one launch; the last one always fits.

The model counts clocks: per K block the matrix pipe, shared memory and the global path each take their time and the
slowest sets the pace; tiles go to compute units in rounds. It ranks, it does not predict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from itertools import product

import attrs

from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import View
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.layout.turns import Turns
from convgen.ir.types import scalar
from convgen.passes.messages.linear import linearize
from convgen.passes.messages.planes import rectangle_of
from convgen.plan import lanes
from convgen.plan.config import APART, DIRECT, MERGED, Config
from convgen.plan.contraction import reordered
from convgen.plan.copies import ROWS, K, comes_out_even, message_elems, rows_at_once
from convgen.plan.plan import Plan, converted, input_atoms, k_block, make_plan
from convgen.plan.views import must_move, operand_types, products
from convgen.problem.matmul import Problem

_TILE_M = (32, 64, 96, 128, 192, 256)
_TILE_N = (16, 32, 64, 96, 128, 192, 256)
_TILE_K = (16, 32, 64)  #: of 8-bit elements twice as many, so that rows are as long as those of 16-bit ones
_SIDES = (8, 16, 32, 64)  #: of the last resort

_CHUNK_DECODE, _ELEMENT_DECODE = 1.5, 4.0  #: times the issue, where chunks or elements find their own place along K
_MOST_IN_VECTORS = 64  #: registers; accumulators of a lane that leave enough vector registers to the rest
_OTHER_REGISTERS = 40  #: registers; addresses, masks and temporaries of a lane
_SLICE_BLOCKS = 16  #: K blocks that a slice has at least
_MOST_MERGED = 9  #: products in one grid: phases of strides of 3 x 3 or 2 x 2 x 2, each code of its own in the kernel


@attrs.frozen
class _Way:
    """How operands come: through so many slots of shared memory and stages of registers before them, if any is, or
    straight, brought nearer so many blocks before.
    """

    slots: int
    stages: int = 1
    prefetch: int = 0
    copy: tuple[str, ...] = ()

    @property
    def held(self) -> int:
        """Blocks of K that registers hold on their way to shared memory."""
        return self.stages if self.slots and not self.copy else 0


_STRAIGHT = (_Way(0, prefetch=3),)  #: as oneDNN's convolutions for XeHPC have it


@attrs.frozen
class Clocks:
    """The clocks of a launch, by cause.

    Workgroups run in `rounds`, `together` on a unit, and the `left` ones by themselves; each has a fixed part and its
    blocks of K. A block takes what the slowest of matrix, shared, moved and issue takes, a tenth of all of them, and
    `serial`, in which nothing else runs.
    """

    matrix: float  #: clocks; matrix pipe, of one block
    shared: float  #: clocks; shared memory
    moved: float  #: clocks; from global memory
    issue: float  #: clocks; loads and the search for their places
    serial: float  #: clocks; barriers and what waits at them
    blocks: int  #: blocks of K of a workgroup
    block: float  #: clocks; one block of a workgroup that has a unit to itself
    slowest: float  #: clocks; from one block to the next where only loads are waited for
    rounds: int  #: rounds of as many workgroups as a unit holds
    together: int  #: workgroups; resident on a unit
    left: int  #: workgroups behind the rounds
    tile: float  #: clocks; a workgroup beside its blocks
    tail: float  #: clocks; a share of all work, were it spread evenly, so that less of it wins ties
    besides: float  #: clocks; slices that meet, further launches

    @property
    def launch(self) -> float:
        """Of the product's launch."""
        left = self._round(self.left) if self.left else 0.0
        return self.rounds * self._round(self.together) + left + self.tail

    @property
    def pace(self) -> float:
        """Clocks from one block to the next of all that run together, no less than loads take to return."""
        return self._pace(self.together)

    def _pace(self, together: int) -> float:
        return max(self.block * together, self.slowest)

    def _round(self, together: int) -> float:
        return self.tile + self.blocks * self._pace(together)

    @property
    def total(self) -> float:
        """Of the product."""
        return self.launch + self.besides


@attrs.frozen
class Candidate:
    """A config with its score (clocks of all launches, less is better), and what those of one product consist of."""

    score: float
    config: Config
    clocks: Clocks | None = attrs.field(default=None, eq=False, repr=False)  #: None for the last resort

    @property
    def together(self) -> int:
        """Workgroups that run together on a unit."""
        return self.clocks.together if self.clocks else 1


@attrs.frozen
class OperandLoad:
    """Elements that one load of an operand brings at most, and whether it runs along K."""

    widest: int
    along_k: bool

    def messages(self, rows: int, k: int, lanes: int, elem_bytes: int) -> float:
        """Loads of each lane for a tile of rows x k."""
        share = rows * k / lanes
        return share / (self.widest if self.along_k else rows_at_once(self.widest, int(share), elem_bytes))


@attrs.frozen
class _Shape:
    """The problem as a product: M x N outputs; K is `outer` runs of `inner` elements."""

    m: int
    n: int
    outer: int
    inner: int
    parts: int  #: number of products of that shape, one after the other
    batch: int  #: number of such products in one launch
    of_m: View
    of_n: View
    grids: str = APART  #: of the launches of several products

    def types(self, atom: MmaAtom) -> tuple[str, ...]:
        """How a config writes the types that an instruction multiplies."""
        return converted((self.of_n.memory.elem, self.of_m.memory.elem), atom)


def candidates(problem: Problem, facts: TargetFacts) -> list[Candidate]:
    """All configs worth trying, best first, ending in the always-valid one."""
    atoms = input_atoms(problem, facts)
    found = [
        attrs.evolve(c, score=c.score + clocks) if clocks else c
        for moved, clocks in _reorders(problem, facts)
        for shape in _shapes(problem, facts, moved)
        for atom in atoms
        for c in _scored(shape, atom, facts, moved)
    ]
    found += [Candidate(clocks, config) for clocks, config in lanes.configs(problem, facts, must_move(problem))]
    resort = last_resort(problem, atoms, facts, must_move(problem))
    return [*sorted(found, key=lambda c: c.score), Candidate(float("inf"), resort)]


def first_fitting(
    problem: Problem,
    rest: Iterable[Candidate],
    facts: TargetFacts,
    refused: Callable[[Candidate, DoesNotFit], object] = lambda candidate, error: None,
) -> tuple[Candidate, Plan] | None:
    """The first candidate that fits, with its plan; `refused` is told of those before. None if none does."""
    for candidate in rest:
        try:
            return candidate, make_plan(problem, candidate.config, facts)
        except DoesNotFit as error:
            refused(candidate, error)
    return None


def _shapes(problem: Problem, facts: TargetFacts, moved: tuple[str, ...]) -> Iterator[_Shape]:
    """The largest product of the problem, if it has one; where few are in one grid, as many of average depth."""
    parts = products(problem, 1, moved)
    if not parts:
        return
    largest = max(parts, key=lambda p: p.m * p.n * p.k)
    inner = largest.k_inner.size
    sizes = largest.m, largest.n, largest.k // inner, inner
    yield (apart := _Shape(*sizes, len(parts), largest.batch, largest.of_m, largest.of_n))
    if 1 < len(parts) <= _MOST_MERGED and not problem.runtime:
        outer = -(-sum(part.k for part in parts) // (inner * len(parts)))
        yield attrs.evolve(apart, outer=outer, parts=1, batch=len(parts) * largest.batch, grids=MERGED)


def _comes_as_fragments(shape: _Shape, atom: MmaAtom, facts: TargetFacts) -> bool:
    """Whether both operands come as the instruction reads them, in rectangles, and can be brought nearer before."""
    operands = (shape.of_m, atom.b), (shape.of_n, atom.a)
    return facts.prefetch and all(_is_rectangles(view, fragment, facts) for view, fragment in operands)


def _fills_rows(row_bytes: int, facts: TargetFacts) -> bool:
    """Whether rectangles are as wide as they may be: as a line of the cache."""
    return facts.planes is not None and row_bytes >= facts.planes.row


@lru_cache(maxsize=2**10)
def _is_rectangles(view: View, fragment: Fragment, facts: TargetFacts) -> bool:
    return rectangle_of(linearize(view), fragment, facts) is not None


@lru_cache(maxsize=2**10)
def _fragment_load(view: View, fragment: Fragment, facts: TargetFacts) -> OperandLoad:
    """How an operand of an instruction is loaded: whole chunks if it comes as rectangles."""
    if _is_rectangles(view, fragment, facts):
        return OperandLoad(facts.chunk_bytes // view.memory.elem.bytes, True)
    return _load(view, facts)


def _load(view: View, facts: TargetFacts) -> OperandLoad:
    along_k, along_rows = (message_elems(view, facts.chunk_bytes, axis) for axis in (K, ROWS))
    return OperandLoad(max(along_k, along_rows), along_k >= along_rows)


def _reorders(problem: Problem, facts: TargetFacts) -> Iterator[tuple[tuple[str, ...], float]]:
    """Sets of inputs worth reordering, with the clocks that takes: those that must be; where one is read element by
    element, all that are not in their default layout, for the order of K follows memory.
    """
    least = must_move(problem)
    yield least, _moving(problem, least, facts)
    if all(
        _load(view, facts).widest > 1 for part in products(problem, 1, least)[:1] for view in (part.of_m, part.of_n)
    ):
        return
    elsewhere = tuple(t.name for t in problem.factors if reordered(problem, t.name).layout != t.layout)
    if elsewhere != least:
        yield elsewhere, _moving(problem, elsewhere, facts)


def _moving(problem: Problem, names: Collection[str], facts: TargetFacts) -> float:
    """Clocks that reordering inputs takes."""
    traffic = sum(2 * t.layout.size_elems * scalar(t.dtype).bytes for t in problem.factors if t.name in names)
    return len(names) * facts.costs.launch + traffic / (facts.compute_units * facts.costs.stream_rate)


def last_resort(problem: Problem, atoms: list[MmaAtom], facts: TargetFacts, moved: tuple[str, ...] = ()) -> Config:
    """One subgroup, the smallest square tile that its lanes share out evenly: fits every problem."""
    atom = min(atoms, key=lambda a: (a.spans, a.n, a.k))
    k = max(_TILE_K[0], atom.k)
    side = next(s for s in _SIDES if _is_whole(s, k, atom, facts))
    types = converted(operand_types(problem), atom)
    return Config((side, side, k), (1, 1), (atom.n, atom.m, atom.k), 1, "split", "v", reorder=moved, types=types)


def _tiles_k(atom: MmaAtom, facts: TargetFacts) -> tuple[int, ...]:
    return tuple(2 * k for k in _TILE_K) + facts.core.byte_rows if atom.elem_bytes == 1 else _TILE_K


def _is_whole(side: int, k: int, atom: MmaAtom, facts: TargetFacts) -> bool:
    even = comes_out_even(side, k, atom.elem_bytes, facts, 1)
    return even and side % atom.n == 0 and side % atom.m == 0


def _scored(shape: _Shape, atom: MmaAtom, facts: TargetFacts, moved: tuple[str, ...]) -> Iterator[Candidate]:
    """The configs that come out even and whose tiles fit shared memory, with their scores."""
    elem, mma, types = atom.elem_bytes, (atom.n, atom.m, atom.k), shape.types(atom)
    chunk, tiles_k = facts.chunk_bytes // elem, _tiles_k(atom, facts)
    k_orders = ["split"] if shape.inner % tiles_k[-1] == 0 else ["split", "fused"]
    if shape.inner % chunk:
        k_orders.append("chunk")
    straight = _comes_as_fragments(shape, atom, facts)
    spans = atom.spans
    loads = _fragment_load(shape.of_m, atom.b, facts), _fragment_load(shape.of_n, atom.a, facts)
    through = (*_without_registers(loads, types, elem, facts), *(_Way(*pipeline) for pipeline in facts.core.pipelines))
    for m, n, k, (wm, wn) in product(_TILE_M, _TILE_N, tiles_k, facts.core.grids):
        if m % (wm * atom.m) or wn % spans or n % (wn // spans * atom.n) or k % atom.k:
            continue
        if not all(comes_out_even(rows, k, elem, facts, wm * wn) for rows in (m, n)):
            continue
        ways = through + (_STRAIGHT if straight and _fills_rows(k * elem, facts) else ())
        for subtiles in facts.core.subtiles:
            if m % (wm * atom.m * subtiles):
                continue
            works = {
                kind: _work(loads, (m, n, k), (wm, wn), subtiles, atom, facts, shared=kind[0], held=kind[1])
                for kind in dict.fromkeys((way.slots > 0, way.held) for way in ways)
            }
            for k_order, way in product(k_orders, ways):
                work = works[way.slots > 0, way.held]
                few = work.accumulators <= _MOST_IN_VECTORS
                # Long rows of 8-bit elements need the vectors for themselves; of others, shorter rows do as well.
                in_vectors = few and (elem > 1 or work.registers <= facts.registers)
                acc = "v" if in_vectors or not facts.accumulators else "a"
                fits = acc == "a" or work.registers <= facts.registers
                if fits and work.slot_bytes * way.slots <= facts.shared_bytes:
                    blocks = _blocks(shape, k_order, k, elem, facts)
                    slices = _slices(shape, (m, n), blocks, facts)
                    config = Config(
                        (m, n, k),
                        (wm, wn),
                        mma,
                        way.slots,
                        k_order,
                        acc,
                        slices,
                        moved,
                        subtiles,
                        way.prefetch,
                        types=types,
                        grids=shape.grids,
                        stages=way.stages,
                        copy=way.copy,
                    )
                    clocks = _clocks(shape, config, work, -(-blocks // slices), atom, facts)
                    yield Candidate(shape.parts * clocks.total, config, clocks)


def _without_registers(
    loads: Iterable[OperandLoad], types: tuple[str, ...], elem_bytes: int, facts: TargetFacts
) -> Iterator[_Way]:
    """Copies without registers where messages are as wide as a chunk, along K, and nothing is converted."""
    whole = facts.chunk_bytes in facts.direct_widths
    if whole and not types and all(load.along_k and load.widest * elem_bytes == facts.chunk_bytes for load in loads):
        yield from (_Way(slots, copy=(DIRECT,)) for slots in facts.core.direct_slots)


def _blocks(shape: _Shape, k_order: str, tile_k: int, elem_bytes: int, facts: TargetFacts) -> int:
    """K blocks, padding included."""
    block = k_block(k_order, tile_k, elem_bytes, facts.chunk_bytes)
    return -(-shape.outer * (-(-shape.inner // block) * block) // tile_k)


def _slices(shape: _Shape, tile: tuple[int, int], blocks: int, facts: TargetFacts) -> int:
    """As many slices of K as it takes to give every unit work, each long enough to be worth its own result."""
    if shape.batch > 1:
        return 1
    tiles = -(-shape.m // tile[0]) * -(-shape.n // tile[1])
    wanted = min(facts.compute_units // tiles, blocks // _SLICE_BLOCKS)
    return max(1, wanted)


@attrs.frozen
class _Work:
    """The clocks that one K block of one workgroup takes of each unit that it has to itself, and other needs."""

    matrix: float  #: clocks; matrix pipe
    shared: float  #: clocks; shared memory
    moved: float  #: clocks; from global memory
    messages: float  #: clocks; issue of the loads, without the search for their places
    slot_bytes: int  #: bytes; shared memory of one slot
    accumulators: int  #: registers; of a lane
    registers: int  #: registers; of a lane, accumulators included, estimate
    subgroups: int


def _work(
    loads: tuple[OperandLoad, OperandLoad],
    tile: tuple[int, int, int],
    subgroups: tuple[int, int],
    subtiles: int,
    atom: MmaAtom,
    facts: TargetFacts,
    *,
    shared: bool,
    held: int,
) -> _Work:
    """`loads` are those of M's and N's operands; `shared` says whether these come through shared memory, or straight as
    fragments; of `held` blocks registers hold what is on its way there.
    """
    (m, n, k), (subgroups_m, subgroups_n), elem, spans = tile, subgroups, atom.elem_bytes, atom.spans
    count, lanes = subgroups_m * subgroups_n, facts.subgroup_size
    simds = min(count, facts.core.simds)
    copied = (m + n) * k * elem
    messages = sum(load.messages(rows, k, lanes * count, elem) for load, rows in zip(loads, (m, n)))
    conflicts = max(1.0, facts.core.turned_row / (k * elem))
    written = sum(rows * k * elem * (1.0 if load.along_k else conflicts) for load, rows in zip(loads, (m, n)))
    accumulators = m * n * atom.acc.bytes // (4 * count * lanes)
    rows = m // (subgroups_m * subtiles * spans) + n // subgroups_n
    fragments = facts.core.fragment_sets * rows * k * elem // (4 * lanes)
    # By all subgroups, from shared memory or the nearest cache.
    read = (n * subgroups_m + m * subgroups_n // spans) * k * elem
    if not shared:
        messages += read / (facts.chunk_bytes * lanes * count)  # the others only bring nearer
    return _Work(
        matrix=(m // atom.m) * (n // atom.n) * (k // atom.k) * atom.clocks * spans / simds,
        shared=read / facts.core.shared_read_rate + (written / facts.core.shared_rate if shared else 0),
        moved=copied / facts.core.global_rate,
        messages=messages * facts.costs.message * count / simds,
        slot_bytes=copied,
        accumulators=accumulators,
        registers=accumulators + fragments + held * copied // (4 * lanes * count) + _OTHER_REGISTERS,
        subgroups=count,
    )


def _meeting(
    shape: _Shape, config: Config, tiles: int, turns: Turns | None, atom: MmaAtom, facts: TargetFacts
) -> float:
    """Clocks in which slices meet: all units leave sums; then they, or the last to arrive at each tile, add them up.

    Those that share K leave a part of each tile of theirs, and add up about as many tiles as they have.
    """
    tile = config.tile[0] * config.tile[1] * atom.acc.bytes
    if turns and turns.shared:
        at_each = turns.shared_turns + -(-turns.shared // turns.workgroups) * turns.sharers
        return at_each * tile / facts.costs.unit_rate
    if config.slices == 1:
        return 0.0
    left = config.slices * shape.m * shape.n * atom.acc.bytes
    sums = left / (facts.compute_units * facts.costs.stream_rate)
    if config.sum != "last":
        return 2 * sums + min(left, facts.costs.dirty) / facts.costs.drain + facts.costs.launch
    return sums + -(-tiles // facts.compute_units) * config.slices * tile / facts.costs.unit_rate


def clocks_of(problem: Problem, config: Config, facts: TargetFacts) -> Clocks | None:
    """What the clocks of a given config consist of, for the largest product; None where there is none."""
    for shape in _shapes(problem, facts, config.reorder):
        if shape.grids != config.grids:
            continue
        for atom in input_atoms(problem, facts):
            if (atom.n, atom.m, atom.k) == config.mma:
                loads = _fragment_load(shape.of_m, atom.b, facts), _fragment_load(shape.of_n, atom.a, facts)
                way = _Way(config.slots, config.stages, config.prefetch, config.copy)
                tile, waves, shared = config.tile, config.waves, config.slots > 0
                work = _work(loads, tile, waves, config.subtiles, atom, facts, shared=shared, held=way.held)
                blocks = _blocks(shape, config.taps, config.tile[2], atom.elem_bytes, facts)
                return _clocks(shape, config, work, -(-blocks // config.slices), atom, facts)
    return None


def _clocks(shape: _Shape, config: Config, work: _Work, k_blocks: int, atom: MmaAtom, facts: TargetFacts) -> Clocks:
    """Clocks of one product: rounds of as many workgroups as a unit holds."""
    whole = config.taps == "chunk" or shape.inner % (facts.chunk_bytes // atom.elem_bytes) == 0
    decode = 1.0 if config.taps == "split" else _CHUNK_DECODE if whole else _ELEMENT_DECODE
    costs = facts.costs
    serial = float(costs.barrier if config.slots else 0)
    serial += costs.shared_exposed * work.shared + costs.shared_latency if config.slots == 1 else 0
    tiles = shape.batch * -(-shape.m // config.tile[0]) * -(-shape.n // config.tile[1]) * config.slices
    persist = config.map.persist
    turns = Turns(persist, tiles, k_blocks, config.round) if persist else None
    a_unit = -(-(turns.workgroups if turns else tiles) // facts.compute_units)
    granule = facts.core.register_granule
    by_registers = (
        facts.core.simd_registers // (-(-work.registers // granule) * granule) * facts.core.simds // work.subgroups
    )
    by_shared = facts.shared_bytes // (work.slot_bytes * config.slots) if config.slots else by_registers
    together = max(1, min(a_unit, by_shared, by_registers))
    besides = _meeting(shape, config, tiles // config.slices, turns, atom, facts)
    issue = work.messages * decode
    every = work.matrix, work.shared, work.moved, issue
    block = max(every) + serial + costs.exposed * sum(every)  # of one workgroup that has a unit to itself
    # Blocks follow one another no faster than loads return: as many as these, or prefetches, are ahead are in flight.
    slowest = costs.load_latency / (config.depth or config.prefetch)
    return Clocks(
        work.matrix, work.shared, work.moved, issue, serial, turns.longest if turns else k_blocks, block, slowest,
        rounds=a_unit // together, together=together, left=a_unit % together,
        tile=costs.tile * (turns.count if turns else 1),
        tail=costs.tail * tiles * k_blocks * block / facts.compute_units, besides=besides,
    )  # fmt: skip
