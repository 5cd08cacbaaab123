"""Walks: the order in which workgroups visit the tiles of a grid.

A remap permutes the workgroup numbers [0, count); a walk maps a number to a tile (m, n). Both work for integers, numpy
arrays and IR expressions, and divide by constants only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Protocol, TypeAlias, TypeVar

import attrs

from convgen.ir.error import UserError
from convgen.ir.expr import Expr, const
from convgen.ir.layout.argument import Argument, divided, launch_expression, magic, shift
from convgen.ir.layout.digits import Digits, Index, Space, plus, stacked
from convgen.ir.layout.index import choose, clamped, lesser, split
from convgen.ir.record import evolve, frozen
from convgen.ir.types import u32

T = TypeVar("T")
Tile: TypeAlias = tuple[Index, Index]  #: along M and N


class Remap(Protocol):
    """A permutation of workgroup numbers."""

    def apply(self, number: Index, count: int) -> Index:
        """Return the new number for a number below `count`."""


class Walk(ABC):
    """An order of the tiles of a grid."""

    @property
    def is_grouped(self) -> bool:
        """Return whether consecutive numbers stay close in both dimensions."""
        return True

    def numbers(self, m: int, n: int) -> int:
        """Return the count of numbers for m x n tiles: more than tiles if the grid is padded."""
        return m * n

    @abstractmethod
    def tile(self, number: Index, m: int, n: int) -> Tile:
        """Return the tile of a number; at or beyond the edge m or n if the number has none."""

    def arguments(self, m: int, n: int) -> tuple[Argument, ...]:
        """Return the kernel arguments that the walk depends on."""
        return ()

    def given(self, arguments: Sequence[Index]) -> Walk:
        """Return the walk with these values of `arguments`, in their order, instead of the current values."""
        return self


# ---------------------------------------------------------------- remaps


@frozen
class Xcc:
    """Workgroup w runs on die w % dies: each die gets one contiguous range of numbers, the first ones longer by one."""

    dies: int

    def apply(self, number: Index, count: int) -> Index:
        each, longer = divmod(count, self.dies)
        round_, die = split(number, self.dies)
        start = die * each + (lesser(die, longer) if longer else 0)
        return start + round_

    def __str__(self) -> str:
        return f"xcc:{self.dies}"


@frozen
class Chunk:
    """In each dies x run workgroups, a die gets one contiguous range of numbers; a remainder stays unchanged."""

    dies: int
    run: int

    def apply(self, number: Index, count: int) -> Index:
        block = self.dies * self.run
        whole = count // block * block
        if not whole:
            return number
        round_, die = split(number, self.dies)
        chunk, within = split(round_, self.run)
        moved = chunk * block + die * self.run + within
        return moved if whole == count else choose(number < whole, moved, number)

    def __str__(self) -> str:
        return f"chunk:{self.dies}x{self.run}"


# ---------------------------------------------------------------- groups


@frozen
class _Pieces:
    """A length cut into pieces: `count` pieces of `size` positions, then `last_count` of `last_size` positions."""

    count: int
    size: int
    last_count: int
    last_size: int

    @classmethod
    def of(cls, length: int, size: int) -> _Pieces:
        """Return pieces of one size, except for the last."""
        size = max(1, min(size, length))
        return cls(length // size, size, 1 if length % size else 0, length % size)

    @classmethod
    def even(cls, length: int, size: int) -> _Pieces:
        """Return as few pieces as `of` does, of at most two sizes that differ by one."""
        count = max(1, -(-length // max(1, size)))
        each, longer = divmod(length, count)
        return cls(longer, each + 1, count - longer, each)

    @property
    def is_one(self) -> bool:
        return self.count + self.last_count == 1

    def _kinds(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first piece, its first position, number of pieces, their size) for each size that occurs."""
        if self.count:
            yield 0, 0, self.count, self.size
        if self.last_count:
            yield self.count, self.count * self.size, self.last_count, self.last_size

    def find(self, number: Index, each: int, inside: Callable[[Index, int], Sequence[Index]]) -> tuple[Index, ...]:
        """Return (piece, its first position, ...) of a number, where each position counts `each`.

        The rest is the result of `inside` for the number within the piece and the piece's size.
        """
        chosen: tuple[Index, ...] = ()
        for first, start, count, size in self._kinds():
            begin = start * each
            rest = number - begin if begin else number
            piece, rest = (0, rest) if count == 1 else split(rest, size * each)
            values = first + piece, start + piece * size, *inside(rest, size)
            chosen = tuple(choose(number < begin, a, b) for a, b in zip(chosen, values)) if chosen else values
        return chosen


