"""Cost of `convgen profile` beside a full simulation, and agreement of three models of convgen's own kernels.

The models are the closed form over problem and config, the chooser's clocks, and the profile of the executed kernel.

Ranks are Spearman's: over all kernels, and among the configs of one problem, on average. The regret is how much longer
than the quickest config of a problem, as profiled, the one takes that a model likes best.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import attrs
import numpy as np
from lib import entries
from lib.figures import Figure, best
from lib.products import Products
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import spearmanr

from convgen import driver
from convgen.backends.family import chips
from convgen.backends.target import get
from convgen.choose.choose import Candidate, candidates
from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.memory import View
from convgen.ir.record import as_dict
from convgen.plan.copies import ROWS, K, message_elems
from convgen.plan.plan import Plan
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul, Problem
from convgen.profile import launch_times
from convgen.run import prepared, verdict

TARGET, CHIP, CLOSED = "gfx942", "mi300x", "miopen/mi300x/f16"
DEMO = "mb1ic64ih14oc64oh14kh3ph1"
BUDGET = 3.0  #: times the simulation of the demo layer that its profile may take
PROBLEMS = (
    "mb1ic64ih56oc64oh56kh3ph1",
    "mb8ic64ih56oc64oh56kh3ph1",
    "mb8ic256ih14oc256oh14kh3ph1",
    "mb16ic512ih7oc512oh7kh3ph1",
    "mb8ic256ih28oc512oh28kh1",
    "1024x1024:1024x1024",
    "2048x512:512x2048",
    "8192x256:256x256",
)
_NEIGHBOURS = 4  #: of the result that a lane holds along N
_EACH, _AMONG = 5, 80  #: configs of a problem, evenly among the first so many that the chooser has


@attrs.frozen
class Row:
    """A kernel by three models."""

    problem: str
    config: str
    profiled: float  #: us
    closed: float  #: us
    chosen: float  #: the chooser's clocks
    bound: str


@attrs.frozen
class Agreement:
    """The agreement of a model's ranking of kernels with the profile's."""

    model: str
    rank: float
    rank_within: float  #: mean over problems
    regret: float  #: per cent, mean over problems


def parsed(line: str) -> Problem:
    return Matmul.parse(line, dt="f16") if ":" in line else Conv.parse(line, dir="FWD_D", dt="f16")


def demo() -> Iterator[Figure]:
    """Seconds of a profile of the demo layer, and of simulating it, both with instructions decoded before."""
    code = driver.compile(driver.build(Conv.parse(DEMO, dir="FWD_D", dt="f16"), TARGET))
    given = prepared.of_launches(code.record, code.object, DEMO)
    simulated = best(lambda: verdict.run(code), 3)
    profiled = best(lambda: launch_times.profile(given), 3)
    peer = "a strict simulation of all of its workgroups"
    yield Figure(peer, 1e3 * simulated, "ms")
    yield Figure("profile of the demo layer", 1e3 * profiled, "ms", peer, profiled / simulated, BUDGET)


def spread(problem: Problem, facts: TargetFacts) -> Iterator[Candidate]:
    """Configs of different tiles that multiply by matrix instructions, good ones and others."""
    seen = set()
    found = []
    for candidate in candidates(problem, facts):
        config = candidate.config
        if candidate.clocks and config.tile not in seen and config.slices == 1 and not config.reorder:
            seen.add(config.tile)
            found.append(candidate)
    some = found[:_AMONG]
    yield from (some[n] for n in np.linspace(0, len(some) - 1, 2 * _EACH).astype(int).tolist())


def rows(lines: Sequence[str]) -> Iterator[Row]:
    facts = get(TARGET).facts
    for line in track(lines, transient=True, console=Console(stderr=True)):
        problem, count = parsed(line), 0
        for candidate in spread(problem, facts):
            try:
                build = driver.build(problem, TARGET, config=candidate.config)
                code = driver.compile(build)
            except DoesNotFit:
                continue
            found = launch_times.profile(prepared.of_launches(code.record, code.object, line))
            assert build.plan is not None
            bound = found.longest.bound
            yield Row(line, code.config, found.total, closed(build.plan), candidate.score, bound)
            count += 1
            if count == _EACH:
                break


def closed(plan: Plan) -> float:
    """us of a plan's products by the closed form."""
    chip, terms = chips()[CHIP], entries.known()[CLOSED].terms
    return sum(float(of_part.estimate(chip, terms).total[0]) for of_part in _products(plan))


