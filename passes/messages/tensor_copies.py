"""Bulk tensor copies (TMA) of a tile of a view into a slot of a shared tile in panels.

A copy brings `span` bytes of some neighbouring lines: a panel, or some of its lines. It writes them line after line in
the swizzle of panels if they start at a multiple of 8 lines. Lines run along K, or along the rows of a transposed tile.
A tiled map copies a box of the view's linear dims. An im2col map copies lines that are positions of a window, each
some channels of one tap. Maps read zeros outside the tensor, but an im2col map does not know how many taps there are:
past the last one, only tiles whose extent does not divide the axis are zero (`TensorRoute.taps_end`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

from convgen.ir.error import DoesNotFit, Unsupported, UserError
from convgen.ir.expr import Const, Expr, const
from convgen.ir.layout.memory import Dim, RunView, Shared, SizedView, TensorDim, View
from convgen.ir.layout.shared_panels import span_of
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.record import evolve, frozen
from convgen.passes.messages.linear import LinearDim, LinearView, linearize

#: IR type -> element type of maps. A copy moves bits, so a type that maps lack has one of its size.
ELEMENTS: Mapping[str, str] = {
    "s8": "s8", "u8": "u8", "f8_e4m3": "e4m3", "f8_e5m2": "e5m2",
    "f8_e4m3fnuz": "u8", "f8_e5m2fnuz": "u8", "e8m0": "u8",
    "s16": "u16", "u16": "u16", "f16": "f16", "bf16": "bf16",
    "s32": "s32", "u32": "u32", "f32": "f32", "s64": "s64", "u64": "u64", "f64": "f64",
}  # fmt: skip
_ALIGN = 16  #: bytes; of the innermost start coordinate, and of strides
_GROUP = 8  #: lines after which the swizzle of a panel repeats
_MOST_BOX, _MOST_PIXELS = 256, 1024  #: elements along a dimension of a box; lines of an im2col copy
#: Rank of an im2col map -> greatest offset (ISA, Tensors, im2col mode).
_MOST_OFFSET: Mapping[int, int] = {3: (1 << 16) - 1, 4: (1 << 8) - 1, 5: (1 << 5) - 1}


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
class _Tile:
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
            if rest == 0 and (lines % _GROUP == 0 or self.panels == pieces == 1):
                yield lines, pieces


def tensor_route(view: View, tile: Shared, step: int = 0) -> TensorRoute:
    """Return how tiles of a view come by the fewest bulk tensor copies; of equally many, tiled ones.

    Tiles begin at multiples of `step` rows, by default of their own rows. Raises DoesNotFit where no map brings them.
    """
    extents, linear = _tile_of(view, tile, step), _linear(view)
    routes: list[TensorRoute] = []
    reasons: list[DoesNotFit] = []
    makers: tuple[Callable[[], TensorRoute], ...] = (lambda: _tiled(linear, extents), lambda: _im2col(view, extents))
    for route in makers:
        try:
            routes.append(route())
        except DoesNotFit as reason:
            reasons.append(reason)
    if not routes:
        raise reasons[1 if linear.halos else 0] from None
    return min(routes, key=lambda r: r.count)


def _tile_of(view: View, tile: Shared, step: int) -> _Tile:
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
    extents = _Tile(span, along, run, lengths[along] // run, lines, step if step and along else lines)
    if extents.panels > 1 and extents.lines % _GROUP:
        given = f"copy=tensor: panels of {extents.lines} lines of {name}"
        raise DoesNotFit(f"{given}, wanted a multiple of {_GROUP}, after which the swizzle repeats")
    return extents


def _linear(view: View) -> LinearView:
    """Return the linear form of a view. Raises DoesNotFit if its layout has none."""
    try:
        return linearize(view)
    except Unsupported as error:
        raise DoesNotFit(f"copy=tensor: {error}") from None


# ---------------------------------------------------------------- tiled


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
        return self.dim.stride if self.high - self.low > 1 else _ALIGN

    @property
    def coordinate(self) -> Coordinate:
        """Return the coordinate in a tensor that begins with the existing position of the lowest address."""
        if self.dim.reversed:
            return Coordinate(self.high - 1, (_scaled(self.digit, -1),))
        return Coordinate(-self.low, (self.digit,))

    @property
    def first(self) -> int:
        """Return the bytes from the dim's position of the lowest address to the first that exists."""
        assert isinstance(self.dim.stride, int)
        return self.low * self.dim.stride


