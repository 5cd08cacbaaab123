"""Efficiency of whole kernels by `convgen profile`: the least time that the chip needs over the predicted time.

The least time is that of the useful multiply-adds on all matrix units at the clock that the model gives the kernel, or
that of reading inputs and writing the result once at the memory's rate, whichever is longer. The predicted time is that
of all launches of a problem without the costs that no kernel avoids in the model: the start of the first launch, and
the write-back of caches after the last one. `of all` includes these costs.

With --loops FOLDER, whose tool `hotloop.py` counts how busy a code object's loop keeps the matrix unit, each case is
compiled with several configs instead. The config with the busiest loop is listed beside the chooser's: where it is
slower by the profile, the two models disagree.

    python bench/whole.py --target gfx942 --only BWD_W --loops FOLDER --configs 30
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from convgen import driver
from convgen.backends.target import get
from convgen.ir.error import UserError
from convgen.ir.record import as_dict
from convgen.ir.types import scalar
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul, Problem
from convgen.profile import launch_times as launches
from convgen.profile.launch_times import Times
from convgen.run import prepared
from convgen.tune import trials

_TAGS = {"stag": "axb", "wtag": "axb", "dtag": "axb"}
LAYERS = {
    "3x3 64ch": "mb32ic64ih56oc64oh56kh3ph1",
    "3x3 s2": "mb32ic128ih56oc128oh28kh3sh2ph1",
    "1x1": "mb32ic256ih56oc64oh56kh1",
    "3x3 256ch": "mb32ic256ih14oc256oh14kh3ph1",
    "3x3 512ch": "mb32ic512ih7oc512oh7kh3ph1",
    "stem": "mb32ic3ih224oc64oh112kh7sh2ph3",
}
DIRECTIONS = "FWD_D", "BWD_D", "BWD_W"
BYTES = "3x3 64ch", "3x3 256ch", "3x3 512ch"  #: layers that are taken in s8, too
PRODUCT = "4096x4096:4096x4096"
_TYPES = {"f16": "f16", "s8": "s8:s8:s8"}


@attrs.frozen
class Case:
    """A problem by its name."""

    name: str
    direction: str
    dtype: str

    @property
    def title(self) -> str:
        return f"{self.name} {self.direction} {self.dtype}"

    @property
    def problem(self) -> Problem:
        if self.name == "GEMM":
            return Matmul.parse(PRODUCT, dt=self.dtype, wtag="ba")
        return Conv.parse(LAYERS[self.name], dir=self.direction, dt=_TYPES[self.dtype], **_TAGS)


CASES = (
    *(Case(name, direction, "f16") for direction in DIRECTIONS for name in LAYERS),
    *(Case(name, "FWD_D", "s8") for name in BYTES),
    Case("GEMM", "-", "f16"),
)


@attrs.frozen
class Row:
    """A case with its kernel's time."""

    case: Case
    config: str
    us: float
    ideal_us: float
    share: float
    share_of_all: float
    matrix: float  #: share of the matrix pipe in use in the longest launch's kernel
    launches: int
    bound: str


def ideal_us(problem: Problem, times: Times, target: str) -> float:
    """Return the least time of a problem: of its multiply-adds or of its memory traffic, us."""
    chip, caches = times.chip, get(target).facts.caches
    rate = chip.rates[problem.factors[0].dtype] * chip.units * times.longest.clock
    tensors = (*problem.factors, *problem.outputs)
    moved = sum(t.layout.size_elems * scalar(t.dtype).bytes for t in tensors)
    return max(2 * problem.macs / rate, moved / (caches.memory_rate * chip.clock))


def fixed_us(problem: Problem, times: Times) -> float:
    """Return the time that any kernel takes besides its workgroups, us."""
    first, last = times.launches[0], times.launches[-1]
    _, terms = launches.constants_for(times.chip, last.profile.element)
    written = sum(t.layout.size_elems * scalar(t.dtype).bytes for t in problem.outputs)
    return first.start + min(written, terms.dirty) / terms.written_back


