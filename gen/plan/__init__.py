"""The plan of a kernel: views, inputs with their copies, and the matrix instruction tile for a problem and a config."""

if __name__ != "convgen.plan":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.plan, not as {__name__}")
