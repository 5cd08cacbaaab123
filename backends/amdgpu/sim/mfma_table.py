"""Matrix instructions: shapes, element types and passes, by architecture and mnemonic.

Sources: AMD CDNA2/CDNA3/CDNA4 ISA, "Matrix Arithmetic Instructions"; AMD matrix instruction calculator. Passes are
cycles / 4.

Lane layouts, L = lane, b = block, kpl = elements of A per lane, low bits first in consecutive registers:
  A[i][k] of block b: lane i + M * (b + blocks * (k // kpl)), element k % kpl.
  B[k][j] of block b: lane j + N * (b + blocks * (k // kpl)), element k % kpl.
  C and D, 32-bit:  16x16: lane 16 * (i // 4) + j, register 4 * b + i % 4
                    32x32: lane 32 * (i // 4 % 2) + j, register 16 * b + 4 * (i // 8) + i % 4
                    4x4:   lane 4 * b + j, register i
  C and D, f64:     16x16: lane 16 * (i % 4) + j, register pair i // 4
                    4x4:   lane 16 * i + 4 * b + j, one pair
  f64 4x4 keeps A at lane i + 4 * b + 16 * k.

Sparse instructions (smfmac): A holds two of each four neighbours along K, kpl / 2 elements per lane. A third register
has four bits per four neighbours: the positions of the two. C is D.
"""

from __future__ import annotations

from collections.abc import Mapping

from convgen.ir.record import frozen


@frozen
class MatrixRow:
    """One matrix instruction: D[M, N] = A[M, K] B[K, N] + C for each block."""

    m: int
    n: int
    k: int
    blocks: int
    a_type: str  #: f16 bf16 f32 f64 i8 xf32 fp8 bf8, or f8f6f4 (the format is in cbsz and blgp)
    b_type: str
    result: str  #: f32 i32 f64
    passes: int
    sparse: bool = False  #: whether A stores half of the K elements, the others being zero

    @property
    def hazard_class(self) -> str:
        """Return the kind of hazard event of D: xdl, sgemm (f32 inputs), dgemm16 or dgemm4."""
        if self.result == "f64":
            return f"dgemm{self.m}"
        return "sgemm" if self.a_type == "f32" else "xdl"

    @property
    def result_registers(self) -> int:
        return self.m * self.n * self.blocks // 64 * (2 if self.result == "f64" else 1)


def _dense(shapes: str, kind: str, result: str, spelling: str) -> dict[str, MatrixRow]:
    """Return rows of instructions whose inputs have one type, from "MxNxK/blocks:passes" items.

    `spelling` is the format of the mnemonic.
    """
    rows: dict[str, MatrixRow] = {}
    for item in shapes.split():
        shape, _, passes = item.partition(":")
        sizes, _, blocks = shape.partition("/")
        m, n, k = (int(size) for size in sizes.split("x"))
        count = int(blocks or 1)
        block_text = f"_{count}b" if count > 1 else ""
        name = spelling.format(shape=sizes, blocks=block_text, type=kind)
        rows[name] = MatrixRow(m, n, k, count, kind, kind, result, int(passes))
    return rows


def _sparse(shapes: str, kinds: str, result: str) -> dict[str, MatrixRow]:
    """Return rows of smfmac from "MxNxK:passes" items; `kinds` lists "type" or "type_type"."""
    rows = {}
    for item in shapes.split():
        sizes, _, passes = item.partition(":")
        m, n, k = (int(size) for size in sizes.split("x"))
        for kind in kinds.split():
            a, _, b = kind.partition("_")
            row = MatrixRow(m, n, k, 1, a, b or a, result, int(passes), sparse=True)
            rows[f"v_smfmac_{result}_{sizes}_{kind}"] = row
    return rows


_FP8_PAIRS = "fp8_fp8 fp8_bf8 bf8_fp8 bf8_bf8"
_SPARSE_CDNA34: dict[str, MatrixRow] = {
    **_sparse("16x16x32:4 32x32x16:8", "f16 bf16", "f32"),
    **_sparse("16x16x64:4 32x32x32:8", "i8", "i32"),
    **_sparse("16x16x64:4 32x32x32:8", _FP8_PAIRS, "f32"),
}
#: Twice the K of the dense instructions, in as many passes.
_SPARSE_CDNA4: dict[str, MatrixRow] = {
    **_sparse("16x16x64:4 32x32x32:8", "f16 bf16", "f32"),
    **_sparse("16x16x128:4 32x32x64:8", "i8", "i32"),
    **_sparse("16x16x128:4 32x32x64:8", _FP8_PAIRS, "f32"),
}

#: Mnemonics by type of the result: on CDNA2, and on CDNA3 and CDNA4.
_CDNA2_NAME = "v_mfma_{}_{{shape}}{{type}}"
_CDNA3_NAME = "v_mfma_{}_{{shape}}{{blocks}}_{{type}}"

