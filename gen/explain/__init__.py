"""An HTML page per kernel: problem, config, IR after each pass, and stalls of each instruction."""

if __name__ != "convgen.explain":
    raise ImportError(f"import this package as convgen.explain, not as {__name__}")
