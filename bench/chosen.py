"""Measure how much slower the chooser's config is than the fastest timed one, by the model of whole launches.

Problems are drawn from `tests/data/problems` and at random, in all directions and as matrix products, without those of
`whole.py`. For each problem, `--configs` configs are timed: the chooser's best, and the best of other kinds. FILE keeps
the times, so that after a change of the chooser only its new choices are timed. `--part fit` selects problems to tune
the chooser on, `--part test` problems to judge it by.

    python bench/chosen.py times.jsonl --target gfx950 --count 16 --part fit
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from convgen.backends.target import get
from convgen.choose.choose import Candidate, candidates
from convgen.ir.error import ConvgenError, DoesNotFit
from convgen.ir.layout.order import IN_ROWS
from convgen.ir.record import evolve
from convgen.ir.types import scalar
from convgen.plan.config import Config
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul, Problem
from convgen.profile import summary
from convgen.tune import trials

LISTED = Path(__file__).parents[1] / "tests/data/problems/resnet_and_others.txt"
PARTS = {"fit": 0, "test": 1}  #: problems of even and of odd numbers
_TAGS = {"stag": "axb", "wtag": "axb", "dtag": "axb"}
_DIRECTIONS = "FWD_D", "FWD_D", "BWD_D", "BWD_W"
_CHANNELS = 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024
_SIDES = 7, 8, 14, 17, 20, 28, 35, 40, 56
_KERNELS = 1, 1, 3, 3, 3, 5
_BATCHES = 1, 2, 4, 8, 16, 32, 64
_EXTENTS = 64, 128, 196, 256, 384, 512, 768, 1000, 1024, 2048, 3072, 4096
_MACS = 1e7, 4e9  #: of a problem, so that one config is timed in a second or two
_BYTES = 1 << 28  #: of its tensors, at most
_OF_GROUP = 1, 1, 4, 8, 16, 32, 64  #: channels of a group, on either side

Row = dict[str, Any]


def problems(seed: int) -> Iterator[Problem]:
    """Layers, some of them in groups, and products by turns, every third one that is listed; without end."""
    random = Random(seed)
    lines = [line for line in LISTED.read_text().splitlines() if line[:1] not in ("", "#")]
    listed = [line.partition('n"')[0].rstrip("_") for line in lines]
    seen = set()
    for number in range(1 << 16):
        drawn = (_layer, _product, _grouped, _layer)[number % 4](random)
        if number % 3 == 2:
            drawn = _with_batch(random.choice(listed), random)
        if _MACS[0] <= drawn.macs <= _MACS[1] and _bytes(drawn) <= _BYTES and str(drawn) not in seen:
            seen.add(str(drawn))
            yield drawn


def _layer(random: Random) -> Problem:
    return _of_channels("", random.choice(_CHANNELS), random.choice(_CHANNELS), random)


def _grouped(random: Random) -> Problem:
    channels, each = random.choice(_CHANNELS), random.choice(_OF_GROUP)
    groups = max(2, channels // each)
    return _of_channels(f"g{groups}", groups * each, groups * each, random)


def _of_channels(groups: str, ic: int, oc: int, random: Random) -> Problem:
    side, kernel, stride = random.choice(_SIDES), random.choice(_KERNELS), random.choice((1, 1, 1, 2))
    out = (side - 1) // stride + 1
    line = f"ic{ic}ih{side}oc{oc}oh{out}kh{kernel}ph{kernel // 2}" + (f"sh{stride}" if stride > 1 else "")
    return _with_batch(groups + line, random)


def _with_batch(line: str, random: Random) -> Problem:
    """A layer in channels last, some direction and type, with a batch of its own."""
    line = re.sub(r"mb\d+_?", "", line)
    direction = random.choice(_DIRECTIONS)
    types = ("f16", "f16", "bf16", "s8:s8:s8") if direction == "FWD_D" else ("f16", "bf16")
    return Conv.parse(f"mb{random.choice(_BATCHES)}_{line}", dir=direction, dt=random.choice(types), **_TAGS)


def _product(random: Random) -> Problem:
    m, n, k = (random.choice(_EXTENTS) for _ in range(3))
    return Matmul.parse(
        f"{m}x{k}:{k}x{n}", dt=random.choice(("f16", "bf16", "s8:s8:s32")), wtag=random.choice(("ab", "ba"))
    )


def _bytes(problem: Problem) -> int:
    return sum(t.layout.size_elems * scalar(t.dtype).bytes for t in problem.tensors)


# ---------------------------------------------------------------- times


class Times:
    """The times in a file, a line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows = {self._key(row): row for row in map(json.loads, lines)}

    def _key(self, row: Row) -> tuple[str, str, str]:
        return row["problem"], row["target"], row["config"]

    def of(self, problem: Problem, target: str) -> list[Row]:
        """Return the known times of a problem by config."""
        wanted = str(problem), target
        return [row for key, row in self.rows.items() if key[:2] == wanted and row["us"] is not None]

    def add(self, problem: Problem, target: str, config: Config) -> None:
        """Time a config, if that is not known."""
        row: Row = {"problem": str(problem), "target": target, "config": str(config), "us": None}
        if self._key(row) in self.rows:
            return
        try:
            found = summary.times(trials.compiled(problem, target, config))
        except DoesNotFit as error:
            row["error"] = str(error)
        else:
            causes = {cause: round(us, 3) for cause, us in found.longest.causes.items()}
            row |= {"us": round(found.total, 4), "bound": found.longest.bound, "causes": causes}
        self.rows[self._key(row)] = row
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


