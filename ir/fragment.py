"""Distributed layouts: which element of a tile each (subgroup, lane, register) holds.

A layout is a list of blocks. Each block is one digit of one tile dimension, innermost digit first, and says where that
digit lives: in the subgroup number, in the lane number, or in the element number within the lane's registers. MMA
operands, the split of a cooperative copy, IREE's NestedLayout and XeTile's wg_map/sg_map are all instances.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import attrs

from convgen.ir.error import UserError

_MOST_POSITIONS = 1 << 24  #: of a workgroup's tile
DWORD = 4  #: bytes of a register in one lane


class Space(Enum):
    """Where a digit of a tile coordinate lives."""

    REGISTER = "r"  #: element number within one lane
    LANE = "l"
    SUBGROUP = "s"
    FIXED = "="  #: the same everywhere: the digit's stride is its value, and the fragment is that part of a tile


@attrs.frozen
class Digit:
    """`size` consecutive positions of `dim`, found at `number // stride % size` of the space's number."""

    dim: str
    size: int
    space: Space
    stride: int


@attrs.frozen(cache_hash=True)
class Fragment:
    """A distributed layout of a tile with dimensions `dims`; `digits` of one dimension stand innermost first.

    A subgroup or lane stride that no digit covers means replication: all those owners hold the same element.
    """

    dims: tuple[str, ...]
    digits: tuple[Digit, ...]

    def __attrs_post_init__(self) -> None:
        for d in self.digits:
            first, end = (0, d.size) if d.space is Space.FIXED else (1, _MOST_POSITIONS)
            if d.dim not in self.dims or d.size < 1 or not first <= d.stride < end:
                raise UserError(f"fragment: bad digit {d} for dimensions {self.dims}")
        if math.prod(d.size for d in self.digits) > _MOST_POSITIONS:
            raise UserError(f"given a fragment of {' x '.join(map(str, self.shape))}, wanted at most {_MOST_POSITIONS}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Tile extent along each of `dims`."""
        return tuple(math.prod(d.size for d in self.digits if d.dim == dim) for dim in self.dims)

    @property
    def registers(self) -> int:
        """Elements that one lane holds."""
        return math.prod(d.size for d in self.digits if d.space is Space.REGISTER)

    @property
    def subgroups(self) -> int:
        """Number of subgroups that hold different parts."""
        return math.prod(d.size for d in self.digits if d.space is Space.SUBGROUP)

    def extent(self, dim: str) -> int:
        return self.shape[self.dims.index(dim)]

    def coords(self, subgroup: Any, lane: Any, register: Any) -> dict[str, Any]:
        """The tile coordinates that this element holds; numbers, numpy arrays and IR expressions alike."""
        number = {Space.REGISTER: register, Space.LANE: lane, Space.SUBGROUP: subgroup, Space.FIXED: 0}
        return self._sum(lambda d: _digit(number[d.space], d))

    def partial(self, space: Space, number: Any) -> dict[str, Any]:
        """The part of the coordinates that one space's number contributes; the parts of all three spaces add up.

        What is fixed comes with the registers.
        """
        fixed = Space.FIXED if space is Space.REGISTER else space
        return self._sum(lambda d: _digit(number, d) if d.space in (space, fixed) else 0)

    def _sum(self, digit: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for dim in self.dims:
            scale, total = 1, 0
            for d in self.digits:
                if d.dim == dim:
                    total = _plus(total, digit(d), scale)
                    scale *= d.size
            out[dim] = total
        return out

    def owner(self, coords: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """(subgroup, lane, register) of the first owner of an element: the inverse of `coords`."""
        number = {Space.SUBGROUP: 0, Space.LANE: 0, Space.REGISTER: 0}
        scale = dict.fromkeys(self.dims, 1)
        for d in self.digits:
            if d.space is not Space.FIXED:
                digit = coords[d.dim] // scale[d.dim] % d.size
                number[d.space] = number[d.space] + digit * d.stride
            scale[d.dim] *= d.size
        return number[Space.SUBGROUP], number[Space.LANE], number[Space.REGISTER]

    def order_of(self, other: Fragment) -> tuple[int, ...]:
        """For each register of `other` the register here that holds the same element.

        UserError unless every lane holds the same elements in both layouts.
        """
        shared = (Space.SUBGROUP, Space.LANE)
        owners = [[number[space] for space in shared] for number in (_strides(self), _strides(other))]
        if self.dims != other.dims or self.shape != other.shape or owners[0] != owners[1]:
            raise UserError(f"fragments {self} and {other}: lanes hold different elements")
        return tuple(self.owner(other.coords(0, 0, register))[2] for register in range(other.registers))

    def image(self, lanes: int, elem_bytes: int) -> tuple[tuple[str, int, int], ...]:
        """The digits with strides in elements if registers are stored as they stand, dword by dword over `lanes`.

        As (dim, size, stride); subgroups' parts follow one another. A block of memory is a run of registers.
        """
        each = DWORD // elem_bytes
        whole = self.registers * lanes

        def placed(d: Digit) -> Iterator[tuple[str, int, int]]:
            if d.space is Space.LANE:
                yield d.dim, d.size, d.stride * each
            elif d.space is Space.FIXED:
                yield d.dim, d.size, self.subgroups * whole
            elif d.space is Space.SUBGROUP:
                inner = (s.size for s in self.digits if s.space is d.space and s.stride < d.stride)
                yield d.dim, d.size, math.prod(inner) * whole
            else:
                within = min(d.size, max(1, each // d.stride))  # positions that share a dword
                yield d.dim, within, d.stride if within > 1 else d.stride * lanes
                yield d.dim, d.size // within, d.stride * within * lanes

        return tuple(digit for d in self.digits for digit in placed(d) if digit[1] > 1)

    def contiguous(self, dim: str) -> int:
        """How many consecutive registers, from 0, hold consecutive positions of `dim` (its innermost digits)."""
        run = 1
        for d in (d for d in self.digits if d.dim == dim):
            if d.space is not Space.REGISTER or d.stride != run:
                break
            run *= d.size
        return run

    def reinterpreted(self, dim: str, from_bits: int, to_bits: int) -> Fragment:
        """The layout of the same registers seen as elements of another width, split or merged along `dim`.

        Positions along `dim` then count the new elements. UserError unless each merged element's parts stand side by
        side in the registers of one lane: their order would have to change first.
        """
        digits = tuple(d for d in self.digits if d.size > 1)
        if dim not in self.dims or (to_bits % from_bits and from_bits % to_bits):
            raise UserError(f"fragment: {from_bits} bits along {dim} of {self.dims} seen as {to_bits} bits")
        if from_bits >= to_bits:
            parts = from_bits // to_bits
            return Fragment(self.dims, _innermost(dim, parts) + _spaced(digits, parts, 1))
        parts, run = to_bits // from_bits, Fragment(self.dims, digits).contiguous(dim)
        rest = tuple(d for d in digits if d.dim != dim or d.space is not Space.REGISTER or d.stride >= run)
        if run % parts or any(d.space is Space.REGISTER and d.stride % parts for d in rest):
            raise UserError(
                f"fragment {self}: {to_bits} bits take {parts} neighbours along {dim} from one lane's registers, "
                f"which hold {run} side by side; a reorder is needed"
            )
        return Fragment(self.dims, _innermost(dim, run // parts) + _spaced(rest, 1, parts))

    def __str__(self) -> str:
        return " ".join(f"{d.dim}{d.size}{d.space.value}{d.stride}" for d in self.digits)


def _strides(layout: Fragment) -> dict[Space, list[tuple[str, int, int, int]]]:
    """The digits of each space with the step along their dimension that they count: (dim, step, size, stride)."""
    found: dict[Space, list[tuple[str, int, int, int]]] = {space: [] for space in Space}
    scale = dict.fromkeys(layout.dims, 1)
    for d in layout.digits:
        if d.size > 1:
            found[d.space].append((d.dim, scale[d.dim], d.size, d.stride))
        scale[d.dim] *= d.size
    return {space: sorted(digits) for space, digits in found.items()}


def _innermost(dim: str, size: int) -> tuple[Digit, ...]:
    """That many consecutive registers."""
    return (Digit(dim, size, Space.REGISTER, 1),) if size > 1 else ()


def _spaced(digits: tuple[Digit, ...], times: int, over: int) -> tuple[Digit, ...]:
    """The digits with strides between registers scaled."""
    return tuple(attrs.evolve(d, stride=d.stride * times // over) if d.space is Space.REGISTER else d for d in digits)


def _digit(number: Any, d: Digit) -> Any:
    if d.size == 1:
        return 0
    if d.space is Space.FIXED:
        return d.stride
    scaled = number if d.stride == 1 else number // d.stride
    return scaled % d.size


def _plus(total: Any, digit: Any, scale: int) -> Any:
    if isinstance(digit, int) and digit == 0:
        return total
    term = digit if scale == 1 else digit * scale
    return term if isinstance(total, int) and total == 0 else total + term
