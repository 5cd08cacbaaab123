"""Useful share of matrix instructions in a grouped convolution: ResNeXt's 3x3, 32 groups.

The useful share is the multiply-adds of the convolution over those that the fastest instruction on the same types could
do in the clocks of all matrix instructions of a launch. Padding of tiles, of K and of channels counts as waste, and so
does an instruction of less than the full rate.
"""

from __future__ import annotations

import argparse
from math import prod

from rich.console import Console
from rich.table import Table

from convgen import driver
from convgen.backends.target import get
from convgen.ir.layout.mma import MmaTile
from convgen.plan.atoms import input_atoms
from convgen.plan.config import Config
from convgen.plan.plan import Part, Plan, make_plan
from convgen.plan.window_views import Windows
from convgen.problem.conv import Conv

_LAYERS = tuple(
    f"mb32g32ic{32 * channels}oc{32 * channels}ih{size}oh{size}kh3ph1"
    for channels, size in ((4, 56), (8, 28), (16, 14), (32, 7))
)


def share(plan: Plan) -> float:
    """The useful share of all products of a plan; 0 without matrix instructions."""
    problem = plan.problem
    assert isinstance(problem, Conv)
    axes, channels = problem.axes, problem.oc * problem.ic // problem.groups
    wanted = problem.mb * channels * prod(a.o * a.k for a in axes)  # taps in the padding of images counted
    clocks = sum(_clocks(plan, part) for part in plan.parts)
    fastest = max(atom.n * atom.m * atom.k / atom.clocks for atom in input_atoms(problem, plan.facts))
    return wanted / (clocks * fastest) if clocks else 0.0


def _clocks(plan: Plan, part: Part) -> float:
    """Return the clocks of all matrix instructions of a product, one after the other."""
    workgroups = prod(part.mapping.counts)
    if isinstance(plan.unit, MmaTile):
        mma = plan.unit
        each = mma.tiles_n * mma.tiles_m * mma.parts * mma.steps * mma.teams_n * mma.teams_m * mma.teams_k
        return workgroups * each * part.k_blocks * mma.atom.clocks
    windows, atom, own = part.product, plan.unit.atom, plan.unit.lane_part
    assert isinstance(windows, Windows)
    products = own.size * windows.products
    return workgroups * plan.subgroups * products / (atom.side * atom.k) * atom.clocks if atom else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", default=_LAYERS)
    for name, value in (("target", "gfx942"), ("dt", "f16"), ("dir", "FWD_D")):
        parser.add_argument(f"--{name}", default=value)
    options = parser.parse_args()
    table = Table("problem", "config", "useful share")
    for line in options.problems:
        problem = Conv.parse(line, dir=options.dir, dt=options.dt)
        config = driver.compile(driver.build(problem, options.target)).config
        found = share(make_plan(problem, Config.parse(config), get(options.target).facts))
        table.add_row(problem.descriptor, config, f"{found:.3f}" if found else "no matrix instructions")
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
