"""Layouts that a kernel asks for, as XeTile's maps: blocks on subgroups, and a block's elements on lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import gcd

from convgen.ir.error import UserError
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.xetile import Pair, SgMap, WgMap
from convgen.ir.record import frozen

Pairs = tuple[Sequence[int], Sequence[int]]  #: layout and data of a map, as passed by the user


@frozen
class Maps:
    """Blocks of a tile on subgroups; their elements on lanes as `sg` says, or in rows as wide as messages."""

    wg: WgMap
    sg: SgMap | None
    at: str  #: the operation and its tensor, for errors

    def __str__(self) -> str:
        return f"{self.wg}, {self.sg}" if self.sg else str(self.wg)

    def check_store(self, shape: Sequence[int], operation: str) -> None:
        """Raise UserError unless each element of a block has one owner."""
        with _with_operation(operation):
            self.wg.check_store((shape[0], shape[1]))

    def fragment(self, shape: Pair, width: int, subgroups: int, wide: int) -> Fragment:
        """Return the layout of a tile on subgroups of `width` lanes; without `sg`, at most `wide` neighbours a lane.

        Raises UserError unless the maps use all subgroups of the workgroup and all lanes of a subgroup.
        """
        if self.wg.subgroups != subgroups:
            given = f"given sg_layout of {self.wg.subgroups} subgroups"
            raise UserError(f"{given}, wanted the workgroup's {subgroups}, at {self.at}")
        lanes = self.sg or _default_lanes(self.wg.sg_data, width, wide)
        if lanes.lanes != width:
            given = f"given a block of {'x'.join(map(str, self.wg.sg_data))} on {lanes.lanes} lanes"
            raise UserError(f"{given}, wanted the subgroup's {width}, at {self.at}")
        return self.wg.fragment(shape, lanes)


def maps(operation: str, shape: Sequence[int], wg_map: Pairs | None, sg_map: Pairs | None) -> Maps | None:
    """Return the maps of a block of `shape`, None if none are given. Raises UserError if they break XeTile's rules."""
    if wg_map is None and sg_map is None:
        return None
    for name, pairs in (("wg_map", wg_map), ("sg_map", sg_map)):
        if pairs is not None and not _is_pairs(pairs):
            raise UserError(f"given {name}={pairs!r}, wanted two pairs of numbers, (layout, data), at {operation}")
    if wg_map is None or len(shape) != 2:
        given = f"given {'sg_map alone' if wg_map is None else 'wg_map'} of {'x'.join(map(str, shape))}"
        raise UserError(
            f"{given}, wanted wg_map, and sg_map where lanes matter, of a block of two dims, at {operation}"
        )
    with _with_operation(operation):
        checked = Maps(WgMap(*wg_map), SgMap(*sg_map) if sg_map else None, operation)
        checked.wg.check_load((shape[0], shape[1]))
        if checked.sg:
            checked.sg.units(checked.wg.sg_data)
    return checked


def _is_pairs(pairs: object) -> bool:
    return isinstance(pairs, Sequence) and len(pairs) == 2 and all(isinstance(pair, Sequence) for pair in pairs)


@contextmanager
def _with_operation(operation: str) -> Iterator[None]:
    """Add the operation to errors."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error}, at {operation}") from None


def _default_lanes(block: Pair, width: int, wide: int) -> SgMap:
    """Return lanes along rows, then along columns, each with as many elements as leave some for all lanes.

    A small block uses fewer lanes.
    """
    most = gcd(block[1], wide)
    layouts = [_lanes(block, width, data) for data in range(most, 0, -1) if most % data == 0]
    return next((lanes for lanes in layouts if lanes.lanes == width), layouts[-1])


def _lanes(block: Pair, width: int, data: int) -> SgMap:
    across = gcd(block[1] // data, width)
    return SgMap((gcd(block[0], width // across), across), (1, data))
