"""Configs by which lanes compute convolutions of small groups (`mma=fma:...`), with their clocks in closed form.

The *image* is dst, diff_src or, for gradients of weights, diff_dst; lanes own its positions. Windows read the *source*.
A launch takes the longest of issue, requests to the nearest cache, cache lines and memory, and a fraction of their sum.
Constants marked assumed are not backed by measurements.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from itertools import product as combinations
from math import gcd, prod

from convgen.backends.tuning import tuning
from convgen.ir.error import DoesNotFit, Unsupported
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.mma import BlockAtom
from convgen.ir.layout.order import IN_ROWS, Order
from convgen.ir.layout.walks import Xcc
from convgen.ir.record import evolve, frozen
from convgen.ir.types import scalar
from convgen.plan.config import Config, LanePart
from convgen.plan.copies import power_of_two
from convgen.plan.lane_tile import LaneTile, blocks, sums_weights
from convgen.plan.window_views import Windows, refusal, windows
from convgen.problem.conv import Conv, Direction
from convgen.problem.matmul import Problem

#: (rows, columns) of a lane along the last two spatial axes: powers of two, and 7 and 14, which often divide images.
_POSITIONS = (
    *((1, 1), (1, 2), (1, 4), (1, 7), (1, 8), (2, 2), (2, 4), (2, 7), (2, 8), (4, 4), (4, 7), (4, 8)),
    *((7, 4), (7, 7), (7, 8), (8, 4), (8, 8), (14, 4), (16, 4)),
)
_GROUPS = (1, 2, 4, 8, 16)  #: groups of a lane
_MOST_CHANNELS = 16  #: channels of a lane
_MOST_OF_GROUP = 16  #: channels of a group, on either side
_MOST_PRODUCTS = 2304  #: products of a lane in straight-line code
_SUBGROUPS = (4, 8)  #: least subgroups of a workgroup: if the result is the image, and if it is the gradient of weights
_FILLS = (1, 2, 4)  #: workgroups of a unit to aim for when K is cut into slices
_OTHER_REGISTERS = 24  #: registers; addresses and masks
_EXCHANGE = 3  #: operations to add the sum of another lane; assumed
#: share of the clocks of memory that each halving of message width, or each reread of a line, costs; assumed
_PENALTY = 0.1
_START = 1e-4  #: clocks; a token cost of a workgroup, so that fewer and fuller tiles win ties


def has_few_channels(problem: Problem) -> bool:
    """Whether a convolution has several groups with few channels on either side."""
    if not isinstance(problem, Conv) or refusal(problem):
        return False
    return problem.groups > 1 and max(_channels(problem)) <= _MOST_OF_GROUP


def configs(problem: Problem, facts: TargetFacts, reorder: tuple[str, ...]) -> Iterator[tuple[float, Config]]:
    """Yield (clocks of all launches, config) for a convolution of small groups; nothing for other problems.

    Among tiles that differ only in subgroups and slices, only the best is yielded: all take equal registers.
    """
    if not isinstance(problem, Conv) or not has_few_channels(problem):
        return
    weights = sums_weights(problem)
    for config, works in _lanes(problem, facts, reorder):
        assert isinstance(config.mma, LanePart)
        for tiles in _tiles(works, config.mma, _SUBGROUPS[weights], facts):
            choices = ((tile, n) for tile in tiles for n in (_slices(works, tile, facts) if weights else (1,)))
            clocks, tile, slices = min(
                ((_clocks(works, *each, facts), *each) for each in choices), key=lambda choice: choice[0]
            )
            yield clocks, _with_tile(config, tile, slices, facts, weights=weights)


def clocks_of(problem: Problem, config: Config, facts: TargetFacts) -> float | None:
    """Return the modelled clocks of all launches of a config by which lanes compute; None where it is not offered."""
    if not isinstance(problem, Conv) or not isinstance(config.mma, LanePart) or not has_few_channels(problem):
        return None
    weights = sums_weights(problem)
    for offered, works in _lanes(problem, facts, config.reorder, config.mma):
        for tile in chain.from_iterable(_tiles(works, config.mma, _SUBGROUPS[weights], facts)):
            if _with_tile(offered, tile, config.slices, facts, weights=weights) == config:
                return _clocks(works, tile, config.slices, facts)
    return None


def _lanes(
    problem: Conv, facts: TargetFacts, reorder: tuple[str, ...], only: LanePart | None = None
) -> Iterator[tuple[Config, list[_Work]]]:
    """Yield configs without tiles, with a lane's work in each product; with `only`, those of that part of a lane."""
    widest = facts.chunk_bytes // scalar(problem.factors[0].dtype).bytes
    outs, ins = _channels(problem)
    taps = dict.fromkeys(prod(a.k for a in problem.axes[n:]) for n in range(len(problem.axes) + 1))
    for atom, (rows, columns), unrolled in combinations((None, *blocks(problem, facts)), _POSITIONS, taps):
        counts = [n for n in _GROUPS if n <= widest] if atom is None else [1]
        lanes = [LanePart(n * outs, rows, columns, atom and atom.shape) for n in counts]
        products = unrolled * ins
        short = [lane for lane in lanes if only in (None, lane) and _is_short(lane, products)]
        config = Config((products, 1, products), (1, 1), lanes[0], 0, "fused", reorder=reorder)
        try:
            # windows are equal for all numbers of channels of a lane
            parts = windows(problem, lanes[0], config, facts.chunk_bytes) if short else ()
        except (DoesNotFit, Unsupported):
            continue
        for lane in short if parts else ():
            works = [_Work.of(part, lane, atom, facts) for part in parts]
            if max(work.registers for work in works) <= facts.registers:
                yield evolve(config, mma=lane), works