_F32_SHAPES = "32x32x1/2:16 16x16x1/4:8 4x4x1/16:2 32x32x2:16 16x16x4:8"
_F16_MULTI = "32x32x4/2:16 16x16x4/4:8 4x4x4/16:2"

_GFX90A: dict[str, MatrixRow] = {
    **_dense(_F32_SHAPES, "f32", "f32", _CDNA2_NAME.format("f32")),
    **_dense(_F16_MULTI + " 32x32x8:16 16x16x16:8", "f16", "f32", _CDNA2_NAME.format("f32")),
    **_dense(_F16_MULTI + " 32x32x8:16 16x16x16:8", "bf16", "f32", _CDNA2_NAME.format("f32") + "_1k"),
    **_dense("32x32x2/2:16 16x16x2/4:8 4x4x2/16:2 32x32x4:16 16x16x8:8", "bf16", "f32", _CDNA2_NAME.format("f32")),
    **_dense("32x32x4/2:16 16x16x4/4:8 4x4x4/16:2 32x32x8:16 16x16x16:8", "i8", "i32", _CDNA2_NAME.format("i32")),
    **_dense("16x16x4:8 4x4x4/4:4", "f64", "f64", _CDNA2_NAME.format("f64")),
}
_BOTH_CDNA34: dict[str, MatrixRow] = {
    **_dense(_F32_SHAPES, "f32", "f32", _CDNA3_NAME.format("f32")),
    **_dense(_F16_MULTI + " 32x32x8:8 16x16x16:4", "f16", "f32", _CDNA3_NAME.format("f32")),
    **_dense(_F16_MULTI + " 32x32x8:8 16x16x16:4", "bf16", "f32", _CDNA3_NAME.format("f32")),
    **_dense(_F16_MULTI, "i8", "i32", _CDNA3_NAME.format("i32")),
    **_dense("32x32x16:8 16x16x32:4", "i8", "i32", _CDNA3_NAME.format("i32")),
    **{
        f"v_mfma_f32_{m}x{m}x{k}_{a}_{b}": MatrixRow(m, m, k, 1, a, b, "f32", passes)
        for m, k, passes in ((32, 16, 8), (16, 32, 4))
        for a in ("fp8", "bf8")
        for b in ("fp8", "bf8")
    },
}
_GFX942: dict[str, MatrixRow] = {
    **_BOTH_CDNA34,
    **_dense("32x32x4:8 16x16x8:4", "xf32", "f32", _CDNA3_NAME.format("f32")),
    **_dense("16x16x4:8 4x4x4/4:4", "f64", "f64", _CDNA3_NAME.format("f64")),
}
_GFX950: dict[str, MatrixRow] = {
    **_BOTH_CDNA34,
    **_dense("16x16x4:16 4x4x4/4:4", "f64", "f64", _CDNA3_NAME.format("f64")),
    **_dense("32x32x16:8 16x16x32:4", "f16", "f32", _CDNA3_NAME.format("f32")),
    **_dense("32x32x16:8 16x16x32:4", "bf16", "f32", _CDNA3_NAME.format("f32")),
    **_dense("32x32x32:8 16x16x64:4", "i8", "i32", _CDNA3_NAME.format("i32")),
    **_dense("32x32x64:16 16x16x128:8", "f8f6f4", "f32", _CDNA3_NAME.format("f32")),
    **_dense("32x32x64:16 16x16x128:8", "f8f6f4", "f32", "v_mfma_scale_f32_{shape}{blocks}_{type}"),
}
#: Dense instructions (MATRIX_ROWS) and sparse ones (SPARSE_ROWS): architecture -> mnemonic -> row.
MATRIX_ROWS: Mapping[str, Mapping[str, MatrixRow]] = {"gfx90a": _GFX90A, "gfx942": _GFX942, "gfx950": _GFX950}
SPARSE_ROWS: Mapping[str, Mapping[str, MatrixRow]] = {
    "gfx90a": {},
    "gfx942": _SPARSE_CDNA34,
    "gfx950": {**_SPARSE_CDNA34, **_SPARSE_CDNA4},
}

#: Formats of f8f6f4 operands by the cbsz/blgp code, as named in `numbers.NARROW`, with bits per element.
F8F6F4_FORMATS: Mapping[int, tuple[str, int]] = {
    0: ("fp8_ocp", 8),
    1: ("bf8_ocp", 8),
    2: ("fp6", 6),
    3: ("bf6", 6),
    4: ("fp4", 4),
}
#: Bits of an element, by type.
BITS: Mapping[str, int] = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "i8": 8, "xf32": 32, "fp8": 8, "bf8": 8}
