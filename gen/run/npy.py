"""Arrays by name as `.npy` files: inputs and results of a run. Types that numpy lacks are stored as raw bits."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO, TypeAlias

import numpy as np

from convgen.ir.error import UserError
from convgen.ir.untrusted import opened, shown
from convgen.run import reference
from convgen.run.files import write_all
from convgen.run.launch_record import Buffer, LaunchRecord
from convgen.run.reference import Array

Check: TypeAlias = Callable[[tuple[int, ...], np.dtype[np.generic]], None]

_MOST_FILE = 1 << 36  #: bytes; what a run takes of memory is bounded by the record's tensors
_MOST_HEADER = 10_000  #: bytes, as numpy limits what it parses


def inputs(data: Path, record: LaunchRecord) -> dict[str, Array]:
    """Read an array for each buffer that is only read, and for each written one that has a file."""
    arrays = {}
    for name, buffer in record.buffers.items():
        path = data / f"{name}.npy"
        if not buffer.is_written or (buffer.is_read and path.exists()):
            arrays[name] = _load(path, buffer)
    return arrays


def _load(path: Path, buffer: Buffer) -> Array:
    """Return a logical array from `.npy`; types that numpy lacks are raw bits, as `np.save` writes or as integers."""
    wanted = reference.numpy_type(buffer.tensor.dtype)

    def check(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        if shape != buffer.tensor.dims or dtype not in (wanted, *_spellings(wanted)):
            given = f"{shown(dtype)}{list(shape)[:12]} in {path}"
            raise UserError(f"given {given}, wanted {_stored(wanted)}{list(buffer.tensor.dims)}")

    array = load(path, check)
    return array.view(wanted) if array.dtype in _spellings(wanted) else array


def load(path: Path, check: Check) -> Array:
    """Return the array of an `.npy` file. `check` is called with shape and type before anything is allocated.

    Raises UserError for a path that is no regular file, an archive, pickled objects, an overlong header, and fewer
    bytes than the header states.
    """
    try:
        with opened(path, "an .npy file", _MOST_FILE) as file:
            shape, dtype = _npy_header(file)
            check(shape, dtype)
            size, following = math.prod(shape) * dtype.itemsize, os.fstat(file.fileno()).st_size - file.tell()
            if size > following:
                raise ValueError(f"its header promises {shown(size, 30)} bytes and {following} follow")
            file.seek(0)
            array: Array = np.load(file, allow_pickle=False)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError, SyntaxError, TokenError, TypeError, RecursionError, OverflowError) as error:
        reason = shown(" ".join(str(error).split()), 200)
        raise UserError(f"given {path} that is not an .npy file: {reason}") from None
    return array


def _npy_header(file: BinaryIO) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """Return shape and type of the array in a file; the array itself is not read."""
    version = np.lib.format.read_magic(file)
    start, width = file.tell(), 2 if version == (1, 0) else 4
    if int.from_bytes(file.read(width), "little") > _MOST_HEADER:
        raise ValueError(f"a header of more than {_MOST_HEADER} bytes")
    file.seek(start)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if any(size < 0 for size in shape):
        raise ValueError("a negative size")
    if dtype.hasobject:
        raise ValueError("it holds objects of Python, not numbers")
    return shape, dtype


def save(arrays: Mapping[Path, Array]) -> None:
    """Write an `.npy` file for each path, or none. Raises UserError."""
    contents = {}
    for path, array in arrays.items():
        np.save(file := BytesIO(), array.view(_stored(array.dtype)))
        contents[path] = file.getvalue()
    write_all(contents, "--out")


def _stored(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Return the type under which `.npy` stores a type: itself, or raw bits if numpy lacks it."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")


def _spellings(dtype: np.dtype[np.generic]) -> tuple[np.dtype[np.generic], ...]:
    """Return the types under which `.npy` files may hold a type: ours and, if numpy lacks it, `np.save`'s (`|V2`)."""
    return (_stored(dtype),) if dtype.isbuiltin == 1 else (_stored(dtype), np.dtype(f"V{dtype.itemsize}"))
