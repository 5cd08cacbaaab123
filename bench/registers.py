"""Error of the register estimate against allocation, for configs drawn at random.

Problems are those of `chosen.py`; of each, `--configs` are drawn from its candidates, half of them from the best ones.
Kernels whose order had to stay as written since they would not fit otherwise are counted, but not compared.

    python bench/registers.py --target gfx950 --count 16 --configs 12
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random

import attrs
import numpy as np
from chosen import problems
from rich.console import Console
from rich.progress import track
from rich.table import Table

from convgen import driver
from convgen.backends.target import get
from convgen.choose.choose import candidates
from convgen.ir.error import ConvgenError
from convgen.plan.config import Config
from convgen.plan.variants.variant import variant_of
from convgen.problem.matmul import Problem

_BEST = 100  #: candidates, of which half of the configs are
_VECTORS = re.compile(r"[av]gpr|grf")  #: classes of vector registers
_AS_WRITTEN = "as written"  #: says a kernel whose order was not changed for want of registers


@attrs.frozen
class Row:
    """The registers of a lane of one config's product."""

    kind: str
    estimated: int
    taken: int


def drawn(problem: Problem, target: str, count: int, random: Random) -> Iterator[Config]:
    """Configs with matrix instructions; a few of them may be the same."""
    ranking = candidates(problem, get(target).facts)
    for number in range(count):
        config = ranking[random.randrange(min(len(ranking), _BEST) if number % 2 else len(ranking))].config
        if isinstance(config.mma, tuple):
            yield config


def measured(problem: Problem, target: str, config: Config) -> Row | None:
    """Return the registers of a config; None if its kernel does not fit, or had to keep its order as written."""
    try:
        build = driver.build(problem, target, config)
        code = driver.compile(build)
    except ConvgenError:
        return None
    if _AS_WRITTEN in code.asm or build.plan is None:
        return None
    kernels = (kernel.registers for kernel in code.kernels.values())
    taken = max(sum(n for name, n in each.items() if _VECTORS.fullmatch(name)) for each in kernels)
    blocks = min(part.k_blocks for part in build.plan.parts)
    return Row(_kind(config, blocks), build.plan.registers, taken)


def _kind(config: Config, blocks: int) -> str:
    if (blocks - config.staging.depth) // config.staging.round < 2:
        return "short sums"
    if variant_of(config).by_taps:
        return "resident windows"
    return "copies without registers" if config.copy else "one slot" if config.slots == 1 else "several slots"


def report(target: str, rows: Sequence[Row]) -> Table:
    table = Table("kind", "kernels", "taken", "estimate - taken: mean", "mean of |.|", "median of |.|", title=target)
    for kind in (*sorted({row.kind for row in rows}), "all"):
        of_kind = [row for row in rows if kind in (row.kind, "all")]
        off = np.array([row.estimated - row.taken for row in of_kind])
        taken = np.mean([row.taken for row in of_kind])
        figures = f"{taken:.0f}", f"{off.mean():+.0f}", f"{abs(off).mean():.0f}", f"{np.median(abs(off)):.0f}"
        table.add_row(kind, str(len(of_kind)), *figures)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", metavar="NAME", help="default: gfx942 and gfx950")
    parser.add_argument("--count", type=int, default=4, help="problems a target")
    parser.add_argument("--configs", type=int, default=8, help="configs a problem")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for target in options.target or ("gfx942", "gfx950"):
        random, rows, tried = Random(options.seed), [], 0
        of = islice(problems(options.seed), options.count)
        for problem in track(list(of), target, transient=True, console=Console(stderr=True)):
            for config in drawn(problem, target, options.configs, random):
                tried += 1
                row = measured(problem, target, config)
                rows += [row] if row else []
        Console(width=100).print(report(target, rows))
        print(f"{target}: {tried - len(rows)} of {tried} do not fit, or only in the order as written")


if __name__ == "__main__":
    main()
