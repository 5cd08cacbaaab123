"""`--check-passes`: after each pass the kernel is verified, and interpreted on the same data as before."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from convgen.abi import Scalars
from convgen.ir.error import VerifyError
from convgen.ir.expr import Var
from convgen.ir.interp import interpret
from convgen.ir.memory import Global
from convgen.ir.program import Kernel
from convgen.ir.verify import verify
from convgen.passes.pipeline import Pass

Memory = dict[str, npt.NDArray[np.uint8]]

_SUBGROUPS = 16  #: interpreted at most, besides the first workgroup's


class PassChecker:
    """An observer of passes. Raises VerifyError where one breaks a rule of the IR or changes what is computed."""

    def __init__(self, scalars: Scalars | None = None) -> None:
        self.scalars = scalars or {}
        self.sampled: dict[str, tuple[int, int]] = {}  #: kernel -> workgroups checked, of how many, where not all
        self._expected: dict[str, Memory] = {}

    def observe(self, p: Pass, before: Kernel, after: Kernel, seconds: float) -> None:
        """Check one pass."""
        verify(after)
        if before.name not in self._expected:
            self._expected[before.name] = self._run(before)
        if after is before:
            return
        for name, got in self._run(after).items():
            wrong = np.flatnonzero(got != self._expected[before.name][name])
            if wrong.size:
                raise VerifyError(
                    f"{after.name}: {p.name} changes what is computed: {wrong.size} bytes of buffer {name}, "
                    f"the first at {wrong[0]}"
                )

    def _run(self, kernel: Kernel) -> Memory:
        memory = {p.name: _fill(p, n) for n, p in enumerate(kernel.params) if isinstance(p, Global)}
        scalars = {p.name: int(self.scalars.get(p.name, 0)) for p in kernel.params if isinstance(p, Var)}
        interpret(kernel, memory, scalars, self._groups(kernel))
        return memory

    def _groups(self, kernel: Kernel) -> list[int]:
        """Workgroups to interpret: all, or some spread evenly from the first to the last."""
        total = math.prod(kernel.grid)
        count = min(total, max(1, _SUBGROUPS // kernel.subgroups))
        if count < total:
            self.sampled[kernel.name] = (count, total)
        return sorted({i * (total - 1) // max(1, count - 1) for i in range(count)})


def _fill(buffer: Global, seed: int) -> npt.NDArray[np.uint8]:
    """Small integers, whose sums are exact in whatever order."""
    values = np.random.default_rng(seed).integers(-3, 4, buffer.bytes // buffer.elem.bytes)
    if not buffer.elem.is_float and not buffer.elem.min:
        values = abs(values)
    return np.ascontiguousarray(values.astype(buffer.elem.numpy)).view(np.uint8)
