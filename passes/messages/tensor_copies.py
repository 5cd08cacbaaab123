"""Bulk tensor copies (TMA) of a tile of a view into a slot of a shared tile in panels.

A copy brings `span` bytes of some neighbouring lines: a panel, or some of its lines. It writes them line after line in
the swizzle of panels if they start at a multiple of 8 lines. Lines run along K, or along the rows of a transposed tile.
A tiled map copies a box of the view's linear dims. An im2col map copies lines that are positions of a window, each
some channels of one tap. Maps read zeros outside the tensor, but an im2col map does not know how many taps there are:
past the last one, only tiles whose extent does not divide the axis are zero (`TensorRoute.taps_end`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convgen.ir.error import DoesNotFit, Unsupported
from convgen.ir.layout.memory import RunView, Shared, SizedView, View
from convgen.ir.layout.shared_panels import span_of
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.record import frozen
from convgen.passes.messages.linear import LinearDim, LinearView, linearize
from convgen.passes.messages.tensor_routes import (
    ALIGN,
    ELEMENTS,
    GROUP,
    Coordinate,
    PanelTile,
    TensorRoute,
    Term,
    digits_of,
    encoding,
    scaled,
)
from convgen.passes.messages.tensor_windows import im2col_route

_MOST_BOX = 256  #: elements along a dimension of a box


def tensor_route(view: View, tile: Shared, step: int = 0) -> TensorRoute:
    """Return how tiles of a view come by the fewest bulk tensor copies; of equally many, tiled ones.

    Tiles begin at multiples of `step` rows, by default of their own rows. Raises DoesNotFit where no map brings them.
    """
    extents, linear = _tile_of(view, tile, step), _linear(view)
    routes: list[TensorRoute] = []
    reasons: list[DoesNotFit] = []
    makers: tuple[Callable[[], TensorRoute], ...] = (
        lambda: _tiled(linear, extents),
        lambda: im2col_route(view, extents),
    )
    for route in makers:
        try:
            routes.append(route())
        except DoesNotFit as reason:
            reasons.append(reason)
    if not routes:
        raise reasons[1 if linear.halos else 0] from None
    return min(routes, key=lambda r: r.count)


def _tile_of(view: View, tile: Shared, step: int) -> PanelTile:
    """Return the extents of a tile. Raises DoesNotFit for a tile that no copy fills from the view."""
    name, elem, span = view.memory.name, tile.elem, span_of(tile)
    if not span:
        raise DoesNotFit(f"copy=tensor: the shared tile of {name} is in rows, wanted panels")
    if elem is not view.memory.elem:
        raise DoesNotFit(f"copy=tensor: {name} of {view.memory.elem} is converted to {elem} on the way, wanted {elem}")
    if elem.name not in ELEMENTS:
        raise DoesNotFit(f"copy=tensor: {name} of {elem}, wanted one of {', '.join(ELEMENTS)}")
    if not all(view.extent(axis) for axis in range(len(view.axes))):
        raise DoesNotFit(f"copy=tensor: {name} has no elements, wanted at least one along each axis")
    placed = {dim for t in view.index for dim, _ in t.terms}
    if any(d.size > 1 and d.name not in placed for d in view.axes[0]):
        raise DoesNotFit(f"copy=tensor: rows of {name} have numbers, wanted rows one after another")
    if isinstance(view, RunView):
        raise DoesNotFit(f"copy=tensor: {name} is read in runs that reach past existing elements, wanted whole dims")
    if isinstance(view, SizedView) or any(d.exact is not None for dims in view.axes for d in dims):
        raise DoesNotFit(f"copy=tensor: the host sets sizes of {name} at launch, wanted sizes that are known")
    lengths = tile.rows, tile.cols
    along = 0 if tile.is_transposed else 1
    run = span // elem.bytes
    lines = lengths[1 - along]
    extents = PanelTile(span, along, run, lengths[along] // run, lines, step if step and along else lines)
    if extents.panels > 1 and extents.lines % GROUP:
        given = f"copy=tensor: panels of {extents.lines} lines of {name}"
        raise DoesNotFit(f"{given}, wanted a multiple of {GROUP}, after which the swizzle repeats")
    return extents


def _linear(view: View) -> LinearView:
    """Return the linear form of a view. Raises DoesNotFit if its layout has none."""
    try:
        return linearize(view)
    except Unsupported as error:
        raise DoesNotFit(f"copy=tensor: {error}") from None


@frozen
class _Bounded:
    """A linear dim whose positions [low, high) exist, all of them if it is reversed, and its digit of the axis."""

    dim: LinearDim
    digit: Term
    low: int
    high: int
    is_outermost: bool

    @property
    def stride(self) -> int:
        """Return the bytes between positions; a number that maps take if there is one position only."""
        assert isinstance(self.dim.stride, int)
        return self.dim.stride if self.high - self.low > 1 else ALIGN

    @property
    def coordinate(self) -> Coordinate:
        """Return the coordinate in a tensor that begins with the existing position of the lowest address."""
        if self.dim.reversed:
            return Coordinate(self.high - 1, (scaled(self.digit, -1),))
        return Coordinate(-self.low, (self.digit,))

    @property
    def first(self) -> int:
        """Return the bytes from the dim's position of the lowest address to the first that exists."""
        assert isinstance(self.dim.stride, int)
        return self.low * self.dim.stride


