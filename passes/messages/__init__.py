"""How tiles move: which messages an access to global or shared memory takes. Plans ask here, too."""

if __name__ != "convgen.passes.messages":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.passes.messages, not as {__name__}")
