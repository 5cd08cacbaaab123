"""The tensors of a tile kernel and places in them: shapes of numbers, or of sizes that the host gives at launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from convgen.ir.error import UserError
from convgen.ir.layout.memory import Global, SizedGlobal
from convgen.ir.layout.tags import Layout
from convgen.ir.record import frozen
from convgen.ir.simplify.extents import most
from convgen.ir.sizes import Extent, Size
from convgen.ir.types import Type, scalar
from convgen.tile.xetile_maps import Maps

Index: TypeAlias = Extent  #: where a tile begins: a number, or an expression that workgroups compute
Shape: TypeAlias = tuple[int, ...]


def size(name: str, most: int, *, least: int = 1, multiple: int = 1) -> Size:
    """A size that is known at launch only: in [least, most], and a multiple of `multiple`.

    The more is promised, the better the kernel: rows of whole chunks of 16 bytes come in wide messages. Raises
    UserError for a promise that cannot be kept.
    """
    return Size(name, 0, scalar("s32"), least, most, multiple)


def elem_of(dtype: str, where: str) -> Type:
    """The type of elements of that name. Raises UserError, naming the place, where there is none."""
    try:
        return scalar(dtype)
    except (KeyError, TypeError):
        raise UserError(f"given the type {dtype!r}, wanted one such as f16 or s8, at {where}") from None


@frozen
class Tensor:
    """A tensor argument: `shape` in elements, `dtype` by name, and where its elements lie, row after row without a tag.

    Sizes are numbers, or known at launch only (`tile.size`). Raises UserError for a tag or a type that is none, and for
    blocks or gaps in a tensor of sizes that are not known.
    """

    shape: tuple[Any, ...]  #: extents; a kernel that takes numbers from it is one for numbers
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
        """The shape where all sizes are as large as they may be."""
        return tuple(map(most, self.shape))

    @property
    def is_known(self) -> bool:
        """Whether all sizes are numbers."""
        return all(isinstance(size, int) for size in self.shape)

    @property
    def layout(self) -> Layout:
        """Of the largest tensor that it may be."""
        if self.tag:
            return Layout.from_tag(self.tag, self.most)
        return Layout.dense(self.most, range(len(self.shape)))

    @property
    def strides(self) -> tuple[Extent, ...]:
        """Elements from one position to the next along each dim; of a tensor of numbers, what its layout says."""
        layout = self.layout
        if self.is_known:
            return layout.strides() if layout.is_plain else ()
        return layout.strides_of(self.shape)

    @property
    def memory(self) -> Global:
        """The buffer that holds it."""
        most_bytes = self.layout.size_elems * self.elem.bytes
        if self.is_known:
            return Global(self.name, self.elem, most_bytes)
        return SizedGlobal(self.name, self.elem, most_bytes, self.shape)


@frozen(eq=False)
class Tile:
    """Where a block of `shape` begins in a tensor; of a moved tile, by how much and from which one.

    The block has the tensor's dims `kept`; along others it is at one position.
    """

    tensor: Tensor
    shape: Shape
    offsets: tuple[Index, ...]
    kept: tuple[int, ...]
    moved_from: Tile | None = None
    moved_by: tuple[Index, ...] = ()
    maps: Maps | None = None  #: how what is loaded and stored is distributed, if the kernel says so


def sized(shape: Sequence[Extent | None]) -> str:
    """A shape as text."""
    return "x".join(map(str, shape))


def common_shape(name: str, shapes: Sequence[Shape]) -> Shape:
    """The shape that all have where those of size 1 count for any."""
    if len({len(s) for s in shapes}) != 1 or any(len({n for n in sizes if n != 1}) > 1 for sizes in zip(*shapes)):
        given = " and ".join(map(sized, shapes))
        raise UserError(f"given blocks of {given}, wanted the same shape, or 1 along a dim, at {name}")
    return tuple(max(sizes) for sizes in zip(*shapes))
