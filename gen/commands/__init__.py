"""The commands of `convgen`, one module each (`conv` and `gemm` share one). A command takes its arguments and returns
the exit code; `parser` functions say what it takes, for `--help` and for shell completion.
"""

if __name__ != "convgen.commands":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.commands, not as {__name__}")
