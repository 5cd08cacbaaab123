"""Kernels on a device: tensors that callers pass, devices by ctypes, launches of a record, and their times."""

if __name__ != "convgen.device":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.device, not as {__name__}")
