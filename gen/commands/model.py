"""`convgen model`: all convolutions and products of a model: what is supported, where the time goes, and a package."""

from __future__ import annotations

import argparse
import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path, PurePath
from time import perf_counter
from typing import TYPE_CHECKING, Any

from convgen.commands import batch, generate, session, tune
from convgen.commands.arguments import Parser, add_selection, refuse
from convgen.commands.rows import Row, in_order, status_counts
from convgen.ir.error import UserError, visible

if TYPE_CHECKING:
    from convgen.device.model_package import Package
    from convgen.problem.requests import Reader, Request
    from convgen.run.code import Code

_SAMPLED = 2  #: output tiles of each problem that are verified unless an option says how many
_OUTPUT = "FOLDER", "write code objects, launch records and model.json, which lists layers, to this folder, or nothing"


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "model",
        "List the distinct convolutions and products of a model with the layers they stand for, generate them in\n"
        "worker processes, verify sampled output tiles on the simulator, and predict where the time goes\n"
        "(docs/time.md). FILE is a model of ONNX or torch.export (.onnx, .pt2), or any file that `convgen batch`\n"
        "reads; knobs given here win over the file's (--dt f16). A name in a batch file such as n'res2a*3' stands\n"
        "for 3 layers.\n"
        "\n"
        "The exit code is that of a batch. Problems that a rule refuses are left out of the package; after any other\n"
        "error no package is written.",
        "convgen model resnet50.onnx --mb 16 --dt f16",
        "convgen model unet.pt2 --check --target {other}",
        "convgen model llama.txt --tune --registry team.registry",
        "convgen model whisper.pt2 -o kernels/ --python --c whisper",
    )
    add = parser.add_argument
    add("file", metavar="FILE", help="a model, a batch file, or a log; - is the standard input")
    add("--check", action="store_true", help="only list the problems, and the rules that refuse some")
    add("--no-run", action="store_true", help=f"do not verify (default: {_SAMPLED} output tiles of each problem)")
    add_selection(add)
    add = parser.add_argument_group("tuning (docs/tune.md)").add_argument
    add("--tune", action="store_true", help="first time configs of each problem, and keep the fastest in --registry")
    tune.add_tuning(add)
    add = parser.add_argument_group("package, with -o").add_argument
    add("--c", metavar="NAME", help="add the kernels as C: NAME.h and a source for each, all names begin with NAME")
    add("--python", action="store_true", help="add __init__.py: load(layer) loads a kernel on a device")
    generate.add_knobs(parser, *batch.DRIVERS)
    return generate.finished(parser, _OUTPUT)


def model(arguments: Sequence[str]) -> int:
    from convgen.problem.requests import Reader, distinct

    options, knobs = generate.parse_knobs(parser(), arguments, *batch.DRIVERS)
    _refuse_early(options)
    reader = Reader.of(knobs, options.match, options.start)
    requests = distinct(reader.file(Path(options.file)))
    batch.report_reading(options, reader, len(requests))
    if options.check:
        return _check(options, reader, requests)
    start = perf_counter()
    tuned = _tuned(options, requests) if options.tune else []
    rows = _rows(options, requests, tuned)
    written: list[str] = []  # a package that cannot be written leaves the report
    package = session.guarded(lambda: _write(options, requests, rows, written), options.verbose)
    _report(options, requests, rows, written)
    done = f"{batch.problems(len(rows))} in {perf_counter() - start:.1f} s"
    print("; ".join([done, *([f"tuning: {tune.counted(tuned)}"] if tuned else [])]), file=sys.stderr)
    batch.print_remarks(options, reader)
    return batch.worst([*rows, *tuned, {"exit": package}])


def _refuse_early(options: Namespace) -> None:
    """Raise UserError for options that every problem would refuse; fill in how many output tiles are verified."""
    from convgen import registry
    from convgen.device import c_export, model_package

    if options.check:
        others = ("run", "run_groups", "tune", "output")
        refuse(options, others, "with --check, wanted one of them: it generates nothing")
    if options.no_run:
        refuse(options, ("run", "run_groups", "on"), "with --no-run, wanted one of them")
    elif options.run_groups is None and not options.run:
        options.run_groups = _SAMPLED
    if options.output is None:
        refuse(options, ("c", "python"), "without -o, wanted a folder for the package, at -o")
    elif not options.output or (Path(options.output).exists() and not Path(options.output).is_dir()):
        raise UserError(f"given {options.output!r}, wanted a folder, at -o")
    elif options.python:
        model_package.check_importable(Path(options.output))
    if options.c is not None:
        c_export.check_name(options.c)
    if options.tune:
        registry.read_or_begin(tune.registry_path(options))
        tune.refuse_early(options)
    else:
        refuse(options, ("again", "dask"), "without --tune, wanted both")
        registry.read_named(options.registry)
    batch.refuse_early(options)


