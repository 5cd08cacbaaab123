"""A strict simulator of Intel Xe code objects (zebin for XeHPG, XeHPC, Xe2).

`simulate` runs launches: `launch` sets up payload and registers, `engine` executes groups of threads (`state`) that are
at one instruction, each instruction compiled once (`compile`) into a `step`. Instructions are implemented in `alu`,
`dpas`, `lsc`, `block2d`, `gateway` and `control`. Checks: `scoreboard` (SWSB annotations), `syntax_rules` and the
checks beside each kind of message, races (`backends.sim`), undefined values (`state`). An `adversary` delays loads as
long as their waits allow (`late`) and runs threads in unfavourable orders.

`sources` lists the kinds of findings, each with the document of its rule.

Not simulated: typed and bindless surfaces, descriptors in registers, calls, scratch memory, the exact error of math
functions (they are rounded correctly, or with `approximate` within the documented error: `curves`), the order of atomic
operations of several threads.

May import: convgen.backends.simulation, convgen.backends.sim; nothing from selection or emission.
"""

from convgen.backends.intel.sim.adversary import Adversary
from convgen.backends.intel.sim.code_object import CodeObject, KernelInfo
from convgen.backends.intel.sim.simulate import simulate
from convgen.backends.sim.errors import SimulatorError, Unsupported

if __name__ != "convgen.backends.intel.sim":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.intel.sim, not as {__name__}")

__all__ = ["Adversary", "CodeObject", "KernelInfo", "SimulatorError", "Unsupported", "simulate"]
