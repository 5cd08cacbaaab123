"""Types are interned and travel; conversions and storage against oracles that know only lists of values."""

from __future__ import annotations

import copy
import pickle
from bisect import bisect_left
from fractions import Fraction
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir import types as t
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.error import UserError, VerifyError
from convgen.ir.evaluate import Evaluator, InterpError, Value, convert, from_bytes, to_bytes
from convgen.ir.expr import Cast, Expr, Lane, Pack, Saturate, Splat, const, eq, select, var
from convgen.ir.interp import interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.simplify.bounds import bounds
from convgen.ir.text import parse, to_text
from convgen.ir.types import AddressSpace, AnyType, Type, pointer, scalar, vector
from convgen.ir.uniform import is_uniform
from convgen.ir.verify import verify

INTEGERS = [x for x in t.SCALARS.values() if x.is_int]
FLOATS = [x for x in t.SCALARS.values() if x.is_float and x.is_rounded_to]
NARROW = [x for x in FLOATS if x.bits <= 16]
POINTERS = [pointer(t.f16, space) for space in AddressSpace]
ALL: list[AnyType] = [
    *t.SCALARS.values(),
    *POINTERS,
    vector(t.f8_e5m2fnuz, 16),
    vector(t.s4, 8),
    vector(POINTERS[0], 2),
]


# ---------------------------------------------------------------- identity and text


@pytest.mark.parametrize("type_", ALL, ids=str)
def test_a_type_stays_itself(type_: AnyType) -> None:
    assert pickle.loads(pickle.dumps(type_)) is type_
    assert copy.deepcopy(type_) is type_
    v = var("v", type_)
    assert parse(to_text(v)) is v


def test_names_are_distinct_and_benchdnns() -> None:
    names = [x.name for x in ALL]
    assert len(set(names)) == len(names)
    for name in "f16 bf16 f32 f64 s32 s8 u8 f8_e5m2 f8_e4m3 f4_e2m1 e8m0 s4 u4".split():
        assert scalar(name).name == name
    assert scalar("boolean") is t.bool_
    with pytest.raises(KeyError):
        scalar("f4_e3m0")


def test_scales_alone_have_no_zero() -> None:
    assert [x.name for x in t.SCALARS.values() if not t.has_zero(x)] == ["e8m0"]


def test_pointers_know_their_memory() -> None:
    wide, narrow = POINTERS
    assert (wide.bits, narrow.bits, str(narrow)) == (64, 32, "f16*shared")
    assert wide.pointee is t.f16
    assert wide.space is AddressSpace.GLOBAL
    assert pointer(t.f16, AddressSpace.GLOBAL) is wide is not pointer(t.bf16, AddressSpace.GLOBAL)
    assert not (wide.is_int)
    assert not (wide.is_float)
    assert not (wide.is_bool)


def test_text_of_conversions() -> None:
    f = var("f", t.f32)
    assert str(f.to(t.f8_e4m3)) == "f8_e4m3(f)"
    assert str(f.to(t.s8, saturate=True)) == "s8.saturate(f)"
    assert f.to(t.f32, saturate=True) is f
    for e in (Cast(t.s4, f), Saturate(t.s4, f), const(-3, t.s4), const(1.5, t.f8_e5m2fnuz)):
        assert parse(to_text(e)) is e
    assert str(const(1.5, t.f8_e4m3)) == "1.5_f8_e4m3"
    assert str(const(-8, t.s4)) == "-8_s4"


def test_constants_of_narrow_types() -> None:
    assert (t.s4.min, t.s4.max, t.u4.max) == (-8, 7, 15)
    assert [x.largest for x in NARROW[:4]] == [448, 57344, 240, 57344]
    with pytest.raises(UserError, match="does not fit"):
        const(8, t.s4)


# ---------------------------------------------------------------- conversions


def ladder(type_: Type) -> list[tuple[Fraction, int]]:
    """The finite values of a narrow float format, not negative and ascending, with their bits."""
    raw = np.arange(1 << type_.bits - 1).astype(f"u{type_.bytes}")
    with np.errstate(invalid="ignore"):
        values = raw.view(type_.numpy).astype(np.float64)
    return [(Fraction(float(x)), int(b)) for x, b in zip(values, raw) if np.isfinite(x)]


LADDERS = {x: ladder(x) for x in NARROW}
HAS_INFINITY = (t.f8_e5m2, t.f16, t.bf16)


