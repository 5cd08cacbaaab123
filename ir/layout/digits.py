"""Digits: the one algebra of layouts.

A coordinate along a dimension is written in mixed-radix digits, and each digit lives in a space: memory (an address),
register, lane, subgroup or workgroup. The digits of a dimension are ordered innermost first, so one step of a digit
counts as many positions as the digits inside it have together. In its space a step counts `stride`; the contributions
of a space's digits add up.

Memory layouts and their tags, MMA operands, a lane's part of a copy, shared tiles, fused axes of views and the mapping
of workgroups to tiles are instances. Indices may be integers, numpy arrays or IR expressions: only `+ * // %` by
integer constants are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from itertools import accumulate
from math import isqrt, prod
from operator import mul
from typing import Any, Self

from convgen.ir.error import UserError
from convgen.ir.record import evolve, frozen

Index = Any  #: an integer, a numpy array or an IR expression


class Space(StrEnum):
    """The space in which a digit lives."""

    MEMORY = "memory"  #: elements from a buffer's or a tile's start
    REGISTER = "register"  #: element number within one lane
    LANE = "lane"
    SUBGROUP = "subgroup"
    WORKGROUP = "workgroup"
    AXIS = "axis"  #: position along the fused axis of a view
    FIXED = "fixed"  #: no space: the digit has the constant value `stride`
    THREAD = "thread"  #: number within the workgroup, which splits into lane and subgroup


_FIXED = Space.FIXED  # a local name: attribute access on an Enum is slow


_LETTERS: dict[str, str] = dict(zip(Space, "mrlswa=t"))


@frozen
class Digit:
    """`size` consecutive positions of `dim`, found at `number // stride % size` of the space's number."""

    dim: str
    size: int
    space: str
    stride: int

    def __str__(self) -> str:
        return f"{self.dim}{self.size}{_LETTERS.get(self.space, self.space)}{self.stride}"


class Straddles(UserError):
    """Two splits of one number, neither of which refines the other."""


