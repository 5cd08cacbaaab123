"""IR-to-IR passes, one file each, and the message planner.

May import: convgen.ir."""

if __name__ != "convgen.passes":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.passes, not as {__name__}")