def _products(plan: Plan) -> Iterator[Products]:
    config, chunk = plan.config, plan.facts.chunk_bytes
    tile_m, tile_n, tile_k = config.tile
    waves_m, waves_n = config.waves
    for part in plan.parts:
        product = part.product
        numbers = {
            "rate": chips()[CHIP].rates["f16"],
            "m": product.m, "n": product.n, "k": product.k, "batch": product.batch,
            "tile_m": tile_m, "tile_n": tile_n, "tile_k": tile_k, "split": config.slices,
            "waves": config.subgroups, "waves_m": waves_m, "waves_n": waves_n,
            "elem": product.of_m.memory.elem.bytes, "result": product.result.memory.elem.bytes,
            "k_runs_m": message_elems(product.of_m, chunk, K) > 1,
            "k_runs_n": message_elems(product.of_n, chunk, K) > 1,
            "k_piece_m": math.inf, "launches": 1,
            "lane_m": _lane(product.of_m, chunk), "lane_n": _lane(product.of_n, chunk),
            "lane_out": min(chunk, _NEIGHBOURS * product.result.memory.elem.bytes),
            "others": 0, "other_groups": 0, "other_read": 0, "other_written": 0,
        }  # fmt: skip
        yield Products(**{name: np.array([float(value)]) for name, value in numbers.items()})


def _lane(view: View, chunk: int) -> int:
    """Bytes of an operand that a lane loads at a time."""
    return max(message_elems(view, chunk, axis) for axis in (K, ROWS)) * view.memory.elem.bytes


def agreement(model: str, found: Sequence[Row], of: Callable[[Row], float]) -> Agreement:
    """Return the agreement of one model with the profile."""
    groups = [[row for row in found if row.problem == line] for line in dict.fromkeys(row.problem for row in found)]
    ranks = [_rank(group, of) for group in groups if len(group) > 2]
    regrets = [min(group, key=of).profiled / min(row.profiled for row in group) - 1 for group in groups]
    return Agreement(model, _rank(found, of), float(np.mean(ranks)), 100 * float(np.mean(regrets)))


def _rank(found: Sequence[Row], of: Callable[[Row], float]) -> float:
    return float(spearmanr([of(row) for row in found], [row.profiled for row in found]).statistic)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=PROBLEMS, help="of which configs are compared")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    options = parser.parse_args()
    start = perf_counter()
    figures, found = list(demo()), list(rows(options.problems))
    models = {"closed form": lambda row: row.closed, "chooser": lambda row: row.chosen}
    agreements = [agreement(name, found, of) for name, of in models.items()]
    if options.json:
        parts: dict[str, list[Any]] = {"figures": figures, "rows": found, "agreements": agreements}
        told = {name: [as_dict(each) for each in some] for name, some in parts.items()}
        print(json.dumps({**told, "seconds": perf_counter() - start}, indent=2))
        return
    for f in figures:
        times = "" if f.times is None else f", {f.times:.2f} x {f.peer} (budget {f.budget:.2f})"
        print(f"{f.name}: {f.value:.0f} {f.unit}{times}")
    table = Table("problem", "config", "profiled us", "closed us", "chooser's clocks", "bound")
    for row in found:
        numbers = f"{row.profiled:.1f}", f"{row.closed:.1f}", f"{row.chosen:.0f}"
        table.add_row(row.problem, row.config, *numbers, row.bound)
    Console(width=160).print(table)
    table = Table("model", "rank", "rank within a problem", "regret %", title=f"{len(found)} kernels, as profiled")
    for a in agreements:
        table.add_row(a.model, f"{a.rank:.3f}", f"{a.rank_within:.2f}", f"{a.regret:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
