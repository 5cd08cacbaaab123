"""Timing model of an Xe core that runs a kernel's machine code."""

if __name__ != "convgen.backends.intel.timing":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.intel.timing, not as {__name__}")