def _exchanged(along: str, pair: tuple[T, T]) -> tuple[T, T]:
    """Return a pair along M and N as (along, across) a group, and the other way round."""
    return pair if along == "m" else (pair[1], pair[0])


@frozen
class Grouped(Walk):
    """Groups of `size` tiles along one dimension, the other dimension walked from end to end within each.

    Without a size there is one group; without `even` the last group may be smaller: rocRoller's WGM, clamped.
    """

    along: str
    size: int | None = None
    even: bool = False
    snake: bool = False

    def tile(self, number: Index, m: int, n: int) -> Tile:
        own, across = _exchanged(self.along, (m, n))
        groups = self._groups(own)
        group, first, over, at = groups.find(number, across, lambda i, size: self._within(i, size, across))
        if self.snake and not groups.is_one:
            at = choose(group % 2 > 0, across - 1 - at, at)
        return _exchanged(self.along, (plus(first, over), at))

    @property
    def is_grouped(self) -> bool:
        return self.size is not None

    def _groups(self, length: int) -> _Pieces:
        size = length if self.size is None else self.size
        return _Pieces.even(length, size) if self.even else _Pieces.of(length, size)

    def _within(self, number: Index, size: int, across: int) -> tuple[Index, Index]:
        """Return positions along and across a group."""
        at, over = split(number, size)
        return over, at

    def __str__(self) -> str:
        if self.size is None:
            return "cols" if self.along == "m" else "rows"
        return f"{'even' if self.even else 'group'}:{self.size}{self.along}{':snake' if self.snake else ''}"


ROWS = Grouped("n")  #: row by row


@frozen
class Ragged(Walk):
    """Groups of uneven sizes one after another, along the grouped dimension first within each.

    The sizes are data of a launch, so that only a kernel knows which tile a number has (`TilePlace`). Here tiles are
    numbered row by row.
    """

    def tile(self, number: Index, m: int, n: int) -> Tile:
        return ROWS.tile(number, m, n)

    def __str__(self) -> str:
        return "ragged"


@frozen
class Rectangles(Grouped):
    """Groups of `size` tiles along one dimension, walked in rectangles that are `width` across, row by row."""

    width: int = attrs.field(kw_only=True)

    def _within(self, number: Index, size: int, across: int) -> tuple[Index, Index]:
        def inside(i: Index, width: int) -> tuple[Index, Index]:
            return split(i, width)

        _, first, over, at = _Pieces.of(across, self.width).find(number, size, inside)
        return over, plus(first, at)

    def __str__(self) -> str:
        return f"rect:{self.size}x{self.width}{self.along}{':snake' if self.snake else ''}"


