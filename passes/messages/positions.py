"""Positions: an element's position along each dimension of a view, as uniform, varying and constant parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from convgen.ir.expr import Expr, Lane, lift
from convgen.ir.layout.digits import Space, plus
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Shared
from convgen.ir.simplify.extents import divisor
from convgen.passes.messages.access import Position, TileAccess, element, is_of_elements
from convgen.passes.messages.linear import ZERO, LinearDim, add_exprs


class Positions:
    """Decodes the coordinates of register elements, for each lane or for a given one."""

    def __init__(self, access: TileAccess, lane: Expr | None = None) -> None:
        #: A divisor of the start along each axis.
        self.multiples = tuple(1 if is_of_elements(c) else divisor(c, access.values) for c in access.coords)
        tile = access.layout, access.places, access.subgroup, Lane() if lane is None else lane
        starts = zip(access.view.axes, access.coords, self.multiples)
        self._axes = [_along_axis(*tile, axis, *start) for axis, start in enumerate(starts)]

    def of(self, register: int) -> dict[str, Position]:
        """Return the position along each dim of the element in `register`."""
        return {name: position for axis in self._axes for name, position in axis[register].items()}


class _AlongAxis(dict[int, Mapping[str, Position]]):
    """The position along each dim of one axis, by register; accesses that begin at one place of the axis share it.

    `start` is the tile's start along the axis, a multiple of `multiple`.
    """

    def __init__(
        self,
        layout: Fragment,
        places: Shared | None,
        subgroup: Expr,
        lane: Expr,
        axis: int,
        dims: tuple[LinearDim, ...],
        start: Expr,
        multiple: int,
    ) -> None:
        super().__init__()
        self.layout, self.places, self.axis = layout, places, axis
        self.dims, self.start, self.multiple = dims, start, multiple
        self._lane_part, self._register_part = _of_lanes(layout, subgroup, lane), _of_registers(layout)

    def __missing__(self, register: int) -> Mapping[str, Position]:
        self[register] = self._decode(register)
        return self[register]

    def _within(self, name: str, register: int) -> tuple[Expr, int]:
        """Return the position within the tile as a varying and a constant part.

        In a swizzled tile, a place holds the element whose chunk the swizzle moves there: XOR is its own inverse.
        """
        of_register = self._register_part[register]
        lanes, fixed, places = self._lane_part[name], of_register[name], self.places
        if places is None or not places.swizzle.mask or name != self.layout.dims[0 if places.is_transposed else 1]:
            return lanes, fixed
        line, per_chunk = self.layout.dims[1 if places.is_transposed else 0], places.chunk // places.elem.bytes
        # higher bits do not change the swizzle
        down, across = places.swizzle.period, 1 << places.swizzle.mask.bit_length()
        near, column = of_register[line] % down, fixed % (across * per_chunk)
        at, number = self._lane_part[line] + near, lanes + column
        return number ^ places.swizzle(ZERO, at) * per_chunk, fixed - column

    def _decode(self, register: int) -> dict[str, Position]:
        """Return the position along each dim.

        A dim's run is its padded size. While one of run and tile divides the other and the tile's start (a tile of 64
        over runs of 16), no carry passes between the start and the position within the tile: they are decoded
        separately. From the first dim on where it does not (a tile of 64 over runs of 48), their sum is decoded.
        """
        name, dims, start, multiple = self.layout.dims[self.axis], self.dims, self.start, self.multiple
        within, fixed = self._within(name, register)
        tile = self.layout.extent(name)  # length along the remaining dims; 0 once start and position are added
        if is_of_elements(start):
            within, start, multiple, tile = add_exprs(within, element(start, register)), ZERO, 1, 0
        out: dict[str, Position] = {}
        for d in dims[:0:-1]:
            run = d.padded
            if tile and run % tile == 0 and multiple % tile == 0:  # the tile lies within one run
                out[d.name] = Position(start % run, within, fixed)
                within, fixed, tile = ZERO, 0, 1
            else:
                # also where both are 0: `within` then contains the start
                apart = tile % run == 0 and multiple % run == 0
                # Positions that share all digits above a common divisor are decoded once.
                unit = math.gcd(run, 0 if apart else multiple, divisor(within, {}))
                if not apart:
                    within, start, multiple, tile = add_exprs(start, within), ZERO, 0, 0
                position = within + (fixed - fixed % unit)
                out[d.name] = Position(ZERO, position % run, fixed % unit)
                within, fixed, tile = position // run, 0, tile // run
            if tile:
                start, multiple = start // run, multiple // run if multiple % run == 0 else 1
        out[dims[0].name] = Position(start, within, fixed)
        return out


_along_axis = lru_cache(maxsize=2**8)(_AlongAxis)


@lru_cache(maxsize=2**8)
def _of_lanes(layout: Fragment, subgroup: Expr, lane: Expr) -> Mapping[str, Expr]:
    """Return the part of the coordinates that depends on lane and subgroup; independent of the tile's start."""
    a, b = layout.partial(Space.SUBGROUP, subgroup), layout.partial(Space.LANE, lane)
    return {dim: lift(plus(a[dim], b[dim]), ZERO) for dim in layout.dims}


class _OfRegisters(dict[int, Mapping[str, int]]):
    """The part of the coordinates that depends on the register."""

    def __init__(self, layout: Fragment) -> None:
        self.layout = layout

    def __missing__(self, register: int) -> Mapping[str, int]:
        self[register] = self.layout.partial(Space.REGISTER, register)
        return self[register]


_of_registers = lru_cache(maxsize=2**8)(_OfRegisters)
