"""A strict simulator of AMD CDNA code objects.

May import: convgen.ir, convgen.backends.simulation; nothing from selection or emission (design: two rooms, no shared
mistakes)."""

from convgen.backends.amdgpu.sim.code_object import CodeObject, KernelInfo
from convgen.backends.amdgpu.sim.errors import SimulatorError, Unsupported
from convgen.backends.amdgpu.sim.simulate import simulate

if __name__ != "convgen.backends.amdgpu.sim":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.amdgpu.sim, not as {__name__}")

__all__ = ["CodeObject", "KernelInfo", "SimulatorError", "Unsupported", "simulate"]
