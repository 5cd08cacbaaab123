"""What the right answer is: fills, convolutions and matmuls in plain numpy, and tensors as bytes in memory.

Nothing here knows how kernels are generated. Fills are small integers, so every partial sum is an integer that an f32
accumulator holds exactly, whatever the order of summation; results can then be compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from convgen.ir import types
from convgen.ir.error import Unsupported
from convgen.ir.layout import Layout
from convgen.matmul import Matmul, Problem
from convgen.problem import Conv

Array = npt.NDArray[np.generic]
Indices = npt.NDArray[np.int64]

_EXACT = 2**24  #: f32 holds every integer up to this
_MAGNITUDE = {"src": 8, "wei": 4}  #: the largest absolute value of a fill, while sums allow it
_CHUNK_ELEMS = 1 << 22  #: gathered source elements at a time: 32 MiB of float64


def numpy_type(name: str) -> np.dtype[np.generic]:
    """The numpy type of one element; Unsupported for types that have no arithmetic here."""
    if name not in types.SCALARS or types.scalar(name).is_storage:
        raise Unsupported(f"tensors of type {name}")
    return types.scalar(name).numpy


def fill(problem: Problem, seed: int = 0) -> dict[str, Array]:
    """The inputs `src` and `wei` in their own types and logical dimensions: those of the problem.

    Values are integers other than zero, drawn evenly: every product counts, so a wrong index shows. Their size is
    bounded so that |partial sum| < 2^24.
    """
    depth = _depth(problem)
    if depth > _EXACT:
        raise Unsupported(f"exact sums of {depth} products, more than 2^24")
    src, wei = _MAGNITUDE["src"], _MAGNITUDE["wei"]
    while depth * src * wei > _EXACT:
        src, wei = max(1, src // 2), max(1, wei // 2)
    return {
        "src": _draw((seed, 0), problem.src_dims, problem.src_type, src),
        "wei": _draw((seed, 1), problem.wei_dims, problem.wei_type, wei),
    }


def _depth(problem: Problem) -> int:
    """Products in the longest sum."""
    if isinstance(problem, Matmul):
        return problem.k
    _require_forward(problem)
    return problem.ic // problem.groups * int(np.prod([axis.k for axis in problem.axes]))


def _draw(seed: tuple[int, int], dims: tuple[int, ...], dtype: str, magnitude: int) -> Array:
    element = numpy_type(dtype)
    values = [value for value in range(-magnitude, magnitude + 1) if value]
    if dtype.startswith("u"):
        values = [abs(value) for value in values]
    choices = np.random.default_rng(seed).integers(len(values), size=dims, dtype=np.uint8)
    return np.array(values).astype(element)[choices]


def output_shape(problem: Problem) -> tuple[int, int]:
    """The outputs as a matrix: rows (n, [od,] oh, ow) and columns (oc) of a convolution, M and N of a matmul."""
    if isinstance(problem, Matmul):
        return problem.dst_dims
    return problem.mb * int(np.prod(problem.dst_dims[2:])), problem.oc


def output_index(problem: Problem, rows: Indices, columns: Indices) -> list[Indices]:
    """The logical index of the outputs rows x columns: one array a dimension, broadcasting against each other."""
    if isinstance(problem, Matmul):
        return [rows[:, None], columns[None, :]]
    n, *spatial = (axis[:, None] for axis in np.unravel_index(rows, (problem.mb, *problem.dst_dims[2:])))
    return [n, columns[None, :], *spatial]


def outputs(problem: Problem, inputs: Mapping[str, Array], rows: Indices, columns: Indices) -> Array:
    """The right outputs rows x columns: exact sums, one rounding to f32, one to the result."""
    if isinstance(problem, Matmul):
        src, wei = (inputs[name].astype(np.float64) for name in ("src", "wei"))
        return _round(src[rows] @ wei[:, columns], problem.dst_type)
    return forward(problem, inputs["src"], inputs["wei"], rows)[:, columns]


def forward(problem: Conv, src: Array, wei: Array, pixels: Indices | None = None) -> Array:
    """The forward convolution of logical tensors, without bias: exact sums, one rounding to f32, one to the result.

    `pixels` are flat indices of (n, [od,] oh, ow); the result is then [len(pixels), oc], else it is the whole logical
    tensor [mb, oc, spatial...].
    """
    _require_forward(problem)
    axes = problem.axes
    shape = (problem.mb, *(axis.o for axis in axes))
    wanted = np.arange(np.prod(shape)) if pixels is None else pixels
    channels_last = np.moveaxis(src.reshape(problem.mb, problem.ic, *(axis.i for axis in axes)), 1, -1)
    if 2 * len(wanted) > np.prod(shape):  # a copy pays when most rows are gathered, once a tap
        channels_last = np.ascontiguousarray(channels_last)
    rows = _rows(problem, channels_last, wei, wanted)
    if pixels is not None:
        return rows
    return np.moveaxis(rows.reshape(*shape, problem.oc), -1, 1).reshape(problem.dst_dims)


def _rows(problem: Conv, src: Array, wei: Array, pixels: Indices) -> Array:
    """Output rows [len(pixels), oc] from a source [mb, d, h, w, ic], in chunks that keep memory small."""
    kernel = tuple(axis.k for axis in problem.axes)
    groups, oc, ic = problem.groups, problem.oc // problem.groups, problem.ic // problem.groups
    taps = wei.reshape(groups, oc, ic, *kernel).transpose(3, 4, 5, 0, 2, 1).astype(np.float64)  # [k..., g, ic, oc]
    rows = np.empty((len(pixels), problem.oc), numpy_type(problem.dst_type))
    step = max(1, _CHUNK_ELEMS // problem.ic)
    for start in range(0, len(pixels), step):
        chunk = slice(start, start + step)
        rows[chunk] = _round(_sums(problem, src, taps, pixels[chunk]), problem.dst_type)
    return rows


def _sums(problem: Conv, src: Array, taps: npt.NDArray[np.float64], pixels: Indices) -> npt.NDArray[np.float64]:
    """Exact sums [len(pixels), oc]: one matrix product a kernel tap, over the pixels whose tap is inside the input."""
    n, *places = np.unravel_index(pixels, (problem.mb, *(axis.o for axis in problem.axes)))
    sums = np.zeros((problem.groups, len(pixels), problem.oc // problem.groups))
    for tap in product(*(range(axis.k) for axis in problem.axes)):
        inputs = [o * axis.s - axis.p + k * (axis.d + 1) for o, k, axis in zip(places, tap, problem.axes)]
        inside = np.logical_and.reduce([(i >= 0) & (i < axis.i) for i, axis in zip(inputs, problem.axes)])
        where = np.flatnonzero(inside)
        if len(where):
            gathered = src[n[where], inputs[0][where], inputs[1][where], inputs[2][where]].astype(np.float64)
            by_group = gathered.reshape(len(where), problem.groups, -1).transpose(1, 0, 2)
            sums[:, where] += by_group @ taps[tap]
    return sums.transpose(1, 0, 2).reshape(len(pixels), problem.oc)


def _round(sums: npt.NDArray[np.float64], dtype: str) -> Array:
    """Accumulator to result: to f32, then to the destination type, both to nearest even."""
    if not types.scalar(dtype).is_float:
        raise Unsupported(f"a destination of type {dtype}")
    return sums.astype(np.float32).astype(numpy_type(dtype))


def _require_forward(problem: Conv) -> None:
    if not problem.direction.is_forward or problem.direction.has_bias:
        raise Unsupported(f"direction {problem.direction.value}: only FWD_D and FWD_I have a reference")


def pack(layout: Layout, logical: Array) -> npt.NDArray[np.uint8]:
    """The bytes of a logical tensor in memory; padding and gaps are zero."""
    flat = np.zeros(layout.size_elems, logical.dtype)
    padded = logical
    if layout.padded_dims != logical.shape:
        padded = np.zeros(layout.padded_dims, logical.dtype)
        padded[tuple(map(slice, logical.shape))] = logical
    digits = _digits(layout, flat)
    digits[...] = padded.reshape(digits.shape)
    return flat.view(np.uint8)


def unpack(layout: Layout, dtype: str, memory: npt.NDArray[np.uint8]) -> Array:
    """The logical tensor that bytes in memory hold: the inverse of `pack`."""
    digits = _digits(layout, memory.view(numpy_type(dtype)))
    return digits.reshape(layout.padded_dims)[tuple(map(slice, layout.dims))].copy()


def gather(layout: Layout, dtype: str, memory: npt.NDArray[np.uint8], index: Sequence[Indices]) -> Array:
    """The elements at logical indices (arrays that broadcast, one a dimension), without unpacking the rest."""
    return memory.view(numpy_type(dtype))[layout.offset(index)]


def _digits(layout: Layout, flat: Array) -> Array:
    """`flat` seen with one axis a block: dimension by dimension, each dimension's blocks outermost first."""
    blocks = [block for dim in range(len(layout.dims)) for block in reversed(layout.blocks_of(dim))]
    shape = [block.size for block in blocks]
    return np.lib.stride_tricks.as_strided(flat, shape, [block.stride * flat.itemsize for block in blocks])
