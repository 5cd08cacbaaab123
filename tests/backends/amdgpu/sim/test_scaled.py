"""Conversions that scale or round stochastically, element by element against exact fractions and tables of codes."""

from __future__ import annotations

import re
from bisect import bisect_right
from fractions import Fraction
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[Any]
RNG = np.random.default_rng(23)
TYPES: dict[str, Any] = {
    "fp8": ml_dtypes.float8_e4m3fn,
    "bf8": ml_dtypes.float8_e5m2,
    "fp6": ml_dtypes.float6_e2m3fn,
    "bf6": ml_dtypes.float6_e3m2fn,
    "fp4": ml_dtypes.float4_e2m1fn,
    "fp8 fnuz": ml_dtypes.float8_e4m3fnuz,
    "bf8 fnuz": ml_dtypes.float8_e5m2fnuz,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
}
BITS = {"fp8": 8, "bf8": 8, "fp6": 6, "bf6": 6, "fp4": 4, "f16": 16, "bf16": 16, "f32": 32}
NARROW = ("fp8", "bf8", "fp6", "bf6", "fp4")
FILL = 0xA5C3961E  #: what a destination holds before
OLD = sum(FILL << 32 * n for n in range(32))
#: Mnemonics without their prefix, with what op_sel may pick: parts of the destination ("d") or of the source ("s").
NAMES = {
    **{f"scalef32_pk_{n}_{w}": "d2" for n in ("fp8", "bf8") for w in ("f32", "f16", "bf16")},
    **{f"scalef32_sr_{n}_{w}": "d4" for n in ("fp8", "bf8") for w in ("f32", "f16", "bf16")},
    **{f"scalef32_{s}pk_fp4_{w}": "d4" for s in ("", "sr_") for w in ("f32", "f16", "bf16")},
    **{f"scalef32_pk_{w}_{n}": "s2" for n in ("fp8", "bf8") for w in ("f32", "f16", "bf16")},
    **{f"scalef32_pk_{w}_fp4": "s4" for w in ("f32", "f16", "bf16")},
    **{f"scalef32_{w}_{n}": "s4" for n in ("fp8", "bf8") for w in ("f32", "f16")},
    **{f"scalef32_pk32_{w}_{n}": "" for n in ("fp6", "bf6") for w in ("f32", "f16", "bf16")},
    **{f"scalef32_{s}pk32_{n}_{w}": "" for s in ("", "sr_") for n in ("fp6", "bf6") for w in ("f16", "bf16")},
    **{f"scalef32_sr_pk32_{n}_f32": "" for n in ("fp6", "bf6")},
    **{f"scalef32_2xpk16_{n}_f32": "" for n in ("fp6", "bf6")},
    **{f"sr_{n}_f32": "d4" for n in ("fp8", "bf8")},
    **{f"sr_{n}_f32": "d2" for n in ("f16", "bf16")},
}
PARTS = re.compile(r"(scalef32_)?(sr_)?(pk_|pk32_|2xpk16_|)(\w+)_(\w+)$")


@cache
def values_of(kind: str) -> tuple[list[float], list[int]]:
    """The finite numbers of a format that are not negative, in order, and their bits."""
    bits = BITS[kind.split()[0]]
    raw = np.arange(1 << (bits - 1), dtype=np.uint8 if bits <= 8 else np.uint16)
    with np.errstate(invalid="ignore"):
        numbers = raw.view(TYPES[kind]).astype(np.float64)
    finite = sorted((float(v), int(c)) for v, c in zip(numbers, raw, strict=True) if np.isfinite(v))
    return [v for v, _ in finite], [c for _, c in finite]


def rounded(value: float, kind: str, random: int | None) -> int:
    """The bits of a number in a format: the nearest, ties to even bits, or up where the random fraction carries."""
    values, codes = values_of(kind)
    sign = int(np.signbit(value)) << (BITS[kind.split()[0]] - 1)
    above = bisect_right(values, abs(value))
    if above == len(values):
        return sign | codes[-1]
    low, high, code = Fraction(values[above - 1]), Fraction(values[above]), codes[above - 1]
    part = (abs(Fraction(value)) - low) / (high - low)
    if random is None:
        up = part > Fraction(1, 2) or (part == Fraction(1, 2) and code & 1)
    else:
        up = part + Fraction(random, 1 << 32) >= 1
    found = codes[above] if up else code
    return found if found == 0 and "fnuz" in kind else sign | found


def prng(state: int) -> int:
    return (state << 1 & 0xFFFFFFFF) ^ (197 if state >> 31 else 0)


def count_of(name: str) -> int:
    return 32 if "pk32" in name or "2xpk16" in name else 2 if "pk_" in name else 1


def field(words: Array, place: int, bits: int) -> int:
    whole = sum(int(word) << 32 * n for n, word in enumerate(words))
    return whole >> place & ((1 << bits) - 1)


