"""A strict simulator of Intel Xe code objects (zebin for XeHPG, XeHPC, Xe2).

`simulate` runs launches: `launch` sets up payload and registers, `engine` executes groups of threads (`state`) whose
control flow agrees, each instruction compiled once (`compile`) into a `step`. What instructions do: `alu`, `dpas`,
`lsc`, `block2d`, `gateway`, `control`. What hardware does not promise: `scoreboard` (when results are there), `rules`
and the checks beside each kind of message, races (`backends.sim`), poison (in `state`, beside the values). An
`adversary` has loads read as late as they may (`late`) and runs threads in orders that kernels like least.

Findings: "distance", "token-wait", "token", "swsb" (annotations), "send-war" (defect of XeHPC), "code-end",
"end-suppression", "send-suppression", "dpas-suppression", "half-suppression", "mul-suppression" (`defects`),
"fused-branch", "poison", "slm-race", "global-race", "global-visibility", "out-of-bounds", "misaligned", "read-only",
"barrier", "dpas", "dpasw", "region", "type", "acc-wr-en", "register-range", "message", "message-length",
"unsupported-message", "block2d", "end-of-thread", "slm-size", "control", "runaway".

Not simulated: rounding other than to nearest even, bindless surfaces, descriptors in registers, calls, scratch memory,
the very error of math functions (they are rounded correctly, or with `approximate` wrong by no more than is documented:
`curves`), the order in which atomic operations meet.

May import: convgen.backends.simulation, convgen.backends.sim; nothing from selection or emission."""

from convgen.backends.intel.sim.adversary import Adversary
from convgen.backends.intel.sim.code_object import CodeObject, KernelInfo
from convgen.backends.intel.sim.simulate import simulate
from convgen.backends.sim.errors import SimulatorError, Unsupported

if __name__ != "convgen.backends.intel.sim":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.intel.sim, not as {__name__}")

__all__ = ["Adversary", "CodeObject", "KernelInfo", "SimulatorError", "Unsupported", "simulate"]
