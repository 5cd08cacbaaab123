"""Memory layouts: the offset in a buffer of each element of a logical tensor.

A layout splits indices into digits in memory, called blocks here. Strides and offsets count elements.

Tags are oneDNN's: `acdb` (channels last), `aBcd16b` (channels in blocks of 16), names such as `nhwc` or `OIhw4i16o4i`,
and `x` for all remaining dimensions (`axb`). A stride list `3200x1x160x16` may replace a tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod

from convgen.ir.caret import PointedError
from convgen.ir.error import UserError
from convgen.ir.layout.digits import Digit, Digits, Index, Space, stacked, times
from convgen.ir.record import evolve, frozen
from convgen.ir.sizes import Extent

LETTERS = "abcdefghijkl"
STRIDES = re.compile(r"[0-9]{1,18}(x[0-9]{1,18})*")  #: a stride list

_TOKEN = re.compile(r"[0-9]*[^0-9]|[0-9]+$")


@frozen
class Layout:
    """The element offsets of a tensor of logical size `dims`: `blocks`, innermost first, of dims named by letters.

    Dimensions may be padded: the blocks of a dimension hold at least its size. Blocks of one position are kept, as they
    show where a tag puts a dimension.
    """

    dims: tuple[int, ...]
    blocks: tuple[Digit, ...]

    def __attrs_post_init__(self) -> None:
        letters = LETTERS[: len(self.dims)]
        for block in self.blocks:
            if block.dim not in letters:
                raise UserError(f"given a block of dimension {block.dim[:9]!r}, wanted one of {', '.join(letters)}")

    @classmethod
    def from_tag(cls, tag: str, dims: Iterable[int]) -> Layout:
        """Return the layout that `tag` (or a stride list) gives a tensor of size `dims`.

        Raises PointedError (a UserError) under the character that breaks the grammar or names no dimension.
        """
        dims = tuple(dims)
        if STRIDES.fullmatch(tag):
            return cls.strided(dims, [int(stride) for stride in tag.split("x")])
        outer, inner = _parse(tag, len(dims))
        padding = {dim: prod(size for other, size in inner if other == dim) for dim in range(len(dims))}
        sizes = [(dim, -(-dims[dim] // padding[dim])) for dim in outer]
        return cls(dims, _in_memory(reversed(sizes + list(inner))))

    @classmethod
    def dense(cls, dims: Iterable[int], order: Sequence[int]) -> Layout:
        """Return a plain layout without gaps; `order` lists the dimensions outermost first."""
        dims = tuple(dims)
        if sorted(order) != list(range(len(dims))):
            raise UserError(f"given order {tuple(order)}, wanted a permutation of {len(dims)} dimensions")
        return cls(dims, _in_memory((dim, dims[dim]) for dim in reversed(order)))

    @classmethod
    def strided(cls, dims: Iterable[int], strides: Sequence[int]) -> Layout:
        """Return a plain layout with one stride (in elements) a dimension; gaps and overlaps are not checked."""
        dims = tuple(dims)
        if len(strides) != len(dims):
            raise UserError(f"given {len(strides)} strides {'x'.join(map(str, strides))}, wanted {len(dims)}")
        innermost_first = sorted(range(len(dims)), key=lambda dim: (strides[dim], -dim))
        return cls(dims, tuple(Digit(LETTERS[dim], dims[dim], Space.MEMORY, strides[dim]) for dim in innermost_first))

    @property
    def digits(self) -> Digits:
        """Return the blocks as a split of the indices."""
        return Digits(tuple(LETTERS[: len(self.dims)]), self.blocks)

    def offset(self, indices: Sequence[Index]) -> Index:
        """Return the element offset of `indices` (one a dimension, in range): integers, arrays or IR expressions.

        A tensor of one element has the offset 0.
        """
        return self.digits.place(dict(zip(LETTERS, indices))).get(Space.MEMORY, 0)

    @property
    def padded_dims(self) -> tuple[int, ...]:
        """Return the allocated size of each dimension, with the padding of blocks."""
        return self.digits.shape

    @property
    def padded(self) -> Layout:
        """Return the layout with the padding of blocks as part of the logical size."""
        return evolve(self, dims=self.padded_dims)

    @property
    def size_elems(self) -> int:
        """Return the elements of an allocation, padding and gaps included."""
        if 0 in self.padded_dims:
            return 0
        return self.digits.span(Space.MEMORY)

    @property
    def is_plain(self) -> bool:
        """Return whether every dimension has one stride."""
        return len({block.dim for block in self.blocks}) == len(self.blocks)

    @property
    def is_dense(self) -> bool:
        """Return whether the layout has neither blocks nor gaps."""
        return self.is_plain and self.size_elems == prod(self.dims)

    @property
    def is_apart(self) -> bool:
        """Return whether no two elements overlap: each stride exceeds the reach of the smaller ones."""
        return self.digits.overlap(Space.MEMORY) is None

    def strides(self) -> tuple[int, ...]:
        """Return one stride a dimension, in elements; UserError if the layout is not plain."""
        if not self.is_plain:
            raise UserError(f"given the blocked layout {self.tag}, wanted a plain one")
        by_dim = {block.dim: block.stride for block in self.blocks}
        return tuple(by_dim.get(dim, 0) for dim in self.digits.dims)

    def step(self, dim: int, count: int) -> int:
        """Return the elements between positions `count` apart along a dimension, if no block ends between them.

        Raises UserError if a block ends between any two positions that far apart.
        """
        own = [(at, d) for at, d in self.digits.stepped() if d.dim == LETTERS[dim]]
        at, digit = next(((at, d) for at, d in reversed(own) if at <= abs(count)), (1, None))
        if count % at:
            raise UserError(f"given steps of {count} in the layout {self.tag}, wanted multiples of {at}")
        return count // at * digit.stride if digit else 0

    def strides_of(self, sizes: Sequence[Extent]) -> tuple[Extent, ...]:
        """Return one stride a dimension, in elements, of a dense tensor of other sizes with this order of dimensions.

        Raises UserError for a layout with blocks or gaps.
        """
        if not self.is_dense:
            raise UserError(f"given the layout {self.tag} of sizes known at launch, wanted one without blocks or gaps")
        apart: dict[str, Extent] = {}
        after: Extent = 1
        for block in self.blocks:
            apart[block.dim] = after
            after = times(after, sizes[LETTERS.index(block.dim)])
        return tuple(apart[dim] for dim in self.digits.dims)

    @property
    def tag(self) -> str:
        """Return canonical text: letters if the layout is a tag's, else strides if it is plain, else its blocks."""
        outer = self.blocks[len(self.blocks) - len(self.dims) :]
        dense = stacked(Space.MEMORY, ((block.dim, block.size) for block in self.blocks))
        is_tag = sorted(block.dim for block in outer) == list(self.digits.dims) and all(
            mine.stride == wanted.stride for mine, wanted in zip(self.blocks, dense) if mine.size != 1
        )
        if is_tag:
            inner = self.blocks[: -len(self.dims)]
            blocked = [block.dim for block in inner]
            letters = [b.dim.upper() if b.dim in blocked else b.dim for b in reversed(outer)]
            return "".join(letters + [f"{b.size}{b.dim}" for b in reversed(inner)])
        if self.is_plain:
            return "x".join(map(str, self.strides()))
        return " ".join(f"{b.size}{b.dim}:{b.stride}" for b in reversed(self.blocks))

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.dims))}:{self.tag}"