# ---------------------------------------------------------------- the chooser's


@attrs.frozen
class Found:
    """The result of a problem: the chooser's config and the fastest timed one, each with the chooser's score."""

    problem: str
    chosen: Row
    best: Row
    scores: tuple[Candidate, Candidate | None]

    @property
    def ratio(self) -> float:
        return float(self.chosen["us"] / self.best["us"])


def judge(problem: Problem, target: str, count: int, times: Times) -> Found | None:
    """Return the result of a problem; None if no config can be timed."""
    tried = trials.worth_timing(problem, target, count)
    for config in tried:
        times.add(problem, target, config)
    known = times.of(problem, target)
    fitting = {row["config"]: row for row in known}
    chosen = next((fitting[str(config)] for config in tried if str(config) in fitting), None)
    if chosen is None:
        return None
    best = min(known, key=lambda row: row["us"])
    ranked = {_without_map(c.config): c for c in candidates(problem, get(target).facts)}
    chosen_score, best_score = (ranked.get(_without_map(Config.parse(row["config"]))) for row in (chosen, best))
    assert chosen_score is not None
    return Found(str(problem), chosen, best, (chosen_score, best_score))


def _without_map(config: Config) -> Config:
    return evolve(config, map=IN_ROWS)


def _terms_text(row: Row, candidate: Candidate | None) -> str:
    """Return a text of the chooser's terms in thousands of clocks, and the profile's times in us."""
    causes = sorted(row["causes"].items(), key=lambda cause: -cause[1])[:2]
    profiled = " ".join(f"{name} {us:.1f}" for name, us in causes)
    if candidate is None or candidate.clocks is None:
        return f"{profiled}"
    c = candidate.clocks
    parts = {name: getattr(c, name) * c.blocks * (c.rounds * c.together + c.remaining) for name in _COUNTED}
    most = sorted(parts.items(), key=lambda part: -part[1])[:2]
    counted = " ".join(f"{name} {clocks / 1000:.1f}" for name, clocks in most)
    return f"{candidate.score / 1000:.1f}k: {counted}, besides {c.slice_reduction / 1000:.1f} | {profiled}"


_COUNTED = "matrix", "shared", "loading", "issue"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE", nargs="?", help="where times are kept; by default nowhere")
    parser.add_argument("--target", action="append", metavar="NAME", help="default: gfx942 and gfx950")
    parser.add_argument("--count", type=int, default=4, help="problems a target")
    parser.add_argument("--configs", type=int, default=8, help="configs a problem")
    parser.add_argument("--part", choices=sorted(PARTS), help="only these problems")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object a problem instead of a table")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        times = Times(Path(options.file or f"{folder}/times.jsonl"))
        for target in options.target or ("gfx942", "gfx950"):
            _report(options, target, times)


def _report(options: argparse.Namespace, target: str, times: Times) -> None:
    drawn = problems(options.seed)
    if options.part is not None:
        drawn = islice(drawn, PARTS[options.part], None, 2)
    found = []
    for problem in track(list(islice(drawn, options.count)), target, transient=True, console=Console(stderr=True)):
        try:
            each = judge(problem, target, options.configs, times)
        except ConvgenError as error:
            print(f"{problem}: {error}")
            continue
        if each is None:
            continue
        found.append(each)
        if options.json:
            print(
                json.dumps({"target": target, "ratio": each.ratio, "chosen": each.chosen, "best": each.best}),
                flush=True,
            )
    mean = float(np.exp(np.mean([np.log(each.ratio) for each in found])))
    if options.json:
        return
    table = Table("problem", "us", "ratio", "config", "score: parts | profile", title=target)
    for each in found:
        for row, candidate, first in zip((each.chosen, each.best), each.scores, (True, False)):
            if first or each.ratio > 1:
                name, ratio = (each.problem, f"{each.ratio:.3f}") if first else ("", "")
                table.add_row(name, f"{row['us']:.1f}", ratio, row["config"], _terms_text(row, candidate))
    Console(width=240).print(table)
    print(f"{target}: chosen / best {mean:.3f} in the geometric mean of {len(found)} problems")


if __name__ == "__main__":
    main()
