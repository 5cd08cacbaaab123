"""Every row of the matrix tables against a plain matmul, operands laid out by formulae written down again here."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.amdgpu.sim.mfma_table import MATRIX_ROWS, SPARSE_ROWS, MatrixRow
from tests.strategies import always

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
SPARSE = [(arch, name) for arch, rows in SPARSE_ROWS.items() for name in rows]


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


@attrs.frozen
class Place:
    """Where an instruction's operands are: accumulation registers or not, a constant for C."""

    d: str = "v"
    a: str = "v"
    b: str = "v"
    constant: str = ""


def body(name: str, a: int, b: int, d: int, modifiers: str = "", place: Place = Place()) -> str:
    """A kernel that loads A to v4.., B to v12.., C to v32.. and stores D; register r of lane l is at 256 r + 4 l."""
    lines = [
        "s_load_dwordx4 s[4:7], s[0:1], 0x0",
        "s_load_dwordx4 s[8:11], s[0:1], 0x10",
        "v_lshlrev_b32_e32 v1, 2, v0",
    ]
    lines += ["v_add_u32_e32 v2, 0x1000, v1", "s_waitcnt lgkmcnt(0)"]

    def move(verb: str, count: int, first: int, base: str, kind: str) -> None:
        for r in range(count):
            at, offset = ("v1", 256 * r) if r < 16 else ("v2", 256 * (r - 16))
            operands = f"{kind}{first + r}, {at}" if verb == "load" else f"{at}, {kind}{first + r}"
            lines.append(f"global_{verb}_dword {operands}, {base} offset:{offset}")

    def tuple_of(kind: str, first: int, count: int) -> str:
        return f"{kind}{first}" if count == 1 else f"{kind}[{first}:{first + count - 1}]"

    move("load", a, 4, "s[4:5]", place.a)
    move("load", b, 12, "s[6:7]", place.b)
    move("load", d, 32, "s[8:9]", place.d)
    lines.append("s_waitcnt vmcnt(0)")
    target = tuple_of(place.d, 32, d)
    operands = [target, tuple_of(place.a, 4, a), tuple_of(place.b, 12, b), place.constant or target]
    lines.append(f"{name} {', '.join(operands)} {modifiers}")
    lines += ["s_nop 15", "s_nop 3"]
    move("store", d, 32, "s[10:11]", place.d)
    return "\n".join(lines)