def _tiled(view: LinearView, tile: _Tile) -> TensorRoute:
    """Return the route by a tiled map of the view's linear dims."""
    name, elem = view.memory.name, view.memory.elem
    axes = _bounded(view)
    inner, *outer = axes[tile.along]
    if (inner.dim.stride != elem.bytes or inner.dim.reversed) and inner.dim.size > 1:
        raise DoesNotFit(f"copy=tensor: neighbours along {tile.name} of {name}, wanted contiguous ones")
    if outer and inner.dim.padded % tile.run:
        given = f"copy=tensor: a line of {name} of which {inner.dim.padded} elements are contiguous"
        raise DoesNotFit(f"{given}, wanted a multiple of the {tile.run} of a panel")
    if inner.low * elem.bytes % _ALIGN:
        given = f"copy=tensor: lines of {name} that begin {inner.low} elements before the tensor"
        raise DoesNotFit(f"{given}, wanted a multiple of {_ALIGN} bytes")
    across = axes[tile.across]
    cuts = ((lines, pieces, _box(across, lines, tile.step)) for lines, pieces in tile.pieces())
    lines, pieces, box = next((cut for cut in cuts if cut[2]), (0, 0, ()))
    if not box:
        given = f"copy=tensor: {tile.lines} lines of {name} over dims of {_sizes(across)}"
        raise DoesNotFit(f"{given}, wanted parts that are a box of at most {_MOST_BOX} along each dim")
    rest = [*outer, *(d for dims in axes[2:] for d in dims)]
    dims = [inner, *across, *rest]
    with _encoding(name):
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
        digits = _digits(axis, [(d.name, d.padded) for d in fused])
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


# ---------------------------------------------------------------- im2col


@frozen
class _Window:
    """A spatial dimension of the tensor: `o` counts its pixels and `taps` shift them."""

    tensor: TensorDim
    stride: int  #: bytes
    o: Dim | None
    step: int  #: between pixels
    taps: tuple[tuple[Dim, int], ...]  #: (dim, elements between taps)

    @property
    def lower(self) -> int:
        """Return the position of the first pixel at the tap of the lowest position."""
        return self.tensor.const + sum(min(0, coef * (d.size - 1)) for d, coef in self.taps)

    @property
    def upper(self) -> int:
        """Return the position of the last pixel at the tap of the lowest position, from the tensor's last element."""
        last = self.lower + (self.step * (self.o.size - 1) if self.o else 0)
        return last - (self.tensor.size - 1)

    @property
    def reach(self) -> int:
        """Return the greatest offset."""
        return sum(abs(coef) * (d.size - 1) for d, coef in self.taps)

    def start(self, digits: Mapping[str, Term]) -> Coordinate:
        """Return the coordinate of a copy's first pixel."""
        return Coordinate(self.lower, (_scaled(digits[self.o.name], self.step),) if self.o else ())

    def offset(self, digits: Mapping[str, Term]) -> Coordinate:
        """Return the offset of a tap; a tap that moves down counts from the last one."""
        down = sum(-coef * (d.size - 1) for d, coef in self.taps if coef < 0)
        return Coordinate(down, tuple(_scaled(digits[d.name], coef) for d, coef in self.taps))


@frozen
class _Channels:
    """The contiguous dimension of the tensor: channels of a block, and blocks of channels or groups."""

    tensor: TensorDim
    dim: Dim
    blocks: tuple[tuple[str, int], ...]  #: (dim that counts blocks or groups, elements between them)

    @property
    def are_all(self) -> bool:
        """Return whether positions past the channels are outside the tensor."""
        return not self.blocks and self.tensor.const == 0 and self.tensor.size == self.dim.size


@frozen
class _Images:
    """The tensor's dimension that counts runs of all pixels: `tensor` is None without one."""

    tensor: TensorDim | None
    stride: int  #: bytes


#: A tensor's channels, its spatial dimensions (W first), its images, and the bytes before its first element.
_Roles = tuple[_Channels, tuple[_Window, ...], _Images, int]


