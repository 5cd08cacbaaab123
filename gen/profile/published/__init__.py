"""Run times that others measured and published, as the time model sees them."""

if __name__ != "convgen.profile.published":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.profile.published, not as {__name__}")
