"""Conversions from and to narrow types, built from operations on 32-bit words.

Widening is exact: `f16` represents every number of the types in `WIDENED`. A narrow float is moved to f16's exponent
field and multiplied by a power of two that corrects the bias. Conversions to the 8-bit formats round as a cast does
(docs/ir.md, "Conversions"): to nearest even, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convgen.ir.expr import Expr, Pack, Select, Shuffle, Slice, Splat, const, eq, lift, minimum, zeros
from convgen.ir.record import frozen
from convgen.ir.types import (
    Type,
    bf16,
    e8m0,
    f4_e2m1,
    f6_e2m3,
    f6_e3m2,
    f8_e4m3,
    f8_e4m3fnuz,
    f8_e5m2,
    f8_e5m2fnuz,
    f16,
    f32,
    s4,
    s8,
    u4,
    u8,
    u16,
    u32,
    vector,
)

_WORD = 32  #: bits
_HALVES = 0x00010001  #: 1 in each half of a word
_BYTES = 0x01010101  #: 1 in each byte of a word

#: source types that `widened` converts to f16, bf16 and f32
WIDENED = (s4, u4, f4_e2m1, f8_e4m3, f8_e5m2, f8_e4m3fnuz, f8_e5m2fnuz)


@frozen
class _Rounding:
    """Parameters for rounding f32 to a format of 8 bits or 4; codes are without the sign bit."""

    mantissa: int  #: bits
    bias: int
    largest: int  #: code of the largest finite value
    beyond: int  #: code for values beyond the largest finite one
    nan: int
    has_negative_zero: bool = True


_ROUNDINGS = {
    f4_e2m1: _Rounding(1, 1, largest=7, beyond=7, nan=7),
    f8_e4m3: _Rounding(3, 7, largest=0x7E, beyond=0x7F, nan=0x7F),
    f8_e5m2: _Rounding(2, 15, largest=0x7B, beyond=0x7C, nan=0x7F),
    f8_e4m3fnuz: _Rounding(3, 8, largest=0x7F, beyond=0x80, nan=0x80, has_negative_zero=False),
    f8_e5m2fnuz: _Rounding(2, 16, largest=0x7F, beyond=0x80, nan=0x80, has_negative_zero=False),
}


def widens(of: Type, to: Type) -> bool:
    """Return whether `widened` does this conversion."""
    if of is e8m0:
        return to is f32
    return (of in WIDENED and to in (f16, bf16, f32)) or (of.bits == 4 and of.is_int and to in (s8, u8))


def narrows(of: Type, to: Type) -> bool:
    """Return whether `rounded` does this conversion."""
    return of is f32 and to in _ROUNDINGS and to.is_rounded_to


def widened(a: Expr, to: Type) -> Expr:
    """Convert a vector of narrow elements exactly to the wider type `to`."""
    of, count = a.type.elem, a.type.lanes
    if of.bits == 4 and isinstance(a, Slice) and (a.start % 2 or count % 2):
        return _within_bytes(a, to)
    if of is e8m0:
        return _power_of_two(a)
    if to in (s8, u8):
        return _first(to, count, _bytes_of_nibbles(of, _words(a)))
    if to is f16:
        return _first(f16, count, _halves(of, _words(a)))
    wide = widened(a, f16).to(vector(f32, count))
    return wide if to is f32 else _upper_halves(wide)


def _within_bytes(a: Slice, to: Type) -> Expr:
    """Widen nibbles that begin or end within a byte: widen the whole bytes around them and take a slice."""
    first = a.start - a.start % 2
    count = a.start + a.count - first
    whole = Slice(a.a, first, count + count % 2)
    return Slice(widened(whole, to), a.start - first, a.count)


def rounded(a: Expr, to: Type, *, saturate: bool) -> Expr:
    """Round a vector of f32 to an 8-bit format; with `saturate` too large values become the largest finite one."""
    count = a.type.lanes
    return Pack(vector(to, count), (codes(a, to, saturate=saturate).to(vector(u8, count)),))


def unpacked(a: Expr, of: Type) -> Expr:
    """Return f16 numbers of the bytes `a`, which pack floats of 6 bits, four in three bytes, low bits first."""
    size = a.type.lanes
    with_zero: Expr = Pack(vector(u8, size + 4), (a, zeros(vector(u8, 4))))
    order = tuple(at for first in range(0, size, 3) for at in (first, first + 1, first + 2, size))
    words = Pack(vector(u32, size // 3), (Shuffle(with_zero, order),))
    spread: Expr = words & 0x3F
    for n in range(1, 4):  # from bit 6 * n to bit 8 * n
        spread = spread | words << 2 * n & 0x3F << 8 * n
    return Pack(vector(f16, size // 3 * 4), (_TO_F16[of](_halves_of_bytes(spread)),))


def codes(a: Expr, to: Type, *, saturate: bool) -> Expr:
    """Return the codes of `rounded` as words; also of f4_e2m1, for numbers within its range."""
    how, count = _ROUNDINGS[to], a.type.lanes
    shift = 23 - how.mantissa
    bits: Expr = Pack(vector(u32, count), (a,))
    size = bits & 0x7FFFFFFF
    # Normal results: add half a step, less if the last kept bit is even, and change the exponent's bias.
    half = (1 << shift - 1) - 1 - (127 - how.bias << 23)
    normal = size + lift(half & 0xFFFFFFFF, size) + (size >> shift & 1) >> shift
    # Denormal results: add a float whose ulp is the least step of the format, so that the sum's low bits are the code.
    steps = const(2.0 ** (24 - how.bias - how.mantissa), f32)
    raised = Pack(a.type, (size,)) + Splat(vector(a.type.elem, a.type.lanes), steps)
    denormal = Pack(bits.type, (raised,)) - lift(steps.bits, bits)
    code: Expr = minimum(normal, how.largest if saturate else how.beyond)
    code = _select(size < lift(128 - how.bias << 23, size), denormal, code)
    code = _select(lift(0x7F800000, size) < size, lift(how.nan, size), code)
    sign: Expr = bits >> _WORD - to.bits & 1 << to.bits - 1
    if not how.has_negative_zero:
        sign = _select(eq(code, 0), code, sign)
    return code | sign


def _select(cond: Expr, a: Expr, b: Expr) -> Expr:
    return Select(cond, a, b)


def _words(a: Expr) -> Expr:
    """Return the bits of a vector as 32-bit words, zero-extended."""
    bits = a.type.bits
    if bits in (u8.bits, u16.bits):
        elem = u8 if bits == u8.bits else u16
        return Pack(vector(elem, 1), (a,)).to(vector(u32, 1))
    missing = -bits % _WORD // u8.bits
    parts = (a, zeros(vector(u8, missing))) if missing else (a,)
    return Pack(vector(u32, -(-bits // _WORD)), parts)


def _first(elem: Type, count: int, words: Expr) -> Expr:
    """Return the first `count` elements of type `elem` in `words`."""
    available = words.type.bits // elem.bits
    elements: Expr = Pack(vector(elem, available), (words,))
    return elements if available == count else Slice(elements, 0, count)


def _interleaved(parts: Sequence[Expr]) -> Expr:
    """Return the first words of all parts, then the second ones, and so on."""
    count = parts[0].type.lanes
    together: Expr = Pack(vector(u32, count * len(parts)), tuple(parts))
    return Shuffle(together, tuple(n * count + i for i in range(count) for n in range(len(parts))))


def _halves(of: Type, words: Expr) -> Expr:
    """Return words with two f16 each, from words of narrow elements."""
    split = _halves_of_nibbles if of.bits == 4 else _halves_of_bytes
    return _TO_F16[of](split(words))


def _halves_of_bytes(words: Expr) -> Expr:
    """Return words with two bytes each, in the upper byte of each half."""
    count = words.type.lanes
    with_zero: Expr = Pack(vector(u8, 4 * count + 4), (words, zeros(vector(u8, 4))))
    zero = 4 * count
    return Pack(vector(u32, 2 * count), (Shuffle(with_zero, tuple(n for i in range(zero) for n in (zero, i))),))


def _halves_of_nibbles(words: Expr) -> Expr:
    """Return words with two nibbles each, in the low bits of each half; the bits above are arbitrary."""
    count = words.type.lanes
    parts = tuple(words >> 4 * i if i else words for i in range(4))
    order = (2 * (n % 4 * count + w) + n // 4 for w in range(count) for n in range(8))
    spread = Shuffle(Pack(vector(u16, 8 * count), parts), tuple(order))
    return Pack(vector(u32, 4 * count), (spread,))


def _bytes_of_nibbles(of: Type, words: Expr) -> Expr:
    """Return words with four nibbles each, sign- or zero-extended to bytes."""
    pairs = _interleaved([words & 0x0F * _BYTES, words >> 4 & 0x0F * _BYTES])
    count = words.type.lanes
    order = (8 * w + 4 * (n % 2) + n // 2 for w in range(count) for n in range(8))
    spread = Pack(pairs.type, (Shuffle(Pack(vector(u8, 8 * count), (pairs,)), tuple(order)),))
    if of is u4:
        return spread
    sign = spread & 0x08 * _BYTES
    return spread | (sign << 5) - (sign << 1)


def _as_halves(words: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Apply `change` to words as f16 pairs."""
    return Pack(words.type, (change(Pack(vector(f16, 2 * words.type.lanes), (words,))),))


