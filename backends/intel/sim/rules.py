"""What an assembler lets pass and the hardware does not promise to do right: annotations, types, regions."""

from __future__ import annotations

from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.sim.step import Context, Step


def check(instruction: Instruction, step: Step, context: Context) -> None:
    """Note the findings that an instruction's encoding alone shows."""
    _annotations(instruction, step, context)


def _annotations(instruction: Instruction, step: Step, context: Context) -> None:
    """Combinations of a distance and a token that the platform's encoding does not have."""
    if instruction.distance is None or instruction.token is None:
        return
    pipe, _ = instruction.distance
    _, mode = instruction.token
    platform = context.platform
    if step.is_send:
        if mode or pipe not in platform.distance_pipes:
            context.fault("swsb", f"{platform.name} cannot combine these annotations on a send")
    elif step.is_dpas:
        if pipe or mode:
            context.fault("swsb", "dpas combines only its own pipe's distance with setting a token")
    elif pipe and not (pipe == "A" and platform.distance_beside_wait):
        context.fault("swsb", f"{platform.name} cannot combine these annotations")
