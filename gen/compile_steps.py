"""The steps from a built kernel to its assembly text, by name: the passes, then the stages of the target's back end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from convgen.backends import target as targets
from convgen.backends.stages import MachineKernel, Stage
from convgen.ir.error import UserError, named
from convgen.ir.program import Kernel
from convgen.passes.pipeline import OPTIMISING, PASSES, Pass

Step = Pass | Stage

#: Called after each step with (step, its input, its output, seconds).
Observer = Callable[[Step, Kernel | MachineKernel, Kernel | MachineKernel, float], None]


def steps(target: str | None) -> list[Step]:
    """Return all steps for a target in order; without a target those of all targets."""
    asked = targets.names() if target is None else (target,)
    return [*PASSES, *(stage for name in asked for stage in targets.get(name).stages)]


def check_names(names: Iterable[str], known: Iterable[Step], *, optional: bool = False) -> None:
    """Raise UserError unless all names are names of steps, or of optional ones."""
    wanted = list(dict.fromkeys(step.name for step in known if step.kind == OPTIMISING or not optional))
    for name in names:
        if name not in wanted:
            raise UserError(f"given pass {named(name, wanted)}, wanted one of {', '.join(wanted)}")
