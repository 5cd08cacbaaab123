"""The CDNA targets as `backends.target.Target` objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from convgen.backends.amdgpu import printer
from convgen.backends.amdgpu.assemble import WANTED, assemble, assembled_by
from convgen.backends.amdgpu.stages import BANKS, STAGES
from convgen.backends.amdgpu.tables import FACTS
from convgen.backends.simulation import Bytes, LaunchRequest, Pages, SimReport
from convgen.backends.stages import Emitted, Observer, Stage, begin, emit
from convgen.backends.target import Progress
from convgen.ir.program import Kernel


class AmdTarget:
    """One CDNA generation."""

    text_suffix = ".s"
    object_suffix = ".hsaco"
    assembler = WANTED
    stages: Sequence[Stage] = STAGES

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts = FACTS[name]

    def emit(
        self,
        kernel: Kernel,
        header: Sequence[str] = (),
        *,
        debug: int = 0,
        disable: Collection[str] = (),
        observe: Observer | None = None,
    ) -> Emitted:
        """A message-level kernel as text; DoesNotFit if registers do not suffice."""
        return emit(self.stages, begin(kernel, self.facts, BANKS, header, debug), disable, observe)

    def module(self, kernels: Sequence[Emitted]) -> str:
        """The assembly file of several kernels."""
        return printer.module_text(self.name, kernels)

    def assemble(self, text: str) -> bytes | None:
        """The code object; None without an assembler."""
        return assemble(text, self.name)

    def assembled_by(self) -> str:
        """Name, size and time of the assembler."""
        return assembled_by()

    def simulate(
        self,
        code_object: bytes,
        launches: Sequence[LaunchRequest],
        buffers: Mapping[str, Bytes | Pages],
        *,
        progress: Progress | None = None,
    ) -> SimReport:
        """Run on the strict simulator."""
        from convgen.backends.amdgpu.sim import simulate

        return simulate(code_object, launches, buffers, progress=progress)


TARGETS: dict[str, Callable[[], AmdTarget]] = {name: partial(AmdTarget, name) for name in FACTS}