def _by_steps_of_one(flipped: int) -> Callable[[Expr], Expr]:
    """Return a conversion of nibbles n to f16, by the bits of 1024 + n (steps of 1) after inverting `flipped` bits."""

    def make(words: Expr) -> Expr:
        numbers = words & 0xF * _HALVES ^ (0x6400 | flipped) * _HALVES
        return _as_halves(numbers, lambda h: h - float(1024 + flipped))

    return make


def _e2m1(words: Expr) -> Expr:
    """Convert e2m1 nibbles: move sign and exponent up, correct the bias from 1 to 15."""
    moved = words << 12 & 0x8000 * _HALVES | words << 9 & 0x0E00 * _HALVES
    return _as_halves(moved, lambda h: h * 2.0**14)


def _e2m3(words: Expr) -> Expr:
    """Convert e2m3 codes in 6 bits: move sign and exponent, correct the bias from 1 to 15."""
    moved = words << 2 & 0x8000 * _HALVES | words >> 1 & 0x0F80 * _HALVES
    return _as_halves(moved, lambda h: h * 2.0**14)


def _e3m2(words: Expr) -> Expr:
    """Convert e3m2 codes in 6 bits: move the sign, correct the bias from 3 to 15."""
    moved = words << 2 & 0x8000 * _HALVES | words & 0x1F00 * _HALVES
    return _as_halves(moved, lambda h: h * 2.0**12)


