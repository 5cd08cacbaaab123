"""Move loads down to their first use, for kernels that do not fit their registers otherwise.

In program order a product's fragments are all loaded before the first of its instructions, and the next K block before
the products of this one: that hides latency and takes registers. With this stage a load goes just before the first
instruction that needs its result, or that must not precede it.
"""

from __future__ import annotations

from collections.abc import Sequence

from convgen.backends.machine.barrier_accesses import Ahead, accesses_ahead
from convgen.backends.machine.dependences import dependences
from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Unit, VirtualRegister
from convgen.backends.machine.schedule import terminators


def sink_loads(function: Function, units: Sequence[Unit]) -> Function:
    """Return the function with the loads of these units as late as their block allows."""
    published = accesses_ahead(function)

    def body(_: int, block: BasicBlock) -> list[Instruction]:
        tail = terminators(block.instructions)
        straight = block.instructions[: len(block.instructions) - len(tail)]
        return [*_Sinking(straight, published, units).run(), *tail]

    return function.rewritten(body)


class _Sinking:
    """The order of a block's instructions; those that may wait are emitted with their first user."""

    def __init__(self, body: Sequence[Instruction], published: Ahead, units: Sequence[Unit]) -> None:
        self.body = body
        self.before: list[Sequence[int]] = [()] * len(body)
        for n, _, predecessors in dependences(body, published):
            self.before[n] = sorted(predecessors)
        loads = {i for i in body if i.op.unit in units and i.defs() and not i.barrier and not i.op.fence}
        brought = {r.vreg for i in loads for r in i.defs()}
        self.may_wait = [i in loads or _fills(i, brought) or _sets_flags(i) for i in body]
        self.out: list[Instruction] = []
        self.is_out = [False] * len(body)

    def run(self) -> list[Instruction]:
        for n, waits in enumerate(self.may_wait):
            if not waits:
                self._issue(n)
        for n in range(len(self.body)):
            self._issue(n)
        return self.out

    def _issue(self, n: int) -> None:
        if not self.is_out[n]:
            self.is_out[n] = True
            for before in self.before[n]:
                self._issue(before)
            self.out.append(self.body[n])


def _sets_flags(i: Instruction) -> bool:
    """Return whether an instruction only writes flags, which are few and mask loads."""
    return bool(i.defs()) and all(r.bank == "f" for r in i.defs())


def _fills(i: Instruction, brought: set[VirtualRegister]) -> bool:
    """Return whether an instruction only fills registers with constants before a masked load writes some lanes."""
    written = i.defs()
    return i.op.unit is Unit.VALU and len(written) == 1 and written[0].vreg in brought and not i.uses()
