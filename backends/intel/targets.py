"""The Xe targets as `backends.target.Target` objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from convgen.backends.family import check_rows
from convgen.backends.intel.assemble import assemble
from convgen.backends.intel.family import FAMILY
from convgen.backends.intel.stages import banks, stages
from convgen.backends.intel.tables import FACTS, GENERATIONS
from convgen.backends.intel.tuning import TUNING
from convgen.backends.intel.zebin import target_directive
from convgen.backends.intel.zebin_devices import DEVICES
from convgen.backends.stages import Emitted
from convgen.backends.target import Target
from convgen.backends.toolchain import IGA64, identity

check_rows(
    FAMILY,
    {
        "tables.py: GENERATIONS": GENERATIONS,
        "tables.py: FACTS": FACTS,
        "tuning.py: TUNING": TUNING,
        "zebin_devices.py: DEVICES": DEVICES,
    },
)


class XeTarget(Target):
    """One generation."""

    family = FAMILY

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts = FACTS[name]
        self.products = DEVICES[name].known_as
        self.stages = stages(GENERATIONS[name])
        self.banks = banks(GENERATIONS[name])
        self.assembler = DEVICES[name].assembler

    def module(self, kernels: Sequence[Emitted]) -> str:
        """Return the assembly file of kernels that `emit` returned."""
        return "\n".join([target_directive(self.name), *(k.text for k in kernels)])

    def assemble(self, text: str) -> bytes | None:
        """Return the zebin; None without an assembler that knows the platform."""
        return assemble(text)

    def assembled_by(self) -> str:
        """Return name, size and time of the assembler."""
        return identity(IGA64.find())


TARGETS: dict[str, Callable[[], XeTarget]] = {name: partial(XeTarget, name) for name in FACTS}
