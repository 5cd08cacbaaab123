"""Timing model of a streaming multiprocessor (SM) that runs a kernel's PTX."""

if __name__ != "convgen.backends.nvidia.timing":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.nvidia.timing, not as {__name__}")
