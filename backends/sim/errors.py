"""What can go wrong inside the simulator itself, as opposed to findings about the kernel it runs.

Whoever hands over a code object or a launch has to mend either: these are errors of the request, not of convgen. An
instruction or a modifier that is not simulated is `Unsupported`, the one class of that name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from elftools.common.exceptions import ELFError

from convgen.ir.error import ConvgenError, Unsupported, UserError

__all__ = ["STUMBLES", "SimulatorError", "Unsupported", "reading", "within"]

#: What code raises that meets what it did not foresee: readers of ELF, msgpack and YAML, decoded instructions.
STUMBLES = (
    ELFError, struct.error, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError
)  # fmt: skip


class SimulatorError(UserError):
    """The simulator cannot do what it was asked: a missing tool, a malformed code object, a wrong launch."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Around code that takes a file's structure for granted: where a damaged one leads it astray, SimulatorError."""
    try:
        yield
    except ConvgenError:
        raise
    except STUMBLES as error:
        reason = " ".join(str(error).split())[:200]
        raise SimulatorError(f"{what} is damaged: {reason or type(error).__name__}") from error


def within(value: object, least: int, most: int, what: str) -> int:
    """An integer of a file that must lie in [least, most]; SimulatorError otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        shown = " ".join(repr(value).split())[:40]
        raise SimulatorError(f"given {what} {shown}, wanted an integer from {least} to {most}")
    return value
