"""A strict simulator of AMD CDNA code objects.

`simulate` runs launches: `launch` sets up arguments and registers, `engine` executes groups of waves (`state`) whose
control flow agrees, each instruction compiled once (`compile`) into a `step`. What instructions do: `alu/`, `mfma`,
`smfmac`, `ds`, `vmem`, `formats`, `scratch`, `smem`, `control`, `relative`. What hardware does not promise: `waits`
(when loads land), `hazards` (wait states), `local` and `global_access` (races, visibility), poison (in `state`, beside
the values). What asks for each of these rules is in `sources` and the hazards' rows.

Not simulated: flushing of f32 denormals but by matrix and dot products and transcendentals, rounding modes other than
to nearest even, swizzled buffers other than scratch, the very error of transcendentals (rounded correctly, or with
`approximate` wrong by no more than is documented: `alu/curves`), the order in which atomic operations of several waves
meet (that of the waves; sums that round come out otherwise in another order). What `bench/isa.py` lists as refused is
one error that names the instruction. Who wants to look on is shown waves by `watching`.

May import: convgen.ir.error, convgen.backends.simulation; nothing from selection or emission (two rooms, no shared
mistakes)."""

from convgen.backends.amdgpu.sim.code_object import CodeObject, KernelInfo
from convgen.backends.amdgpu.sim.simulate import signatures, simulate
from convgen.backends.amdgpu.sim.watching import Halt
from convgen.backends.sim.errors import SimulatorError, Unsupported

if __name__ != "convgen.backends.amdgpu.sim":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.amdgpu.sim, not as {__name__}")

__all__ = ["CodeObject", "Halt", "KernelInfo", "SimulatorError", "Unsupported", "signatures", "simulate"]