# ---------------------------------------------------------------- the list


def _check(options: Namespace, reader: Reader, requests: Sequence[Request]) -> int:
    """Print which problems are supported, and why others are not; nothing is generated."""
    from convgen.show import report

    verdicts = [batch.verdict(options.target, request) for request in requests]
    counts = Counter(status for status, _, _ in verdicts)
    if options.json:
        keys = ("status", "rule", "error")
        entries = [_request_json(r) | dict(zip(keys, verdict)) for r, verdict in zip(requests, verdicts)]
        print(json.dumps({**_title(options), "problems": entries}))
    else:
        rows = [(status, *_cells(request)) for (status, _, _), request in zip(verdicts, requests)]
        report.show_table(("status", "count", "layers", "problem"), rows, sys.stdout)
        for (_, _, error), request in zip(verdicts, requests):
            if error is not None:
                print(visible(f"{request.where}: {error}"))
        print(f"\n{_layers(requests)}: {batch.check_counts(counts)} on {options.target}")
    batch.print_remarks(options, reader)
    return session.FINE if counts[batch.SUPPORTED] == counts.total() else session.REFUSED


def _title(options: Namespace) -> dict[str, Any]:
    return {"model": options.file, "target": options.target}


def _request_json(request: Request) -> dict[str, Any]:
    entry = {"problem": request.text, "where": request.where}
    return {**entry, "count": request.count, "layers": list(request.layers)}


def _cells(request: Request) -> tuple[str, str, str]:
    """Return the cells of a table: count, layers in short, and problem."""
    from convgen.device.model_package import shortened

    return str(request.count), shortened(request.layers), request.text


def _layers(requests: Sequence[Request]) -> str:
    count = sum(request.count for request in requests)
    return f"{count} {'layer' if count == 1 else 'layers'}, {len(requests)} distinct"


# ---------------------------------------------------------------- the work


def _tuned(options: Namespace, requests: Sequence[Request]) -> list[Row]:
    """Tune the problems; return the rows of `convgen tune`."""
    return tune.tuned_rows(options, requests, tune.registry_path(options), lambda _, row: tune.complain(row))


def _rows(options: Namespace, requests: Sequence[Request], tuned: Sequence[Row]) -> list[Row]:
    """Return a row for each problem; it has the profile, and the files if a package is asked for.

    After tuning the row has the time of the chooser's config, too.
    """
    in_worker = Namespace(**{**vars(options), "output": None})
    work = partial(batch.perform, in_worker, add=partial(profiled, packs=options.output is not None))
    coming = _largest_first(in_worker, requests, work)
    rows = in_order(coming, len(requests), options.file, lambda at, row: batch.complain(requests[at], row))
    for row, tuning in zip(rows, tuned):
        row["data"]["tuning"] = {key: tuning["data"][key] for key in ("status", "us", "chosen", "error")}
    return rows


def _largest_first(
    options: Namespace, requests: Sequence[Request], work: Callable[[str], Row]
) -> Generator[tuple[int, Row], None, None]:
    """Yield what `batch.rows_coming` does, with the largest problems begun first, so that workers end together."""
    sizes = [0 if request.problem is None else request.problem.macs for request in requests]
    order = sorted(range(len(requests)), key=lambda at: (-sizes[at], at))
    with closing(batch.rows_coming(options, [requests[at] for at in order], work)) as coming:
        for turn, row in coming:
            yield order[turn], row


def profiled(options: Namespace, code: Code, *, packs: bool) -> dict[str, Any]:
    """Return the entries of a row that a model adds to those of a batch: the profile of the code, and its files."""
    from convgen.backends import target as targets
    from convgen.ir.record import as_dict
    from convgen.profile.summary import summary
    from convgen.run.files import contents_of

    family = targets.get(options.target).family
    suffixes = family.text_suffix, family.object_suffix, family.machine_suffix
    files = contents_of(code, code.name, *suffixes)[1] if packs and code.record.launches else {}
    contents = {path.name: content for path, content in files.items()}
    return {"profile": as_dict(summary(code)), "contents": contents}


