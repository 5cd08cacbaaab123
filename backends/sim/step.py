"""An instruction made ready to execute, as far as all simulators have one."""

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
    """One instruction compiled for one kernel. `run` does the work for a whole group."""

    instruction: Code
    kind: str  #: under which the report counts it
    run: Callable[[Group], None]
    reads: int = 0  #: registers, as a set of bits
    writes: int = 0
    control: str = attrs.field(default="", kw_only=True)  #: what the engine does behind `run`
    #: (kind, message) of findings that the encoding alone shows
    faults: tuple[tuple[str, str], ...] = attrs.field(default=(), kw_only=True)

    def running(self, run: Callable[[Group], None]) -> Self:
        """The step with its work, which needed the step itself."""
        self.run = run
        return self


def unsupported(instruction: Located, why: str = "") -> Unsupported:
    """The error for something the simulator does not execute."""
    reason = f" ({why})" if why else ""
    return Unsupported(f"`{instruction.text}` at {instruction.address:#x} is not simulated{reason}")