def random_matrix(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    values: Array = rng.integers(-3, 4, shape).astype(dtype)
    return values


def number_type(row: MatrixRow) -> Any:
    return {"f32": np.float32, "i32": np.int32, "f64": np.float64}[row.result]


def operands(arch: str, row: MatrixRow, seed: int) -> tuple[Array, Array, Array]:
    """Small integers for A [blocks, M, K], B [blocks, N, K] and C [blocks, M, N]."""
    rng, dtypes = np.random.default_rng(seed), DTYPES[arch]
    a = random_matrix(rng, (row.blocks, row.m, row.k), dtypes[row.a_type])
    b = random_matrix(rng, (row.blocks, row.n, row.k), dtypes[row.b_type])
    return a, b, random_matrix(rng, (row.blocks, row.m, row.n), number_type(row))


def source(sim: Any, arch: str, name: str, modifiers: str = "", place: Place = Place()) -> Any:
    """The kernel of one instruction."""
    row, dtypes = MATRIX_ROWS[arch][name], DTYPES[arch]
    shapes = (row.m * row.k, dtypes[row.a_type]), (row.n * row.k, dtypes[row.b_type]), (row.m * row.n, number_type(row))
    a, b, d = (-(-elements * row.blocks // 64 * np.dtype(dtype).itemsize // 4) for elements, dtype in shapes)
    return sim.Source(body(name, a, b, d, modifiers, place), vgprs=64, agprs=64)


def launch(
    sim: Any, arch: str, name: str, matrices: tuple[Array, Array, Array], modifiers: str = "", place: Place = Place()
) -> tuple[Any, Array]:
    """Run one instruction; the report and D [blocks, M, N]."""
    row = MATRIX_ROWS[arch][name]
    a, b, c = matrices
    a_words, b_words = words(per_lane(a, row, row.m)), words(per_lane(b, row, row.n))
    c_lanes = np.zeros((64, row.m * row.n * row.blocks // 64), number_type(row))
    for block, i, j in np.ndindex(c.shape):
        c_lanes[result_place(row, block, i, j)] = c[block, i, j]
    c_words = words(c_lanes)
    out = np.zeros_like(c_words)
    kernel = source(sim, arch, name, modifiers, place)
    report = sim.run(arch, kernel, {"a": a_words, "b": b_words, "c": c_words, "d": out})
    lanes = np.ascontiguousarray(out.T).view(number_type(row))
    d = np.zeros_like(c)
    for block, i, j in np.ndindex(c.shape):
        d[block, i, j] = lanes[result_place(row, block, i, j)]
    return report, d


def multiply(*args: Any, **options: Any) -> Array:
    """D of an instruction that must run without a finding."""
    report, d = launch(*args, **options)
    assert not report.findings, str(report.findings[0])
    assert report.instructions["mfma"] == 1
    return d


def plain(a: Array, b: Array, c: Array) -> Array:
    wide = np.int64 if c.dtype == np.int32 else np.float64
    total: Array = np.einsum("bik,bjk->bij", a.astype(wide), b.astype(wide)) + c
    return total


@cache
def prepare_all(sim: Any, arch: str) -> None:
    sim.prepare(arch, [source(sim, arch, name) for of, name in CASES if of == arch])


@pytest.mark.parametrize(("arch", "name"), CASES)
def test_layout(sim: Any, arch: str, name: str) -> None:
    prepare_all(sim, arch)
    matrices = operands(arch, MATRIX_ROWS[arch][name], len(name))
    np.testing.assert_array_equal(multiply(sim, arch, name, matrices), plain(*matrices))


def layout_text(arch: str, name: str) -> str:
    """A line an element of A[i][k], B[k][j] and D[i][j] of each block: register, lane and first bit."""
    row, lines = MATRIX_ROWS[arch][name], []

    def of_factor(index: int, k: int, block: int, side: int, dtype: Any) -> str:
        kpl, bits = side * row.k * row.blocks // 64, 8 * np.dtype(dtype).itemsize
        at = k % kpl * bits
        return f"{at // 32} {index + side * (block + row.blocks * (k // kpl))} {at % 32}"

    dtypes = DTYPES[arch]
    for b, i, k in np.ndindex(row.blocks, row.m, row.k):
        lines.append(f"A {b} {i} {k}: {of_factor(i, k, b, row.m, dtypes[row.a_type])}")
    for b, k, j in np.ndindex(row.blocks, row.k, row.n):
        lines.append(f"B {b} {k} {j}: {of_factor(j, k, b, row.n, dtypes[row.b_type])}")
    for b, i, j in np.ndindex(row.blocks, row.m, row.n):
        lane, register = result_place(row, b, i, j)
        lines.append(f"D {b} {i} {j}: {register * (2 if row.result == 'f64' else 1)} {lane} 0")
    return "\n".join(lines) + "\n"


def test_every_published_place() -> None:
    """The formulae of this file give every element the place that AMD's matrix instruction calculator prints.

    The data has the first 64 bits of SHA-256 over such texts, made from its `--register-layout` of all dense ones.
    """
    published = json.loads((Path(__file__).parents[3] / "data" / "matrix_layouts.json").read_text())
    assert {arch: set(names) for arch, names in published.items()} == {
        arch: set(MATRIX_ROWS[arch]) for arch in ("gfx90a", "gfx942")
    }
    for arch, names in published.items():
        for name, digest in names.items():
            assert hashlib.sha256(layout_text(arch, name).encode()).hexdigest()[:16] == digest, (arch, name)


def test_published_places() -> None:
    """The formulae of this file against examples that others printed.

    The README of AMD's matrix instruction calculator (v_mfma_f32_4x4x4f16), and a layout of v_mfma_f64_16x16x4f64 that
    was read off an MI200: lane t holds A[t % 16][t // 16], and D[t // 16 + 4 * e][t % 16] in its pair e.
    """
    row = MATRIX_ROWS["gfx90a"]["v_mfma_f32_4x4x4f16"]
    a = np.arange(16 * 4 * 4).reshape(16, 4, 4)
    assert per_lane(a, row, 4)[17, 2] == a[4, 1, 2]
    assert result_place(row, 1, 3, 2) == (6, 3)
    assert result_place(row, 8, 2, 1) == (33, 2)
    row = MATRIX_ROWS["gfx90a"]["v_mfma_f64_16x16x4f64"]
    a = np.arange(16 * 4).reshape(1, 16, 4)
    for t in range(64):
        assert per_lane(a, row, 16)[t, 0] == a[0, t % 16, t // 16]
        assert [result_place(row, 0, t // 16 + 4 * e, t % 16) for e in range(4)] == [(t, e) for e in range(4)]


#: One instruction of each accumulator width and type, per target.
SOME = [
    (arch, name)
    for arch, names in {
        "gfx90a": "v_mfma_f32_32x32x8f16 v_mfma_f32_16x16x8bf16 v_mfma_f32_4x4x4bf16_1k v_mfma_f32_16x16x4f32",
        "gfx942": "v_mfma_f32_16x16x16_bf16 v_mfma_f32_32x32x4_xf32 v_mfma_f32_32x32x1_2b_f32",
        "gfx950": "v_mfma_f32_32x32x16_f16 v_mfma_f32_16x16x32_bf16 v_mfma_f32_4x4x1_16b_f32",
    }.items()
    for name in names.split()
] + [(arch, name) for arch, rows in MATRIX_ROWS.items() for name, row in rows.items() if row.result == "f64"]


@pytest.mark.parametrize(("arch", "name"), SOME)
def test_accumulation_registers_and_constants(sim: Any, arch: str, name: str) -> None:
    """A, B and D in either half of the file; C an inline constant, also an integer, which is taken as its bits."""
    matrices = operands(arch, MATRIX_ROWS[arch][name], 3)
    a, b, c = matrices
    places = Place(d="a"), Place(a="a"), Place(b="a"), Place(d="a", a="a", b="a")
    wanted = dict.fromkeys(places, plain(*matrices))
    for text, value in (("0", 0.0), ("1.0", 1.0), ("-4.0", -4.0)):
        wanted |= {Place(d=kind, constant=text): plain(a, b, np.full_like(c, value)) for kind in "va"}
    sim.prepare(arch, [source(sim, arch, name, place=place) for place in wanted])
    for place, want in wanted.items():
        np.testing.assert_array_equal(multiply(sim, arch, name, matrices, place=place), want)


def broadcast_a(a: Array, cbsz: int, abid: int) -> Array:
    return np.stack([a[(block >> cbsz << cbsz) + abid] for block in range(len(a))])


def permuted_b(b: Array, row: MatrixRow, blgp: int) -> Array:
    """B [blocks, N, K] as lanes read it from elsewhere (CDNA2 ISA, BLGP)."""
    sources = {1: lambda at: at % 32, 2: lambda at: at % 32 + 32, 3: lambda at: (at + 16) % 64}
    kpl = row.n * row.k * row.blocks // 64
    lanes = per_lane(b, row, row.n)
    result = np.zeros_like(b)
    for block, j, k in np.ndindex(b.shape):
        lane = j + row.n * (block + row.blocks * (k // kpl))
        source = sources[blgp](lane) if blgp < 4 else lane % 16 + 16 * (blgp - 4)
        result[block, j, k] = lanes[source, k % kpl]
    return result


BROADCASTS = [
    ("gfx90a", "v_mfma_f32_16x16x4f16", 4),
    ("gfx90a", "v_mfma_f32_32x32x1f32", 2),
    ("gfx90a", "v_mfma_f32_4x4x2bf16", 16),
    ("gfx942", "v_mfma_f32_16x16x1_4b_f32", 4),
    ("gfx942", "v_mfma_f32_4x4x4_16b_f16", 16),
    ("gfx950", "v_mfma_f32_32x32x4_2b_bf16", 2),
]


@pytest.mark.parametrize(("arch", "name", "blocks"), BROADCASTS)
def test_broadcasts(sim: Any, arch: str, name: str, blocks: int) -> None:
    """cbsz and abid choose the block of A, blgp the lanes of B."""
    row = MATRIX_ROWS[arch][name]
    a, b, c = operands(arch, row, 4)
    wanted = {}
    for cbsz in range(1, blocks.bit_length()):
        abid = (1 << cbsz) - 1
        wanted[f"cbsz:{cbsz} abid:{abid}"] = plain(broadcast_a(a, cbsz, abid), b, c)
    for blgp in range(1, 8):
        wanted[f"blgp:{blgp}"] = plain(a, permuted_b(b, row, blgp), c)
    sim.prepare(arch, [source(sim, arch, name, modifiers) for modifiers in wanted])
    for modifiers, want in wanted.items():
        np.testing.assert_array_equal(multiply(sim, arch, name, (a, b, c), modifiers), want)


def test_permuted_single_block(sim: Any) -> None:
    """blgp also works on single blocks of CDNA2, and only there."""
    row = MATRIX_ROWS["gfx90a"]["v_mfma_f32_16x16x16f16"]
    a, b, c = operands("gfx90a", row, 5)
    got = multiply(sim, "gfx90a", "v_mfma_f32_16x16x16f16", (a, b, c), "blgp:3")
    np.testing.assert_array_equal(got, plain(a, permuted_b(b, row, 3), c))


@pytest.mark.parametrize(
    ("arch", "name", "modifiers"),
    [
        ("gfx90a", "v_mfma_f32_16x16x16f16", "cbsz:1"),
        ("gfx90a", "v_mfma_f32_16x16x4f16", "cbsz:3"),
        ("gfx90a", "v_mfma_f32_16x16x4f16", "cbsz:1 abid:2"),
        ("gfx90a", "v_mfma_f32_32x32x2bf16", "abid:1"),
        ("gfx90a", "v_mfma_f64_16x16x4f64", "blgp:1"),
        ("gfx90a", "v_mfma_f64_4x4x4f64", "cbsz:1"),
        ("gfx942", "v_mfma_f32_32x32x8_f16", "blgp:1"),
        ("gfx942", "v_mfma_f32_16x16x8_xf32", "cbsz:1"),
        ("gfx950", "v_mfma_f32_16x16x32_bf16", "blgp:2"),
    ],
)
def test_undefined_modifiers(sim: Any, arch: str, name: str, modifiers: str) -> None:
    matrices = operands(arch, MATRIX_ROWS[arch][name], 6)
    assert sim.kinds(launch(sim, arch, name, matrices, modifiers)[0]) == ["encoding"]


@pytest.mark.parametrize("registers", ["v[16:31], v[30:31], v[2:3]", "v[16:31], v[2:3], v[16:17]"])
def test_wide_result_over_its_sources(sim: Any, registers: str) -> None:
    """LLVM keeps a result of more than four registers from A and B, a smaller one not. Its comment calls that stricter
    than the hardware, so it is no reason to fail.
    """
    clear = "\n".join(f"v_mov_b32_e32 v{r}, 0" for r in range(32)) + "\n s_nop 1\n"
    (found,) = sim.run("gfx942", f"{clear} v_mfma_f32_32x32x8_f16 {registers}, 0", {}).findings
    assert (found.kind, found.source.required) == ("matrix-overlap", False)
    small = registers.replace("16:31", "16:19").replace("30:31", "18:19")
    assert not sim.run("gfx942", f"{clear} v_mfma_f32_16x16x16_f16 {small}, 0", {}).findings


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_f64_signs(sim: Any, arch: str) -> None:
    a, b, c = operands(arch, MATRIX_ROWS[arch]["v_mfma_f64_16x16x4_f64"], 7)
    got = multiply(sim, arch, "v_mfma_f64_16x16x4_f64", (a, b, c), "neg:[1,0,1]")
    np.testing.assert_array_equal(got, plain(-a, b, -c))


@pytest.mark.parametrize("name", ["v_mfma_f32_16x16x8_xf32", "v_mfma_f32_32x32x4_xf32"])
def test_xf32_drops_bits(sim: Any, name: str) -> None:
    """13 bits of A and B are dropped, whatever they are; C keeps all of its own."""
    row = MATRIX_ROWS["gfx942"][name]
    a, b, c = operands("gfx942", row, 8)
    noise = np.random.default_rng(9).integers(0, 1 << 13, a.shape, np.uint32)
    noise.flat[:2] = 0x1FFF, 0x1000
    c += np.float32(2.0**-18)
    got = multiply(sim, "gfx942", name, ((a.view(np.uint32) | noise).view(np.float32), b, c))
    kept = (a.view(np.uint32) | np.where(a == 0, noise, 0)).view(np.float32)  # a denormal is dropped whole
    assert (kept.view(np.uint32)[a == 0] < 1 << 13).all()
    np.testing.assert_array_equal(got, plain(a, b, c).astype(np.float32))


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("gfx90a", "v_mfma_f32_16x16x4f32"),
        ("gfx942", "v_mfma_f32_32x32x2_f32"),
        ("gfx950", "v_mfma_f32_4x4x1_16b_f32"),
        ("gfx942", "v_mfma_f64_4x4x4_4b_f64"),
        ("gfx950", "v_mfma_f64_16x16x4_f64"),
        ("gfx90a", "v_mfma_f64_16x16x4f64"),
        ("gfx90a", "v_mfma_f32_32x32x4f16"),
        ("gfx950", "v_mfma_f32_16x16x32_bf16"),
    ],
)
def test_fractions(sim: Any, arch: str, name: str) -> None:
    """Full mantissas: within one rounding of the exact sum for f32, a few of f64's own for f64."""
    row = MATRIX_ROWS[arch][name]
    rng, dtypes = np.random.default_rng(10), DTYPES[arch]
    a = rng.normal(size=(row.blocks, row.m, row.k)).astype(dtypes[row.a_type])
    b = rng.normal(size=(row.blocks, row.n, row.k)).astype(dtypes[row.b_type])
    c = rng.normal(size=(row.blocks, row.m, row.n)).astype(number_type(row))
    got, want = multiply(sim, arch, name, (a, b, c)), plain(a, b, c)
    if row.result == "f32":
        np.testing.assert_array_equal(got, want.astype(np.float32))
    else:
        np.testing.assert_allclose(got, want, rtol=0, atol=4 * np.finfo(np.float64).eps)


def test_denormals_and_infinities(sim: Any) -> None:
    """Denormal f16 operands count; infinities and NaNs go through."""
    a, b = np.zeros((1, 16, 16), np.float16), np.zeros((1, 16, 16), np.float16)
    a[0, :, 0], b[0, :, 0] = 2.0**-24, 1024
    a[0, 1, 1], b[0, 2, 1] = np.inf, 1
    c = np.zeros((1, 16, 16), np.float32)
    with np.errstate(all="ignore"):
        want = plain(a, b, c)
    got = multiply(sim, "gfx942", "v_mfma_f32_16x16x16_f16", (a, b, c))
    np.testing.assert_array_equal(got, want)
    assert got[0, 0, 0] == 2.0**-14
    assert np.isinf(got[0, 1, 2])
    assert np.isnan(got[0, 1, 0])


#: Matrix instructions of 16 x 16 with their inputs' type and depth, and whether they flush denormals.
FLUSHING: dict[tuple[str, str], tuple[Any, int, bool]] = {
    ("gfx90a", "v_mfma_f32_16x16x16f16"): (np.float16, 16, True),
    ("gfx90a", "v_mfma_f32_16x16x16bf16_1k"): (ml_dtypes.bfloat16, 16, True),
    ("gfx90a", "v_mfma_f32_16x16x8bf16"): (ml_dtypes.bfloat16, 8, True),
    ("gfx90a", "v_mfma_f32_16x16x4f32"): (np.float32, 4, False),
    ("gfx942", "v_mfma_f32_16x16x16_f16"): (np.float16, 16, False),
    ("gfx942", "v_mfma_f32_16x16x16_bf16"): (ml_dtypes.bfloat16, 16, False),
    ("gfx950", "v_mfma_f32_16x16x32_f16"): (np.float16, 32, False),
    ("gfx950", "v_mfma_f32_16x16x32_bf16"): (ml_dtypes.bfloat16, 32, False),
}


@pytest.mark.parametrize(("arch", "name"), FLUSHING)
def test_denormals_by_architecture(sim: Any, arch: str, name: str) -> None:
    """CDNA2 flushes denormal f16 and bf16 operands, addends and results; the others, and its f32, keep them."""
    dtype, depth, flushes = FLUSHING[arch, name]
    limits: Any = getattr(ml_dtypes, "finfo")(dtype)  # noqa: B009  (it has no types)
    least, normal = limits.smallest_subnormal, limits.tiny
    a, b = np.zeros((1, 16, depth), dtype), np.zeros((1, 16, depth), dtype)
    c = np.zeros((1, 16, 16), np.float32)
    a[0, 0, 0], b[0, :, 0] = least, 512  # a denormal operand
    a[0, 1, 0] = normal  # the smallest that is none
    c[0, 2, :] = 1e-40  # a denormal addend
    a[0, 3, 1], b[0, :, 1], c[0, 3, :] = 1, 2.0**-8, -(2.0**-8)  # a result that is zero
    c[0, 4, :] = -1.5 * 2.0**-126  # an addend that is none
    want = plain(a, b, c).astype(np.float32)
    if flushes:
        want[0, 0], want[0, 2] = 0, 0
    got = multiply(sim, arch, name, (a, b, c))
    np.testing.assert_array_equal(got, want)
    assert got[0, 1, 0] == np.float32(normal) * 512


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_dot_products_flush_denormals(sim: Any, arch: str) -> None:
    """On all of them (CDNA3 ISA 6.4): two denormal halves times 1024, and a normal one."""
    out = np.full(64, 7, np.float32)
    body = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  v_mov_b32_e32 v2, 0x03ff0001
  v_mov_b32_e32 v3, 0x64006400
  v_mov_b32_e32 v4, 0x04000001
  v_mov_b32_e32 v7, 0x00000001
  v_dot2_f32_f16 v5, v2, v3, v7
  v_dot2_f32_f16 v6, v4, v3, 0
  s_nop 2
  v_add_f32_e32 v5, v5, v6
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v5, s[4:5]
"""
    assert not sim.run(arch, body, {"out": out}).findings
    np.testing.assert_array_equal(out, np.full(64, 2.0**-4))


@pytest.mark.parametrize(("arch", "name"), [key for key, row in FLUSHING.items() if row[0] is not np.float16])
def test_denormal_results_by_architecture(sim: Any, arch: str, name: str) -> None:
    """The difference of two normal numbers that is denormal, of either sign."""
    dtype, depth, flushes = FLUSHING[arch, name]
    a, b = np.zeros((1, 16, depth), dtype), np.zeros((1, 16, depth), dtype)
    a[0, :, 0] = [1.5 * 2.0**-63 * (-1) ** i for i in range(16)]
    b[0, :, 0] = 2.0**-63
    c = np.broadcast_to((-(2.0**-126) * (-1.0) ** np.arange(16)).astype(np.float32)[None, :, None], (1, 16, 16)).copy()
    want = plain(a, b, c).astype(np.float32)
    assert 0 < want[0, 0, 0] < 2.0**-126
    if flushes:
        want = np.copysign(np.float32(0), want)
    got = multiply(sim, arch, name, (a, b, c))
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


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


SCALE_CODES = np.array([255, *range(120, 135)], np.uint8)  #: codes of scales: NaN, and powers of two near 1


@pytest.mark.parametrize("m", [16, 32])
@pytest.mark.parametrize(
    ("cbsz", "blgp", "of_a", "of_b"), [(0, 0, 0, 3), (1, 0, 1, 2), (4, 4, 2, 1), (0, 4, 3, 0), (2, 3, 0, 0)]
)
def test_scaled_f8f6f4(sim: Any, m: int, cbsz: int, blgp: int, of_a: int, of_b: int) -> None:
    """Lane row + m * block has the scale of 32 numbers of a row in the byte that op_sel and op_sel_hi name."""
    k = 128 if m == 16 else 64
    rng = np.random.default_rng(cbsz * 8 + blgp + m)
    raw, numbers, scale_words = list[Array](), list[Array](), list[Array]()
    for code, byte in ((cbsz, of_a), (blgp, of_b)):
        dtype, bits = FORMATS[code]
        values = rng.integers(-2, 3, (m, k)).astype(dtype)
        scales = rng.choice(SCALE_CODES, (m, k // 32), p=[0.04, *[0.96 / 15] * 15])
        if not raw:
            scales[:2] = np.array([[0], [254]])  # the least and the greatest
        lanes = rng.integers(0, 1 << 32, 64, np.uint32) & ~np.uint32(0xFF << 8 * byte)
        for row, block in np.ndindex(scales.shape):
            lanes[row + m * block] |= np.uint32(int(scales[row, block]) << 8 * byte)
        raw.append(narrow_words(values.view(np.uint8), bits, k))
        scale_words.append(lanes)
        powers = np.where(scales == 255, np.nan, np.exp2(scales.astype(np.float64) - 127))
        numbers.append(values.astype(np.float64) * np.repeat(powers, 32, axis=1))
    count = m * m // 64
    zero = np.zeros((count, 64), np.uint32)
    out = np.zeros_like(zero)
    name = f"v_mfma_scale_f32_{m}x{m}x{k}_f8f6f4"
    low, high = ([byte >> n & 1 for byte in (of_a, of_b)] for n in (0, 1))
    modifiers = f"op_sel:[{low[0]},{low[1]},0] op_sel_hi:[{high[0]},{high[1]},0] cbsz:{cbsz} blgp:{blgp}"
    last_a, last_b = 3 + len(raw[0]), 11 + len(raw[1])
    behind_b = np.vstack([raw[1], *scale_words])
    text = body(name, len(raw[0]), len(behind_b), count)
    d = f"v[32:{31 + count}]"
    line = f"{name} {d}, v[4:{last_a}], v[12:{last_b}], {d}, v{last_b + 1}, v{last_b + 2} {modifiers}"
    text = "\n".join(line if each.startswith(name) else each for each in text.splitlines())
    report = sim.run("gfx950", sim.Source(text), {"a": raw[0], "b": behind_b, "c": zero, "d": out})
    assert not report.findings, str(report.findings[0])
    with np.errstate(all="ignore"):
        want, got = (numbers[0] @ numbers[1].T).astype(np.float32), out.T.copy().view(np.float32)
    assert np.isnan(want).any() or cbsz == 2
    assert not np.isnan(want).all()
    row = MatrixRow(m, m, k, 1, "", "", "f32", 8)
    for i, j in np.ndindex(want.shape):
        lane, register = result_place(row, 0, i, j)
        assert got[lane, register] == want[i, j] or np.isnan([got[lane, register], want[i, j]]).all()


def compressed(matrix: Array, row: MatrixRow, which: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """A [M, K] with two of each four along K made 0: the words of the others, and of their places in set `which`.

    A lane i + M * (k // (K M / 64)) holds what is left of its stretch of K, and four bits for each four of it: the
    places of the first and of the second (AMD matrix instruction calculator, compression index).
    """
    stretch = row.k * row.m // 64
    lanes, places = np.zeros((64, stretch // 2), matrix.dtype), np.zeros((1, 64), np.uint32)
    for i, quad in np.ndindex(row.m, row.k // 4):
        lane, number = i + row.m * (4 * quad // stretch), quad % (stretch // 4)
        first, second = sorted(rng.choice(4, 2, replace=False).tolist())
        lanes[lane, 2 * number : 2 * number + 2] = matrix[i, 4 * quad + np.array((first, second))]
        gone = [k for k in range(4) if k not in (first, second)]
        matrix[i, 4 * quad + np.array(gone)] = 0
        places[0, lane] |= np.uint32((first | second << 2) << (4 * number + which * stretch))
    return words(lanes), places


@pytest.mark.parametrize(("arch", "name"), always(SPARSE, lambda n, c: c[1].endswith(("32x16_bf16", "x128_fp8_bf8"))))
def test_sparse(sim: Any, arch: str, name: str) -> None:
    """The first and the last set of indices that the register has room for; D is the third factor's place."""
    row, rng = SPARSE_ROWS[arch][name], np.random.default_rng(len(name))
    for which in {0, 32 // (row.k * row.m // 64) - 1}:
        a, b, c = (matrix[0] for matrix in operands(arch, row, which))
        a_words, places = compressed(a, row, which, rng)
        b_words, registers = words(per_lane(b[None], row, row.n)), row.result_registers
        c_lanes = np.zeros((64, registers), number_type(row))
        for i, j in np.ndindex(c.shape):
            c_lanes[result_place(row, 0, i, j)] = c[i, j]
        text = body(name, len(a_words) + 1, len(b_words), registers, f"abid:{which}" if which else "")
        line = next(line for line in text.splitlines() if line.startswith(name))
        first, last = (4, 3 + len(a_words))
        now = line.split(", ")
        now[1], now[3] = f"v[{first}:{last}]", f"v{last + 1} " + now[3].partition(" ")[2]
        text = text.replace(line, ", ".join(now))
        out = np.zeros((registers, 64), np.uint32)
        buffers = {"a": np.concatenate((a_words, places)), "b": b_words, "c": words(c_lanes), "d": out}
        report = sim.run(arch, sim.Source(text), buffers)
        assert not report.findings, str(report.findings[0])
        got = np.ascontiguousarray(out.T).view(number_type(row))
        want = plain(a[None], b[None], c[None])[0]
        for i, j in np.ndindex(want.shape):
            assert got[result_place(row, 0, i, j)] == want[i, j]


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
    buffers = {"a": words(per_lane(a, row, 16)), "b": words(per_lane(b, row, 16)), "c": c, "d": out}
    assert not sim.run("gfx942", source, buffers).findings
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
