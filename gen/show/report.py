"""Reports of a run: the JSON object of a problem, and tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TextIO

from convgen.ir.error import visible
from convgen.run.code import Code
from convgen.run.files import Files

if TYPE_CHECKING:
    from convgen.backends.simulation import Coverage, Finding
    from convgen.choose.choose import Candidate
    from convgen.driver import Attempt
    from convgen.run.schema import Entry
    from convgen.run.verdict import Outcome, SpecialRun

_MANY_MISSED = 0.2  #: share of a kernel's instructions; kernels with right arguments miss fewer
_MOST_STRETCHES = 8  #: stretches of unexecuted instructions that a report lists
_LABEL_WIDTH = 12  #: characters; the least width of the labels of a report
_SHOWN_MS = 1.0  #: milliseconds; a report does not list shorter stages

Row = tuple[str, ...]
Labels = Mapping[str, Sequence[tuple[int, str]]]  #: by kernel: offsets in bytes, ascending, and the labels there


def as_json(problem: str, code: Code, files: Files | None, outcome: Outcome | None) -> dict[str, Any]:
    """Return one problem for `--json`; seconds are wall time."""
    assemble = code.stages.get("assemble", 0.0)
    return without_code(problem, code.target, code.config) | {
        "launches": [
            {
                "kernel": launch.kernel,
                "grid": list(launch.grid),
                "workgroup": list(launch.workgroup),
                "registers": dict(code.kernels[launch.kernel].registers),
                "lds_bytes": launch.shared_bytes,
            }
            for launch in code.record.launches
        ],
        "files": _paths(files),
        "generate_s": round(sum(code.stages.values()) - assemble, 6),
        "assemble_s": round(assemble, 6),
        "run": None if outcome is None else outcome_json(outcome, labels_of(code, outcome)),
    }


def without_code(problem: str, target: str, config: str) -> dict[str, Any]:
    """Return the object of `as_json` for a problem that was refused."""
    return {
        "problem": problem,
        "target": target,
        "config": config,
        "launches": [],
        "files": _paths(None),
        "generate_s": 0.0,
        "assemble_s": 0.0,
        "run": None,
    }


def check_row(row: Entry) -> None:
    """Raise UserError unless a row has a batch's entries for a problem: `exit`, `said`, and the JSON object `data`."""
    row["exit"].integer(0, 3)
    row["kept"].flag()
    if not all(line.isprintable() for line in row["said"].text(empty=True).split("\n")):
        raise row["said"].error("lines that can be printed")
    data = row["data"]
    for key in ("problem", "target", "status"):
        data[key].text()
    data["config"].text(empty=True)
    data["seconds"].number()
    if data["error"].value is not None:
        data["error"].text()
    if data["run"].value is not None:
        for key in ("checked", "mismatches"):
            data["run"][key].integer(0, 1 << 62)


def failure_line(outcome: Outcome) -> str:
    """Return a failed run in one line: the first mismatch and the first finding."""
    texts = []
    if outcome.mismatches:
        texts.append(f"{outcome.mismatches} of {outcome.compared_outputs} outputs are wrong: {outcome.first[0]}")
    if outcome.findings:
        texts.append(f"{len(outcome.findings)} findings: {outcome.findings[0]}")
    return "; ".join(texts)


def _paths(files: Files | None) -> dict[str, str | None]:
    """Return the paths by kind of file, None for one that was not written; machine code only where it was."""
    kinds = ("asm", "object", *(["machine"] if files and files.machine else []), "launch")
    paths = ((kind, getattr(files, kind, None)) for kind in kinds)
    return {kind: None if path is None else str(path) for kind, path in paths}


def labels_of(code: Code, outcome: Outcome) -> Labels:
    """Return the labels of the text's kernels, if a run missed instructions; none if text and object do not agree."""
    if code.object is None or not any(one.missed for one in outcome.coverage):
        return {}
    from convgen.backends import target as targets
    from convgen.show.listing import rows_of

    family = targets.get(code.target).family
    if not family.reader:
        return {}
    analysis = targets.analyze_code(code.object, f"{code.name}{family.object_suffix}")
    offsets: dict[str, list[tuple[int, str]]] = {}
    for kernel in analysis.kernels:
        labels: list[str] = []
        for row in rows_of(code.asm, kernel, ()):
            if row.label:
                labels.append(row.label)
            elif labels:
                offsets.setdefault(kernel.name, []).append((row.offset, labels.pop()))
                labels.clear()
    return offsets


def coverage_json(coverage: Sequence[Coverage], labels: Labels | None = None) -> dict[str, Any]:
    """Return the number of instructions, the number that ran, and the stretches that did not run."""
    return {
        "of": sum(one.places for one in coverage),
        "executed": sum(one.executed for one in coverage),
        "never": [
            {
                "kernel": one.kernel,
                "begin": places[0].pc,
                "end": places[-1].end,
                "count": len(places),
                "instruction": places[0].instruction,
                "label": _label((labels or {}).get(one.kernel, ()), places[0].pc),
            }
            for one in coverage
            for places in one.stretches
        ],
    }


