"""Arithmetic of f64 and f32, their conversions, comparisons and packed forms, on every target."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.sim.numbers import fma_f64

Array = npt.NDArray[Any]
Meaning = Callable[[Array, Array, Array], Array]
TARGETS = ("gfx90a", "gfx942", "gfx950")
RNG = np.random.default_rng(21)
AWKWARD = [0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 2**31, -(2**31) - 1, 2**32, 1e300, -1e-300, 5e-324, np.inf, -np.inf]
DOUBLES = np.concatenate([np.array([*AWKWARD, np.nan], np.float64), RNG.normal(0, 1000, 47)])
A = DOUBLES
B = np.concatenate([RNG.permutation(DOUBLES)[:-8], DOUBLES[-8:]])  # some lanes with equal numbers
C = RNG.permutation(DOUBLES)
with np.errstate(all="ignore"):
    SINGLES = [x.astype(np.float32) for x in (A, B, C)]


def exact_fma(a: Array, b: Array, c: Array) -> Array:
    """One rounding, by rational arithmetic."""

    def one(x: float, y: float, z: float) -> float:
        if not all(map(math.isfinite, (x, y, z))) or x == 0 or y == 0:
            return float(np.float64(x) * y + z)
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        try:
            return float(exact)
        except OverflowError:
            return math.inf if exact > 0 else -math.inf

    return np.array([one(*numbers) for numbers in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)])


def saturated(low: int, high: int) -> Meaning:
    return lambda a, b, c: np.array(
        [0 if math.isnan(x) else int(min(max(x, low), high)) & 0xFFFFFFFF for x in a.tolist()], np.uint32
    )


def flag(text: str, meaning: Callable[[Array, Array], Array]) -> tuple[str, Meaning]:
    """A comparison into VCC, which then selects halves of a and b: a conditional move of a pair."""
    select = "v_cndmask_b32_e32 v10, v6, v4, vcc\n v_cndmask_b32_e32 v11, v7, v5, vcc"
    return f"{text}\n s_nop 1\n {select}", lambda a, b, c: np.where(meaning(a, b), a, b)


#: v[4:5], v[6:7], v[8:9] are a, b, c; the result is in v[10:11], or in v10 where the meaning gives words or f32.
F64: dict[str, Meaning] = {
    "v_add_f64 v[10:11], v[4:5], v[6:7]": lambda a, b, c: a + b,
    "v_add_f64 v[10:11], -v[4:5], |v[6:7]|": lambda a, b, c: -a + np.abs(b),
    "v_add_f64 v[10:11], v[4:5], 1.0": lambda a, b, c: a + 1,
    "v_mul_f64 v[10:11], v[4:5], v[6:7]": lambda a, b, c: a * b,
    "v_mul_f64 v[10:11], s[24:25], v[6:7]": lambda a, b, c: 3 * b,
    "v_fma_f64 v[10:11], v[4:5], v[6:7], v[8:9]": exact_fma,
    "v_fma_f64 v[10:11], v[4:5], -v[6:7], v[4:5]": lambda a, b, c: exact_fma(a, -b, a),
    "v_fma_f64 v[10:11], v[4:5], v[4:5], -4.0": lambda a, b, c: exact_fma(a, a, np.full_like(a, -4)),
    "v_mov_b32_e32 v10, v8\n v_mov_b32_e32 v11, v9\n v_fmac_f64_e32 v[10:11], v[4:5], v[6:7]": exact_fma,
    "v_min_f64 v[10:11], v[4:5], v[6:7]": lambda a, b, c: np.fmin(a, b),
    "v_max_f64 v[10:11], v[4:5], v[6:7]": lambda a, b, c: np.fmax(a, b),
    "v_max_f64 v[10:11], v[4:5], 0": lambda a, b, c: np.fmax(a, 0),
    "v_ldexp_f64 v[10:11], v[4:5], -3": lambda a, b, c: np.ldexp(a, -3),
    "v_floor_f64_e32 v[10:11], v[4:5]": lambda a, b, c: np.floor(a),
    "v_ceil_f64_e32 v[10:11], v[4:5]": lambda a, b, c: np.ceil(a),
    "v_trunc_f64_e32 v[10:11], v[4:5]": lambda a, b, c: np.trunc(a),
    "v_rndne_f64_e32 v[10:11], v[4:5]": lambda a, b, c: np.rint(a),
    "v_cvt_f32_f64_e32 v10, v[4:5]": lambda a, b, c: a.astype(np.float32),
    "v_cvt_f32_f64_e64 v10, -v[4:5]": lambda a, b, c: (-a).astype(np.float32),
    "v_cvt_f64_f32_e32 v[10:11], v5": lambda a, b, c: high(a).view(np.float32).astype(np.float64),
    "v_cvt_i32_f64_e32 v10, v[4:5]": saturated(-(1 << 31), (1 << 31) - 1),
    "v_cvt_u32_f64_e32 v10, v[4:5]": saturated(0, (1 << 32) - 1),
    "v_cvt_f64_i32_e32 v[10:11], v5": lambda a, b, c: high(a).view(np.int32).astype(np.float64),
    "v_cvt_f64_u32_e32 v[10:11], v5": lambda a, b, c: high(a).astype(np.float64),
    **dict(
        [
            flag("v_cmp_lt_f64_e32 vcc, v[4:5], v[6:7]", lambda a, b: a < b),
            flag("v_cmp_nle_f64_e32 vcc, v[4:5], v[6:7]", lambda a, b: ~(a <= b)),
            flag("v_cmp_eq_f64_e32 vcc, v[4:5], v[6:7]", lambda a, b: a == b),
            flag("v_cmp_lg_f64_e32 vcc, v[4:5], v[6:7]", lambda a, b: (a < b) | (a > b)),
            flag("v_cmp_u_f64_e32 vcc, v[4:5], v[6:7]", lambda a, b: np.isnan(a) | np.isnan(b)),
            flag("v_cmp_gt_f64_e64 vcc, |v[4:5]|, 2.0", lambda a, b: np.abs(a) > 2),
            flag("v_cmp_class_f64_e64 vcc, v[4:5], 3", lambda a, b: np.isnan(a)),
        ]
    ),
    "v_mov_b32_e32 v10, 0\n v_mov_b32_e32 v11, 0x40080000\n v_add_f64 v[10:11], v[10:11], v[4:5]": lambda a, b, c: (
        3 + a
    ),
}
LATER: dict[str, Meaning] = {
    "v_mov_b64_e32 v[10:11], v[6:7]": lambda a, b, c: b,
    "v_mov_b64_e32 v[10:11], 1.0": lambda a, b, c: np.ones_like(a),
}


def high(a: Array) -> Array:
    return np.ascontiguousarray((a.view(np.uint64) >> np.uint64(32)).astype(np.uint32))


def kernel(lines: list[str]) -> str:
    text = ["s_load_dwordx4 s[4:7], s[0:1], 0x0", "v_lshlrev_b32_e32 v1, 3, v0", "s_waitcnt lgkmcnt(0)"]
    text += [f"global_load_dwordx2 v[{4 + 2 * k}:{5 + 2 * k}], v1, s[4:5] offset:{512 * k}" for k in range(3)]
    text += ["s_waitcnt vmcnt(0)", "s_mov_b32 s24, 0", "s_mov_b32 s25, 0x40080000"]
    for line in lines:
        text += ["v_mov_b32_e32 v10, 0", "v_mov_b32_e32 v11, 0", "s_nop 3", line, "s_nop 4"]
        text += ["global_store_dwordx2 v1, v[10:11], s[6:7]", "s_add_u32 s6, s6, 0x200", "s_addc_u32 s7, s7, 0"]
    return "\n".join(text)


def results(sim: Any, arch: str, lines: list[str], inputs: list[Array]) -> Array:
    """[lines, 64] pairs as 64-bit words; inputs are three arrays of 64 pairs."""
    out = np.zeros((len(lines), 64), np.uint64)
    report = sim.run(arch, kernel(lines), {"in": np.stack(inputs).view(np.uint64), "out": out})
    assert not report.findings, str(report.findings[0])
    return out


def compare(table: dict[str, Meaning], got: Array, operands: tuple[Array, Array, Array]) -> None:
    """Each line's result against its meaning: equal bits, except that any NaN will do for a NaN."""
    for number, (line, meaning) in enumerate(table.items()):
        with np.errstate(all="ignore"):
            want = meaning(*operands)
        have = got[number] if want.dtype.itemsize == 8 else got[number].astype(np.uint32)
        bits = want.view(have.dtype)
        same = have == bits
        if want.dtype.kind == "f":
            same |= np.isnan(want) & np.isnan(have.view(want.dtype))
            zero = (want == 0) & (have.view(want.dtype) == 0)
            same |= zero if "min" in line or "max" in line else False  # the sign of a zero is either's
        assert same.all(), (line, [x[~same] for x in operands], have[~same].view(want.dtype), want[~same])


