"""Windows: the start and the extent of a message's surface.

Offsets into a surface have about 31 bits. For a larger view the surface begins at the tile, along the dimension of
largest stride.
"""

from __future__ import annotations

from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr, Surface, const, lift, maximum, minimum
from convgen.ir.layout.digits import times
from convgen.ir.simplify.extents import lower_bound, upper_bound
from convgen.ir.sizes import Extent
from convgen.ir.types import s64
from convgen.passes.messages.access import Position, TileAccess, is_of_elements
from convgen.passes.messages.linear import ZERO, LinearDim


class Window:
    """The surface of all messages of an access, and positions relative to it."""

    def __init__(self, access: TileAccess) -> None:
        self.view, self.layout, self.coords = access.view, access.layout, access.coords
        self.facts, self.bounds = access.facts, access.bounds
        self.far = min(range(len(self.view.axes)), key=lambda n: (not self._moves(n), self._reach(n)))
        self.origin = self._rebase()
        self.surface = self._surface()

    def position(self, d: LinearDim, at: Position) -> Position:
        """Return a position along a dim relative to the surface: from its start, in the direction of memory."""
        if d.reversed:
            at = self._whole(const(d.size - 1) - at.value, at)
        elif min(self.bounds(at.uniform)[0], self.bounds(at.varying)[0]) < 0:
            at = self._whole(at.value, at)
        if self.origin is not None and d is self.view.axes[self.far][0]:
            at = self._from_origin(at, self.origin)
        return at

    def _rebase(self) -> Expr | None:
        """Return the tile's start along the dimension of largest stride, if offsets from the view's start may not fit.

        Positions beyond the view, which the last tiles have, count: their offsets must not wrap into the surface.
        """
        beyond = sum(
            (self.layout.extent(name) * dims[0].padded // self.view.extent(axis) + 1) * upper_bound(dims[0].stride)
            for axis, (name, dims) in enumerate(zip(self.layout.dims, self.view.axes))
        )
        if self.view.memory.bytes - self.view.base + beyond <= self.facts.surface_max:
            return None
        if any(map(is_of_elements, self.coords)):
            given = f"given {self.view.memory.name} of {self.view.memory.bytes} bytes, whose rows have numbers"
            raise Unsupported(f"{given}, wanted at most {self.facts.surface_max}", rule="size")
        position = self.coords[self.far]
        for d in self.view.axes[self.far][:0:-1]:
            position = position // d.padded
        return position

    def _moves(self, axis: int) -> bool:
        """Return whether a surface can begin further on along the first dimension of an axis."""
        outer = self.view.axes[axis][0]
        return not outer.reversed and upper_bound(outer.stride) > 0

    def _reach(self, axis: int) -> int:
        """Return the largest span of a tile in bytes, from its start along the first dimension of an axis."""
        outer, tile = self.view.axes[axis][0], self.layout.extent(self.layout.dims[axis])
        inner = self.view.extent(axis) // outer.padded
        span = min(outer.size, (tile + inner - 2) // inner + 1)
        others = sum((d.size - 1) * upper_bound(d.stride) for dims in self.view.axes for d in dims if d is not outer)
        return (span - 1) * upper_bound(outer.stride) + others + self.view.memory.elem.bytes

    def _surface(self) -> Surface:
        """Return the surface: the whole view, or a window that begins at the tile."""
        memory, base = self.view.memory, self.view.base
        if self.origin is None:
            return Surface(memory, const(base, s64), lift(memory.length - base, ZERO))
        outer, reach = self.view.axes[self.far][0], self._reach(self.far)
        step = outer.stride if self._moves(self.far) else memory.bytes
        rows, rest = self._rows(outer, step)
        fitting = (self.facts.surface_max - rest) // upper_bound(step)
        if (
            fitting * upper_bound(step) + rest < reach
            or step != outer.stride
            or upper_bound(step) > self.facts.surface_max
        ):
            raise Unsupported(
                f"given {memory.name} of which one tile spans {reach} bytes, "
                f"wanted at most {fitting * upper_bound(step) + rest}",
                rule="size",
            )
        # Up to the end of the buffer, or the largest extent; masks protect what the tile must not touch.
        apart = outer.stride.to(s64) if isinstance(outer.stride, Expr) else const(outer.stride, s64)
        shift = self.origin.to(s64) * apart + const(base, s64)
        left = minimum(maximum(lift(rows, ZERO) - self.origin, 0), fitting)
        return Surface(memory, shift, left * outer.stride + const(rest))

    def _rows(self, outer: LinearDim, step: Extent) -> tuple[Extent, int]:
        """Return how many steps fit into the buffer, and the remaining bytes."""
        whole = self.view.memory.length - self.view.base
        if isinstance(whole, int) and isinstance(step, int):
            return divmod(whole, step)
        rest = whole - times(step, outer.extent)
        if lower_bound(rest) != upper_bound(rest) or lower_bound(rest) < 0:
            raise Unsupported(f"given {self.view.memory.name} of {whole} bytes, wanted rows of {step}", rule="size")
        return outer.extent, lower_bound(rest)

    def _from_origin(self, at: Position, origin: Expr) -> Position:
        """Return the position relative to the surface's start. No part may be negative: the varying one is checked."""
        if at.uniform is ZERO:
            return Position(ZERO, at.varying - origin, at.const)
        return Position(at.uniform - origin, at.varying, at.const)

    def _whole(self, place: Expr, at: Position) -> Position:
        """Return a position with parts that may be negative as a single part, at least 0: offsets must not wrap.

        Used where a dimension is counted from its other end, or a tile begins outside the view.
        """
        if self.bounds(place)[0] < 0:
            place = maximum(place, 0)
        return Position(ZERO, place, 0) if at.varying is not ZERO else Position(place, ZERO, 0)
