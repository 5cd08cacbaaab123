"""Error handling and output of a command: errors become one line and an exit code, code becomes files and reports."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from convgen.ir.caret import PointedError
from convgen.ir.error import Unsupported, UserError, missing, visible

if TYPE_CHECKING:
    from convgen.run.code import Code
    from convgen.run.execution import Executor, Progress
    from convgen.run.files import Files
    from convgen.run.verdict import Outcome
    from convgen.show.watch import Watch

FINE, WRONG, REFUSED, INTERNAL = range(4)

_LONGEST = 2000  #: characters of a message; a longer one is cut in the middle
_MUCH = 1 << 30  #: bytes of memory; a larger need is reported before the run


def guarded(work: Callable[[], int], verbose: bool = False) -> int:
    """Run `work` and return its exit code; an exception becomes one line on stderr and an exit code.

    An excerpt of the IR from the verifier is shown below that line.
    """
    try:
        return work()
    except BrokenPipeError:
        raise
    except Exception as error:
        code, text = failure(error, verbose)
        if isinstance(error, PointedError) and on_terminal():
            text = f"{visible(str(error))}\n{error.excerpt}"
        complain(text)
        return code


def failure(error: Exception, verbose: bool = False) -> tuple[int, str]:
    """Return the exit code and message of an exception; `verbose` prints a traceback of an internal one.

    A missing resource of the machine (file, disk space, memory) is not an internal error.
    """
    if isinstance(error, PointedError):
        return REFUSED, visible(error.one_line)
    if isinstance(error, UserError):
        return REFUSED, _flat(str(error))
    if isinstance(error, Unsupported):
        return REFUSED, f"unsupported: {_flat(str(error))}"
    if isinstance(error, ModuleNotFoundError) and (lacking := missing(error)):
        return REFUSED, str(lacking)
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        return REFUSED, _flat(reason if error.filename is None else f"cannot use {error.filename}: {reason}")
    if isinstance(error, MemoryError):
        return REFUSED, _flat(f"the machine has not memory enough for this: {error}").rstrip(": ")
    if verbose:
        import traceback  # imported only for internal errors

        traceback.print_exception(error)
    notes: list[str] = getattr(error, "__notes__", [])
    remarks = "".join(f" ({note})" for note in notes if "\n" not in note)
    excerpts = "".join(f"\n{note}" for note in notes if "\n" in note)
    return INTERNAL, f"internal error: {type(error).__name__}: {_flat(str(error))}{remarks}{excerpts}"


def complain(text: str) -> None:
    """Print a message that is not a result on stderr."""
    lines = f"convgen: {text}".split("\n")
    print("\n".join(map(visible, lines)), file=sys.stderr)


def _flat(text: str) -> str:
    """Return a message in one line, cut in the middle if an input made it long."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 4 :]}"


def on_terminal() -> bool:
    """Return whether stderr is a terminal."""
    return sys.stderr.isatty()


@contextmanager
def watching(options: argparse.Namespace) -> Iterator[Watch]:
    """Yield a watch on the driver. It always reports the configs tried, and keeps a dump after an internal error."""
    from pathlib import Path

    from convgen.show.watch import Watch

    if options.dump_dir == "":
        raise UserError("given an empty name, wanted a directory, at --dump-dir")
    folder = None if options.dump_dir is None else Path(options.dump_dir)
    watch = Watch(sys.stderr, options.dump, folder, options.check_passes)
    try:
        yield watch
        for note in watch.notes:
            complain(f"note: {note}")
    except (UserError, Unsupported):
        raise
    except Exception as error:
        with suppress(OSError):  # where a dump cannot be written, `error` is still what matters
            if (dump := watch.keep(error)) is not None:
                error.add_note(f"dump: {dump}")
        raise
    finally:
        if options.verbose and watch.attempts:
            from convgen.show import report

            report.show_table(*report.attempts_table(watch.attempts.values()), sys.stderr)


def finish(options: argparse.Namespace, code: Code) -> tuple[Files | None, Outcome | None]:
    """Write and run code as asked."""
    if options.time_passes:
        from convgen.show import report

        report.show_table(*report.stages_table(code.stages), sys.stderr)
    from convgen.backends import target as targets

    files, outcome = None, None
    target = targets.get(code.target)
    if options.output is not None:
        from convgen.run.files import write_code

        family = target.family
        files = write_code(code, options.output, family.text_suffix, family.object_suffix, family.machine_suffix)
    if options.run or options.run_groups is not None:
        from convgen.run import verdict

        with progress_bar(str(code.problem or code.name)) as progress:
            outcome = verdict.run(
                code,
                groups=options.run_groups,
                seed=options.seed,
                progress=progress,
                report_bytes=report_bytes,
                on=device_of(options),
            )
    elif code.record.launches and code.object is None:
        complain(f"note: no assembler found ({target.assembler}), so text and launch record only")
    return files, outcome


def check_device(options: argparse.Namespace) -> None:
    """Raise UserError for --on without a run, and for a device that is missing."""
    if options.on is not None and not options.run and options.run_groups is None:
        raise UserError(f"given --on {options.on} without --run, wanted --run, or --run-groups to compare a sample")
    device_of(options)


def device_of(options: argparse.Namespace) -> Executor | None:
    """Return the device of `--on`, which replaces the simulator. Raises UserError if it is missing."""
    if options.on is None:
        return None
    from convgen.device.isolated import executor_on

    return executor_on(options.on)


def report_bytes(size: int) -> None:
    """Report the memory that a run will take, if it is much."""
    if size >= _MUCH:
        from convgen.run import footprint

        complain(f"note: the run takes about {footprint.text(size)} of memory")


def deliver(options: argparse.Namespace, code: Code) -> int:
    """Write, run and report code as asked; return the exit code."""
    from convgen.show import report

    files, outcome = finish(options, code)
    title = str(code.problem or code.name)
    if options.json:
        import json

        print(json.dumps(report.as_json(title, code, files, outcome)))
    elif outcome is not None:
        rows = [*report.code_rows(title, code), *report.file_rows(files)]
        report.show([*rows, *report.outcome_rows(outcome, report.labels_of(code, outcome))], sys.stdout)
    elif files is None:
        sys.stdout.write(code.asm)
    elif on_terminal():
        complain(f"note: wrote {report.written(files)}; config {code.config}")
    return FINE if outcome is None or outcome.passed else WRONG


@contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """Yield a progress bar on stderr for a simulation; None without a terminal."""
    if not on_terminal():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bar

    here_too = sys.stdout.isatty()  # else results must not go where the bar is
    with Bar(console=Console(stderr=True), transient=True, redirect_stdout=here_too) as bar:
        task = bar.add_task(escape(visible(title)), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