def _label(labels: Sequence[tuple[int, str]], pc: int) -> str:
    """Return the last label at or before an offset, empty if there is none."""
    return next((label for offset, label in reversed(labels) if offset <= pc), "")


def _coverage_rows(coverage: Sequence[Coverage], labels: Labels) -> list[tuple[str, str]]:
    counts = coverage_json(coverage, labels)
    rows = [("places", f"{counts['executed']} of {counts['of']} instructions executed")]
    for number, never in enumerate(counts["never"][:_MOST_STRETCHES]):
        place = f"{never['kernel']}+{never['begin']:#x} to +{never['end']:#x}"
        behind = f", behind {never['label']}" if never["label"] else ""
        instructions = f"{never['count']} instructions from `{never['instruction']}`"
        rows.append(("" if number else "never", f"{place}: {instructions}{behind}"))
    more = len(counts["never"]) - _MOST_STRETCHES
    return [*rows, ("", f"and {more} more stretches: see --json")] if more > 0 else rows


def outcome_json(outcome: Outcome, labels: Labels | None = None) -> dict[str, Any]:
    """Return the `run` entry of `--json`."""
    few, digits = outcome.specials, 9 if outcome.on else 6
    return {
        "status": outcome.status,
        "checked": outcome.checked,
        "mismatches": outcome.mismatches,
        "first_mismatches": [str(mismatch) for mismatch in outcome.first],
        "findings": [str(finding) for finding in outcome.findings],
        **({"on": outcome.on} if outcome.on else {}),
        "seconds": round(outcome.seconds, digits),
        "instructions": dict(outcome.instructions),
        **({"places": coverage_json(outcome.coverage, labels)} if outcome.coverage else {}),
        **({"specials": _specials_json(few, digits)} if few else {}),
    }


def _specials_json(few: SpecialRun, digits: int) -> dict[str, Any]:
    """Return the run with infinities and NaNs for `--json`."""
    return {"values": few.values, "checked": few.checked, "seconds": round(few.seconds, digits)}


def code_rows(problem: str, code: Code) -> list[tuple[str, str]]:
    """Return the rows of a report that are known before running."""
    rows = [("problem", problem), ("target", code.target), ("config", code.config)]
    for launch in code.record.launches:
        grid, workgroup = ("x".join(map(str, extents)) for extents in (launch.grid, launch.workgroup))
        rows.append(("kernel", launch.kernel))
        rows.append(("", f"grid {grid}, workgroup {workgroup}"))
        rows.append(("", str(code.kernels[launch.kernel])))
    milliseconds = {stage: 1e3 * spent for stage, spent in code.stages.items()}
    listed = ", ".join(f"{stage} {spent:.0f}" for stage, spent in milliseconds.items() if spent >= _SHOWN_MS)
    return [*rows, ("stages", f"{sum(milliseconds.values()):.0f} ms: {listed}")] if code.stages else rows


def file_rows(files: Files | None) -> list[tuple[str, str]]:
    """Return a row with the written files, if any."""
    return [] if files is None else [("written", written(files))]


def written(files: Files) -> str:
    """Return the paths of the written files."""
    return ", ".join(dict.fromkeys(path for path in _paths(files).values() if path is not None))


def outcome_rows(outcome: Outcome, labels: Labels | None = None) -> list[tuple[str, str]]:
    """Return the rows of a report that a run adds; the last is the verdict."""
    few = outcome.specials
    second = ", all in the run with infinities and NaNs" if few and outcome.mismatches else ""
    rows = [
        *execution_rows(outcome, labels),
        ("checked", f"{outcome.checked} outputs"),
        *([("", f"{few.checked} outputs again, with {few.values} infinities and NaNs in the inputs")] if few else []),
        ("mismatches", f"{outcome.mismatches}{second}"),
        *(("", str(mismatch)) for mismatch in outcome.first),
    ]
    if not outcome.on:
        rows += finding_rows(outcome.findings)
    verdict = outcome.status.upper()
    return [*rows, ("result", f"{verdict}, nothing to compare" if outcome.status == "executed" else verdict)]


def execution_rows(outcome: Outcome, labels: Labels | None = None) -> list[tuple[str, str]]:
    """Return the rows on the execution: instructions, time, places that no subgroup reached."""
    return [
        *(_device_rows(outcome) if outcome.on else _simulator_rows(outcome)),
        *(_coverage_rows(outcome.coverage, labels or {}) if outcome.coverage else []),
    ]


def finding_rows(findings: Sequence[Finding], label: str = "findings") -> list[tuple[str, str]]:
    """Return the rows on a simulator's findings: how many, and each."""
    return [(label, str(len(findings))), *(("", str(finding)) for finding in findings)]


