"""XeTile's `wg_map` and `sg_map`: a tile distributed over the subgroups of a workgroup, and over their lanes.

Both are digits of (row, col). Each dimension of a tile has, innermost first, the block that a subgroup has at a time
(`sg_data`), the subgroups, and the rounds in which they take further blocks. If there are more subgroups than blocks,
the blocks wrap around: subgroups without a digit of their own are replicas. A block is distributed over lanes in the
same way, with units of `wi_data`, and always over all lanes.

Subgroups and lanes are numbered row by row in `sg_layout` and `wi_layout`, whatever the order of the tile in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

import attrs

from convgen.ir.checks import check_range
from convgen.ir.error import UserError
from convgen.ir.layout import attribute
from convgen.ir.layout.digits import Digit, Digits, Space, stacked
from convgen.ir.layout.distribution import Distribution
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import COL, ROW
from convgen.ir.record import as_dict

Pair = tuple[int, int]

_DIMS = (ROW, COL)
_ROUND = "round"
_BLOCK = {ROW: "block row", COL: "block col"}  #: spaces of the position within a block
_MOST = 1 << 16  #: positions along a dimension; also subgroups, or lanes, along it


def _as_pair(values: Sequence[int]) -> Pair:
    """Return the values as a tuple; `check_pair` checks the length where the field's name is known."""
    return cast(Pair, tuple(values))


def check_pair(values: Pair, what: str) -> None:
    """Raise UserError unless these are two positive integers, rows and columns."""
    if len(values) != 2:
        raise UserError(f"expect integer array of size 2 for {what}: given {list(values)}")
    for value in values:
        check_range(value, 1, _MOST, what)


def _rows_of(space: str, sizes: Pair) -> tuple[Digit, Digit]:
    """Return the digits of a row-major matrix in a space, those of columns first."""
    col, row = stacked(space, ((COL, sizes[1]), (ROW, sizes[0])))
    return col, row


