"""AMD CDNA (gfx90a, gfx942, gfx950): tables, selection, waits, hazards, text, assembling.

May import: convgen.ir, convgen.passes, convgen.backends."""

if __name__ != "convgen.backends.amdgpu":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.amdgpu, not as {__name__}")
