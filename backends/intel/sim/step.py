"""Compiled instructions of Xe, and the context that compiling one needs."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.sim.platforms import Platform
from convgen.backends.intel.sim.register_file import Layout
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.sim.step import Ready
from convgen.backends.sim.step import unsupported as unsupported
from convgen.ir.record import define, frozen

Run = Callable[[ThreadGroup], None]
#: Kinds of instructions that the report counts.
KINDS = "dpas alu math send_ugm send_slm send_gtwy send_other sync branch nop".split()


@define(eq=False)
class Step(Ready[Instruction, ThreadGroup]):
    """A compiled instruction; `reads` and `writes` are register bytes (`register_file`).

    `control` is "", "branch" (run may set `pc` or `targets`), "wait", "barrier" or "end".
    """

    index: int = -1
    pipe: str = ""  #: letter of an in-order pipe, "*" for out of order, "" for none
    is_dpas: bool = False
    factors: int = 0  #: bytes of `reads` that are src1 and src2 of a dpas
    is_send: bool = False
    unit: str = ""  #: destination of a message; for other instructions the mnemonic
    drains: bool = False  #: whether it takes longer than any in-order instruction in IGC's model


def send_step(instruction: Instruction, kind: str, reads: int = 0, writes: int = 0) -> Step:
    """Return the step of a message; the caller sets `run`."""
    return Step(instruction, kind, lambda g: None, reads, writes, pipe="*", is_send=True)


@frozen
class Rules:
    """The assumptions of a simulation."""

    errata: bool = True  #: report missing workarounds of hardware defects, also of those found after older compilers
    trust_igc: bool = False  #: assume what code of Intel's compiler relies on (`scoreboard`)
    approximate: int | None = None  #: seed of the errors of math functions (`curves`); None: rounded correctly


@define
class Context:
    """Context of compiling an instruction: platform, register layout, SIMD width, addresses, assumptions."""

    platform: Platform
    layout: Layout
    simd: int
    index_of: dict[int, int]  #: instruction index by address
    rules: Rules = attrs.field(factory=Rules)
    faults: list[tuple[str, str]] = attrs.field(factory=list)  #: (kind, message) of the instruction being compiled

    def fault(self, kind: str, message: str) -> None:
        """Record a finding that the encoding alone shows."""
        self.faults.append((kind, message))
