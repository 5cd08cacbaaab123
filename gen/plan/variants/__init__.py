"""Variants of the implicit GEMM: the ways in which taps and channels become K, one module for each word of `taps=`.

A new variant is a module with a `VARIANT`, and its word in `config.VARIANTS`.
"""

if __name__ != "convgen.plan.variants":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.plan.variants, not as {__name__}")
