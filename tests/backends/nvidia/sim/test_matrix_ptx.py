"""mma.sync of each shape and type, ldmatrix, stmatrix and movmatrix, on fragments as the PTX document draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.simulation import SimReport

Run = Callable[..., SimReport]
Text = Callable[..., str]
Array = npt.NDArray[Any]
RNG = np.random.default_rng(5)

_NUMPY: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "f64": np.float64,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
}
#: Type of A, of B, of C and D, and shapes.
CASES = [
    *(("f16", "f16", c, s) for c in ("f32", "f16") for s in ((16, 8, 8), (16, 8, 16))),
    *(("bf16", "bf16", "f32", s) for s in ((16, 8, 8), (16, 8, 16))),
    *(("tf32", "tf32", "f32", s) for s in ((16, 8, 4), (16, 8, 8))),
    *(("f64", "f64", "f64", s) for s in ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16))),
    *(
        (a, b, "s32", s)
        for a, b in (("s8", "s8"), ("u8", "s8"), ("s8", "u8"))
        for s in ((8, 8, 16), (16, 8, 16), (16, 8, 32))
    ),
    *((a, b, "s32", s) for a, b in (("s4", "s4"), ("u4", "s4")) for s in ((8, 8, 32), (16, 8, 32), (16, 8, 64))),
    *((a, b, "f32", (16, 8, 32)) for a, b in (("e4m3", "e4m3"), ("e4m3", "e5m2"))),
]


def places_a(m: int, k: int, each: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield lane, register, element, row and column of A; rows g and g + 8, columns from 4 t on, then the next ones.

    PTX ISA 9.7.14.5, "Matrix Fragments for mma.m16n8k16": row = groupID for a_i where 0 <= i < 2 || 4 <= i < 6, else
    groupID + 8; column = threadID_in_group * 2 + (i & 1) for i < 4, + 8 for i >= 4.
    """
    for lane in range(32):
        for i in range(m * k // 32):
            group, thread = lane // 4, lane % 4
            if m == 16:
                row = group + 8 * (i // each % 2)
                column = thread * each + i % each + 4 * each * (i // (2 * each))
            else:
                row, column = group, thread * each + i % each + 4 * each * (i // each)
            yield lane, i // each, i % each, row, column


def _packed(
    values: Array, kind: str, lanes: list[tuple[int, int, int, int, int]], registers: int, *, swap: bool
) -> Array:
    """Return the registers [registers, lanes] of a factor."""
    bits = 64 if kind == "f64" else 32
    out = np.zeros((registers, 32), np.uint64)
    width = {"s4": 4, "u4": 4}.get(kind, 0) or np.dtype(_NUMPY[kind]).itemsize * 8
    raw = values.astype(np.int64) & 15 if width == 4 else values.view(f"u{width // 8}").astype(np.uint64)
    for lane, register, element, row, column in lanes:
        number = int(raw[(column, row) if swap else (row, column)])
        out[register, lane] |= np.uint64(number << (width * element))
    return out.astype(f"u{bits // 8}")


def _matrix(kind: str, rows: int, columns: int) -> Array:
    if kind in ("s4", "u4"):
        return RNG.integers(-8 if kind == "s4" else 0, 8 if kind == "s4" else 16, (rows, columns))
    if kind in ("s8", "u8"):
        info = np.iinfo(_NUMPY[kind])
        return RNG.integers(info.min, info.max + 1, (rows, columns)).astype(_NUMPY[kind])
    values: Array = RNG.integers(-4, 5, (rows, columns)).astype(np.float32).astype(_NUMPY[kind])
    return values


def _code(types: tuple[str, str, str], shape: tuple[int, int, int], counts: tuple[int, int, int]) -> str:
    """Return code that loads A, B and C, each in so many registers, multiplies them and stores D."""
    a_type, b_type, c_type = types
    m, n, k = shape
    bits, c_bits = 64 if a_type == "f64" else 32, 64 if c_type == "f64" else 32
    lines, groups = [f"mul.wide.u32 %rd60, %r0, {bits // 8}; mul.wide.u32 %rd61, %r0, {c_bits // 8};"], []
    for pointer, count in enumerate(counts, 1):
        size = bits if pointer < 3 else c_bits
        regs = [f"%{'rd' if size == 64 else 'r'}{10 * pointer + i}" for i in range(count)]
        lines.append(f"add.u64 %rd62, %a{pointer}, %rd{61 if pointer == 3 else 60};")
        lines += [f"ld.global.b{size} {r}, [%rd62+{32 * i * size // 8}];" for i, r in enumerate(regs)]
        groups.append("{" + ", ".join(regs) + "}")
    name = "rd" if c_bits == 64 else "r"
    results = [f"%{name}{40 + i}" for i in range(counts[2])]
    joined = ", ".join(groups)
    shaped = f"m{m}n{n}k{k}.row.col.{c_type}.{a_type}.{b_type}.{c_type}"
    lines.append(f"mma.sync.aligned.{shaped} {{{', '.join(results)}}}, {joined};")
    lines += [
        f"add.u64 %rd62, %a0, %rd61; st.global.b{c_bits} [%rd62+{32 * i * c_bits // 8}], {r};"
        for i, r in enumerate(results)
    ]
    return "\n".join(lines)


def multiply(
    run: Run, text: Text, types: tuple[str, str, str], shape: tuple[int, int, int], a: Array, b: Array, c: Array
) -> Array:
    """Return D of an mma.sync."""
    a_type, b_type, c_type = types
    m, n, k = shape
    width = 4 if a_type in ("s4", "u4") else np.dtype(_NUMPY[a_type]).itemsize * 8
    each = max(32 // width, 1)
    first = list(places_a(m, k, each))
    second = [
        (lane, i // each, i % each, lane % 4 * each + i % each + 4 * each * (i // each), lane // 4)
        for lane in range(32)
        for i in range(k * n // 32)
    ]
    a_count, b_count = m * k // 32 // each, k * n // 32 // each
    a_words = _packed(a, a_type, first, a_count, swap=False)
    b_words = _packed(b, b_type, second, b_count, swap=False)
    count = m * n // 32
    rows = [[lane // 4 + 8 * (i // 2) for lane in range(32)] for i in range(count)]
    columns = [[2 * (lane % 4) + i % 2 for lane in range(32)] for i in range(count)]
    numbers = c[np.array(rows), np.array(columns)]
    if c_type == "f16":
        halves = numbers.astype(np.float16).view(np.uint16).astype(np.uint32)
        c_words: Array = halves[0::2] | halves[1::2] << 16
    else:
        c_words = numbers.astype({"f32": np.float32, "f64": np.float64, "s32": np.int32}[c_type])
        c_words = c_words.view(f"u{c_words.itemsize}")
    out = np.zeros_like(c_words)
    counts = (len(a_words), len(b_words), len(c_words))
    report = run(text(_code(types, shape, counts), 4), out, a_words, b_words, c_words)
    assert not report.findings, "\n".join(map(str, report.findings))
    kind = {"f32": np.float32, "f64": np.float64, "s32": np.int32, "f16": np.uint32}[c_type]
    values = out.view(kind)
    if c_type == "f16":
        halves = np.stack([values.astype(np.uint16), (values >> 16).astype(np.uint16)], 1)
        values = halves.reshape(count, 32).view(np.float16)
    d = np.zeros((m, n), values.dtype)
    d[np.array(rows), np.array(columns)] = values
    return d


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}-{c[2]}-{'x'.join(map(str, c[3]))}")
def test_products_of_all_shapes(run: Run, text: Text, case: Any) -> None:
    a_type, b_type, c_type, shape = case
    m, n, k = shape
    a, b, c = _matrix(a_type, m, k), _matrix(b_type, k, n), RNG.integers(-99, 99, (m, n)).astype(np.float64)
    got = multiply(run, text, (a_type, b_type, c_type), shape, a, b, c)
    assert (got == a.astype(np.float64) @ b.astype(np.float64) + c).all()


def _one_sum(run: Run, text: Text, kind: str, products: list[float], c: float) -> float:
    """Return the sum of some products, each split into two factors, and C."""
    dtype = _NUMPY[kind]
    k = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32}[kind]
    a, b = np.zeros((16, k), dtype), np.zeros((k, 8), dtype)
    for i, product in enumerate(products):
        exponent = int(np.floor(np.log2(abs(product)))) // 2 if product else 0
        a[0, i], b[i, 0] = product / 2.0**exponent, 2.0**exponent
    d = multiply(run, text, (kind, kind, "f32"), (16, 8, k), a, b, np.full((16, 8), c))
    return float(d[0, 0])


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
def test_sums_are_cut_as_measured_on_h200(run: Run, text: Text, kind: str) -> None:
    for k in (20, 25, 26):
        wanted = 1.0 if k <= 25 else 0.0
        assert _one_sum(run, text, kind, [2.0**k, -(2.0**k), 1.0], 0.0) == wanted
    for k in (23, 24):
        assert _one_sum(run, text, kind, [1.0], 2.0**k) == 2.0**k + (k == 23)
    assert _one_sum(run, text, kind, [1.0, 1.0, 1.0], 2.0**24) == 2**24 + 2
    assert _one_sum(run, text, kind, [-1.0, -1.0, -1.0], -(2.0**24)) == -(2**24) - 2


def test_sums_of_8_bit_floats_are_emulated(run: Run, text: Text) -> None:
    assert _one_sum(run, text, "e4m3", [1.0, 1.0, 1.0], 2.0**24) == 2**24 + 4
    assert _one_sum(run, text, "e4m3", [2.0**12, -(2.0**12), 2.0**-6], 0.0) == 2.0**-6


def test_infinities_and_nan(run: Run, text: Text) -> None:
    a, b = np.zeros((16, 16), np.float16), np.ones((16, 8), np.float16)
    a[0, 0], a[1, 0], a[1, 1], a[2, 3] = np.inf, np.inf, -np.inf, np.nan
    d = multiply(run, text, ("f16", "f16", "f32"), (16, 8, 16), a, b, np.zeros((16, 8)))
    assert (d[0] == np.inf).all()
    assert np.isnan(d[1:3]).all()
    assert (d[1].view(np.uint32) == 0x7FFFFFFF).all()
    assert not d[3:].any()


def test_integer_sums_wrap_or_saturate(run: Run, text: Text) -> None:
    a, b = np.full((16, 32), 127, np.int8), np.full((32, 8), 127, np.int8)
    d = multiply(run, text, ("s8", "s8", "s32"), (16, 8, 32), a, b, np.full((16, 8), 2**31 - 5))
    assert (d == np.int32(32 * 127 * 127 + 2**31 - 5 - 2**32)).all()


ROUND_TRIP = """
    .shared .align 16 .b8 s[1024];
    mov.u32 %r1, s; shl.b32 %r2, %r0, 4; add.u32 %r3, %r1, %r2;
    cvt.u64.u32 %rd1, %r2; add.u64 %rd2, %a0, %rd1;
    ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd2];
    st.shared.v4.b32 [%r3], {%r10, %r11, %r12, %r13};
    bar.warp.sync -1;
    ldmatrix.sync.aligned.m8n8.x4{load}.shared.b16 {%r20, %r21, %r22, %r23}, [%r3];
    {between}
    stmatrix.sync.aligned.m8n8.x4{store}.shared.b16 [%r3+512], {%r20, %r21, %r22, %r23};
    bar.warp.sync -1;
    ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r3+512];
    add.u64 %rd3, %a1, %rd1; st.global.v4.b32 [%rd3], {%r10, %r11, %r12, %r13};
"""


@pytest.mark.parametrize("load", ["", ".trans"])
@pytest.mark.parametrize("store", ["", ".trans"])
@pytest.mark.parametrize("moved", [False, True])
def test_matrices_pass_through_registers(run: Run, text: Text, load: str, store: str, moved: bool) -> None:
    between = "".join(f"movmatrix.sync.aligned.m8n8.trans.b16 %r2{i}, %r2{i};" for i in range(4)) if moved else ""
    body = ROUND_TRIP.replace("{load}", load).replace("{store}", store).replace("{between}", between)
    a, out = RNG.integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16), np.zeros((4, 8, 8), np.uint16)
    report = run(text(body, 2), a, out)
    assert not report.findings, "\n".join(map(str, report.findings))
    transposed = (bool(load) + bool(store) + moved) % 2
    assert (out == (a.transpose(0, 2, 1) if transposed else a)).all()


def test_ldmatrix_hands_out_elements(run: Run, text: Text) -> None:
    body = """
    .shared .align 16 .b8 s[128];
    mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2;
    shl.b32 %r4, %r0, 1; shl.b32 %r5, %r4, 16; add.u32 %r5, %r5, 65536; or.b32 %r4, %r4, %r5;
    st.shared.b32 [%r3], %r4;
    bar.warp.sync -1;
    and.b32 %r6, %r0, 7; shl.b32 %r6, %r6, 4; add.u32 %r6, %r6, %r1;
    ldmatrix.sync.aligned.m8n8.x1{trans}.shared.b16 {%r7}, [%r6];
    cvt.u64.u32 %rd1, %r2; add.u64 %rd2, %a0, %rd1; st.global.b32 [%rd2], %r7;
    """
    matrix, lane = np.arange(64).reshape(8, 8), np.arange(32)
    for trans in ("", ".trans"):
        out = np.zeros(64, np.uint16)
        assert not run(text(body.replace("{trans}", trans), 1), out).findings
        pairs = out.reshape(32, 2)
        source = matrix.T if trans else matrix
        assert (pairs[:, 0] == source[lane // 4, 2 * (lane % 4)]).all()
        assert (pairs[:, 1] == source[lane // 4, 2 * (lane % 4) + 1]).all()


def test_rows_of_matrices_are_aligned_and_defined(run: Run, text: Text) -> None:
    body = ROUND_TRIP.replace("{load}", "").replace("{store}", "").replace("{between}", "")
    a, out = np.zeros((4, 8, 8), np.uint16), np.zeros((4, 8, 8), np.uint16)
    moved = body.replace("%r23}, [%r3]", "%r23}, [%r3+8]")
    assert {f.kind for f in run(text(moved, 2), a, out).findings} >= {"misaligned"}
    undefined = body.replace("st.shared.v4.b32 [%r3]", "@%p1 st.shared.v4.b32 [%r3]").replace(
        "bar.warp", "setp.lt.u32 %p1, %r0, 31; bar.warp", 0
    )
    undefined = undefined.replace("mov.u32 %r1, s;", "mov.u32 %r1, s; setp.lt.u32 %p1, %r0, 31;")
    assert "poison" in {f.kind for f in run(text(undefined, 2), a, out).findings}
    raced = (
        body.replace("bar.warp.sync -1;\n    ldmatrix", "ldmatrix")
        .replace("[%r3];\n", "[%r9];\n")
        .replace("cvt.u64.u32 %rd1", "xor.b32 %r9, %r3, 16; cvt.u64.u32 %rd1", 1)
    )
    assert {f.kind for f in run(text(raced, 2), a, out).findings} == {"lane-race"}
