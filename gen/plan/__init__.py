"""From a problem to a plan: configs, the chooser, views, copies."""

if __name__ != "convgen.plan":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.plan, not as {__name__}")
