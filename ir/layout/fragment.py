"""Fragments: the element of a tile that each (subgroup, lane, register) holds.

MMA operands, the split of a cooperative copy, IREE's NestedLayout and XeTile's wg_map/sg_map are all instances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from math import gcd, prod
from typing import Any

import numpy as np

from convgen.ir.error import UserError
from convgen.ir.layout.digits import Digit, Digits, Space
from convgen.ir.record import evolve, frozen

_MOST_POSITIONS = 1 << 24  #: positions of a workgroup's tile
DWORD = 4  #: bytes of a register in one lane


@frozen(cache_hash=True)
class Fragment(Digits):
    """A distributed layout of a tile with dimensions `dims`: digits in registers, lanes, subgroups, or fixed.

    Subgroups or lanes whose numbers have equal digits are replicas: they hold the same elements. A fixed digit
    restricts the fragment to one part of the tile.
    """

    def __attrs_post_init__(self) -> None:
        for d in self.digits:
            first, end = (0, d.size) if d.space == Space.FIXED else (1, _MOST_POSITIONS)
            if d.dim not in self.dims or d.space not in _SPACES or d.size < 1 or not first <= d.stride < end:
                raise UserError(f"fragment: bad digit {d} for dimensions {self.dims}")
        if prod(d.size for d in self.digits) > _MOST_POSITIONS:
            raise UserError(f"given a fragment of {' x '.join(map(str, self.shape))}, wanted at most {_MOST_POSITIONS}")

    @cached_property
    def registers(self) -> int:
        """Return the elements that one lane holds."""
        return self.count(Space.REGISTER)

    @cached_property
    def subgroups(self) -> int:
        """Return the number of subgroups that hold different parts."""
        return self.count(Space.SUBGROUP)

    def coords(self, subgroup: Any, lane: Any, register: Any) -> dict[str, Any]:
        """Return the tile coordinates of an element."""
        numbers: dict[str, Any] = {Space.REGISTER: register, Space.LANE: lane, Space.SUBGROUP: subgroup, Space.FIXED: 0}
        return self.coordinates(numbers)

    def partial(self, space: Space, number: Any) -> dict[str, Any]:
        """Return the part of the coordinates that one space's number contributes; the parts of all spaces add up.

        Fixed digits count with the registers.
        """
        numbers: dict[str, Any] = {space: number}
        return self.coordinates({Space.FIXED: 0, **numbers} if space is Space.REGISTER else numbers)

    def owner(self, coords: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Return (subgroup, lane, register) of the first owner of an element: the inverse of `coords`."""
        number = self.place(coords)
        return number.get(Space.SUBGROUP, 0), number.get(Space.LANE, 0), number.get(Space.REGISTER, 0)

    def order_of(self, other: Fragment) -> tuple[int, ...]:
        """Return, for each register of `other`, the register here that holds the same element.

        Raises UserError unless every lane holds the same elements in both layouts.
        """
        shared = (Space.SUBGROUP, Space.LANE)
        if self.dims != other.dims or self.shape != other.shape or self.canonical(*shared) != other.canonical(*shared):
            raise UserError(f"fragments {self} and {other}: lanes hold different elements")
        return self.registers_of(other)

    def registers_of(self, other: Fragment) -> tuple[int, ...]:
        """Return, for each register of the first lane of `other`, the register here that holds the same element."""
        registers = np.arange(other.registers)
        found = self.owner(other.coords(0, 0, registers))[2]
        return tuple(np.broadcast_to(found, registers.shape).tolist())

    def broadcast_order(self, few: Fragment, key: Callable[[dict[str, Any]], Any]) -> tuple[int, ...]:
        """Return, for each register, the register of `few` whose element has an equal `key(coordinates)`.

        A `Shuffle` by this order broadcasts values of `few`, such as one a channel, to all elements that need them.
        """
        register_of = {key(coords): register for register, coords in enumerate(few._of_registers())}
        return tuple(register_of[key(coords)] for coords in self._of_registers())

    def _of_registers(self) -> list[dict[str, int]]:
        """Return the coordinates of each register's element in the first lane of the first subgroup."""
        registers = np.arange(self.registers)
        along = [np.broadcast_to(at, registers.shape).tolist() for at in self.coords(0, 0, registers).values()]
        return [dict(zip(self.dims, at)) for at in zip(*along)]

    def over(self, axes: int) -> Fragment:
        """Return the fragment with `axes` dims: it covers one position of the dims added."""
        more = tuple(f"at{n}" for n in range(len(self.dims), axes))
        return evolve(self, dims=(*self.dims, *more)) if more else self

    def has_replicas(self, lanes: int, subgroups: int) -> bool:
        """Return whether some of `lanes` lanes or `subgroups` subgroups hold the same elements."""
        return (self.count(Space.LANE), self.count(Space.SUBGROUP)) != (lanes, subgroups)

    def without(self, dim: str) -> Fragment:
        """Return the fragment without a dimension.

        Registers are renumbered without gaps; lanes and subgroups along the dimension become replicas.
        """
        dims, digits = (d for d in self.dims if d != dim), (d for d in self.digits if d.dim != dim)
        return Fragment(tuple(dims), tuple(digits)).renumbered(Space.REGISTER)

    def reduction(self, dim: str) -> tuple[tuple[int, Digit], ...]:
        """Return (step, digit) of prime sizes along `dim` in the order in which `stmt.Reduce` reduces them.

        Registers come first, largest stride first, then lanes and then subgroups, smallest stride first.
        """
        fine = self.factored(Space.REGISTER).factored(Space.LANE).factored(Space.SUBGROUP)
        spaces = (Space.REGISTER, Space.LANE, Space.SUBGROUP)
        digits = [(step, d) for step, d in fine.stepped() if d.dim == dim and d.size > 1]

        def turn(item: tuple[int, Digit]) -> tuple[int, int]:
            d = item[1]
            return spaces.index(Space(d.space)), -d.stride if d.space == Space.REGISTER else d.stride

        return tuple(sorted(digits, key=turn))

    def image(self, lanes: int, elem_bytes: int, message: int = DWORD) -> Digits:
        """Return the tile's layout in memory when registers are stored unchanged, dword by dword over `lanes`.

        The parts of subgroups, then fixed parts, follow one another. With a `message` of more than a dword, that many
        bytes of a lane's registers are contiguous.
        """
        together = gcd(message // elem_bytes, self.registers) if message > DWORD else DWORD // elem_bytes
        parts = (evolve(d, space=Space.SUBGROUP, stride=_MOST_POSITIONS) for d in self.digits)
        digits = tuple(part if d.space == Space.FIXED else d for d, part in zip(self.digits, parts))
        tile = Digits(self.dims, digits).renumbered(Space.SUBGROUP)
        strides = (
            Digit(Space.REGISTER, together, Space.MEMORY, 1),
            Digit(Space.REGISTER, -(-self.registers // together), Space.MEMORY, together * lanes),
            Digit(Space.LANE, lanes, Space.MEMORY, together),
            Digit(Space.SUBGROUP, tile.count(Space.SUBGROUP), Space.MEMORY, self.registers * lanes),
        )
        return tile.then(Digits((Space.REGISTER, Space.LANE, Space.SUBGROUP), strides))

    @property
    def part_sizes(self) -> tuple[int, ...]:
        """Return the registers a lane into which `parts` can cut the fragment evenly, greatest first."""
        strides = (d.stride for d in self.factored(Space.REGISTER).digits if d.space == Space.REGISTER)
        return tuple(sorted({self.registers, *strides}, reverse=True))

    def parts(self, most: int) -> tuple[Fragment, ...]:
        """Return the fragment in parts of at most `most` registers a lane, which are consecutive in the whole."""
        fine = self.factored(Space.REGISTER)
        count = max((d.stride for d in fine.digits if d.space == Space.REGISTER and d.stride <= most), default=1)
        if self.registers <= most:
            return (self,)

        def fixed(d: Digit, part: int) -> Digit:
            if d.space != Space.REGISTER or d.stride < count:
                return d
            return evolve(d, space=Space.FIXED, stride=part // (d.stride // count) % d.size)

        digits = ((fixed(d, part) for d in fine.digits) for part in range(self.registers // count))
        return tuple(Fragment(self.dims, tuple(each)).merged(Space.REGISTER) for each in digits)

    def along(self, dim: str) -> Fragment:
        """Return the elements reordered: registers contiguous along `dim` from a lane's first element come first."""
        fine = self.merged(Space.REGISTER)
        own = fine.of(dim)
        others = (n for n, d in enumerate(own) if d.space != Space.REGISTER)
        first = own[: next(others, len(own))]

        def place(step: int, d: Digit) -> tuple[bool, int]:
            return (False, step) if d in first else (True, d.stride)

        return fine.renumbered(Space.REGISTER, place).merged(Space.REGISTER)

    def near(self, dim: str, reach: int) -> Fragment:
        """Return the elements reordered: registers within `reach` positions along `dim` come first."""

        def place(step: int, d: Digit) -> tuple[bool, int]:
            return (False, step) if d.dim == dim and step * d.size <= reach else (True, d.stride)

        return self.factored(Space.REGISTER).renumbered(Space.REGISTER, place).merged(Space.REGISTER)

    def contiguous(self, dim: str) -> int:
        """Return how many consecutive registers, from 0, hold consecutive positions of `dim`."""
        run = 1
        for d in self.of(dim):
            if d.space != Space.REGISTER or d.stride != run:
                break
            run *= d.size
        return run


_SPACES = frozenset((Space.REGISTER, Space.LANE, Space.SUBGROUP, Space.FIXED))