def _is_short(lane: LanePart, products: int) -> bool:
    """Whether `products` for each of a lane's sums make straight-line code of acceptable length."""
    side, _, k = lane.atom or (1, 1, 1)
    return lane.channels <= _MOST_CHANNELS and products * lane.size // (side * k) <= _MOST_PRODUCTS


def _channels(problem: Conv) -> tuple[int, int]:
    """Return the channels of a group: of the image, and of the source that its windows read."""
    convolution = problem.convolution
    outs, ins = convolution.oc // problem.groups, convolution.ic // problem.groups
    return (ins, outs) if convolution.direction is Direction.BWD_D else (outs, ins)


def _slices(works: list[_Work], tile: LaneTile, facts: TargetFacts) -> Iterator[int]:
    """Yield numbers of slices of K that fill the units."""
    tiles = max(work.tiles(tile) for work in works)
    blocks = max(-(-work.k // tile.positions) for work in works)
    counts = (max(1, min(facts.compute_units * fill // tiles, blocks)) for fill in _FILLS)
    yield from dict.fromkeys(-(-blocks // -(-blocks // count)) for count in counts)


def _with_tile(config: Config, tile: LaneTile, slices: int, facts: TargetFacts, *, weights: bool) -> Config:
    """Return the config with a tile and slices; its order sends neighbours, which share halos, to one die."""
    dies = facts.caches.dies
    order = Order((Xcc(dies),)) if dies > 1 else IN_ROWS
    straight = config.tile[2]
    shape = (straight, tile.n, tile.positions) if weights else (tile.positions, tile.n, straight)
    return evolve(config, tile=shape, waves=tile.subgroups, map=order, slices=slices)


@frozen
class _Work:
    """A lane's work in one product, independent of the tile: its positions or, for weights, one block of positions."""

    of_weights: bool  #: whether the result is the gradient of weights
    along_m: bool  #: whether memory is contiguous along positions
    tiles_m: int  #: tiles along M, for weights
    m: int
    n: int
    k: int
    bytes: int  #: bytes that the launch reads and writes; it reads both inputs once for each of `tiles_m`
    elem: int  #: bytes of an element
    narrowness: float  #: width of the widest message over twice that of the source's, at least 1
    contiguous: int  #: elements of the image of a lane that are contiguous in memory
    rows: int  #: rows of the source; one loads while the previous one is multiplied
    messages: int  #: messages for the source and the image
    weight_messages: int  #: messages for weights
    weight_bytes: int  #: bytes that a lane loads with one message of weights
    sharers: int  #: lanes that share a group's weights
    operations: float  #: operations of the vector unit
    matrix: float  #: clocks; of matrix instructions
    sums: int  #: sums of a lane at a time
    registers: int  #: registers of a lane

    @classmethod
    def of(cls, part: Windows, lane: LanePart, atom: BlockAtom | None, facts: TargetFacts) -> _Work:
        """Return a lane's work in one product, from the product's views and the lane's part."""
        elem = part.of_m.memory.elem.bytes
        wide = facts.chunk_bytes // elem
        taps = [1 if n < part.looped else w.taps for n, w in enumerate(part.axes)]
        turns = 1 if part.of_weights else part.products // (prod(taps) * part.ins)  # iterations of loops over taps
        rows = turns * prod(len(w.reads(range(t))) for w, t in zip(part.axes[:-1], taps))
        places, sources = part.axes[-1].places(taps[-1]), lane.channels // part.outs * part.ins
        # elements of the source, and of the image, that one message brings to a lane
        run = part.run if part.run > 1 else gcd(sources, wide, part.of_m.extent(0))
        per_turn = lane.channels * prod(taps) * part.ins
        factors = lane.size if part.of_weights else turns * per_turn
        along_m = part.runs_along_m
        image_run = gcd(lane.columns, wide) if along_m else gcd(lane.channels, wide, part.n)
        sums = lane.channels * part.sums(lane)
        # elements of weights that a message brings to a lane
        side_by_side = wide if part.flat else run if atom and part.weights_along_k else 1
        sharers = atom.side if atom else 1
        products = turns * per_turn * lane.positions
        arranged = rows * places * sources  # elements of the source; each is converted, or moved into place
        operations = 2 if part.of_weights and part.is_ragged else 1  # of a product; the second masks missing positions
        tiles_m = prod(w.taps for w in part.axes[: part.looped]) if part.of_weights else 1
        return cls(
            part.of_weights, along_m, tiles_m, part.m, part.n, part.k,
            bytes=tiles_m * (part.of_m.memory.bytes + part.of_n.memory.bytes)
            + part.m * part.n * part.result.memory.elem.bytes,
            elem=elem, narrowness=max(1.0, wide / 2 / run),
            contiguous=lane.columns if along_m else lane.channels, rows=rows,
            messages=rows * places * sources // run + lane.size // image_run,
            weight_messages=0 if part.of_weights else turns * -(-per_turn // (side_by_side * sharers)),
            weight_bytes=side_by_side * elem, sharers=sharers,
            operations=arranged * along_m if atom else operations * products + arranged + factors,
            matrix=products / (atom.side * atom.k) * atom.clocks if atom else 0,
            sums=sums, registers=sums + part.registers(lane) + _OTHER_REGISTERS,
        )  # fmt: skip

    def tiles(self, tile: LaneTile) -> int:
        """Return the number of tiles of the result."""
        tiles_m = self.tiles_m if self.of_weights else -(-self.m // tile.positions)
        return tiles_m * -(-self.n // tile.n)


def _tiles(works: list[_Work], lane: LanePart, least: int, facts: TargetFacts) -> Iterator[list[LaneTile]]:
    """Yield, for each number of lanes along N, tiles not much wider than the channels, which fit a unit's registers.

    Subgroups along N are powers of two and the count that covers all channels.
    """
    room = facts.core.simds * min(facts.core.simd_registers // work.registers for work in works)  # subgroups
    n, lanes_n = max(work.n for work in works), 1
    widest = facts.subgroup_size // (lane.atom[0] if lane.atom else 1)
    while lanes_n <= widest and (lanes_n == 1 or lanes_n * lane.channels < 2 * n):
        covering = -(-n // (lanes_n * lane.channels))
        most = min(covering, facts.max_subgroups)
        counts = [subgroups for subgroups in dict.fromkeys((1, 2, 4, 8, covering)) if subgroups <= most]
        shapes = ((power_of_two(max(1, least // subgroups)), subgroups) for subgroups in counts)
        lanes = facts.subgroup_size // lanes_n, lanes_n
        if tiles := [LaneTile(lane, lanes, shape) for shape in shapes if prod(shape) <= room]:
            yield tiles
        lanes_n *= 2


def _clocks(works: list[_Work], tile: LaneTile, slices: int, facts: TargetFacts) -> float:
    """Return the clocks of all launches: one for each product, and one that reduces slices."""
    total = (len(works) - 1 + (slices > 1)) * float(tuning(facts).launch)
    units, stream = facts.compute_units, facts.compute_units * tuning(facts).stream_rate
    memory = tuning(facts).memory_share * facts.caches.memory_rate or stream
    for work in works:
        groups = work.tiles(tile) * slices
        blocks = -(-work.k // (tile.positions * slices)) if work.of_weights else 1
        workspace = (slices > 1) * 2 * groups * tile.n * work.sums
        times = (
            _issue(work, tile, -(-groups // units), blocks, facts),
            -(-groups // units) * prod(tile.subgroups) * blocks * _requests(work, tile, facts),
            _loads_of_line(work, tile, facts) * work.bytes / (units * tuning(facts).unit_rate),
            _memory_penalty(work, tile, facts) * work.bytes / memory + workspace / stream,
        )
        total += tuning(facts).load_latency + max(times) + tuning(facts).exposed * sum(times) + groups * _START
    return total


def _issue(work: _Work, tile: LaneTile, groups: int, blocks: int, facts: TargetFacts) -> float:
    """Return the clocks in which a unit issues `groups` workgroups; a row takes at least the latency of its loads."""
    core, count = facts.core, prod(tile.subgroups)
    waiting = -(-groups * count // core.simds)
    together = max(1, min(waiting, core.simd_registers // work.registers))
    messages = (work.messages + work.weight_messages) * tuning(facts).message
    operation = tuning(facts).vector_operation
    of_lane = max(messages + work.operations * operation, work.matrix)
    row = max(together * of_lane / work.rows, tuning(facts).load_latency)
    rounds = -(-waiting // together)
    return rounds * (blocks * work.rows * row + together * _reduction(work, tile) * operation)


def _reduction(work: _Work, tile: LaneTile) -> float:
    """Return the operations that reduce the sums of all lanes along positions."""
    if not work.of_weights:
        return 0.0
    return work.sums * (_EXCHANGE * (tile.lanes[0].bit_length() - 1) + 2 * tile.subgroups[0])


def _requests(work: _Work, tile: LaneTile, facts: TargetFacts) -> float:
    """Return the clocks in which the nearest cache answers a subgroup's messages."""
    lanes = tile.lanes[0] if work.along_m else tile.lanes[1]
    segment = tuning(facts).cache_segment
    segments = facts.subgroup_size // lanes * -(-lanes * work.contiguous * work.elem // segment)
    distinct = tile.lanes[1] * work.sharers * work.weight_bytes  # all lanes along positions read the same weights
    of_weights = max(tuning(facts).address_clocks, -(-distinct // segment))
    return work.messages * segments + work.weight_messages * of_weights


def _memory_penalty(work: _Work, tile: LaneTile, facts: TargetFacts) -> float:
    """Return the factor on the time of memory for narrow messages and for lines that neighbouring workgroups reread."""
    return 1 + _PENALTY * (work.narrowness - 1) + _PENALTY * (_loads_of_line(work, tile, facts) - 1)


def _loads_of_line(work: _Work, tile: LaneTile, facts: TargetFacts) -> float:
    """Return how many neighbouring workgroups load each cache line, on average."""
    row, line = tile.n * work.elem, facts.caches.line_bytes
    return 1.0 if work.along_m or tile.n >= work.n else -(-row // line) * line / row
