"""Memory layouts: which element of a buffer holds which element of a logical tensor.

A layout is a list of blocks, innermost first. A block `(dim, size, stride)` is one digit of dimension `dim`: the blocks
of a dimension, innermost first, are the digits of its index, least significant first, and the offset of an element is
the sum of digit x stride. Strides and offsets count elements.

Tags are oneDNN's: `acdb` (channels last), `aBcd16b` (channels in blocks of 16), names such as `nhwc` or `OIhw4i16o4i`,
and `x` for all remaining dimensions (`axb`). A stride list `3200x1x160x16` stands where a tag may.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Protocol, Self, TypeVar

import attrs

from convgen.ir.caret import PointedError
from convgen.ir.error import UserError

LETTERS = "abcdefghijkl"
STRIDES = re.compile(r"[0-9]{1,18}(x[0-9]{1,18})*")  #: a stride list

_TOKEN = re.compile(r"[0-9]*[^0-9]|[0-9]+$")


class Index(Protocol):
    """What an index must be able to do: integers, numpy arrays and IR expressions all can."""

    def __add__(self, other: Self, /) -> Self: ...
    def __mul__(self, factor: int, /) -> Self: ...
    def __floordiv__(self, divisor: int, /) -> Self: ...
    def __mod__(self, divisor: int, /) -> Self: ...


IndexT = TypeVar("IndexT", bound=Index)


@attrs.frozen
class Block:
    """One digit of dimension `dim`: `size` values, `stride` elements apart."""

    dim: int
    size: int
    stride: int


@attrs.frozen
class Layout:
    """Where the elements of a tensor of logical size `dims` lie; `blocks` innermost first.

    Dimensions may be padded: the blocks of a dimension hold at least its size. Size-1 blocks are kept (they say where a
    tag puts a dimension) until `normalized`.
    """

    dims: tuple[int, ...]
    blocks: tuple[Block, ...]

    @classmethod
    def from_tag(cls, tag: str, dims: Iterable[int]) -> Layout:
        """The layout that `tag` (or a stride list) gives a tensor of size `dims`.

        Raises PointedError (a UserError) under the character that breaks the grammar or names no dimension.
        """
        dims = tuple(dims)
        if STRIDES.fullmatch(tag):
            return cls.strided(dims, [int(stride) for stride in tag.split("x")])
        outer, inner = _parse(tag, len(dims))
        padding = {dim: prod(size for other, size in inner if other == dim) for dim in range(len(dims))}
        sizes = [(dim, -(-dims[dim] // padding[dim])) for dim in outer]
        return cls(dims, _stack(reversed(sizes + list(inner))))

    @classmethod
    def dense(cls, dims: Iterable[int], order: Sequence[int]) -> Layout:
        """A plain layout without gaps; `order` lists the dimensions outermost first."""
        dims = tuple(dims)
        if sorted(order) != list(range(len(dims))):
            raise UserError(f"given order {tuple(order)}, wanted a permutation of {len(dims)} dimensions")
        return cls(dims, _stack((dim, dims[dim]) for dim in reversed(order)))

    @classmethod
    def strided(cls, dims: Iterable[int], strides: Sequence[int]) -> Layout:
        """A plain layout with one stride (in elements) a dimension; gaps and overlaps are the caller's business."""
        dims = tuple(dims)
        if len(strides) != len(dims):
            raise UserError(f"given {len(strides)} strides {'x'.join(map(str, strides))}, wanted {len(dims)}")
        innermost_first = sorted(range(len(dims)), key=lambda dim: (strides[dim], -dim))
        return cls(dims, tuple(Block(dim, dims[dim], strides[dim]) for dim in innermost_first))

    def offset(self, indices: Sequence[IndexT]) -> IndexT | int:
        """The element offset of `indices` (one a dimension, in range): integers, arrays or IR expressions.

        Uses `+ * // %` with integer constants only, and no division in a dimension of one block. A tensor of one
        element has the offset 0.
        """
        below = [1] * len(self.dims)
        terms: list[IndexT] = []
        blocks = [block for block in self.blocks if block.size != 1]
        for place, block in enumerate(blocks):
            digit = indices[block.dim]
            if below[block.dim] != 1:
                digit = digit // below[block.dim]
            if any(later.dim == block.dim for later in blocks[place + 1 :]):
                digit = digit % block.size
            terms.append(digit if block.stride == 1 else digit * block.stride)
            below[block.dim] *= block.size
        if not terms:
            return 0
        total = terms[-1]
        for term in reversed(terms[:-1]):
            total = total + term
        return total

    def blocks_of(self, dim: int) -> tuple[Block, ...]:
        """The blocks of one dimension, innermost first."""
        return tuple(block for block in self.blocks if block.dim == dim)

    @property
    def padded_dims(self) -> tuple[int, ...]:
        """The logical size with the padding of blocks: what is allocated."""
        return tuple(prod(block.size for block in self.blocks_of(dim)) for dim in range(len(self.dims)))

    @property
    def size_elems(self) -> int:
        """How many elements an allocation needs, padding and gaps included."""
        if 0 in self.padded_dims:
            return 0
        return 1 + sum((block.size - 1) * block.stride for block in self.blocks)

    @property
    def is_plain(self) -> bool:
        """Whether every dimension has one stride."""
        return all(len(self.blocks_of(dim)) <= 1 for dim in range(len(self.dims)))

    @property
    def is_dense(self) -> bool:
        """Whether each element of the allocation holds exactly one element of the padded tensor."""
        running = 1
        for block in sorted((b for b in self.blocks if b.size != 1), key=lambda b: b.stride):
            if block.stride != running:
                return False
            running *= block.size
        return True

    @property
    def is_apart(self) -> bool:
        """Whether each stride is past what the smaller ones reach, so that no two elements meet."""
        reach = 1
        for block in sorted((b for b in self.blocks if b.size > 1), key=lambda b: b.stride):
            if block.stride < reach:
                return False
            reach += (block.size - 1) * block.stride
        return True

    def strides(self) -> tuple[int, ...]:
        """One stride a dimension, in elements; UserError if the layout is not plain."""
        if not self.is_plain:
            raise UserError(f"given the blocked layout {self.tag}, wanted a plain one")
        by_dim = {block.dim: block.stride for block in self.blocks}
        return tuple(by_dim.get(dim, 0) for dim in range(len(self.dims)))

    def normalized(self) -> Layout:
        """The same offsets with the fewest blocks: no block of size 1, dense neighbours of a dimension merged."""
        merged: list[Block] = []
        for block in (b for b in self.blocks if b.size != 1):
            last = merged[-1] if merged else None
            if last and last.dim == block.dim and block.stride == last.stride * last.size:
                merged[-1] = Block(last.dim, last.size * block.size, last.stride)
            else:
                merged.append(block)
        return Layout(self.dims, tuple(merged))

    @property
    def tag(self) -> str:
        """Canonical text: letters if the layout is a tag's, else strides if it is plain, else its blocks."""
        outer = self.blocks[len(self.blocks) - len(self.dims) :]
        stacked = _stack((block.dim, block.size) for block in self.blocks)
        is_tag = sorted(block.dim for block in outer) == list(range(len(self.dims))) and all(
            mine.stride == wanted.stride for mine, wanted in zip(self.blocks, stacked) if mine.size != 1
        )
        if is_tag:
            inner = self.blocks[: -len(self.dims)]
            blocked = [block.dim for block in inner]
            letters = [LETTERS[b.dim].upper() if b.dim in blocked else LETTERS[b.dim] for b in reversed(outer)]
            return "".join(letters + [f"{b.size}{LETTERS[b.dim]}" for b in reversed(inner)])
        if self.is_plain:
            return "x".join(map(str, self.strides()))
        return " ".join(f"{b.size}{LETTERS[b.dim]}:{b.stride}" for b in reversed(self.blocks))

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.dims))}:{self.tag}"


