"""Run work in separate processes: if one piece fails, or its process is killed, the others still complete."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from math import inf
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from time import monotonic
from typing import TypeVar

from convgen.ir.record import define, frozen

Item = TypeVar("Item")
Result = TypeVar("Result")

LIFETIME = 50  #: pieces of work after which a process is replaced, to free its memory


@frozen
class Died:
    """The answer of a process that ended without a result, and how it ended."""

    how: str


class TookTooLong(Died):
    """The answer of a process that was ended for exceeding its time."""


class _Started:
    """The message of a process that has started."""


@define(eq=False)
class _Worker:
    """A process and its current piece of work."""

    process: ForkServerProcess
    connection: Connection  #: our end of its pipe
    number: int = -1  #: of the piece
    since: float = inf  #: seconds; start of the piece
    served: int = 0  #: pieces so far
    begun: bool = False  #: whether the process has started

    def give(self, number: int, item: object) -> None:
        self.number, self.since, self.served = number, monotonic() if self.begun else inf, self.served + 1
        with suppress(OSError):  # if the process has died, `take` reports it
            self.connection.send(item)

    def take(self) -> object:
        """Return the answer that has arrived, or Died."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            return Died(f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}")

    def begin(self) -> None:
        """Record that the process has started: the time of its piece counts from now."""
        self.since, self.begun = monotonic(), True

    def end(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()
        self.process.close()


def run(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    jobs: int,
    preload: Sequence[str] = (),
    timeout: float | None = None,
    lifetime: int = LIFETIME,
) -> Generator[tuple[int, Result | Died], None, None]:
    """Apply `work` to every item in up to `jobs` processes; yield number and result of each, as they complete.

    `work` is pickled, so it is a function of a module or a partial of one. `preload` names modules that are imported
    before processes fork. A piece that takes more than `timeout` seconds is given up. A process ends after `lifetime`
    pieces. Closing the generator ends the processes.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    waiting = deque(enumerate(items))
    idle: list[_Worker] = []
    busy: list[_Worker] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                busy.append(_living(idle) or _start(context, work))
                busy[-1].give(*waiting.popleft())
            first = min(worker.since for worker in busy)
            left = None if timeout is None or first == inf else max(0.0, first + timeout - monotonic())
            ready = wait([worker.connection for worker in busy], left)
            late = [] if timeout is None else [worker for worker in busy if monotonic() - worker.since >= timeout]
            for worker in [worker for worker in busy if worker.connection in ready or worker in late]:
                answer = worker.take() if worker.connection in ready else TookTooLong("took too long")
                if isinstance(answer, _Started):
                    worker.begin()
                    continue
                busy.remove(worker)
                if isinstance(answer, Died) or worker.served == lifetime:
                    worker.end()
                else:
                    idle.append(worker)
                yield worker.number, answer  # type: ignore[misc]  # the answer of `work`, through a pipe
    finally:
        for worker in busy + idle:
            worker.end()


def _living(idle: list[_Worker]) -> _Worker | None:
    """Take an idle process that is still alive; one may have been killed meanwhile."""
    while idle:
        worker = idle.pop()
        if worker.process.is_alive():
            return worker
        worker.end()
    return None


def _start(context: ForkServerContext, work: Callable[[Item], Result]) -> _Worker:
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work, os.getcwd()), daemon=True)
    resource_tracker.ensure_running()  # else `start` does so, and unblocks SIGINT
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the new process inherits the mask
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    theirs.close()
    return _Worker(process, ours)


def _serve(connection: Connection, work: Callable[[Item], Result], folder: str) -> None:
    """Run a worker process: work on items until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.chdir(folder)
    connection.send(_Started())
    while True:
        try:
            item = connection.recv()
        except EOFError:
            return
        connection.send(work(item))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