@pytest.mark.parametrize("arch", TARGETS)
def test_doubles(sim: Any, arch: str) -> None:
    table = F64 if arch == "gfx90a" else {**F64, **LATER}
    compare(table, results(sim, arch, list(table), [A, B, C]), (A, B, C))


def test_fused_double_rounding() -> None:
    """Sums whose rounding only the lowest bits of the product decide."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 4000))
    z = -x * y * (1 + rng.integers(-3, 4, 4000) * 2.0 ** -rng.integers(30, 60, 4000).astype(np.float64))
    z[::3] = rng.normal(size=len(z[::3])) * 2.0 ** rng.integers(-80, 80, len(z[::3])).astype(np.float64)
    z[1::3] = 2.0 ** rng.integers(50, 60, len(z[1::3])).astype(np.float64)
    eps = 2.0**-52
    x[:4], y[:4] = (1 + eps, -1 - eps, 1 + eps, 1 + eps), (1 - eps, 1 - eps, 1 - eps, eps - 1)
    z[:4] = 2.0**53 + 2, -(2.0**53) - 2, 2.0**53 + 6, 2.0**53 + 2  # ties but for the last bit of the product
    np.testing.assert_array_equal(fma_f64(x, y, z), exact_fma(x, y, z))
    assert (fma_f64(x, y, z) != x * y + z).any()


def pair(low: Array, up: Array) -> Array:
    """Two f32 results as the 64-bit words of a register pair."""
    words = np.stack([low.astype(np.float32), up.astype(np.float32)], axis=-1)
    return np.ascontiguousarray(words).view(np.uint64)[:, 0]


def single_fma(a: Array, b: Array, c: Array) -> Array:
    """f32, one rounding: through f64 arithmetic where it is exact, rounded to odd by rationals elsewhere."""

    def one(x: float, y: float, z: float) -> np.float32:
        if not all(map(math.isfinite, (x, y, z))) or x == 0 or y == 0:
            return np.float32(np.float64(x) * y + z)
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        best = np.float32(float(exact))
        near = [best, np.nextafter(best, np.float32(-9e9)), np.nextafter(best, np.float32(9e9))]
        if not np.isfinite(best):
            return best
        return min(near, key=lambda n: (abs(Fraction(float(n)) - exact), int(n.view(np.uint32)) & 1))

    with np.errstate(all="ignore"):
        return np.array([one(*v) for v in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)], np.float32)


L, M, N = (np.roll(x, 7) for x in SINGLES)  # the upper words of the pairs
#: Packed and single f32; a, b, c are the lower words, L, M, N the upper ones; pairs come as 64-bit words.
F32: dict[str, Meaning] = {
    "v_pk_add_f32 v[10:11], v[4:5], v[6:7]": lambda a, b, c: pair(a + b, L + M),
    "v_pk_add_f32 v[10:11], v[4:5], v[6:7] neg_lo:[1,0] neg_hi:[0,1]": lambda a, b, c: pair(b - a, L - M),
    "v_pk_mul_f32 v[10:11], v[4:5], v[6:7] op_sel_hi:[1,0]": lambda a, b, c: pair(a * b, L * b),
    "v_pk_mul_f32 v[10:11], v[4:5], v[6:7] op_sel:[1,0] op_sel_hi:[0,1]": lambda a, b, c: pair(L * b, a * M),
    "v_pk_mul_f32 v[10:11], v[4:5], s[24:25] op_sel:[0,1]": lambda a, b, c: pair(
        a * np.float32(2.125), L * np.float32(2.125)
    ),
    "v_pk_fma_f32 v[10:11], v[4:5], v[6:7], v[8:9]": lambda a, b, c: pair(single_fma(a, b, c), single_fma(L, M, N)),
    "v_mov_b32_e32 v10, v8\n v_fmac_f32_e32 v10, v4, v6": lambda a, b, c: single_fma(a, b, c),
    "v_fma_f32 v10, -v4, |v6|, v8": lambda a, b, c: single_fma(-a, np.abs(b), c),
    "v_add_f32_e32 v10, v4, v6": lambda a, b, c: a + b,
    "v_mul_f32_e64 v10, v4, v6 div:2": lambda a, b, c: a * b * np.float32(0.5),
    "v_max3_f32 v10, v4, v6, 1.0": lambda a, b, c: np.fmax(np.fmax(a, b), np.float32(1)),
    "v_cndmask_b32_e64 v10, v4, -v6, s[20:21]": lambda a, b, c: np.where(np.arange(64) % 2 == 1, -b, a),
    "v_cmp_ge_f32_e32 vcc, v4, v6\n s_nop 1\n v_cndmask_b32_e32 v10, v6, v4, vcc": lambda a, b, c: np.where(
        a >= b, a, b
    ),
    "v_cvt_f16_f32_e32 v10, v4\n s_nop 1\n v_cvt_f32_f16_e32 v10, v10": lambda a, b, c: a.astype(np.float16).astype(
        np.float32
    ),
    "v_cvt_f16_f32_e32 v10, v4\n v_cvt_f16_f32_e32 v11, v6\n s_nop 1\n v_pack_b32_f16 v10, v10, v11\n"
    " v_mov_b32_e32 v11, 0": lambda a, b, c: halves(a, b, np.float16),
    "v_cvt_f16_f32_e32 v10, v4\n s_nop 1\n v_pack_b32_f16 v10, v10, -v10\n v_mov_b32_e32 v11, 0": lambda a, b, c: (
        halves(a, -a, np.float16)
    ),
}
LAST: dict[str, Meaning] = {
    "v_cvt_pk_bf16_f32 v10, v4, v6": lambda a, b, c: halves(a, b, ml_dtypes.bfloat16),
    "v_cvt_pk_bf16_f32 v10, -v4, |v6|": lambda a, b, c: halves(-a, np.abs(b), ml_dtypes.bfloat16),
    "v_cvt_pk_f16_f32 v10, v4, v6": lambda a, b, c: halves(a, b, np.float16),
}


def halves(a: Array, b: Array, dtype: Any) -> Array:
    low, up = (x.astype(dtype).view(np.uint16).astype(np.uint32) for x in (a, b))
    result: Array = low | up << 16
    return result


@pytest.mark.parametrize("arch", TARGETS)
def test_singles(sim: Any, arch: str) -> None:
    """NaNs are left out, since packed results are compared by their bits."""
    table = {**F32, **LAST} if arch == "gfx950" else F32
    pairs = [
        np.ascontiguousarray(np.stack(two, axis=-1)).view(np.uint64)[:, 0]
        for two in zip(SINGLES, (L, M, N), strict=True)
    ]
    out = np.zeros((len(table), 64), np.uint64)
    setup = "s_mov_b32 s20, 0xaaaaaaaa\n s_mov_b32 s21, 0xaaaaaaaa\n"
    report = sim.run(arch, setup + kernel(list(table)), {"in": np.stack(pairs), "out": out})
    assert not report.findings, str(report.findings[0])
    for number, (line, meaning) in enumerate(table.items()):
        with np.errstate(all="ignore"):
            want = meaning(*SINGLES)
        have = out[number] if want.dtype == np.uint64 else out[number].astype(np.uint32).view(want.dtype)
        if want.dtype == np.uint64:
            want, have = (x.view(np.float32) for x in (want, have))
        same = have.view(np.uint32) == want.view(np.uint32)
        if want.dtype.kind == "f":
            same |= np.isnan(want) & np.isnan(have)
        else:
            same |= np.isnan(SINGLES[0]) | np.isnan(SINGLES[1])  # any NaN will do
        assert same.all(), (line, have[~same], want[~same])


def test_inactive_lanes_keep_pairs(sim: Any) -> None:
    line = "v_mov_b32_e32 v10, 1\n v_mov_b32_e32 v11, 2\n s_mov_b64 exec, 0xff\n v_add_f64 v[10:11], v[4:5], v[6:7]\n"
    (got,) = results(sim, "gfx942", [line + "s_mov_b64 exec, -1"], [A, B, C])
    with np.errstate(all="ignore"):
        want = np.where(np.arange(64) < 8, (A + B).view(np.uint64), np.uint64(2 << 32 | 1))
    np.testing.assert_array_equal(got, want)


#: What LLVM makes of a quotient (AMDGPUISelLowering, LowerFDIV32 and LowerFDIV64); {t} is the type.
DIVISION = """v_div_scale_{t} {den}, s[20:21], {b}, {b}, {a}
  v_rcp_{t}_e32 {inv}, {den}
  s_nop 0
  v_div_scale_{t} {numer}, vcc, {a}, {b}, {a}
  v_fma_{t} {r}, -{den}, {inv}, 1.0
  v_fma_{t} {inv}, {r}, {inv}, {inv}
  v_fma_{t} {r}, -{den}, {inv}, 1.0
  v_fma_{t} {inv}, {r}, {inv}, {inv}
  v_mul_{t} {q}, {numer}, {inv}
  v_fma_{t} {r}, -{den}, {q}, {numer}
  {more}
  s_nop 4
  v_div_fmas_{t} {q}, {r}, {inv}, {q}
  v_div_fixup_{t} {d}, {q}, {b}, {a}"""
REFINE = "v_fma_{t} {q}, {r}, {inv}, {q}\n v_fma_{t} {r}, -{den}, {q}, {numer}"


@pytest.mark.parametrize(
    ("kind", "dtype", "least", "most"), [("f32", np.float32, -149, 127), ("f64", np.float64, -1074, 1023)]
)
def test_division_is_right_to_the_limits(sim: Any, kind: str, dtype: Any, least: int, most: int) -> None:
    """Quotients of numbers of all sizes, denormal ones too, correctly rounded; of f64 those not denormal."""
    rng = np.random.default_rng(5)
    a, b = (np.ldexp(rng.uniform(1, 2, 64), rng.integers(least, most, 64)).astype(dtype) for _ in range(2))
    a[:8] = (0, -0.0, np.inf, 1, -3, np.finfo(dtype).max, np.finfo(dtype).tiny, np.ldexp(1.0, least))
    b[:8] = (1, 5, 2, 0, np.inf, np.ldexp(1.0, least), np.finfo(dtype).max, np.finfo(dtype).max)
    wide = kind == "f64"
    places = {name: 4 + 2 * at for at, name in enumerate(("a", "b", "d", "den", "numer", "inv", "r", "q"))}
    names = {name: f"v[{at}:{at + 1}]" if wide else f"v{at}" for name, at in places.items()}
    size = "dwordx2" if wide else "dword"
    body = DIVISION.format(t=kind, more=REFINE.format(t=kind, **names), **names)
    body = f"""s_load_dwordx4 s[4:7], s[0:1], 0x0
      v_lshlrev_b32_e32 v1, {3 if wide else 2}, v0
      s_waitcnt lgkmcnt(0)
      global_load_{size} {names["a"]}, v1, s[4:5]
      global_load_{size} {names["b"]}, v1, s[4:5] offset:{a.nbytes}
      s_waitcnt vmcnt(0)
      {body}
      s_nop 1
      global_store_{size} v1, {names["d"]}, s[6:7]"""
    got = np.zeros(64, dtype)
    report = sim.run("gfx942", body, {"in": np.concatenate((a, b)), "out": got})
    assert not report.findings, str(report.findings[0])
    with np.errstate(all="ignore"):
        want = a / b
    sure = (np.abs(want) >= np.finfo(dtype).tiny) | (want == 0) | (not wide)
    np.testing.assert_array_equal(got[sure], want[sure])
    assert sure.sum() > 50


def test_a_product_beyond_f64_leaves_an_infinite_addend() -> None:
    a, b, c = np.array([1e300, 1e300, 1e300, np.inf]), np.array([-1e300, 1e300, 1e300, -1.0]), np.array([np.inf] * 4)
    c[2] = np.nan
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(fma_f64(a, b, c), [np.inf, np.inf, np.nan, np.nan])