def _e4m3(words: Expr) -> Expr:
    """Convert e4m3 bytes: correct the bias from 7 to 15; the largest code is NaN."""
    size = words & 0x7F00 * _HALVES
    nan = size + 0x0100 * _HALVES & 0x8000 * _HALVES
    moved = words & 0x8000 * _HALVES | size >> 1
    return _as_halves(moved, lambda h: h * 2.0**8) | nan - (nan >> 6)


def _nan_of_sign(words: Expr) -> Expr:
    """Return NaN in halves whose upper byte is only a sign bit, zero elsewhere."""
    is_more = (words & 0x7F00 * _HALVES) + 0x7F00 * _HALVES
    nan = words & (is_more ^ 0xFFFFFFFF) & 0x8000 * _HALVES
    return nan - (nan >> 6)


def _e4m3fnuz(words: Expr) -> Expr:
    """Convert e4m3fnuz bytes: correct the bias from 8 to 15; the code of minus zero is NaN."""
    moved = words & 0x8000 * _HALVES | (words & 0x7F00 * _HALVES) >> 1
    return _as_halves(moved, lambda h: h * 2.0**7) | _nan_of_sign(words)


def _e5m2fnuz(words: Expr) -> Expr:
    """Convert e5m2fnuz bytes: bias 16 to 15 by decrementing exponents from 2 on and halving smaller numbers."""
    size = words & 0x7F00 * _HALVES
    less = (size + 0x7800 * _HALVES & 0x8000 * _HALVES) >> 5
    factor = Pack(vector(f16, 2 * words.type.lanes), (less + 0x3800 * _HALVES,))  # 0.5, or 1 where the exponent changed
    moved = words & 0x8000 * _HALVES | size - less
    return _as_halves(moved, lambda h: h * factor) | _nan_of_sign(words)


#: Conversions to f16 from bytes, or codes of 6 bits, in the upper byte of halves, or from nibbles in their low bits.
_TO_F16: dict[Type, Callable[[Expr], Expr]] = {
    u4: _by_steps_of_one(0),
    s4: _by_steps_of_one(8),
    f4_e2m1: _e2m1,
    f6_e2m3: _e2m3,
    f6_e3m2: _e3m2,
    f8_e4m3: _e4m3,
    f8_e5m2: lambda words: words,
    f8_e4m3fnuz: _e4m3fnuz,
    f8_e5m2fnuz: _e5m2fnuz,
}


def _upper_halves(a: Expr) -> Expr:
    """Return the upper halves of f32 elements as bf16: exact, as their lower halves are zero."""
    count = a.type.lanes
    halves: Expr = Pack(vector(bf16, 2 * count), (a,))
    return Shuffle(halves, tuple(range(1, 2 * count, 2)))


def _power_of_two(a: Expr) -> Expr:
    """Return f32 powers of two: the e8m0 code is the exponent, code 0 a denormal number, code 0xFF NaN."""
    count = a.type.lanes
    code: Expr = Pack(vector(u8, count), (a,)).to(vector(u32, count))
    bits = _select(eq(code, 0), lift(1 << 22, code), code << 23)
    bits = _select(eq(code, 0xFF), lift(0x7FC00000, code), bits)
    return Pack(vector(f32, count), (bits,))
