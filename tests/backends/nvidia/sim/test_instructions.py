"""Each instruction gives what exact arithmetic of Python gives, on random and special values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.simulation import SimReport

Run = Callable[..., SimReport]
Text = Callable[..., str]
Array = npt.NDArray[Any]
RNG = np.random.default_rng(11)
COUNT = 256
_REGISTERS = {"b16": "h", "b32": "r", "b64": "rd", "f32": "f", "f64": "d", "pred": "p"}


def _register(kind: str, number: int) -> str:
    bits = kind if kind in _REGISTERS else f"b{kind[1:]}"
    return f"%{_REGISTERS[bits]}{number}"


def apply(run: Run, text: Text, line: str, result: str, *inputs: tuple[str, Array]) -> Array:
    """Return the results of an instruction; `{d}` is its destination, `{0}`, `{1}`, .. are its sources."""
    names = [_register(kind, 10 + number) for number, (kind, _) in enumerate(inputs)]
    body = []
    for number, ((_, values), name) in enumerate(zip(inputs, names, strict=True)):
        size = values.dtype.itemsize
        body.append(f"mul.wide.u32 %rd1, %r0, {size}; add.u64 %rd2, %a{number + 1}, %rd1;")
        body.append(f"ld.global.b{8 * size} {name}, [%rd2];")
    into = _register(result, 5)
    body.append(line.format(*names, d=into))
    width = 32 if result == "pred" else int(result.lstrip("bsuf"))
    if result == "pred":
        body.append("selp.b32 %r5, 1, 0, %p5;")
        into = "%r5"
    body.append(f"mul.wide.u32 %rd1, %r0, {width // 8}; add.u64 %rd2, %a0, %rd1; st.global.b{width} [%rd2], {into};")
    kind = {"f16": np.uint16, "f32": np.float32, "f64": np.float64, "pred": np.uint32}.get(result)
    count = len(inputs[0][1])
    out = np.zeros(count, kind or np.dtype(f"{'i' if result[0] == 's' else 'u'}{width // 8}"))
    report = run(text("\n".join(body), len(inputs) + 1), out, *(v.copy() for _, v in inputs), block=(count, 1, 1))
    assert not report.findings, "\n".join(map(str, report.findings))
    return out


def words(bits: int, *, signed: bool = False) -> Array:
    """Return random integers of all magnitudes, with the special ones."""
    raw = [int(v) >> int(s) for v, s in zip(RNG.integers(0, 1 << 63, COUNT), RNG.integers(0, 63, COUNT), strict=True)]
    raw[:8] = [0, 1, (1 << bits) - 1, 1 << bits - 1, (1 << bits - 1) - 1, 2, 31, 32]
    unsigned = np.array([v & (1 << bits) - 1 for v in raw], f"u{bits // 8}")
    RNG.shuffle(unsigned)
    return unsigned.view(f"i{bits // 8}") if signed else unsigned


def singles(dtype: Any = np.float32) -> Array:
    """Return floats of many magnitudes with zeros, infinities, NaN and subnormals."""
    scale = RNG.integers(-20, 12 if dtype == np.float16 else 20, COUNT)
    values = (RNG.standard_normal(COUNT) * 2.0**scale).astype(dtype)
    tiny = float(np.finfo(dtype).smallest_subnormal) if dtype in (np.float32, np.float64) else 6e-8
    values[:12] = [0, -0.0, np.inf, -np.inf, np.nan, tiny, -5 * tiny, 1, -1, 0.5, 1.5, 2.5]
    RNG.shuffle(values)
    return values


def _wrapped(value: int, bits: int, *, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> bits - 1 else value


INTEGERS: list[tuple[str, str, int, Callable[..., int]]] = [
    ("add", "usb", 2, lambda a, b, n: a + b),
    ("sub", "us", 2, lambda a, b, n: a - b),
    ("mul.lo", "us", 2, lambda a, b, n: a * b),
    ("mul.hi", "us", 2, lambda a, b, n: a * b >> n),
    ("mad.lo", "us", 3, lambda a, b, c, n: a * b + c),
    ("mad.hi", "us", 3, lambda a, b, c, n: (a * b >> n) + c),
    ("min", "us", 2, lambda a, b, n: min(a, b)),
    ("max", "us", 2, lambda a, b, n: max(a, b)),
    ("and", "b", 2, lambda a, b, n: a & b),
    ("or", "b", 2, lambda a, b, n: a | b),
    ("xor", "b", 2, lambda a, b, n: a ^ b),
    ("not", "b", 1, lambda a, n: ~a),
    ("cnot", "b", 1, lambda a, n: a == 0),
    ("neg", "s", 1, lambda a, n: -a),
    ("abs", "s", 1, lambda a, n: abs(a)),
    ("sad", "us", 3, lambda a, b, c, n: c + abs(a - b)),
]


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize(("name", "kinds", "count", "wanted"), INTEGERS, ids=[row[0] for row in INTEGERS])
def test_integer_arithmetic(
    run: Run, text: Text, name: str, kinds: str, count: int, wanted: Callable[..., int], bits: int
) -> None:
    for kind in kinds.replace("b", "" if "u" in kinds else "b"):
        signed = kind == "s"
        given = [words(bits, signed=signed) for _ in range(count)]
        places = ", ".join(f"{{{i}}}" for i in range(count))
        got = apply(
            run, text, f"{name}.{kind}{bits} {{d}}, {places};", f"{kind}{bits}", *((f"{kind}{bits}", v) for v in given)
        )
        rows = zip(*(v.tolist() for v in given), strict=True)
        assert got.tolist() == [_wrapped(int(wanted(*row, bits)), bits, signed=signed) for row in rows]


@pytest.mark.parametrize("kind", ["u", "s"])
@pytest.mark.parametrize("bits", [16, 32])
def test_wide_products(run: Run, text: Text, kind: str, bits: int) -> None:
    a, b = words(bits, signed=kind == "s"), words(bits, signed=kind == "s")
    c = words(2 * bits, signed=kind == "s")
    inputs = (f"{kind}{bits}", a), (f"{kind}{bits}", b)
    got = apply(run, text, f"mul.wide.{kind}{bits} {{d}}, {{0}}, {{1}};", f"{kind}{2 * bits}", *inputs)
    assert got.tolist() == [x * y for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    line = f"mad.wide.{kind}{bits} {{d}}, {{0}}, {{1}}, {{2}};"
    got = apply(run, text, line, f"{kind}{2 * bits}", *inputs, (f"{kind}{2 * bits}", c))
    exact = [x * y + z for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
    assert got.tolist() == [_wrapped(v, 2 * bits, signed=kind == "s") for v in exact]


@pytest.mark.parametrize("kind", ["u", "s"])
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_division(run: Run, text: Text, kind: str, bits: int) -> None:
    a, b = words(bits, signed=kind == "s"), words(bits, signed=kind == "s")
    b[b == 0] = 3
    b[b == -1] = 5  # the least number has no opposite
    inputs = (f"{kind}{bits}", a), (f"{kind}{bits}", b)
    got = apply(run, text, f"div.{kind}{bits} {{d}}, {{0}}, {{1}};", f"{kind}{bits}", *inputs)
    rest = apply(run, text, f"rem.{kind}{bits} {{d}}, {{0}}, {{1}};", f"{kind}{bits}", *inputs)
    for x, y, q, r in zip(a.tolist(), b.tolist(), got.tolist(), rest.tolist(), strict=True):
        assert q == (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)
        assert r == x - q * y


def test_a_quotient_by_zero_is_undefined(run: Run, text: Text) -> None:
    body = "mov.u32 %r1, 0; div.u32 %r2, %r0, %r1; st.global.b32 [%a0], %r2;"
    report = run(text(body, 1), np.zeros(1, np.uint32), block=(1, 1, 1))
    assert [f.kind for f in report.findings] == ["poison"]


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_clamp(run: Run, text: Text, bits: int) -> None:
    a, count = words(bits), RNG.integers(0, 80, COUNT).astype(np.uint32)
    inputs = (f"b{bits}", a), ("u32", count)
    left = apply(run, text, f"shl.b{bits} {{d}}, {{0}}, {{1}};", f"u{bits}", *inputs)
    right = apply(run, text, f"shr.u{bits} {{d}}, {{0}}, {{1}};", f"u{bits}", *inputs)
    signed = apply(run, text, f"shr.s{bits} {{d}}, {{0}}, {{1}};", f"s{bits}", *inputs)
    for x, n, up, down, kept in zip(*(v.tolist() for v in (a, count, left, right, signed)), strict=True):
        assert up == (x << n) & (1 << bits) - 1
        assert down == x >> n
        assert kept == _wrapped(x, bits, signed=True) >> n


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_masks_of_bits(run: Run, text: Text, mode: str) -> None:
    start, length = (np.array(n, np.uint32).repeat(COUNT // 8)[:COUNT] for n in ((0, 1, 33, 256, 0, 31, 32, 5),) * 2)
    length = np.roll(length, COUNT // 8 * 3)
    length[:4] = 0, 32, 256, 4
    got = apply(run, text, f"bmsk.{mode}.b32 {{d}}, {{0}}, {{1}};", "u32", ("u32", start), ("u32", length))
    for a, b, result in zip(start.tolist(), length.tolist(), got.tolist(), strict=True):
        first, count = (min(a, 32), min(b, 32)) if mode == "clamp" else (a % 32, b % 32)
        assert result == sum(1 << bit for bit in range(first, min(first + count, 32)))


def test_bit_fields(run: Run, text: Text) -> None:
    for bits in (32, 64):
        a, b = words(bits), words(bits)
        start, length = (
            RNG.integers(0, bits + 9, COUNT).astype(np.uint32),
            RNG.integers(0, bits + 9, COUNT).astype(np.uint32),
        )
        rest = ("u32", start), ("u32", length)
        got = apply(run, text, f"bfe.u{bits} {{d}}, {{0}}, {{1}}, {{2}};", f"u{bits}", (f"b{bits}", a), *rest)
        signed = apply(run, text, f"bfe.s{bits} {{d}}, {{0}}, {{1}}, {{2}};", f"u{bits}", (f"b{bits}", a), *rest)
        placed = apply(
            run,
            text,
            f"bfi.b{bits} {{d}}, {{0}}, {{1}}, {{2}}, {{3}};",
            f"u{bits}",
            (f"b{bits}", a),
            (f"b{bits}", b),
            *rest,
        )
        for x, y, p, n, u, s, i in zip(*(v.tolist() for v in (a, b, start, length, got, signed, placed)), strict=True):
            wide = x >> p & (1 << n) - 1
            assert u == wide
            sign = x >> min(p + n - 1, bits - 1) & 1 if n else 0  # the PTX document's own loop
            wanted = sum((x >> p + k & 1 if k < n and p + k < bits else sign) << k for k in range(bits))
            assert s == wanted
            mask = ((1 << n) - 1) << p & (1 << bits) - 1
            assert i == (y & ~mask) | (x << p & mask)


def test_words_of_bits(run: Run, text: Text) -> None:
    a, b, c = words(32), words(32), words(32)
    three = ("b32", a), ("b32", b), ("b32", c)
    rows = list(zip(a.tolist(), b.tolist(), c.tolist(), strict=True))
    for table in (0x96, 0xE8, 0x1B):
        got = apply(run, text, f"lop3.b32 {{d}}, {{0}}, {{1}}, {{2}}, {table};", "u32", *three)
        for (x, y, z), result in zip(rows, got.tolist(), strict=True):
            wanted = 0
            for bit in range(32):
                row = (x >> bit & 1) << 2 | (y >> bit & 1) << 1 | (z >> bit & 1)
                wanted |= (table >> row & 1) << bit
            assert result == wanted
    got = apply(run, text, "prmt.b32 {d}, {0}, {1}, {2};", "u32", *three)
    for (x, y, z), result in zip(rows, got.tolist(), strict=True):
        source = (x | y << 32).to_bytes(8, "little")
        parts = [source[z >> 4 * k & 7] for k in range(4)]
        signs = [255 * (byte >> 7) if z >> 4 * k & 8 else byte for k, byte in enumerate(parts)]
        assert result == int.from_bytes(bytes(signs), "little")
    for mode, function in (("l.wrap", "left"), ("r.clamp", "right")):
        got = apply(run, text, f"shf.{mode}.b32 {{d}}, {{0}}, {{1}}, {{2}};", "u32", *three)
        for (x, y, z), result in zip(rows, got.tolist(), strict=True):
            both = x | y << 32
            wanted = both << (z & 31) >> 32 if function == "left" else both >> min(z, 32)
            assert result == wanted & 0xFFFFFFFF
    found = apply(run, text, "bfind.s32 {d}, {0};", "u32", ("b32", a))
    for x, result in zip(a.tolist(), found.tolist(), strict=True):
        value = _wrapped(x, 32, signed=True)
        assert result == ((~value if value < 0 else value).bit_length() - 1) & 0xFFFFFFFF
    for bits in (32, 64):
        given = (f"b{bits}", words(bits))
        ones = apply(run, text, f"popc.b{bits} {{d}}, {{0}};", "u32", given)
        zeros = apply(run, text, f"clz.b{bits} {{d}}, {{0}};", "u32", given)
        turned = apply(run, text, f"brev.b{bits} {{d}}, {{0}};", f"u{bits}", given)
        for x, p, z, t in zip(*(v.tolist() for v in (given[1], ones, zeros, turned)), strict=True):
            assert (p, z, t) == (x.bit_count(), bits - x.bit_length(), int(f"{x:0{bits}b}"[::-1], 2))


def test_dot_products_of_bytes(run: Run, text: Text) -> None:
    a, b, c = words(32), words(32), words(32)
    kinds = {"u32": np.uint8, "s32": np.int8}
    for first, second in (("u32", "u32"), ("s32", "s32"), ("u32", "s32"), ("s32", "u32")):
        got = apply(
            run, text, f"dp4a.{first}.{second} {{d}}, {{0}}, {{1}}, {{2}};", "u32", ("b32", a), ("b32", b), ("b32", c)
        )
        x, y = a.view(kinds[first]).astype(np.int64), b.view(kinds[second]).astype(np.int64)
        wanted = (x * y).reshape(-1, 4).sum(axis=1) + c.astype(np.int64)
        assert (got == (wanted & 0xFFFFFFFF).astype(np.uint32)).all()


def test_carries(run: Run, text: Text) -> None:
    a, b = words(64), words(64)
    line = """mov.b64 {{%r20, %r21}}, {0}; mov.b64 {{%r22, %r23}}, {1};
    {op}.cc.u32 %r24, %r20, %r22; {op}c.u32 %r25, %r21, %r23; mov.b64 {d}, {{%r24, %r25}};"""
    for name, sign in (("add", 1), ("sub", -1)):
        got = apply(run, text, line.replace("{op}", name), "u64", ("b64", a), ("b64", b))
        assert got.tolist() == [(x + sign * y) & (1 << 64) - 1 for x, y in zip(a.tolist(), b.tolist(), strict=True)]


def test_saturated_sums(run: Run, text: Text) -> None:
    a, b = words(32, signed=True), words(32, signed=True)
    got = apply(run, text, "add.sat.s32 {d}, {0}, {1};", "s32", ("s32", a), ("s32", b))
    assert (got == np.clip(a.astype(np.int64) + b, -(2**31), 2**31 - 1)).all()


# ---------------------------------------------------------------- floats

_FLOATS: dict[str, tuple[int, int, int]] = {"f16": (10, -14, 15), "bf16": (7, -126, 127), "f32": (23, -126, 127)}


def exactly(value: Fraction, kind: str, mode: str, *, negative_zero: bool = False) -> float:
    """Round a rational number to a format."""
    if value == 0:
        return -0.0 if negative_zero else 0.0
    mantissa, least, most = _FLOATS[kind]
    size = abs(value)
    exponent = max(math.floor(math.log2(size)) if size < 2**1000 else 1000, least)
    while Fraction(2) ** exponent > size and exponent > least:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    unit = Fraction(2) ** (exponent - mantissa)
    steps = value / unit
    low = math.floor(steps)
    if mode == "rn":
        whole = round(steps)
    elif mode == "rz":
        whole = low if value > 0 else math.ceil(steps)
    else:
        whole = low if mode == "rm" else math.ceil(steps)
    result = whole * unit
    limit = (2 - Fraction(1, 1 << mantissa)) * Fraction(2) ** most
    if abs(result) > limit:
        stays = mode == "rz" or ((mode == "rm") == (value > 0) and mode != "rn")
        return math.copysign(float(limit) if stays else math.inf, value)
    return math.copysign(float(result), value)


def _numbers(kind: str) -> Array:
    if kind == "f32":
        return singles()
    values = singles(np.float16) if kind == "f16" else singles(np.float32).astype(ml_dtypes.bfloat16)
    return np.asarray(values)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_f32_arithmetic_in_all_rounding_modes(run: Run, text: Text, name: str, mode: str) -> None:
    given = [singles() for _ in range(3 if name == "fma" else 2)]
    places = ", ".join(f"{{{i}}}" for i in range(len(given)))
    got = apply(run, text, f"{name}.{mode}.f32 {{d}}, {places};", "f32", *(("f32", v) for v in given))
    _compare(name, "f32", mode, given, got)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_16_bit_arithmetic(run: Run, text: Text, name: str, kind: str) -> None:
    given = [_numbers(kind) for _ in range(3 if name == "fma" else 2)]
    places = ", ".join(f"{{{i}}}" for i in range(len(given)))
    rounding = ".rn" if name == "fma" or kind == "bf16" else ""
    got = apply(
        run, text, f"{name}{rounding}.{kind} {{d}}, {places};", "u16", *(("b16", v.view(np.uint16)) for v in given)
    )
    numbers = got.view(np.float16 if kind == "f16" else ml_dtypes.bfloat16).astype(np.float32)
    _compare(name, kind, "rn", [v.astype(np.float32) for v in given], numbers)
    nan = np.isnan(numbers)
    assert (got[nan] == 0x7FFF).all()


def _plain(name: str, x: Sequence[Any]) -> Any:
    """Return the result of an operation on numbers of any type."""
    if name == "fma":
        return x[0] * x[1] + x[2]
    return {"add": lambda: x[0] + x[1], "sub": lambda: x[0] - x[1], "mul": lambda: x[0] * x[1]}[name]()


def _compare(name: str, kind: str, mode: str, given: list[Array], got: Array) -> None:
    for row in zip(*(v.tolist() for v in given), got.tolist(), strict=True):
        *values, result = row
        if all(map(math.isfinite, values)):
            wanted = exactly(_plain(name, [Fraction(v) for v in values]), kind, mode)
        else:
            with np.errstate(all="ignore"):
                wanted = float(_plain(name, [np.float64(v) for v in values]))
        assert result == wanted or (math.isnan(result) and math.isnan(wanted)), (name, mode, row, wanted)


@pytest.mark.parametrize("name", ["div", "sqrt", "rcp"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_correctly_rounded_functions(run: Run, text: Text, name: str, mode: str) -> None:
    a, b = np.abs(singles()), singles()
    inputs = [("f32", a), ("f32", b)] if name == "div" else [("f32", a)]
    places = ", ".join(f"{{{i}}}" for i in range(len(inputs)))
    got = apply(run, text, f"{name}.{mode}.f32 {{d}}, {places};", "f32", *inputs)
    for x, y, result in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        if not (math.isfinite(x) and math.isfinite(y) and x and y):
            continue
        if name == "sqrt":
            root = Fraction(
                math.isqrt(int(Fraction(x) * (1 << 600)) << 600), 1 << 600
            )  # to 2^-600, and never exact by chance
            assert result == exactly(root if root * root == Fraction(x) else root + Fraction(1, 1 << 700), "f32", mode)
        else:
            assert result == exactly(Fraction(x) / Fraction(y) if name == "div" else 1 / Fraction(x), "f32", mode)


@pytest.mark.parametrize("name", ["ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt"])
def test_approximate_functions_are_near(run: Run, text: Text, name: str) -> None:
    a = RNG.uniform(0.1, 3, COUNT).astype(np.float32)
    functions: dict[str, Any] = {"ex2": np.exp2, "lg2": np.log2, "rcp": lambda x: 1 / x, "rsqrt": lambda x: x**-0.5}
    got = apply(run, text, f"{name}.approx.f32 {{d}}, {{0}};", "f32", ("f32", a))
    wanted = functions.get(name) or getattr(np, name)
    assert np.allclose(got, wanted(a.astype(np.float64)), rtol=2**-20, atol=2**-21)


def test_special_values_of_functions(run: Run, text: Text) -> None:
    a = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1e-45, 1.0] * 4, np.float32)
    table = {
        "rcp": [np.inf, -np.inf, 0, -0.0, np.nan, -1, np.inf, 1],
        "sqrt": [0, -0.0, np.inf, np.nan, np.nan, np.nan, 3.7433923e-23, 1],
        "rsqrt": [np.inf, -np.inf, 0, np.nan, np.nan, np.nan, 2.6713738e22, 1],
        "ex2": [1, 1, np.inf, 0, np.nan, 0.5, 1, 2],
        "lg2": [-np.inf, -np.inf, np.inf, np.nan, np.nan, np.nan, -149, 0],
        "sin": [0, -0.0, np.nan, np.nan, np.nan, -0.84147098, 1e-45, 0.84147098],
        "tanh": [0, -0.0, 1, -1, np.nan, -0.76159416, 1e-45, 0.76159416],
    }
    for name, wanted in table.items():
        got = apply(run, text, f"{name}.approx.f32 {{d}}, {{0}};", "f32", ("f32", a))[:8]
        assert np.allclose(got, np.array(wanted, np.float32), rtol=1e-6, atol=0, equal_nan=True), name
        assert (np.signbit(got) == np.signbit(np.array(wanted))).sum() >= 7
    flushed = apply(run, text, "rcp.approx.ftz.f32 {d}, {0};", "f32", ("f32", a))
    assert flushed[6] == np.inf


def test_minimum_maximum_and_signs(run: Run, text: Text) -> None:
    a, b = singles(), singles()
    a[:4], b[:4] = [0.0, -0.0, np.nan, 1], [-0.0, 0.0, 1, np.nan]
    both = ("f32", a), ("f32", b)
    low = apply(run, text, "min.f32 {d}, {0}, {1};", "f32", *both)
    high = apply(run, text, "max.f32 {d}, {0}, {1};", "f32", *both)
    strict = apply(run, text, "max.NaN.f32 {d}, {0}, {1};", "f32", *both)
    assert np.array_equal(low, np.fmin(a, b), equal_nan=True)
    assert np.array_equal(high, np.fmax(a, b), equal_nan=True)
    assert np.signbit(low[:2]).all()
    assert not np.signbit(high[:2]).any()
    assert np.array_equal(np.isnan(strict), np.isnan(a) | np.isnan(b))
    assert (low.view(np.uint32)[np.isnan(low)] == 0x7FFFFFFF).all()
    assert (
        apply(run, text, "neg.f32 {d}, {0};", "f32", both[0]).view(np.uint32) == a.view(np.uint32) ^ (1 << 31)
    ).all()
    saturated = apply(run, text, "add.sat.f32 {d}, {0}, {1};", "f32", *both)
    total = a + b
    assert np.array_equal(saturated, np.where(np.isnan(total), 0, np.clip(total, 0, 1)))
    flushed = apply(run, text, "mul.ftz.f32 {d}, {0}, {1};", "f32", *both)
    assert not ((flushed != 0) & (np.abs(flushed) < 2.0**-126)).any()


def test_packed_halves(run: Run, text: Text) -> None:
    a, b, c = (np.stack([singles(np.float16), singles(np.float16)], 1) for _ in range(3))
    raw = [("b32", np.ascontiguousarray(v).view(np.uint32).ravel()) for v in (a, b, c)]
    got = apply(run, text, "fma.rn.relu.f16x2 {d}, {0}, {1}, {2};", "u32", *raw).view(np.float16).reshape(-1, 2)
    with np.errstate(all="ignore"):
        exact = (a.astype(np.float64) * b + c).astype(np.float16)
    wanted = np.where(np.isnan(exact), exact, np.maximum(exact, 0))
    assert np.array_equal(got, wanted, equal_nan=True)
    low = apply(run, text, "min.f16x2 {d}, {0}, {1};", "u32", *raw[:2]).view(np.float16).reshape(-1, 2)
    assert np.array_equal(low, np.fmin(a, b), equal_nan=True)
    for name, function, bound in (("ex2.approx", np.exp2, 2**-10), ("tanh.approx", np.tanh, 2**-10)):
        got = apply(run, text, f"{name}.f16x2 {{d}}, {{0}};", "u32", raw[0]).view(np.float16).reshape(-1, 2)
        with np.errstate(all="ignore"):
            assert np.allclose(
                got, function(a.astype(np.float32)).astype(np.float16), rtol=bound, atol=1e-7, equal_nan=True
            )


COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b and not math.isnan(a) and not math.isnan(b),
    "lt": lambda a, b: a < b,
    "ge": lambda a, b: a >= b,
    "equ": lambda a, b: a == b or math.isnan(a) or math.isnan(b),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: not a >= b,
    "gtu": lambda a, b: not a <= b,
    "num": lambda a, b: not math.isnan(a) and not math.isnan(b),
    "nan": lambda a, b: math.isnan(a) or math.isnan(b),
}


@pytest.mark.parametrize("name", sorted(COMPARISONS))
def test_comparisons_of_floats(run: Run, text: Text, name: str) -> None:
    a, b = singles(), singles()
    b[::4] = a[::4]
    rows = list(zip(a.tolist(), b.tolist(), strict=True))
    got = apply(run, text, f"setp.{name}.f32 {{d}}, {{0}}, {{1}};", "pred", ("f32", a), ("f32", b))
    assert got.tolist() == [int(COMPARISONS[name](x, y)) for x, y in rows]
    line = f"setp.lt.f32 %p7, {{0}}, 0f00000000; setp.{name}.xor.f32 %p4|{{d}}, {{0}}, {{1}}, !%p7;"
    got = apply(run, text, line, "pred", ("f32", a), ("f32", b))
    assert got.tolist() == [((not COMPARISONS[name](x, y)) ^ (not x < 0)) for x, y in rows]


def test_comparisons_of_integers(run: Run, text: Text) -> None:
    a, b = words(32, signed=True), words(32, signed=True)
    b[::4] = a[::4]
    inputs = ("s32", a), ("s32", b)
    assert (apply(run, text, "setp.lt.s32 {d}, {0}, {1};", "pred", *inputs) == (a < b)).all()
    assert (
        apply(run, text, "setp.lo.u32 {d}, {0}, {1};", "pred", *inputs) == (a.view(np.uint32) < b.view(np.uint32))
    ).all()
    got = apply(run, text, "set.ge.u32.s32 {d}, {0}, {1};", "u32", *inputs)
    assert (got == np.where(a >= b, 0xFFFFFFFF, 0)).all()
    got = apply(run, text, "slct.b32.s32 {d}, {0}, {1}, {0};", "s32", *inputs)
    assert (got == np.where(a >= 0, a, b)).all()


# ---------------------------------------------------------------- conversions


@pytest.mark.parametrize("of", ["s64", "u64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_wide_integers_are_rounded_to_doubles(run: Run, text: Text, of: str, mode: str) -> None:
    """numpy's conversion rounds to nearest; a directed rounding is that, or the double beside it."""
    a = np.concatenate([words(64)[: COUNT - 4], np.array([2**24 + 1, 2**53 + 1, 2**63 + 1, 2**64 - 1], np.uint64)])
    got = apply(run, text, f"cvt.{mode}.f64.{of} {{d}}, {{0}};", "f64", ("b64", a))
    for x, result in zip((a.view(np.int64) if of == "s64" else a).tolist(), got.tolist(), strict=True):
        wanted = float(x)
        beyond = {"rn": False, "rz": abs(int(wanted)) > abs(x), "rm": int(wanted) > x, "rp": int(wanted) < x}[mode]
        goal = {"rz": 0.0, "rm": -math.inf, "rp": math.inf}.get(mode, 0.0)
        assert result == (math.nextafter(wanted, goal) if beyond else wanted)


