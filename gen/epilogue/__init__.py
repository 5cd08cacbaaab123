"""Finish sums before they are stored: bias, scales, post-ops, conversion, as steps on fragments."""

if __name__ != "convgen.epilogue":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.epilogue, not as {__name__}")
