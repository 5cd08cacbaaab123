"""Running compiled code: launch records, inputs, the reference, verification, caches."""

if __name__ != "convgen.run":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.run, not as {__name__}")
