"""Checks on a GPU: instructions against recorded results, problems against the reference, and compute-sanitizer."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from lib import ptx_vectors
from rich.progress import track

from convgen.ir.error import ConvgenError
from convgen.problem.conv import Conv

DEVICE = "cuda:0"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: Calls of the driver that fail are no errors of kernels: the last parameter of each is found by asking for one more.
_OPTIONS = {"memcheck": ("--report-api-errors", "no")}
_DATA = Path(__file__).parents[2] / "tests" / "data"
LISTED = _DATA / "problems" / "resnet_and_others.txt"
DRAWN = _DATA / "silicon" / "problems.txt"
RECORDED = _DATA / "silicon" / "instructions.npz"
_DIRECTIONS = ("FWD_B", "BWD_D", "BWD_WB")
_TILES = 8  #: result tiles of a listed problem that are compared
_ROWS_A_PROCESS = 20  #: problems, after which a process is replaced: a context may fail without a word

Case = tuple[str, str, int | None]  #: line, config or "", tiles to compare or None for all


def listed() -> list[Case]:
    """Return each layer of tests/data/problems in three directions with inputs of f16, one image of each."""
    lines = (line.strip() for line in LISTED.read_text().splitlines())
    layers = [line for line in lines if line and not line.startswith("#")]
    problems = [Conv.parse(layer, dir=each, dt="f16", mb=1) for layer in layers for each in _DIRECTIONS]
    return [(str(problem), "", _TILES) for problem in problems]


def drawn() -> list[Case]:
    """Return the random problems of tests/data/silicon, some with a config."""
    rows = (line.partition(" | ") for line in DRAWN.read_text().splitlines())
    return [(line, config.strip(), None) for line, _, config in rows]


def check(target: str, case: Case) -> dict[str, Any]:
    """Return the outcome of a problem on the device: a row of the JSON."""
    from convgen import driver  # in a process of its own
    from convgen.device.devices import open_device
    from convgen.device.executor import Executor
    from convgen.problem.matmul import parse_problem
    from convgen.run import verdict

    line, config, tiles = case
    row: dict[str, Any] = {"problem": line, "config": config}
    begin = perf_counter()
    try:
        problem = parse_problem(line)
        code = driver.compile(driver.build(problem, target, config=config or None))
    except ConvgenError as error:
        return row | {"device": "refused", "why": str(error)}
    try:
        outcome = verdict.run(code, groups=tiles, on=Executor(open_device(DEVICE)))
        row |= {"config": str(code.config or ""), "device": _verdict(outcome), "checked": outcome.checked}
    except ConvgenError as error:
        row |= {"device": "error", "why": str(error)}
    return row | {"seconds": round(perf_counter() - begin, 2)}


def _verdict(outcome: Any) -> str:
    return "exact" if outcome.passed else f"{outcome.mismatches} mismatches, {len(outcome.findings)} findings"


def check_all(target: str, cases: Sequence[Case], what: str, processes: int) -> list[dict[str, Any]]:
    """Return a row for each problem; one that ends its process has the row of an error.

    Each batch has processes of its own: contexts of a driver do not live long, and a process that ends takes only its
    batch along. (A pool with `max_tasks_per_child` hung after its first generation of processes in Python 3.12.)
    """
    rows = []
    size = processes * _ROWS_A_PROCESS
    for begin in track(range(0, len(cases), size), what):
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            tasks = [(case, pool.submit(check, target, case)) for case in cases[begin : begin + size]]
            for case, task in tasks:
                try:
                    rows.append(task.result())
                except BrokenProcessPool as error:
                    rows.append({"problem": case[0], "config": case[1], "device": "error", "why": str(error)})
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return counts of outcomes and of compared outputs, and all rows that are not exact."""
    outcomes = dict(Counter(row["device"] for row in rows))
    outputs = sum(row.get("checked", 0) for row in rows)
    other = [row for row in rows if row["device"] != "exact"]
    return {"problems": len(rows), "outcomes": outcomes, "outputs": outputs, "other": other}


# ---------------------------------------------------------------- instructions


def instructions(*, record: bool) -> dict[str, Any]:
    """Return how many cases have other results on this GPU than recorded ones; or `record` them."""
    from convgen.device.devices import open_device
    from convgen.device.executor import Executor

    cases = list(ptx_vectors.cases())
    found = ptx_vectors.results(Executor(open_device(DEVICE)).execute, cases)
    if record:
        np.savez_compressed(RECORDED, results=found)
    known = dict(ptx_vectors.by_case(np.load(RECORDED)["results"], cases))
    differ = {case.form.text for case, ours in ptx_vectors.by_case(found, cases) if (ours != known[case]).any()}
    return {"forms": len(ptx_vectors.FORMS), "cases": len(cases), "differ": sorted(differ)}


# ---------------------------------------------------------------- compute-sanitizer


def sanitize(script: Path, cases: Sequence[Case], processes: int) -> dict[str, Any]:
    """Return, for each tool of compute-sanitizer, the errors it reports on problems that run under it.

    `script` is called as `script --checked FILE...` and runs the problems of a file.
    """
    from tempfile import TemporaryDirectory

    shares = max(1, processes // len(TOOLS))
    with TemporaryDirectory() as folder:
        files = [Path(folder) / f"{share}.txt" for share in range(shares)]
        for share, file in enumerate(files):
            file.write_text("".join(f"{line} | {config}\n" for line, config, _ in cases[share::shares]))
        running = {
            (tool, file): subprocess.Popen(
                [
                    "compute-sanitizer",
                    "--tool",
                    tool,
                    *_OPTIONS.get(tool, ()),
                    sys.executable,
                    script,
                    "--checked",
                    file,
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for tool in TOOLS
            for file in files
        }
        found: dict[str, Any] = {tool: {"problems": 0, "errors": 0, "text": []} for tool in TOOLS}
        for (tool, _), process in track(running.items(), "compute-sanitizer"):
            text, _ = process.communicate()
            row = found[tool]
            row["problems"] += len(re.findall("^exact ", text, re.M))
            total = re.search(r"(?:ERROR SUMMARY: |RACECHECK SUMMARY: )(\d+)", text)
            row["errors"] += int(total[1]) if total else 1
            if not total or int(total[1]):
                row["text"] += text.splitlines()[:20]
    return found


def run_checked(target: str, file: Path, say: Callable[[str], None]) -> None:
    """Run the problems of a file on the device, for `sanitize`."""
    for line in file.read_text().splitlines():
        problem, _, config = line.partition(" | ")
        row = check(target, (problem, config, 1))
        say(f"{row['device']} {problem}")
