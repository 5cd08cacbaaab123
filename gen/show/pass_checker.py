"""`--check-passes`: after each pass the kernel is verified, and interpreted on equal data.

After each stage of the back end the machine function is verified.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from convgen.backends.stages import MachineKernel
from convgen.compile_steps import Step
from convgen.ir import stmt as s
from convgen.ir.error import VerifyError
from convgen.ir.expr import Const, Var
from convgen.ir.interp import interpret
from convgen.ir.layout.memory import Global
from convgen.ir.program import Kernel
from convgen.ir.stmt import Stmt
from convgen.ir.types import e8m0
from convgen.ir.verify import verify
from convgen.run.abi import Scalars, zeroed_buffers

Memory = dict[str, npt.NDArray[np.uint8]]

_BUDGET = 1500  #: statements of the kernel as built, over all subgroups, to interpret
_MOST = 4 * _BUDGET  #: statements of one workgroup; a longer kernel is only verified


class PassChecker:
    """An observer of steps. Raises VerifyError if a step breaks a rule or changes the result.

    `notes` lists kernels that were not interpreted in full.
    """

    def __init__(self, scalars: Scalars | None = None) -> None:
        self.scalars = scalars or {}
        self.notes: dict[str, str] = {}
        self._groups: dict[str, list[int]] = {}
        self._filled: dict[tuple[str, str], npt.NDArray[np.uint8]] = {}  # buffers, by kernel and name
        self._expected: dict[str, Memory] = {}

    def observe(
        self, step: Step, before: Kernel | MachineKernel, after: Kernel | MachineKernel, seconds: float
    ) -> None:
        """Check one step."""
        if isinstance(after, MachineKernel):
            after.verify()
        else:
            assert isinstance(before, Kernel)
            self._check(step, before, after)

    def _check(self, step: Step, before: Kernel, after: Kernel) -> None:
        verify(after)
        if before.name not in self._expected:
            self._groups[before.name] = self._choose_groups(before)
            self._expected[before.name] = self._run(before)
        if after is before:
            return
        for name, got in self._run(after).items():
            wrong = np.flatnonzero(got != self._expected[before.name][name])
            if wrong.size:
                where = f"{wrong.size} bytes of buffer {name}, the first at {wrong[0]}"
                raise VerifyError(f"{after.name}: {step.name} changes what is computed: {where}")

    def _run(self, kernel: Kernel) -> Memory:
        buffers = [(n, p) for n, p in enumerate(kernel.params) if isinstance(p, Global)]
        # Filled by the kernel's first form: a later one may declare a buffer as bytes.
        filled = {p.name: self._filled.setdefault((kernel.name, p.name), _fill(p, n)) for n, p in buffers}
        memory = {name: data.copy() for name, data in filled.items()}
        memory |= {p.name: np.zeros(p.bytes, np.uint8) for p in zeroed_buffers(kernel)}
        scalars = {p.name: int(self.scalars.get(p.name, 0)) for p in kernel.params if isinstance(p, Var)}
        interpret(kernel, memory, scalars, self._groups[kernel.name])
        return memory

    def _choose_groups(self, kernel: Kernel) -> list[int]:
        """Return the workgroups to interpret: as many as the budget allows, from the first to the last."""
        total = math.prod(kernel.grid)
        each = kernel.subgroups * _steps(kernel.body)
        count = 0 if each > _MOST else min(total, max(1, _BUDGET // each))
        if not count:
            self.notes[kernel.name] = f"{kernel.name} is too long to interpret: passes were verified only"
        elif count < total:
            self.notes[kernel.name] = f"passes were checked on {count} of the {total} workgroups of {kernel.name}"
        return sorted({i * (total - 1) // max(1, count - 1) for i in range(count)})


def _steps(stmt: Stmt) -> int:
    """Return the statements that one subgroup executes; loops of unknown length count once."""
    inside = sum(map(_steps, stmt.bodies))
    if isinstance(stmt, s.For) and isinstance(stmt.begin, Const) and isinstance(stmt.end, Const):
        inside *= max(0, stmt.end.bits - stmt.begin.bits)
    return inside + (not isinstance(stmt, s.Block))


def _fill(buffer: Global, seed: int) -> npt.NDArray[np.uint8]:
    """Return small integers, whose sums are exact in any order; for e8m0 small powers of two."""
    if buffer.elem.bits == 4:
        return np.random.default_rng(seed).integers(0, 256, buffer.bytes).astype(np.uint8)
    values = np.random.default_rng(seed).integers(-3, 4, buffer.bytes // buffer.elem.bytes)
    if not buffer.elem.is_float and not buffer.elem.min:
        values = abs(values)
    if buffer.elem is e8m0:
        values = 1 << abs(values)
    return np.ascontiguousarray(values.astype(buffer.elem.numpy)).view(np.uint8)