def _in_memory(sizes: Iterable[tuple[int, int]]) -> tuple[Digit, ...]:
    """Return dense digits of (dimension, size) pairs, innermost first."""
    return stacked(Space.MEMORY, ((LETTERS[dim], size) for dim, size in sizes))


@lru_cache(maxsize=2**10)
def _parse(tag: str, ndims: int) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Parse a tag as (dimensions outermost first, inner (dim, size) blocks outermost first)."""
    letters = _letters(tag, ndims)
    named = [LETTERS.index(c) for c in letters.lower() if c in LETTERS]
    rest = range(max(named, default=-1) + 1, ndims)
    outer: list[int] = []
    inner: list[tuple[int, int]] = []
    blocked: dict[int, int] = {}  # dimension written in upper case -> its column

    for token in _TOKEN.finditer(letters):
        number, letter, at = token[0][:-1], token[0][-1], token.end() - 1
        if letter == "x" and not number and letters.index("x") == at:
            outer.extend(rest)
            continue
        dim = _dim_of(token, tag, ndims)
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


def _dim_of(token: re.Match[str], tag: str, ndims: int) -> int:
    """Return the dimension that a token of a tag names, perhaps one that the tensor lacks."""
    letter, at = token[0][-1].lower(), token.end() - 1
    if letter.isdigit():
        raise PointedError(f"given the block size {token[0]} without a dimension", tag, token.start())
    if letter not in LETTERS:
        raise PointedError(f"given {tag[at]!r}, wanted a dimension letter of a {ndims}-D tensor", tag, at)
    return LETTERS.index(letter)


def _letters(tag: str, ndims: int) -> str:
    """Return a tag of dimension names (`nhwc`, `goihw`) in letters, character by character; other tags unchanged."""
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
