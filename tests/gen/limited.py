"""Commands in processes of their own, with limits: what each takes, and how it ends.

Run as a program, it reads a JSON list of command lines from stdin and writes what became of each to stdout. All are
forked from a process that has imported convgen, so that a command costs some milliseconds; its processor time counts
all these imports.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

CLOCK = 30  #: seconds that a machine may be busy with other work; a command that waits for a pipe takes longer
SECONDS = 2  #: of the processor
MEGABYTES = 300  #: of memory, all told
#: modules that commands import when they need them
_MODULES = (
    *(
        f"commands.{name}"
        for name in "analyze batch diff execute explain export generate model profile replay tune".split()
    ),
    *("driver", "explain.page", "explain.subject", "profile.launch_times", "run.foreign_launch", "run.execution"),
    *(f"backends.{family}.{room}" for family in ("amdgpu", "intel") for room in ("targets", "sim", "analyze")),
)
_BACKSTOP = 4 << 30  #: bytes of addresses, lest a test take the machine's memory; simulators reserve addresses


def run(commands: list[list[str]]) -> list[dict[str, Any]]:
    """What became of each command line: exit code, or minus a signal; stderr; seconds of processor; MB of memory."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "CONVGEN_CACHE": "off"}
    given = json.dumps(commands)
    program = [sys.executable, __file__]
    done = subprocess.run(program, input=given, env=environment, capture_output=True, text=True, check=True)
    outcomes: list[dict[str, Any]] = json.loads(done.stdout)
    return outcomes


def _forked(command: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            _become(command, err.fileno())
        _, status, used = os.wait4(child, 0)
        err.seek(0)
        return {
            "code": os.waitstatus_to_exitcode(status),
            "err": err.read(100_000),
            "seconds": used.ru_utime + used.ru_stime,
            "megabytes": used.ru_maxrss / 1024,
        }


def _become(command: list[str], err: int) -> None:
    import signal

    from convgen.commands import cli

    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(err, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS * 4, SECONDS * 4))
        resource.setrlimit(resource.RLIMIT_AS, (_BACKSTOP, _BACKSTOP))
        signal.alarm(CLOCK)  # kills a process that waits
        sys.argv = ["convgen", *command]
        cli.entry()
    except SystemExit as left:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(left.code or 0))
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(99)


def _warm() -> float:
    """Import the modules that commands import; return the seconds of the processor that this takes."""
    start = time.process_time()
    for name in _MODULES:
        import_module(f"convgen.{name}")
    return time.process_time() - start


if __name__ == "__main__":
    assert Path(__file__).parents[2].is_dir()
    imports = _warm()
    outcomes = [_forked(command) for command in json.load(sys.stdin)]
    json.dump([{**outcome, "seconds": outcome["seconds"] + imports} for outcome in outcomes], sys.stdout)
