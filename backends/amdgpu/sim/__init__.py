"""A strict simulator of AMD CDNA code objects.

`simulate` runs launches: `launch` sets up arguments and registers, `engine` executes groups of waves (`state`) that are
at one instruction, each instruction compiled once (`compile`) into a `step`. Instructions are implemented in `alu/`,
`mfma`, `smfmac`, `ds*`, `vmem`, `atomics`, `formats`, `scratch`, `smem`, `scalar_stores`, `control` and `relative`.
Checks: `waits` (when loads complete), `hazards` (wait states), `backends.sim.local` and `global_access` (races,
visibility), undefined values (`state`). `sources` and the rows of `hazards` name the document of each rule. `watching`
shows waves to a caller.

Not simulated: flushing of f32 denormals except by matrix and dot products and transcendentals, rounding modes other
than to nearest even, swizzled buffers other than scratch, the exact error of transcendentals (they are rounded
correctly, or with `approximate` within the documented error: `alu/curves`), the order of atomic operations of several
waves (rounded sums differ with the order). An instruction that `bench/isa.py` lists as refused raises Unsupported.

May import: convgen.ir.record, convgen.backends.sim, and modules of convgen.backends that emit nothing (simulation,
toolchain, hot_code); nothing of selection or emission (two rooms, no shared mistakes)."""

from convgen.backends.amdgpu.sim.code_object import CodeObject, KernelInfo
from convgen.backends.amdgpu.sim.simulate import simulate
from convgen.backends.amdgpu.sim.watching import Halt
from convgen.backends.sim.errors import SimulatorError, Unsupported

if __name__ != "convgen.backends.amdgpu.sim":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.amdgpu.sim, not as {__name__}")

__all__ = ["CodeObject", "Halt", "KernelInfo", "SimulatorError", "Unsupported", "simulate"]
