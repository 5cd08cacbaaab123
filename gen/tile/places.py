"""Positions of tiles: the memory of tensors, the start of each tile in the current iteration, and views of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

from convgen.ir.error import UserError
from convgen.ir.expr import Expr, Var, const, maximum, minimum
from convgen.ir.layout.digits import plus, times
from convgen.ir.layout.memory import Dim, SizedView, TensorDim, View
from convgen.ir.mutate import free_vars, substitute
from convgen.ir.record import evolve
from convgen.ir.simplify.bounds import Bounds, Range
from convgen.ir.simplify.congruence import Congruences
from convgen.plan.views import zero_outside
from convgen.tile.layouts import ValueLayout
from convgen.tile.tiles import Index, Tensor, Tile, sized
from convgen.tile.trace import Loop, ScalarLoad, Statement

_MOST_BEFORE = 1 << 16  #: positions before a tensor that a tile may cover along a dim; views count them as well
_MOST_FOLDED = 1 << 30  #: positions of a tile's first dim and of the dims folded into it, which are counted together

Vector = tuple[Index, ...]  #: a place in a tensor, or a distance, along each of its dims


class Places:
    """The current values of a kernel's scalars, and the positions of its tiles."""

    def __init__(self, tensors: Sequence[Tensor], statements: Sequence[Statement]) -> None:
        self.memory = {t.name: t.memory for t in tensors}
        self.scalars: dict[Var, Expr] = {}
        self.ranges: dict[Expr, Range] = {}  #: least and greatest value of each expression
        self.multiples: dict[Expr, int] = {}  #: numbers of which variables are multiples
        self._moved: dict[Tile, Vector] = {}  #: start of each moved tile in the current iteration
        self._steps: dict[tuple[Loop, Tile], Vector] = {}  #: by loop and tile after the body: the step of an iteration
        #: by tile after a loop: the tile before it, and the distance over all iterations
        self._ends: dict[Tile, tuple[Tile, Vector]] = {}
        self._ended: set[Var] = set()  #: scalars of the bodies of loops that have ended
        self._measure(statements)

    def _measure(self, statements: Sequence[Statement]) -> None:
        """Compute the steps of all loops, inner ones first, and the ranges of loaded scalars."""
        self.ranges |= {s.var: (0, s.most) for s in statements if isinstance(s, ScalarLoad)}
        for loop in (statement for statement in statements if isinstance(statement, Loop)):
            self._measure(loop.body)
            steps = {last: (first, self._distance(first, last)) for _, first, last in loop.moved}
            for last, (first, by) in steps.items():
                _check_equal_steps(first, by, _scalars_of_body(loop))
                self._steps[loop, last] = by
                self._ends[last] = first, tuple(times(loop.trips, d) for d in by)

    def _distance(self, first: Tile, last: Tile) -> Vector:
        """Return how far `last` is moved from `first`. Raises UserError unless it was made by moving `first`."""
        by: Vector = (0,) * len(first.offsets)
        at: Tile | None = last
        while at is not first and at is not None:
            at, further = self._ends.get(at, (at.moved_from, at.moved_by))
            by = tuple(a + b for a, b in zip(by, further))
        if at is None:
            given = f"given a tile of {first.tensor.name} that is another one in the next iteration"
            raise UserError(f"{given}, wanted it moved by update_tile_offset, in tile.range")
        return by

    @contextmanager
    def within(self, loop: Loop, index: Var) -> Iterator[None]:
        """Within the block, tiles are at their place in iteration `index`; after it, where the last one leaves them."""
        outside = dict(self._moved), dict(self.scalars)
        self.scalars[loop.var] = index
        trips = self.scalar(loop.trips)
        self.ranges[index] = (0, max(0, Bounds(self.ranges)(trips)[1] - 1))
        starts = {last: (first, self.begin(first)) for _, first, last in loop.moved}
        for last, (first, start) in starts.items():
            self._moved[first] = _further(start, index, self._steps[loop, last])
        yield
        self._moved, self.scalars = outside
        self._ended |= _scalars_of_body(loop)
        for last, (_, start) in starts.items():
            self._moved[last] = _further(start, trips, self._steps[loop, last])

    def begin(self, tile: Tile) -> Vector:
        """Return where a tile begins along each dim of its tensor."""
        if tile in self._moved:
            at = self._moved[tile]
        elif tile.moved_from is not None:
            at = tuple(a + b for a, b in zip(self.begin(tile.moved_from), tile.moved_by))
        else:
            at = tile.offsets
        return tuple(self.scalar(o) if isinstance(o, Expr) else o for o in at)

    def multiple(self, index: Index) -> int:
        """Return a number that divides an index; 0 if the index is zero."""
        known = {variable: (number, 0) for variable, number in self.multiples.items()}
        return Congruences(Bounds(self.ranges), known).multiple(index) if isinstance(index, Expr) else index

    def scalar(self, index: Index) -> Expr:
        """Return an index with the current values of its variables. Raises UserError for those of an ended loop."""
        if isinstance(index, Expr) and (ended := self._ended.intersection(free_vars(index))):
            names = ", ".join(sorted(v.name for v in ended))
            raise UserError(f"given the scalar {names} of a loop's body after the loop, wanted it within that body")
        return substitute(index, self.scalars) if isinstance(index, Expr) else const(index)

    def at(self, tile: Tile, layout: ValueLayout) -> tuple[Index, ...]:
        """Return where a tile begins, in the order of a layout's dims."""
        begin, (margins, lengths) = self.begin(tile), self._extents(tile)
        folded: Index = 0
        for n in tile.folded:
            folded = plus(times(folded, lengths[n]), begin[n])
        starts = [start + margin if margin else start for start, margin in zip(begin, margins)]
        return tuple(starts[n] + folded * lengths[n] if n == tile.kept[0] else starts[n] for n in layout.axes)

    def until(
        self, tile: Tile, layout: ValueLayout, ends: Sequence[Index | None], depth: int = 1
    ) -> tuple[View, tuple[Index, ...]]:
        """Return a view of a tensor that ends at these positions along its dims, and where in it a tile begins.

        Without `ends` the view ends where the tensor does. `depth` is as for `view`.
        """
        if not ends:
            return self.view(tile, layout, depth), self.at(tile, layout)
        given = {n: end for n, end in enumerate(ends) if end is not None}
        (margins, lengths), names = self._extents(tile), dict(zip(layout.axes, layout.fragment.dims))
        view = ending(self.view(tile, layout, depth), [names[n] for n in given], [lengths[n] for n in given])
        # Clamped before the sum, which would overflow.
        inside = {
            n: minimum(maximum(self.scalar(end), -margins[n]), lengths[n] - margins[n]) for n, end in given.items()
        }
        return view, (*self.at(tile, layout), *(end + margins[n] if margins[n] else end for n, end in inside.items()))

    def _extents(self, tile: Tile) -> tuple[list[int], list[int]]:
        """Return, by dim of the tensor, how far before it a tile may begin, and the positions that a view counts."""
        ranges = [(at, at) if isinstance(at, int) else Bounds(self.ranges)(at) for at in self.begin(tile)]
        margins = _margins(tile, ranges)
        return margins, _lengths(tile, ranges, margins)

    def view(self, tile: Tile, layout: ValueLayout, depth: int = 1, row: int | None = None) -> View:
        """Return a view of a tensor with dims in a layout's order, the last one padded to whole tiles of `depth`.

        Dims along which a tile has one position are folded into its first dim, outside of it. `row`, if given, is the
        length of memory's rows.
        """
        tensor, (margins, lengths) = tile.tensor, self._extents(tile)
        _check_known_at_launch(tile, margins)
        names = {n: f"around{n}" for n in tile.folded} | dict(zip(layout.axes, layout.fragment.dims))
        last = layout.axes[-1]
        if last != tile.kept[0] or not tile.folded:
            lengths[last] = -(-lengths[last] // depth) * depth
        dims: list[Dim] = []
        for n, (size, most, margin) in enumerate(zip(tensor.shape, tensor.most, margins)):
            exact = plus(size, margin) if isinstance(size, Expr) else None
            dims.append(Dim(names[n], most + margin, lengths[n], exact))
        if row is not None:
            dims = [Dim(dim.name, row, row) if tensor.strides[n] == 1 else dim for n, dim in enumerate(dims)]
        folded = tuple(dims[n] for n in tile.folded)
        axes = tuple((*folded, dims[n]) if n == tile.kept[0] else (dims[n],) for n in layout.axes)
        index = tuple(
            TensorDim(size, ((names[n], 1),), -margin, masked=margin > 0)
            for n, (size, margin) in enumerate(zip(tensor.most, margins))
        )
        memory = self.memory[tensor.name]
        if not tensor.is_known:
            return SizedView(memory, tensor.layout, axes, index, tensor.strides)
        return View(memory, tensor.layout, axes, index)


def ending(view: View, dims: Sequence[str], most: Sequence[int]) -> View:
    """Return a view with a further axis for each of some dims: a position along it is where the dim ends.

    `most` are the positions of these dims. The dim's coordinate less the end, plus `most`, leaves its range behind it.
    """
    names = [f"end_of_{dim}" for dim in dims]
    axes = (*view.axes, *((Dim(name, size + 1, size + 1),) for name, size in zip(names, most)))
    masks = (TensorDim(size, ((dim, 1), (name, -1)), size, masked=True) for dim, name, size in zip(dims, names, most))
    return zero_outside(evolve(view, axes=axes), tuple(masks))


def _scalars_of_body(loop: Loop) -> set[Var]:
    """Return the counter of a loop, and the scalars that its body loads."""
    return {loop.var, *(s.var for s in loop.body if isinstance(s, ScalarLoad))}


def _check_equal_steps(tile: Tile, by: Vector, of_body: set[Var]) -> None:
    """Raise UserError for a tile that a loop moves by scalars of its body, which differ between iterations."""
    if any(isinstance(d, Expr) and of_body.intersection(free_vars(d)) for d in by):
        given = f"given a tile of {tile.tensor.name} that each iteration moves by another distance"
        raise UserError(f"{given}, wanted init_tile at these offsets in the body, in tile.range")


def _further(start: Vector, steps: Expr, by: Vector) -> Vector:
    return tuple(plus(times(steps, d), o) for o, d in zip(start, by))


def _counted_together(tile: Tile) -> tuple[int, ...]:
    """Return the dims that have others folded around them."""
    return (*tile.folded[1:], tile.kept[0]) if tile.folded else ()


def _check_known_at_launch(tile: Tile, margins: Sequence[int]) -> None:
    """Raise UserError for a view that would need a length or stride that only the launch knows."""
    tensor, wanted = tile.tensor, "wanted numbers for all dims but the first"
    if any(isinstance(tensor.shape[n], Expr) for n in _counted_together(tile)):
        given = f"given a tile of one position along a dim of {tensor.name}"
        raise UserError(f"{given}, whose rows are counted at launch, {wanted}")
    if any(margin and isinstance(stride, Expr) for margin, stride in zip(margins, tensor.strides)):
        given = f"given a tile that may begin before {tensor.name}"
        raise UserError(f"{given}, whose rows are measured at launch, {wanted}")


def _margins(tile: Tile, ranges: Sequence[Range]) -> list[int]:
    """Return how far before each dim's first position a tile may begin, given the ranges of its starts."""
    for n, (low, _) in enumerate(ranges):
        if low < (-_MOST_BEFORE if n in tile.kept else 0):
            given = f"given an offset of {tile.tensor.name} that may be {low}"
            wanted = f"at least {-_MOST_BEFORE}" if n in tile.kept else "one from 0 along a dim without a block"
            raise UserError(f"{given}, wanted {wanted}, at init_tile")
    return [max(0, -low) for low, _ in ranges]


def _lengths(tile: Tile, ranges: Sequence[Range], margins: Sequence[int]) -> list[int]:
    """Return the positions of each dim; a dim with others folded around it counts all that whole tiles may reach.

    So a tile that starts at a multiple of its length lies within one position of the dims around.
    """
    lengths = [size + margin for size, margin in zip(tile.tensor.most, margins)]
    for n in _counted_together(tile):
        block = tile.shape[0] if n in tile.kept else 1
        reached = max(tile.tensor.most[n] - 1, ranges[n][1]) + margins[n] + block
        lengths[n] = -(-reached // block) * block
    if tile.folded and prod(lengths[n] for n in (*tile.folded, tile.kept[0])) > _MOST_FOLDED:
        given = f"given a tile of {tile.tensor.name} at one position along some dims, that may reach {sized(lengths)}"
        raise UserError(f"{given}, wanted at most {_MOST_FOLDED} positions along these and the next, at init_tile")
    return lengths