def expected(name: str, part: int, arch: str, x: Array, y: Array, random: int, scale: float) -> int:
    """All 1024 bits of the destination for a lane's 32 words of either source."""
    match = PARTS.match(name)
    assert match is not None
    count, to, source = count_of(name), match[4], match[5]
    kind = to + (" fnuz" if arch == "gfx942" else "")
    words, state, result = np.concatenate((x, y)), random, OLD
    width, from_bits = BITS[to], BITS[source]
    wide = source in NARROW
    start = 0 if wide or count == 32 else part * width * count
    for number in range(count):
        place = number * from_bits + (part * from_bits * count if wide and count < 32 else 0)
        if "2xpk16" in name:
            place = 32 * (number // 2) + (0 if number % 2 == 0 else 1024)
        elif name.startswith("scalef32_pk_") and source == "f32":
            place = 1024 * number
        raw = np.array(field(words, place, from_bits), {32: np.uint32, 16: np.uint16}.get(from_bits, np.uint8))
        value = float(raw.view(TYPES[source]).astype(np.float64))
        if wide:
            with np.errstate(over="ignore"):
                target = np.float64(value * scale).astype(TYPES[to])
            code = int(target.view({32: np.uint32, 16: np.uint16}[width]))
        else:
            code = rounded(value / scale, kind, state if match[2] else None)
        at = start + number * width
        result = result & ~(((1 << width) - 1) << at) | code << at
        state = prng(state)
    return result


def lines(names: dict[str, str]) -> list[tuple[str, int, str]]:
    found = []
    for name, parts in names.items():
        match = PARTS.match(name)
        assert match is not None
        count, to, source = count_of(name), match[4], match[5]
        bits = BITS[to] * count
        sources = [BITS[source] * count]
        if source == "f32" and match[3] == "pk_" and not match[2]:
            sources = [32, 32]
        elif match[3] == "2xpk16_":
            sources = [512, 512]
        operands = [register(96, bits)]
        operands += [register(first, size) for first, size in zip((32, 64), sources)]
        operands += ["v20"] * bool(match[2]) + ["v21"] * bool(match[1])
        for part in range(int(parts[1:] or 1)):
            low, high = part & 1, part >> 1
            select = {"": "", "s2": f"op_sel:[{low},0,0]", "s4": f"op_sel:[{low},{high},0]"}.get(parts, "")
            if parts[:1] == "d":
                picks = [0] * len(operands)
                picks[-1] = high if parts == "d4" else low
                if parts == "d4":
                    picks = [0, 0, low, high]
                select = f"op_sel:[{','.join(map(str, picks))}]"
            found.append((name, part, f"v_cvt_{name} {', '.join(operands)} {select if part else ''}"))
    return found


def register(first: int, bits: int) -> str:
    count = max(bits // 32, 1)
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


SETUP = """
  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_mul_u32_u24_e32 v3, 264, v0
  v_lshlrev_b32_e32 v2, 7, v0
  s_waitcnt lgkmcnt(0)
"""


@pytest.mark.parametrize(("arch", "names"), [("gfx950", NAMES), ("gfx942", {"sr_fp8_f32": "d4", "sr_bf8_f32": "d4"})])
def test_every_element(sim: Any, arch: str, names: dict[str, str]) -> None:
    """Under MODE.FP16_OVFL, so that all formats saturate.

    Sources in v[32:63] and v[64:95], the random number in v20, the scale in v21, results in v[96:127].
    """
    cases = lines(names)
    body = SETUP
    for at in range(0, 64, 4):
        body += f"  global_load_dwordx4 v[{32 + at}:{35 + at}], v3, s[4:5] offset:{4 * at}\n"
    body += "  global_load_dwordx2 v[20:21], v3, s[4:5] offset:256\n  s_waitcnt vmcnt(0)\n"
    for number, (_, _, text) in enumerate(cases):
        body += "".join(f"  v_mov_b32_e32 v{96 + n}, 0x{FILL:x}\n" for n in range(32)) + f"  {text}\n  s_nop 1\n"
        body += f"  s_add_u32 s8, s6, {8192 * number}\n  s_addc_u32 s9, s7, 0\n"
        for at in range(0, 32, 4):
            body += f"  global_store_dwordx4 v2, v[{96 + at}:{99 + at}], s[8:9] offset:{4 * at}\n"
    data = np.zeros((64, 66), np.uint32)
    data[:, :64] = (RNG.normal(0, 3, (64, 64)).astype(np.float32)).view(np.uint32)
    data[::3, :64] = RNG.integers(0, 1 << 32, (22, 64), np.uint32) & 0xBDFFBDFF | 0x3C003C00
    data[:, :64] &= np.uint32(0xFFFFBFFF)  # no f16 beyond 2 in low halves
    data[:, 64] = RNG.integers(0, 1 << 32, 64, np.uint32)
    scales = np.ldexp(1.0, RNG.integers(-2, 3, 64))
    data[:, 65] = (scales * 1.25).astype(np.float32).view(np.uint32)
    out = np.zeros((len(cases), 64, 32), np.uint32)
    report = sim.run(arch, sim.Source(body, vgprs=128), {"in": data, "out": out})
    assert not report.findings, str(report.findings[0])
    for number, (name, part, text) in enumerate(cases):
        for lane in range(0, 64, 31 if count_of(name) == 32 else 7):
            row = data[lane]
            scale = float(scales[lane]) if name.startswith("scale") else 1.0
            want = expected(name, part, arch, row[:32], row[32:64], int(row[64]), scale)
            got = sum(int(word) << 32 * n for n, word in enumerate(out[number, lane]))
            assert got == want, (text, lane, hex(got ^ want))