def _write(options: Namespace, requests: Sequence[Request], rows: Sequence[Row], written: list[str]) -> int:
    """Write the package, unless a problem went wrong; add the paths of its files to `written`. Return the exit code.

    Raises UserError, with nothing written, if a file cannot be.
    """
    if options.output is None:
        return session.FINE
    bad = sum(row["data"]["status"] in (batch.FAILED, batch.ERROR) for row in rows)
    if bad:
        session.complain(f"note: {bad} of {batch.problems(len(rows))} went wrong, so {options.output} is not written")
        return session.FINE
    from convgen.run.files import write_all

    contents = _package(options, requests, rows).contents(Path(options.output), options.c, python=options.python)
    write_all(contents)
    written += map(str, contents)
    return session.FINE


def _package(options: Namespace, requests: Sequence[Request], rows: Sequence[Row]) -> Package:
    from convgen.device.model_package import Kernel, Package

    pairs = list(zip(requests, rows))
    kernels = (
        Kernel(
            request.text, row["data"]["config"], request.layers, request.count, row["contents"], row["profile"]["us"]
        )
        for request, row in pairs
        if row["data"]["error"] is None
    )
    left_out = ((request.layers, row["data"]["error"]) for request, row in pairs if row["data"]["error"] is not None)
    return Package(PurePath(options.file).name, options.target, tuple(kernels), tuple(left_out))


# ---------------------------------------------------------------- reports


def _report(options: Namespace, requests: Sequence[Request], rows: Sequence[Row], written: Sequence[str]) -> None:
    """Print the table of all problems, those that take most time first, the total, and the written files."""
    from convgen.show import report

    times = [_time(request, row) for request, row in zip(requests, rows)]
    known = [time for time in times if time is not None]
    total = sum(known)
    if options.json:
        entries = [_json(request, row, time, total) for request, row, time in zip(requests, rows, times)]
        us = round(total, 4) if known else None
        print(json.dumps({**_title(options), "us": us, "problems": entries, "files": list(written)}))
        return
    order = sorted(range(len(rows)), key=lambda at: (times[at] is None, -(times[at] or 0.0), at))
    table = [_table_row(requests[at], rows[at], times[at], total, tuned=options.tune) for at in order]
    report.show_table(_header(tuned=options.tune), table, sys.stdout)
    counts = Counter(row["data"]["status"] for row in rows)
    print(f"\n{_layers(requests)}: {status_counts(counts, batch.STATUSES)} on {options.target}")
    _report_total(rows, known)
    if written:
        print(f"written: {len(written)} files in {visible(options.output)}")


def _report_total(rows: Sequence[Row], known: Sequence[float]) -> None:
    """Print the sum of the times, the model that they are of, and why some have none."""
    profiles = [row["profile"] for row in rows if "profile" in row]
    chips = ", ".join(dict.fromkeys(p["model"] for p in profiles if p["us"] is not None and p["model"]))
    if chips:
        some = "" if len(known) == len(rows) else f" of {len(known)} of {batch.problems(len(rows))}"
        print(f"predicted time{some} on {chips}: {sum(known):.1f} us")
    if any(profile["model"] == "loop" for profile in profiles):
        print("bound, matrix: of each kernel's loop")
    for why in dict.fromkeys(profile["why"] for profile in profiles if profile["us"] is None):
        print(f"no time: {visible(why)}")


def _time(request: Request, row: Row) -> float | None:
    """Return the predicted us of all layers of a problem; None without a time."""
    us = row["profile"]["us"] if "profile" in row else None
    return None if us is None else us * request.count


def _json(request: Request, row: Row, time: float | None, total: float) -> dict[str, Any]:
    """Return a problem for `--json`: a batch's object with layers and profile."""
    profile = row.get("profile")
    rounded = profile and {**profile, **{k: _rounded(profile[k]) for k in ("us", "matrix")}}
    entry = {**row["data"], **_request_json(request), "profile": rounded}
    return {**entry, "total_us": _rounded(time), "share": _rounded(None if time is None else time / (total or 1))}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _header(*, tuned: bool) -> tuple[str, ...]:
    chosen = ("us chosen",) if tuned else ()
    return ("status", "us", *chosen, "all us", "share", "bound", "matrix", "count", "layers", "problem")


def _table_row(request: Request, row: Row, time: float | None, total: float, *, tuned: bool) -> tuple[str, ...]:
    """Return the cells of a problem: time of a call and of all layers, share of the model, bound, utilisation."""
    profile = row.get("profile") or {"us": None, "bound": "", "matrix": None}
    share = None if time is None else time / (total or 1)
    before = (row["data"].get("tuning") or {}).get("chosen")
    chosen = (_text(before and before["us"], ".2f"),) if tuned else ()
    return (
        row["data"]["status"],
        _text(profile["us"], ".2f"),
        *chosen,
        _text(time, ".1f"),
        _text(share, ".1%"),
        profile["bound"] or "-",
        _text(profile["matrix"], ".0%"),
        *_cells(request),
    )


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