def hint_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """Return the rows that suggest options, where a launch of a code object without a record looks incomplete."""
    hints = []
    if any(
        finding.kind == "lds-bounds" or (finding.kind == "out-of-bounds" and "local memory" in finding.message)
        for finding in outcome.findings
    ):
        hints.append("if the host asks for dynamic shared memory, give its size: --lds BYTES")
    missed = sum(len(one.missed) for one in outcome.coverage)
    places = sum(one.places for one in outcome.coverage)
    if missed > _MANY_MISSED * places:
        hints.append(f"{missed} of {places} instructions did not run: other --arg or --grid may reach them")
    return [("" if number else "hint", hint) for number, hint in enumerate(hints)]


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return a finding for `--json`. `required` is false where no manual asks for the rule."""
    return {
        "kind": finding.kind,
        "message": finding.message,
        "kernel": finding.kernel,
        "pc": finding.pc,
        "instruction": finding.instruction,
        "line": finding.line,
        "workgroup": finding.workgroup,
        "subgroup": finding.subgroup,
        "lane": finding.lane,
        "source": finding.source.text,
        "required": finding.source.required,
    }


def _simulator_rows(outcome: Outcome) -> list[tuple[str, str]]:
    executed = sum(outcome.instructions.values())
    mix = ", ".join(f"{kind} {count}" for kind, count in outcome.instructions.items())
    counted = f"{executed} subgroup instructions in {outcome.seconds:.2f} s"
    return [("simulated", counted), ("instructions", mix or "none")]


def _device_rows(outcome: Outcome) -> list[tuple[str, str]]:
    return [("executed", f"on {outcome.on} in {1e6 * outcome.seconds:.1f} us")]


def ranking_table(ranked: Sequence[Candidate]) -> tuple[Row, list[Row]]:
    """Return the chooser's estimate of each config, best first: total clocks, and the parts of one product's."""
    header = (
        *("rank", "config", "clocks", "matrix", "shared", "global", "issue", "barriers"),
        *("K blocks", "apart", "rounds", "besides"),
    )
    rows: list[Row] = []
    for rank, candidate in enumerate(ranked, 1):
        c = candidate.clocks
        if c is None:
            if candidate.score < float("inf"):  # by lanes; the last resort has no rank
                rows.append((str(rank), str(candidate.config), f"{candidate.score:.0f}", *"-" * (len(header) - 3)))
            continue
        clocks = (f"{part:.0f}" for part in (candidate.score, c.matrix, c.shared, c.loading, c.issue, c.serial))
        launch = f"{c.blocks:.4g}", f"{c.pace:.0f}", f"{c.rounds} of {c.together}", f"{c.slice_reduction:.0f}"
        rows.append((str(rank), str(candidate.config), *clocks, *launch))
    return header, rows


def attempts_table(attempts: Iterable[Attempt]) -> tuple[Row, list[Row]]:
    """Return the table of attempts: each config's score, resources, and the reason for its refusal."""
    header = ("config", "clocks", "registers", "allocated", "shared", "verdict")
    rows: list[Row] = []
    for a in attempts:
        actual = "" if a.actual is None else " ".join(f"{name} {count}" for name, count in a.actual.items())
        score = "given" if a.score is None else f"{a.score:.0f}"
        estimate, shared = ("" if value is None else str(value) for value in (a.registers, a.shared_bytes))
        verdict = "taken" if a.refused is None else f"refused: {a.refused}"
        rows.append((str(a.config), score, estimate, actual, shared, verdict))
    return header, rows


def stages_table(stages: Mapping[str, float]) -> tuple[Row, list[Row]]:
    """Return the time of each stage, and its share."""
    total = sum(stages.values())
    rows = [(name, f"{1e3 * s:.1f}", f"{100 * s / (total or 1):.0f}%") for name, s in stages.items()]
    return ("stage", "ms", "share"), [*rows, ("all", f"{1e3 * total:.1f}", "100%")]


def _print_aligned(rows: Sequence[Row], stream: TextIO) -> None:
    """Print rows as plain text, each column as wide as its widest entry."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(f"{text:<{width}}" for text, width in zip(row, widths)).rstrip(), file=stream)


def show_table(header: Row, rows: Sequence[Row], stream: TextIO, styles: Sequence[str] = ()) -> None:
    """Print a table with a header: ruled on a terminal, with a style for each row, else aligned plain text."""
    rows = [tuple(map(visible, row)) for row in rows]
    if not stream.isatty():
        _print_aligned([header, *rows], stream)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold cyan", pad_edge=False)
    for title in header:
        table.add_column(title, overflow="fold")  # all of a problem can be read in any width
    for row, style in zip_longest(rows, styles):
        table.add_row(*map(Text, row), style=style)
    Console(file=stream).print(table)


def show(rows: list[tuple[str, str]], stream: TextIO) -> None:
    """Print a report: a table on a terminal, else aligned plain text."""
    rows = [(label, visible(text)) for label, text in rows]
    if not stream.isatty():
        _print_aligned([(f"{label:<{_LABEL_WIDTH}}", text) for label, text in rows], stream)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colors = {**dict.fromkeys(("PASSED", "CLEAN"), "bold green"), **dict.fromkeys(("FAILED", "FINDINGS"), "bold red")}
    table = Table(show_header=False, box=None, pad_edge=False)
    for label, text in rows:
        table.add_row(Text(label, style="cyan"), Text(text, style=colors.get(text, "")))
    Console(file=stream).print(table)
