"""A kernel on a target, and whether anyone notices that its text has changed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from convgen.backends.target import Target
from convgen.ir.error import AssemblerError
from convgen.ir.program import Kernel
from convgen.ir.types import Type
from convgen.passes import pipeline
from tests import arithmetic as ar

Bytes = npt.NDArray[np.uint8]


class Watched:
    """`memory` is what each buffer holds before, `out` the buffer of `elem` in which the results are."""

    def __init__(self, to: Target, kernel: Kernel, memory: dict[str, Bytes], out: str, elem: Type) -> None:
        self.to, self.kernel, self.memory, self.out, self.elem = to, kernel, memory, out, elem
        self.emitted = to.emit(pipeline.run(kernel, to.facts))
        self.text = to.module([self.emitted])
        self.wanted = ar.interpreted(kernel, memory)[out].view(elem.numpy)
        assert not self.notices(self.text)

    def notices(self, text: str) -> bool:
        """By a finding, or a wrong result; the assembler's objection counts as well."""
        try:
            code = self.to.assemble(text)
        except AssemblerError:
            return True
        assert code is not None
        memory = {name: data.copy() for name, data in self.memory.items()}
        report = self.to.simulate(code, [ar.launch(self.kernel, self.emitted)], memory)
        return bool(report.findings) or bool(
            ar.differing(memory[self.out].view(self.elem.numpy), self.wanted, self.elem).any()
        )

    def notices_kernel(self, kernel: Kernel) -> bool:
        return self.notices(self.to.module([self.to.emit(pipeline.run(kernel, self.to.facts))]))