def _stack(blocks: Iterable[tuple[int, int]]) -> tuple[Block, ...]:
    """(dim, size) pairs, innermost first, laid out without gaps; an empty dimension takes no room of its own."""
    stacked, stride = [], 1
    for dim, size in blocks:
        stacked.append(Block(dim, size, stride))
        stride *= max(size, 1)
    return tuple(stacked)


@lru_cache(maxsize=2**10)
def _parse(tag: str, ndims: int) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """A tag as (dimensions outermost first, inner (dim, size) blocks outermost first)."""
    letters = _letters(tag, ndims)
    named = [LETTERS.index(c) for c in letters.lower() if c in LETTERS]
    rest = range(max(named, default=-1) + 1, ndims)
    outer: list[int] = []
    inner: list[tuple[int, int]] = []
    blocked: dict[int, int] = {}  # dimension written in upper case -> its column

    for token in _TOKEN.finditer(letters):
        number, letter, at = token[0][:-1], token[0][-1], token.end() - 1
        if letter.isdigit():
            raise PointedError(f"given the block size {token[0]} without a dimension", tag, token.start())
        if letter == "x" and not number and letters.index("x") == at:
            outer.extend(rest)
            continue
        if letter.lower() not in LETTERS:
            raise PointedError(f"given {tag[at]!r}, wanted a dimension letter of a {ndims}-D tensor", tag, at)
        dim = LETTERS.index(letter.lower())
        if dim >= ndims and "x" in letters:
            continue  # a meta tag is trimmed to the tensor
        if dim >= ndims:
            raise PointedError(f"given dimension {tag[at]!r}, wanted one of a {ndims}-D tensor", tag, at)
        if number:
            if letter.isupper() or dim not in blocked:
                raise PointedError(f"given a block of {tag[at]!r}, wanted one of an upper-case dimension", tag, at)
            if len(number) > 9 or int(number) == 0:
                raise PointedError(f"given a block of size {number}, wanted 1 to 999999999", tag, token.start())
            inner.append((dim, int(number)))
        elif inner:
            raise PointedError(f"given dimension {tag[at]!r} after a block, wanted only blocks", tag, at)
        elif dim in outer:
            raise PointedError(f"given dimension {tag[at]!r} twice", tag, at)
        else:
            outer.append(dim)
            if letter.isupper():
                blocked[dim] = at

    for dim, at in blocked.items():
        if all(dim != other for other, _ in inner):
            raise PointedError(f"given {tag[at]!r} without a block, wanted one such as 16{tag[at].lower()}", tag, at)
    if len(outer) < ndims:
        missing = next(dim for dim in range(ndims) if dim not in outer)
        raise PointedError(f"given no dimension {LETTERS[missing]!r}, wanted all {ndims}", tag, len(tag))
    return tuple(outer), tuple(inner)


def _letters(tag: str, ndims: int) -> str:
    """A tag of dimension names (`nhwc`, `goihw`) as letters, character by character; other tags unchanged."""
    if "n" in tag.lower():
        leading = "nc"
    elif "o" in tag.lower():
        leading = "goi" if "g" in tag.lower() else "oi"
    else:
        return tag
    spatial = ndims - len(leading)
    if not 0 <= spatial <= 3:
        raise PointedError(f"given a tag of {leading} and spatial dimensions, wanted a {ndims}-D one", tag, 0)
    names = leading + "dhw"[3 - spatial :]
    unknown = next((at for at, c in enumerate(tag) if c.isalpha() and c.lower() not in names), None)
    if unknown is not None:
        wanted = " ".join(names)
        raise PointedError(
            f"given {tag[unknown]!r}, wanted the dimensions {wanted} of a {ndims}-D tensor", tag, unknown
        )
    return tag.translate(str.maketrans(names + names.upper(), LETTERS[:ndims] + LETTERS[:ndims].upper()))
