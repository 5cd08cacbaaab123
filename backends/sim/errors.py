"""Errors of a simulation's request, as opposed to findings about the kernel.

SimulatorError blames the code object, the launch or a missing tool, which the caller has to mend. Unsupported names an
instruction or modifier that is not simulated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from elftools.common.exceptions import ELFError

from convgen.ir.error import ConvgenError, Unsupported, UserError

__all__ = ["STUMBLES", "SimulatorError", "Unsupported", "reading", "within"]

#: Exceptions of code that meets unforeseen input: readers of ELF, msgpack and YAML, decoded instructions.
STUMBLES = (
    ELFError, struct.error, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError
)  # fmt: skip


class SimulatorError(UserError):
    """The simulator cannot do what it was asked: a missing tool, a malformed code object, a wrong launch."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn exceptions of code that reads a damaged file into SimulatorError, with `what` as the file's name."""
    try:
        yield
    except ConvgenError:
        raise
    except STUMBLES as error:
        reason = " ".join(str(error).split())[:200]
        raise SimulatorError(f"{what} is damaged: {reason or type(error).__name__}") from error


def within(value: object, least: int, most: int, what: str) -> int:
    """Return an integer of a file. Raises SimulatorError unless it lies in [least, most]; `what` names it."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        shown = " ".join(repr(value).split())[:40]
        raise SimulatorError(f"given {what} {shown}, wanted an integer from {least} to {most}")
    return value
