"""Functions of other compilers' kernels in numpy, of inputs and numbers by the arguments' names.

A reference gives the outputs by name, in f64 or whole numbers, which the caller rounds to their types. Inputs come in
the types that they have in memory; those of scaled products come as bytes, with their format beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]
Numbers = Mapping[str, float]
#: Outputs by name, from inputs, numbers and formats of inputs by name.
Reference = Callable[[Tensors, Numbers, Mapping[str, str]], dict[str, Array]]

_FP4 = np.array((0, 0.5, 1, 1.5, 2, 3, 4, 6))  #: numbers of e2m1 by the bits below the sign (OCP MX 1.0)
_BYTES: Mapping[str, Any] = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
_PHILOX = ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85))  #: factors, and what is added to the keys a round


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    result: Array = e / e.sum(-1, keepdims=True)
    return result


def _layer_norm(t: Tensors, numbers: Numbers, _: Mapping[str, str]) -> dict[str, Array]:
    x, gain, shift = (t[name].astype(np.float64) for name in ("X", "G", "Bt"))
    centred = x - x.mean(1, keepdims=True)
    spread = np.sqrt((centred**2).mean(1, keepdims=True) + numbers["eps"])
    return {"Y": centred / spread * gain + shift}


def _attention(*, causal: bool) -> Reference:
    def function(t: Tensors, numbers: Numbers, _: Mapping[str, str]) -> dict[str, Array]:
        q, k, v = (t[name].astype(np.float64) for name in "QKV")
        scores = q @ k.swapaxes(1, 2) * numbers.get("scale", 0.125)
        if causal:
            scores = np.where(np.tri(scores.shape[1], dtype=np.bool_), scores, -np.inf)
        return {"O": _softmax(scores) @ v}

    return function


def _gelu(t: Tensors, _: Numbers, __: Mapping[str, str]) -> dict[str, Array]:
    x = t["X"].astype(np.float64)
    return {"Y": x / 2 * (1 + np.vectorize(erf)(x / np.sqrt(2)))}


def _extremes(t: Tensors, numbers: Numbers, _: Mapping[str, str]) -> dict[str, Array]:
    """Over blocks of 256 numbers, those beyond the last one 0: what atomic operations of each block leave."""
    x = np.pad(t["X"], (0, -len(t["X"]) % 256)).reshape(-1, 256)
    low, high = min(x.min(), 0), max(x.max(), 0)
    places, mixed = x.argmax(1).sum(), np.bitwise_xor.reduce(x, axis=None)
    return {"M": np.array((high, low, places, mixed, np.bitwise_or.reduce(x.max(1))))}


def _product(t: Tensors, _: Numbers, __: Mapping[str, str]) -> dict[str, Array]:
    return {"C": t["A"].astype(np.float64) @ t["Bm"].astype(np.float64).T}


def _unpacked(rows: Array, form: str) -> Array:
    """Numbers of a format from rows of bytes; two of e2m1 share one, the first in its low half."""
    if form == "e2m1":
        codes = np.stack((rows & 15, rows >> 4), axis=-1).reshape(len(rows), -1)
        signed: Array = np.where(codes & 8, -1.0, 1.0) * _FP4[codes & 7]
        return signed
    return (rows.view(_BYTES[form]) if form in _BYTES else rows).astype(np.float64)


def _scaled_product(t: Tensors, _: Numbers, formats: Mapping[str, str]) -> dict[str, Array]:
    """Each 32 numbers along K have a power of two as their scale (OCP MX 1.0, E8M0)."""
    sides = []
    for name, scale in (("A", "SA"), ("Bm", "SB")):
        factors = np.ldexp(1.0, t[scale].astype(np.int64) - 127).repeat(32, axis=1)
        sides.append(_unpacked(t[name], formats[name]) * factors)
    return {"C": sides[0] @ sides[1].T}


def _convolution(t: Tensors, _: Numbers, __: Mapping[str, str]) -> dict[str, Array]:
    """X[H, W, C] with Wt[O, 3, 3, C], padded by one."""
    x, w = t["X"].astype(np.float64), t["W"].astype(np.float64)
    height, width, _c = x.shape
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    taps = (padded[r : r + height, s : s + width] @ w[:, r, s].T for r in range(3) for s in range(3))
    return {"Y": np.array(sum(taps))}


def _windows(t: Tensors, _: Numbers, __: Mapping[str, str]) -> dict[str, Array]:
    """X[1, H, W, C] with W[3, 3, C, O] or, channel by channel, W[3, 3, C]; without padding."""
    x, w = t["X"].astype(np.float64), t["W"].astype(np.float64)
    height, width = x.shape[1] - 2, x.shape[2] - 2
    taps = ((x[:, r : r + height, s : s + width], w[r, s]) for r in range(3) for s in range(3))
    return {"Y": np.array(sum(part @ tap if tap.ndim == 2 else part * tap for part, tap in taps))}


def _curves(t: Tensors, _: Numbers, __: Mapping[str, str]) -> dict[str, Array]:
    x = t["X"].astype(np.float64)
    rows = (np.vectorize(erf)(x), np.sin(x), np.log(np.abs(x) + 1e-3), 1 / (1 + np.exp(-x)), np.sqrt(np.abs(x)))
    return {"Y": np.stack((*rows, 1.5 / x, np.floor(x * 3)))}


def _divisions(t: Tensors, _: Numbers, __: Mapping[str, str]) -> dict[str, Array]:
    """Quotients toward zero, remainders of the dividend's sign, products that wrap, shifts that keep the sign."""
    x, d = t["X"].astype(np.int64), t["D"].astype(np.int64)
    quotient = np.sign(x) * (np.abs(x) // d)
    return {"Y": np.stack((quotient, x - quotient * d, x * d, x >> (d & 15)))}


def _philox(seed: int, counters: Array) -> Array:
    """The first word of Philox-4x32-10 with the key (seed, 0) at counters (n, 0, 0, 0) (Salmon et al., SC 2011)."""
    (factor_a, factor_b), steps = _PHILOX
    c = [counters.astype(np.uint64), *(np.zeros(len(counters), np.uint64) for _ in range(3))]
    word, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    for number in range(10):
        keys = [np.uint64((key + number * step) & 0xFFFFFFFF) for key, step in zip((seed, 0), steps, strict=True)]
        a, b = c[0] * np.uint64(factor_a), c[2] * np.uint64(factor_b)
        c = [(b >> shift) ^ c[1] ^ keys[0], b & word, (a >> shift) ^ c[3] ^ keys[1], a & word]
    return c[0]


def _dropout(t: Tensors, numbers: Numbers, _: Mapping[str, str]) -> dict[str, Array]:
    bits = _philox(int(numbers["seed"]), np.arange(len(t["X"]))).astype(np.uint32).view(np.int32).astype(np.int64)
    uniform = np.where(bits < 0, -bits - 1, bits) * 4.6566127342e-10
    kept = uniform > numbers["p"]
    return {"Y": np.where(kept, t["X"] / (1 - numbers["p"]), 0.0)}


def _fibonacci(n: int) -> int:
    return n if n < 2 else _fibonacci(n - 1) + _fibonacci(n - 2)


_FUNCTIONS: tuple[Callable[[int], int], ...] = (lambda x: x + 1, lambda x: x * x, lambda x: -x, lambda x: x ^ 0x5A5A)


def _called(x: int) -> int:
    """A number of `tests/data/foreign/clang.c`, functions; beyond 32 bits it wraps."""
    r = _fibonacci(x & 7)
    for k in range(3):
        r = _FUNCTIONS[(r + k) & 3](r + x)
    y = x & 255
    for k in range(40):
        if y < 2:
            break
        if k > (x >> 8 & 31):
            r -= y
            break
        y = 3 * y + 1 if y & 1 else y >> 1
        r += y
    return r + (1, 20, 300, 4000)[x & 3]


def _functions(t: Tensors, _: Numbers, __: Mapping[str, str]) -> dict[str, Array]:
    return {"Y": np.array([(_called(int(x)) + (1 << 31)) % (1 << 32) - (1 << 31) for x in t["X"]])}


def _swaps(t: Tensors, _: Numbers, __: Mapping[str, str]) -> dict[str, Array]:
    """A word whose bytes sum every fourth number; minus the sum of the numbers' low halves of bytes, twice in f32."""
    x = t["X"].astype(np.int64)
    sums = np.array([x[n::4].sum() for n in range(4)]).astype(np.uint8).view(np.int32)
    low = np.array([-(x & 15).sum()] * 2).astype(np.float32).view(np.int32)
    return {"S": np.concatenate((sums, low))}


REFERENCES: Mapping[str, Reference] = {
    "softmax": lambda t, _, __: {"Y": _softmax(t["X"].astype(np.float64))},
    "layer_norm": _layer_norm,
    "attention": _attention(causal=False),
    "attention_causal": _attention(causal=True),
    "total": lambda t, _, __: {"S": t["X"].astype(np.float64).sum(keepdims=True)},
    "lock_total": lambda t, _, __: {"S": t["X"].astype(np.float64).sum(keepdims=True), "L": np.zeros(1)},
    "row_sums": lambda t, _, __: {"S": t["X"].astype(np.float64).sum(1)},
    "column_sums": lambda t, _, __: {"S": t["X"].astype(np.float64).sum(0)},
    "extremes": _extremes,
    "histogram": lambda t, _, __: {"H": np.bincount(t["X"], minlength=len(t["H"]))},
    "product": _product,
    "batched_product": lambda t, _, __: {"C": t["A"].astype(np.float64) @ t["Bm"].astype(np.float64)},
    "scaled_product": _scaled_product,
    "convolution": _convolution,
    "valid_convolution": _windows,
    "depthwise_convolution": _windows,
    "gelu": _gelu,
    "cumsum": lambda t, _, __: {"Y": np.cumsum(t["X"].astype(np.float64), axis=1)},
    "sort": lambda t, _, __: {"Y": np.sort(t["X"], axis=1)},
    "gather": lambda t, _, __: {"Y": t["X"][t["I"]]},
    "transpose": lambda t, _, __: {"Y": t["X"].T},
    "curves": _curves,
    "divisions": _divisions,
    "convert": lambda t, _, __: {"Y": t["X"].astype(np.float64)},
    "dropout": _dropout,
    "functions": _functions,
    "swaps": _swaps,
}
