"""A strict simulator of Intel Xe code objects.

May import: convgen.backends.simulation, convgen.backends.sim; nothing from selection or emission."""

if __name__ != "convgen.backends.intel.sim":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.intel.sim, not as {__name__}")
