"""Targets: the machine layer that all families share, and one folder for each family.

May import: convgen.ir, convgen.passes.
"""

if __name__ != "convgen.backends":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends, not as {__name__}")
