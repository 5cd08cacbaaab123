"""What can go wrong inside the simulator itself, as opposed to findings about the kernel it runs."""

from __future__ import annotations


class SimulatorError(Exception):
    """The simulator cannot do what it was asked: a missing tool, a malformed code object, a wrong launch."""


class Unsupported(SimulatorError):
    """The kernel uses an instruction or a modifier that the simulator does not implement."""
