"""From a plan to tile-level kernels: products, streams, launches, epilogues."""

if __name__ != "convgen.kernels":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.kernels, not as {__name__}")