def row(case: Case, target: str, config: str | None = None) -> Row:
    problem = case.problem
    code = driver.compile(driver.build(problem, target, config=config))
    times = launches.profile(prepared.of_launches(code.record, code.object, case.name))
    longest = times.longest
    ideal, fixed = ideal_us(problem, times, target), fixed_us(problem, times)
    return Row(
        case, code.config, times.total, ideal, ideal / (times.total - fixed), ideal / times.total,
        longest.used, len(times.launches), longest.bound,
    )  # fmt: skip


# ---------------------------------------------------------------- loops

Analysis = Callable[[str], list[dict[str, Any]]]  #: of the kernels of an object


@attrs.frozen
class Looped:
    """A case compiled with one config."""

    case: str
    config: str
    us: float
    loop: float  #: share of a loop's clocks in which the matrix unit is busy, by the tool; 0 without a loop
    bound: str  #: by the profile


def analysis(folder: Path) -> Analysis:
    """Return the analysis function of the tool in a folder."""
    spec = util.spec_from_file_location("hotloop", folder / "hotloop.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module := util.module_from_spec(spec))
    found: Analysis = module.analyze
    return found


def looped(case: Case, target: str, analyze: Analysis, count: int) -> list[Looped]:
    """Return a case compiled with each of the configs that are worth timing, the chooser's first."""
    found = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.hsaco"
        for config in trials.worth_timing(case.problem, target, count):
            try:
                code = driver.compile(driver.build(case.problem, target, config=config))
            except UserError:  # of registers that do not suffice
                continue
            assert code.object is not None
            path.write_bytes(code.object)
            kernels = [kernel for kernel in analyze(str(path)) if kernel.get("mfma")]
            main = max(kernels, key=lambda kernel: kernel["flops_iter_wave"], default={})
            times = launches.profile(prepared.of_launches(code.record, code.object, case.name))
            share, bound = float(main.get("mca_util") or 0), times.longest.bound
            found.append(Looped(case.title, code.config, times.total, share, bound))
    return found


def compare_loops(target: str, wanted: str, analyze: Analysis, count: int, *, as_json: bool) -> None:
    table = Table("case", "config", "us", "loop", "bound")
    for case in track([c for c in CASES if wanted in c.title], transient=True, console=Console(stderr=True)):
        found = looped(case, target, analyze, count)
        for each in found if as_json else ():
            print(json.dumps(as_dict(each)), flush=True)
        for each in dict.fromkeys((found[0], max(found, key=lambda each: each.loop))) if found else ():
            table.add_row(each.case, each.config, f"{each.us:.2f}", f"{each.loop:.2f}", each.bound)
    if not as_json:
        Console(width=200).print(table)


# ---------------------------------------------------------------- whole kernels


def rows(target: str, wanted: str) -> Iterator[Row]:
    chosen = [c for c in CASES if wanted in c.title]
    for case in track(chosen, transient=True, console=Console(stderr=True)):
        yield row(case, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="gfx942")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose `name direction type` contains it")
    parser.add_argument("--json", action="store_true", help="print one JSON object a case instead of a table")
    parser.add_argument("--loops", type=Path, metavar="FOLDER", help="of the tool that counts loops")
    parser.add_argument("--configs", type=int, default=30, help="of a case, with --loops")
    options = parser.parse_args()
    if options.loops is not None:
        analyze = analysis(options.loops)
        compare_loops(options.target, options.only, analyze, options.configs, as_json=options.json)
        return
    table = Table("case", "config", "us", "ideal", "share", "of all", "matrix", "launches", "bound")
    found = []
    for each in rows(options.target, options.only):
        found.append(each)
        if options.json:
            print(json.dumps(as_dict(each)), flush=True)
        numbers = f"{each.us:.1f}", f"{each.ideal_us:.1f}", f"{each.share:.2f}", f"{each.share_of_all:.2f}"
        table.add_row(each.case.title, each.config, *numbers, f"{each.matrix:.2f}", str(each.launches), each.bound)
    if not options.json:
        Console(width=200).print(table)
        means = (np.exp(np.mean(np.log([getattr(r, key) for r in found]))) for key in ("share", "share_of_all"))
        print("geomean: share {:.3f}, of all {:.3f}".format(*means))


if __name__ == "__main__":
    main()
