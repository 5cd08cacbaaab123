"""Tensors of a tile kernel and tiles in them: shapes are numbers, or sizes that the host gives at launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from convgen.ir.error import UserError
from convgen.ir.layout.memory import Global, SizedGlobal
from convgen.ir.layout.tags import Layout
from convgen.ir.record import frozen
from convgen.ir.simplify.extents import upper_bound
from convgen.ir.sizes import Extent, Size
from convgen.ir.types import Type, scalar
from convgen.tile.xetile_maps import Maps

Index: TypeAlias = Extent  #: start of a tile: a number, or an expression that workgroups compute
Shape: TypeAlias = tuple[int, ...]


def size(name: str, most: int, *, least: int = 1, multiple: int = 1) -> Size:
    """Return a size that is known only at launch: in [least, most], and a multiple of `multiple`.

    Tighter bounds make faster kernels: rows of whole 16-byte chunks are loaded by wide messages. Raises UserError for
    impossible bounds.
    """
    return Size(name, 0, scalar("s32"), least, most, multiple)


def elem_of(dtype: str, where: str) -> Type:
    """Return the element type of that name. Raises UserError, which names the place, for an unknown one."""
    try:
        return scalar(dtype)
    except (KeyError, TypeError):
        raise UserError(f"given the type {dtype!r}, wanted one such as f16 or s8, at {where}") from None


@frozen
class Tensor:
    """A tensor argument: `shape` in elements, `dtype` by name, and a layout tag; without a tag it is dense, row-major.

    Sizes are numbers, or known only at launch (`tile.size`). Raises UserError for an unknown tag or type, and for
    blocks or gaps in a tensor with sizes that are not known.
    """

    shape: tuple[Any, ...]  #: extents; a kernel that reads numbers from it requires numbers
    dtype: str
    tag: str = ""
    name: str = ""

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.shape, tuple) or not self.shape:
            raise UserError(f"given the shape {self.shape!r}, wanted a tuple of sizes, at a tensor")
        for size in self.shape:
            if not isinstance(size, Size) and (type(size) is not int or size < 1):
                raise UserError(f"given the size {size!r} of {self.shape!r}, wanted integers from 1, at a tensor")
        if not isinstance(self.dtype, str):
            raise UserError(f"given the type {self.dtype!r}, wanted the name of one such as 'f16', at a tensor")
        if self.elem.bits < 8:
            raise UserError(f"given the type {self.dtype!r}, wanted one of whole bytes, at a tensor")
        _ = self.layout, self.strides

    @property
    def elem(self) -> Type:
        return elem_of(self.dtype, "a tensor")

    @property
    def most(self) -> Shape:
        """Return the shape with every size at its maximum."""
        return tuple(map(upper_bound, self.shape))

    @property
    def is_known(self) -> bool:
        """Whether all sizes are numbers."""
        return all(isinstance(size, int) for size in self.shape)

    @property
    def layout(self) -> Layout:
        """Return the layout of the tensor at its maximum size."""
        if self.tag:
            return Layout.from_tag(self.tag, self.most)
        return Layout.dense(self.most, range(len(self.shape)))

    @property
    def strides(self) -> tuple[Extent, ...]:
        """Return the elements from one position to the next along each dim; () for a blocked layout."""
        layout = self.layout
        if self.is_known:
            return layout.strides() if layout.is_plain else ()
        return layout.strides_of(self.shape)

    @property
    def memory(self) -> Global:
        """Return the buffer that holds the tensor."""
        most_bytes = self.layout.size_elems * self.elem.bytes
        if self.is_known:
            return Global(self.name, self.elem, most_bytes)
        return SizedGlobal(self.name, self.elem, most_bytes, self.shape)


@frozen(eq=False)
class Tile:
    """A block of `shape` at `offsets` of a tensor; a moved tile refers to the original tile and its distance.

    The block has the tensor's dims `kept`; along the others it has one position.
    """

    tensor: Tensor
    shape: Shape
    offsets: tuple[Index, ...]
    kept: tuple[int, ...]
    moved_from: Tile | None = None
    moved_by: tuple[Index, ...] = ()
    maps: Maps | None = None  #: explicit layout of loads and stores, if any

    @property
    def folded(self) -> tuple[int, ...]:
        """Return the dims along which the tile has one position."""
        return tuple(n for n in range(len(self.offsets)) if n not in self.kept)


def sized(shape: Sequence[Extent | None]) -> str:
    """Return a shape as text."""
    return "x".join(map(str, shape))


def common_shape(name: str, shapes: Sequence[Shape]) -> Shape:
    """Return the common shape of blocks, where size 1 suits any size."""
    if len({len(s) for s in shapes}) != 1 or any(len({n for n in sizes if n != 1}) > 1 for sizes in zip(*shapes)):
        given = " and ".join(map(sized, shapes))
        raise UserError(f"given blocks of {given}, wanted the same shape, or 1 along a dim, at {name}")
    return tuple(max(sizes) for sizes in zip(*shapes))
