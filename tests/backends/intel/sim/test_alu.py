"""What arithmetic instructions compute, against numpy, on both platforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.intel.sim import Unsupported

Array = npt.NDArray[Any]
#: Loads four registers of `in` into r10..r13; the result r20 goes to `out`.
BODIES = {
    "xehpc": """
(W) mov (1|M0) r5.0<1>:uq r4.0<0;1,0>:uq
(W) mov (1|M0) r6.0<1>:uq r4.1<0;1,0>:uq
(W) load.ugm.d32x64t.a64 (1|M0) r10:4 [r5:1] {{I@2,$1}}
(W) mov (16|M0) r20.0<1>:ud 0x0:ud {{$1.dst}}
(W) sync.nop null {{A@1}}
{op}
(W) store.ugm.d32x16t.a64 (1|M0) [r6:1] r20:1 {{A@1,$2}}
""",
    "xehpg": """
(W) mov (2|M0) r5.0<1>:ud r4.0<1;1,0>:ud
(W) mov (2|M0) r6.0<1>:ud r4.2<1;1,0>:ud
(W) load.ugm.d32x32t.a64 (1|M0) r10:4 [r5:1] {{A@2,$1}}
(W) mov (8|M0) r20.0<1>:ud 0x0:ud {{$1.dst}}
(W) sync.nop null {{A@1}}
{op}
(W) store.ugm.d32x8t.a64 (1|M0) [r6:1] r20:1 {{A@1,$2}}
""",
}
LANES = {"xehpc": 16, "xehpg": 8}


def bf(values: Array) -> Array:
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16)


@attrs.frozen
class Op:
    """Instructions with {n} lanes, the type of r10.., the type of r20, and what it computes from r10, r11, r12, r13."""

    text: str
    kind: Any
    result: Any
    want: Callable[..., Array]
    platforms: tuple[str, ...] = ("xehpc", "xehpg")


D, UD, F, W, HF = np.int32, np.uint32, np.float32, np.int16, np.float16
I64 = np.int64


def two(op: str, type_: str) -> str:
    return f"{op} ({{n}}|M0) r20.0<1>:{type_} r10.0<1;1,0>:{type_} r11.0<1;1,0>:{type_}"


def one(op: str, dst: str, src: str) -> str:
    return f"{op} ({{n}}|M0) r20.0<1>:{dst} r10.0<1;1,0>:{src}"


def three(op: str, type_: str) -> str:
    return f"{op} ({{n}}|M0) r20.0<1>:{type_} r10.0<1;0>:{type_} r11.0<1;0>:{type_} r12.0<1>:{type_}"


def wrap(values: Array) -> Array:
    return values.astype(np.uint64).astype(UD).view(D) if values.dtype.kind == "u" else values.astype(I64).astype(D)


def wide(function: Callable[..., Array]) -> Callable[..., Array]:
    """An integer function on i64 whose result wraps."""
    return lambda *values: function(*(value.astype(I64) for value in values))


OPS = {
    "add d": Op(two("add", "d"), D, D, wide(lambda a, b, *_: a + b)),
    "add sat": Op(
        "add ({n}|M0) (sat)r20.0<1>:d r10.0<1;1,0>:d r11.0<1;1,0>:d",
        D,
        D,
        wide(lambda a, b, *_: np.clip(a + b, -(2**31), 2**31 - 1)),
    ),
    "sub by negation": Op("add ({n}|M0) r20.0<1>:d r10.0<1;1,0>:d -r11.0<1;1,0>:d", D, D, wide(lambda a, b, *_: a - b)),
    "abs": Op("mov ({n}|M0) r20.0<1>:d (abs)r10.0<1;1,0>:d", D, D, wide(lambda a, *_: np.abs(a))),
    "add3": Op(three("add3", "d"), D, D, wide(lambda a, b, c, _: a + b + c)),
    "mad w": Op(
        "mad ({n}|M0) r20.0<1>:d r10.0<1;0>:d r11.0<1;0>:d r12.0<0>:w",
        D,
        D,
        lambda a, b, c, _: a.astype(I64) + b.astype(I64) * int(c.view(W)[0]),
    ),
    "mul w": Op(
        "mul ({n}|M0) r20.0<1>:d r10.0<1;1,0>:d r11.0<0;1,0>:uw",
        D,
        D,
        lambda a, b, *_: a.astype(I64) * int(b.view(np.uint16)[0]),
    ),
    "avg": Op(two("avg", "ud"), UD, UD, wide(lambda a, b, *_: (a + b + 1) >> 1)),
    "and not": Op("and ({n}|M0) r20.0<1>:d ~r10.0<1;1,0>:d r11.0<1;1,0>:d", D, D, lambda a, b, *_: ~a & b),
    "xor": Op(two("xor", "ud"), UD, UD, lambda a, b, *_: a ^ b),
    "not": Op(one("not", "d", "d"), D, D, lambda a, *_: ~a),
    "shl": Op(two("shl", "d"), D, D, wide(lambda a, b, *_: a << (b & 31))),
    "shr": Op(two("shr", "ud"), UD, UD, lambda a, b, *_: a >> (b & 31)),
    "asr": Op(two("asr", "d"), D, D, lambda a, b, *_: a >> (b & 31)),
    "rol": Op(two("rol", "ud"), UD, UD, lambda a, b, *_: a << (b & 31) | a >> (32 - (b & 31) & 31)),
    "ror": Op(two("ror", "ud"), UD, UD, lambda a, b, *_: a >> (b & 31) | a << (32 - (b & 31) & 31)),
    "min": Op(two("sel", "d").replace("|M0)", "|M0) (lt)f0.0"), D, D, lambda a, b, *_: np.minimum(a, b)),
    "max ud": Op(two("sel", "ud").replace("|M0)", "|M0) (ge)f0.0"), UD, UD, lambda a, b, *_: np.maximum(a, b)),
    "min f": Op(two("sel", "f").replace("|M0)", "|M0) (lt)f0.0"), F, F, lambda a, b, *_: np.fmin(a, b)),
    "bfn": Op(
        "bfn.(s0&s1|s2) ({n}|M0) r20.0<1>:ud r10.0<1;0>:ud r11.0<1;0>:ud r12.0<1>:ud",
        UD,
        UD,
        lambda a, b, c, _: a & b | c,
    ),
    "bfn xor": Op(
        "bfn.(s0^s1^~s2) ({n}|M0) r20.0<1>:ud r10.0<1;0>:ud r11.0<1;0>:ud r12.0<1>:ud",
        UD,
        UD,
        lambda a, b, c, _: a ^ b ^ ~c,
    ),
    "bfi1": Op(two("bfi1", "ud"), UD, UD, wide(lambda a, b, *_: (((1 << (a & 31)) - 1) << (b & 31)) & 0xFFFFFFFF)),
    "bfe ud": Op(
        "bfe ({n}|M0) r20.0<1>:ud r10.0<1;0>:ud r11.0<1;0>:ud r12.0<1>:ud",
        UD,
        UD,
        wide(lambda a, b, c, _: (c >> (b & 31)) & ((1 << (a & 31)) - 1)),
    ),
    "bfrev": Op(
        one("bfrev", "ud", "ud"), UD, UD, lambda a, *_: np.array([int(f"{x:032b}"[::-1], 2) for x in a.tolist()], UD)
    ),
    "cbit": Op(one("cbit", "ud", "ud"), UD, UD, lambda a, *_: np.array([x.bit_count() for x in a.tolist()], UD)),
    "lzd": Op(one("lzd", "ud", "ud"), UD, UD, lambda a, *_: np.array([32 - x.bit_length() for x in a.tolist()], UD)),
    "fbl": Op(
        one("fbl", "ud", "ud"),
        UD,
        UD,
        lambda a, *_: np.array([(x & -x).bit_length() - 1 if x else 2**32 - 1 for x in a.tolist()], np.int64),
    ),
    "fbh": Op(
        one("fbh", "ud", "ud"),
        UD,
        UD,
        lambda a, *_: np.array([32 - x.bit_length() if x else 2**32 - 1 for x in a.tolist()], np.int64),
    ),
    "dp4a": Op(
        "dp4a ({n}|M0) r20.0<1>:d r10.0<1;0>:d r11.0<1;0>:d r12.0<1>:ud",
        D,
        D,
        lambda a, b, c, _: (
            a.astype(I64) + (b.view(np.int8).reshape(-1, 4).astype(I64) * c.view(np.uint8).reshape(-1, 4)).sum(axis=1)
        ),
    ),
    "csel": Op(
        "csel ({n}|M0) (gt)f0.0 r20.0<1>:d r10.0<1;0>:d r11.0<1;0>:d r12.0<1>:d",
        D,
        D,
        lambda a, b, c, _: np.asarray(np.where(c > 0, a, b)),
        ("xehpc",),
    ),
    "f to d": Op(one("mov", "d", "f"), F, D, lambda a, *_: np.trunc(a).astype(D)),
    "f to ud": Op(one("mov", "ud", "f"), F, UD, lambda a, *_: np.clip(np.trunc(a), 0, None).astype(UD)),
    "d to f": Op(one("mov", "f", "d"), D, F, lambda a, *_: a.astype(F)),
    "ud to f": Op(one("mov", "f", "ud"), UD, F, lambda a, *_: a.astype(F)),
    "add f": Op(two("add", "f"), F, F, lambda a, b, *_: a + b),
    "mul f": Op(two("mul", "f"), F, F, lambda a, b, *_: a * b),
    "mul sat f": Op(
        "mul ({n}|M0) (sat)r20.0<1>:f r10.0<1;1,0>:f r11.0<1;1,0>:f", F, F, lambda a, b, *_: np.clip(a * b, 0, 1)
    ),
    "mad f": Op(
        three("mad", "f"), F, F, lambda a, b, c, _: (a.astype(np.float64) + b.astype(np.float64) * c).astype(F)
    ),
    "frc": Op(one("frc", "f", "f"), F, F, lambda a, *_: a - np.floor(a)),
    "rndd": Op(one("rndd", "f", "f"), F, F, lambda a, *_: np.floor(a)),
    "rndu": Op(one("rndu", "f", "f"), F, F, lambda a, *_: np.ceil(a)),
    "rnde": Op(one("rnde", "f", "f"), F, F, lambda a, *_: np.rint(a)),
    "rndz": Op(one("rndz", "f", "f"), F, F, lambda a, *_: np.trunc(a)),
    "math inv": Op(
        "math.inv ({n}|M0) r20.0<1>:f r10.0<1;1,0>:f", F, F, lambda a, *_: (1 / a.astype(np.float64)).astype(F)
    ),
    "math sqt": Op("math.sqt ({n}|M0) r20.0<1>:f (abs)r10.0<1;1,0>:f", F, F, lambda a, *_: np.sqrt(np.abs(a))),
    "add hf": Op(two("add", "hf"), HF, HF, lambda a, b, *_: a + b),
    "mul hf": Op(two("mul", "hf"), HF, HF, lambda a, b, *_: a * b),
    "hf to f": Op("mov ({n}|M0) r20.0<1>:f r10.0<1;1,0>:hf", HF, F, lambda a, *_: a.astype(F)),
    "f to hf": Op("mov ({n}|M0) r20.0<1>:hf r10.0<1;1,0>:f", F, HF, lambda a, *_: a.astype(HF)),
    "f to bf": Op("mov ({n}|M0) r20.0<1>:bf r10.0<1;1,0>:f", F, np.uint16, lambda a, *_: bf(a).view(np.uint16)),
    "bf to f": Op(
        "mov ({n}|M0) r20.0<1>:f r10.0<1;1,0>:bf",
        np.uint16,
        F,
        lambda a, *_: a.view(ml_dtypes.bfloat16).astype(F),
        ("xehpc",),
    ),
    "strided words": Op("mov ({n}|M0) r20.0<1>:d r10.1<2;1,0>:w", W, D, lambda a, *_: a[1::2]),
    "byte to dword": Op("mov ({n}|M0) r20.0<1>:d r10.0<4;1,0>:b", np.int8, D, lambda a, *_: a[::4]),
    "add q": Op("add ({h}|M0) r20.0<1>:q r10.0<1;1,0>:q r11.0<1;1,0>:q", I64, I64, lambda a, b, *_: a + b, ("xehpc",)),
    "shl q": Op("shl ({h}|M0) r20.0<1>:q r10.0<1;1,0>:q 13:w", I64, I64, lambda a, *_: a << 13, ("xehpc",)),
    "add df": Op(
        "add ({h}|M0) r20.0<1>:df r10.0<1;1,0>:df r11.0<1;1,0>:df",
        np.float64,
        np.float64,
        lambda a, b, *_: a + b,
        ("xehpc",),
    ),
    "mul and macl": Op(
        "mul ({n}|M0) acc0.0<1>:d r10.0<1;1,0>:d r11.0<2;1,0>:uw\n"
        "macl ({n}|M0) r20.0<1>:d r10.0<1;1,0>:d r11.0<1;1,0>:d",
        D,
        D,
        wide(lambda a, b, *_: a * b),
        ("xehpc",),
    ),
    "mul and mach": Op(
        "mul ({n}|M0) acc0.0<1>:d r10.0<1;1,0>:d r11.0<2;1,0>:uw\n"
        "mach ({n}|M0) r20.0<1>:d r10.0<1;1,0>:d r11.0<1;1,0>:d",
        D,
        D,
        wide(lambda a, b, *_: a * b >> 32),
        ("xehpc",),
    ),
    "high and low": Op(
        "mul ({n}|M0) acc0.0<1>:ud r10.0<1;1,0>:ud r11.0<2;1,0>:uw\n"
        "mach ({n}|M0) r21.0<1>:ud r10.0<1;1,0>:ud r11.0<1;1,0>:ud {{AccWrEn}}\n"
        "add ({n}|M0) r20.0<1>:ud acc0.0<1;1,0>:ud r21.0<1;1,0>:ud {{I@1}}",
        UD,
        UD,
        lambda a, b, *_: (a.astype(np.uint64) * b >> np.uint64(32)) + a.astype(np.uint64) * b,
        ("xehpg",),
    ),
    "addc": Op(
        "addc ({n}|M0) r21.0<1>:ud r10.0<1;1,0>:ud r11.0<1;1,0>:ud {{AccWrEn}}\n"
        "add ({n}|M0) r20.0<1>:ud acc0.0<1;1,0>:ud r12.0<1;1,0>:ud",
        UD,
        UD,
        lambda a, b, c, _: c.astype(I64) + (a.astype(I64) + b >> 32),
        ("xehpg",),
    ),
    "subb": Op(
        "subb ({n}|M0) r21.0<1>:ud r10.0<1;1,0>:ud r11.0<1;1,0>:ud {{AccWrEn}}\n"
        "add ({n}|M0) r20.0<1>:ud acc0.0<1;1,0>:ud r12.0<1;1,0>:ud",
        UD,
        UD,
        lambda a, b, c, _: c.astype(I64) + (a < b),
        ("xehpg",),
    ),
    "predicated": Op(
        "mov ({n}|M0) r20.0<1>:d r12.0<1;1,0>:d\n"
        "cmp ({n}|M0) (lt)f1.0 null<1>:d r10.0<1;1,0>:d r11.0<1;1,0>:d\n"
        "(f1.0) add ({n}|M0) r20.0<1>:d r20.0<1;1,0>:d 5:w {{I@2}}",
        D,
        D,
        wide(lambda a, b, c, _: c + 5 * (a < b)),
    ),
    "predicated sel": Op(
        "cmp ({n}|M0) (ge)f0.0 null<1>:f r10.0<1;1,0>:f r11.0<1;1,0>:f\n"
        "(~f0.0) sel ({n}|M0) r20.0<1>:f r10.0<1;1,0>:f r12.0<1;1,0>:f",
        F,
        F,
        lambda a, b, c, _: np.asarray(np.where(a < b, a, c)),
    ),
    "cmp result": Op(
        "cmp ({n}|M0) (ne)f0.0 r20.0<1>:d r10.0<1;1,0>:d r11.0<1;1,0>:d", D, D, lambda a, b, *_: -(a != b).astype(D)
    ),
    "flag as number": Op(
        "(W) mov (1|M0) f0.0<1>:ud 0x0:ud\n"
        "cmp ({n}|M0) (lt)f0.0 null<1>:d r10.0<1;1,0>:d r11.0<1;1,0>:d\n"
        "mov ({n}|M0) r20.0<1>:ud f0.0<0;1,0>:ud",
        D,
        UD,
        lambda a, b, *_: np.full(len(a), int(((a < b) << np.arange(len(a))).sum()), UD),
    ),
    "condition of a result": Op(
        "asr ({n}|M0) r21.0<1>:d r10.0<1;1,0>:d 1:w\n"
        "asr ({n}|M0) r22.0<1>:d r11.0<1;1,0>:d 1:w\n"
        "add ({n}|M0) (lt)f0.0 null<1>:d r21.0<1;1,0>:d r22.0<1;1,0>:d {{I@1}}\n"
        "(f0.0) sel ({n}|M0) r20.0<1>:d r12.0<1;1,0>:d r13.0<1;1,0>:d",
        D,
        D,
        lambda a, b, c, d: np.asarray(np.where((a >> 1) + (b >> 1) < 0, c, d)),
    ),
    "overflow of a sum": Op(
        "add ({n}|M0) (ov)f0.0 null<1>:ud r10.0<1;1,0>:ud r11.0<1;1,0>:ud\n"
        "(f0.0) sel ({n}|M0) r20.0<1>:ud r12.0<1;1,0>:ud r13.0<1;1,0>:ud",
        UD,
        UD,
        lambda a, b, c, d: np.asarray(np.where(a.astype(I64) + b >= 1 << 32, c, d)),
    ),
    "vector immediate": Op(
        "mov ({n}|M0) r21.0<1>:uw 0x76543210:uv\nmov ({n}|M0) r20.0<1>:ud r21.0<1;1,0>:uw {{I@1}}",
        D,
        UD,
        lambda a, *_: np.arange(len(a), dtype=UD) % 8,
    ),
    "vector immediate to dwords": Op(
        "(W) mov (4|M0) r20.0<1>:ud 0x7F5E3D1C:uv",
        D,
        UD,
        lambda a, *_: np.array([12, 13, 14, 15, *([0] * (len(a) - 4))], UD),
    ),
    "indirect": Op(
        "(W) mov (1|M0) a0.0<1>:uw 0x{row:x}:uw\nmov ({n}|M0) r20.0<1>:d r[a0.0,4]<0;1,0>:d {{A@1}}",
        D,
        D,
        lambda a, b, *_: np.full(len(a), b[1]),
    ),
    "channels off": Op(
        "cmp ({n}|M0) (lt)f0.0 null<1>:d r10.0<1;1,0>:d r11.0<1;1,0>:d\n"
        "(f0.0) if ({n}|M0) L1 L2\n"
        "mov ({n}|M0) r20.0<1>:d r12.0<1;1,0>:d\n"
        "else ({n}|M0) L2 L2\n"
        "L1:\n"
        "mov ({n}|M0) r20.0<1>:d r13.0<1;1,0>:d\n"
        "L2:\n"
        "endif ({n}|M0) L3\n"
        "L3:",
        D,
        D,
        lambda a, b, c, d: np.asarray(np.where(a < b, c, d)),
    ),
}


def data(kind: Any, size: int) -> Array:
    rng = np.random.default_rng(11)
    if np.dtype(kind).kind == "f":
        floats: Array = (rng.normal(size=size // np.dtype(kind).itemsize) * 8).astype(kind)
        return floats
    if kind == np.uint16:
        return bf(rng.normal(size=size // 2)).view(np.uint16)
    raw: Array = rng.integers(0, 256, size).astype(np.uint8).view(kind)
    raw[:3] = 0
    return raw


@pytest.mark.parametrize(("name", "platform"), [(n, p) for n, op in OPS.items() for p in BODIES if p in op.platforms])
def test_operation(sim: Any, name: str, platform: str) -> None:
    op, lanes = OPS[name], LANES[platform]
    row = 4 * lanes
    given, out = data(op.kind, 4 * row), np.zeros(row, np.uint8)
    text = op.text.format(n=lanes, h=lanes // 2, row=11 * row)
    if text.startswith("math") and platform == "xehpg":
        text += " {$3}\n(W) sync.nop null {$3.dst}"
    report = sim.run(platform, BODIES[platform].format(op=text), {"in": given, "out": out})
    assert not report.findings, "\n".join(map(str, report.findings))
    values = given.reshape(4, -1)
    count = lanes * 4 // max(np.dtype(op.result).itemsize, 4)
    each = np.dtype(op.result).itemsize
    if each == 8:
        count = lanes // 2
    with np.errstate(all="ignore"):
        want = np.asarray(op.want(*values))[: count if each >= 4 else lanes]
    if np.dtype(op.result).kind in "iu" and want.dtype != op.result:
        want = want.astype(np.int64).astype(op.result) if want.dtype.kind != "u" else want.astype(op.result)
    np.testing.assert_array_equal(out.view(op.result)[: len(want)], want)


@pytest.mark.parametrize(
    "text",
    [
        "add ({n}|M0) (ov)f0.0 null<1>:d r10.0<1;1,0>:d r11.0<1;1,0>:d",
        "add ({n}|M0) (ov)f0.0 null<1>:ud -r10.0<1;1,0>:ud r11.0<1;1,0>:ud",
        "mul ({n}|M0) (ov)f0.0 null<1>:ud r10.0<1;1,0>:ud r11.0<2;1,0>:uw",
    ],
)
def test_overflow_is_known_of_sums_without_signs_only(sim: Any, text: str) -> None:
    row = 4 * LANES["xehpg"]
    buffers = {"in": np.zeros(4 * row, np.uint8), "out": np.zeros(row, np.uint8)}
    with pytest.raises(Unsupported, match="overflow of other than a sum of dwords without signs"):
        sim.run("xehpg", BODIES["xehpg"].format(op=text.format(n=LANES["xehpg"])), buffers)
