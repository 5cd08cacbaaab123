"""Tensor layouts in memory, read from the text of a tag or of strides.

The reference reads tags by itself, so that a fault in the layouts that address kernels' memory shows as a wrong result.
oneDNN defines the text: a tag lists the dimensions as they are laid out in memory, the outermost first, and a number
before a letter is a block of that dimension (`dnnl_format_tag_t` in include/oneapi/dnnl/dnnl_types.h; Developer Guide,
"Understanding Memory Formats"). benchdnn adds `x` for all dimensions that no letter names
(tests/benchdnn/doc/knobs_tag.md) and lists of strides (knob_strides.md).

So a tensor with a tag is an array that is padded to whole blocks, reshaped to one axis a block, transposed to the order
of the tag, and written out. A tensor with strides has each element at the sum of index times stride.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Protocol

import numpy as np
import numpy.typing as npt

from convgen.ir.error import UserError
from convgen.ir.record import frozen
from convgen.run.fills import Array, Fill
from convgen.run.reference_types import bits_in_memory, numpy_type

_BYTE = 8  #: bits

Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]

LETTERS = "abcdefghijkl"
_TOKEN = re.compile(r"([0-9]*)([A-Za-z])")
#: Names of dimensions in logical order, by a letter that only tags with these names have.
_NAMES = {"n": "ncdhw", "o": "goidhw"}


class Described(Protocol):
    """A tensor whose layout is described by text."""

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the logical size."""

    @property
    def tag(self) -> str:
        """Return a tag of oneDNN, or one stride a dimension such as `3200x1x160x16`."""


@frozen
class Factor:
    """Part of an index in memory: `size` positions of the dimension number `dim`, `stride` elements apart."""

    dim: int
    size: int
    stride: int


@frozen
class Storage:
    """A tensor of logical size `dims` in memory; the factors of one dimension are ordered from outermost to innermost.

    The factors of a tag are in the order of memory.
    """

    dims: tuple[int, ...]
    factors: tuple[Factor, ...]
    is_strided: bool

    @property
    def padded_dims(self) -> tuple[int, ...]:
        """Return the logical size in whole blocks."""
        return tuple(prod(f.size for f in self.factors if f.dim == dim) for dim in range(len(self.dims)))

    @property
    def elements(self) -> int:
        """Elements from the first to the last, gaps included."""
        if 0 in self.padded_dims:
            return 0
        return 1 + sum((f.size - 1) * f.stride for f in self.factors)

    @property
    def steps(self) -> tuple[Factor, ...]:
        """Return the factors of size above 1, merged: equal for two texts that place every element alike."""
        merged: list[Factor] = []
        for f in sorted((f for f in self.factors if f.size != 1), key=lambda f: f.dim):
            if merged and (last := merged[-1]).dim == f.dim and last.stride == f.size * f.stride:
                merged[-1] = Factor(f.dim, last.size * f.size, f.stride)
            else:
                merged.append(f)
        return tuple(merged)

    def offset(self, index: Sequence[Indices]) -> Indices:
        """Return the offset in elements of logical indices: one array per dimension, in range, which broadcast."""
        rest, offset = list(index), np.zeros((), np.int64)
        for f in reversed(self.factors):
            quotient = rest[f.dim] // f.size if f.size else rest[f.dim]
            offset = offset + (rest[f.dim] - quotient * f.size) * f.stride
            rest[f.dim] = quotient
        return np.asarray(offset)

    def index(self, places: Indices) -> tuple[list[Indices], npt.NDArray[np.bool_]]:
        """Return the index by dimension of the elements at some offsets, and flags of offsets that hold an element.

        Padding of blocks counts as elements. No two elements may share a place.
        """
        rest, exists = places, places < self.elements
        at: dict[Factor, Indices] = {}
        for f in sorted((f for f in self.factors if f.size > 1), key=lambda f: f.stride, reverse=True):
            at[f] = rest // f.stride
            rest = rest - at[f] * f.stride
            exists &= at[f] < f.size
        index = [np.zeros((), np.int64) for _ in self.dims]
        for f in self.factors:
            index[f.dim] = index[f.dim] * f.size + at.get(f, 0)
        return index, exists & (rest == 0)

    def written(self, logical: Array, gaps: int) -> Array:
        """Return all elements in memory of a logical tensor: zeros in padding, bytes `gaps` between strided ones."""
        if self.is_strided:
            memory = np.full(self.elements * logical.itemsize, gaps, np.uint8).view(logical.dtype)
            _bits(memory)[self._places] = _bits(logical)
            return memory
        padded = np.zeros(self.padded_dims, logical.dtype)
        padded[tuple(map(slice, self.dims))] = logical
        return np.ascontiguousarray(padded.reshape(self._split).transpose(self._order)).reshape(-1)

    def read(self, memory: Array) -> Array:
        """Return the logical tensor of `elements` in memory, with its padding."""
        if self.is_strided:
            return memory[self._places]
        inverse = np.argsort(self._order)
        return memory.reshape([f.size for f in self.factors]).transpose(inverse).reshape(self.padded_dims)

    @property
    def _places(self) -> Indices:
        """Return the offset of each element, in the shape of the tensor."""
        axes = np.ix_(*(np.arange(size) for size in self.dims))
        return np.broadcast_to(self.offset(axes), self.dims)

    @property
    def _by_dim(self) -> list[int]:
        """Return the numbers of the factors, sorted by dimension."""
        return sorted(range(len(self.factors)), key=lambda n: self.factors[n].dim)

    @property
    def _split(self) -> list[int]:
        """Return the shape of the padded tensor with one axis per factor, sorted by dimension."""
        return [self.factors[n].size for n in self._by_dim]

    @property
    def _order(self) -> list[int]:
        """Return the axis of `_split` of each factor in memory."""
        return [self._by_dim.index(n) for n in range(len(self.factors))]


