"""Mutation testing: small random defects, each of which the tests of its folder must notice within a minute.

`./dev mutate` changes one operator, constant, condition or call of a random line in a copy of the tree and runs the
tests of that folder which execute the line, the quickest first. A mutant that no test notices is a survivor: a test is
missing, or the change means nothing; tests/data/equivalent_mutants.txt lists the latter, with a reason.

A test that fails without any mutant judges none: it is left out, with a remark. So is one that fails in a mutant's run
and again once the line is restored, as tests that look at the clock do on a busy machine.

Each file of tests is measured once for the lines that its tests execute (`--map` measures all again). The map and all
results are kept in .mutate/, so a run that was stopped goes on. The seed is the date unless given.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import attrs
import coverage
from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / ".mutate"
EQUIVALENT = ROOT / "tests/data/equivalent_mutants.txt"
SECONDS = 60  #: of the processor, for a mutant; one that takes longer is noticed by whoever waits for it
_PATIENCE = 10  #: times as long by the clock, for the machine may be busy

ROOMS = ("ir", "passes", "gen", "backends")

#: Folder or file of the product -> folders and files of tests that judge it; of several rows the longest path holds.
JUDGES: dict[str, tuple[str, ...]] = {
    "ir": ("tests/ir",),
    "ir/layout/distribution.py": ("tests/ir", "tests/backends/test_nested_atoms.py"),
    "ir/narrow.py": ("tests/passes", "tests/ir"),
    "ir/untrusted.py": ("tests/ir", "tests/gen"),
    "passes": ("tests/passes",),
    "gen": ("tests/gen",),
    "gen/kernels": ("tests/gen", "tests/product"),
    "gen/kernels/agree.py": ("tests/backends/intel/test_lockstep.py", "tests/gen", "tests/product"),
    "gen/choose/offers.py": ("tests/gen", "tests/product/test_types.py"),
    "gen/plan/grouped_axis.py": ("tests/product/test_grouped.py", "tests/gen"),
    "gen/plan/views.py": ("tests/gen", "tests/product/test_routing.py"),
    "gen/plan/block_scales.py": ("tests/product/test_block_scales.py",),
    "gen/plan/scaled_factors.py": ("tests/product/test_mx.py", "tests/gen"),
    "gen/problem/fused_conv.py": ("tests/product/test_fused_conv.py", "tests/gen"),
    "gen/run/comparison.py": ("tests/gen", "tests/product/test_routing.py"),
    "gen/run/depthwise_sums.py": ("tests/product/test_fused_conv.py",),
    "gen/run/reference_fused.py": ("tests/product/test_fused_conv.py",),
    "gen/problem/grouping.py": ("tests/product/test_grouped.py", "tests/gen"),
    "gen/problem/routing.py": ("tests/product/test_routing.py", "tests/gen"),
    "gen/epilogue/numbered_rows.py": ("tests/product/test_routing.py",),
    "gen/problem/inner_product.py": ("tests/gen", "tests/product/test_inner_product.py"),
    "gen/problem/scales.py": ("tests/gen", "tests/product/test_groups.py"),
    "gen/problem/zero_points.py": ("tests/gen", "tests/product/test_groups.py"),
    "gen/problem/eltwise.py": ("tests/gen", "tests/product/test_epilogues.py"),
    "gen/problem/post_ops.py": ("tests/gen", "tests/product/test_epilogues.py"),
    "gen/epilogue/steps.py": ("tests/gen", "tests/product/test_mx_results.py", "tests/product/test_glu.py"),
    "gen/run/computed_scales.py": ("tests/gen", "tests/product/test_mx_results.py"),
    "gen/run/prepared.py": ("tests/gen", "tests/backends/amdgpu/test_launch_timing.py"),
    "gen/run/ranges.py": ("tests/gen", "tests/product/test_epilogues.py", "tests/product/test_routing.py"),
    "gen/tile": ("tests/tile", "tests/gen"),
    "backends": ("tests/backends",),
    "backends/device.py": ("tests/backends", "tests/gen"),
    "backends/library.py": ("tests/backends", "tests/gen"),
    "backends/tuning.py": ("tests/backends", "tests/gen/test_registers.py", "tests/gen/test_search.py"),
    "backends/amdgpu/att.py": ("tests/gen/test_att.py",),
    "backends/amdgpu/hip.py": ("tests/backends", "tests/gen"),
    "backends/amdgpu/targets.py": ("tests/backends", "tests/gen/test_dumps.py"),
    "backends/intel/level_zero.py": ("tests/backends", "tests/gen"),
    "backends/nvidia/cuda.py": ("tests/backends", "tests/gen"),
    "backends/intel/analyze.py": ("tests/backends", "tests/product/test_hot_loop_xe.py"),
}
#: Simulators are judged by the faults that they find elsewhere.
_LEFT_OUT = re.compile(r"/sim/|__init__|__main__")


def judges(file: str) -> tuple[str, ...]:
    """Return the folders and files of the tests that judge a file of the product, by its path from the root."""
    rows = [row for row in JUDGES if file == row or file.startswith(f"{row}/")]
    return JUDGES[max(rows, key=len)]


_SWAPPED: tuple[tuple[type[Any], type[Any]], ...] = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *(
        (ast.And, ast.Or),
        (ast.Add, ast.Sub),
        (ast.Mult, ast.FloorDiv),
        (ast.LShift, ast.RShift),
        (ast.BitAnd, ast.BitOr),
    ),
)
_OPERATORS: dict[type[Any], type[Any]] = {ast.Mod: ast.FloorDiv, **dict(_SWAPPED), **{b: a for a, b in _SWAPPED}}


@attrs.frozen
class Mutant:
    """One change: lines [first, last] of a file become `after`."""

    file: str
    first: int
    last: int
    before: str
    after: str

    @property
    def key(self) -> str:
        """A name that stays while the lines do."""
        return hashlib.sha256(f"{self.file}\n{self.before}\n{self.after}".encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.file}:{self.first}\n-{self.before}\n+{self.after}"


# ---------------------------------------------------------------- changes


def mutants(file: Path) -> Iterator[Mutant]:
    """Every change of a file."""
    source = file.read_text()
    lines = source.splitlines()
    for node, changed in _changes(ast.parse(source)):
        assert node.end_lineno is not None
        first, last = node.lineno, node.end_lineno
        head = lines[first - 1].encode()[: node.col_offset].decode()
        tail = lines[last - 1].encode()[node.end_col_offset :].decode()
        before = "\n".join(lines[first - 1 : last])
        text = changed if isinstance(changed, str) else f"({ast.unparse(changed)})"
        if (after := head + text + tail) != before:
            yield Mutant(str(file.relative_to(ROOT)), first, last, before, after)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | str]]:
    """(node, what takes its place) for all changes below a node."""
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return  # words for people, and what tests have no business with
    match node:
        case ast.Compare(left, [operator, *others], comparators) if type(operator) in _OPERATORS:
            yield node, ast.Compare(left, [_OPERATORS[type(operator)](), *others], comparators)
        case ast.BoolOp(operator, values):
            yield node, ast.BoolOp(_OPERATORS[type(operator)](), values)
        case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS and not _is_text(left):
            yield node, ast.BinOp(left, _OPERATORS[type(operator)](), right)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield node, operand
        case ast.Constant(bool() as value):
            yield node, ast.Constant(not value)
        case ast.Constant(int() as value):
            yield node, ast.Constant(value + 1)
        case ast.If(test) | ast.IfExp(test) | ast.While(test) if not _is_typing(test):
            yield test, ast.UnaryOp(ast.Not(), test)
        case ast.Expr(ast.Call()):
            yield node, "pass"
        case ast.Continue():
            yield node, "break"
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        if isinstance(node, ast.If) and _is_typing(node.test):
            continue
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST):
                yield from _changes(child)


def _is_typing(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _is_text(e: ast.expr) -> bool:
    return isinstance(e, ast.JoinedStr) or (isinstance(e, ast.Constant) and isinstance(e.value, str))


# ---------------------------------------------------------------- which tests


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:16]


def _test_files(folder: str) -> list[Path]:
    where = ROOT / folder
    return [where] if where.is_file() else sorted(where.rglob("*.py"))


def measure(folder: str, jobs: int = 2) -> dict[str, float]:
    """Run the fast tests of what is new or changed in a folder or file of tests, and add their lines to the map.

    Return the seconds of each test that passes.
    """
    where = STATE / folder.replace("/", ".")
    where.mkdir(parents=True, exist_ok=True)
    kept = where / "times.json"
    known: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"files": {}, "seconds": {}}
    files = {str(f.relative_to(ROOT)): _digest(f) for f in _test_files(folder) if f.name.startswith("test_")}
    fresh = [name for name, digest in files.items() if known["files"].get(name) != digest]
    seconds = {
        t: n for t, n in known["seconds"].items() if (file := t.partition("::")[0]) in files and file not in fresh
    }
    if fresh:
        command = [sys.executable, "-m", "pytest", "-n", str(jobs), "-m", "not sweep", *fresh]
        command += [*(f"--cov={room}" for room in ROOMS), "--cov-append", "--cov-context=test", "--cov-report="]
        command += [f"--junitxml={where / 'times.xml'}"]
        environment = {**os.environ, "COVERAGE_FILE": str(where / "coverage")}
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        if done.returncode not in (0, 1):  # 1: some tests failed
            raise SystemExit(f"pytest cannot run the tests of {folder}: exit code {done.returncode}")
        passed, failed = _read_times(where / "times.xml")
        for test in failed:
            print(f"note: {test} fails without any mutant and judges none", file=sys.stderr)
        seconds |= passed
        failing = {test.partition("::")[0] for test in failed}  # files that the next run tries again
        known_files = {name: digest for name, digest in files.items() if name not in failing}
        kept.write_text(json.dumps({"files": known_files, "seconds": seconds}))
    return seconds


def _read_times(report: Path) -> tuple[dict[str, float], list[str]]:
    """Return the seconds of each test of a JUnit report that passed or was skipped, and the tests that failed."""
    passed: dict[str, float] = {}
    failed: list[str] = []
    for case in ElementTree.parse(report).iter("testcase"):
        test = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(test)
        else:
            passed[test] = float(case.attrib["time"])
    return {test: time for test, time in passed.items() if test not in failed}, list(dict.fromkeys(failed))


@attrs.define
class Tests:
    """The map of the test folders that judge a file: lines by test, seconds by test."""

    lines: list[coverage.CoverageData]
    seconds: dict[str, float]

    @classmethod
    def load(cls, folders: Iterable[str], jobs: int) -> Tests:
        """Read the map in .mutate/, and measure the tests that it lacks."""
        seconds: dict[str, float] = {}
        lines = []
        for folder in folders:
            seconds |= measure(folder, jobs)
            data = coverage.CoverageData(str(STATE / folder.replace("/", ".") / "coverage"))
            data.read()
            lines.append(data)
        return cls(lines, seconds)

    def of(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute the lines, quickest first, as many as a minute holds.

        Lines that only an import executes are tables: any test of the folders may notice, those of their name first.
        """
        found: set[str] = set()
        for data in self.lines:
            by_line = data.contexts_by_lineno(str(ROOT / mutant.file))
            found |= {c.partition("|")[0] for n in range(mutant.first, mutant.last + 1) for c in by_line.get(n, ())}
        found &= self.seconds.keys()
        stem = f"/test_{Path(mutant.file).stem}"
        out: list[str] = []
        left = float(SECONDS)
        for test in sorted(found or self.seconds, key=lambda t: (stem not in t, self.seconds.get(t, SECONDS), t)):
            left -= self.seconds.get(test, SECONDS)
            if left < 0 and out:
                break
            out.append(test)
        return out


