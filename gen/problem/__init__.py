"""Problems and requests: grammar, tensors, convolutions, matrix products, batch files."""

if __name__ != "convgen.problem":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.problem, not as {__name__}")
