"""convgen: GPU convolution and GEMM kernels from a problem line, verified without a GPU."""

if __name__ != "convgen":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen, not as {__name__}")
