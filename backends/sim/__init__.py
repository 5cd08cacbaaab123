"""Shared part of the simulators: device memory and local memory with race checks, findings, number formats.

No module of this package knows an instruction set. A simulator's group of threads satisfies the protocols of `threads`.

May import: convgen.ir.error, convgen.ir.record, convgen.backends.simulation."""

if __name__ != "convgen.backends.sim":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.sim, not as {__name__}")
