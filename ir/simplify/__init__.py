"""The simplifier: rules, normal forms, ranges, congruences and proofs."""

if __name__ != "convgen.ir.simplify":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.ir.simplify, not as {__name__}")
