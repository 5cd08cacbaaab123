"""Timing model of a compute unit that runs a kernel's machine code."""

if __name__ != "convgen.backends.amdgpu.timing":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.amdgpu.timing, not as {__name__}")
