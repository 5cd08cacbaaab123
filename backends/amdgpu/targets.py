"""The CDNA targets as `backends.target.Target` objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from convgen.backends.amdgpu import printer
from convgen.backends.amdgpu.assemble import assemble_module, assembled_by, assembler_package
from convgen.backends.amdgpu.family import FAMILY
from convgen.backends.amdgpu.hazards import HAZARDS
from convgen.backends.amdgpu.stages import BANKS, STAGES
from convgen.backends.amdgpu.tables import FACTS, MFMA, PRODUCTS, SCOPES
from convgen.backends.amdgpu.tuning import TUNING
from convgen.backends.family import check_rows
from convgen.backends.stages import Emitted
from convgen.backends.target import Target

check_rows(
    FAMILY,
    {
        "hazards.py: HAZARDS": HAZARDS,
        "tables.py: FACTS": FACTS,
        "tables.py: MFMA": MFMA,
        "tables.py: SCOPES": SCOPES,
        "tables.py: PRODUCTS": PRODUCTS,
        "tuning.py: TUNING": TUNING,
    },
)


class AmdTarget(Target):
    """One CDNA generation."""

    family = FAMILY
    stages = STAGES
    banks = BANKS

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts = FACTS[name]
        self.assembler = assembler_package(name)
        self.products = PRODUCTS[name]

    def module(self, kernels: Sequence[Emitted]) -> str:
        """Return the assembly file of several kernels."""
        return printer.module_text(self.name, kernels)

    def assemble(self, text: str) -> bytes | None:
        """Return the code object; None without an assembler."""
        return assemble_module(text, self.name)

    def assembled_by(self) -> str:
        """Return a text that identifies the assembler and its version; empty if there is none."""
        return assembled_by(self.name)


TARGETS: dict[str, Callable[[], AmdTarget]] = {name: partial(AmdTarget, name) for name in FACTS}
