"""Matrix descriptors of wgmma: where the elements of an operand in shared memory stand.

PTX ISA, Asynchronous Warpgroup Level Matrix Instructions: Shared Memory Matrix Layout, Matrix Descriptor Format,
Strides, Swizzling Modes. An operand is made of pieces of 16 bytes, each contiguous: 16 bytes along K of one row if K is
major, 8 elements of 2 bytes along M or N at one k otherwise. The swizzle permutes pieces by bits of their absolute
shared address.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from convgen.backends.sim.wave_arrays import Array, Bytes
from convgen.ir.record import frozen

PIECE = 16  #: bytes
K_BYTES = 32  #: bytes along K of one product
_FIELD = (1 << 14) - 1
_RESERVED = 0x3 << 14 | 0x3 << 30 | 0x7 << 46 | 0x3FF << 52  #: bits that are zero
_SPANS: Mapping[int, int] = {0: 0, 1: 128, 2: 64, 3: 32}  #: bytes of a swizzle's rows, by the field; 0: no swizzle


@frozen
class Descriptor:
    """A decoded descriptor; all lengths in bytes."""

    start: int
    leading: int  #: leading dimension byte offset
    stride: int  #: stride dimension byte offset
    base: int  #: the matrix base offset, without unit
    span: int  #: bytes of the swizzle's rows: 128, 64, 32; 0: no swizzle
    is_valid: bool  #: whether all reserved bits are zero


def decoded(bits: int) -> Descriptor:
    """Return the fields of a descriptor of 64 bits."""
    start, leading, stride = ((bits >> shift & _FIELD) * 16 for shift in (0, 16, 32))
    return Descriptor(start, leading, stride, bits >> 49 & 7, _SPANS[bits >> 62], not bits & _RESERVED)


def swizzled(address: Array, span: int) -> Array:
    """Return absolute shared addresses after the swizzle of rows of `span` bytes; 0: none."""
    if not span:
        return address
    result: Array = address ^ ((address >> 7) & (span // PIECE - 1)) << 4
    return result


def pieces_along_k(descriptor: Descriptor, rows: int) -> Array:
    """Return the address of each piece [rows, 2] of an operand whose K is major."""
    row, piece = np.arange(rows)[:, None], np.arange(K_BYTES // PIECE)
    if descriptor.span:
        place = row % 8 * descriptor.span + row // 8 * descriptor.stride + piece * PIECE
    else:
        place = row % 8 * PIECE + row // 8 * descriptor.stride + piece * descriptor.leading
    return swizzled(descriptor.start + place, descriptor.span)


def pieces_along_rows(descriptor: Descriptor, rows: int) -> Array:
    """Return the address of each piece [16, rows / 8] of an operand of 2-byte elements whose M or N is major."""
    k, piece = np.arange(K_BYTES // 2)[:, None], np.arange(rows // 8)
    if descriptor.span:
        across = descriptor.span // PIECE  # pieces of a row of the swizzle
        place = piece % across * PIECE + piece // across * descriptor.leading
        place = place + k % 8 * descriptor.span + k // 8 * descriptor.stride
    else:
        place = piece * descriptor.stride + k % 8 * PIECE + k // 8 * descriptor.leading
    return swizzled(descriptor.start + place, descriptor.span)


def matrix_along_k(content: Bytes, size: int) -> Array:
    """Return the raw elements [rows, k] of `size` bytes in pieces [rows, 2, 16]."""
    return np.ascontiguousarray(content).view(f"u{size}").reshape(len(content), -1)


def matrix_along_rows(content: Bytes) -> Array:
    """Return the raw elements [rows, k] of 2 bytes in pieces [k, rows / 8, 16]."""
    return np.ascontiguousarray(content).view(np.uint16).reshape(len(content), -1).T
