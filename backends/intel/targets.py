"""The Xe targets as `backends.target.Target` objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from convgen.backends.intel.assemble import assemble
from convgen.backends.intel.devices import DEVICES
from convgen.backends.intel.stages import banks, stages
from convgen.backends.intel.tables import FACTS, GENERATIONS
from convgen.backends.intel.zebin import target_directive
from convgen.backends.simulation import Bytes, LaunchRequest, Pages, SimReport
from convgen.backends.stages import Emitted, Observer, begin, emit
from convgen.backends.target import Progress
from convgen.backends.toolchain import IGA64, identity
from convgen.ir.program import Kernel


class XeTarget:
    """One generation."""

    text_suffix = ".asm"
    object_suffix = ".zebin"

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts = FACTS[name]
        self.stages = stages(GENERATIONS[name])
        self.banks = banks(GENERATIONS[name])
        self.assembler = DEVICES[name].assembler

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
        return emit(self.stages, begin(kernel, self.facts, self.banks, header, debug), disable, observe)

    def module(self, kernels: Sequence[Emitted]) -> str:
        """The assembly file of kernels that `emit` made."""
        return "\n".join([target_directive(self.name), *(k.text for k in kernels)])

    def assemble(self, text: str) -> bytes | None:
        """The zebin; None without an assembler that knows the platform."""
        return assemble(text)

    def assembled_by(self) -> str:
        """Name, size and time of the assembler."""
        return identity(IGA64.find())

    def simulate(
        self,
        code_object: bytes,
        launches: Sequence[LaunchRequest],
        buffers: Mapping[str, Bytes | Pages],
        *,
        progress: Progress | None = None,
    ) -> SimReport:
        """Run on the strict simulator."""
        from convgen.backends.intel.sim import simulate

        return simulate(code_object, launches, buffers, progress=progress)


TARGETS: dict[str, Callable[[], XeTarget]] = {name: partial(XeTarget, name) for name in FACTS}
