"""Candidate configs, best first by a model of one launch; the last one always fits.

The model counts clocks: per K block the matrix pipe, shared memory and the global path each take their time and the
slowest sets the pace; tiles go to compute units in rounds. It ranks, it does not predict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import product
from math import prod

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
from convgen.plan.config import APART, CHUNK, COLUMNS, DIRECT, FUSED, MERGED, RESIDENT, RUNS, SPLIT, Config
from convgen.plan.contraction import Product, reordered
from convgen.plan.copies import (
    ROWS,
    K,
    comes_out_even,
    copied_at_once,
    even_rows,
    is_turned,
    message_elems,
    pitch_of,
    rows_at_once,
)
from convgen.plan.directions import have_columns
from convgen.plan.plan import Plan, converted, input_atoms, k_block, make_plan
from convgen.plan.resident import Resident, resident
from convgen.plan.runs import in_runs
from convgen.plan.views import must_move, operand_types, products
from convgen.problem.matmul import Problem

_TILE_M = (32, 64, 96, 128, 192, 256)
_MORE_ROWS = (384, 512)  #: of resident windows, of which each tile reads as many rows around its own
_TILE_N = (16, 32, 64, 96, 128, 192, 256)
_TILE_K = (16, 32, 64)  #: of 8-bit elements twice as many, so that rows are as long as those of 16-bit ones
_SIDES = (8, 16, 32, 64)  #: of the last resort

_CHUNK_DECODE, _ELEMENT_DECODE = 1.5, 4.0  #: times the issue, where chunks or elements find their own place along K
_RUN_DECODE = 4.0  #: times the issue, of messages that are trimmed: these bind, and all SIMDs' waves share the path
_OF_RUNS = (2, 1)  #: slots and stages that are tried first, by `convgen profile` of first layers
_GRIDS_OF_RUNS = ((3, 1), (2, 4))  #: the same
_MOST_IN_VECTORS = 64  #: registers; accumulators of a lane that leave enough vector registers to the rest
_OTHER_REGISTERS = 40  #: registers; addresses, masks and temporaries of a lane
_SLICE_BLOCKS = 16  #: K blocks that a slice has at least
_ARRIVAL = 1600  #: clocks; from sums that are left to others that are there to be added, by `convgen profile`
_BESIDE = 0.44  #: of the clocks of code that no loop has, as MIOpen's kernels take it (`gen/profile/constants.json`)
_MOST_COLUMNS = 128  #: columns of all phases; more fill tiles as well by themselves
_LEAST_RESIDENT = 4  #: taps of windows that may be resident in shared memory: fewer read little again
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


_HELD = (_Way(1),)  #: of windows that are resident: one slot is large, and a block takes long
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

    def upto(self, chunk: int) -> OperandLoad:
        """The same where lanes take chunks of so many elements along K."""
        return attrs.evolve(self, widest=min(self.widest, chunk)) if self.along_k else self

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
    phases: str = APART  #: of strides, in products of their own or as columns of one
    windows: Resident | None = None  #: those that are resident in shared memory, if any are
    runs: int = 0  #: elements; with taps and channels as runs, of such blocks of K

    def types(self, atom: MmaAtom) -> tuple[str, ...]:
        """How a config writes the types that an instruction multiplies."""
        return converted((self.of_n.memory.elem, self.of_m.memory.elem), atom)


def candidates(problem: Problem, facts: TargetFacts) -> list[Candidate]:
    """All configs worth trying, best first, ending in the always-valid one."""
    atoms, meetings = input_atoms(problem, facts), _meetings(problem, facts)
    found = [
        attrs.evolve(c, score=c.score + clocks) if clocks else c
        for moved, clocks in _reorders(problem, facts)
        for shape in _shapes(problem, facts, moved)
        for atom in atoms
        for c in _scored(shape, atom, facts, moved, meetings)
    ]
    found += [Candidate(clocks, config) for clocks, config in lanes.configs(problem, facts, must_move(problem))]
    resort = last_resort(problem, atoms, facts, must_move(problem))
    return [*sorted(found, key=lambda c: c.score), Candidate(float("inf"), resort)]


def _meetings(problem: Problem, facts: TargetFacts) -> tuple[int, ...]:
    """How many slices at a time may meet by the last of them; none where they rather add to the result."""
    acc = scalar(problem.acc_type)
    adds = scalar(problem.outputs[0].dtype) is acc and (acc.is_int or not problem.deterministic)
    return facts.core.meetings if facts.tickets and not adds else ()


def first_fitting(
    problem: Problem,
    rest: Iterable[Candidate],
    facts: TargetFacts,
    refused: Callable[[Candidate, DoesNotFit], object] = lambda candidate, error: None,
) -> tuple[Candidate, Plan] | None:
    """The first candidate that fits, with its plan; `refused` is told of those before. None if none does."""
    return next(fitting(problem, rest, facts, refused), None)


def fitting(
    problem: Problem,
    rest: Iterable[Candidate],
    facts: TargetFacts,
    refused: Callable[[Candidate, DoesNotFit], object] = lambda candidate, error: None,
) -> Iterator[tuple[Candidate, Plan]]:
    """The candidates that fit, in their order, with their plans; `refused` is told of the others."""
    for candidate in rest:
        try:
            plan = make_plan(problem, candidate.config, facts)
        except DoesNotFit as error:
            refused(candidate, error)
        else:
            yield candidate, plan


def _shapes(problem: Problem, facts: TargetFacts, moved: tuple[str, ...]) -> Iterator[_Shape]:
    """The largest product of the problem, if it has one; where few are in one grid, as many of average depth; and
    phases of few channels as columns of one.
    """
    parts = products(problem, 1, moved)
    if not parts:
        return
    largest = max(parts, key=lambda p: p.m * p.n * p.k)
    yield (apart := _shape(largest, len(parts)))
    if len(parts) == 1:
        yield from _in_rows(largest, problem, facts)
    if have_columns(problem):
        (joined,) = products(problem, 1, moved, COLUMNS)
        if joined.n <= _MOST_COLUMNS:
            yield attrs.evolve(_shape(joined, 1), phases=COLUMNS)
            yield from (attrs.evolve(each, phases=COLUMNS) for each in _in_rows(joined, problem, facts))
    if 1 < len(parts) <= _MOST_MERGED and not problem.runtime:
        outer = -(-sum(part.k for part in parts) // (apart.inner * len(parts)))
        yield attrs.evolve(apart, outer=outer, parts=1, batch=len(parts) * largest.batch, grids=MERGED)
    if len(parts) == 1 and not problem.runtime and not facts.flat:
        yield from _as_runs(apart, largest, facts)


def _as_runs(shape: _Shape, product: Product, facts: TargetFacts) -> Iterator[_Shape]:
    """The same with taps and channels as runs, if messages are wider then; along K with blocks of whole runs.

    These are padded to chunks or, as blocks are, to a power of two.
    """
    views, chunk = (product.of_m, product.of_n), facts.chunk_bytes // product.of_m.memory.elem.bytes
    widest = [_load(view, facts).widest for view in views]
    longest = _TILE_K[-1] * max(1, chunk // 8)
    for tile_k in range(chunk, longest + 1, chunk) if min(widest) < chunk else ():
        try:
            found = in_runs(product, tile_k, facts.chunk_bytes)
        except DoesNotFit:
            return
        inner = found.k_inner
        along_k = found.of_m.extent(1) != product.of_m.extent(1)
        tight = inner.padded - inner.size < chunk and tile_k % inner.padded == 0
        wider = any(_load(v, facts).widest > now for v, now in zip((found.of_m, found.of_n), widest))
        if wider and (tile_k & (tile_k - 1) == 0 or (along_k and tight)):
            sizes = found.m, found.n, found.k // inner.padded, inner.padded
            yield _Shape(*sizes, shape.parts, shape.batch, found.of_m, found.of_n, shape.grids, runs=tile_k)


def _in_rows(part: Product, problem: Problem, facts: TargetFacts) -> Iterator[_Shape]:
    """That of a product whose windows can be resident, where they have taps enough to be worth it."""
    taps = prod(d.size for d in part.of_m.axes[1][:-1])
    if problem.runtime or facts.block_bytes or taps < _LEAST_RESIDENT:
        return
    with suppress(DoesNotFit):
        found = resident(part, part.k)
        yield attrs.evolve(_shape(part, 1), m=found.product.m, windows=found)


def _shape(part: Product, parts: int) -> _Shape:
    """That of a product, the largest of so many."""
    inner = part.k_inner.size
    return _Shape(part.m, part.n, part.k // inner, inner, parts, part.batch, part.of_m, part.of_n)


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
    """How an operand of an instruction is loaded: whole chunks if it comes as rectangles, or is turned when read."""
    if _is_rectangles(view, fragment, facts) or is_turned(view, view.memory.elem, fragment, facts):
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


def _scored(
    shape: _Shape, atom: MmaAtom, facts: TargetFacts, moved: tuple[str, ...], meetings: tuple[int, ...]
) -> Iterator[Candidate]:
    """The configs that come out even and whose tiles fit shared memory, with their scores."""
    elem, mma, types = atom.elem_bytes, (atom.n, atom.m, atom.k), shape.types(atom)
    chunk, tiles_k = facts.chunk_bytes // elem, _tiles_k(atom, facts)
    k_orders = [SPLIT] if shape.inner % tiles_k[-1] == 0 else [SPLIT, FUSED]
    if shape.inner % chunk:
        k_orders.append(CHUNK)
    if shape.windows:
        k_orders = [RESIDENT]
        tiles_k = tuple(k * len(shape.windows.taps) for k in tiles_k if k % atom.k == 0 and shape.inner % k == 0)
    if shape.runs:
        k_orders, tiles_k = [RUNS], (shape.runs,)
    straight = not shape.windows and not shape.runs and _comes_as_fragments(shape, atom, facts)
    spans = atom.spans
    loads = _fragment_load(shape.of_m, atom.b, facts), _fragment_load(shape.of_n, atom.a, facts)
    direct = () if shape.runs else _without_registers(loads, types, elem, facts)
    pipelines, grids = facts.core.pipelines, facts.core.grids
    if shape.runs:  # blocks are few, so that deep pipelines do not pay; copies come out even over other workgroups, too
        pipelines, grids = tuple(sorted(pipelines, key=lambda p: p != _OF_RUNS)), (*_GRIDS_OF_RUNS, *grids)
    through = (*direct, *(_Way(*pipeline) for pipeline in pipelines))
    if shape.windows:
        through = () if types else _HELD
    tiles_m = _TILE_M + _MORE_ROWS if shape.windows else _TILE_M
    for m, n, k, (wm, wn) in product(tiles_m, _TILE_N, tiles_k, grids):
        if m % (wm * atom.m) or wn % spans or n % (wn // spans * atom.n) or k % atom.k:
            continue
        if not shape.windows and not all(comes_out_even(rows, k, elem, facts, wm * wn) for rows in (m, n)):
            continue
        ways = through + (_STRAIGHT if straight and _fills_rows(k * elem, facts) else ())
        for subtiles in facts.core.subtiles:
            if m % (wm * atom.m * subtiles):
                continue
            works: dict[tuple[bool, int], _Work] = {}
            for way in ways:
                if (kind := (way.slots > 0, way.held)) not in works:
                    works[kind] = _work(loads, (m, n, k), (wm, wn), subtiles, atom, facts, shape.windows, way)
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
                        phases=shape.phases,
                        stages=way.stages,
                        copy=way.copy,
                    )
                    config = _as_they_meet(shape, config, meetings, atom, facts) if slices > 1 else config
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
    windows: Resident | None,
    way: _Way,
) -> _Work:
    """`loads` are those of M's and N's operands."""
    (m, n, k), (subgroups_m, subgroups_n), elem, spans = tile, subgroups, atom.elem_bytes, atom.spans
    count, lanes = subgroups_m * subgroups_n, facts.subgroup_size
    simds = min(count, facts.core.simds)
    taps, reach = (len(windows.taps), windows.reach) if windows else (1, 0)
    depth = k // taps
    shapes: tuple[tuple[int, int], ...] = (m + reach, depth), (n, k)
    gaps = (m + n) * (pitch_of(k, elem, facts)[0] - k) * elem
    if windows:
        shapes = tuple((even_rows(rows, cols, elem, facts, count), cols) for rows, cols in shapes)
        # Two chunks where a read has as many of a row as lanes go along it, more than two.
        several = lanes // atom.m > 2 and depth * elem > 2 * facts.chunk_bytes
        gaps = sum(rows for rows, _ in shapes) * facts.chunk_bytes * (1 + several)
    copied = sum(rows * cols for rows, cols in shapes) * elem
    messages = sum(
        load.upto(copied_at_once(*shape, elem, facts, count)).messages(*shape, lanes * count, elem)
        for load, shape in zip(loads, shapes)
    )
    conflicts = max(1.0, facts.core.turned_row / (k * elem))
    written = sum(
        rows * cols * elem * (1.0 if load.along_k else conflicts) for load, (rows, cols) in zip(loads, shapes)
    )
    accumulators = m * n * atom.acc.bytes // (4 * count * lanes)
    rows = m // (subgroups_m * subtiles * spans) + n // subgroups_n
    fragments = facts.core.fragment_sets * rows * depth * elem // (4 * lanes)
    # By all subgroups, from shared memory or the nearest cache.
    read = (n * subgroups_m + m * subgroups_n // spans) * k * elem
    if not way.slots:
        messages += read / (facts.chunk_bytes * lanes * count)  # the others only bring nearer
    return _Work(
        matrix=(m // atom.m) * (n // atom.n) * (k // atom.k) * atom.clocks * spans / simds,
        shared=read / facts.core.shared_read_rate + (written / facts.core.shared_rate if way.slots else 0),
        moved=copied / facts.core.global_rate,
        messages=messages * facts.costs.message * count / simds,
        slot_bytes=copied + gaps,
        accumulators=accumulators,
        registers=accumulators + fragments + way.held * copied // (4 * lanes * count) + _OTHER_REGISTERS,
        subgroups=count,
    )


def _as_they_meet(shape: _Shape, config: Config, meetings: Iterable[int], atom: MmaAtom, facts: TargetFacts) -> Config:
    """The config with the way for its slices to meet that takes least."""
    others = (attrs.evolve(config, sum="last", at_a_time=count) for count in meetings)
    tiles = -(-shape.m // config.tile[0]) * -(-shape.n // config.tile[1])
    return min((config, *others), key=lambda c: _meeting(shape, c, tiles, None, atom, facts))


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
    given_back = min(left, facts.costs.dirty) / facts.costs.drain
    if config.sum != "last":
        return 2 * sums + given_back + facts.costs.launch
    if config.at_a_time:
        levels, members = config.groups(config.slices), 0
        for count in (config.slices, *levels[:-1]):
            members += min(config.at_a_time, count)
        added = members * tile / facts.core.global_rate + _ARRIVAL * len(levels)
        return sums + given_back + -(-tiles // facts.compute_units) * _BESIDE * added
    return sums + -(-tiles // facts.compute_units) * config.slices * tile / facts.costs.unit_rate


def clocks_of(problem: Problem, config: Config, facts: TargetFacts) -> Clocks | None:
    """What the clocks of a given config consist of, for the largest product; None where there is none."""
    for shape in _shapes(problem, facts, config.reorder):
        if (shape.grids, shape.phases) != (config.grids, config.phases):
            continue
        if shape.runs != (config.tile[2] if config.taps == RUNS else 0):
            continue
        if (shape.windows is None) == (config.taps == RESIDENT):
            continue
        for atom in input_atoms(problem, facts):
            if (atom.n, atom.m, atom.k) == config.mma:
                loads = _fragment_load(shape.of_m, atom.b, facts), _fragment_load(shape.of_n, atom.a, facts)
                way = _Way(config.slots, config.stages, config.prefetch, config.copy)
                work = _work(loads, config.tile, config.waves, config.subtiles, atom, facts, shape.windows, way)
                blocks = _blocks(shape, config.taps, config.tile[2], atom.elem_bytes, facts)
                return _clocks(shape, config, work, -(-blocks // config.slices), atom, facts)
    return None


def _clocks(shape: _Shape, config: Config, work: _Work, k_blocks: int, atom: MmaAtom, facts: TargetFacts) -> Clocks:
    """Clocks of one product: rounds of as many workgroups as a unit holds."""
    whole = config.taps == "chunk" or shape.inner % (facts.chunk_bytes // atom.elem_bytes) == 0
    decode = 1.0 if config.taps in (SPLIT, RESIDENT) else _CHUNK_DECODE if whole else _ELEMENT_DECODE
    decode = _RUN_DECODE if shape.runs else decode
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
    # Where a SIMD has two waves of a workgroup, one hides half of what the other exposes.
    exposed = costs.exposed * (min(1.0, facts.core.simds / work.subgroups) if shape.runs else 1.0)
    block = max(every) + serial + exposed * sum(every)  # of one workgroup that has a unit to itself
    # Blocks follow one another no faster than loads return: as many as these, or prefetches, are ahead are in flight.
    slowest = costs.load_latency / (config.depth or config.prefetch)
    return Clocks(
        work.matrix, work.shared, work.moved, issue, serial, turns.longest if turns else k_blocks, block, slowest,
        rounds=a_unit // together, together=together, left=a_unit % together,
        tile=costs.tile * (turns.count if turns else 1),
        tail=costs.tail * tiles * k_blocks * block / facts.compute_units, besides=besides,
    )  # fmt: skip
