"""`convgen tune`: time the chooser's best configs, and keep the fastest in a registry."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convgen.commands import generate, session
from convgen.commands.arguments import Parser, add_device, add_target, add_workers, number
from convgen.commands.rows import Row, death, in_order, status_counts
from convgen.ir.error import UserError

if TYPE_CHECKING:
    from convgen.problem.requests import Request
    from convgen.tune.work import Result, Task

TUNED, KEPT, REFUSED = STATUSES = ("tuned", "kept", "refused")

_DRIVERS = ("conv", "deconv", "matmul")
_CONFIGS = 8
_MOST_LINES = 100  #: lines of a worker's internal error that are kept
_PRELOAD = ("convgen.tune.work", "convgen.profile.launch_times")


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "tune",
        "Time the best configs of each problem by the model of whole launches (docs/time.md), or with --on on a\n"
        "device, and keep the fastest in a registry: a text file, a line a problem, that a team shares. Commands\n"
        "that generate look there first if --registry or CONVGEN_REGISTRY names it. Problems that it has are skipped,\n"
        "so an interrupted command continues when it is repeated. Problems are descriptors, under the knobs given\n"
        "here, or files as of `convgen batch`.",
        "convgen tune resnet50.txt --dir FWD_D --dt f16 --target {newest} --registry team.registry",
        "convgen tune mb32ic64ih56oc64oh56kh3ph1 1024x512:512x256 --dt f16,bf16 --configs 16 --registry team.registry",
        "convgen tune --merge theirs.registry --registry team.registry",
        "convgen tune models.txt --registry team.registry --dask tcp://head:8786",
        "convgen tune models.txt --registry team.registry --on {device}",
    )
    add = parser.add_argument
    add("what", metavar="LIST|PROBLEM", nargs="*", help="a batch file, or a descriptor of a convolution or product")
    add_target(parser)
    add("--registry", metavar="FILE", help="file of the fastest configs (default: CONVGEN_REGISTRY)")
    add_tuning(add)
    add(
        "--merge",
        action="append",
        default=[],
        metavar="FILE",
        help="add the entries of another registry; the faster config of two stays",
    )
    add_device(add, "time configs on a device instead, and check outputs of the fastest")
    add_workers(add, "one a core; with --on one")
    add("--json", action="store_true", help="print one JSON object per problem on stdout, and nothing else")
    generate.add_knobs(parser, *_DRIVERS)
    return parser


def add_tuning(add: Callable[..., object]) -> None:
    """Add the options of tuning that other commands have, too."""
    add(
        "--configs",
        type=number(1),
        default=_CONFIGS,
        metavar="N",
        help=f"configs to time per problem (default {_CONFIGS})",
    )
    add("--again", action="store_true", help="also time problems that the registry has, its config among the others")
    add("--dask", metavar="ADDRESS", help="tune on the workers of this Dask scheduler instead")


def tune(arguments: Sequence[str]) -> int:
    from convgen import registry

    options, knobs = generate.parse_knobs(parser(), arguments, *_DRIVERS)
    path = registry_path(options)
    if not options.what and not options.merge:
        raise UserError("given no problem, wanted a batch file or a descriptor such as mb1ic64ih56oc64oh56kh3ph1")
    refuse_early(options)
    registry.merge(path, map(Path, options.merge))
    requests = _requests(options.what, knobs, options.driver)
    rows = tuned_rows(options, requests, path, lambda _, row: _print_row(options, row))
    if requests:
        _summarise(options, rows)
    return max((int(row["exit"]) for row in rows), default=session.FINE)


def registry_path(options: argparse.Namespace) -> Path:
    """Return the file for the results. Raises UserError if no option or variable names one."""
    from convgen import registry

    path = registry.named(options.registry)
    if path is None:
        raise UserError("given neither --registry nor CONVGEN_REGISTRY, wanted a file for the results")
    return path


def refuse_early(options: argparse.Namespace) -> None:
    """Raise UserError for options of tuning that every problem would refuse."""
    from convgen.backends import target as targets
    from convgen.backends.family import chips

    targets.get(options.target)
    timed = dict.fromkeys(target for chip in chips().values() for target in (chip.target, *chip.others))
    if options.on is not None:
        session.device_of(options)
        if (options.jobs or 1) > 1:
            raise UserError(f"given --jobs {options.jobs} with --on, wanted 1: one device times one program at a time")
    elif options.target not in timed:
        given = f"the target {options.target}, whose launches have no model"
        raise UserError(f"given {given}, wanted one of {', '.join(timed)}, or --on with a device")
    if options.dask is not None and options.timeout is not None:
        raise UserError("given --timeout with --dask, wanted one of them: work elsewhere is not ended from here")


def _requests(words: Sequence[str], knobs: dict[str, str], driver: str | None) -> list[Request]:
    """Return the problems of files and descriptors, each once and without its name, which a registry ignores."""
    from convgen.problem.requests import Reader, distinct

    readers = [(word, Reader.of(knobs, None, None, driver)) for word in words]
    return distinct(
        request
        for word, reader in readers
        for request in (reader.file(Path(word)) if os.path.exists(word) else reader.words(word))
    )


def tuned_rows(
    options: argparse.Namespace, requests: Sequence[Request], path: Path, show: Callable[[int, Row], None]
) -> list[Row]:
    """Return the row of each request of `distinct`, and write the fastest configs to the registry `path`.

    `show` prints rows in the order of requests. Raises UserError for a registry that cannot be read or written.
    """
    resumes = "; the same command goes on from there"
    return in_order(_coming(options, requests, path), len(requests), "tune", show, resumes)


def _coming(
    options: argparse.Namespace, requests: Sequence[Request], path: Path
) -> Generator[tuple[int, Row], None, None]:
    """Yield the number of each request with its row, as they complete; results are in the registry `path` by then."""
    from convgen import registry
    from convgen.commands import workers
    from convgen.tune.work import Task

    known = registry.read_or_begin(path)
    waiting: list[tuple[int, Task]] = []
    for at, request in enumerate(requests):
        entry = known.entries.get((options.target, request.text))
        if request.error is not None:
            yield at, _refused(options, request, *session.failure(request.error))
        elif entry is not None and not options.again:
            found = {"config": entry.config, "us": entry.us, "model": entry.model}
            yield at, _row(options.target, request, KEPT, session.FINE, None, **found)
        else:
            known_config = "" if entry is None else entry.config
            task = Task(options.target, options.configs, request.text, known_config, options.on or "")
            waiting.append((at, task))
    tasks = [task for _, task in waiting]
    with closing(_answers(options, tasks)) as answers:
        for turn, answer in answers:
            at = waiting[turn][0]
            if isinstance(answer, workers.Died):
                yield at, _refused(options, requests[at], *death(answer, options.timeout))
                continue
            result = _checked(tasks[turn], answer)
            if isinstance(result, tuple):
                yield at, _refused(options, requests[at], *result)
            else:
                registry.add(path, [result.entry])
                yield at, _tuned(requests[at], result)


def _checked(task: Task, answer: object) -> Result | tuple[int, str]:
    """Return the result in a worker's answer, possibly from another machine; without one, exit code and message."""
    from convgen.ir.untrusted import shown
    from convgen.tune.work import checked

    match answer:
        case (session.WRONG | session.REFUSED | session.INTERNAL as code, str(text)):
            lines = [shown(line, 2000) for line in text.split("\n")[:_MOST_LINES]]
            return code, "\n".join(lines)
    try:
        return checked(task, answer)
    except Exception as error:
        return session.failure(error)


