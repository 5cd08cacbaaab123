"""Traffic of depthwise convolutions by lanes, beside the compulsory traffic: by instructions, into L2, from memory.

Elements are counted by the views that kernels are made from, workgroup by workgroup in the order of their launch, lines
of L2 through a cache that keeps what was used last. A unit's own cache is taken to keep what one workgroup uses.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Iterator
from math import prod

import attrs
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from convgen import driver
from convgen.backends.event_model.cache_traffic import count_misses
from convgen.backends.target import get
from convgen.ir.layout.memory import View
from convgen.plan.config import Config
from convgen.plan.lane_tile import LaneTile
from convgen.plan.plan import Plan, make_plan
from convgen.plan.window_views import Windows
from convgen.problem.conv import Conv

MIB = 2**20
_PROBLEMS = (
    "mb32g144ic144oc144ih56oh56kh3ph1",
    "mb32g32ic32oc32ih112oh112kh3ph1",
    "mb32g144ic144oc144ih56oh28kh3sh2ph1",
    "mb32g240ic240oc240ih28oh28kh5ph2",
    "mb32g96ic96oc96ih56oh56kh7ph3",
    "mb32g960ic960oc960ih7oh7kh3ph1",
)

Ids = npt.NDArray[np.int64]


@attrs.frozen
class Moved:
    """Bytes."""

    least: int  #: if each element is moved once
    asked: int  #: by instructions, of all lanes, that exists
    units: int  #: into units: lines that a workgroup uses
    fill: int  #: into all L2s, and results
    line: int


def moved(plan: Plan) -> Moved:
    """Return the bytes that the largest product moves."""
    part = max(plan.parts, key=lambda p: p.product.m * p.product.n)
    windows, tile, facts = part.product, plan.unit, plan.facts
    assert isinstance(windows, Windows)
    assert isinstance(tile, LaneTile)
    elem, line, dies = windows.of_m.memory.elem.bytes, facts.caches.line_bytes, facts.caches.dies
    caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(dies)]
    units = fill = asked = 0
    for number, (_, m, n, k) in enumerate(part.mapping.tiles()):
        block, blocks = (k, part.k_blocks) if windows.of_weights else (m, 1)
        for view, again in _read(windows, tile):
            found = _elements_of(view, windows, tile, (int(n), int(block), blocks))
            read = np.unique(found * elem // line)
            asked += int(len(found) * again) * elem
            units += len(read) * line
            # What the image has begins behind the source, in lines of its own.
            apart = 0 if view is windows.of_m else windows.of_m.memory.bytes // line + 1
            fill += count_misses(caches[number % dies], read + apart, facts.caches.l2_bytes // line) * line
    result = windows.m * windows.n * windows.result.memory.elem.bytes
    least = windows.of_m.memory.bytes + windows.of_n.memory.bytes + result
    weights = 0 if windows.of_weights else windows.of_n.memory.bytes
    if not windows.of_weights:
        asked += windows.m // tile.lane_part.positions * windows.n * windows.k * elem
    if plan.config.slices > 1:  # they leave sums, which a launch reads
        result += 2 * plan.config.slices * windows.m * windows.n * plan.acc_type.bytes
    return Moved(least, asked + result, units + result, fill + weights + result, line)


def _read(windows: Windows, tile: LaneTile) -> Iterator[tuple[View, float]]:
    """The source, and the image if that is read, with how often lanes ask for each of their places."""
    taps = [1 if n < windows.looped else w.taps for n, w in enumerate(windows.axes)]
    turns = 1 if windows.of_weights else windows.products // (prod(taps) * windows.ins)
    rows = prod(len(w.reads(range(t))) for w, t in zip(windows.axes[:-1], taps))
    seen = prod(windows.of_m.extent(axis) for axis in range(2, len(windows.of_m.axes)))
    yield windows.of_m, turns * rows * windows.axes[-1].places(taps[-1]) / seen
    if windows.of_weights:
        yield windows.of_n, 1.0


def _elements_of(view: View, windows: Windows, tile: LaneTile, at: tuple[int, int, int]) -> Ids:
    """The elements that a workgroup reads: those of tile n, and so many blocks of positions from one on."""
    n, block, blocks = at
    channels, positions = tile.n, tile.positions * blocks
    if view is windows.of_m:
        channels, positions = channels // windows.outs * windows.ins, positions // tile.lane_part.positions
    spaces = channels, positions, *(view.extent(axis) for axis in range(2, len(view.axes)))
    index = list(np.ogrid[tuple(slice(size) for size in spaces)])
    index[0], index[1] = index[0] + n * channels, index[1] + block * positions
    offsets, there = _elements(view, index)
    return offsets[there]


def _elements(view: View, at: list[Ids]) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Elements of memory at positions of a view's axes, and which of them exist."""
    dims = {name: x for axis, position in enumerate(at) for name, x in view.decode(axis, position).items()}
    there = np.logical_and.reduce(np.broadcast_arrays(*(dims[d.name] < d.size for axis in view.axes for d in axis)))
    index = [t.at(dims) for t in view.index]
    for i, t in zip(index, view.index):
        there = there & (i >= 0) & (i < t.size)
    return np.broadcast_to(view.layout.offset(index), there.shape), there


def _plan(problem: Conv, target: str) -> Plan:
    """Return the plan of the config that compiles."""
    config = driver.compile(driver.build(problem, target)).config
    return make_plan(problem, Config.parse(config), get(target).facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", default=_PROBLEMS)
    for name, value in (("target", "gfx942"), ("dt", "f16"), ("dir", "FWD_D"), ("tag", "axb")):
        parser.add_argument(f"--{name}", default=value)
    options = parser.parse_args()
    columns = "MiB at least", "asked for", "x least", "into units", "into L2, and results", "x least"
    table = Table("problem", "config", *columns)
    for line in options.problems:
        problem = Conv.parse(line, dir=options.dir, dt=options.dt, stag=options.tag, dtag=options.tag)
        plan = _plan(problem, options.target)
        if not isinstance(plan.unit, LaneTile):
            table.add_row(problem.descriptor, str(plan.config), "by matrix instructions")
            continue
        found = moved(plan)
        least, asked, units, fill = (
            f"{size / MIB:.1f}" for size in (found.least, found.asked, found.units, found.fill)
        )
        often = f"{found.asked / found.least:.2f}", f"{found.fill / found.least:.3f}"
        table.add_row(problem.descriptor, str(plan.config), least, asked, often[0], units, fill, often[1])
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
