"""Memory in the IR: global buffers, tiles of shared memory with a swizzle, and views."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from functools import reduce
from itertools import pairwise
from typing import Any

from convgen.ir.checks import check_name, check_range
from convgen.ir.error import UserError
from convgen.ir.expr import Expr
from convgen.ir.layout.digits import Digit, Digits, Space, plus, stacked, times
from convgen.ir.layout.fragment import DWORD, Fragment
from convgen.ir.layout.tags import Layout
from convgen.ir.node import Node, node
from convgen.ir.record import evolve, frozen
from convgen.ir.sizes import Extent
from convgen.ir.types import Type

MOST_BYTES = 1 << 48  #: bytes of a buffer: the reach of virtual addresses on these devices
_MOST_SHARED = 1 << 24  #: positions along a shared tile's row or column; devices have up to 160 KiB of shared memory


@node
class Global(Node):
    """A buffer argument of the kernel: `bytes` long, elements of type `elem`."""

    name: str
    elem: Type
    bytes: int

    def infer(self) -> None:
        check_name(self.name, "buffer")
        check_range(self.bytes, 0, MOST_BYTES, f"bytes of buffer {self.name}:")

    @property
    def elements(self) -> Extent:
        """Return the elements of the buffer in a launch."""
        return 8 * self.bytes // self.elem.spacing

    @property
    def length(self) -> Extent:
        """Return the bytes of the buffer in a launch."""
        return self.bytes


@node
class SizedGlobal(Global):
    """A buffer for a tensor whose shape the host sets at launch: dense, and at most `bytes`."""

    shape: tuple[Extent, ...]

    @property
    def elements(self) -> Extent:
        found: Extent = reduce(times, self.shape, 1)
        return found

    @property
    def length(self) -> Extent:
        found: Extent = times(self.elements, self.elem.bytes)
        return found


ROW, COL = "row", "col"  #: names of a shared tile's dims


@frozen(cache_hash=True)
class Swizzle:
    """Chunk c of row r is stored at chunk `c ^ (r >> shift & mask)`: a bijection on the chunks of a row.

    With a `fold` it is `c ^ ((r >> shift ^ r >> shift + fold) & mask)`: rows far apart differ, too. A negative shift
    spreads neighbouring rows further: `c ^ (r << -shift & mask)`. If the mask exceeds a row's chunks, c counts the
    chunks of the rows before, too: chunks move between neighbouring rows.
    """

    shift: int = 0
    mask: int = 0
    fold: int = 0

    def __attrs_post_init__(self) -> None:
        check_range(self.shift, -8, 30, "swizzle shift")
        check_range(self.mask, 0, 0xFFFF, "swizzle mask")
        check_range(self.fold, max(0, -self.shift) if self.fold else 0, 30 - self.shift, "swizzle fold")

    def __call__(self, chunk: Any, row: Any) -> Any:
        if self.mask == 0:
            return chunk
        low = _moved(row, self.shift)
        return chunk ^ ((low ^ _moved(row, self.shift + self.fold) if self.fold else low) & self.mask)

    def place(self, chunk: Any, row: Any, chunks: int) -> tuple[Any, Any]:
        """Return the chunk position and the row at which a chunk is stored, in rows of `chunks` chunks."""
        if self.mask < chunks:
            return self(chunk, row), row
        bits = chunks.bit_length() - 1
        across = evolve(self, mask=self.mask & (chunks - 1))
        down = evolve(self, shift=self.shift + bits, mask=self.mask >> bits)
        return across(chunk, row), down(row, row)

    def suits(self, chunks: int, rows: int) -> bool:
        """Return whether the swizzle is a bijection on the chunks of `rows` rows."""
        moved = 1 << self.mask.bit_length()  # chunks in an aligned group that the swizzle permutes
        if moved <= chunks:
            return chunks % moved == 0
        # A bit of a row's number changes only by higher bits, so the row can be recovered from the top down.
        return moved % chunks == 0 and rows % (moved // chunks) == 0 and self.shift >= 0 and chunks << self.shift > 1

    @property
    def period(self) -> int:
        """Return the rows after which the swizzle repeats, a power of two."""
        return 1 << max(0, self.mask.bit_length() + self.shift + self.fold) if self.mask else 1

    def __str__(self) -> str:
        """Return the expression that a chunk's number is XORed with."""
        low = f"row << {-self.shift}" if self.shift < 0 else f"row >> {self.shift}"
        return f"({low} ^ row >> {self.shift + self.fold}) & {self.mask}" if self.fold else f"{low} & {self.mask}"


