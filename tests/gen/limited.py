"""Commands in processes of their own, with limits: what each takes, and how it ends.

Run as a program, it reads a JSON list of command lines from stdin and writes what became of each to stdout. All are
forked from a process that has convgen in it, so that a command costs some milliseconds.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CLOCK = 30  #: seconds that a machine may be busy with other work; a command that waits for a pipe takes longer
SECONDS = 2  #: of the processor
MEGABYTES = 300  #: of memory, all told
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


def _warm() -> None:
    """Load what commands load, and look at nothing."""
    import numpy  # noqa: F401


if __name__ == "__main__":
    assert Path(__file__).parents[2].is_dir()
    _warm()
    json.dump([_forked(command) for command in json.load(sys.stdin)], sys.stdout)
