"""The steps from a kernel as built to its text, by name: the passes, then the stages of the target's back end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from convgen.backends import target as targets
from convgen.backends.stages import MachineKernel, Stage
from convgen.ir.error import UserError, named
from convgen.ir.program import Kernel
from convgen.passes.pipeline import OPTIMISING, PASSES, Pass

Step = Pass | Stage

#: called after each step with (step, what it was given, what it made, seconds)
Observer = Callable[[Step, Kernel | MachineKernel, Kernel | MachineKernel, float], None]


def steps(target: str | None) -> list[Step]:
    """All steps for a target in order; of all targets where none is named."""
    asked = targets.names() if target is None else (target,)
    return [*PASSES, *(stage for name in asked for stage in targets.get(name).stages)]


def check_names(names: Iterable[str], known: Iterable[Step], *, optional: bool = False) -> None:
    """UserError unless all are names of these steps, or of the optional ones among them."""
    wanted = list(dict.fromkeys(step.name for step in known if step.kind == OPTIMISING or not optional))
    for name in names:
        if name not in wanted:
            raise UserError(f"given pass {named(name, wanted)}, wanted one of {', '.join(wanted)}")
