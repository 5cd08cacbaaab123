"""Ranges of right results after scales and post-ops: the least and greatest f32 of each element, as arrays.

Operations of exact post-ops are rounded to f32 one by one, as on every target. Other functions are computed in f64, and
their error bound makes a range, which later post-ops propagate: the new ends are the function's extremes at the old
ends and at turning points between them. If one of these points gives NaN (a logarithm of a number that may be
negative), NaN is right as well as the numbers of the other points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.ir.record import frozen
from convgen.problem.post_ops import Binary, Eltwise, Glu, PostOp, Prelu, Sum
from convgen.run import accuracy
from convgen.run.reference_types import numpy_type

Floats = npt.NDArray[np.float32]
Read = Callable[[str], npt.NDArray[Any]]
_Any = npt.NDArray[Any]

_LEAST = 2.0**-126  #: denormal numbers may count as zeros where an operation is approximate


@frozen
class Range:
    """The least and greatest right values, one array if they are equal; NaN where no number is right."""

    least: _Any
    most: _Any
    nan: npt.NDArray[np.bool_]  #: whether NaN is right

    @classmethod
    def of(cls, points: Sequence[_Any]) -> Range:
        """Return the range from the least to the greatest of some right values."""
        if len(points) == 1:
            return cls(points[0], points[0], points[0] != points[0])
        values = np.stack(points)
        return cls(np.fmin.reduce(values), np.fmax.reduce(values), (values != values).any(0))

    @property
    def is_one(self) -> bool:
        """Return whether exactly one value is right for each element."""
        return self.least is self.most

    def points(self, *turns: npt.ArrayLike) -> list[_Any]:
        """Return where a function that is monotonic between zero and `turns` takes its extremes over the range."""
        if self.is_one:
            return [self.least]
        places: list[_Any] = [np.asarray(turn, np.float32) for turn in (0, *turns)]
        inside = [np.where((self.least < at) & (at < self.most), at, self.least) for at in places]
        return [self.least, self.most, *inside, np.where(self.nan, np.nan, self.least)]

    def map(self, function: Callable[[_Any], _Any], *turns: npt.ArrayLike) -> Range:
        """Return the range of a function's values, which is monotonic between zero and `turns`."""
        return Range.of([function(point) for point in self.points(*turns)])


def chained(ops: Sequence[PostOp], result: Range, read: Read) -> Range:
    """Return the ranges after all post-ops; `read` returns the tensors that they need by name."""
    with np.errstate(all="ignore"):
        for n, op in enumerate(ops):
            match op:
                case Eltwise():
                    result = _scaled(op, _applied(op, result))
                case Sum():
                    result = _with(np.add, result, _term(op, read("dst")))
                case Prelu():
                    result = _with(_prelu, result, _floats(read(f"post_op_{n}")))
                case Binary():
                    condition = None if op.condition is None else read(f"post_op_{n}_condition")
                    result = _binary(op, result, read(f"post_op_{n}"), condition)
    return result


def gated(unit: Glu, gate: Range, up: Range) -> Range:
    """Return the ranges of a function of the gate, times up, whose values are exact."""
    with np.errstate(all="ignore"):
        return _with(np.multiply, _scaled(unit.function, _applied(unit.function, gate)), up.least)


def where(exists: npt.NDArray[np.bool_], given: Range) -> Range:
    """Return the ranges of elements that exist, 0 for all others."""
    if given.is_one:
        return Range.of([np.where(exists, given.least, given.least.dtype.type(0))])
    least, most = (np.where(exists, end, end.dtype.type(0)) for end in (given.least, given.most))
    return Range(least, most, given.nan & exists)


def summed(terms: Sequence[Range]) -> Range:
    """Return the ranges of sums of integers, of f32 or of ranges, in any order; none is minus zero."""
    with np.errstate(all="ignore"):
        total = Range.of([np.zeros_like(terms[0].least)])
        for term in terms:
            if total.is_one and term.is_one:
                total = Range.of([total.least + term.least])
            else:
                ends = Range(total.least + term.least, total.most + term.most, total.nan | term.nan)
                total = _outwards(_outwards(ends))
        if not total.is_one or np.issubdtype(total.least.dtype, np.integer):
            return total
        values = np.stack([term.least for term in terms]).astype(np.float64)
        error = _rounding_of_sums(values)
        if not error.any():
            return total
        low, high = ((values.sum(0) + sign * error).astype(np.float32) for sign in (-1, 1))
        ends = _outwards(Range(low, high, total.nan))
        least, most = (np.where(error, end, total.least) for end in (ends.least, ends.most))
        return Range(least, most, total.nan)


