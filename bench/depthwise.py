"""What depthwise convolutions by lanes read and write, beside what they must: by instructions, into L2, from memory.

Elements are counted by the views that kernels are made from, workgroup by workgroup in the order of their launch, lines
of L2 through a cache that keeps what was used last. A unit's own cache is taken to keep what one workgroup uses.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from math import prod

import attrs
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from convgen.backends.target import get
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.memory import View
from convgen.plan.choose import candidates, first_fitting
from convgen.plan.plan import Plan
from convgen.plan.windows import LaneTile, Windows
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
    asked: int  #: by instructions, of all lanes
    units: int  #: into units: lines that a workgroup uses
    fill: int  #: into all L2s, and results
    line: int

    @property
    def ratio(self) -> float:
        return self.fill / self.least


def moved(plan: Plan) -> Moved:
    """Of the largest product."""
    part = max(plan.parts, key=lambda p: p.product.m * p.product.n)
    windows, tile, facts = part.product, plan.unit, plan.facts
    assert isinstance(windows, Windows)
    assert isinstance(tile, LaneTile)
    line, dies = facts.caches.line_bytes, facts.caches.xcds
    caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(dies)]
    units = fill = 0
    for number, (_, m, n, _) in enumerate(part.mapping.tiles()):
        read = _lines(windows, tile, int(m), int(n), line)
        units += len(read) * line
        fill += _missed(caches[number % dies], read, facts.caches.l2_bytes // line) * line
    result = windows.m * windows.n * windows.result.memory.elem.bytes
    weights = windows.of_n.memory.bytes
    least = windows.of_m.memory.bytes + weights + result
    return Moved(least, _asked(plan, windows, tile) + result, units + result, fill + weights + result, line)


def _lines(windows: Windows, tile: LaneTile, m: int, n: int, line: int) -> Ids:
    """The lines of the source that a workgroup reads."""
    view, own = windows.of_m, tile.own
    sources, blocks = tile.n // windows.outs * windows.ins, tile.m // own.positions
    spaces = sources, blocks, *(view.extent(axis) for axis in range(2, len(view.axes)))
    at = list(np.ogrid[tuple(slice(size) for size in spaces)])
    at[0], at[1] = at[0] + n * sources, at[1] + m * blocks
    offsets, there = _elements(view, at)
    return np.unique(offsets[there] * view.memory.elem.bytes // line)


def _elements(view: View, at: list[Ids]) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Elements of memory at positions of a view's axes, and which of them exist."""
    dims = {name: x for axis, position in enumerate(at) for name, x in view.decode(axis, position).items()}
    there = np.logical_and.reduce(np.broadcast_arrays(*(dims[d.name] < d.size for axis in view.axes for d in axis)))
    index = [t.at(dims) for t in view.index]
    for i, t in zip(index, view.index):
        there = there & (i >= 0) & (i < t.size)
    return np.broadcast_to(view.layout.offset(index), there.shape), there


def _missed(cache: OrderedDict[int, None], lines: Ids, most: int) -> int:
    """How many lines a cache has not; it then has them."""
    missed = 0
    for number in lines.tolist():
        if number in cache:
            cache.move_to_end(number)
            continue
        missed += 1
        cache[number] = None
        if len(cache) > most:
            cache.popitem(last=False)
    return missed


def _asked(plan: Plan, windows: Windows, tile: LaneTile) -> int:
    """What instructions of all lanes ask for."""
    lanes = prod(plan.parts[0].mapping.counts) * plan.subgroups * plan.facts.subgroup_size
    taps = [1 if n < windows.looped else w.taps for n, w in enumerate(windows.axes)]
    turns = windows.k // (prod(taps) * windows.ins)
    rows = prod(len(w.reads(range(t))) for w, t in zip(windows.axes[:-1], taps))
    places, sources = windows.axes[-1].places(taps[-1]), tile.own.channels // windows.outs * windows.ins
    elems = turns * rows * places * sources + tile.own.channels * windows.k
    return lanes * elems * windows.of_m.memory.elem.bytes


def _plan(problem: Conv, facts: TargetFacts) -> Plan:
    fitting = first_fitting(problem, candidates(problem, facts), facts)
    assert fitting is not None
    return fitting[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", default=_PROBLEMS)
    for name, value in (("target", "gfx942"), ("dt", "f16"), ("dir", "FWD_D"), ("tag", "axb")):
        parser.add_argument(f"--{name}", default=value)
    options = parser.parse_args()
    table = Table("problem", "config", "MiB at least", "asked for", "into units", "into L2, and results", "x least")
    for line in options.problems:
        problem = Conv.parse(line, dir=options.dir, dt=options.dt, stag=options.tag, dtag=options.tag)
        plan = _plan(problem, get(options.target).facts)
        if not isinstance(plan.unit, LaneTile):
            table.add_row(problem.descriptor, str(plan.config), "by matrix instructions")
            continue
        found = moved(plan)
        sizes = (f"{size / MIB:.1f}" for size in (found.least, found.asked, found.units, found.fill))
        table.add_row(problem.descriptor, str(plan.config), *sizes, f"{found.ratio:.3f}")
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
