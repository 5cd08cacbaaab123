"""Systolic operations: every type, repeat counts, accumulators, and src2 shared by a fused pair."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[Any]
BF = ml_dtypes.bfloat16
WIDTH = {"xehpc": 16, "xehpg": 8}
GRF = {"xehpc": 64, "xehpg": 32}
LOADS = {
    "xehpc": """
(W) mov (1|M0) r5.0<1>:uq r4.0<0;1,0>:uq
(W) mov (1|M0) r6.0<1>:uq r4.1<0;1,0>:uq
(W) add (1|M0) r7.0<1>:uq r5.0<0;1,0>:uq 0x200:uw {I@2}
(W) add (1|M0) r8.0<1>:uq r5.0<0;1,0>:uq 0x400:uw
(W) load.ugm.d64x64t.a64 (1|M0) r32:8 [r5:1] {A@1,$1}
(W) load.ugm.d64x32t.a64 (1|M0) r16:4 [r7:1] {$2}
(W) load.ugm.d64x64t.a64 (1|M0) r40:8 [r8:1] {$3}
(W) sync.allwr null
""",
    "xehpg": """
(W) mov (2|M0) r5.0<1>:ud r4.0<1;1,0>:ud
(W) mov (2|M0) r6.0<1>:ud r4.2<1;1,0>:ud
(W) mov (2|M0) r7.0<1>:ud r4.0<1;1,0>:ud
(W) mov (2|M0) r8.0<1>:ud r4.0<1;1,0>:ud
(W) add (1|M0) r7.0<1>:ud r7.0<0;1,0>:ud 0x100:uw {I@2}
(W) add (1|M0) r8.0<1>:ud r8.0<0;1,0>:ud 0x200:uw {I@2}
(W) load.ugm.d64x32t.a64 (1|M0) r32:8 [r5:1] {A@1,$1}
(W) load.ugm.d64x32t.a64 (1|M0) r16:8 [r7:1] {$2}
(W) load.ugm.d64x32t.a64 (1|M0) r40:8 [r8:1] {$3}
(W) sync.allwr null
""",
}
STORES = {
    "xehpc": "(W) sync.nop null {$5.dst}\n(W) store.ugm.d64x64t.a64 (1|M0) [r6:1] r40:8 {$6}\n",
    "xehpg": "(W) sync.nop null {$5.dst}\n(W) store.ugm.d64x32t.a64 (1|M0) [r6:1] r40:8 {$6}\n",
}
KINDS: dict[str, Any] = {
    "hf": np.float16,
    "bf": BF,
    "tf32": np.float32,
    "b": np.int8,
    "ub": np.uint8,
    "f": np.float32,
    "d": np.int32,
    "ud": np.uint32,
}


def values(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    """Numbers that the type holds exactly; 4-bit ones as small integers."""
    low, high = {"ub": (0, 256), "b": (-128, 128), "u4": (0, 16), "s4": (-8, 8), "ud": (0, 99)}.get(kind, (-8, 9))
    return rng.integers(low, high, shape).astype(np.int64)


def packed(numbers: Array, kind: str) -> Array:
    """Consecutive numbers as bytes."""
    if kind in ("s4", "u4"):
        pairs = numbers.reshape(-1, 2) & 15
        return (pairs[:, 0] | pairs[:, 1] << 4).astype(np.uint8)
    return np.ascontiguousarray(numbers.astype(KINDS[kind])).view(np.uint8).reshape(-1)


CASES = [
    ("xehpc", "f", "hf", "hf", 8),
    ("xehpc", "f", "bf", "bf", 8),
    ("xehpc", "f", "tf32", "tf32", 8),
    ("xehpc", "d", "b", "b", 8),
    ("xehpc", "d", "ub", "b", 4),
    ("xehpc", "ud", "ub", "ub", 1),
    ("xehpc", "d", "s4", "u4", 8),
    ("xehpc", "hf", "hf", "hf", 8),
    ("xehpc", "bf", "bf", "bf", 7),
    ("xehpg", "f", "hf", "hf", 8),
    ("xehpg", "f", "bf", "bf", 3),
    ("xehpg", "d", "b", "ub", 8),
    ("xehpg", "d", "u4", "u4", 8),
]


@pytest.mark.parametrize(("platform", "d", "b", "a", "rows"), CASES)
def test_types(sim: Any, platform: str, d: str, b: str, a: str, rows: int) -> None:
    """`b` is src1, `a` is src2."""
    rng = np.random.default_rng(5)
    columns = WIDTH[platform]
    bits = {"tf32": 32, "hf": 16, "bf": 16, "b": 8, "ub": 8, "s4": 4, "u4": 4}
    ops = 32 // max(bits[a], bits[b])
    depth = 8 * ops
    left, right = values(rng, a, (rows, depth)), values(rng, b, (depth, columns))
    start = values(rng, d, (rows, columns))
    data = np.zeros((8 + 8 + 8) * GRF[platform], np.uint8)
    second, third = {"xehpc": (0x200, 0x400), "xehpg": (0x100, 0x200)}[platform]
    vnni = right.reshape(8, ops, columns).transpose(0, 2, 1).reshape(-1)
    for at, raw in ((0, packed(vnni, b)), (second, packed(left.reshape(-1), a)), (third, packed(start, d))):
        data[at : at + len(raw)] = raw
    out = np.zeros(8 * GRF[platform], np.uint8)
    op = f"dpas.8x{rows} ({columns}|M0) r40:{d} r40:{d} r32:{b} r16.0:{a} {{$5}}\n"
    report = sim.run(platform, LOADS[platform] + op + STORES[platform], {"in": data, "out": out})
    assert not report.findings, "\n".join(map(str, report.findings))
    want = (start + left @ right).astype(KINDS[d])
    np.testing.assert_array_equal(out.view(KINDS[d])[: rows * columns].reshape(rows, columns), want)


def test_one_rounding(sim: Any) -> None:
    """All of an instruction's products and the accumulator make one sum, which is rounded once."""
    rng = np.random.default_rng(6)
    left, right = rng.normal(size=(8, 16)).astype(np.float16), rng.normal(size=(16, 16)).astype(np.float16)
    start = rng.normal(size=(8, 16)).astype(np.float32)
    vnni = np.ascontiguousarray(right.reshape(8, 2, 16).transpose(0, 2, 1))
    data = np.concatenate([part.reshape(-1).view(np.uint8) for part in (vnni, left, left, start)])
    out = np.zeros(512, np.uint8)
    op = "dpas.8x8 (16|M0) r40:f r40:f r32:hf r16.0:hf {$5}\n"
    report = sim.run("xehpc", LOADS["xehpc"] + op + STORES["xehpc"], {"in": data, "out": out})
    assert not report.findings
    want = (start.astype(np.float64) + left.astype(np.float64) @ right.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(out.view(np.float32).reshape(8, 16), want)


def test_without_accumulator_and_chained(sim: Any) -> None:
    """src0 may be null; of a chain on one accumulator only the last sets the token."""
    ones = np.ones((8, 16), np.float16)
    data = np.concatenate([np.ones(256, np.float16), ones.reshape(-1), ones.reshape(-1), np.zeros(256, np.float16)])
    out = np.zeros(512, np.uint8)
    op = "dpas.8x8 (16|M0) r40:f null:f r32:hf r16.0:hf {Atomic}\ndpas.8x8 (16|M0) r40:f r40:f r32:hf r16.0:hf {$5}\n"
    report = sim.run("xehpc", LOADS["xehpc"] + op + STORES["xehpc"], {"in": data.view(np.uint8), "out": out})
    assert not report.findings, "\n".join(map(str, report.findings))
    assert (out.view(np.float32) == 32).all()
    first, last = op.splitlines()
    for wrong in (f"{first}\n", op.replace(" {Atomic}", ""), f"{first}\n{last.replace('$5', '@1,$5')}\n"):
        report = sim.run("xehpc", LOADS["xehpc"] + wrong + STORES["xehpc"], {"in": data.view(np.uint8), "out": out})
        assert "token" in sim.kinds(report)


PAIR = """
(W) and (1|M0) r9.0<1>:ud r0.2<0;1,0>:ud 0xFF:ud
(W) shl (1|M0) r9.1<1>:ud r9.0<0;1,0>:ud 7:w {I@1}
(W) shl (1|M0) r9.2<1>:ud r9.0<0;1,0>:ud 8:w
(W) mov (2|M0) r5.0<1>:ud r4.0<1;1,0>:ud
(W) mov (2|M0) r6.0<1>:ud r4.2<1;1,0>:ud
(W) mov (2|M0) r7.0<1>:ud r4.0<1;1,0>:ud
(W) add (1|M0) r7.0<1>:ud r7.0<0;1,0>:ud 0x100:uw {I@1}
(W) add (1|M0) r7.0<1>:ud r7.0<0;1,0>:ud r9.1<0;1,0>:ud {I@1}
(W) add (1|M0) r6.0<1>:ud r6.0<0;1,0>:ud r9.2<0;1,0>:ud
(W) load.ugm.d64x32t.a64 (1|M0) r32:8 [r5:1] {A@1,$1}
(W) load.ugm.d64x16t.a64 (1|M0) r16:4 [r7:1] {$2}
(W) sync.allwr null
"""


def test_fused_pair(sim: Any) -> None:
    """Two threads share src2: the even one holds rows 0 to 3, the odd one 4 to 7; both get all of D."""
    rng = np.random.default_rng(7)
    left, right = rng.integers(-8, 9, (8, 16)).astype(np.float16), rng.integers(-8, 9, (16, 8)).astype(np.float16)
    vnni = np.ascontiguousarray(right.reshape(8, 2, 8).transpose(0, 2, 1))
    data = np.concatenate([vnni.reshape(-1), left.reshape(-1)]).view(np.uint8)
    out = np.zeros((2, 8, 8), np.float32)
    op = "dpasw.8x8 (8|M0) r40:f null:f r32:hf r16.0:hf {$5}\n"
    body = PAIR + op + STORES["xehpg"]
    report = sim.run("xehpg", body, {"in": data, "out": out}, workgroup=16)
    assert not report.findings, "\n".join(map(str, report.findings))
    want = left.astype(np.float32) @ right.astype(np.float32)
    np.testing.assert_array_equal(out, np.stack((want, want)))
    alone = sim.run("xehpg", body, {"in": data, "out": out}, workgroup=8)
    assert sim.kinds(alone) == ["dpasw"]


def test_fused_pair_out_of_step(sim: Any) -> None:
    """A thread that skips the instruction leaves its partner alone."""
    data, out = np.zeros(1024, np.uint8), np.zeros(512, np.uint8)
    op = "dpasw.8x8 (8|M0) r40:f null:f r32:hf r16.0:hf {$5}\n"
    jump = "(W) cmp (1|M0) (eq)f0.0 null<1>:ud r9.0<0;1,0>:ud 1:uw\n(W&f0.0) jmpi over\n"
    body = PAIR + jump + op + "over:\n(W) sync.nop null {$5.dst}\n"
    report = sim.run("xehpg", body, {"in": data, "out": out}, workgroup=16)
    assert sim.kinds(report) == ["dpasw", "fused-branch"]
