"""Render results: reports, tables, JSON, drawings, timelines, annotated assembly, dump files."""

if __name__ != "convgen.show":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.show, not as {__name__}")
