"""Machine functions: instructions, the frame of selection, scheduling, allocation, text, verifier."""

if __name__ != "convgen.backends.machine":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.machine, not as {__name__}")
