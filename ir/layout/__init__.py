"""Layouts: the digit algebra and its instances, from tensors in memory to workgroups."""

if __name__ != "convgen.ir.layout":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.ir.layout, not as {__name__}")
