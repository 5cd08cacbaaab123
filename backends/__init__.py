"""Targets: the machine layer shared by all, and one folder a target family.

May import: convgen.ir, convgen.passes."""

if __name__ != "convgen.backends":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends, not as {__name__}")
