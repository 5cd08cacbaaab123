"""Bulk tensor copies (TMA) by im2col maps: lines are positions of a window, each some channels of one tap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convgen.ir.error import DoesNotFit
from convgen.ir.layout.memory import Dim, TensorDim, View
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.record import evolve, frozen
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

_MOST_PIXELS = 1024  #: lines of a copy
#: Rank of an im2col map -> greatest offset (ISA, Tensors, im2col mode).
_MOST_OFFSET: Mapping[int, int] = {3: (1 << 16) - 1, 4: (1 << 8) - 1, 5: (1 << 5) - 1}


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
        return Coordinate(self.lower, (scaled(digits[self.o.name], self.step),) if self.o else ())

    def offset(self, digits: Mapping[str, Term]) -> Coordinate:
        """Return the offset of a tap; a tap that moves down counts from the last one."""
        down = sum(-coef * (d.size - 1) for d, coef in self.taps if coef < 0)
        return Coordinate(down, tuple(scaled(digits[d.name], coef) for d, coef in self.taps))


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


def im2col_route(view: View, tile: PanelTile) -> TensorRoute:
    """Return the route by an im2col map: lines are pixels, and a line's elements the channels of taps."""
    name = view.memory.name
    channels, windows, images, shift = _roles(view, tile)
    _check_channels(channels, tile, view)
    _check_offsets(windows, name)
    lines, pieces = next(((n, count) for n, count in tile.pieces() if n <= _MOST_PIXELS), (0, 0))
    if not lines:
        raise DoesNotFit(f"copy=tensor: {tile.lines} lines of {name}, wanted multiples of {GROUP} up to {_MOST_PIXELS}")
    digits: dict[str, Term] = {}
    for axis, dims in enumerate(view.axes):
        digits |= digits_of(axis, [(d.name, d.padded) for d in dims if d.padded > 1])
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
    blocks = (scaled(digits[block], coef) for block, coef in channels.blocks)
    coordinates = (
        Coordinate(channels.tensor.const, (digits[channels.dim.name], *blocks, *past)),
        *(w.start(digits) for w in windows),
        Coordinate(0, (Term(tile.across, pixels, 0),)),
    )
    offsets = tuple(w.offset(digits) for w in windows)
    tensor = _im2col_map(view, tile, (channels, windows, images, shift), lines)
    return TensorRoute(tensor, coordinates, offsets, tile.along, tile.run, tile.panels, lines, pieces, taps_end)


def _im2col_map(view: View, tile: PanelTile, roles: _Roles, lines: int) -> TensorMap:
    """Return the map by which a copy brings `lines` pixels; DoesNotFit where the encoding lacks it."""
    memory, (channels, windows, images, shift) = view.memory, roles
    sizes = channels.tensor.size, *(w.tensor.size for w in windows), images.tensor.size if images.tensor else 1
    strides = *(w.stride for w in windows), images.stride
    steps = 1, *(w.step for w in windows), 1
    with encoding(memory.name):
        return TensorMap(
            kind="im2col",
            element=ELEMENTS[memory.elem.name],
            buffer=memory.name,
            dims=sizes,
            strides=tuple(stride if size > 1 else ALIGN for size, stride in zip(sizes[1:], strides)),
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


def _roles(view: View, tile: PanelTile) -> _Roles:
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


def _check_channels(channels: _Channels, tile: PanelTile, view: View) -> None:
    """Raise DoesNotFit if a copy of channels would bring some of another tap or group, or begin off 16 bytes."""
    d, t, run, name = channels.dim, channels.tensor, tile.run, view.memory.name
    if d.padded % run and not (channels.are_all and d.padded == view.extent(tile.along)):
        given = f"copy=tensor: {d.padded} channels of {name}"
        raise DoesNotFit(f"{given}, wanted a multiple of the {run} of a panel")
    if d.size != d.padded and not channels.are_all:
        given = f"copy=tensor: {d.size} channels in a group of {name}"
        raise DoesNotFit(f"{given}, wanted a multiple of the {d.padded} of whole tiles")
    numbers = t.const, *(coef for _, coef in channels.blocks)
    if any(n * tile.span // run % ALIGN for n in numbers):
        raise DoesNotFit(f"copy=tensor: channels of {name} that begin off {ALIGN} bytes, wanted multiples")
