"""Configs by which lanes compute depthwise convolutions, with the clocks of a closed form.

A launch takes what memory takes, or what the instructions of all subgroups do, whichever is longer. What is assumed
was chosen so that rankings come out well, and measured nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as combinations
from math import gcd, prod

import attrs

from convgen.ir.error import DoesNotFit, Unsupported
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.order import IN_ROWS, Order
from convgen.ir.layout.walks import Xcc
from convgen.ir.types import scalar
from convgen.plan.config import Config, Own
from convgen.plan.copies import power_of_two
from convgen.plan.windows import LaneTile, Windows, refusal, windows
from convgen.problem.conv import Conv
from convgen.problem.matmul import Problem

_POSITIONS = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (4, 4))  #: of a lane, along the last two axes of space
_GROUPS = (1, 2, 4, 8, 16)  #: of a lane
_MOST_CHANNELS = 16  #: of a lane
_MOST_OTHERS = 8  #: channels of a group on the side that has several
_MOST_PRODUCTS = 2048  #: of a lane, in straight-line code
_SUBGROUPS = 4  #: that a workgroup has at least
_OTHER_REGISTERS = 24  #: registers; addresses and masks
_SEGMENT = 64  #: bytes side by side that the nearest cache gives at once; assumed
_OPERATION = 4  #: clocks; of an operation of the vector unit; assumed
_PENALTY = 0.1  #: of the clocks of memory, for each time that messages are narrower or lines are shared; assumed
_START = 1e-4  #: clocks; spread over all units, so that fewer and fuller tiles win ties


def is_depthwise(problem: Problem) -> bool:
    """Whether groups have one channel on one side and few on the other, in a direction that sums over windows."""
    if not isinstance(problem, Conv) or refusal(problem):
        return False
    one, few = sorted(_channels(problem))
    return problem.groups > 1 and one == 1 and few <= _MOST_OTHERS


def configs(problem: Problem, facts: TargetFacts, moved: tuple[str, ...]) -> Iterator[tuple[float, Config]]:
    """(clocks of all launches, config) of a depthwise convolution; none of other problems."""
    if not isinstance(problem, Conv) or not is_depthwise(problem):
        return
    most = facts.chunk_bytes // scalar(problem.factors[0].dtype).bytes
    outs, ins = _channels(problem)
    taps = (prod(a.k for a in problem.axes[n:]) for n in range(len(problem.axes) + 1))
    for groups, positions, unrolled in combinations(_GROUPS, _POSITIONS, dict.fromkeys(taps)):
        own = Own(groups * outs, *positions)
        if groups > most or own.channels > _MOST_CHANNELS or unrolled * prod(own) > _MOST_PRODUCTS:
            continue
        config = Config((1, 1, unrolled * ins), (1, 1), own, 0, "fused", reorder=moved)
        try:
            parts = windows(problem, own, config, facts.chunk_bytes)
        except (DoesNotFit, Unsupported):
            continue
        works = [_Work.of(part, own, facts) for part in parts]
        if works and max(work.registers for work in works) <= facts.registers:
            yield from ((_clocks(works, tile, facts), _with(config, tile, facts)) for tile in _tiles(works, own, facts))


def _channels(problem: Conv) -> tuple[int, int]:
    """Channels of a group: of what is computed, and of what is read."""
    outs, ins = problem.oc // problem.groups, problem.ic // problem.groups
    return (outs, ins) if problem.direction.is_forward else (ins, outs)


def _with(config: Config, tile: LaneTile, facts: TargetFacts) -> Config:
    """Neighbours share halos, and lines of memory: they go to the same die."""
    dies = facts.caches.xcds
    order = Order((Xcc(dies),)) if dies > 1 else IN_ROWS
    return attrs.evolve(config, tile=(tile.m, tile.n, config.tile[2]), waves=tile.subgroups, map=order)


@attrs.frozen
class _Work:
    """What a lane does for one product, whatever the tile."""

    part: Windows
    m: int
    n: int
    bytes: int  #: that the launch reads and writes if each comes once
    elem: int  #: bytes
    narrow: float  #: how often messages of the source go into the widest ones
    side: int  #: elements of a lane that are side by side in memory
    messages: int  #: of the source and the result
    weights: int  #: messages
    operations: float  #: of the vector unit
    registers: int

    @classmethod
    def of(cls, part: Windows, own: Own, facts: TargetFacts) -> _Work:
        elem = part.of_m.memory.elem.bytes
        wide = facts.chunk_bytes // elem
        taps = [1 if n < part.looped else w.taps for n, w in enumerate(part.axes)]
        turns = part.k // (prod(taps) * part.ins)
        rows = prod(len(w.reads(range(t))) for w, t in zip(part.axes[:-1], taps))
        places, sources = part.axes[-1].places(taps[-1]), own.channels // part.outs * part.ins
        run = part.run if part.run > 1 else gcd(sources, wide, part.of_m.extent(0))
        held = own.channels * prod(taps) * part.ins
        stored = gcd(own.columns, wide) if part.runs_along_m else gcd(own.channels, wide, part.n)
        return cls(
            part, part.m, part.n,
            bytes=part.of_m.memory.bytes + part.of_n.memory.bytes + part.m * part.n * part.result.memory.elem.bytes,
            elem=elem, narrow=wide / run, side=own.columns if part.runs_along_m else own.channels,
            messages=turns * rows * places * sources // run + own.channels * own.positions // stored,
            weights=turns * -(-held // (wide if part.flat else 1)),
            operations=turns * (held * own.positions + rows * places * sources + held),
            registers=prod(own) + part.registers(own) + _OTHER_REGISTERS,
        )  # fmt: skip


def _tiles(works: list[_Work], own: Own, facts: TargetFacts) -> Iterator[LaneTile]:
    """Those not much wider than there are channels, by powers of two and by what covers all of them."""
    n, lanes = max(work.n for work in works), 1
    while lanes <= facts.subgroup_size and (lanes == 1 or lanes * own.channels < 2 * n):
        covering = -(-n // (lanes * own.channels))
        for subgroups in dict.fromkeys((1, 2, 4, 8, covering)):
            if subgroups <= min(covering, facts.max_subgroups):
                down = power_of_two(max(1, _SUBGROUPS // subgroups))
                yield LaneTile(own, (facts.subgroup_size // lanes, lanes), (down, subgroups))
        lanes *= 2


def _clocks(works: list[_Work], tile: LaneTile, facts: TargetFacts) -> float:
    """Of all launches, one for each product."""
    total = (len(works) - 1) * float(facts.costs.launch)
    for work in works:
        groups, count = -(-work.m // tile.m) * -(-work.n // tile.n), prod(tile.subgroups)
        one = count * _subgroup(work, tile, facts) / min(count, facts.core.simds)
        issue = -(-groups // facts.compute_units) * one
        memory = _worse(work, tile, facts) * work.bytes / (facts.compute_units * facts.costs.stream_rate)
        total += facts.costs.load_latency + max(issue, memory) + facts.costs.exposed * (issue + memory)
        total += groups * _START
    return total


def _worse(work: _Work, tile: LaneTile, facts: TargetFacts) -> float:
    """How much longer memory takes where messages are narrow, or workgroups beside each other share lines."""
    row, line = tile.n * work.elem, facts.caches.line_bytes
    shared = 1.0 if work.part.runs_along_m or tile.n >= work.n else -(-row // line) * line / row
    return 1 + _PENALTY * (work.narrow - 1) + _PENALTY * (shared - 1)


def _subgroup(work: _Work, tile: LaneTile, facts: TargetFacts) -> float:
    """The clocks in which a subgroup's instructions are issued."""
    lanes = tile.lanes[0] if work.part.runs_along_m else tile.lanes[1]
    segments = facts.subgroup_size // lanes * -(-lanes * work.side * work.elem // _SEGMENT)
    messages = work.messages * max(facts.costs.message, segments) + work.weights * facts.costs.message
    return messages + work.operations * _OPERATION