# ---------------------------------------------------------------- runs


def copy_tree(number: int) -> Path:
    """A copy of product and tests, in which `convgen` is what stands there."""
    tree = STATE / f"tree{number}"
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    package = tree / ".path/convgen"
    package.mkdir(parents=True)
    for entry in [*(tree / "gen").iterdir(), *(tree / folder for folder in ("ir", "passes", "backends"))]:
        (package / entry.name).symlink_to(entry)
    return tree


def survives(mutant: Mutant, tests: list[str], tree: Path) -> bool:
    """Return whether all tests that pass without the mutant pass in spite of it."""
    file = tree / mutant.file
    original = file.read_text()
    lines = original.split("\n")
    lines[mutant.first - 1 : mutant.last] = mutant.after.split("\n")
    left = list(tests)
    while left:
        file.write_text("\n".join(lines))
        try:
            failed = _first_failure(left, tree)
        finally:
            file.write_text(original)
        if failed is None:
            return True
        if failed not in left or _first_failure([failed], tree) is None:
            return False
        print(f"note: {failed} fails without the mutant, too, and does not judge it", file=sys.stderr)
        left.remove(failed)
    return True


def _first_failure(tests: list[str], tree: Path) -> str | None:
    """Return the first test that fails in a tree, None if all pass, and "" if the run ends without naming one."""
    environment = {**os.environ, "PYTHONPATH": str(tree / ".path"), "PYTHONDONTWRITEBYTECODE": "1"}
    limited = ["sh", "-c", f'ulimit -t {SECONDS}; exec "$@"', "sh"]
    report = tree / "outcome.xml"
    report.unlink(missing_ok=True)
    command = [*limited, sys.executable, "-m", "pytest", "-n0", "-x", "-q", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", *tests]
    most = _PATIENCE * SECONDS
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=most, check=False)
    except subprocess.TimeoutExpired:
        return ""
    if done.returncode == 0:
        return None
    return next(iter(_read_times(report)[1]), "") if report.exists() else ""


