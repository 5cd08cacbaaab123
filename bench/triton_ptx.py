"""Judge PTX that Triton compiles on the simulator: right results, and no finding.

    PYTHONPATH=.types:bench PYTHON bench/triton_ptx.py [--target sm_80 --target sm_90]

PYTHON has Triton, numpy and what convgen needs; no GPU is needed. Products (with copies ahead in 1 to 4 stages, 2 to 8
warps, f16, bf16, tf32, f64 and s8), convolutions, reductions, scans, sorts, atomics and element-wise code. Products for
sm_90 use wgmma, some of them with operands that bulk copies bring by tensor maps; there are also products of 8-bit
floats and attention. Advice is no finding.
"""

# mypy: ignore-errors

import argparse
from dataclasses import dataclass, field
from math import erf

import ml_dtypes
import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from convgen.backends.nvidia.sim import signatures, simulate
from convgen.backends.simulation import KernelArg, LaunchRequest
from convgen.ir.layout.tensor_map import TensorMap

RANDOM = np.random.default_rng(5)
TYPES = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp32": np.float32,
    "fp64": np.float64,
    "fp8e4nv": ml_dtypes.float8_e4m3fn,
    "fp8e5": ml_dtypes.float8_e5m2,
    "i8": np.int8,
    "i32": np.int32,
}


