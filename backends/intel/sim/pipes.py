"""The pipe of an instruction, which depends on its destination's type alone, as annotations of IGA and IGC show."""

from __future__ import annotations

from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.sim.platforms import Platform

FLOAT_TYPES = frozenset(("f", "hf", "bf"))
LONG_INTEGERS = frozenset(("q", "uq"))


def pipe_of(instruction: Instruction, platform: Platform) -> str:
    """Return an in-order pipe's letter, or "*" for an out-of-order instruction."""
    if instruction.op == "math":
        return platform.math_pipe or "*"
    return own_pipe(instruction, platform)


def own_pipe(instruction: Instruction, platform: Platform) -> str:
    """Return the pipe that a distance without a letter means: that of the destination's type; all for a send."""
    if instruction.message is not None or instruction.dst is None:
        return "A"
    kind = instruction.dst.type
    if kind == "df":
        return "L"
    if kind in LONG_INTEGERS:
        return platform.long_integer_pipe
    return "F" if kind in FLOAT_TYPES else "I"