@pytest.mark.parametrize("to", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_floats_to_integers_clamp(run: Run, text: Text, to: str, mode: str) -> None:
    a = singles() * np.float32(1000)
    bits, signed = int(to[1:]), to[0] == "s"
    wide = f"{to[0]}{max(bits, 16)}"
    got = apply(run, text, f"cvt.{mode}.{to}.f32 {{d}}, {{0}};", wide, ("f32", a))
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    functions: dict[str, Any] = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
    for x, result in zip(a.tolist(), got.tolist(), strict=True):
        if math.isnan(x):
            assert result == 0
        elif math.isinf(x):
            assert result == (high if x > 0 else low)
        else:
            assert result == min(max(functions[mode](Fraction(x)), low), high)


@pytest.mark.parametrize("of", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_integers_to_floats(run: Run, text: Text, of: str, mode: str) -> None:
    bits, signed = int(of[1:]), of[0] == "s"
    a = words(max(bits, 16))
    got = apply(run, text, f"cvt.{mode}.f32.{of} {{d}}, {{0}};", "f32", (f"b{max(bits, 16)}", a))
    for x, result in zip(a.tolist(), got.tolist(), strict=True):
        assert result == exactly(Fraction(_wrapped(x, bits, signed=signed)), "f32", mode)


def test_integers_to_integers(run: Run, text: Text) -> None:
    a = words(64)
    for to, of in (("s8", "s64"), ("u16", "u64"), ("s32", "s64"), ("u64", "s16"), ("s64", "s8"), ("u32", "u8")):
        bits, width = int(to[1:]), int(of[1:])
        source = a.astype(f"u{max(width, 16) // 8}")
        into = f"{to[0]}{max(bits, 16)}"
        for sat in ("", ".sat") if bits <= width else ("",):
            got = apply(run, text, f"cvt{sat}.{to}.{of} {{d}}, {{0}};", into, (f"b{max(width, 16)}", source))
            low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
            for x, result in zip(source.tolist(), got.tolist(), strict=True):
                value = _wrapped(x, width, signed=of[0] == "s")
                wanted = min(max(value, low), high) if sat else _wrapped(value, bits, signed=to[0] == "s")
                assert result == wanted


@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_floats_to_16_bits(run: Run, text: Text, kind: str, mode: str) -> None:
    a = singles()
    got = apply(run, text, f"cvt.{mode}.{kind}.f32 {{d}}, {{0}};", "u16", ("f32", a))
    numbers = got.view(np.float16 if kind == "f16" else ml_dtypes.bfloat16).astype(np.float64)
    for x, result in zip(a.tolist(), numbers.tolist(), strict=True):
        if math.isfinite(x):
            assert result == exactly(Fraction(x), kind, mode)
        else:
            assert result == x or math.isnan(result) == math.isnan(x)
    back = apply(run, text, f"cvt.f32.{kind} {{d}}, {{0}};", "f32", ("b16", got))
    assert np.array_equal(back, numbers.astype(np.float32), equal_nan=True)


def test_pairs_to_narrow_types(run: Run, text: Text) -> None:
    a, b = singles() * np.float32(64), singles()
    both = ("f32", a), ("f32", b)
    got = apply(run, text, "cvt.rn.bf16x2.f32 {d}, {0}, {1};", "u32", *both).view(ml_dtypes.bfloat16).reshape(-1, 2)
    assert np.array_equal(
        got.astype(np.float32), np.stack([b, a], 1).astype(ml_dtypes.bfloat16).astype(np.float32), equal_nan=True
    )
    relu = apply(run, text, "cvt.rn.relu.f16x2.f32 {d}, {0}, {1};", "u32", *both).view(np.float16)
    assert not (relu < 0).any()
    for kind, dtype, most in (("e4m3", ml_dtypes.float8_e4m3fn, 448), ("e5m2", ml_dtypes.float8_e5m2, 57344)):
        got8 = apply(run, text, f"cvt.rn.satfinite.{kind}x2.f32 {{d}}, {{0}}, {{1}};", "u16", *both)
        wanted = np.clip(np.stack([b, a], 1), -most, most).astype(dtype)
        assert np.array_equal(
            got8.view(dtype).reshape(-1, 2).astype(np.float32), wanted.astype(np.float32), equal_nan=True
        )
        back = (
            apply(run, text, f"cvt.rn.f16x2.{kind}x2 {{d}}, {{0}};", "u32", ("b16", got8))
            .view(np.float16)
            .reshape(-1, 2)
        )
        assert np.array_equal(back.astype(np.float32), wanted.astype(np.float32), equal_nan=True)
    tf32 = apply(run, text, "cvt.rna.tf32.f32 {d}, {0};", "u32", ("f32", a)).view(np.float32)
    fine = np.isfinite(a)
    assert not (tf32.view(np.uint32)[fine] & 0x1FFF).any()
    near = np.abs(tf32[fine].astype(np.float64) - a[fine]) <= np.maximum(np.abs(a[fine]) * 2.0**-11, 2.0**-137)
    assert near.all()
    whole = words(32, signed=True), words(32, signed=True)
    packed = apply(run, text, "cvt.pack.sat.s8.s32.b32 {d}, {0}, {1}, 0x1234;", "u32", *(("s32", v) for v in whole))
    low = [np.clip(v, -128, 127).astype(np.int8).view(np.uint8).astype(np.uint32) for v in whole]
    assert (packed == (low[1] | low[0] << 8 | 0x12340000)).all()


def test_rounding_to_whole_floats(run: Run, text: Text) -> None:
    a = singles()
    for mode, function in (("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)):
        got = apply(run, text, f"cvt.{mode}.f32.f32 {{d}}, {{0}};", "f32", ("f32", a))
        assert np.array_equal(got, function(a), equal_nan=True)
    got = apply(run, text, "cvt.sat.f32.f32 {d}, {0};", "f32", ("f32", a))
    assert np.array_equal(got, np.where(np.isnan(a), 0, np.clip(a, 0, 1)))


def test_doubles(run: Run, text: Text) -> None:
    a, b, c = singles(np.float64), singles(np.float64), singles(np.float64)
    with np.errstate(all="ignore"):
        for name, wanted in (("add", a + b), ("mul", a * b), ("div", a / b)):
            rounding = ".rn" if name == "div" else ""
            got = apply(run, text, f"{name}{rounding}.f64 {{d}}, {{0}}, {{1}};", "f64", ("f64", a), ("f64", b))
            assert np.array_equal(got, wanted, equal_nan=True)
    got = apply(run, text, "fma.rn.f64 {d}, {0}, {1}, {2};", "f64", ("f64", a), ("f64", b), ("f64", c))
    for x, y, z, result in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        if all(map(math.isfinite, (x, y, z))):
            assert result == float(Fraction(x) * Fraction(y) + Fraction(z))
    single = apply(run, text, "cvt.rn.f32.f64 {d}, {0};", "f32", ("f64", a))
    assert np.array_equal(single, a.astype(np.float32), equal_nan=True)
