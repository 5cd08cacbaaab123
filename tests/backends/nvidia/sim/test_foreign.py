"""Kernels of nvcc and clang give what numpy gives, without a finding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from convgen.backends.nvidia.sim import Unsupported
from convgen.backends.simulation import SimReport
from convgen.ir.layout.tensor_map import TensorMap

DATA = Path(__file__).parents[3] / "data" / "nvidia"
RNG = np.random.default_rng(7)
F32, I32, U32 = np.float32, np.int32, np.uint32
Run = Callable[..., SimReport]


def floats(*shape: int) -> Any:
    """Return random f32 numbers."""
    return RNG.standard_normal(shape).astype(F32)


def ints(low: int, high: int, *shape: int, dtype: Any = I32) -> Any:
    """Return random integers."""
    return RNG.integers(low, high, shape).astype(dtype)


@pytest.fixture(scope="module")
def nvcc(run: Run) -> Run:
    """Return the function that runs a kernel of nvcc's and wants no finding."""
    ptx = (DATA / "nvcc.ptx").read_bytes()

    def clean(kernel: str, *values: Any, **options: Any) -> SimReport:
        report = run(ptx, *values, kernel=kernel, **options)
        assert not report.findings, "\n".join(map(str, report.findings))
        return report

    return clean


def test_vector_add_with_a_tail(nvcc: Run) -> None:
    a, b, c = floats(300), floats(300), np.full(300, 9, F32)
    nvcc("vector_add", a, b, c, 290, grid=(3, 1, 1), block=(128, 1, 1), undefined=[2])
    assert (c[:290] == (a + b)[:290]).all()
    assert (c[290:] == 9).all()


def test_saxpy_on_vectors(nvcc: Run) -> None:
    a, c = floats(400), floats(400)
    wanted = (F32(0.5) * a.astype(np.float64) + c).astype(F32)
    nvcc("saxpy4", a, c, 0.5, 100, grid=(2, 1, 1), block=(32, 1, 1))
    assert np.allclose(c, wanted, rtol=1e-6)


def test_block_sum(nvcc: Run) -> None:
    a, out = ints(-9, 9, 3, 1000).astype(F32), np.zeros(3, F32)
    nvcc("block_sum", a, out, 1000, grid=(3, 1, 1), block=(256, 1, 1), undefined=[1])
    assert (out == a.sum(axis=1)).all()


def test_warp_sum_scan_and_reductions(nvcc: Run) -> None:
    a, out = ints(-99, 99, 256), np.zeros(8, I32)
    nvcc("warp_sum", a, out, grid=(2, 1, 1), block=(128, 1, 1))
    assert (out == a.reshape(8, 32).sum(axis=1)).all()
    scanned = np.zeros(64, I32)
    nvcc("scan_warp", a[:64], scanned, block=(64, 1, 1))
    assert (scanned == a[:64].reshape(2, 32).cumsum(axis=1).ravel()).all()
    u, reduced = ints(0, 1 << 30, 64, dtype=U32), np.zeros(6, U32)
    nvcc("redux", u, reduced, block=(64, 1, 1))
    rows = u.reshape(2, 32)
    wanted = np.stack([rows.sum(1, dtype=U32), rows.max(1), np.bitwise_xor.reduce(rows, 1)], 1)
    assert (reduced == wanted.ravel()).all()


def test_histogram(nvcc: Run) -> None:
    a, bins = ints(0, 256, 3000, dtype=np.uint8), np.zeros(64, U32)
    nvcc("histogram", a, bins, 3000, grid=(4, 1, 1), block=(128, 1, 1))
    assert (bins == np.bincount(a % 64, minlength=64)).all()


def test_transpose(nvcc: Run) -> None:
    a, out = floats(50, 70), np.zeros((70, 50), F32)
    nvcc("transpose", a, out, 50, 70, grid=(3, 2, 1), block=(32, 8, 1), undefined=[1])
    assert (out == a.T).all()


