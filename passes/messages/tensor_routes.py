"""Routes of bulk tensor copies (TMA): a map, and the coordinates of each copy that brings a part of a tile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

from convgen.ir.error import DoesNotFit, UserError
from convgen.ir.expr import Const, Expr, const
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.record import frozen

#: IR type -> element type of maps. A copy moves bits, so a type that maps lack has one of its size.
ELEMENTS: Mapping[str, str] = {
    "s8": "s8", "u8": "u8", "f8_e4m3": "e4m3", "f8_e5m2": "e5m2",
    "f8_e4m3fnuz": "u8", "f8_e5m2fnuz": "u8", "e8m0": "u8",
    "s16": "u16", "u16": "u16", "f16": "f16", "bf16": "bf16",
    "s32": "s32", "u32": "u32", "f32": "f32", "s64": "s64", "u64": "u64", "f64": "f64",
}  # fmt: skip
ALIGN = 16  #: bytes; of the innermost start coordinate, and of strides
GROUP = 8  #: lines after which the swizzle of a panel repeats


@frozen
class TensorMessage:
    """One bulk tensor copy: from the coordinates of a map to `place` in a slot."""

    map: TensorMap
    coords: tuple[Expr, ...]  #: s32; start along each dimension of the map, innermost first
    offsets: tuple[Expr, ...]  #: s32; im2col: offsets along W (H, D); tiled: ()
    place: int  #: bytes from the start of the slot, before the swizzle


@frozen
class Term:
    """`factor` times one dim of a fused position: the position along an axis // divisor, modulo its size if not 0."""

    axis: int
    divisor: int
    modulus: int
    factor: int = 1

    def at(self, position: Expr | int) -> Expr | int:
        """Return the value for a position along the axis."""
        value = position // self.divisor if self.divisor > 1 else position
        value = value % self.modulus if self.modulus else value
        return value * self.factor if self.factor != 1 else value


@frozen
class Coordinate:
    """A coordinate or offset of a copy: the sum of terms of the tile's start, and a number."""

    const: int
    terms: tuple[Term, ...] = ()

    def at(self, starts: Sequence[Expr | int]) -> Expr:
        """Return the coordinate of the copy that starts there along the view's axes."""
        total: Expr | int = self.const
        for term in self.terms:
            total = _sum(term.at(starts[term.axis]), total)
        return const(total) if isinstance(total, int) else total


@frozen
class TensorRoute:
    """How tiles of a view come by bulk tensor copies: one map, and the coordinates of each copy.

    A tile has `panels` panels of `pieces` copies of `lines` lines.
    """

    map: TensorMap
    coordinates: tuple[Coordinate, ...]  #: along the dimensions of the map
    offsets: tuple[Coordinate, ...]  #: along W (H, D) of an im2col map
    along: int  #: axis of the view along which lines run
    run: int  #: elements of a line in a panel
    panels: int
    lines: int
    pieces: int
    #: end of the positions along lines that copies bring. Past it they would bring elements of other taps or groups, by
    #: offsets that may be out of range. None: copies bring zeros past the end of the axis.
    taps_end: int | None = None

    @property
    def count(self) -> int:
        """Return the number of copies that bring a tile."""
        return self.panels * self.pieces

    @property
    def bytes(self) -> int:
        """Return the bytes that the copies of a tile write, clipped ones included."""
        return self.count * self.map.bytes

    def messages(self, coords: Sequence[Expr]) -> Iterator[TensorMessage]:
        """Yield the copies of the tile that starts at `coords` along the view's axes.

        Along axes 0 and 1 a tile starts at a multiple of its own extent.
        """
        for panel in range(self.panels):
            for piece in range(self.pieces):
                starts = [start.bits if isinstance(start, Const) else start for start in coords]
                starts[self.along] = _sum(starts[self.along], panel * self.run)
                starts[1 - self.along] = _sum(starts[1 - self.along], piece * self.lines)
                coordinates, offsets = (tuple(c.at(starts) for c in cs) for cs in (self.coordinates, self.offsets))
                yield TensorMessage(self.map, coordinates, offsets, (panel * self.pieces + piece) * self.map.bytes)


@frozen
class PanelTile:
    """The extents of a tile in panels, by axes of the view."""

    span: int  #: bytes of a line in a panel
    along: int  #: axis along which lines run
    run: int  #: elements of a line in a panel
    panels: int
    lines: int
    step: int  #: lines from the start of a tile to that of the next

    @property
    def across(self) -> int:
        """Return the axis whose positions are lines."""
        return 1 - self.along

    @property
    def name(self) -> str:
        """Return the name of the axis along which lines run."""
        return ("rows", "K")[self.along]

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield the (lines, copies) into which panels can be cut, the fewest copies first."""
        for pieces in range(1, self.lines + 1):
            lines, rest = divmod(self.lines, pieces)
            if rest == 0 and (lines % GROUP == 0 or self.panels == pieces == 1):
                yield lines, pieces


def digits_of(axis: int, fused: Sequence[tuple[str, int]]) -> dict[str, Term]:
    """Return the digit of each (dim, padded size), outermost first, of a fused position; the first is not reduced."""
    digits: dict[str, Term] = {}
    divisor = prod(padded for _, padded in fused)
    for number, (name, padded) in enumerate(fused):
        divisor //= padded
        digits[name] = Term(axis, divisor, padded if number else 0)
    return digits


def scaled(term: Term, factor: int) -> Term:
    return Term(term.axis, term.divisor, term.modulus, term.factor * factor)


def _sum(a: Expr | int, b: Expr | int) -> Expr | int:
    """Return a sum without an addend that is 0."""
    if isinstance(a, int) and a == 0:
        return b
    return a if isinstance(b, int) and b == 0 else a + b


@contextmanager
def encoding(name: str) -> Iterator[None]:
    """Raise DoesNotFit for a map within that the driver refuses."""
    try:
        yield
    except UserError as error:
        raise DoesNotFit(f"copy=tensor: {name} needs {str(error).removeprefix('given ')}") from None
