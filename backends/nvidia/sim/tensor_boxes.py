"""The elements that a bulk tensor copy takes of its tensor, and their places in shared memory.

PTX ISA, Tensors: tiled mode, im2col mode, swizzling modes. A copy is cut into chunks that are contiguous in global and
in shared memory: 16 bytes if the innermost dimension is a multiple of that and has no steps, else an element. In shared
memory, the innermost dimension of a tiled copy is contiguous, then the next one; an im2col copy has a row of channels
for each pixel. From the pixel at the coordinates on, its pixels run along W, H, D within the box between the map's
corners, then on to the next image. Its offsets shift all pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from convgen.backends.nvidia.sim.descriptors import PIECE, swizzled
from convgen.backends.sim.wave_arrays import Array, Bools
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.record import frozen


@frozen(eq=False)
class Chunks:
    """The chunks of a copy, `size` bytes each."""

    size: int
    place: Array  #: bytes; address in the shared memory of the workgroup
    offset: Array  #: bytes from the tensor's start; 0 for chunks outside the tensor
    inside: Bools  #: whether chunks are inside the tensor


def chunks_of(
    tensor: TensorMap, start: int, coordinates: Sequence[int], offsets: Sequence[int], *, by_element: bool = False
) -> Chunks:
    """Return the chunks of a copy between shared memory from `start` on and a tensor.

    `offsets` are those of im2col, along W (H, D). With `by_element` a chunk is an element.
    """
    whole = not by_element and tensor.dims[0] * tensor.size % PIECE == 0 and tensor.steps[0] == 1
    size = PIECE if whole else tensor.size
    each = size // tensor.size  # elements of a chunk
    along = coordinates[0] + np.arange(0, tensor.extents[0], each) * tensor.steps[0]
    rows = _pixels(tensor, coordinates, offsets) if tensor.kind == "im2col" else _lines(tensor, coordinates)
    inside = (along >= 0) & (along < tensor.dims[0])
    offset = along * tensor.size + np.zeros((len(rows), 1), np.int64)
    for dimension, stride in enumerate(tensor.strides):
        position = rows[:, dimension, None]
        inside = inside & (position >= 0) & (position < tensor.dims[dimension + 1])
        offset = offset + position * stride
    inside = np.broadcast_to(inside, offset.shape)
    pitch = tensor.extents[0] * tensor.size
    place = start + pitch * np.arange(len(rows))[:, None] + size * np.arange(len(along))
    flags = inside.reshape(-1)
    return Chunks(size, swizzled(place, tensor.swizzle).reshape(-1), np.where(flags, offset.reshape(-1), 0), flags)


def _lines(tensor: TensorMap, coordinates: Sequence[int]) -> Array:
    """Return the position of each line of a tiled copy along dims[1:], [lines, dimensions]."""
    extents = tensor.extents[1:]
    number = np.arange(prod(extents))
    columns = []
    for dimension, extent in enumerate(extents, 1):
        columns.append(coordinates[dimension] + number % extent * tensor.steps[dimension])
        number = number // extent
    return np.stack(columns, axis=1) if columns else np.zeros((1, 0), np.int64)


def _pixels(tensor: TensorMap, coordinates: Sequence[int], offsets: Sequence[int]) -> Array:
    """Return the position of each pixel of an im2col copy along dims[1:], [pixels, dimensions]."""
    spatial = len(tensor.dims) - 2
    steps: Array = np.arange(tensor.pixels)  # taken along a dimension, by pixel
    columns = []
    for i in range(spatial):
        last = tensor.dims[i + 1] - 1 + tensor.upper[i]
        position, steps = _within_box(steps, (coordinates[i + 1], tensor.lower[i], last), tensor.steps[i + 1])
        columns.append(position + offsets[i])
    columns.append(coordinates[spatial + 1] + steps * tensor.steps[spatial + 1])
    return np.stack(columns, axis=1)


def _within_box(steps: Array, places: tuple[int, int, int], step: int) -> tuple[Array, Array]:
    """Return positions after some steps, and how often each has begun again: the steps along the next dimension.

    `places` are the first position, and the corners of the box: behind the last one, positions begin at the lower one.
    """
    begin, lower, last = places
    ahead, around = (max(1, (last - first) // step + 1) for first in (begin, lower))  # positions up to the last one
    later = steps - ahead
    is_first = later < 0
    return np.where(is_first, begin + steps * step, lower + later % around * step), np.where(
        is_first, 0, 1 + later // around
    )