def test_mandelbrot_and_collatz_diverge(nvcc: Run) -> None:
    out = np.zeros(256, I32)
    nvcc("mandelbrot", out, 16, 50, grid=(2, 1, 1), block=(128, 1, 1))
    assert out.max() == 50
    assert len(set(out.tolist())) > 8
    a, steps = np.arange(1, 65, dtype=U32), np.zeros(64, U32)
    nvcc("collatz", a, steps, block=(64, 1, 1))

    def wanted(v: int) -> int:
        count = 0
        while v != 1:
            v, count = (3 * v + 1 if v & 1 else v >> 1), count + 1
        return count

    assert steps.tolist() == [wanted(v) for v in range(1, 65)]


def test_half_and_bf16(nvcc: Run) -> None:
    a, b, c = floats(128).astype(np.float16), floats(128).astype(np.float16), np.zeros(128, np.float16)
    nvcc("half_axpy", a, b, c, 64, block=(64, 1, 1))
    assert (c == (a.astype(np.float64) * b + 0.5).astype(np.float16)).all()
    x, y = (floats(64).astype(ml_dtypes.bfloat16).view(np.uint16) for _ in range(2))
    z = np.zeros(64, np.uint16)
    nvcc("bf16_add", x, y, z, block=(64, 1, 1))
    total = x.view(ml_dtypes.bfloat16).astype(F32) + y.view(ml_dtypes.bfloat16).astype(F32)
    assert (z == total.astype(ml_dtypes.bfloat16).view(np.uint16)).all()


def test_conversions(nvcc: Run) -> None:
    a = floats(64) * F32(100)
    i, u, h, b = np.zeros(64, I32), np.zeros(64, np.uint8), np.zeros(64, np.float16), np.zeros(64, np.uint16)
    d, wide = np.zeros(64), np.zeros(64, np.int64)
    nvcc("convert_all", a, i, u, h, b, d, wide, block=(64, 1, 1))
    assert (i == np.rint(a)).all()
    assert (u == np.clip(a, 0, 255).astype(np.uint8)).all()
    assert (np.abs(h.astype(F32)) <= np.abs(a)).all()
    assert (b == a.astype(ml_dtypes.bfloat16).view(np.uint16)).all()
    assert (d == a).all()
    assert (wide == np.floor(a)).all()


