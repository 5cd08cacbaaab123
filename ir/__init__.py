"""The intermediate representation: types, hash-consed nodes, layouts, text, verifier, interpreter.

May import: nothing of ours."""

if __name__ != "convgen.ir":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.ir, not as {__name__}")