def storage(tensor: Described) -> Storage:
    """Return the storage of a tensor from the text of its tag or strides."""
    return _read(tensor.tag, tuple(tensor.dims))


def has_padding(tensor: Described) -> bool:
    """Return whether blocks of a tensor's layout have padding."""
    return storage(tensor).padded_dims != tuple(tensor.dims)


def pack(tensor: Described, logical: Array, gaps: int = 0) -> Bytes:
    """Return the bytes of a logical tensor in memory: padding is zero, gaps between strided elements are `gaps`.

    Elements of fewer than 8 bits are a stream of bits, the first in the low bits of the first byte.
    """
    memory = storage(tensor).written(np.ascontiguousarray(logical), gaps).view(np.uint8)
    bits = bits_in_memory(logical.dtype)
    if bits >= _BYTE:
        return memory
    flags = np.unpackbits(memory[:, None], axis=1, count=bits, bitorder="little")
    return np.packbits(flags.reshape(-1), bitorder="little")


def unpack(tensor: Described, dtype: str, memory: Bytes) -> Array:
    """Return the logical tensor that bytes in memory hold: the inverse of `pack`."""
    stored = storage(tensor)
    whole = stored.read(_elements(memory, dtype)[: stored.elements])
    return whole[tuple(map(slice, stored.dims))].copy()


def gather(tensor: Described, dtype: str, memory: Bytes, index: Sequence[Indices]) -> Array:
    """Return the elements at logical indices (arrays that broadcast, one a dimension), without unpacking the rest."""
    return _elements(memory, dtype)[storage(tensor).offset(index)]


