"""Execute a simulator's requests on a device in a process of its own, which the fault of a kernel may end.

The parent opens no device. Buffers travel as files that the child maps; the rest goes through the child's standard
streams.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from convgen.backends.simulation import Bytes, LaunchRequest, Pages, SimReport
from convgen.device.devices import open_device, runtime_of
from convgen.device.executor import Executor, contiguous
from convgen.ir.error import Unsupported, UserError
from convgen.ir.record import define, frozen


@frozen
class _Work:
    """Work of a child; buffers are files in its working folder, by name, with their bytes."""

    device: str
    content: bytes
    requests: tuple[LaunchRequest, ...]
    sizes: Mapping[str, int]
    target: str


@frozen
class _Answer:
    """The result of a child: the device with its title, and seconds; or an error."""

    on: str = ""
    seconds: float = 0.0
    error: str = ""
    is_unsupported: bool = False


@define
class IsolatedExecutor:
    """An executor that starts a process for each program; `shown` is the device with its title once one has run."""

    name: str
    shown: str = ""

    def __str__(self) -> str:
        return self.shown or self.name

    def execute(
        self, content: bytes, requests: Sequence[LaunchRequest], buffers: Mapping[str, Bytes | Pages], target: str = ""
    ) -> SimReport:
        """Run all launches, as `Executor.execute`; also raises UserError if the process ends without an answer."""
        data = {name: contiguous(buffer) for name, buffer in buffers.items()}
        with tempfile.TemporaryDirectory(prefix="convgen-") as folder:
            files = {name: Path(folder) / str(number) for number, name in enumerate(data)}
            for name, file in files.items():
                data[name].tofile(file)
            sizes = {name: each.nbytes for name, each in data.items()}
            answer = _ask(_Work(self.name, content, tuple(requests), sizes, target), folder)
            self.shown = answer.on
            for name, file in files.items():
                data[name][...] = np.fromfile(file, np.uint8).reshape(data[name].shape)
        return SimReport((), {}, {}, answer.seconds)


def executor_on(name: str) -> Executor | IsolatedExecutor:
    """Return an executor for the device `KIND:NUMBER`. Raises UserError for a name that is none.

    Where a fault of a kernel ends a process's use of the device, each program gets a process; a missing device is then
    an error of the first program.
    """
    runtime, number = runtime_of(name)
    return Executor(open_device(name)) if runtime.survives_faults else IsolatedExecutor(f"{runtime.kind}:{number}")


def _ask(work: _Work, folder: str) -> _Answer:
    command = [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()"]
    process = subprocess.run(command, input=pickle.dumps(work), capture_output=True, cwd=folder, check=False)
    if process.returncode:
        raise UserError(f"the process that used {work.device} died: {_how(process)}")
    answer = pickle.loads(process.stdout)
    assert isinstance(answer, _Answer)
    if answer.error:
        raise (Unsupported if answer.is_unsupported else UserError)(answer.error)
    return answer


def _how(process: subprocess.CompletedProcess[bytes]) -> str:
    """Return how a child ended: by a signal, or with the last line that it printed."""
    if process.returncode < 0:
        return f"it was killed by {signal.Signals(-process.returncode).name}"
    lines = process.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"it ended with code {process.returncode}"


def serve() -> None:
    """Execute the work on standard input in this process, a child of `IsolatedExecutor`; answer on standard output."""
    sys.stdout.buffer.write(pickle.dumps(_answer(pickle.load(sys.stdin.buffer))))


def _answer(work: _Work) -> _Answer:
    try:
        executor = Executor(open_device(work.device))
        buffers: dict[str, Bytes] = {}
        for number, (name, size) in enumerate(work.sizes.items()):  # a file of no bytes cannot be mapped
            buffers[name] = np.memmap(str(number), np.uint8, "r+") if size else np.empty(0, np.uint8)
        report = executor.execute(work.content, work.requests, buffers, work.target)
    except (UserError, Unsupported) as error:
        return _Answer(error=str(error), is_unsupported=isinstance(error, Unsupported))
    return _Answer(str(executor), report.seconds)
