"""`convgen batch`: generate every problem of a batch file, each in a worker process that may fail alone."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, nullcontext, redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from convgen.commands import generate, session
from convgen.commands.arguments import Parser, add_selection, refuse
from convgen.commands.rows import Row, death, in_order, status_counts
from convgen.ir.error import Unsupported, UserError, visible

DRIVERS = ("conv", "deconv", "matmul")  #: the drivers of benchdnn whose problems are taken

if TYPE_CHECKING:
    from convgen.commands.journal import Journal
    from convgen.problem.requests import Reader, Request
    from convgen.run.code import Code

    Addition = Callable[[argparse.Namespace, Code], Mapping[str, Any]]  #: further entries of a problem's row

PASSED, GENERATED, FAILED, UNSUPPORTED, ERROR = STATUSES = ("passed", "generated", "failed", "unsupported", "error")
SUPPORTED, MALFORMED = "supported", "malformed"  #: statuses of --check besides unsupported

_SEVERITY = (session.FINE, session.REFUSED, session.WRONG, session.INTERNAL)  #: exit codes, the worst last
#: Modules that are imported before workers fork.
_PRELOAD = ("convgen.driver", "convgen.show.report", "convgen.run.verdict", "convgen.show.watch")

#: Options that do not affect the result of a problem.
_ASIDE = (
    *("cache", "check", "file", "ignored", "jobs", "json"),
    *("match", "resume", "start", "time_passes", "timeout", "verbose"),
)


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "batch",
        "Generate every problem of a benchdnn batch file, in worker processes, and with --run verify it. Knobs given\n"
        "here win over the file's and may be lists (--dt f16,bf16). FILE may be a log, a table or an ONNX model, too:\n"
        "docs/requests.md lists the formats. Lines that are no requests are counted. --conv, --deconv and\n"
        "--matmul in the file say whose descriptors follow, else a descriptor's first character does.\n"
        "\n"
        "Each problem ends as passed, generated (without --run), failed, unsupported or error. The exit code is 3\n"
        "after an internal error, else 1 after a wrong result, else 2 after a request that was wrong or unsupported.\n"
        "With --check nothing is generated; each problem is supported, unsupported by a rule, or malformed.",
        "convgen batch resnet50.txt --dir FWD_D --dt f16 --run-groups 8",
        "convgen batch sweep.txt --run --jobs 8 --resume sweep.journal --json >sweep.json",
        "convgen batch shapes.txt --match ic64 --start 100 -o out/",
        "convgen batch models.txt --check --target {other} --json >support.json",
    )
    add = parser.add_argument
    add("file", metavar="FILE", help="--KNOB=VALUE[,VALUE...] ... DESC ..., or a log; - is the standard input")
    add(
        "--check",
        action="store_true",
        help="only report whether each problem is supported, or the rule that refuses it",
    )
    add("--resume", metavar="JOURNAL", help="keep results in this file, and skip problems that it has")
    add_selection(add)
    generate.add_knobs(parser, *DRIVERS)
    return generate.finished(parser)


def batch(arguments: Sequence[str]) -> int:
    from convgen import registry
    from convgen.commands.journal import Journal
    from convgen.problem.requests import Reader
    from convgen.show import report

    options, knobs = generate.parse_knobs(parser(), arguments, *DRIVERS)
    if options.check:
        refuse(options, ("run", "run_groups", "resume"), "with --check, wanted one of them: it generates nothing")
    refuse_early(options)
    registry.read_named(options.registry)
    if options.output is not None and not options.output.endswith("/"):
        raise UserError(f"given -o {options.output}, wanted a directory DIR/ for the files of several problems")
    reader = Reader.of(knobs, options.match, options.start)
    if options.check:
        return _check_all(options, reader)
    requests = list(reader.file(Path(options.file)))
    report_reading(options, reader, len(requests))
    start = perf_counter()
    resumed = None if options.resume is None else Journal(Path(options.resume), report.check_row)
    with nullcontext(None) if resumed is None else closing(resumed) as journal:
        rows = _run(options, requests, journal)
    _summarise(options, rows, perf_counter() - start)
    print_remarks(options, reader)
    return worst(rows)


def worst(rows: Sequence[Row]) -> int:
    """Return the exit code of many problems: that of the worst."""
    return max((int(row["exit"]) for row in rows), key=_SEVERITY.index, default=session.FINE)


def report_reading(options: argparse.Namespace, reader: Reader, problems: int) -> None:
    """Report ignored options. Raises UserError if there is no problem."""
    if reader.ignored:
        texts = ", ".join(f"{option} ({where})" for option, where in reader.ignored.items())
        session.complain(f"note: ignored, as they mean nothing here: {texts}")
    if not problems:
        remarks = f" ({_counted_remarks(reader)})" if reader.remarks else ""
        raise UserError(f"given {options.file} with no problem that is selected{remarks}, wanted at least one")


def _counted_remarks(reader: Reader) -> str:
    """Return the number of lines that are no requests, the first of them, and how their programs log requests."""
    from convgen.problem import request_lines

    count, first = len(reader.remarks), reader.remarks[0]
    lines = "1 line is no request" if count == 1 else f"{count} lines are no requests"
    where = f"{lines}, {'it' if count == 1 else 'the first'} is {first.where} {visible(first.text[:40])!r}"
    return "; ".join([where, *request_lines.advice(remark.text for remark in reader.remarks)])


def print_remarks(options: argparse.Namespace, reader: Reader) -> None:
    """Report all lines that are no requests in one line."""
    if reader.remarks:
        print(_counted_remarks(reader), file=sys.stderr if options.json else sys.stdout)


def _check_all(options: argparse.Namespace, reader: Reader) -> int:
    """Print for each problem, as it is read, whether it would be generated."""
    counts: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    start = perf_counter()
    for request in reader.file(Path(options.file)):
        status, rule, error = verdict(options.target, request)
        counts[status] += 1
        rules[rule or ""] += rule is not None
        if options.json:
            row = {"problem": request.text, "where": request.where, "target": options.target}
            counted = {"count": request.count} if request.count > 1 else {}
            print(json.dumps({**row, "status": status, "rule": rule, "error": error, **counted}))
        else:
            counted_text = f" ({request.count} times)" if request.count > 1 else ""
            print(visible(f"{status:<12}{rule or '':<24}{request.text}{counted_text}"))
            if error is not None:
                print(f"    {visible(error)}")
    report_reading(options, reader, counts.total())
    stream = sys.stderr if options.json else sys.stdout
    print(f"{problems(counts.total())} in {perf_counter() - start:.1f} s: {check_counts(counts)}", file=stream)
    for rule, count in rules.most_common():
        if count:
            print(f"{count:>8}  {rule}", file=stream)
    print_remarks(options, reader)
    return session.FINE if counts[SUPPORTED] == counts.total() else session.REFUSED


def verdict(target: str, request: Request) -> tuple[str, str | None, str | None]:
    """Return the status of a request, the rule by which it is unsupported, if it is, and the message."""
    error = request.error
    if request.problem is not None:
        try:
            generate.check(request.problem, target)
        except Exception as refused:
            error = refused
    if error is None:
        return SUPPORTED, None, None
    code, text = session.failure(error)
    if code == session.INTERNAL:
        raise error
    return (UNSUPPORTED, error.rule, text) if isinstance(error, Unsupported) else (MALFORMED, None, text)


def refuse_early(options: argparse.Namespace) -> None:
    """Raise UserError for options that every problem would refuse, other than a registry that cannot be read."""
    from convgen.compile_steps import check_names, steps
    from convgen.plan.config import BESIDE, Config
    from convgen.show import watch

    check_names(options.disable, steps(options.target), optional=True)
    for line in (options.config or "").split(BESIDE) if options.config is not None else ():
        Config.parse(line)
    if options.dump is not None:
        watch.check_dump(options.dump, options.target)
    session.check_device(options)


def _run(options: argparse.Namespace, requests: Sequence[Request], journal: Journal | None) -> list[Row]:
    """Return the row of every request; rows are printed in the order of requests."""
    resumes = "" if journal is None else "; the same command goes on from there"
    coming = rows_coming(options, requests, partial(perform, options), journal)
    return in_order(coming, len(requests), options.file, partial(_print_row, options, requests), resumes)


def rows_coming(
    options: argparse.Namespace, requests: Sequence[Request], work: Callable[[str], Row], journal: Journal | None = None
) -> Generator[tuple[int, Row], None, None]:
    """Yield the number of each request with its row, as they complete.

    `work` makes the row of a problem line in a worker process, as `perform` does. The journal keeps all but internal
    errors.
    """
    from convgen.commands import workers

    keys = _keys(options, requests)
    waiting: list[int] = []
    for at, request in enumerate(requests):
        known_row = None if journal is None else journal.get(keys[at])
        if request.error is not None:
            yield at, _refused(options, request.text, request.error)
        elif known_row is not None:
            yield at, {**known_row, "kept": True}
        else:
            waiting.append(at)
    lines = [requests[at].text for at in waiting]
    jobs = options.jobs or len(os.sched_getaffinity(0))
    with closing(workers.run(work, lines, jobs, _PRELOAD, options.timeout)) as answers:
        for number, answer in answers:
            at = waiting[number]
            if isinstance(answer, workers.Died):
                code, text = death(answer, options.timeout)
                yield at, _row(code, ERROR, _nothing(options, lines[number]), text)
                continue
            if journal is not None and answer["exit"] != session.INTERNAL:
                journal.add(keys[at], answer)
            yield at, answer


def _keys(options: argparse.Namespace, requests: Sequence[Request]) -> list[str]:
    """Return the journal's key of each request: its line, which has all knobs, and the options that affect its
    result.
    """
    from convgen.commands.journal import key_of
    from convgen.problem.options import KNOBS

    knobs = [option.keyword for option in KNOBS]
    settings = {name: value for name, value in vars(options).items() if name not in (*_ASIDE, *knobs)}
    return [key_of(request.text, settings) for request in requests]


def perform(options: argparse.Namespace, line: str, add: Addition | None = None) -> Row:
    """Generate one problem, write files as asked, and run it if asked; `add` returns further entries of the row for the
    options and the code. Raises nothing.
    """
    from convgen.problem.matmul import parse_problem
    from convgen.show import report

    start = perf_counter()
    with redirect_stderr(StringIO()) as said:
        try:
            code = generate.make(options, parse_problem(line))
            files, outcome = session.finish(options, code)
            added = {} if add is None else add(options, code)
        except Exception as error:
            row = _refused(options, line, error)
        else:
            data = report.as_json(line, code, files, outcome)
            if outcome is None:
                row = _row(session.FINE, GENERATED, data)
            elif outcome.passed:
                row = _row(session.FINE, PASSED, data)
            else:
                row = _row(session.WRONG, FAILED, data, report.failure_line(outcome))
            row.update(added)
    row["said"] = said.getvalue()
    row["data"]["seconds"] = round(perf_counter() - start, 6)
    return row


def _refused(options: argparse.Namespace, line: str, error: Exception) -> Row:
    code, text = session.failure(error, options.verbose)
    status = UNSUPPORTED if isinstance(error, Unsupported) else ERROR
    return _row(
        code, status, _nothing(options, line), text, rule=error.rule if isinstance(error, Unsupported) else None
    )


def _nothing(options: argparse.Namespace, line: str) -> dict[str, Any]:
    """Return the `--json` object of a problem without code."""
    from convgen.show import report

    return report.without_code(line, options.target, options.config or "")


def _row(code: int, status: str, data: dict[str, Any], error: str | None = None, rule: str | None = None) -> Row:
    """Return the row of a problem; `said` is its text on stderr, `kept` tells whether it comes from a journal."""
    data = {**data, "status": status, "rule": rule, "error": error, "seconds": 0.0}
    return {"exit": code, "said": "", "kept": False, "data": data}


def complain(request: Request, row: Row) -> None:
    """Print what was said of a problem, and its error, on stderr."""
    sys.stderr.write(row["said"])
    if row["data"]["error"] is not None:
        session.complain(f"{request.where}: {row['data']['error']}")


def _print_row(options: argparse.Namespace, requests: Sequence[Request], number: int, row: Row) -> None:
    request, data = requests[number], row["data"]
    complain(request, row)
    if options.json:
        counted = {"count": request.count} if request.count > 1 else {}
        print(json.dumps({**data, "where": request.where, **counted}), flush=True)


def _summarise(options: argparse.Namespace, rows: Sequence[Row], seconds: float) -> None:
    """Print the table of all problems and the number of each status; with JSON only the latter, on stderr."""
    from convgen.show import report

    if not options.json:
        header = ("status", "problem", "config", "checked", "mismatches", "seconds")
        report.show_table(header, [_cells(row["data"]) for row in rows], sys.stdout)
        print()
    counts = Counter(row["data"]["status"] for row in rows)
    kept = sum(row["kept"] for row in rows)
    known = f" ({kept} known from {options.resume})" if kept else ""
    line = f"{problems(len(rows))} in {seconds:.1f} s: {status_counts(counts, STATUSES)}{known}"
    print(line, file=sys.stderr if options.json else sys.stdout)


def check_counts(counts: Counter[str]) -> str:
    """Return the number of each status of --check that occurs."""
    return status_counts(counts, (SUPPORTED, UNSUPPORTED, MALFORMED))


def problems(count: int) -> str:
    """Return a number of problems in words."""
    return "1 problem" if count == 1 else f"{count} problems"


def _cells(data: dict[str, Any]) -> tuple[str, ...]:
    run = data["run"]
    checked, mismatches = ("", "") if run is None else (str(run["checked"]), str(run["mismatches"]))
    return data["status"], data["problem"], data["config"], checked, mismatches, f"{data['seconds']:.2f}"
