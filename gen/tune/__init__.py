"""Configs that are timed before one is taken, and the registry that keeps what came out."""

if __name__ != "convgen.tune":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.tune, not as {__name__}")
