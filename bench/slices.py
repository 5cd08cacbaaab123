"""Modelled clocks of split-K, reduced by a second launch or within the launch, and of stream-K."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from convgen.backends.target import get
from convgen.choose.choose import Candidate, candidates, clocks_of
from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.order import Order
from convgen.ir.layout.turns import Persist, SharedOut
from convgen.ir.record import evolve
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul, Problem

PROBLEMS: dict[str, Problem] = {
    "3x3 512ch 7x7, mb32": Conv.parse("mb32ic512ih7oc512oh7kh3ph1", dir="FWD_D", dt="f16"),
    "1x1 256 to 64, weights, mb32": Conv.parse("mb32ic256ih56oc64oh56kh1ph0", dir="BWD_W", dt="f16"),
    "GEMM 5376x2048x4096": Matmul.parse("5376x4096:4096x2048", dt="f16"),
}
MOST = 64  #: slices that are tried


def ways(candidate: Candidate, facts: TargetFacts, meet: str) -> Iterator[Config]:
    """The config with any count of slices, or with a workgroup for each that a unit may hold."""
    whole = evolve(candidate.config, slices=1, sum="")
    if meet == "stream":
        for together in (1, 2, 3):
            persist = Persist(facts.compute_units * together, SharedOut.LAST)
            yield evolve(whole, map=Order(persist=persist))
        return
    for slices in range(1, MOST + 1):
        yield evolve(whole, slices=slices, sum=meet if slices > 1 else "")


def best(problem: Problem, facts: TargetFacts, meet: str) -> tuple[Config, float, float]:
    """The config of the fewest clocks, its clocks, and those in which parts of K meet."""
    found = []
    for candidate in [c for c in candidates(problem, facts) if c.clocks][:400]:
        for config in ways(candidate, facts, meet):
            clocks = clocks_of(problem, config, facts)
            if clocks is not None:
                found.append((clocks.total, clocks.slice_reduction, config))
    for total, reduction, config in sorted(found, key=lambda each: each[0]):
        try:
            make_plan(problem, config, facts)
        except DoesNotFit:
            continue
        return config, total, reduction
    raise DoesNotFit("no config fits")


def rows(facts: TargetFacts) -> Iterator[dict[str, str | float]]:
    for name, problem in PROBLEMS.items():
        for meet in ("launch", "last", "stream"):
            config, total, reduction = best(problem, facts, meet)
            yield {
                "problem": name,
                "meet": meet,
                "clocks": round(total),
                "of them meeting": round(reduction),
                "config": str(config),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="gfx942")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    found = list(rows(get(options.target).facts))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    table = Table(*found[0])
    for row in found:
        table.add_row(*map(str, row.values()))
    Console(width=170).print(table)


if __name__ == "__main__":
    main()
