"""One page a kernel: what was asked, what was decided, what each pass did, where each instruction waits."""

if __name__ != "convgen.explain":
    raise ImportError(f"import this package as convgen.explain, not as {__name__}")
