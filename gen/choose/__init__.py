"""The chooser: rank the configs of a problem by a closed-form model of time, and search for one that compiles."""

if __name__ != "convgen.choose":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.choose, not as {__name__}")