def _answers(options: argparse.Namespace, tasks: Sequence[Task]) -> Generator[tuple[int, Any], None, None]:
    """Yield the number of each task with the result of `perform`, or how its process ended, as they complete."""
    from convgen.commands import workers

    if options.dask is not None:
        from convgen.commands import cluster

        return cluster.run(perform, tasks, options.dask)
    if options.on is None:
        return workers.run(perform, tasks, options.jobs or len(os.sched_getaffinity(0)), _PRELOAD, options.timeout)
    from convgen.device.devices import runtime_of

    lifetime = workers.LIFETIME if runtime_of(options.on)[0].survives_faults else 1
    return workers.run(perform, tasks, 1, _PRELOAD, options.timeout, lifetime)


def perform(task: Task) -> Result | tuple[int, str]:
    """Return the result of tuning a problem, or its exception's exit code and message. Raises nothing."""
    from convgen.tune import work

    try:
        return work.perform(task)
    except Exception as error:
        return session.failure(error)


# ---------------------------------------------------------------- reports


def _tuned(request: Request, found: Result) -> Row:
    from convgen.tune.work import describe

    return _row(found.entry.target, request, TUNED, session.FINE, None, **describe(found))


def _refused(options: argparse.Namespace, request: Request, code: int, text: str) -> Row:
    return _row(options.target, request, REFUSED, code, text)


def _row(target: str, request: Request, status: str, code: int, error: str | None, **found: Any) -> Row:
    nothing = dict.fromkeys(("config", "us", "model", "chosen")) | {"timed": [], "seconds": 0.0}
    data = {"problem": request.text, "target": target, "status": status, **nothing, **found}
    return {"exit": code, "data": {**data, "error": error, "where": request.where}}


def complain(row: Row) -> None:
    """Print the error of a problem on stderr, if it has one."""
    data = row["data"]
    if data["error"] is not None:
        session.complain(": ".join(filter(None, (data["where"] or data["problem"], data["error"]))))


def _print_row(options: argparse.Namespace, row: Row) -> None:
    complain(row)
    data = row["data"]
    if options.json:
        print(json.dumps(data), flush=True)


def _summarise(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Print the table of all problems and the number of each status; with JSON only the latter, on stderr."""
    from convgen.show import report

    entries = [row["data"] for row in rows]
    if not options.json:
        report.show_table(("status", "us", "chosen", "problem", "config"), list(map(_cells, entries)), sys.stdout)
        print()
    print(counted(rows), file=sys.stderr if options.json else sys.stdout)


def counted(rows: Sequence[Row]) -> str:
    """Return the number of each status, and of the problems whose fastest config is not the chooser's."""
    entries = [row["data"] for row in rows]
    gains = [data["chosen"]["us"] / data["us"] for data in entries if data["chosen"] is not None]
    better = f"; {sum(gain > 1 for gain in gains)} quicker than chosen" if gains else ""
    return status_counts(Counter(data["status"] for data in entries), STATUSES) + better


def _cells(data: dict[str, Any]) -> tuple[str, ...]:
    times = data["us"], None if data["chosen"] is None else data["chosen"]["us"]
    us, chosen = ("" if time is None else f"{time:.3f}" for time in times)
    return data["status"], us, chosen, data["problem"], data["config"] or ""
