"""Which pipe executes an instruction: by the type of its destination, with a 64-bit operand forcing the long pipe."""

from __future__ import annotations

from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.sim.platforms import Platform

_FLOAT = frozenset(("f", "hf", "bf"))
_LONG = frozenset(("q", "uq"))


def pipe_of(instruction: Instruction, platform: Platform) -> str:
    """An in-order pipe's letter, or "*" for an out-of-order instruction."""
    if instruction.op == "math":
        return platform.math_pipe or "*"
    types = [operand.type for operand in (instruction.dst, *instruction.sources) if operand is not None]
    if "df" in types:
        return "L"
    if platform.long_integer_pipe == "L" and any(name in _LONG for name in types):
        return "L"
    assert instruction.dst is not None
    return "F" if instruction.dst.type in _FLOAT else "I"
