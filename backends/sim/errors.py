"""What can go wrong inside the simulator itself, as opposed to findings about the kernel it runs.

Whoever hands over a code object or a launch has to mend either: these are errors of the request, not of convgen. An
instruction or a modifier that is not simulated is `Unsupported`, the one class of that name.
"""

from __future__ import annotations

from convgen.ir.error import Unsupported, UserError

__all__ = ["SimulatorError", "Unsupported"]


class SimulatorError(UserError):
    """The simulator cannot do what it was asked: a missing tool, a malformed code object, a wrong launch."""
