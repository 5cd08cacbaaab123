"""The rows of commands that work on many problems: one a request, printed in the order of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from convgen.commands import session

if TYPE_CHECKING:
    from convgen.commands.workers import Died

#: The result of a request: its `exit` code and its JSON object `data`; a batch adds stderr text and more.
Row = dict[str, Any]


def in_order(
    coming: Generator[tuple[int, Row], None, None],
    count: int,
    title: str,
    show: Callable[[int, Row], None],
    resumes: str = "",
) -> list[Row]:
    """Return the rows of `count` requests. `coming` yields their numbers and rows as they complete.

    `show` prints each row in the order of requests, as soon as all rows before it are complete. After an interrupt
    `resumes` ends the message.
    """
    done: dict[int, Row] = {}
    rows: list[Row] = []
    try:
        with session.progress_bar(title) as progress, closing(coming):
            for number, row in coming:
                done[number] = row
                while len(rows) in done:
                    rows.append(done[len(rows)])
                    show(len(rows) - 1, rows[-1])
                if progress is not None:
                    progress(len(done), count)
    except KeyboardInterrupt:
        session.complain(f"interrupted with {len(done)} of {count} problems done{resumes}")
        raise
    return rows


def death(answer: Died, timeout: int | None) -> tuple[int, str]:
    """Return the exit code and message of a problem whose process ended without a result."""
    from convgen.commands.workers import TookTooLong

    if isinstance(answer, TookTooLong):
        text = f"given --timeout {timeout}, wanted more: the problem takes longer than so many seconds"
        return session.REFUSED, text
    return session.INTERNAL, f"internal error: the worker process {answer.how}"


def status_counts(counts: Counter[str], statuses: Iterable[str]) -> str:
    """Return the number of each status that occurs."""
    return ", ".join(f"{counts[status]} {status}" for status in statuses if counts[status])
