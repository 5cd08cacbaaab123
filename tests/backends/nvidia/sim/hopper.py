"""Kernels of Hopper for the simulator's tests: text around statements, and operands as bytes of shared memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
NUMPY: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
}
SPANS = {128: 1, 64: 2, 32: 3, 0: 0}  #: field of a descriptor by the bytes of a swizzle's row


def kernel(body: str, parameters: str, directives: str = "", target: str = "sm_90a") -> str:
    """Return PTX of a kernel `k` with dynamic shared memory `s` and registers of all types; %r0 is the thread."""
    return f"""
.version 8.0
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 s[];
.visible .entry k({parameters}) {directives}
{{
    .reg .pred %p<32>; .reg .b16 %h<64>; .reg .b32 %r<256>; .reg .b64 %rd<96>; .reg .b64 %a<8>; .reg .f32 %f<256>;
    mov.u32 %r0, %tid.x;
    {body}
    ret;
}}
"""


def pointers(count: int) -> tuple[str, str]:
    """Return parameters p0, p1, .. and statements that load them into %a0, %a1, .."""
    declared = ", ".join(f".param .u64 p{i}" for i in range(count))
    return declared, "\n".join(f"ld.param.u64 %a{i}, [p{i}]; cvta.to.global.u64 %a{i}, %a{i};" for i in range(count))


def place(r: int, k: int, size: int, span: int, leading: int, stride: int, *, transposed: bool) -> int:
    """Return the byte of element (r, k) ahead of the swizzle, relative to the operand's start (in 1024 bytes)."""
    if not transposed:
        if span:
            return (r % 8) * span + k * size + (r // 8) * stride
        return (r % 8) * 16 + (r // 8) * stride + k * size // 16 * leading + k * size % 16
    if span:
        t = span // size
        return (r % t) * size + (r // t) * leading + (k % 8) * span + (k // 8) * stride
    return (r % 8) * size + (r // 8) * stride + (k % 8) * 16 + (k // 8) * leading


def swizzle(address: int, span: int) -> int:
    """Return an absolute shared address after the swizzle: bits 7 and up permute chunks of 16 bytes."""
    return address ^ {128: address >> 7 & 7, 64: address >> 7 & 3, 32: address >> 7 & 1, 0: 0}[span] << 4


def put(image: Array, matrix: Array, start: int, span: int, leading: int, stride: int, *, transposed: bool) -> None:
    """Write a matrix [rows, k] into bytes of shared memory."""
    size = matrix.itemsize
    raw = np.ascontiguousarray(matrix).view(np.uint8).reshape(*matrix.shape, size)
    for r, k in np.ndindex(*matrix.shape):
        at = start + place(r, k, size, span, leading, stride, transposed=transposed)
        at = swizzle(at, span)
        image[at : at + size] = raw[r, k]


def descriptor(start: int, span: int, leading: int, stride: int) -> int:
    """Return a matrix descriptor."""
    return start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | SPANS[span] << 62


def numbered(prefix: str, count: int, first: int = 0) -> str:
    """Return a vector of registers."""
    return "{" + ", ".join(f"{prefix}{first + i}" for i in range(count)) + "}"


def judged(run: Any, ptx: str, cut: str, instead: str, *values: Any, **options: Any) -> set[str]:
    """Check that a kernel is clean, and return the kinds of findings of one in which `cut` is replaced."""
    assert ptx.count(cut) >= 1, cut
    clean = run(ptx, *(v.copy() if isinstance(v, np.ndarray) else v for v in values), **options)
    assert not clean.findings, "\n".join(map(str, clean.findings))
    return {finding.kind for finding in run(ptx.replace(cut, instead, 1), *values, **options).findings}


def edited(text: str, cut: str, instead: str) -> str:
    """Replace the first occurrence of some text, which is there."""
    assert text.count(cut) >= 1, cut
    return text.replace(cut, instead, 1)