@frozen(cache_hash=True)
class Digits:
    """A split of the dimensions `dims` into digits, those of one dimension innermost first.

    Two numbers of a space with the same value in each of its digits are replicas: they have the same coordinates.
    """

    dims: tuple[str, ...]
    digits: tuple[Digit, ...]

    # ------------------------------------------------------------ sizes

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Return the positions along each of `dims`."""
        return tuple(prod(d.size for d in self.digits if d.dim == dim) for dim in self.dims)

    def extent(self, dim: str) -> int:
        return self.shape[self.dims.index(dim)]

    def count(self, space: str) -> int:
        """Return the number of different places in a space."""
        return prod(d.size for d in self.digits if d.space == space)

    def span(self, space: str) -> int:
        """Return one more than the highest number in a space."""
        return 1 + sum((d.size - 1) * d.stride for d in self.digits if d.space == space)

    def of(self, dim: str) -> tuple[Digit, ...]:
        """Return the digits of one dimension, innermost first."""
        return tuple(d for d in self.digits if d.dim == dim)

    def stepped(self) -> Iterator[tuple[int, Digit]]:
        """Yield each digit with the number of positions along its dimension that one step counts."""
        step = dict.fromkeys(self.dims, 1)
        for d in self.digits:
            yield step[d.dim], d
            step[d.dim] *= d.size

    # ------------------------------------------------------------ from one side to the other

    def coordinates(self, numbers: Mapping[str, Index], *, overrun: bool = False) -> dict[str, Index]:
        """Return the coordinates at these numbers of the spaces; a space without a number counts as 0.

        With `overrun` the outermost digit of each space is not reduced: numbers past the end overrun its dimension.
        """
        top = {d.space: d for d in sorted(self.digits, key=lambda d: d.stride * d.size)} if overrun else {}
        out: dict[str, Index] = dict.fromkeys(self.dims, 0)
        for step, d in self.stepped():
            if d.space in numbers:
                digit = _digit(numbers[d.space], d, reduced=top.get(d.space) is not d)
                out[d.dim] = plus(out[d.dim], times(digit, step))
        return out

    def place(self, coords: Mapping[str, Index], unit: int = 1) -> dict[str, Index]:
        """Return, for each space, the number of the first place with these coordinates: the inverse of `coordinates`.

        Coordinates must be in range. Strides are scaled by `unit`: by the bytes of an element, for instance.
        """
        last = {d.dim: d for d in self.digits if d.size != 1}
        out: dict[str, Index] = {d.space: 0 for d in self.digits if d.space != _FIXED}
        for step, d in self.stepped():
            if d.size != 1 and d.space in out:
                scaled = coords[d.dim] if step == 1 else coords[d.dim] // step
                digit = scaled if last[d.dim] is d else scaled % d.size
                out[d.space] = plus(times(digit, d.stride * unit), out[d.space])
        return out

    def adds_up(self, space: str, unit: int) -> bool:
        """Return whether coordinates of a multiple of `unit` and of a number below `unit` add up to those of their sum.

        They do where no digit carries from below `unit`.
        """
        below = [d for d in self.digits if d.space == space and d.stride % unit]
        even = (unit % d.stride == 0 and 0 in (unit // d.stride % d.size, d.size % (unit // d.stride)) for d in below)
        return all(even)

    # ------------------------------------------------------------ algebra

    def then(self, inner: Digits) -> Self:
        """Return the composition: a digit whose space is a dimension of `inner` is split as `inner` splits it.

        Raises Straddles if a digit does not consist of whole digits of `inner`.
        """
        parts = (inner.part(d) if d.space in inner.dims else (d,) for d in self.digits)
        return evolve(self, digits=tuple(p for part in parts for p in part))

    def part(self, d: Digit) -> tuple[Digit, ...]:
        """Return the digits that make up `d`, whose space is one of my dimensions.

        Raises Straddles if they are not whole digits. A digit of one position vanishes.
        """
        low, high, digits = d.stride, d.stride * d.size, []
        for step, inner in self.stepped():
            end = min(high, step * inner.size)
            if inner.dim == d.space and d.size > 1 and step <= low < end:
                if low % step or end % low:
                    break
                digits.append(Digit(d.dim, end // low, inner.space, inner.stride * (low // step)))
                low = end
        if low != high and d.size > 1:
            raise Straddles(f"given the digit {d}, wanted one that {self} splits into whole digits")
        return tuple(digits)

    def _with(self, digits: Sequence[Digit]) -> Self:
        """Return this split with other digits of the same dimensions; self if they are equal."""
        return self if (*digits,) == self.digits else evolve(self, digits=(*digits,))

    def inverse(self) -> Digits:
        """Return the split of the spaces' numbers into dimensions; Straddles if numbers are skipped or shared."""
        digits: list[Digit] = []
        spaces = tuple(dict.fromkeys(d.space for d in self.digits))
        for space in spaces:
            end = 1
            for step, d in sorted(self.stepped(), key=lambda item: item[1].stride):
                if d.space == space and d.size > 1:
                    if d.stride != end:
                        raise Straddles(f"given {self}, wanted one digit after the other in {space}")
                    digits.append(Digit(space, d.size, d.dim, step))
                    end *= d.size
        return Digits(spaces, tuple(digits))

    def factored(self, space: str) -> Self:
        """Return the split with the digits of a space factored into prime sizes."""
        out: list[Digit] = []
        for d in self.digits:
            sizes = _primes(d.size) if d.space == space else (d.size,)
            if sizes == (d.size,):
                out.append(d)
                continue
            for below, size in zip(accumulate(sizes, mul, initial=1), sizes):
                out.append(Digit(d.dim, size, d.space, d.stride * below))
        return self._with(out)

    def renumbered(self, space: str, key: Callable[[int, Digit], Any] | None = None) -> Self:
        """Return the split with a space renumbered without gaps, in the order of `key`(step, digit) or of strides."""
        digits, stride = list(self.digits), 1
        own = [(n, step, d) for n, (step, d) in enumerate(self.stepped()) if d.space == space]
        for n, _, d in sorted(own, key=lambda item: key(*item[1:]) if key else item[2].stride):
            digits[n] = Digit(d.dim, d.size, d.space, stride)
            stride *= d.size
        return self._with(digits)

    def merged(self, *spaces: str) -> Self:
        """Return the split with fewest digits: none of size 1, and digits contiguous in one of these spaces merged."""
        out: list[Digit] = []
        for d in self.digits:
            at = next((n for n in reversed(range(len(out))) if out[n].dim == d.dim), None)
            if d.size == 1:
                continue
            last = None if at is None else out[at]
            if at is not None and last and last.space == d.space in spaces and last.stride * last.size == d.stride:
                out[at] = Digit(last.dim, last.size * d.size, last.space, last.stride)
            else:
                out.append(d)
        return self._with(out)

    def canonical(self, *spaces: str) -> tuple[tuple[str, str, int, int, int], ...]:
        """Return the digits in these spaces in normal form: (space, dim, step, size, stride), contiguous ones merged.

        Two splits with equal normal forms have the same coordinates at every place of these spaces.
        """
        digits = self.merged(*spaces).stepped()
        return tuple(sorted((d.space, d.dim, step, d.size, d.stride) for step, d in digits if d.space in spaces))

    def prime_digits(self, space: str) -> frozenset[tuple[str, int, int, int]]:
        """Return (dim, step, size, stride) of the digits in a space, factored into prime sizes."""
        digits = self.factored(space).stepped()
        return frozenset((d.dim, step, d.size, d.stride) for step, d in digits if d.space == space and d.size > 1)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Return the split with dimensions renamed; dimensions without a new name keep theirs."""
        digits = tuple(evolve(d, dim=names.get(d.dim, d.dim)) for d in self.digits)
        return evolve(self, dims=tuple(names.get(dim, dim) for dim in self.dims), digits=digits)

    def distance(self, dim: str, step: int) -> int:
        """Return the distance in a digit's space between positions `step` apart along `dim`; 0 if past the end."""
        return next((d.stride * (step // at) for at, d in self.stepped() if d.dim == dim and step < at * d.size), 0)

    def overlap(self, space: str) -> tuple[Digit, int] | None:
        """Return the first digit whose stride the smaller digits can reach, and their reach.

        None if there is no such digit: then no two coordinates share a number.
        """
        reach = 1
        for d in sorted((d for d in self.digits if d.space == space and d.size > 1), key=lambda d: d.stride):
            if d.stride < reach:
                return d, reach
            reach += (d.size - 1) * d.stride
        return None

    def __str__(self) -> str:
        return " ".join(map(str, self.digits))


def stacked(space: str, sizes: Iterable[tuple[str, int]]) -> tuple[Digit, ...]:
    """Return digits of (dim, size) pairs, innermost first, contiguous in a space.

    An empty dimension takes no room.
    """
    out, stride = [], 1
    for dim, size in sizes:
        out.append(Digit(dim, size, space, stride))
        stride *= max(size, 1)
    return tuple(out)


def _primes(number: int) -> tuple[int, ...]:
    """Return the prime factors of a number, ascending."""
    prime = next((n for n in range(2, isqrt(number) + 1) if number % n == 0), number)
    return () if number == 1 else (prime, *_primes(number // prime))


def _digit(number: Index, d: Digit, *, reduced: bool) -> Index:
    if d.size == 1 and reduced:
        return 0
    if d.space == _FIXED:
        return d.stride
    scaled = number if d.stride == 1 else number // d.stride
    return scaled % d.size if reduced else scaled


def times(a: Index, b: Index) -> Index:
    """Return the product of two indices, simplified if one is 0 or 1."""
    for one, other in ((a, b), (b, a)):
        if isinstance(one, int) and one in (0, 1):
            return other if one else 0
    return a * b


def plus(a: Index, b: Index) -> Index:
    """Return the sum of two indices, simplified if one is 0."""
    if isinstance(a, int) and a == 0:
        return b
    return a if isinstance(b, int) and b == 0 else a + b
