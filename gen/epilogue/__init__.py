"""Epilogues: bias, scales, post-ops and conversion, as steps on fragments of sums before the store."""

if __name__ != "convgen.epilogue":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.epilogue, not as {__name__}")
