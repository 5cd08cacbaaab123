"""Arithmetic: operand access by type, and the tables of scalar and vector instructions."""

if __name__ != "convgen.backends.amdgpu.sim.alu":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.amdgpu.sim.alu, not as {__name__}")