def packed_bytes(tensor: Described, logical: Fill, places: Indices, gaps: int = 0) -> Bytes:
    """Return the bytes that `pack` puts at some places: rows of neighbours that begin at an element's first byte."""
    if (bits := bits_in_memory(logical.dtype)) < _BYTE:  # a byte has parts of two elements
        first = places * _BYTE // bits
        low, high = (
            packed(tensor, logical, at, gaps).view(np.uint8).astype(np.uint16) & (1 << bits) - 1
            for at in (first, first + 1)
        )
        return ((low | high << bits) >> places * _BYTE - first * bits).astype(np.uint8)
    element = logical.dtype.itemsize
    return packed(tensor, logical, places[:, ::element] // element, gaps).view(np.uint8)


def packed(tensor: Described, logical: Fill, places: Indices, gaps: int = 0) -> Array:
    """Return the elements that `pack` puts at some offsets in elements; no two elements may share a place."""
    memory = np.full((*places.shape, logical.dtype.itemsize), gaps, np.uint8).view(logical.dtype)[..., 0]
    index, exists = storage(tensor).index(places)
    number, inside = np.zeros((), np.int64), exists
    for at, size, step in zip(index, logical.shape, logical.strides, strict=True):
        inside = inside & (at < size)
        number = number + at * step
    number = np.broadcast_to(number, places.shape)
    _bits(memory)[exists] = 0
    _bits(memory)[inside] = _bits(logical.numbered(number[inside]))
    return memory


@lru_cache(maxsize=2**10)
def _read(text: str, dims: tuple[int, ...]) -> Storage:
    """Return the storage of a tag or of strides. Raises UserError unless it has each dimension once."""
    if text[:1].isdigit():
        strides = [int(stride) for stride in text.split("x")]
        _check(text, dims, range(len(strides)))
        return Storage(dims, tuple(Factor(n, size, at) for n, (size, at) in enumerate(zip(dims, strides))), True)
    blocks = [(LETTERS.index(letter.lower()), number) for number, letter in _tokens(_in_letters(text, len(dims)))]
    _check(text, dims, [dim for dim, number in blocks if not number])
    whole = [prod(int(number) for other, number in blocks if number and other == dim) for dim in range(len(dims))]
    sizes = [int(number) if number else -(-dims[dim] // whole[dim]) for dim, number in blocks]
    factors = (Factor(dim, size, prod(sizes[n + 1 :])) for n, ((dim, _), size) in enumerate(zip(blocks, sizes)))
    return Storage(dims, tuple(factors), False)


def _check(text: str, dims: tuple[int, ...], named: Sequence[int]) -> None:
    if sorted(named) != list(range(len(dims))):
        raise UserError(f"given the tag {text}, wanted each of {len(dims)} dimensions once")


def _tokens(tag: str) -> list[tuple[str, str]]:
    """Return the numbers, if any, and the letters of a tag, from the outermost to the innermost."""
    return _TOKEN.findall(tag)


def _in_letters(tag: str, rank: int) -> str:
    """Return a tag in letters of dimensions: names become letters, `x` the dimensions after the last named one.

    A tag with `x` may name more dimensions than there are; these are left out.
    """
    known = next((names for letter, names in _NAMES.items() if letter in tag.lower()), "")
    present = [name for name in known if name in tag.lower()]
    if present:
        return "".join(f"{n}{_renamed(name, present)}" for n, name in _tokens(tag))
    if "x" not in tag:
        return tag
    first = 1 + max((LETTERS.index(letter.lower()) for _, letter in _tokens(tag) if letter != "x"), default=-1)
    tokens = _tokens(tag.replace("x", LETTERS[first:rank]))
    return "".join(f"{n}{letter}" for n, letter in tokens if LETTERS.index(letter.lower()) < rank)


def _renamed(name: str, present: Sequence[str]) -> str:
    letter = LETTERS[present.index(name.lower())]
    return letter.upper() if name.isupper() else letter


def _elements(memory: Bytes, dtype: str) -> Array:
    element = numpy_type(dtype)
    if (bits := bits_in_memory(element)) < _BYTE:
        count = len(memory) * _BYTE // bits
        flags = np.unpackbits(memory, count=count * bits, bitorder="little").reshape(count, bits)
        return np.packbits(flags, axis=1, bitorder="little")[:, 0].view(element)
    return memory[: len(memory) // element.itemsize * element.itemsize].view(element)


def _bits(values: Array) -> npt.NDArray[np.unsignedinteger]:
    """View elements as raw bits, as numpy supports few operations on types that are not its own."""
    return values.view(f"u{values.dtype.itemsize}")
