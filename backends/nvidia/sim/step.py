"""Compiled instructions of PTX, and the context that compiling one needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from convgen.backends.nvidia.sim.ptx_text import Instruction, Kernel
from convgen.backends.nvidia.sim.state import WarpGroup
from convgen.backends.sim.errors import SimulatorError
from convgen.backends.sim.step import Ready
from convgen.backends.sim.step import unsupported as unsupported
from convgen.ir.record import define

#: Kinds of instructions that the report counts.
KINDS = (
    "mma ldmatrix alu ld_global st_global ld_shared st_shared cp_async bulk_copy atomic barrier wait branch other"
).split()


@define(eq=False)
class Step(Ready[Instruction, WarpGroup]):
    """A compiled instruction. `control` is "", "branch" (run has set targets), "wait", "sleep" or "barrier"."""


@define(eq=False)
class Context:
    """Context of compiling an instruction: its kernel, and where its variables and labels are."""

    kernel: Kernel
    #: Name of a variable -> its state space and address there; addresses in "global" are those of device memory.
    symbols: Mapping[str, tuple[str, int]]
    place_of: Mapping[int, int]  #: index of an instruction in the text -> index in the program
    carry: int  #: number of the register that stands for the carry flag CC.CF
    target: str  #: that the text names, such as sm_90a


Maker = Callable[[Instruction, Context], Step]


def maker_of(makers: Mapping[str, Maker], instruction: Instruction) -> Maker:
    """Return the maker of an instruction's first modifier; SimulatorError for a modifier without one."""
    maker = makers.get(instruction.modifiers[0])
    if maker is None:
        raise unsupported(instruction)
    return maker


def wants_target(instruction: Instruction, context: Context, target: str) -> None:
    """Raise SimulatorError if the text's target lacks an instruction of `target`.

    Instructions of an architecture-specific target, such as sm_90a, exist there only; others from it on.
    """
    number = int(context.target.removeprefix("sm_").rstrip("af") or 0)
    there = context.target == target if target.endswith("a") else number >= int(target.removeprefix("sm_"))
    if not there:
        more = "" if target.endswith("a") else " or later"
        given = f"`{instruction.text}` on {context.target}"
        raise SimulatorError(f"given {given}, wanted .target {target}{more}")
