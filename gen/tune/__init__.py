"""Tuning: time several configs of a problem, and keep the fastest in the registry."""

if __name__ != "convgen.tune":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.tune, not as {__name__}")