def _rounding_of_sums(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return how far f32 may round sums over the first axis, added in any order; 0 where it adds them exactly.

    Sums are exact if all values are multiples of one power of two, and their magnitudes add up to 2^24 times that.
    Else each addition rounds by at most 2^-24 of the magnitudes' sum (Higham, Accuracy and Stability, 4.2).
    """
    fractions, exponents = np.frexp(values)
    whole = (fractions * 2.0**24).astype(np.int64)
    steps = np.where(whole == 0, np.inf, np.ldexp((whole & -whole).astype(np.float64), exponents - 24))
    magnitude = np.abs(values).sum(0)
    is_exact = ~np.isfinite(magnitude) | (magnitude <= 2.0**24 * steps.min(0))
    return np.where(is_exact, 0.0, len(values) * 2.0**-24 * magnitude)


def multiplied(values: Floats, numbers: Sequence[np.float32], tensors: Sequence[npt.NDArray[Any]]) -> Floats:
    """Multiply values by numbers and tensors, whose product is rounded to f32 factor by factor, numbers first."""
    with np.errstate(all="ignore"):
        factor: Any = np.float32(1)
        for term in (*numbers, *tensors):
            factor = factor * np.asarray(term, np.float32)
        product: Floats = values * factor
        return product


def divided(given: Range, by: npt.NDArray[Any]) -> Range:
    """Multiply by the reciprocal of numbers rounded to f32.

    Those of a tensor have an error of one ulp, unless they are powers of two, zeros or infinities. Denormal ones may
    count as zeros.
    """
    with np.errstate(all="ignore"):
        scale = _floats(by)
        factor = np.float32(1) / scale
        if by.ndim == 0:
            return _with(np.multiply, given, factor)
        exact = (np.abs(np.frexp(factor)[0]) == 0.5) | (factor == 0) | ~np.isfinite(factor)
        ends = [np.where(exact, factor, np.nextafter(factor, np.float32(end))) for end in (-np.inf, np.inf)]
        ends = [factor] if np.all(exact) else ends
        ends += [*_flushed([factor]), *(np.float32(1) / each for each in _flushed([scale]))]
        return Range.of([point * each for point in given.points() for each in ends])


def shifted(given: Range, by: npt.NDArray[Any]) -> Range:
    """Add a zero point."""
    return _with(np.add, given, _floats(by))


def converted(given: Range, function: Callable[[_Any], _Any], largest: float) -> Range:
    """Convert a range to a type; a type without infinity turns values beyond its largest number into NaN."""
    with np.errstate(invalid="ignore"):
        return given.map(function, -largest, largest)


def _floats(given: npt.NDArray[Any]) -> Floats:
    return given.astype(np.float32)


def _term(op: Sum, old: npt.NDArray[Any]) -> Any:
    typed = old.view(numpy_type(op.dtype)) if op.dtype else old
    return (_floats(typed) - np.float32(op.zero_point)) * np.float32(op.scale)


def _with(function: Callable[[Any, Any], Any], given: Range, term: _Any, *turns: _Any) -> Range:
    """Return the range of a function of numbers and a term, rounded once; `turns` are its turning points."""
    return given.map(lambda point: np.asarray(function(point, term), np.float32), *turns)


def _prelu(x: Floats, slope: Floats) -> Floats:
    return np.where(x > 0, x, x * slope)


def _binary(op: Binary, given: Range, operand: npt.NDArray[Any], condition: npt.NDArray[Any] | None = None) -> Range:
    term = _floats(operand)
    if condition is not None:
        return _with(lambda x, y: np.where(condition != 0, x, y), given, term)
    if op.name == "div":
        return _outwards(_with(np.divide, given, term))
    return _with(_BINARY[op.name], given, term, *([term] if op.name in ("eq", "ne") else []))


def _least(x: _Any, y: _Any) -> _Any:
    return np.where(x == y, np.where(np.signbit(x), x, y), np.fmin(x, y))


def _greatest(x: _Any, y: _Any) -> _Any:
    return np.where(x == y, np.where(np.signbit(x), y, x), np.fmax(x, y))


#: `min` and `max` of a NaN and a number are the number; minus zero is less than zero to them.
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "max": _greatest,
    "min": _least,
    "mul": np.multiply,
    "sub": np.subtract,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "ne": np.not_equal,
}


def _applied(op: Eltwise, given: Range) -> Range:
    points = given.points(*accuracy.turns(op))
    if accuracy.of(op).is_exact:
        result = Range.of([np.asarray(accuracy.value(op, point), np.float32) for point in points])
        return result if given.is_one else _outwards(result)
    exact = Range.of([accuracy.value(op, point.astype(np.float64)) for point in (*points, *_flushed(points))])
    return _outwards(Range(exact.least - _off(op, exact.least), exact.most + _off(op, exact.most), exact.nan))


def _flushed(points: Sequence[_Any]) -> Iterator[_Any]:
    """Yield the points that have denormal numbers, with zeros of their signs in place of these (docs/ir.md, Floats)."""
    for point in points:
        size = np.abs(point)
        is_denormal = (size > 0) & (size < _LEAST)
        if is_denormal.any():
            yield np.where(is_denormal, np.copysign(point.dtype.type(0), point), point)


def _off(op: Eltwise, value: _Any) -> _Any:
    """Return the error bound of results; an infinite result has none."""
    size = np.where(np.isfinite(value), np.abs(value), 0)
    ulp = np.exp2(np.floor(np.log2(np.maximum(size, _LEAST))) - 23)
    bound = accuracy.of(op)
    off: _Any = np.maximum(bound.ulps * ulp, max(bound.absolute, _LEAST))
    return off


def _outwards(given: Range) -> Range:
    low, high = _floats(given.least), _floats(given.most)
    low = np.where(np.isinf(low), low, np.nextafter(low, np.float32(-np.inf)))
    return Range(low, np.where(np.isinf(high), high, np.nextafter(high, np.float32(np.inf))), given.nan)


def _scaled(op: Eltwise, given: Range) -> Range:
    return given if op.scale == 1 else given.map(lambda point: point * np.float32(op.scale))