def _moved(row: Any, places: int) -> Any:
    """Return `row` shifted right by `places`, as a quotient: the simplifier knows more about quotients than shifts."""
    return row * (1 << -places) if places < 0 else row // (1 << places) if places else row


def row_major(rows: int, cols: int, pitch: int | None = None) -> Digits:
    """Return the digits of a tile whose rows are `pitch` elements apart, dense if None."""
    each = cols if pitch is None else pitch
    return Digits((ROW, COL), (Digit(COL, cols, Space.MEMORY, 1), Digit(ROW, rows, Space.MEMORY, each)))


def column_major(rows: int, cols: int) -> Digits:
    """Return the digits of a tile whose columns are contiguous."""
    return Digits((ROW, COL), (Digit(ROW, rows, Space.MEMORY, 1), Digit(COL, cols, Space.MEMORY, rows)))


@node
class Shared(Node):
    """`slots` copies of a rows x cols tile in shared memory.

    `digits` split (row, col) in memory, in elements. The swizzle permutes chunks of a row in a row-major tile, of a
    column in a column-major one; `chunk` is its unit in bytes (16: a lane's widest read).
    """

    name: str
    elem: Type
    rows: int
    cols: int
    digits: Digits
    slots: int
    swizzle: Swizzle
    chunk: int

    def infer(self) -> None:
        """Raise UserError unless the digits cover the tile without overlap, and the swizzle fits its rows."""
        check_name(self.name, "shared tile")
        check_range(self.slots, 1, 64, f"slots of shared tile {self.name}:")
        digits = self.digits.digits
        for value in (self.rows, self.cols, self.chunk, *(n for d in digits for n in (d.size, d.stride))):
            check_range(value, 1, _MOST_SHARED, f"in shared tile {self.name}")
        along, lines = (self.rows, self.cols) if self.is_transposed else (self.cols, self.rows)
        chunks, rest = divmod(along * self.elem.bytes, self.chunk)
        swizzled = self.swizzle.mask and (
            rest or not self.swizzle.suits(chunks, lines) or (len(digits) > 2 and not self._is_in_panels)
        )
        inside = all(d.dim in (ROW, COL) and d.space == Space.MEMORY for d in digits)
        shape = self.digits.dims == (ROW, COL) and inside and self.digits.shape == (self.rows, self.cols)
        if not shape or swizzled or not _steps_over(digits):
            what = ", ".join(f"{d.dim} {d.size} at {d.stride}" for d in digits)
            raise UserError(f"shared tile {self.name} of {self.rows} x {self.cols}: digits {what}, {self.swizzle}")

    @property
    def _is_in_panels(self) -> bool:
        """Return whether a line's first digit holds whole groups of chunks that the swizzle permutes."""
        group = self.chunk << self.swizzle.mask.bit_length()
        return self.digits.digits[0].size * self.elem.bytes % group == 0

    @property
    def region(self) -> str:
        """Return the name of the tile whose memory this tile uses: its own."""
        return self.name

    @property
    def is_transposed(self) -> bool:
        """Return whether the tile is transposed: neighbours along a column are contiguous."""
        return any(d.dim == ROW for d in self.digits.digits[:1])

    @property
    def chunks(self) -> int:
        """Return the whole chunks of a row, or of a column if the tile is transposed."""
        return (self.rows if self.is_transposed else self.cols) * self.elem.bytes // self.chunk

    @property
    def pitch(self) -> int | None:
        """Return the bytes from a row to the next in a row-major tile, None in any other order."""
        row = self.digits.digits[-1]
        return row.stride * self.elem.bytes if self.digits == row_major(self.rows, self.cols, row.stride) else None

    @property
    def slot_bytes(self) -> int:
        return max((d.size * d.stride for d in self.digits.digits), default=1) * self.elem.bytes

    @property
    def bytes(self) -> int:
        return self.slots * self.slot_bytes

    @property
    def is_dense(self) -> bool:
        """Return whether each place of a slot holds an element."""
        return self.slot_bytes == self.rows * self.cols * self.elem.bytes

    def address(self, slot: Any, row: Any, col: Any) -> Any:
        """Return the byte offset of an element from the tile's start; for numbers, numpy arrays and IR expressions."""
        if self.swizzle.mask and self.is_transposed:
            row, col = self._swizzled(row, col)
        elif self.swizzle.mask:
            col, row = self._swizzled(col, row)
        place = self.digits.place({ROW: row, COL: col}, self.elem.bytes)
        return plus(times(slot, self.slot_bytes), place.get(Space.MEMORY, 0))

    def _swizzled(self, along: Any, line: Any) -> tuple[Any, Any]:
        """Return where an element is stored: its place along its row (column if transposed), and the row's number."""
        per_chunk = self.chunk // self.elem.bytes
        at, moved = self.swizzle.place(along // per_chunk, line, self.chunks)
        return at * per_chunk + along % per_chunk, moved


@node
class Overlay(Shared):
    """A tile that reuses the memory of another tile, whose elements are dead."""

    over: str  #: name of the tile whose memory is reused

    @property
    def region(self) -> str:
        return self.over


def _steps_over(digits: tuple[Digit, ...]) -> bool:
    """Return whether each stride is at least the size times the stride of every digit with a smaller stride."""
    spans = [(d.stride, d.size * d.stride) for d in sorted(digits, key=lambda d: d.stride) if d.size > 1]
    return all(end <= start for (_, end), (start, _) in pairwise(spans))


@frozen(cache_hash=True)
class Plane:
    """A rectangle of a buffer with bounds that the hardware checks; elements outside are zero.

    It begins `base` bytes into `memory` and has `height` rows of `width` bytes, `pitch` bytes apart.
    """

    memory: Global
    base: int
    width: Extent
    height: Extent
    pitch: Extent


class RectangleOrder(Enum):
    """The order of a rectangle's elements in a subgroup's registers."""

    ROWS = "rows"  #: as in memory: dwords of a row spread over the lanes, row after row
    ROW_A_LANE = "a row a lane"
    #: or several columns a lane, as many lanes apart; a lane's elements of one row are contiguous
    COLUMN_A_LANE = "a column a lane"


@frozen(cache_hash=True)
class Rectangle:
    """The part of a plane that one message moves: `count` times `rows` x `cols` elements side by side."""

    rows: int
    cols: int
    order: RectangleOrder
    count: int = 1

    def __attrs_post_init__(self) -> None:
        for value in (self.rows, self.cols, self.count):
            check_range(value, 1, 1 << 12, "in a rectangle")

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return self.rows * self.cols * self.count

    def grain(self, elem_bytes: int) -> int:
        """Return the bytes that a step of the rectangle's x counts: a dword if rows are transposed, else an element."""
        return DWORD if self.order is RectangleOrder.ROW_A_LANE else elem_bytes

    def layout(self, lanes: int, elem_bytes: int) -> Fragment:
        """Return the element of the rectangle, as ("row", "col"), for each lane and register."""
        rows, cols = self.rows, self.cols
        digits: tuple[Digit, ...]
        if self.order is RectangleOrder.ROW_A_LANE:
            digits = (Digit("row", rows, Space.LANE, 1), Digit("col", cols, Space.REGISTER, 1))
        elif self.order is RectangleOrder.COLUMN_A_LANE:
            near = min(cols, lanes)
            wide = cols // near
            across = Digit("col", near, Space.LANE, 1), Digit("col", wide, Space.REGISTER, 1)
            digits = (Digit("row", rows, Space.REGISTER, wide), *across)
        else:
            per_dword = DWORD // elem_bytes
            wide = cols // per_dword
            within = (Digit("col", per_dword, Space.REGISTER, 1), Digit("col", wide, Space.LANE, 1))
            down = lanes // wide
            digits = (
                *within, Digit("row", down, Space.LANE, wide), Digit("row", rows // down, Space.REGISTER, per_dword)
            )  # fmt: skip
        beside = Digit("col", self.count, Space.REGISTER, rows * cols // lanes)
        return Fragment(("row", "col"), tuple(d for d in (*digits, beside) if d.size > 1))


@frozen(cache_hash=True)
class Dim:
    """One dimension of a view: positions [0, size) exist; `padded` >= size is its share of the fused axis.

    The host may set the size of an axis's outermost dim at launch: `exact`, at most `size`.
    """

    name: str
    size: int
    padded: int
    exact: Expr | None = None

    @property
    def extent(self) -> Extent:
        """Return the positions that exist in a launch."""
        return self.size if self.exact is None else self.exact

    def __attrs_post_init__(self) -> None:
        check_name(self.name, "dim")
        check_range(self.padded, 0, MOST_BYTES, f"padded size of {self.name}:")
        check_range(self.size, 0, self.padded, f"size of {self.name}:")


@frozen(cache_hash=True)
class TensorDim:
    """A tensor coordinate as a linear function of view dimensions: `sum(coef * dim) + const`.

    A `masked` coordinate may leave [0, size): loads then return zero and stores are dropped.
    """

    size: int
    terms: tuple[tuple[str, int], ...]
    const: int = 0
    masked: bool = False

    def at(self, dims: dict[str, Any]) -> Any:
        total: Any = self.const
        for name, coef in self.terms:
            total = dims[name] * coef + total
        return total


def stride(layout: Layout, index: Sequence[TensorDim], dim: str) -> int:
    """Return the elements between neighbours along a view dim, in a layout that the coordinates `index` address."""
    return sum(layout.step(n, coef) for n, t in enumerate(index) for name, coef in t.terms if name == dim)


@node
class View(Node):
    """A virtual tensor over a global buffer.

    `axes` are the dimensions that the program indexes; each is a fusion of view dims, outermost first, so that index
    `((d0 * padded1) + d1) * padded2 + d2` decodes to (d0, d1, d2). `index` maps view dims to tensor coordinates,
    `layout` maps these to elements of `memory`. Elements outside a dim's size, or outside a masked tensor dim, are zero
    on load and dropped on store. Code that works on views knows nothing about convolutions.
    """

    memory: Global
    layout: Layout
    axes: tuple[tuple[Dim, ...], ...]
    index: tuple[TensorDim, ...]

    def step(self, n: int, count: int) -> Extent:
        """Return the elements between positions `count` apart along tensor dimension n, within a block."""
        return self.layout.step(n, count)

    def offset(self, indices: Sequence[Any], known: Callable[[Extent], int]) -> Any:
        """Return the element of memory at these tensor indices; `known` gives the values of extents."""
        return self.layout.offset(indices)

    def extent(self, axis: int) -> int:
        """Return the length of a fused axis, padding included."""
        return math.prod(d.padded for d in self.axes[axis])

    def length(self, axis: int) -> Extent:
        """Return the length of a fused axis in a launch, padding of inner dims included."""
        outer, *inner = self.axes[axis]
        found: Extent = times(outer.padded if outer.exact is None else outer.exact, math.prod(d.padded for d in inner))
        return found

    def of_axes(self, axes: int) -> View:
        """Return the view over the first `axes` axes, at position 0 of the others."""
        if len(self.axes) <= axes:
            return self
        kept = {d.name for dims in self.axes[:axes] for d in dims}
        terms = (tuple(term for term in t.terms if term[0] in kept) for t in self.index)
        index = tuple(evolve(t, terms=own) for t, own in zip(self.index, terms))
        return View(self.memory, self.layout, self.axes[:axes], index)

    def decode(self, axis: int, position: Any) -> dict[str, Any]:
        """Return the view dims of a fused position; the outermost dim is not reduced: over-run shows as `>= size`."""
        dims = self.axes[axis]
        inner_first = [(d.name, d.padded) for d in reversed(dims)]
        fused = Digits(tuple(d.name for d in dims), stacked(Space.AXIS, inner_first))
        return fused.coordinates({Space.AXIS: position}, overrun=True)


@node
class RunView(View):
    """A view whose memory continues along the unit dim beyond the existing elements, as image rows under a window.

    Messages may then load a run of which only a part exists; `Trim` drops the rest.
    """


@node
class SizedView(View):
    """A view of a tensor whose sizes the host sets at launch: `layout` is that of the largest tensor.

    `apart` are its strides, in elements.
    """

    apart: tuple[Extent, ...]

    def step(self, n: int, count: int) -> Extent:
        apart: Extent = times(self.apart[n], count)
        return apart

    def offset(self, indices: Sequence[Any], known: Callable[[Extent], int]) -> Any:
        return sum(index * known(apart) for index, apart in zip(indices, self.apart))
