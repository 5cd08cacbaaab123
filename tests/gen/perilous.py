"""Work for worker processes that ends in every way there is. Workers import it, so it is a module of its own."""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import Any
from unittest.mock import patch

from convgen.commands.batch import perform as perform_really
from convgen.run.execution import execute


def answer(item: str) -> tuple[str, int]:
    """The item and the process that has worked on it, unless the item ends the process."""
    end(item)
    return item, os.getpid()


def end(item: str) -> None:
    if "killed" in item:
        os.kill(os.getpid(), signal.SIGKILL)
    if "left" in item:
        os._exit(7)
    if "slow" in item:
        time.sleep(60)


def perform(options: argparse.Namespace, line: str, **more: Any) -> dict[str, Any]:
    """What a batch does with a problem, whose name may say that it goes wrong."""
    end(line)
    if "broken" in line:
        with patch("convgen.driver.build", side_effect=ZeroDivisionError("by zero")):
            return perform_really(options, line, **more)
    if "wrong" in line:
        with patch("convgen.run.verdict.execute", spoilt):
            return perform_really(options, line, **more)
    return perform_really(options, line, **more)


def perform_wrongly(options: argparse.Namespace, line: str, **more: Any) -> dict[str, Any]:
    """Perform a problem as `convgen model` does, with wrong results for problems of 24 channels."""
    with patch("convgen.run.verdict.execute", spoilt if "ic24" in line else execute):
        return perform_really(options, line, **more)


def spoilt(*arguments: Any, **options: Any) -> Any:
    """What execution leaves behind, but for one f16 that is NaN."""
    memory, report = execute(*arguments, **options)
    memory["dst"].data[:2] = 0xFF
    return memory, report