@frozen
class ArgumentGroups(Walk):
    """Groups whose size is the kernel argument `wgm`, which the host chooses at launch, from 1 on.

    The size is clamped to the grid. Divisors that depend on it have magic numbers among the arguments.
    """

    along: str
    size: int  #: the current value
    values: tuple[Index, ...] | None = None  #: of `arguments`, in order; None: the current ones

    def arguments(self, m: int, n: int) -> tuple[Argument, ...]:
        own, across = _exchanged(self.along, (m, n))
        size, value = f"min(wgm, {own})", max(1, min(self.size, own))
        arguments = [Argument("wgm", self.size)]
        tail = f"max({own} % {size}, 1)", max(own % value, 1)
        divisors = {"block": (f"{size} * {across}", value * across), "group": (size, value), "tail": tail}
        for name, (expr, divisor) in divisors.items():
            arguments.append(Argument(f"{name}_magic", magic(divisor), f"magic({expr})", u32))
            arguments.append(Argument(f"{name}_shift", shift(divisor), f"shift({expr})", u32))
        return (*arguments, Argument("whole_groups", own // value, f"{own} // {size}"))

    def given(self, arguments: Sequence[Index]) -> ArgumentGroups:
        return evolve(self, values=tuple(arguments))

    def tile(self, number: Index, m: int, n: int) -> Tile:
        own, across = _exchanged(self.along, (m, n))
        now = self.arguments(m, n)
        values = self.values or tuple(const(a.value, a.type) if isinstance(number, Expr) else a.value for a in now)
        wgm, block_magic, block_shift, *magics, whole = values
        group_magic, group_shift, tail_magic, tail_shift = magics
        size = lesser(wgm, own)
        is_whole = number < whole * size * across
        group = choose(is_whole, divided(number, block_magic, block_shift), whole)
        inside = number - group * size * across
        chosen = (choose(is_whole, a, b) for a, b in ((group_magic, tail_magic), (group_shift, tail_shift)))
        at = divided(inside, *chosen)
        height = choose(is_whole, size, own - whole * size)
        return _exchanged(self.along, (clamped(group * size + inside - at * height, own), clamped(at, across)))

    def __str__(self) -> str:
        return f"wgm:{self.size}{self.along}"


@frozen
class SizedRows(Walk):
    """Row by row; the host sets the row's length in tiles at launch: `length`."""

    length: Expr
    values: tuple[Index, ...] | None = None  #: of `arguments`, in order; None: those of the largest grid

    def arguments(self, m: int, n: int) -> tuple[Argument, ...]:
        length = launch_expression(self.length)
        return (
            Argument("row_magic", magic(n), f"magic({length})", u32),
            Argument("row_shift", shift(n), f"shift({length})", u32),
        )

    def given(self, arguments: Sequence[Index]) -> SizedRows:
        return evolve(self, values=tuple(arguments))

    def tile(self, number: Index, m: int, n: int) -> Tile:
        if self.values is None or not isinstance(number, Expr):
            return split(number, n)
        row = clamped(divided(number, *self.values), m)
        return row, clamped(number - row * self.length, n)

    def __str__(self) -> str:
        return "rows"


@frozen
class FreeForm(Walk):
    """A user-defined order: `at(number, m, n)` returns the tile, for integers, arrays and IR expressions alike.

    `ir.layout.index` has functions beyond operators; divisors must be constants, or arguments with magic numbers.
    """

    name: str
    at: Callable[[Index, int, int], Tile]

    def tile(self, number: Index, m: int, n: int) -> Tile:
        return self.at(number, m, n)

    def __str__(self) -> str:
        return f"free:{self.name}"


# ---------------------------------------------------------------- blocks


@frozen
class ZOrder(Walk):
    """Blocks of rows x cols tiles (powers of two), doubling along N and M in turn; then the blocks row by row."""

    rows: int
    cols: int

    def __attrs_post_init__(self) -> None:
        if any(size < 1 or size & (size - 1) for size in (self.rows, self.cols)):
            raise UserError(f"given {self.rows}x{self.cols}, wanted powers of two in zorder:")

    def _digits(self, m: int, n: int) -> Digits:
        doublings = zip_longest([("n", 2)] * (self.cols.bit_length() - 1), [("m", 2)] * (self.rows.bit_length() - 1))
        within = [each for turn in doublings for each in turn if each]
        blocks = ("n", -(-n // self.cols)), ("m", -(-m // self.rows))
        return Digits(("m", "n"), stacked(Space.WORKGROUP, (*within, *blocks))).merged(Space.WORKGROUP)

    def numbers(self, m: int, n: int) -> int:
        return -(-m // self.rows) * self.rows * -(-n // self.cols) * self.cols

    def tile(self, number: Index, m: int, n: int) -> Tile:
        found = self._digits(m, n).coordinates({Space.WORKGROUP: number}, overrun=True)
        return found["m"], found["n"]

    def __str__(self) -> str:
        return f"zorder:{self.rows}x{self.cols}"
