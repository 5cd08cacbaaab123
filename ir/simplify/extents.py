"""Bounds and divisors of extents: numbers, or expressions of the sizes that a host passes at launch.

Extents are exact integers of any size in this module; code that computes one at run time must check that it fits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping
from functools import lru_cache
from typing import Any

from convgen.ir.error import Unsupported
from convgen.ir.expr import Add, Binary, Const, Div, Expr, Max, Min, Mod, Mul, Sub, Var, Xor
from convgen.ir.mutate import free_vars
from convgen.ir.sizes import OPERATIONS, Extent, Size, no_extent

#: a sum of products: coefficients by factors, which are neither sums nor products
_Terms = Mapping[tuple[Expr, ...], int]


def lower_bound(extent: Extent) -> int:
    """Return a lower bound of an extent."""
    return extent if isinstance(extent, int) else _range(extent)[0]


def upper_bound(extent: Extent) -> int:
    """Return an upper bound of an extent."""
    return extent if isinstance(extent, int) else _range(extent)[1]


def rounded_up(extent: Extent, part: int) -> Extent:
    """Return the number of parts of length `part` that cover an extent."""
    if isinstance(extent, int):
        return -(-extent // part)
    return (extent + (part - 1)) // part if part > 1 else extent


def is_multiple(extent: Extent, of: int) -> bool:
    """Return whether `of` is known to divide an extent."""
    return (extent if isinstance(extent, int) else divisor(extent, {})) % of == 0


def never_less(a: Extent, b: Extent) -> bool:
    """Return whether `a >= b` holds for all sizes, as far as provable."""
    return lower_bound(a - b) >= 0


def divisor(e: Expr, values: Mapping[Var, Expr]) -> int:
    """Return a number that divides the value of an integer expression; 0 for zero. `values` resolves lets."""
    match e:
        case Const():
            return abs(e.bits)
        case Mul(a, b):
            return divisor(a, values) * divisor(b, values)
        case Add(a, b) | Sub(a, b) | Min(a, b) | Mod(a, b):
            return math.gcd(divisor(a, values), divisor(b, values))
        case Xor(a, b):
            common = math.gcd(divisor(a, values), divisor(b, values))
            return common & -common
        case Size():
            return e.multiple
        case Var() if e in values:
            return divisor(values[e], values)
    return 1


def value_of(extent: Extent, sizes: Mapping[Var, int]) -> int:
    """Return the value of an extent in a launch with these sizes."""
    if isinstance(extent, int):
        return extent
    match extent:
        case Const():
            return int(extent.bits)
        case Var():
            return sizes[extent]
        case Binary(a, b) if type(extent) in OPERATIONS:
            _, operation = OPERATIONS[type(extent)]
            return operation(value_of(a, sizes), value_of(b, sizes))
    raise Unsupported(no_extent(extent))


def extent_complaint(extent: Extent, known: Container[Any], least: int, most: int) -> str | None:
    """Return a complaint unless an extent is made of `known` sizes only and lies in [least, most]."""
    if isinstance(extent, Expr):
        unknown = [v.name for v in free_vars(extent) if v not in known or not isinstance(v, Size)]
        if unknown:
            return f"the extent {extent} is made of {unknown[0]}, which is no size of the kernel's"
    try:
        low, high = lower_bound(extent), upper_bound(extent)
    except Unsupported as error:
        return str(error)
    return None if least <= low and high <= most else f"an extent {extent} of {low} to {high}, at most {most}"


@lru_cache(maxsize=1 << 10)
def _range(e: Expr) -> tuple[int, int]:
    """Return the range of a sum of products; no factor is ever negative."""
    low = high = 0
    for factors, coef in _terms(e).items():
        ends = [coef * math.prod(_atom(f)[end] for f in factors) for end in (0, 1)]
        low, high = low + min(ends), high + max(ends)
    return low, high


def _atom(e: Expr) -> tuple[int, int]:
    """Return the range of a factor: a size, a quotient by a constant, a minimum or a maximum."""
    match e:
        case Size():
            return e.range
        case Div(a, Const(_, by)) if by > 0:
            low, high = _range(a)
            return max(0, low // by), high // by
        case Min(a, b) | Max(a, b):
            choose = min if isinstance(e, Min) else max
            (low, high), (other_low, other_high) = _range(a), _range(b)
            return max(0, choose(low, other_low)), choose(high, other_high)
    raise Unsupported(no_extent(e))


@lru_cache(maxsize=1 << 10)
def _terms(e: Expr) -> _Terms:
    """Return an extent as a sum of products, multiplied out."""
    terms: Counter[tuple[Expr, ...]] = Counter()
    match e:
        case Const():
            terms[()] = e.bits
        case Add(a, b) | Sub(a, b):
            terms.update(_terms(a))
            terms.update({t: coef if isinstance(e, Add) else -coef for t, coef in _terms(b).items()})
        case Mul(a, b):
            for one, coef in _terms(a).items():
                for other, by in _terms(b).items():
                    terms[tuple(sorted((*one, *other), key=str))] += coef * by
        case _:
            terms[(e,)] = 1
    return {t: coef for t, coef in terms.items() if coef}
