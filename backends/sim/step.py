"""Compiled instructions: the fields that all simulators share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Self, TypeVar

import attrs

from convgen.backends.sim.errors import Unsupported
from convgen.backends.sim.threads import Located
from convgen.ir.record import define

Code = TypeVar("Code", bound=Located)
Group = TypeVar("Group")


@define(eq=False)
class Ready(Generic[Code, Group]):
    """One instruction compiled for one kernel, the base of each family's `Step`. `run` works for a whole group."""

    instruction: Code
    kind: str  #: under which the report counts it
    run: Callable[[Group], None]
    reads: int = 0  #: registers, as a set of bits
    writes: int = 0
    control: str = attrs.field(default="", kw_only=True)  #: what the engine does behind `run`
    #: (kind, message) of findings that the encoding alone shows
    faults: tuple[tuple[str, str], ...] = attrs.field(default=(), kw_only=True)

    def running(self, run: Callable[[Group], None]) -> Self:
        """Set the function that does the work, which itself needs the step to report findings; return the step."""
        self.run = run
        return self


def unsupported(instruction: Located, why: str = "") -> Unsupported:
    """Return the error for an instruction that is not simulated."""
    reason = f" ({why})" if why else ""
    return Unsupported(f"`{instruction.text}` at {instruction.address:#x} is not simulated{reason}")
