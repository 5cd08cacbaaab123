"""Predict run times without hardware, by a model fitted to published measurements."""

if __name__ != "convgen.profile":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.profile, not as {__name__}")
