"""Interval analysis: the integer range of an expression's value over all lanes and elements.

Ranges are inclusive and sound under wraparound: if an operation's exact interval leaves the type, the value may have
wrapped and the range is the type's. A bool is an integer in [0, 1]. Errors by docs/ir.md (division by zero, a shift out
of range) have no value and so widen no range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from convgen.ir import expr as x
from convgen.ir import sizes
from convgen.ir.fused import Fused
from convgen.ir.types import AnyType, Type, u32
from convgen.ir.votes import AllLanes

Range = tuple[int, int]

WIDTH = 64  #: lanes of a subgroup by default: the widest subgroup of any target


def type_range(type: Type) -> Range:
    """Return all values of an integer or bool type."""
    return type.min, type.max


class _FullRanges(dict[AnyType, Range | None]):
    """The ranges of the elements of types, computed once a type; None for floats."""

    def __missing__(self, type: AnyType) -> Range | None:
        self[type] = None if type.elem.is_float else type_range(type.elem)
        return self[type]


FULL = _FullRanges()


def hull(*ranges: Range) -> Range:
    """Return the smallest range that contains all of `ranges`."""
    if len(ranges) == 1:
        return ranges[0]
    least, most = zip(*ranges)
    return min(least), max(most)


def intersection(a: Range, b: Range) -> Range:
    """Return the values in both; `a` if there are none, as in code that never runs."""
    lo, hi = max(a[0], b[0]), min(a[1], b[1])
    return (lo, hi) if lo <= hi else a


def within(inner: Range, outer: Range) -> bool:
    """Return whether every value of `inner` lies in `outer`."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


class Bounds:
    """The ranges of expressions, given those of variables; a variable that `env` lacks has its type's range.

    Results are memoized, so `env` may only gain variables that no expression has asked about yet.
    """

    def __init__(
        self, env: Mapping[Any, Range], width: int = WIDTH, definitions: Mapping[x.Var, x.Expr] | None = None
    ) -> None:
        """Set `env`, ranges of variables and other expressions, and `definitions`, the values of lets by variable."""
        self.env, self.width = env, width
        self.definitions: Mapping[x.Var, x.Expr] = {} if definitions is None else definitions
        self._memo: dict[x.Expr, Range] = {}
        self._never_wraps: dict[x.Expr, bool] = {}

    def __call__(self, e: x.Expr) -> Range:
        """Return the range of an expression of integer or bool elements; ValueError for other types."""
        known = self._memo.get(e)
        if known is None:
            full, exact = FULL[e.type], self.exact(e)
            if full is None:
                raise ValueError(f"bounds: an expression of type {e.type}")
            known = exact if full[0] <= exact[0] and exact[1] <= full[1] else full
            if e in self.env:
                known = intersection(known, self.env[e])
            self._memo[e] = known
        return known

    def exact(self, e: x.Expr) -> Range:
        """Return the range of the operation at the root as if it could not wrap; its operands may have wrapped."""
        transfer = _TRANSFER.get(type(e))
        return transfer(self, e) if transfer else type_range(e.type.elem)

    def cannot_wrap(self, e: x.Expr) -> bool:
        """Return whether the operation at the root provably gives its exact result."""
        known = self._never_wraps.get(e)
        if known is None:
            known = self._never_wraps[e] = within(self.exact(e), type_range(e.type.elem))
        return known


def bounds(e: x.Expr, env: Mapping[x.Var, Range], width: int = WIDTH) -> Range:
    """Return the range of `e`, given those of its variables, in subgroups of `width` lanes."""
    return Bounds(env, width)(e)


# ---------------------------------------------------------------- operators


def _corners(f: Callable[[int, int], int], a: Range, b: Range) -> Range:
    """Return the range of an `f` that is monotone in each operand."""
    values = (f(a[0], b[0]), f(a[0], b[1]), f(a[1], b[0]), f(a[1], b[1]))
    return min(values), max(values)


def _signed_parts(b: Range) -> Iterator[Range]:
    """Yield the negative and the positive part of a divisor's range."""
    if b[0] < 0:
        yield b[0], min(b[1], -1)
    if b[1] > 0:
        yield max(b[0], 1), b[1]


def _div(a: Range, b: Range, full: Range) -> Range:
    parts = [_corners(int.__floordiv__, a, part) for part in _signed_parts(b)]
    return hull(*parts) if parts else full


