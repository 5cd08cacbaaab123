"""Tile-level kernels of a plan: products, streams, window sums and the list of launches."""

if __name__ != "convgen.kernels":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.kernels, not as {__name__}")