def _tiled(view: LinearView, tile: PanelTile) -> TensorRoute:
    """Return the route by a tiled map of the view's linear dims."""
    name, elem = view.memory.name, view.memory.elem
    axes = _bounded(view)
    inner, *outer = axes[tile.along]
    if (inner.dim.stride != elem.bytes or inner.dim.reversed) and inner.dim.size > 1:
        raise DoesNotFit(f"copy=tensor: neighbours along {tile.name} of {name}, wanted contiguous ones")
    if outer and inner.dim.padded % tile.run:
        given = f"copy=tensor: a line of {name} of which {inner.dim.padded} elements are contiguous"
        raise DoesNotFit(f"{given}, wanted a multiple of the {tile.run} of a panel")
    if inner.low * elem.bytes % ALIGN:
        given = f"copy=tensor: lines of {name} that begin {inner.low} elements before the tensor"
        raise DoesNotFit(f"{given}, wanted a multiple of {ALIGN} bytes")
    across = axes[tile.across]
    cuts = ((lines, pieces, _box(across, lines, tile.step)) for lines, pieces in tile.pieces())
    lines, pieces, box = next((cut for cut in cuts if cut[2]), (0, 0, ()))
    if not box:
        given = f"copy=tensor: {tile.lines} lines of {name} over dims of {_sizes(across)}"
        raise DoesNotFit(f"{given}, wanted parts that are a box of at most {_MOST_BOX} along each dim")
    rest = [*outer, *(d for dims in axes[2:] for d in dims)]
    dims = [inner, *across, *rest]
    with encoding(name):
        tensor = TensorMap(
            kind="tiled",
            element=ELEMENTS[elem.name],
            buffer=name,
            dims=tuple(d.high - d.low for d in dims),
            strides=tuple(d.stride for d in dims[1:]),
            box=(tile.run, *box, *(1 for _ in rest)),
            swizzle=tile.span,
            shift=view.base + sum(d.first for d in dims),
        )
    return TensorRoute(tensor, tuple(d.coordinate for d in dims), (), tile.along, tile.run, tile.panels, lines, pieces)


def _bounded(view: LinearView) -> list[list[_Bounded]]:
    """Return the dims of each axis, innermost first, with bounds that a map checks."""
    dims = {d.name: d for axis in view.axes for d in axis}
    bounds = {name: (0, d.size) for name, d in dims.items()}
    for halo in view.halos:
        terms = [(name, coef) for name, coef in halo.terms if name in dims and dims[name].padded > 1]
        if not terms and 0 <= halo.const < halo.size:
            continue
        if len(terms) != 1 or terms[0][1] != 1 or dims[terms[0][0]].reversed:
            names = " and ".join(name for name, _ in terms) or "no dim"
            raise DoesNotFit(
                f"copy=tensor: a mask of {view.memory.name} over {names}, wanted one of one dim for a tiled map"
            )
        name = terms[0][0]
        low, high = bounds[name]
        bounds[name] = max(low, -halo.const), min(high, halo.size - halo.const)
    axes = []
    for axis, fused in enumerate(view.axes):
        digits = digits_of(axis, [(d.name, d.padded) for d in fused])
        axes.append([_Bounded(d, digits[d.name], *bounds[d.name], d is fused[0]) for d in reversed(fused)])
    return axes


def _box(dims: Sequence[_Bounded], lines: int, step: int) -> tuple[int, ...]:
    """Return the extents of a box that is any run of `lines` positions along dims, innermost first; () if it is none.

    Runs begin at multiples of `lines` from a multiple of `step`. Positions past the end of a dim are outside the
    tensor, so the box may have them.
    """
    box: list[int] = []
    for d in dims:
        if d.is_outermost or (d.dim.padded % lines == 0 and step % lines == 0):
            extent = lines
        elif lines % d.dim.padded == 0 and step % d.dim.padded == 0:
            extent = d.dim.padded
        else:
            return ()
        if extent > _MOST_BOX or (extent > 1 and d.dim.reversed):
            return ()
        box.append(extent)
        lines, step = lines // extent, max(1, step // extent)
    return tuple(box)


def _sizes(dims: Sequence[_Bounded]) -> str:
    """Return the sizes of dims, outermost first, with a word for a dim against memory."""
    return " x ".join(f"{d.dim.padded}{' reversed' * d.dim.reversed}" for d in reversed(dims))
