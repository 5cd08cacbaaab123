"""A generalised Hilbert curve as index arithmetic: for any rectangle, level by level without branches."""

from __future__ import annotations

from typing import TypeAlias

from convgen.ir.layout.digits import Index
from convgen.ir.layout.index import Condition, choose, either
from convgen.ir.layout.walks import Tile, Walk
from convgen.ir.record import evolve, frozen


@frozen
class Hilbert(Walk):
    """A generalised Hilbert curve: a rectangle is cut into two or three, each entered where the one before ends.

    A number descends level by level; a rectangle one tile wide or high is walked straight.
    """

    def tile(self, number: Index, m: int, n: int) -> Tile:
        # The walk begins along the longer side. Vectors are (step along M, step along N).
        along, across = ((0, 1), (1, 0)) if n >= m else ((1, 0), (0, 1))
        length, width = max(m, n), min(m, n)
        at = _Rectangle(number, (0, 0), along, length, across, width)
        for _ in range(_levels(length, width)):
            at = at.inner()
        return at.straight()

    def __str__(self) -> str:
        return "hilbert"


Vector: TypeAlias = tuple[Index, Index]


@frozen
class _Rectangle:
    """A rectangle of `length` x `width` tiles, walked from `corner` to the corner at the end of the side `along`."""

    number: Index  #: tile number, counted from the corner
    corner: Vector
    along: Vector
    length: Index
    across: Vector
    width: Index

    def inner(self) -> _Rectangle:
        """Return the subrectangle that contains the number; itself if it is a line."""
        halves = self._in_two(), self._in_three()
        inner = _choose_rectangle(2 * self.length > 3 * self.width, *halves)
        line = either(self.length < 2, self.width < 2)
        return _choose_rectangle(line, self, inner)

    def _in_two(self) -> _Rectangle:
        """Cut a long rectangle in two halves, at an even length if possible."""
        half = _even(self.length)
        cut = half * self.width
        before = evolve(self, length=half)
        behind = evolve(
            self, number=self.number - cut, corner=_moved(self.corner, self.along, half), length=self.length - half
        )
        return _choose_rectangle(self.number < cut, before, behind)

    def _in_three(self) -> _Rectangle:
        """Cut a rectangle in three: up half the width, along the other half, and down again."""
        length, width = self.length // 2, _even(self.width)
        up, over = width * length, self.length * (self.width - width)
        first = evolve(self, along=self.across, length=width, across=self.along, width=length)
        second = evolve(
            self, number=self.number - up, corner=_moved(self.corner, self.across, width), width=self.width - width
        )
        corner = _moved(_moved(self.corner, self.along, self.length - 1), self.across, width - 1)
        back = tuple(0 - step for step in self.across), tuple(0 - step for step in self.along)
        third = _Rectangle(self.number - up - over, corner, back[0], width, back[1], self.length - length)
        return _choose_rectangle(self.number < up, first, _choose_rectangle(self.number < up + over, second, third))

    def straight(self) -> Tile:
        """Return the tile of a number in a line."""
        return _moved(self.corner, _choose_vector(self.width < 2, self.along, self.across), self.number)


def _moved(corner: Vector, step: Vector, count: Index) -> Vector:
    return corner[0] + step[0] * count, corner[1] + step[1] * count


def _choose_vector(cond: Condition, a: Vector, b: Vector) -> Vector:
    return choose(cond, a[0], b[0]), choose(cond, a[1], b[1])


def _choose_rectangle(cond: Condition, a: _Rectangle, b: _Rectangle) -> _Rectangle:
    return _Rectangle(
        choose(cond, a.number, b.number),
        _choose_vector(cond, a.corner, b.corner),
        _choose_vector(cond, a.along, b.along),
        choose(cond, a.length, b.length),
        _choose_vector(cond, a.across, b.across),
        choose(cond, a.width, b.width),
    )


def _even(size: Index) -> Index:
    """Return half of a size, rounded up to an even number if the size is more than two."""
    half = size // 2
    return half + choose(size > 2, half % 2, 0)


def _levels(length: int, width: int) -> int:
    """Return the number of cuts until all parts are lines."""
    if min(length, width) < 2:
        return 0
    if 2 * length > 3 * width:
        half = int(_even(length))
        return 1 + max(_levels(half, width), _levels(length - half, width))
    half, up = length // 2, int(_even(width))
    return 1 + max(_levels(up, half), _levels(length, width - up), _levels(up, length - half))