def _mod(a: Range, b: Range, full: Range) -> Range:
    if b[0] == b[1] != 0 and a[0] // b[0] == a[1] // b[0]:
        return a[0] % b[0], a[1] % b[0]
    parts = []
    for lo, hi in _signed_parts(b):
        if lo > 0:
            inside = a[0] >= 0 and a[1] < lo
            parts.append(a if inside else (0, min(hi - 1, a[1]) if a[0] >= 0 else hi - 1))
        else:
            inside = hi < a[0] and a[1] <= 0
            parts.append(a if inside else (max(lo + 1, a[0]) if a[1] <= 0 else lo + 1, 0))
    return hull(*parts) if parts else full


def _bits(a: Range, b: Range) -> Range:
    """Return a range for any bitwise operation: the two's complement numbers as wide as the wider operand."""
    width = max((n if n >= 0 else ~n).bit_length() for n in (*a, *b))
    return -(1 << width) if min(a[0], b[0]) < 0 else 0, (1 << width) - 1


def _bitwise(f: Callable[[int, int], int], range_of: Callable[[Range, Range], Range]) -> Callable[..., Range]:
    """Return the transfer function of a bitwise `f`: exact for two constants, else `range_of` the operands' ranges."""
    return lambda a, b, full: (f(a[0], b[0]),) * 2 if a[0] == a[1] and b[0] == b[1] else range_of(a, b)


def _and(a: Range, b: Range) -> Range:
    upper = [r[1] for r in (a, b) if r[0] >= 0]
    return (0, min(upper)) if upper else _bits(a, b)


def _or(a: Range, b: Range) -> Range:
    lo, hi = _bits(a, b)
    return (max(a[0], b[0]), min(hi, a[1] + b[1])) if lo == 0 else (lo, hi)


def _xor(a: Range, b: Range) -> Range:
    lo, hi = _bits(a, b)
    return (0, min(hi, a[1] + b[1])) if lo == 0 else (lo, hi)


def _shift(a: Range, b: Range, full: Range, f: Callable[[int, int], int]) -> Range:
    bits = (full[1] - full[0]).bit_length()
    amounts = max(b[0], 0), min(b[1], bits - 1)
    return _corners(f, a, amounts) if amounts[0] <= amounts[1] else full


def _mulhi(a: Range, b: Range, full: Range) -> Range:
    if min(a[0], b[0]) < 0:
        return full
    return a[0] * b[0] >> 32, a[1] * b[1] >> 32


_ARITHMETIC: dict[type[x.Expr], Callable[[Range, Range, Range], Range]] = {
    x.Add: lambda a, b, full: (a[0] + b[0], a[1] + b[1]),
    x.Sub: lambda a, b, full: (a[0] - b[1], a[1] - b[0]),
    x.Mul: lambda a, b, full: _corners(int.__mul__, a, b),
    x.MulHi: _mulhi,
    x.Div: _div,
    x.Mod: _mod,
    x.Max: lambda a, b, full: (max(a[0], b[0]), max(a[1], b[1])),
    x.And: _bitwise(int.__and__, _and),
    x.Or: _bitwise(int.__or__, _or),
    x.Xor: _bitwise(int.__xor__, _xor),
    x.Shl: lambda a, b, full: _shift(a, b, full, int.__lshift__),
    x.Shr: lambda a, b, full: _shift(a, b, full, int.__rshift__),
}


def _truth(always: bool, never: bool) -> Range:
    return int(always), int(not never)


_COMPARISONS: dict[type[x.Expr], Callable[[Range, Range], Range]] = {
    x.Lt: lambda a, b: _truth(a[1] < b[0], a[0] >= b[1]),
    x.Le: lambda a, b: _truth(a[1] <= b[0], a[0] > b[1]),
    x.Eq: lambda a, b: _truth(a[0] == a[1] == b[0] == b[1], a[1] < b[0] or b[1] < a[0]),
    x.Ne: lambda a, b: _truth(a[1] < b[0] or b[1] < a[0], a[0] == a[1] == b[0] == b[1]),
}


def _arithmetic(ranges: Bounds, e: Any) -> Range:
    full = FULL[e.type]
    assert full is not None
    return _ARITHMETIC[type(e)](ranges(e.a), ranges(e.b), full)


def _comparison(ranges: Bounds, e: Any) -> Range:
    if e.a.type.elem.is_float:
        return 0, 1
    return _COMPARISONS[type(e)](ranges(e.a), ranges(e.b))


def _not(ranges: Bounds, e: x.Not) -> Range:
    lo, hi = ranges(e.a)
    ones = sum(type_range(e.type.elem))  # the complement of x: -1 - x signed, max - x unsigned and bool
    return ones - hi, ones - lo