@triton.jit
def product(A, B, C, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        a = tl.load(A + rm[:, None] * K + (k + rk)[None, :], (rm < M)[:, None] & (k + rk < K)[None, :], 0.0)
        b = tl.load(B + rn[None, :] * K + (k + rk)[:, None], (rn < N)[None, :] & (k + rk < K)[:, None], 0.0)
        acc = tl.dot(a, b, acc, out_dtype=ACC)
    tl.store(C + rm[:, None] * N + rn[None, :], acc.to(C.dtype.element_ty), (rm < M)[:, None] & (rn < N)[None, :])


@triton.jit
def described(A, B, C, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(A.load([m, k]), B.load([n, k]).T, acc)
    C.store([m, n], acc.to(tl.float16))


@triton.jit
def convolution(X, W, Y, BM: tl.constexpr, H: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr):
    """3 x 3 with padding 1, channels last, one image of H x H."""
    pixel = tl.program_id(0) * BM + tl.arange(0, BM)
    y, x, ci, co = pixel // H, pixel % H, tl.arange(0, CI), tl.arange(0, CO)
    acc = tl.zeros((BM, CO), tl.float32)
    for tap in range(9):
        iy, ix = y + tap // 3 - 1, x + tap % 3 - 1
        inside = (iy >= 0) & (iy < H) & (ix >= 0) & (ix < H) & (pixel < H * H)
        a = tl.load(X + (iy * H + ix)[:, None] * CI + ci[None, :], inside[:, None], 0)
        acc = tl.dot(a, tl.load(W + (tap * CI + ci)[:, None] * CO + co[None, :]), acc)
    tl.store(Y + pixel[:, None] * CO + co[None, :], acc.to(tl.float16), (pixel < H * H)[:, None])


@triton.jit
def attention(Q, K, V, Y, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    rm, rd, rn = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    q = tl.load(Q + rm[:, None] * D + rd[None, :])
    most, total, acc = tl.full((BM,), -1e30, tl.float32), tl.zeros((BM,), tl.float32), tl.zeros((BM, D), tl.float32)
    for n in range(0, N, BN):
        s = tl.dot(q, tl.load(K + (n + rn)[:, None] * D + rd[None, :]).T)
        now = tl.maximum(most, tl.max(s, 1))
        p, scale = tl.exp(s - now[:, None]), tl.exp(most - now)
        total, acc, most = total * scale + tl.sum(p, 1), acc * scale[:, None], now
        acc = tl.dot(p.to(tl.float16), tl.load(V + (n + rn)[:, None] * D + rd[None, :]), acc)
    tl.store(Y + rm[:, None] * D + rd[None, :], (acc / total[:, None]).to(tl.float16))


@triton.jit
def softmax(X, Y, N, BN: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BN)
    x = tl.load(X + row * N + at, at < N, -float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(Y + row * N + at, e / tl.sum(e, 0), at < N)


@triton.jit
def layer_norm(X, Y, N, BN: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BN)
    x = tl.load(X + row * N + at, at < N, 0.0)
    mean = tl.sum(x, 0) / N
    centred = tl.where(at < N, x - mean, 0.0)
    tl.store(Y + row * N + at, centred / tl.sqrt(tl.sum(centred * centred, 0) / N + 1e-5), at < N)


@triton.jit
def scan(X, Y, BN: tl.constexpr):
    at = tl.program_id(0) * BN + tl.arange(0, BN)
    tl.store(Y + at, tl.cumsum(tl.load(X + at), 0))


@triton.jit
def sort(X, Y, BN: tl.constexpr):
    at = tl.program_id(0) * BN + tl.arange(0, BN)
    tl.store(Y + at, tl.sort(tl.load(X + at)))


@triton.jit
def histogram(X, Y, BN: tl.constexpr, BINS: tl.constexpr):
    x = tl.load(X + tl.program_id(0) * BN + tl.arange(0, BN))
    tl.atomic_add(Y + tl.arange(0, BINS), tl.histogram(x, BINS))


@triton.jit
def total(X, Y, N, BN: tl.constexpr):
    at = tl.program_id(0) * BN + tl.arange(0, BN)
    tl.atomic_add(Y, tl.sum(tl.load(X + at, at < N, 0.0), 0))


@triton.jit
def gelu(X, Y, N, BN: tl.constexpr):
    at = tl.program_id(0) * BN + tl.arange(0, BN)
    x = tl.load(X + at, at < N, 0.0).to(tl.float32)
    tl.store(Y + at, (0.5 * x * (1 + tl.erf(x * 0.70710678118))).to(Y.dtype.element_ty), at < N)


@triton.jit
def transpose(X, Y, M, N, B: tl.constexpr):
    r, c = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    x = tl.load(X + r[:, None] * N + c[None, :], (r < M)[:, None] & (c < N)[None, :], 0)
    tl.store(Y + c[:, None] * M + r[None, :], tl.trans(x), (c < N)[:, None] & (r < M)[None, :])


@triton.jit
def column_argmax(X, Y, N, BM: tl.constexpr, BN: tl.constexpr):
    r, c = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    x = tl.load(X + r[:, None] * N + c[None, :], (c < N)[None, :], 0)
    tl.store(Y + c, tl.argmax(x, 0).to(tl.int32), c < N)


@dataclass
class Case:
    """A kernel, its arguments (arrays, numbers), the number of the result and what it should hold."""

    kernel: object
    name: str
    arguments: list
    constants: dict
    grid: tuple
    wanted: np.ndarray
    out: int = 2
    warps: int = 4
    stages: int = 2
    tolerance: float = 0.0
    kinds: list = field(default_factory=list)


def whole(kind, *shape):
    return RANDOM.integers(-3, 4, shape).astype(TYPES[kind])


def products():
    cases = []
    for kind, tile, warps, stages in (
        ("fp16", (64, 64, 32), 4, 1), ("fp16", (64, 64, 32), 4, 2), ("fp16", (128, 64, 32), 4, 3),
        ("fp16", (64, 128, 64), 8, 3), ("fp16", (128, 128, 32), 8, 4), ("fp16", (32, 32, 64), 2, 4),
        ("fp16", (16, 16, 32), 1, 3), ("bf16", (64, 64, 32), 4, 3), ("bf16", (128, 64, 64), 8, 2),
        ("bf16", (32, 64, 16), 2, 3), ("fp32", (64, 64, 16), 4, 3), ("fp32", (32, 64, 32), 2, 2),
        ("i8", (64, 64, 64), 4, 3), ("i8", (128, 32, 32), 4, 2), ("fp64", (32, 32, 16), 4, 2),
    ):  # fmt: skip
        m, n, k = 100, 72, 144
        a, b = whole(kind, m, k), whole(kind, n, k)
        result = {"i8": "i32", "fp64": "fp64"}.get(kind, "fp32")
        wanted = a.astype(np.float64) @ b.astype(np.float64).T
        c = np.zeros((m, n), TYPES[result])
        constants = dict(
            zip(("BM", "BN", "BK"), tile), ACC={"i32": tl.int32, "fp64": tl.float64}.get(result, tl.float32)
        )
        grid = (-(-m // tile[0]), -(-n // tile[1]), 1)
        name = f"product {kind} {'x'.join(map(str, tile))} warps={warps} stages={stages}"
        kinds = [f"*{kind}", f"*{kind}", f"*{result}", "i32", "i32", "i32"]
        cases.append(Case(product, name, [a, b, c, m, n, k], constants, grid, wanted, 2, warps, stages, kinds=kinds))
    x, w = whole("fp16", 10, 10, 32), whole("fp16", 3, 3, 32, 64)
    around = np.pad(x.astype(np.float64), ((1, 1), (1, 1), (0, 0)))
    y = sum(around[i : i + 10, j : j + 10] @ w[i, j].astype(np.float64) for i in range(3) for j in range(3))
    for warps, stages in ((4, 1), (4, 3), (8, 2)):
        constants = {"BM": 64, "H": 10, "CI": 32, "CO": 64}
        arguments = [x, w, np.zeros((10, 10, 64), np.float16)]
        name = f"convolution warps={warps} stages={stages}"
        kinds = ["*fp16"] * 3
        cases.append(Case(convolution, name, arguments, constants, (2, 1, 1), y, 2, warps, stages, kinds=kinds))
    return cases


def described_products():
    """Products of operands that tensor maps describe."""
    for (bm, bn, bk), warps, stages in (
        ((128, 128, 64), 4, 3), ((64, 64, 64), 4, 2), ((128, 64, 32), 8, 4), ((64, 128, 128), 4, 3),
        ((64, 16, 16), 4, 2),
    ):  # fmt: skip
        a, b = whole("fp16", 200, 256), whole("fp16", 136, 256)
        arguments = [a, b, np.zeros((200, 136), np.float16), 256]
        kinds = [f"tensordesc<fp16[{r}, {c}]>" for r, c in ((bm, bk), (bn, bk), (bm, bn))]
        grid, wanted = (-(-200 // bm), -(-136 // bn), 1), a.astype(np.float64) @ b.astype(np.float64).T
        name = f"product by tensor maps {bm}x{bn}x{bk} warps={warps} stages={stages}"
        constants = {"BM": bm, "BN": bn, "BK": bk}
        yield Case(described, name, arguments, constants, grid, wanted, 2, warps, stages, kinds=[*kinds, "i32"])


def hopper():
    """Products of 8-bit floats, and attention, whose second product has a factor in registers."""
    for kinds, tile, warps in ((("fp8e4nv", "fp8e5"), (64, 64, 64), 4), (("fp8e5", "fp8e5"), (64, 128, 128), 8)):
        a, b = whole(kinds[0], 100, 144), whole(kinds[1], 72, 144)
        wanted, grid = a.astype(np.float64) @ b.astype(np.float64).T, (-(-100 // tile[0]), -(-72 // tile[1]), 1)
        constants = dict(zip(("BM", "BN", "BK"), tile), ACC=tl.float32)
        arguments = [a, b, np.zeros((100, 72), np.float32), 100, 72, 144]
        kinds = [*(f"*{kind}" for kind in kinds), "*fp32", "i32", "i32", "i32"]
        yield Case(product, f"product {' '.join(kinds[:2])}", arguments, constants, grid, wanted, 2, warps, kinds=kinds)
    for (bm, bn, d), warps in (((64, 64, 64), 4), ((128, 128, 64), 8), ((128, 64, 128), 8)):
        q, k, v = ((RANDOM.standard_normal((256, d)) * 0.3).astype(np.float16) for _ in range(3))
        p = np.exp(q.astype(np.float64) @ k.astype(np.float64).T)
        wanted = p @ v.astype(np.float64) / p.sum(1, keepdims=True)
        arguments, name = [q, k, v, np.zeros_like(q), 256], f"attention {bm}x{bn}x{d} warps={warps}"
        constants, grid, kinds = {"BM": bm, "BN": bn, "D": d}, (256 // bm, 1, 1), [*["*fp16"] * 4, "i32"]
        yield Case(attention, name, arguments, constants, grid, wanted, 3, warps, tolerance=4e-3, kinds=kinds)


def rows():
    """Softmax and layer norm: one row a program."""
    x = RANDOM.standard_normal((6, 1000)).astype(np.float32)
    e = np.exp(x - x.max(1, keepdims=True))
    centred = x - x.mean(1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    grid, constants, kinds = (6, 1, 1), {"BN": 1024}, ["*fp32", "*fp32", "i32"]
    for warps in (1, 4, 8):
        arguments, wanted = [x, np.zeros_like(x), 1000], e / e.sum(1, keepdims=True)
        yield Case(softmax, f"softmax warps={warps}", arguments, constants, grid, wanted, 1, warps, 2, 1e-5, kinds)
    arguments = [x, np.zeros_like(x), 1000]
    yield Case(layer_norm, "layer_norm", arguments, constants, grid, normed, 1, 4, 2, 1e-4, kinds)


def scans_and_sums():
    """A scan, a sort, and sums by atomics."""
    n = RANDOM.integers(-50, 50, (4, 512)).astype(np.int32)
    grid, kinds = (4, 1, 1), ["*i32", "*i32"]
    yield Case(scan, "scan", [n, np.zeros_like(n)], {"BN": 512}, grid, np.cumsum(n, 1), 1, 4, 2, kinds=kinds)
    yield Case(sort, "sort", [n, np.zeros_like(n)], {"BN": 512}, grid, np.sort(n, 1), 1, 4, 2, kinds=kinds)
    x = RANDOM.integers(0, 64, (4, 256)).astype(np.int32)
    wanted, constants = np.bincount(x.ravel(), minlength=64), {"BN": 256, "BINS": 64}
    yield Case(histogram, "histogram", [x, np.zeros(64, np.int32)], constants, grid, wanted, 1, 4, 2, kinds=kinds)
    w = whole("fp32", 3000)
    arguments, kinds = [w, np.zeros(1, np.float32), 3000], ["*fp32", "*fp32", "i32"]
    wanted = w.sum(keepdims=True)
    yield Case(total, "total by atomics", arguments, {"BN": 1024}, (3, 1, 1), wanted, 1, 4, 2, kinds=kinds)


def gelus():
    for kind, tolerance in (("fp32", 1e-5), ("fp16", 2e-3), ("bf16", 2e-2)):
        x = RANDOM.standard_normal(2000).astype(TYPES[kind])
        wanted = np.array([0.5 * t * (1 + erf(t * 0.70710678118)) for t in x.astype(np.float64)])
        arguments, kinds = [x, np.zeros_like(x), 2000], [f"*{kind}", f"*{kind}", "i32"]
        constants, grid = {"BN": 1024}, (2, 1, 1)
        yield Case(gelu, f"gelu {kind}", arguments, constants, grid, wanted, 1, 4, 2, tolerance, kinds)


def transposes():
    for kind in ("fp16", "i8", "fp32"):
        x = whole(kind, 100, 70)
        arguments, kinds = [x, np.zeros((70, 100), TYPES[kind]), 100, 70], [f"*{kind}", f"*{kind}", "i32", "i32"]
        wanted, grid = x.T.astype(np.float64), (4, 3, 1)
        yield Case(transpose, f"transpose {kind}", arguments, {"B": 32}, grid, wanted, 1, 4, 2, kinds=kinds)


def argmaxes():
    x = RANDOM.permutation(64 * 90).reshape(64, 90).astype(np.float32)
    arguments, kinds = [x, np.zeros(90, np.int32), 90], ["*fp32", "*i32", "i32"]
    constants, grid = {"BM": 64, "BN": 32}, (3, 1, 1)
    yield Case(column_argmax, "argmax", arguments, constants, grid, x.argmax(0), 1, 4, 2, kinds=kinds)


def compiled(case, arch):
    names = case.kernel.arg_names
    signature = dict(zip(names, case.kinds)) | dict.fromkeys(case.constants, "constexpr")
    source = ASTSource(case.kernel, signature, constexprs=case.constants)
    return triton.compile(source, GPUTarget("cuda", arch, 32), {"num_warps": case.warps, "num_stages": case.stages})


def expanded(case, made):
    """Return the arguments of a kernel: names of buffers, numbers, and tensor maps, each with its sizes and strides."""
    values = []
    for number, (argument, kind) in enumerate(zip(case.arguments, case.kinds)):
        name = f"p{number}"
        if not kind.startswith("tensordesc"):
            values.append(name if isinstance(argument, np.ndarray) else int(argument))
            continue
        meta = made.metadata.tensordesc_meta[number]
        box, swizzle = tuple(meta["block_size"][::-1]), (0, 32, 64, 128)[meta["swizzle"]]
        strides = argument.strides[:-1][::-1]
        values.append(TensorMap("tiled", "f16", name, argument.shape[::-1], strides, box=box, swizzle=swizzle))
        values += [*argument.shape, *(stride // argument.itemsize for stride in argument.strides)]
    return values


def judged(case, arch):
    """Return "" if a kernel is right without findings, else what is wrong."""
    made = compiled(case, arch)
    text = made.asm["ptx"].encode()
    signature = next(iter(signatures(text).values()))
    buffers, arguments = {}, []
    given = expanded(case, made)
    for number, parameter in enumerate(signature.parameters):
        value = given[number] if number < len(given) else bytes(parameter.size)
        if isinstance(value, int):
            value = value.to_bytes(parameter.size, "little")
        arguments.append(KernelArg(parameter.offset, parameter.size, value))
    for number, array in enumerate(case.arguments):
        if isinstance(array, np.ndarray):
            buffers[f"p{number}"] = np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy()
    shared = max(made.metadata.shared, signature.shared_bytes)
    request = LaunchRequest(signature.kernel, case.grid, (32 * case.warps, 1, 1), tuple(arguments), shared)
    report = simulate(text, [request], buffers)
    result = buffers[f"p{case.out}"].view(case.arguments[case.out].dtype).astype(np.float64).reshape(case.wanted.shape)
    required = [finding for finding in report.findings if finding.source.required]
    if required:
        return str(required[0])
    bad = ~np.isclose(result, case.wanted.astype(np.float64), rtol=case.tolerance, atol=case.tolerance)
    return f"{bad.sum()} of {bad.size} wrong" if bad.any() else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", action="append", help="sm_80, sm_90, ..; both without")
    asked = parser.parse_args()
    count = wrong = 0
    for target in asked.target or ("sm_80", "sm_90"):
        arch = int(target.removeprefix("sm_"))
        for case in [
            *products(),
            *(described_products() if arch >= 90 else ()),
            *(hopper() if arch >= 90 else ()),
            *(case for cases in (rows, scans_and_sums, gelus, transposes, argmaxes) for case in cases()),
        ]:
            try:
                why = judged(case, arch)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            count, wrong = count + 1, wrong + bool(why)
            print(f"{target} {case.name}: {why or 'right'}", flush=True)
    print(f"Triton {triton.__version__}: {count} kernels, {wrong} not right or with findings")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
