"""Intel Xe (XeHPG, XeHPC, Xe2): tables, selection, scoreboard, text, assembling.

May import: convgen.ir, convgen.passes, convgen.backends.
"""

if __name__ != "convgen.backends.intel":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.intel, not as {__name__}")
