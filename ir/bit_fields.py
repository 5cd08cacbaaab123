"""Numbers of fewer than 8 bits in bytes, as a stream of bits: the first number has the low bits of the first byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def unpacked(stream: npt.NDArray[Any], bits: int) -> Bytes:
    """Return the codes of `bits` bits [..., codes] in bytes [..., bytes], whose bits must divide evenly."""
    flags = np.unpackbits(stream, axis=-1, bitorder="little")
    codes = np.packbits(flags.reshape(*stream.shape[:-1], -1, bits), axis=-1, bitorder="little")
    return codes[..., 0]


def packed(codes: npt.NDArray[Any], bits: int) -> Bytes:
    """Return the bytes [..., bytes] of codes [..., codes] of `bits` bits each; the last byte ends in zeros."""
    flags = np.unpackbits(codes[..., None], axis=-1, bitorder="little")[..., :bits]
    return np.packbits(flags.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")