def rounded(exact: Fraction, type_: Type, *, saturate: bool) -> float:
    """The nearest value of a format by search in the list of them; ties go to even bits."""
    steps = LADDERS[type_]
    magnitude, sign = abs(exact), -1 if exact < 0 else 1
    at = bisect_left(steps, (magnitude, -1))
    if at == len(steps):
        half_step = (steps[-1][0] - steps[-2][0]) / 2
        over = magnitude - steps[-1][0]
        # Beyond the last value an even one would follow an odd one, and the other way round.
        if not saturate and (over > half_step or (over == half_step and steps[-1][1] % 2)):
            return sign * float("inf") if type_ in HAS_INFINITY else float("nan")
        return sign * float(steps[-1][0])
    above = steps[at]
    below = steps[at - 1] if at else above
    if magnitude - below[0] == above[0] - magnitude:
        return sign * float(min(below, above, key=lambda s: s[1] % 2)[0])
    return sign * float(min(below, above, key=lambda s: abs(s[0] - magnitude))[0])


def near_ties(type_: Type) -> list[float]:
    """Values, the middles between neighbours, and both beside them: what double rounding would get wrong."""
    steps = [float(x) for x, _ in LADDERS[type_][:: 1 if type_.bits == 8 else 997]]
    largest = type_.largest
    ends = [largest * f for f in (1, 1.01, 1.03, 1.0625, 1.07, 1.12, 1.2, 2)]
    finite = [float(x) for x, _ in LADDERS[type_]]
    middles = [(low + high) / 2 for low, high in pairwise(finite)]
    middles = middles[:: max(1, len(middles) // 300)]
    some = [*steps, *ends, *middles]
    beside = [m * (1 + s * 2.0**-e) for m in some for s in (-1, 1) for e in (23, 30, 45, 52)]
    return [v for v in (*some, *beside) if np.isfinite(v)]


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("type_", NARROW, ids=str)
def test_floats_round_once_to_nearest_even(type_: Type, saturate: bool) -> None:
    wide = np.array(near_ties(type_))
    wide = np.concatenate([wide, -wide])
    got = convert(wide, type_, saturate=saturate).astype(np.float64)
    wanted = np.array([rounded(Fraction(x), type_, saturate=saturate) for x in wide.tolist()])
    np.testing.assert_array_equal(got, wanted)
    single = wide[np.abs(wide) < t.f32.largest].astype(np.float32)
    if not saturate:
        with np.errstate(over="ignore"):
            theirs = single.astype(type_.numpy)  # numpy's or ml_dtypes' own rounding
        raw = f"u{type_.bytes}"
        np.testing.assert_array_equal(convert(single, type_).view(raw), theirs.view(raw))


@settings(max_examples=200)
@given(st.integers(-(1 << 63), (1 << 64) - 1), st.integers(0, 63), st.sampled_from(NARROW), st.booleans())
def test_integers_round_once(number: int, shift: int, type_: Type, saturate: bool) -> None:
    number >>= shift
    wanted = rounded(Fraction(number), type_, saturate=saturate)
    for source in (x for x in INTEGERS if x.min <= number <= x.max):
        data = np.array([number], f"{'i' if source.min else 'u'}{source.bytes}").astype(source.numpy)
        np.testing.assert_equal(float(convert(data, type_, saturate=saturate)[0]), wanted)


def test_64_bits_to_bf16_do_not_round_twice() -> None:
    """Each of these is a tie after a first rounding to f32 or f64, and is none."""
    tie = 1 + 2.0**-8
    assert convert(np.array([tie + 2.0**-40]), t.bf16)[0] == 1 + 2.0**-7
    assert convert(np.array([tie - 2.0**-40]), t.bf16)[0] == 1
    whole = np.array([(1 << 62) + (1 << 54) + 1, (1 << 62) + (1 << 54) - 1])
    assert [float(x) for x in convert(whole, t.bf16)] == [2.0**62 + 2.0**55, 2.0**62]


@pytest.mark.parametrize("type_", FLOATS, ids=str)
def test_nan_infinity_and_zero(type_: Type) -> None:
    special = np.array([np.nan, np.inf, -np.inf, -0.0, -1e-300])
    plain, saturated = (convert(special, type_, saturate=s) for s in (False, True))
    assert np.isnan(plain[:1].astype(np.float64))
    assert np.isnan(saturated[:1].astype(np.float64))
    infinite = type_ in (*HAS_INFINITY, t.f32, t.f64)
    assert np.isinf(plain[1:3].astype(np.float64)).all() == infinite
    assert np.isnan(plain[1:3].astype(np.float64)).all() == (not infinite)
    assert saturated[1:3].astype(np.float64).tolist() == [type_.largest, -type_.largest]
    signed_zero = "fnuz" not in type_.name
    assert (np.signbit(plain[3:4].astype(np.float64)) == signed_zero).all()
    if not signed_zero:
        assert plain.view(np.uint8).tolist() == [0x80, 0x80, 0x80, 0, 0]


@pytest.mark.parametrize("source", [x for x in FLOATS if x.bits <= 16], ids=str)
def test_widening_is_exact(source: Type) -> None:
    every = np.arange(1 << source.bits).astype(f"u{source.bytes}").view(source.numpy)
    for to in (t.f32, t.f64):
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(convert(every, to), every.astype(np.float64).astype(to.numpy))


@pytest.mark.parametrize("to", INTEGERS, ids=str)
def test_floats_to_integers_saturate(to: Type) -> None:
    values = np.array([0.5, 1.5, -0.5, -1.5, 2.5, to.max, to.min, 1e30, -1e30, np.inf, -np.inf, np.nan, 3.7])
    for source in (np.float64, np.float32):
        data = values.astype(source)
        wanted = [0 if x != x else max(to.min, min(to.max, round(x))) if np.isfinite(x) else x for x in data.tolist()]
        wanted = [to.max if x == np.inf else to.min if x == -np.inf else x for x in wanted]
        for saturate in (False, True):
            assert [int(x) for x in convert(data, to, saturate=saturate)] == wanted


integers = st.sampled_from(INTEGERS)


@given(integers, integers, st.lists(st.integers(-(1 << 65), 1 << 65), min_size=1, max_size=8))
def test_integers_wrap_or_saturate(source: Type, to: Type, numbers: list[int]) -> None:
    numbers = [source.min + (n - source.min) % (1 << source.bits) for n in numbers]
    data = np.array(numbers, f"{'i' if source.min else 'u'}{source.bytes}").astype(source.numpy)
    wrapped = [to.min + (n - to.min) % (1 << to.bits) for n in numbers]
    assert [int(x) for x in convert(data, to)] == wrapped
    assert [int(x) for x in convert(data, to, saturate=True)] == [max(to.min, min(to.max, n)) for n in numbers]


def test_bools() -> None:
    assert convert(np.array([0.0, -0.0, np.nan, 2], np.float32), t.bool_).tolist() == [False, False, True, True]
    assert convert(np.array([True, False]), t.s8, saturate=True).tolist() == [1, 0]
    assert convert(np.array([-1, 0]).astype(ml_dtypes.int4), t.bool_).tolist() == [True, False]


# ---------------------------------------------------------------- expressions


@given(integers, st.integers(-300, 300), st.integers(0, 600), st.booleans())
def test_bounds_hold_every_converted_value(to: Type, low: int, count: int, saturate: bool) -> None:
    v = var("v", t.s32)
    e = v.to(to, saturate=saturate)
    lo, hi = bounds(e, {v: (low, low + count)})
    converted = convert(np.arange(low, low + count + 1, dtype=np.int32), to, saturate=saturate)
    least, most = int(min(converted)), int(max(converted))
    assert lo <= least
    assert most <= hi
    if saturate:
        assert (lo, hi) == (least, most)


def test_uniformity_passes_through() -> None:
    v = var("v", t.f32)
    assert is_uniform(Saturate(t.s8, v), ())
    assert not is_uniform(Saturate(t.s8, Lane()), ())


def evaluated(e: Expr, **given_: tuple[Expr, Value]) -> Value:
    ev = Evaluator(len(next(iter(given_.values()))[1].data))
    for v, data in given_.values():
        ev.env[v] = data  # type: ignore[index]
    return ev(e)


# ---------------------------------------------------------------- four bits


@pytest.mark.parametrize(("elem", "numbers"), [(t.s4, range(-8, 8)), (t.u4, range(16))], ids=str)
def test_two_elements_a_byte_low_nibble_first(elem: Type, numbers: range) -> None:
    data = np.array([list(numbers), list(reversed(numbers))]).astype(elem.numpy)
    raw, poison = to_bytes(Value(data))
    assert poison is None
    assert raw.shape == (2, 8)
    assert raw[0, 0] == (numbers[0] & 15) | (numbers[1] & 15) << 4
    back = from_bytes(raw, None, vector(elem, 16))
    np.testing.assert_array_equal(back.data, data)


def test_a_poisoned_byte_is_two_poisoned_elements() -> None:
    data = np.zeros((1, 4)).astype(t.s4.numpy)
    raw, poison = to_bytes(Value(data, np.array([[False, True, False, False]])))
    assert poison is not None
    assert poison.tolist() == [[True, False]]
    assert from_bytes(raw, poison, vector(t.s4, 4)).poison.tolist() == [[True, True, False, False]]  # type: ignore[union-attr]
    with pytest.raises(InterpError, match="3 elements of 4 bits"):
        to_bytes(Value(data[:, :3]))


def test_packs_and_slices_of_four_bit_elements() -> None:
    word = var("w", t.u32)
    given_ = (word, Value(np.array([0x87654321], np.uint32)))
    nibbles = Pack(vector(t.s4, 8), (word,))
    assert evaluated(nibbles.to(vector(t.s32, 8)), w=given_).data.tolist() == [[1, 2, 3, 4, 5, 6, 7, -8]]
    assert evaluated(Pack(t.u32, (nibbles,)), w=given_).data.tolist() == [0x87654321]
    chosen = select(eq(word, 0), Splat(nibbles.type, const(0, t.s4)), nibbles)  # type: ignore[arg-type]
    assert evaluated(chosen.to(vector(t.f32, 8)), w=given_).data[0, 7] == -8


def test_a_kernel_that_widens_four_bit_weights() -> None:
    k = KernelBuilder("widen", width=4)
    packed, out = k.buffer("packed", t.u4, 32), k.buffer("out", t.f16, 32)
    assert packed.bytes == 16
    assert "packed: u4[32]" in str(k.done())
    loaded = k.global_load("w", vector(t.u4, 8), k.surface(packed), Lane() * 4)
    k.global_store(k.surface(out), loaded.to(vector(t.f16, 8)), Lane() * 16)
    kernel = verify(k.done(), "message")
    assert parse(to_text(kernel)) is kernel
    memory = {"packed": np.arange(16, dtype=np.uint8) * 17, "out": np.zeros(64, np.uint8)}
    interpret(kernel, memory, {})
    assert memory["out"].view(np.float16).tolist() == [i // 2 for i in range(32)]


# ---------------------------------------------------------------- what is refused


REFUSED = {
    "wanted numbers": [
        lambda a, p: Splat(vector(t.f8_e4m3, 2), const(1.0, t.f8_e4m3)) + 1.0,
        lambda a, p: const(1, t.s4) + 1,
        lambda a, p: p + p,
        lambda a, p: eq(const(1, t.u4), 1),
    ],
    "wanted integers or bools": [lambda a, p: const(1, t.u4) & 1, lambda a, p: ~p],
    "a conversion from": [
        lambda a, p: p.to(t.u64),
        lambda a, p: a.to(p.type),
        lambda a, p: a.to(t.bool_, saturate=True),
    ],
}


@pytest.mark.parametrize(("message", "make"), [(m, f) for m, fs in REFUSED.items() for f in fs])
def test_verify_refuses(message: str, make: Any) -> None:
    k = KernelBuilder("k")
    k.let("v", make(k.scalar("a"), k.scalar("p", POINTERS[0])))
    with pytest.raises(VerifyError, match=message):
        verify(k.done())


def test_pointers_may_be_chosen() -> None:
    k = KernelBuilder("k")
    a, p, q = k.scalar("a"), k.scalar("p", POINTERS[0]), k.scalar("q", POINTERS[0])
    k.let("v", select(eq(a, 0), p, q))
    kernel = verify(k.done())
    assert parse(to_text(kernel)) is kernel


def test_four_bit_elements_are_loaded_from_views_and_not_stored() -> None:
    k = KernelBuilder("k")
    layout = Fragment(("row", "col"), (Digit("row", 64, Space.LANE, 1), Digit("col", 8, Space.REGISTER, 1)))
    view = matrix(k.buffer("m", t.s4, 512), 64, 8)
    held = k.load_view("v", view, (0, 0), layout)
    verify(k.done(), "tile")
    k.store_view(view, (0, 0), held, layout)
    with pytest.raises(VerifyError, match="a fragment of s4, which has no address of its own"):
        verify(k.done(), "tile")


@pytest.mark.parametrize("wide", FLOATS, ids=str)
def test_a_float_holds_what_converts_to_it_and_back(wide: Type) -> None:
    for other in (x for x in t.SCALARS.values() if x.bits <= 16 and not x.is_bool):
        raw = np.arange(1 << other.bits).astype(f"u{other.bytes}")
        with np.errstate(all="ignore"):
            values = raw.view(other.numpy).astype(np.float64)
            same = convert(values, wide).astype(np.float64) == values
        assert wide.holds(other) == bool((same | np.isnan(values)).all()), other
    assert not any(x.holds(wide) for x in INTEGERS)