def test_fp8(nvcc: Run) -> None:
    a = floats(64) * F32(300)
    e4, e5, back = np.zeros(64, np.uint8), np.zeros(64, np.uint8), np.zeros(64, F32)
    nvcc("fp8_round", a, e4, e5, back, block=(64, 1, 1))
    near = np.clip(a, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    assert (e4 == near.view(np.uint8)).all()
    assert (e5 == a.astype(ml_dtypes.float8_e5m2).view(np.uint8)).all()
    assert (back == near.astype(F32)).all()


def test_bits_dot_and_division(nvcc: Run) -> None:
    a, b, out = ints(0, 1 << 32, 32, dtype=U32), ints(0, 1 << 32, 32, dtype=U32), np.zeros((32, 8), U32)
    nvcc("bits", a, b, out)
    x, y = [int(v) for v in a], [int(v) for v in b]
    for i in range(32):
        word = (y[i] << 32) | x[i]
        picked = sum((word >> 8 * (0x3715 >> 4 * k & 7) & 255) << 8 * k for k in range(4))
        shifted = (word << (y[i] & 31) >> 32) & 0xFFFFFFFF
        wanted = [
            x[i].bit_count(),
            32 - x[i].bit_length(),
            int(f"{x[i]:032b}"[::-1], 2),
            (x[i] & -x[i]).bit_length(),
            picked,
            shifted,
            x[i] * y[i] >> 32,
            (x[i] & y[i]) ^ (x[i] | ~y[i] & 0xFFFFFFFF),
        ]
        assert out[i].tolist() == wanted
    p, q, dot = ints(-(2**31), 2**31, 32), ints(-(2**31), 2**31, 32), np.zeros(32, I32)
    nvcc("dot4", p, q, dot)
    assert (dot == (p.view(np.int8).astype(I32) * q.view(np.int8)).reshape(32, 4).sum(1) + 7).all()
    n, m = ints(-(2**31), 2**31, 32), ints(1, 1000, 32) * RNG.choice([-1, 1], 32).astype(I32)
    quotient, rest, wide = np.zeros(32, I32), np.zeros(32, I32), np.zeros(32, np.int64)
    nvcc("divide", n, m, quotient, rest, wide)
    exact = [int(abs(int(v)) // abs(int(w))) * (1 if (v < 0) == (w < 0) else -1) for v, w in zip(n, m, strict=True)]
    assert quotient.tolist() == exact
    assert (rest == n - quotient * m).all()


def test_local_memory(nvcc: Run) -> None:
    a, out = ints(0, 99, 32, 12), np.zeros((32, 12), I32)
    nvcc("local_sort", a, out, 12)
    assert (out == np.sort(a, axis=1)).all()


def test_compaction_by_votes(nvcc: Run) -> None:
    a, out, count = ints(-9, 9, 256), np.zeros(256, I32), np.zeros(1, I32)
    nvcc("compact", a, out, count, grid=(2, 1, 1), block=(128, 1, 1))
    assert count[0] == (a > 0).sum()
    assert sorted(out[: count[0]]) == sorted(a[a > 0])


def test_constants(nvcc: Run) -> None:
    a, out = ints(-9, 9, 100).astype(F32), np.zeros(100, F32)
    nvcc("blur", a, out, 100, grid=(2, 1, 1), block=(64, 1, 1))
    assert (out == np.convolve(a, [1, 4, 6, 4, 1], "same")).all()


def test_tiled_product(nvcc: Run) -> None:
    a, b, c = ints(-3, 4, 32, 32).astype(F32), ints(-3, 4, 32, 32).astype(F32), np.zeros((32, 32), F32)
    nvcc("gemm_tiled", a, b, c, 32, grid=(2, 2, 1), block=(16, 16, 1), undefined=[2])
    assert (c == a @ b).all()


def test_pipelined_copies(nvcc: Run) -> None:
    a, out = ints(0, 1 << 30, 5, 64, 4), np.zeros((5, 64, 4), I32)
    nvcc("pipeline_copy", a, out, 5, block=(64, 1, 1), undefined=[1])
    assert (out == a[:, ::-1]).all()


@pytest.mark.parametrize("kernel", ["mma_f16", "mma_trans"])
def test_matrix_products(nvcc: Run, kernel: str) -> None:
    a, b, c = (ints(-4, 5, *shape).astype(np.float16) for shape in ((16, 16), (8, 16), (16, 8)))
    result = c.astype(F32)
    given = np.ascontiguousarray(b.T) if kernel == "mma_trans" else b
    nvcc(kernel, a, given, result, undefined=[2])
    assert (result == a.astype(F32) @ b.astype(F32).T).all()


def test_integer_matrix_product(nvcc: Run) -> None:
    a, b, c = ints(-128, 128, 16, 32, dtype=np.int8), ints(-128, 128, 8, 32, dtype=np.int8), np.zeros((16, 8), I32)
    nvcc("mma_s8", a, b, c)
    assert (c == a.astype(I32) @ b.astype(I32).T).all()


def test_last_block_reads_what_others_released(nvcc: Run) -> None:
    a, part, out = ints(-9, 9, 6, 128).astype(F32), np.zeros(6, F32), np.zeros(1, F32)
    nvcc("last_block_sums", a, part, out, 6, grid=(6, 1, 1), block=(128, 1, 1), undefined=[1, 2])
    assert out[0] == a.sum()


def test_math(nvcc: Run) -> None:
    a, out = np.abs(floats(32)) + F32(0.1), np.zeros((32, 8), F32)
    nvcc("math", a, out)
    x = a.astype(np.float64)
    wanted = [np.exp(x), np.log(x), x**-0.5, 1 / x, np.sin(x), np.sqrt(x), np.tanh(x), x / F32(3.7)]
    assert np.allclose(out, np.stack(wanted, 1), rtol=1e-5, atol=1e-6)


def test_a_lock_among_the_lanes_of_a_warp(nvcc: Run) -> None:
    lock, value = np.zeros(1, I32), np.zeros(1, I32)
    nvcc("spin_lock", lock, value, grid=(2, 1, 1), block=(64, 1, 1))
    assert value[0] == 128


def test_doubles(nvcc: Run) -> None:
    a, b, out = RNG.standard_normal(100), RNG.standard_normal(100), np.zeros(1)
    nvcc("double_dot", a, b, out, 100)
    assert np.allclose(out[0], a @ b)


def test_a_switch(nvcc: Run) -> None:
    a, out = np.arange(33, dtype=I32) % 8, np.arange(32, dtype=I32)
    before = out.copy()
    nvcc("jump_table", a, out)
    for i in range(32):
        v = int(a[i])
        wanted = [7, 1 ^ int(before[i]), 3, -8, int(a[i + 1]), -5, 100, 100][v]
        assert out[i] == wanted


def test_calls_of_device_functions(nvcc: Run) -> None:
    kind = np.dtype([("x", F32), ("y", F32), ("z", F32), ("k", I32)])
    a, out = np.zeros(64, kind), np.zeros(64, kind)
    for name in "xyz":
        a[name] = floats(64)
    a["k"] = ints(0, 9, 64)
    nvcc("calls", a, out, 0.75, block=(64, 1, 1), undefined=[1])

    def poly(x: Any, start: Any, count: int) -> Any:
        total = F32(start)
        for _ in range(count):
            total = F32(np.float64(total) * x + 1)
            if total > 1e6:
                return -total
        return total

    for i in range(64):
        x, y, z, k = a[i].tolist()
        if i & 1:
            x, y, z, k = F32(x * 0.75), poly(y, 0.75, k), F32(z + 0.75), k + 1
        assert out[i].tolist() == (poly(x, 1.5, i), y, z, k)


# ---------------------------------------------------------------- clang


@pytest.fixture(scope="module")
def clang(run: Run) -> Run:
    """Return the function that runs a kernel of clang's and wants no finding."""
    ptx = (DATA / "clang.ptx").read_bytes()

    def clean(kernel: str, *values: Any, **options: Any) -> SimReport:
        report = run(ptx, *values, kernel=kernel, **options)
        assert not report.findings, "\n".join(map(str, report.findings))
        return report

    return clean


def test_generic_pointers(clang: Run) -> None:
    a, b, c = floats(100), floats(100), np.zeros(100, F32)
    clang("generic_add", a, b, c, 100, grid=(2, 1, 1), block=(64, 1, 1))
    assert (c == a + b).all()
    x, out = floats(128), np.zeros(128, F32)
    clang("generic_shared", x, out, block=(128, 1, 1))
    assert (out == x[::-1] + x[np.arange(128) ^ 1]).all()


def test_half_products_and_vectors(clang: Run) -> None:
    a, b, out = floats(64, 2).astype(np.float16), floats(64, 2).astype(np.float16), np.zeros(32, F32)
    clang("half_dot", a, b, out, 64)
    products = (a.astype(F32) * b.astype(F32)).astype(np.float16).astype(F32)
    assert np.allclose(out, products.reshape(2, 32, 2).sum(axis=(0, 2)), rtol=1e-5, atol=1e-5)
    m, x, y = ints(-9, 9, 64, 16).astype(F32), ints(-9, 9, 16).astype(F32), np.zeros(64, F32)
    clang("matrix_vector", m, x, y, 4, block=(64, 1, 1))
    assert (y == m @ x).all()


def test_chained_conditions(clang: Run) -> None:
    a, out = ints(0, 30, 64), np.zeros(64, I32)
    clang("chained", a, out, block=(64, 1, 1))
    for v, result in zip(a.tolist(), out.tolist(), strict=True):
        if v > 10:
            v = v * 3 if v > 20 else v // 5 if v & 1 else v % 7
        else:
            while v < 10:
                v += (v & 3) + 1
        assert result == v


def test_bytes_and_wide_integers(clang: Run) -> None:
    a, out = ints(0, 256, 100, dtype=np.uint8), np.zeros(100, np.uint8)
    clang("byte_work", a, out, 100, grid=(2, 1, 1), block=(64, 1, 1))
    padded = np.pad(a.astype(I32), 1, "edge")
    assert (out == (padded[:-2] + padded[1:-1] + padded[2:]) // 3).all()
    x, y = (RNG.integers(0, 1 << 63, 32).astype(np.uint64) for _ in range(2))
    wide = np.zeros((32, 2), np.uint64)
    clang("wide_integers", x, y, wide)
    for p, q, (low, high) in zip(x.tolist(), y.tolist(), wide.tolist(), strict=True):
        assert low | high << 64 == p * q + p


def test_compare_and_swap(clang: Run) -> None:
    counter = np.zeros(1, I32)
    clang("compare_swap", counter, 50, grid=(2, 1, 1), block=(64, 1, 1))
    assert counter[0] == 50


def test_private_arrays_and_edges_of_floats(clang: Run) -> None:
    a, out = ints(0, 99, 32), np.zeros(32, I32)
    clang("private_table", a, out)
    table = np.arange(32) * a
    for i in range(32):
        v = int(a[i]) & 31
        for k in range(8):
            v = int(table[v] + k) & 31
        assert out[i] == v
    x = (floats(32) * F32(1e10)).astype(F32)
    whole, unsigned, real = np.zeros(32, I32), np.zeros(32, U32), np.zeros(32, F32)
    clang("float_edges", x, whole, unsigned, real)
    assert (whole == np.clip(x.astype(np.float64), -(2**31), 2**31 - 1).astype(I32)).all()
    assert (unsigned == np.clip(x.astype(np.float64), 0, 2**32 - 1).astype(U32)).all()


# ---------------------------------------------------------------- Triton, and pipelines by hand


def test_a_product_of_triton(run: Run) -> None:
    a, b = ints(-3, 4, 100, 96).astype(np.float16), ints(-3, 4, 80, 96).astype(np.float16)
    c, spare = np.zeros((100, 80), np.float16), np.zeros(4, np.uint8)
    ptx = (DATA / "triton_matmul.ptx").read_bytes()
    report = run(ptx, a, b, c, 100, 80, 96, spare, spare, grid=(4, 1, 1), block=(128, 1, 1), shared=8192, undefined=[2])
    assert not report.findings, "\n".join(map(str, report.findings))
    assert (c == a.astype(F32) @ b.astype(F32).T).all()


def test_a_softmax_of_triton(run: Run) -> None:
    x, y, spare = floats(5, 1000), np.zeros((5, 1000), F32), np.zeros(4, np.uint8)
    ptx = (DATA / "triton_softmax.ptx").read_bytes()
    report = run(ptx, x, y, 1000, spare, spare, grid=(5, 1, 1), block=(128, 1, 1), shared=16, undefined=[1])
    assert not report.findings, "\n".join(map(str, report.findings))
    e = np.exp(x - x.max(axis=1, keepdims=True))
    assert np.allclose(y, e / e.sum(axis=1, keepdims=True), rtol=1e-5)


def pipelined(run: Run, ptx: str) -> tuple[bool, SimReport]:
    """Return whether the pipelined product is right, and the report."""
    a, b = ints(-3, 4, 128, 256).astype(np.float16), ints(-3, 4, 64, 256).astype(np.float16)
    c = np.zeros((128, 64), np.float16)
    report = run(ptx, a, b, c, grid=(2, 1, 1), block=(128, 1, 1), shared=49152, undefined=[2])
    return bool((c == a.astype(F32) @ b.astype(F32).T).all()), report


def test_a_pipeline_of_copies_and_each_of_its_deletions(run: Run) -> None:
    ptx = (DATA / "pipelined_gemm.ptx").read_text()
    right, clean = pipelined(run, ptx)
    assert right
    assert not clean.findings, "\n".join(map(str, clean.findings))
    races, copies = {"lane-race", "shared-race"}, {"cp-async"}
    for line, wanted in (
        ("cp.async.wait_group 1;", (copies, copies)),
        ("bar.sync 0;", (races, races, set(), races)),  # the epilogue's slot is not the one that was read last
        ("cp.async.commit_group;", (copies, copies, copies)),
    ):
        assert ptx.count(line) == len(wanted)
        parts = ptx.split(line)
        for number, kinds in enumerate(wanted, 1):
            _, report = pipelined(run, line.join(parts[:number]) + line.join(parts[number:]))
            assert {finding.kind for finding in report.findings} - {"poison"} == kinds, (line, number)


def test_a_convolution_by_copies_with_zero_fill(run: Run) -> None:
    x, w = ints(-3, 4, 2, 8, 8, 64).astype(np.float16), ints(-3, 4, 64, 3, 3, 64).astype(np.float16)
    y = np.zeros((2, 8, 8, 64), np.float16)
    ptx = (DATA / "pipelined_conv.ptx").read_bytes()
    report = run(ptx, x, w, y, grid=(2, 1, 1), block=(128, 1, 1), shared=49152, undefined=[2])
    assert not report.findings, "\n".join(map(str, report.findings))
    padded = np.pad(x.astype(F32), ((0, 0), (1, 1), (1, 1), (0, 0)))
    columns = np.concatenate([padded[:, r : r + 8, s : s + 8] for r in range(3) for s in range(3)], axis=-1)
    assert (y == (columns @ w.reshape(64, -1).astype(F32).T).astype(np.float16)).all()


def test_wmma_is_refused_in_one_line(run: Run) -> None:
    a = np.zeros(256, np.float16)
    with pytest.raises(Unsupported, match="wmma") as caught:
        run((DATA / "nvcc.ptx").read_bytes(), a, a.copy(), np.zeros(256, F32), kernel="wmma_tile")
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- Triton on Hopper: bulk tensor copies, wgmma


def by_tensor_maps(run: Run, ptx: str, **options: Any) -> tuple[bool, set[str]]:
    """Return whether the product of tensor maps is right, and the kinds of its required findings."""
    a, b = ints(-2, 3, 256, 256).astype(np.float16), ints(-2, 3, 256, 256).astype(np.float16)
    c = np.zeros((256, 256), np.float16)
    values: list[Any] = []
    for name, array in (("a", a), ("b", b), ("c", c)):
        values.append(TensorMap("tiled", "f16", name, (256, 256), array.strides[:1], box=(64, 128), swizzle=128))
        values += [0, 0, 0, 0]
    spare = np.zeros(4, np.uint8)
    buffers = {"a": a, "b": b, "c": c}
    report = run(ptx, *values, 256, spare, spare, grid=(2, 2, 1), block=(128, 1, 1), shared=98328, buffers=buffers,
                 **options)  # fmt: skip
    right = bool((c == a.astype(F32) @ b.astype(F32).T).all())
    return right, {finding.kind for finding in report.findings if finding.source.required}


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_a_product_of_triton_by_tensor_maps(run: Run, early: bool, order: str) -> None:
    ptx = (DATA / "triton_tma.ptx").read_text()
    assert by_tensor_maps(run, ptx, early=early, wave_order=order) == (True, set())


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("mbarrier.init", {"mbarrier"}),
        ("mbarrier.arrive.expect_tx", {"mbarrier"}),
        ("mbarrier.try_wait", {"poison"}),
        ("cp.async.bulk.tensor.2d.shared::cta.global", {"mbarrier"}),
        ("wgmma.fence", {"wgmma"}),
        ("wgmma.commit_group", {"wgmma"}),
        ("wgmma.wait_group.sync.aligned 1", {"shared-race"}),
        ("wgmma.wait_group.sync.aligned 0", {"wgmma"}),
        ("fence.proxy.async", {"proxy"}),
        ("cp.async.bulk.commit_group", {"bulk-copy"}),
        ("cp.async.bulk.wait_group", {"bulk-copy"}),
    ],
)
def test_each_deletion_in_a_product_of_triton_is_found(run: Run, line: str, found: set[str]) -> None:
    lines = (DATA / "triton_tma.ptx").read_text().replace("\t", " ").splitlines()
    places = [number for number, text in enumerate(lines) if line in " ".join(text.split())]
    assert places
    for place in places:
        _, kinds = by_tensor_maps(run, "\n".join(lines[:place] + lines[place + 1 :]))
        assert found & kinds, (place + 1, kinds)


def test_a_wait_covers_the_products_of_all_warps_of_a_warpgroup(run: Run) -> None:
    """The barriers between a wait for products and the copy over their operands are not needed in one warpgroup."""
    ptx = (DATA / "triton_tma.ptx").read_text()
    at = ptx.index("wgmma.wait_group.sync.aligned 1")
    tail = ptx[at:].replace("bar.sync \t0;", "", 3)
    assert by_tensor_maps(run, ptx[:at] + tail) == (True, set())
