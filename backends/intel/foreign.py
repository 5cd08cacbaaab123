"""Execute anybody's zebin for an Intel GPU: the simulator, and launches as `.ze_info` describes them."""

from __future__ import annotations

from functools import partial

from convgen.backends.intel.sim import CodeObject, KernelInfo
from convgen.backends.intel.sim import simulate as simulate_strictly
from convgen.backends.simulation import Parameter, Signature

__all__ = ["architecture", "signatures", "simulate"]

#: The simulator with what Intel's compiler takes for granted, which strangers' objects rely on (`sim.scoreboard`).
simulate = partial(simulate_strictly, trust_igc=True)

_BUFFERS = ("arg_bypointer", "buffer_address")  #: kinds of payload arguments that hold an address
_GIVEN = (*_BUFFERS, "arg_byvalue")  #: kinds that the host of a launch gives; runtimes fill in all others


def architecture(code_object: bytes) -> str:
    """Return the name of the platform, such as xehpc. Raises SimulatorError."""
    return CodeObject.load(code_object).platform.name


def signatures(code_object: bytes) -> dict[str, Signature]:
    """Return what launches of a zebin's kernels need, by kernel name. Raises SimulatorError."""
    return {name: _signature(kernel) for name, kernel in CodeObject.load(code_object).kernels.items()}


def _signature(kernel: KernelInfo) -> Signature:
    given = (item for item in kernel.payload if item.size and item.kind in _GIVEN)
    parameters = (Parameter("", item.offset, item.size, item.kind in _BUFFERS) for item in given)
    return Signature(kernel.name, tuple(parameters), kernel.slm, kernel.required_size)