def _select(ranges: Bounds, e: x.Select) -> Range:
    cond = ranges(e.cond)
    if cond[0] == cond[1]:
        return ranges(e.a if cond[0] else e.b)
    low, high = ranges(e.b)
    if isinstance(e.cond, x.Le) and e.cond.b is e.b:  # where `cond.a <= b` fails, b < cond.a
        high = max(low, min(high, ranges(e.cond.a)[1] - 1))
    return hull(ranges(e.a), (low, high))


def definition(e: x.Expr, definitions: Mapping[x.Var, x.Expr]) -> x.Expr:
    """Return the value that a let binds to a variable; other expressions unchanged."""
    return definitions.get(e, e) if isinstance(e, x.Var) else e


def modulo_by_minimum(e: x.Expr, definitions: Mapping[x.Var, x.Expr]) -> tuple[x.Expr, int] | None:
    """Return (t, r) if `e` is the unsigned minimum of t and t - r, which is t modulo r for t below 2r; else None."""
    e = definition(e.a if isinstance(e, x.Cast) else e, definitions)
    if not isinstance(e, x.Min) or e.type.elem is not u32:
        return None
    return next(((t, r) for t, less in ((e.a, e.b), (e.b, e.a)) if (r := _subtracted(t, less, definitions))), None)


def _subtracted(a: x.Expr, b: x.Expr, definitions: Mapping[x.Var, x.Expr]) -> int:
    """Return the constant in [1, 2^32) by which word `b` is less than word `a` modulo 2^32; 0 if there is none."""
    if isinstance(a, x.Cast) and isinstance(b, x.Cast):
        a, b = a.a, b.a
    match definition(b, definitions):
        case x.Add(t, x.Const(_, more)) if t is a:
            return -more % (1 << 32)
        case x.Sub(t, x.Const(_, less)) if t is a:
            return less % (1 << 32)
    return 0


def _difference(ranges: Bounds, e: x.Sub) -> Range:
    low, high = _arithmetic(ranges, e)
    divisor = _remaining(ranges, e)
    return (max(low, 0), min(high, divisor - 1)) if divisor else (low, high)


def _remaining(ranges: Bounds, e: x.Sub) -> int:
    """Return d if `e` is the remainder by d in the form of `expand_division`, a - (a // d) * d; else 0.

    With d * m = 2^s + r and 0 <= n * r < 2^s, n * m >> s is n // d: it exceeds n / d by less than 1 / d.
    """
    match e:
        case x.Sub(a, x.Mul(x.Cast(_, x.Shr(x.MulHi(x.Cast(_, n), x.Const(_, m)), x.Const(_, s))), x.Const(_, d))):
            whole = 1 << 32 + s
            low, high = ranges(n)
            return d if n is a and low >= 0 and d * m - whole >= 0 and high * (d * m - whole) < whole else 0
    return 0


def _minimum(ranges: Bounds, e: x.Min) -> Range:
    a, b = ranges(e.a), ranges(e.b)
    low, high = min(a[0], b[0]), min(a[1], b[1])
    if (found := modulo_by_minimum(e, ranges.definitions)) and ranges(found[0])[1] < 2 * found[1]:
        high = min(high, found[1] - 1)
    return low, high


def _cast(ranges: Bounds, e: x.Conversion) -> Range:
    full = type_range(e.type.elem)
    if e.a.type.elem.is_float:
        return full
    lo, hi = ranges(e.a)
    if e.type.elem.is_bool:
        return _truth(lo > 0 or hi < 0, lo == hi == 0)
    return lo, hi


def _saturate(ranges: Bounds, e: x.Saturate) -> Range:
    (low, high), (least, most) = _cast(ranges, e), type_range(e.type.elem)
    return max(least, min(low, most)), max(least, min(high, most))


#: Transfer functions: the exact range of an operation from the ranges of its operands.
_TRANSFER: dict[type[x.Expr], Callable[[Bounds, Any], Range]] = {
    x.Const: lambda ranges, e: (int(e.bits), int(e.bits)),
    x.Var: lambda ranges, e: ranges.env.get(e) or type_range(e.type.elem),
    sizes.Size: lambda ranges, e: e.range,
    sizes.HostValue: lambda ranges, e: ranges.env.get(e) or type_range(e.type.elem),
    x.Lane: lambda ranges, e: (0, ranges.width - 1),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys((x.Uniform, x.Splat, x.Slice, x.Shuffle, x.FromLane, AllLanes), lambda ranges, e: ranges(e.a)),
    x.Sub: _difference,
    x.Min: _minimum,
    x.Not: _not,
    x.Select: _select,
    Fused: lambda ranges, e: ranges(e.meaning),
    x.Cast: _cast,
    x.Saturate: _saturate,
}
