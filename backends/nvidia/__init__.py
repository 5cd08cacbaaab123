"""NVIDIA as a family of targets: PTX from sm_80 on. The driver, or `ptxas`, allocates registers and schedules."""

if __name__ != "convgen.backends.nvidia":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.nvidia, not as {__name__}")