@attrs.frozen  # whose converters type checkers know
class SgMap:
    """A block's elements on the lanes of a subgroup: `wi_layout` lanes, each with `wi_data` elements at a time."""

    wi_layout: Pair = attrs.field(converter=_as_pair)
    wi_data: Pair = attrs.field(converter=_as_pair)

    def __attrs_post_init__(self) -> None:
        check_pair(self.wi_layout, "wi_layout")
        check_pair(self.wi_data, "wi_data")

    @classmethod
    def parse(cls, text: str) -> SgMap:
        """Parse `#xetile.sg_map<wi_layout = [2, 8], wi_data = [1, 2]>`; name and brackets may be left out."""
        return cls(**attribute.read(text, "xetile.sg_map", ("wi_layout", "wi_data")))

    def __str__(self) -> str:
        return attribute.written("xetile.sg_map", as_dict(self))

    @property
    def lanes(self) -> int:
        return prod(self.wi_layout)

    def units(self, block: Pair) -> Pair:
        """Return the units of `wi_data` that a lane has along each dim of a block. UserError if they do not fit."""
        for dim, (size, lanes, data) in enumerate(zip(block, self.wi_layout, self.wi_data)):
            if size % (lanes * data):
                given = f"given a block of {block[0]}x{block[1]} and {self}"
                raise UserError(f"{given}, wanted a multiple of wi_layout * wi_data = {lanes * data} at dim {dim}")
        rows, cols = (size // (lanes * data) for size, lanes, data in zip(block, self.wi_layout, self.wi_data))
        return rows, cols

    def result_shape(self, block: Pair) -> Pair:
        """Return the shape of a lane's part as a vector of XeGPU: units, and elements of a unit."""
        return prod(self.units(block)), prod(self.wi_data)

    def fragment(self, block: Pair) -> Fragment:
        """Return the lanes' elements as a fragment: units row by row, and elements row by row within each."""
        data, units = _rows_of("element", self.wi_data), _rows_of("unit", self.units(block))
        lanes = _rows_of(Space.LANE, self.wi_layout)
        registers = stacked(Space.REGISTER, (("element", prod(self.wi_data)), ("unit", prod(self.units(block)))))
        numbered = Digits(("element", "unit"), registers)
        return Fragment(_DIMS, Digits(_DIMS, (*data, *lanes, *units)).then(numbered).digits)


@attrs.frozen  # whose converters type checkers know
class WgMap:
    """A tile's blocks of `sg_data` elements on the subgroups of a workgroup, `sg_layout` of them."""

    sg_layout: Pair = attrs.field(converter=_as_pair)
    sg_data: Pair = attrs.field(converter=_as_pair)

    def __attrs_post_init__(self) -> None:
        check_pair(self.sg_layout, "sg_layout")
        check_pair(self.sg_data, "sg_data")

    @classmethod
    def parse(cls, text: str) -> WgMap:
        """Parse `#xetile.wg_map<sg_layout = [2, 2], sg_data = [32, 128]>`; name and brackets may be left out."""
        return cls(**attribute.read(text, "xetile.wg_map", ("sg_layout", "sg_data")))

    def __str__(self) -> str:
        return attribute.written("xetile.wg_map", as_dict(self))

    @property
    def subgroups(self) -> int:
        return prod(self.sg_layout)

    def check_load(self, tile: Pair) -> None:
        """Raise UserError unless blocks divide the tile, and one round of blocks divides it or is divided by it."""
        check_pair(tile, "tile")
        given = f"given a tile of {tile[0]}x{tile[1]} and {self}"
        for dim, (size, subgroups, data) in enumerate(zip(tile, self.sg_layout, self.sg_data)):
            if size % data:
                raise UserError(f"{given}, wanted a multiple of sg_data {data} at dim {dim}")
            if size % (subgroups * data) and subgroups * data % size:
                raise UserError(
                    f"{given}, wanted a tile that sg_layout * sg_data = {subgroups * data} divides, or that divides it,"
                    f" at dim {dim}"
                )

    def check_store(self, tile: Pair) -> None:
        """Raise UserError unless each element has one owner."""
        self.check_load(tile)
        for dim, (size, subgroups, data) in enumerate(zip(tile, self.sg_layout, self.sg_data)):
            if size % (subgroups * data):
                given = f"given a tile of {tile[0]}x{tile[1]} and {self}"
                wanted = f"wanted a multiple of sg_layout * sg_data = {subgroups * data} at dim {dim}"
                raise UserError(f"data is not evenly distributed to each subgroup.: {given}, {wanted}")

    def rounds(self, tile: Pair) -> Pair:
        """Return the blocks that a subgroup has along each dimension."""
        self.check_load(tile)
        rows, cols = (-(-n // (each * data)) for n, each, data in zip(tile, self.sg_layout, self.sg_data))
        return rows, cols

    def _blocks(self, tile: Pair) -> Digits:
        """Return a tile as positions in a block, subgroups and rounds, row by row."""
        rounds = self.rounds(tile)
        data = (Digit(dim, size, _BLOCK[dim], 1) for dim, size in zip(_DIMS, self.sg_data))
        different = (n // (each * data) for n, each, data in zip(tile, rounds, self.sg_data))
        strides = (self.sg_layout[1], 1)
        subgroups = (Digit(dim, n, Space.SUBGROUP, stride) for dim, n, stride in zip(_DIMS, different, strides))
        return Digits(_DIMS, (*data, *subgroups, *_rows_of(_ROUND, rounds)))

    def fragment(self, tile: Pair, lanes: SgMap | None = None) -> Fragment:
        """Return the tile on subgroups and their lanes; without `lanes`, a subgroup's registers are row-major.

        Further blocks of a subgroup take further registers.
        """
        whole = SgMap((1, 1), self.sg_data)
        block = (lanes or whole).fragment(self.sg_data).renamed(_BLOCK)
        further = Digit(_ROUND, prod(self.rounds(tile)), Space.REGISTER, block.registers)
        spread = Digits((*block.dims, _ROUND), (*block.digits, further))
        return Fragment(_DIMS, self._blocks(tile).then(spread).digits)

    def on(self, tile: Pair) -> Distribution:
        """Return the subgroups as owners of the tile's elements."""
        return Distribution(self.fragment(tile), self.subgroups, lambda n: {Space.SUBGROUP: n})

    def blocks_of(self, tile: Pair, subgroup: int) -> list[Pair]:
        """Return the corners of a subgroup's blocks, round by round."""
        blocks, count = self._blocks(tile), prod(self.rounds(tile))
        at = [blocks.coordinates({Space.SUBGROUP: subgroup, _ROUND: n}) for n in range(count)]
        return [(corner[ROW], corner[COL]) for corner in at]

    def transposes_in_place(self, tile: Pair, transposed: WgMap) -> bool:
        """Return whether each subgroup has the same elements here and in the transposed tile mapped by `transposed`."""

        across = transposed._blocks((tile[1], tile[0])).renamed({ROW: COL, COL: ROW})
        return self._blocks(tile).canonical(Space.SUBGROUP) == across.canonical(Space.SUBGROUP)


#: spaces of data, lanes, units, subgroups and rounds
_ORDER = (Space.REGISTER, Space.LANE, Space.REGISTER, Space.SUBGROUP, Space.REGISTER)


def maps_of(fragment: Fragment, subgroups: int) -> tuple[WgMap, SgMap]:
    """Return the maps that give each lane of a workgroup the elements it has in a two-dimensional fragment.

    Registers are in the order of the maps. Raises UserError if the fragment's digits do not come from such maps.
    """
    given = f"given the fragment {fragment}"
    if len(fragment.dims) != 2:
        raise UserError(f"{given}, wanted one of two dimensions")
    merged = fragment.merged(Space.REGISTER, Space.LANE, Space.SUBGROUP)
    sides = [_sizes(merged.of(dim), f"{given}, wanted maps", dim) for dim in fragment.dims]
    (data_0, lanes_0, _, _, rounds_0), (data_1, lanes_1, _, across, rounds_1) = sides
    below = [d for d in merged.of(fragment.dims[0]) if d.space == Space.SUBGROUP]
    wide = below[0].stride if below else across
    if subgroups % wide:
        raise UserError(f"{given}, wanted a multiple of {wide} subgroups instead of {subgroups}")
    lanes = SgMap((lanes_0, lanes_1), (data_0, data_1))
    blocks = (n // (rounds * side[3]) for n, rounds, side in zip(fragment.shape, (rounds_0, rounds_1), sides))
    wg = WgMap((subgroups // wide, wide), tuple(blocks))
    written = wg.fragment((fragment.shape[0], fragment.shape[1]), lanes)
    named = merged.renamed(dict(zip(fragment.dims, _DIMS)))
    if written.canonical(Space.LANE, Space.SUBGROUP) != named.canonical(Space.LANE, Space.SUBGROUP):
        raise UserError(f"{given}, wanted lanes and subgroups that are numbered row by row, as in {written}")
    return wg, lanes


def _sizes(digits: Sequence[Digit], wanted: str, dim: str) -> list[int]:
    """Return the sizes, in the order of `_ORDER`, along one dimension."""
    sizes, at = [1] * len(_ORDER), 0
    for d in digits:
        ahead = [n for n in range(at, len(_ORDER)) if _ORDER[n] == d.space]
        if not ahead or (d.space != Space.REGISTER and sizes[ahead[0]] > 1):
            raise UserError(f"{wanted} with data, lanes, units, subgroups and rounds from the inside out along {dim}")
        at = ahead[0]
        sizes[at] *= d.size
    return sizes
