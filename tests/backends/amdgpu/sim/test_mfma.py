"""Every row of the matrix tables against a plain matmul, operands laid out by formulae written down again here."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.amdgpu.sim.mfma_table import MATRIX_ROWS, MatrixRow

Array = npt.NDArray[Any]
DTYPES: dict[str, dict[str, Any]] = {
    arch: {
        "f16": np.float16,
        "bf16": ml_dtypes.bfloat16,
        "f32": np.float32,
        "xf32": np.float32,
        "f64": np.float64,
        "i8": np.int8,
        "fp8": fp8,
        "bf8": bf8,
    }
    for arch, fp8, bf8 in (
        ("gfx90a", ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz),
        ("gfx942", ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz),
        ("gfx950", ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    )
}
CASES = [(arch, name) for arch, rows in MATRIX_ROWS.items() for name in rows if "f8f6f4" not in name]


def per_lane(matrix: Array, row: MatrixRow, side: int) -> Array:
    """[blocks, side, K] to [64, K * side * blocks / 64]: lane i + side * (b + blocks * (k // kpl)), element k % kpl."""
    kpl = side * row.k * row.blocks // 64
    lanes = np.zeros((64, kpl), matrix.dtype)
    for b in range(row.blocks):
        for i in range(side):
            for k in range(row.k):
                lanes[i + side * (b + row.blocks * (k // kpl)), k % kpl] = matrix[b, i, k]
    return lanes


def result_place(row: MatrixRow, b: int, i: int, j: int) -> tuple[int, int]:
    """(lane, register or register pair) of an element of D."""
    if row.result == "f64":
        return (16 * (i % 4) + j, i // 4) if row.m == 16 else (16 * i + 4 * b + j, 0)
    if row.m == 16:
        return 16 * (i // 4) + j, 4 * b + i % 4
    if row.m == 32:
        return 32 * (i // 4 % 2) + j, 16 * b + 4 * (i // 8) + i % 4
    return 4 * b + j, i


def words(lanes: Array) -> Array:
    """[64, elements] to [registers, 64] words."""
    raw = np.ascontiguousarray(lanes).view(np.uint8).reshape(64, -1)
    padded = np.zeros((64, (raw.shape[1] + 3) // 4 * 4), np.uint8)
    padded[:, : raw.shape[1]] = raw
    return np.ascontiguousarray(padded.view(np.uint32).T)


def body(name: str, a: int, b: int, d: int, modifiers: str = "") -> str:
    """A kernel that loads A to v4.., B to v12.., C to v32.. and stores D; register r of lane l is at 256 r + 4 l."""
    lines = [
        "s_load_dwordx4 s[4:7], s[0:1], 0x0",
        "s_load_dwordx4 s[8:11], s[0:1], 0x10",
        "v_lshlrev_b32_e32 v1, 2, v0",
    ]
    lines += ["v_add_u32_e32 v2, 0x1000, v1", "s_waitcnt lgkmcnt(0)"]

    def move(verb: str, count: int, first: int, base: str) -> None:
        for r in range(count):
            at, offset = ("v1", 256 * r) if r < 16 else ("v2", 256 * (r - 16))
            operands = f"v{first + r}, {at}" if verb == "load" else f"{at}, v{first + r}"
            lines.append(f"global_{verb}_dword {operands}, {base} offset:{offset}")

    move("load", a, 4, "s[4:5]")
    move("load", b, 12, "s[6:7]")
    move("load", d, 32, "s[8:9]")
    lines.append("s_waitcnt vmcnt(0)")
    lines.append(
        f"{name} v[32:{31 + d}], v[4:{3 + a}], v[12:{11 + b}], v[32:{31 + d}] {modifiers}".replace(
            "v[4:4]", "v4"
        ).replace("v[12:12]", "v12")
    )
    lines += ["s_nop 15", "s_nop 3"]
    move("store", d, 32, "s[10:11]")
    return "\n".join(lines)


def random_matrix(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    values: Array = rng.integers(-3, 4, shape).astype(dtype)
    return values


@pytest.mark.parametrize(("arch", "name"), CASES)
def test_layout(sim: Any, arch: str, name: str) -> None:
    row = MATRIX_ROWS[arch][name]
    rng = np.random.default_rng(len(name))
    dtypes = DTYPES[arch]
    a = random_matrix(rng, (row.blocks, row.m, row.k), dtypes[row.a_type])
    b = random_matrix(rng, (row.blocks, row.n, row.k), dtypes[row.b_type])
    result = {"f32": np.float32, "i32": np.int32, "f64": np.float64}[row.result]
    c = random_matrix(rng, (row.blocks, row.m, row.n), result)
    wide = np.int64 if row.result == "i32" else np.float64
    want = np.einsum("bik,bjk->bij", a.astype(wide), b.astype(wide)) + c
    a_words, b_words = words(per_lane(a, row, row.m)), words(per_lane(b, row, row.n))
    count = row.m * row.n * row.blocks // 64
    c_lanes = np.zeros((64, count), result)
    for block, i, j in np.ndindex(c.shape):
        lane, register = result_place(row, block, i, j)
        c_lanes[lane, register] = c[block, i, j]
    c_words = words(c_lanes)
    out = np.zeros_like(c_words)
    source = sim.Source(body(name, len(a_words), len(b_words), len(c_words)), vgprs=64)
    report = sim.run(arch, source, {"a": a_words, "b": b_words, "c": c_words, "d": out})
    assert not report.findings, str(report.findings[0])
    got = np.ascontiguousarray(out.T).view(result)
    for block, i, j in np.ndindex(c.shape):
        lane, register = result_place(row, block, i, j)
        assert got[lane, register] == want[block, i, j], (block, i, j)
    assert report.instructions["mfma"] == 1


FORMATS = {
    0: (ml_dtypes.float8_e4m3fn, 8),
    1: (ml_dtypes.float8_e5m2, 8),
    2: (ml_dtypes.float6_e2m3fn, 6),
    3: (ml_dtypes.float6_e3m2fn, 6),
    4: (ml_dtypes.float4_e2m1fn, 4),
}


def narrow_words(matrix: Array, bits: int, k: int) -> Array:
    """An f8f6f4 operand [side, K] of raw codes: 8-bit lanes hold 16 elements of each half of K, others 32 in a row."""
    side = len(matrix)
    groups = 64 // side
    packed = np.zeros((64, 32 * bits // 8), np.uint8)
    for lane in range(64):
        i, g = lane % side, lane // side
        number = 0
        for e in range(k // groups):
            at = (16 * g + e if e < 16 else k // 2 + 16 * g + e - 16) if bits == 8 else 32 * g + e
            number |= int(matrix[i, at]) << (bits * e)
        packed[lane] = np.frombuffer(number.to_bytes(32 * bits // 8, "little"), np.uint8)
    return np.ascontiguousarray(packed.view(np.uint32).T)


@pytest.mark.parametrize("m", [16, 32])
@pytest.mark.parametrize(("cbsz", "blgp"), [(0, 0), (0, 1), (2, 4), (3, 2), (4, 0), (4, 4)])
def test_f8f6f4(sim: Any, m: int, cbsz: int, blgp: int) -> None:
    k = 128 if m == 16 else 64
    rng = np.random.default_rng(cbsz * 8 + blgp)
    raw, numbers = [], []
    for code in (cbsz, blgp):
        dtype, bits = FORMATS[code]
        values = rng.integers(-2, 3, (m, k)).astype(dtype)
        raw.append(narrow_words(values.view(np.uint8), bits, k))
        numbers.append(values.astype(np.float64))
    count = m * m // 64
    zero = np.zeros((count, 64), np.uint32)
    out = np.zeros_like(zero)
    name = f"v_mfma_f32_{m}x{m}x{k}_f8f6f4"
    modifiers = f"cbsz:{cbsz} blgp:{blgp}"
    source = sim.Source(body(name, len(raw[0]), len(raw[1]), count, modifiers))
    report = sim.run("gfx950", source, {"a": raw[0], "b": raw[1], "c": zero, "d": out})
    assert not report.findings, str(report.findings[0])
    row = MatrixRow(m, m, k, 1, "", "", "f32", 8)
    want, got = numbers[0] @ numbers[1].T, out.T.copy().view(np.float32)
    for i, j in np.ndindex(want.shape):
        lane, register = result_place(row, 0, i, j)
        assert got[lane, register] == want[i, j]


def test_one_rounding(sim: Any) -> None:
    """2**24 + 1 + 1 is exact in the f64 sum and rounds once; rounding in between would lose both ones."""
    a = np.zeros((1, 16, 16), np.float16)
    b = np.zeros((1, 16, 16), np.float16)
    a[..., :2] = 1
    b[..., :2] = 1
    row = MATRIX_ROWS["gfx942"]["v_mfma_f32_16x16x16_f16"]
    c = np.full((4, 64), 2.0**24, np.float32)
    out = np.zeros((4, 64), np.float32)
    source = sim.Source(body("v_mfma_f32_16x16x16_f16", 2, 2, 4))
    operands = {"a": words(per_lane(a, row, 16)), "b": words(per_lane(b, row, 16)), "c": c, "d": out}
    assert not sim.run("gfx942", source, operands).findings
    assert (out == 2.0**24 + 2).all()


@pytest.mark.parametrize(("lanes", "clean"), [("0xffff0000", False), ("0xffff", True)])
def test_poison_spreads_along_rows(sim: Any, lanes: str, clean: bool) -> None:
    """With lane 5 of A undefined, row 5 of D (register 1 of lanes 16..31) is, and nothing else."""
    load = "global_load_dword v4, v1, s[4:5] offset:0\n"
    text = body("v_mfma_f32_16x16x16_f16", 2, 2, 4)
    text = text.replace(load, f"s_mov_b32 exec_lo, 0xffffffdf\n {load} s_mov_b64 exec, -1\n")
    first_store = text.index("global_store_dword v1, v32")
    text = text[:first_store] + f"s_mov_b64 exec, {lanes}\n global_store_dword v1, v33, s[10:11]"
    report = sim.run("gfx942", text, {name: np.zeros((4, 64), np.uint32) for name in "abcd"})
    assert sim.kinds(report) == ([] if clean else ["poison"])
