"""The target of the family: kernels as their IR prints, and no code object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from convgen.backends.stages import Emitted
from convgen.backends.target import Target
from convgen.ir.program import Kernel
from tests.backends.sm80.facts import FACTS
from tests.backends.sm80.family import FAMILY


class Listing(Target):
    """Kernels as text."""

    family = FAMILY
    products = ()
    assembler = "there is none: the text is the IR"
    stages = ()
    banks = {}  # noqa: RUF012  # none

    def __init__(self, name: str) -> None:
        self.facts = FACTS[name]

    def emit(self, kernel: Kernel, header: Sequence[str] = (), **_: Any) -> Emitted:
        """The kernel's IR, with eight bytes for each argument."""
        arguments = tuple((p.name, 8 * n, 8) for n, p in enumerate(kernel.params))
        text = "\n".join([*(f"// {line}" for line in header), str(kernel)])
        lanes = kernel.subgroups * kernel.width
        return Emitted(kernel.name, text, {"r": 0}, kernel.shared_bytes, lanes, arguments, 8 * len(arguments))

    def module(self, kernels: Sequence[Emitted]) -> str:
        """All kernels, one after the other."""
        return "\n".join(k.text for k in kernels) + "\n"

    def assemble(self, text: str) -> bytes | None:
        """Nothing: there is no assembler."""
        return None

    def assembled_by(self) -> str:
        """No assembler."""
        return ""


TARGETS: dict[str, Callable[[], Listing]] = {name: partial(Listing, name) for name in FACTS}