def _im2col(view: View, tile: _Tile) -> TensorRoute:
    """Return the route by an im2col map: lines are pixels, and a line's elements the channels of taps."""
    name = view.memory.name
    channels, windows, images, shift = _roles(view, tile)
    _check_channels(channels, tile, view)
    _check_offsets(windows, name)
    lines, pieces = next(((n, count) for n, count in tile.pieces() if n <= _MOST_PIXELS), (0, 0))
    if not lines:
        raise DoesNotFit(
            f"copy=tensor: {tile.lines} lines of {name}, wanted multiples of {_GROUP} up to {_MOST_PIXELS}"
        )
    digits: dict[str, Term] = {}
    for axis, dims in enumerate(view.axes):
        digits |= _digits(axis, [(d.name, d.padded) for d in dims if d.padded > 1])
    length = view.extent(tile.along)
    taps_end = None if channels.are_all and channels.dim.padded == length else length
    past: tuple[Term, ...] = ()
    if taps_end and length % (tile.panels * tile.run):
        # The last tile reaches past the last tap or the channels of a group. Its channels there are outside the tensor.
        outer = next(d for d in view.axes[tile.along] if d.name in digits)
        digits[outer.name] = evolve(digits[outer.name], modulus=outer.padded)
        past, taps_end = (Term(tile.along, length, 0, -(-channels.tensor.size // tile.run) * tile.run),), None
    # The images count the rounds over all pixels, so that pixels past the end belong to an image that does not exist.
    pixels = 1
    for w in windows:
        if w.o:
            digits[w.o.name] = Term(tile.across, pixels, w.o.size)
            pixels *= w.o.size
    blocks = (_scaled(digits[block], coef) for block, coef in channels.blocks)
    coordinates = (
        Coordinate(channels.tensor.const, (digits[channels.dim.name], *blocks, *past)),
        *(w.start(digits) for w in windows),
        Coordinate(0, (Term(tile.across, pixels, 0),)),
    )
    offsets = tuple(w.offset(digits) for w in windows)
    tensor = _im2col_map(view, tile, (channels, windows, images, shift), lines)
    return TensorRoute(tensor, coordinates, offsets, tile.along, tile.run, tile.panels, lines, pieces, taps_end)


def _im2col_map(view: View, tile: _Tile, roles: _Roles, lines: int) -> TensorMap:
    """Return the map by which a copy brings `lines` pixels; DoesNotFit where the encoding lacks it."""
    memory, (channels, windows, images, shift) = view.memory, roles
    sizes = channels.tensor.size, *(w.tensor.size for w in windows), images.tensor.size if images.tensor else 1
    strides = *(w.stride for w in windows), images.stride
    steps = 1, *(w.step for w in windows), 1
    with _encoding(memory.name):
        return TensorMap(
            kind="im2col",
            element=ELEMENTS[memory.elem.name],
            buffer=memory.name,
            dims=sizes,
            strides=tuple(stride if size > 1 else _ALIGN for size, stride in zip(sizes[1:], strides)),
            lower=tuple(w.lower for w in windows),
            upper=tuple(w.upper for w in windows),
            channels=tile.run,
            pixels=lines,
            element_strides=steps if max(steps) > 1 else (),
            swizzle=tile.span,
            shift=shift,
        )


def _check_offsets(windows: Sequence[_Window], name: str) -> None:
    """Raise DoesNotFit where an im2col map cannot express the distance of two taps."""
    rank = len(windows) + 2
    if rank in _MOST_OFFSET and any(w.reach > _MOST_OFFSET[rank] for w in windows):
        given = f"copy=tensor: taps of {name} {max(w.reach for w in windows)} elements apart"
        raise DoesNotFit(f"{given}, wanted at most {_MOST_OFFSET[rank]} in {rank - 2} dims")


def _roles(view: View, tile: _Tile) -> _Roles:
    """Return the tensor's channels, spatial dimensions (W first) and images, and the bytes before its first element.

    Raises DoesNotFit for a view that is not a window over channels.
    """
    name, bytes_each = view.memory.name, view.memory.elem.bytes
    if not view.layout.is_plain:
        raise DoesNotFit(f"copy=tensor: {name} of layout {view.layout.tag} is in blocks, wanted a plain one for im2col")
    dims = {d.name: (axis, d) for axis, own in enumerate(view.axes) for d in own if d.padded > 1}
    pixels = [d for d in view.axes[tile.across] if d.name in dims]
    inner = next((d for d in reversed(view.axes[tile.along]) if d.name in dims), None)
    apart = DoesNotFit(f"copy=tensor: neighbours along {tile.name} of {name}, wanted contiguous channels for im2col")
    channels: list[_Channels] = []
    windows: list[_Window] = []
    images: list[_Images] = []
    shift = 0
    for t, elements in zip(view.index, view.layout.strides(), strict=True):
        stride = elements * bytes_each
        terms = [(*dims[term], coef) for term, coef in t.terms if term in dims and coef]
        own = {axis: [(d, coef) for a, d, coef in terms if a == axis] for axis, _, _ in terms}
        across, along = own.get(tile.across, []), own.get(tile.along, [])
        if not terms and 0 <= t.const < t.size:
            shift += t.const * stride
        elif inner and inner in dict(along):
            if across or dict(along)[inner] != 1 or stride != bytes_each:
                raise apart
            channels.append(_Channels(t, inner, tuple((d.name, coef) for _, d, coef in terms if d is not inner)))
        elif pixels and across == [(pixels[0], 1)] and len(terms) == 1 and t.const == 0 and t.size == pixels[0].size:
            images.append(_Images(t, stride))
        elif len(terms) == len(across) + len(along) and len(across) <= 1:
            o, step = across[0] if across else (None, 1)
            windows.append(_Window(t, stride, o, step, tuple(along)))
        else:
            names = " and ".join(d.name for _, d, _ in terms)
            raise DoesNotFit(f"copy=tensor: {name} has a coordinate along {names}, wanted a pixel and taps for im2col")
    if len(channels) != 1:
        raise apart
    of_channels = {inner.name, *(block for block, _ in channels[0].blocks)} if inner else set()
    _check_windows(windows, [d for d in view.axes[tile.along] if d.name not in of_channels], name)
    counted = [w.o for w in windows if w.o]
    spatial = pixels[len(images) :]
    if len(images) > 1 or sorted(d.name for d in counted) != sorted(d.name for d in spatial):
        given = " and ".join(d.name for d in pixels)
        raise DoesNotFit(f"copy=tensor: lines of {name} over {given}, wanted one coordinate for each for im2col")
    fastest_first = sorted(windows, key=lambda w: -spatial.index(w.o) if w.o else 1)
    return channels[0], tuple(fastest_first), images[0] if images else _Images(None, 0), shift


def _check_windows(windows: Sequence[_Window], taps: Sequence[Dim], name: str) -> None:
    """Raise DoesNotFit for padded pixels or taps, or for pixels against memory."""
    if not windows:
        raise DoesNotFit(f"copy=tensor: {name} without spatial dims, wanted at least one for im2col")
    for d in (*taps, *(w.o for w in windows if w.o)):
        if d.size != d.padded:
            given = f"copy=tensor: {name} with {d.size} of {d.padded} positions along {d.name}"
            raise DoesNotFit(f"{given}, wanted all for im2col")
    least = min(w.step for w in windows)
    if least < 1:
        raise DoesNotFit(f"copy=tensor: {name} with pixels in steps of {least}, wanted at least 1 for im2col")


def _check_channels(channels: _Channels, tile: _Tile, view: View) -> None:
    """Raise DoesNotFit if a copy of channels would bring some of another tap or group, or begin off 16 bytes."""
    d, t, run, name = channels.dim, channels.tensor, tile.run, view.memory.name
    if d.padded % run and not (channels.are_all and d.padded == view.extent(tile.along)):
        given = f"copy=tensor: {d.padded} channels of {name}"
        raise DoesNotFit(f"{given}, wanted a multiple of the {run} of a panel")
    if d.size != d.padded and not channels.are_all:
        given = f"copy=tensor: {d.size} channels in a group of {name}"
        raise DoesNotFit(f"{given}, wanted a multiple of the {d.padded} of whole tiles")
    numbers = t.const, *(coef for _, coef in channels.blocks)
    if any(n * tile.span // run % _ALIGN for n in numbers):
        raise DoesNotFit(f"copy=tensor: channels of {name} that begin off {_ALIGN} bytes, wanted multiples")


# ---------------------------------------------------------------- both


def _digits(axis: int, fused: Sequence[tuple[str, int]]) -> dict[str, Term]:
    """Return the digit of each (dim, padded size), outermost first, of a fused position; the first is not reduced."""
    digits: dict[str, Term] = {}
    divisor = prod(padded for _, padded in fused)
    for number, (name, padded) in enumerate(fused):
        divisor //= padded
        digits[name] = Term(axis, divisor, padded if number else 0)
    return digits


def _scaled(term: Term, factor: int) -> Term:
    return Term(term.axis, term.divisor, term.modulus, term.factor * factor)


def _sum(a: Expr | int, b: Expr | int) -> Expr | int:
    """Return a sum without an addend that is 0."""
    if isinstance(a, int) and a == 0:
        return b
    return a if isinstance(b, int) and b == 0 else a + b


@contextmanager
def _encoding(name: str) -> Iterator[None]:
    """Raise DoesNotFit for a map within that the driver refuses."""
    try:
        yield
    except UserError as error:
        raise DoesNotFit(f"copy=tensor: {name} needs {str(error).removeprefix('given ')}") from None
