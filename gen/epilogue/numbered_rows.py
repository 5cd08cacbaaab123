"""Rows of a tensor whose numbers a launch reads from memory: a product gathers rows of src, or scatters its own.

A view has the rows as its last axis, and a tile has a position along it for each of its elements. Rows with a number
beyond the tensor do not exist: they read zero, and are not stored.
"""

from __future__ import annotations

import attrs

from convgen.epilogue.epilogue import along
from convgen.ir.build import Index, KernelBuilder
from convgen.ir.expr import Expr, Pack, Slice, const, minimum
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Dim, Global, TensorDim, View
from convgen.ir.layout.tags import Layout
from convgen.ir.record import define, evolve, frozen
from convgen.ir.stmt import Stmt
from convgen.ir.types import s32, u32, vector

_ANY = 1 << 20  #: positions along a tile's other axis, on which numbers do not depend: more than tiles have


@frozen
class NumberedRows:
    """Rows of a tensor by the numbers that `numbers` has for the rows of a product: number // `divisor`."""

    name: str  #: of the dim of a view that counts the tensor's rows
    numbers: Global  #: s32; one for each row of the product
    dim: Dim  #: rows of the product
    rows: int  #: rows of the tensor
    divisor: int = 1

    def view(self, view: View) -> View:
        """Return a view of a tensor by the rows of the product as one by the tensor's own rows, a further axis."""
        index = tuple(
            TensorDim(self.rows, ((self.name, 1),)) if t.terms == ((self.dim.name, 1),) and not t.masked else t
            for t in view.index
        )
        if index == view.index:
            return view
        return evolve(view, axes=(*view.axes, (Dim(self.name, self.rows, self.rows),)), index=index)

    def view_of_numbers(self, axis: int) -> View:
        """Return the numbers as a view with two axes, of which the rows of the product are number `axis`."""
        count = self.dim.size
        rows, other = (self.dim,), (Dim("any", _ANY, _ANY),)
        index = (TensorDim(count, ((self.dim.name, 1),)),)
        return View(self.numbers, Layout.dense((count,), (0,)), (rows, other) if axis == 0 else (other, rows), index)


@define
class TileRows:
    """The numbers of the rows of one tile, as the coordinate of its elements along the last axis of views."""

    rows: NumberedRows
    k: KernelBuilder
    axis: int  #: axis of the tile along which the rows of the product lie, 0 or 1
    start: Index  #: first row of the tile
    _loaded: list[tuple[Fragment, list[Stmt], Expr]] = attrs.Factory(list)  #: layout, where it is loaded, coordinate

    def at(self, start: Index) -> TileRows:
        """Return the numbers of a part of the tile that begins at row `start`."""
        return self if start is self.start else TileRows(self.rows, self.k, self.axis, start)

    def of(self, layout: Fragment) -> Expr:
        """Return the row of each element of a fragment; a load is shared by the statements of its scope."""
        for known, suite, coordinate in self._loaded:
            if known == layout and self.k.is_within(suite):
                return coordinate
        coordinate = self._load(layout)
        self._loaded.append((layout, self.k.current_suite, coordinate))
        return coordinate

    def _load(self, layout: Fragment) -> Expr:
        rows = self.rows
        distinct, order = along(layout, [layout.dims[self.axis]])
        at = (self.start, 0) if self.axis == 0 else (0, self.start)
        numbers = self.k.load_view("numbers", rows.view_of_numbers(self.axis), at, distinct, "rows", rows.numbers.name)
        elements = [self._row(Pack(s32, (Slice(numbers, n, 1),))) for n in range(distinct.registers)]
        return Pack(vector(s32, len(order)), tuple(elements[n] for n in order))

    def _row(self, number: Expr) -> Expr:
        """Return the row of a number, the number of rows where it does not exist; the bound is known of the result."""
        limit = const(self.rows.rows * self.rows.divisor, u32)
        whole = minimum(number.to(u32), limit).to(s32)
        return self.k.let(self.rows.name, whole if self.rows.divisor == 1 else whole // self.rows.divisor)
