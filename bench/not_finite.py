"""Cost of one NaN that meets padding: a workgroup that recomputes sums, over one with finite inputs.

The NaN is the first element of the weights or, for gradients of weights, of the gradient of the result. Clocks are
those of one workgroup alone on a compute unit, by the event model of `convgen profile` (CDNA). With --count, the
simulator counts the instructions of the first workgroup instead. `code` is the size of the code object over that with
`padding=zeros`, which recomputes nothing.

    python bench/not_finite.py --target gfx942 --only "3x3 64ch"
    python bench/not_finite.py --target xehpc --count
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping

import attrs
import numpy as np
from rich.console import Console
from rich.table import Table
from whole import CASES

from convgen import driver
from convgen.problem.conv import Conv
from convgen.profile import launch_times
from convgen.run import execution, reference
from convgen.run.code import Code
from convgen.run.fills import Fill
from convgen.run.prepared import Prepared


@attrs.frozen
class Row:
    """A case: clocks, or instructions, of a workgroup."""

    case: str
    config: str
    finite: float
    with_nan: float
    code: float  #: size of the code object over that of a kernel without the branch

    @property
    def ratio(self) -> float:
        return self.with_nan / self.finite


def with_nan(problem: Conv) -> dict[str, Fill]:
    """Return the inputs with a NaN that padding is multiplied by."""
    fills = reference.fills(problem, 0)
    name = "diff_dst" if problem.outputs[0].name == "diff_wei" else "wei"
    first = tuple(0 for _ in problem.tensor(name).dims)
    return {**fills, name: fills[name].with_values({first: np.nan})}


def clocks(code: Code, inputs: Mapping[str, Fill]) -> float:
    """Return the clocks of a workgroup of the longest launch, alone on a compute unit."""
    record = code.record
    content = record.required(code.object, "the case")
    given = Prepared("case", content, record.requests(), lambda: execution.allocate(record, inputs))
    return max(time.profile.units[1].clocks for time in launch_times.profile(given).launches)


def instructions(code: Code, inputs: Mapping[str, Fill]) -> float:
    """Return the instructions that the first workgroup of each product executes."""
    groups = [[0] if launch.kernel.endswith("_main") else [] for launch in code.record.launches]
    _, report = execution.execute(code.record, code.object, inputs, groups)
    return sum(report.instructions.values())


def rows(target: str, wanted: str, *, count: bool) -> Iterator[Row]:
    measure = instructions if count else clocks
    for case in (case for case in CASES if wanted in case.title):
        problem = case.problem
        if not isinstance(problem, Conv) or not (program := driver.build(problem, target)).plan:
            continue
        code = driver.compile(program)
        assert program.plan is not None
        if any(part.padding for part in program.plan.parts):
            without = driver.compile(driver.build(problem, target, f"{code.config} padding=zeros"))
            assert code.object is not None
            assert without.object is not None
            finite, spoiled = (measure(code, inputs) for inputs in (reference.fills(problem, 0), with_nan(problem)))
            yield Row(case.title, code.config, finite, spoiled, len(code.object) / len(without.object))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="gfx942")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose `name direction type` contains it")
    parser.add_argument("--count", action="store_true", help="count instructions instead of clocks")
    parser.add_argument("--json", action="store_true", help="print one JSON object a case instead of a table")
    options = parser.parse_args()
    table = Table("case", "config", "finite", "with a NaN", "ratio", "code")
    for row in rows(options.target, options.only, count=options.count):
        if options.json:
            print(json.dumps({**attrs.asdict(row), "ratio": row.ratio}), flush=True)
        numbers = f"{row.finite:.0f}", f"{row.with_nan:.0f}", f"{row.ratio:.2f}", f"{row.code:.2f}"
        table.add_row(row.case, row.config, *numbers)
    if not options.json:
        Console(width=200).print(table)


if __name__ == "__main__":
    main()