def excused() -> dict[str, str]:
    """Reasons by key of the mutants that change nothing: blocks of `KEY  reason`, with the change below it."""
    if not EQUIVALENT.exists():
        return {}
    return dict(re.findall(r"^([0-9a-f]{16}) +(.*)$", EQUIVALENT.read_text(), re.MULTILINE))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=40, help="mutants (40)")
    parser.add_argument("--seed", default=datetime.date.today().isoformat(), help="which ones (today's date)")
    parser.add_argument("--map", action="store_true", help="measure anew which test executes which line")
    parser.add_argument("--only", default="", help="files whose path holds this")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--least", type=float, default=0.85, help="share that must be noticed (0.85)")
    return parser.parse_args()


def _drawn(options: argparse.Namespace) -> list[Mutant]:
    """The mutants that the seed draws, without excused ones."""
    reasons = excused()
    files = [f for room in ROOMS for f in sorted((ROOT / room).rglob("*.py"))]
    files = [f for f in files if not _LEFT_OUT.search(str(f)) and options.only in str(f)]
    every = [m for f in files for m in mutants(f) if m.key not in reasons]
    return random.Random(options.seed).sample(every, min(options.count, len(every)))


def main() -> int:
    """Exit code 1 if fewer than the wanted share are noticed."""
    options, console = _options(), Console()
    if options.map:
        shutil.rmtree(STATE, ignore_errors=True)
    chosen = _drawn(options)
    rows = dict.fromkeys(judges(m.file) for m in chosen)
    tests = {folders: Tests.load(folders, options.jobs) for folders in rows}
    known = STATE / "results.json"
    results: dict[str, str] = json.loads(known.read_text()) if known.exists() else {}
    shared = [f for pattern in ("golden/**/*.*", "*.py") for f in sorted((ROOT / "tests").glob(pattern))]
    now = {folders: _digest(*(f for each in folders for f in _test_files(each)), *shared) for folders in tests}
    trees: SimpleQueue[Path] = SimpleQueue()
    for number in range(options.jobs):
        trees.put(copy_tree(number))

    def run(mutant: Mutant) -> bool:
        survived = results.get(mutant.key)  # which tests; none of any if it was noticed
        if survived in ("", now[judges(mutant.file)]):
            return bool(survived)
        tree = trees.get()
        try:
            return survives(mutant, tests[judges(mutant.file)].of(mutant), tree)
        finally:
            trees.put(tree)

    survivors = []
    with Progress(console=console, transient=True) as bar, ThreadPoolExecutor(options.jobs) as pool:
        task = bar.add_task(f"mutants of seed {options.seed}", total=len(chosen))
        jobs = {pool.submit(run, m): m for m in chosen}
        for job in as_completed(jobs):
            mutant = jobs[job]
            results[mutant.key] = now[judges(mutant.file)] if job.result() else ""
            known.write_text(json.dumps(results))
            if job.result():
                survivors.append(mutant)
            bar.advance(task)
    for mutant in sorted(survivors, key=lambda m: (m.file, m.first)):
        console.print(f"{mutant.key} survived {mutant}", markup=False, highlight=False)
    share = 1 - len(survivors) / max(1, len(chosen))
    console.print(f"seed {options.seed}: {len(chosen) - len(survivors)} of {len(chosen)} noticed, {share:.0%}")
    return int(share < options.least)


if __name__ == "__main__":
    sys.exit(main())
