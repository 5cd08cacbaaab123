"""The message planner: the messages of an access to global or shared memory. Plans use it, too."""

if __name__ != "convgen.passes.messages":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.passes.messages, not as {__name__}")
