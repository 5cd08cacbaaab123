"""What the simulators of all target families share: device and local memory with their race checks, findings, numbers.

Nothing here knows an instruction set. A simulator's group of threads satisfies the protocols of `threads`.

May import: convgen.backends.simulation."""

if __name__ != "convgen.backends.sim":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.sim, not as {__name__}")
