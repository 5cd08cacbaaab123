"""mov, with vectors as numbers and numbers as vectors (PTX ISA, mov)."""

from __future__ import annotations

import numpy as np

from convgen.backends.nvidia.sim.operands import computed
from convgen.backends.nvidia.sim.ptx_text import Instruction
from convgen.backends.nvidia.sim.ptx_types import TYPES
from convgen.backends.nvidia.sim.step import Context, Step, unsupported


def compile_move(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of mov; None for other instructions."""
    if instruction.name != "mov":
        return None
    kind = instruction.types[-1]
    if kind == "b128":
        raise unsupported(instruction)
    if TYPES[kind].kind == "f" and kind not in ("f16", "f32", "f64"):
        kind = f"b{TYPES[kind].bits}"
    return computed(context, instruction, np.asarray, [kind], kind)
