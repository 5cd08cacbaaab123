"""The reference: fills, convolutions and matmuls in plain numpy, and tensors as bytes in memory.

Nothing here knows how kernels are generated. Fills (see `fills`) are small integers, so every partial sum is an integer
that the accumulator holds exactly, whatever the order of summation; results can then be compared bit for bit. Sums of
integers that the accumulator does not hold, of data given, wrap.

Outputs are seen as matrices:

    dst       (n, o...) x oc        (batch..., M) x N of a matrix product
    diff_src  (n, i...) x ic
    diff_wei  (k..., ic of one group) x oc of all groups
    diff_bia  1 x oc
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

import numpy as np
import numpy.typing as npt

from convgen.ir import types
from convgen.ir.error import Unsupported
from convgen.ir.layout.tags import Layout
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul, Problem
from convgen.problem.post_ops import Eltwise
from convgen.problem.tensors import TensorSpec, refuse_others
from convgen.run import oracle as sums
from convgen.run.fills import Fill
from convgen.run.ranges import Range, Read, chained, converted, divided, multiplied, shifted

Array = npt.NDArray[np.generic]
Tensor = Array | Fill
Indices = npt.NDArray[np.int64]

_EXACT = {"f32": 24, "f64": 53, "s32": 30}  #: an accumulator holds every integer up to this power of two
_BYTES = 255  #: from the least to the greatest value of a byte
#: The largest absolute value of a fill, while sums allow it.
_MAGNITUDE = {"src": 8, "wei": 4, "bia": 8, "dst": 8, "diff_dst": 4}
_OPERAND = 8  #: that of what post-ops read, and of zero points
_SCALES = (0.25, 0.5, 1.0, 2.0)


def numpy_type(name: str) -> np.dtype[np.generic]:
    """The numpy type of one element; Unsupported for types that are not known."""
    if name not in types.SCALARS:
        raise Unsupported(f"tensors of type {name}")
    return types.scalar(name).numpy


def fill(problem: Problem, seed: int = 0) -> dict[str, Array]:
    """The inputs by name, in their own types and logical dimensions, as `fills` has them."""
    return {name: np.asarray(tensor) for name, tensor in fills(problem, seed).items()}


def fills(problem: Problem, seed: int = 0) -> dict[str, Fill]:
    """The inputs by name, in their own types and logical dimensions, none of them in memory.

    Values are integers other than zero, drawn evenly: every product counts, so a wrong index shows. Only among all
    values of a byte is zero. Their size is bounded so that the accumulator holds every partial sum, bias included.
    """
    magnitudes = {spec.name: _magnitude(problem, spec) for spec in problem.inputs if spec.name in _MAGNITUDE}
    products, power = depth(problem), _EXACT[problem.acc_type]
    while _largest_sum(problem, products, magnitudes) > 2**power:
        if max(magnitudes.values()) == 1:
            raise Unsupported(f"exact sums of {products} products, more than 2^{power}")
        magnitudes = {name: max(1, magnitude // 2) for name, magnitude in magnitudes.items()}
    return {
        spec.name: Fill.of(_values(spec, magnitudes), (seed, n), spec.dims) for n, spec in enumerate(problem.inputs)
    }


def _magnitude(problem: Problem, spec: TensorSpec) -> int:
    """The largest absolute value of a fill, while sums allow it.

    8-bit integers take every value, so that their signs show; not if the result is so narrow that most would saturate.
    Functions that are not exact are flat where sums are large, and floats of 8 bits end there.
    """
    result = types.scalar(problem.outputs[0].dtype)
    curved = any(isinstance(op, Eltwise) and not op.is_exact for op in problem.post_ops)
    if curved or (result.is_float and result.bits == 8):
        return 1
    element = types.scalar(spec.dtype)
    whole_range = element.is_int and element.bits <= 8 < result.bits and result is not types.f16
    return max(-element.min, element.max) if whole_range else _MAGNITUDE[spec.name]


def _largest_sum(problem: Problem, depth: int, magnitudes: Mapping[str, int]) -> int:
    """A bound of the sum of so many products, bias and zero points included, in the least steps of factors."""
    factors = 1
    for spec in problem.factors:
        point = problem.zero_point(spec.name)
        factors *= magnitudes[spec.name] + (0 if not point else abs(point.value or _OPERAND))
    if isinstance(problem, Matmul) and problem.dequantises:
        factors *= int(max(_SCALES) / min(_SCALES)) ** len(problem.scales_on_the_way)
    return depth * factors + magnitudes.get("bia", 0)


def depth(problem: Problem) -> int:
    """Products in the longest sum."""
    if isinstance(problem, Matmul):
        return problem.k
    taps = prod(axis.k for axis in problem.axes)
    return {
        "dst": problem.ic // problem.groups * taps,
        "diff_src": problem.oc // problem.groups * taps,
        "diff_wei": problem.mb * prod(axis.o for axis in problem.axes),
    }[problem.outputs[0].name]


def _values(spec: TensorSpec, magnitudes: Mapping[str, int]) -> Array:
    """Return the values of a fill: powers of two for scales, 0 and 1 for conditions, else integers but zero."""
    if spec.name.endswith("_scales"):
        return np.array(_SCALES).astype(numpy_type(spec.dtype))
    if spec.name.endswith("_condition"):
        return np.array([0, 1]).astype(numpy_type(spec.dtype))
    magnitude = magnitudes.get(spec.name, _OPERAND)
    least, most = -magnitude, magnitude
    if types.scalar(spec.dtype).is_int:
        least, most = max(least, types.scalar(spec.dtype).min), min(most, types.scalar(spec.dtype).max)
    values = np.array([value for value in range(least, most + 1) if value or most - least == _BYTES])
    held: Array = values.astype(numpy_type(spec.dtype))
    found: Array = held[held.astype(np.int64) == values]
    return found


def output_shape(problem: Problem, output: str) -> tuple[int, int]:
    """Rows and columns of an output as a matrix."""
    refuse_others(problem)
    dims = problem.tensor(output).dims
    if isinstance(problem, Matmul):
        return prod(dims[:-1]), problem.n
    columns = problem.ic if output == "diff_src" else problem.oc
    return prod(dims) // columns, columns


def output_index(problem: Problem, output: str, rows: Indices, columns: Indices) -> list[Indices]:
    """The logical index of the elements rows x columns: one array a dimension, broadcasting against each other."""
    down, across = rows[:, None], columns[None, :]
    dims = problem.tensor(output).dims
    if isinstance(problem, Matmul):
        return [*np.unravel_index(down, dims[:-1]), across]
    if output == "diff_bia":
        return [across + 0 * down]
    if output == "diff_wei":
        oc, ic, *kernel = dims[problem.has_groups :]
        *taps, inner = np.unravel_index(down, (*kernel, ic))
        return [*([across // oc] if problem.has_groups else []), across % oc, inner, *taps]
    n, *spatial = np.unravel_index(down, (dims[0], *dims[2:]))
    return [n, across, *spatial]


def outputs(problem: Problem, inputs: Mapping[str, Tensor], output: str, rows: Indices, columns: Indices) -> Array:
    """The right values rows x columns of an output; the least ones where there are several (see `ranges`)."""
    return ranges(problem, inputs, output, rows, columns).least


def ranges(problem: Problem, inputs: Mapping[str, Tensor], output: str, rows: Indices, columns: Indices) -> Range:
    """Return the range of right results for rows x columns of an output.

    Exact sums, rounded to the accumulator, times the scales of the factors, a bias added there, post-ops, over the
    scale of the result, and one rounding to it, to which integers saturate.
    """
    acc_type, to = types.scalar(problem.acc_type), types.scalar(problem.tensor(output).dtype)
    sums_ = _sums(problem, inputs, output, rows, columns)
    acc = (sums_.astype(np.int64) if acc_type.is_int else sums_).astype(acc_type.numpy)
    acc = acc.astype(types.scalar(problem.result_type).numpy)
    read = partial(_seen, problem, inputs, output_index(problem, output, rows, columns))
    factors = _scales(problem, read, "src", "wei")
    if factors:
        acc = multiplied(acc, *factors)
    if "bia" in inputs:
        acc = acc + read("bia").astype(acc.dtype)
    if output != "dst" or not (problem.post_ops or problem.scales or problem.zero_point("dst")):
        return Range.of([_stored(acc, to)])
    found = chained(problem.post_ops, acc, read)
    for scale in problem.scales:
        if scale.role == "dst":
            found = divided(found, read(scale.name) if scale.number is None else np.asarray(scale.number))
    if point := problem.zero_point("dst"):
        found = shifted(found, np.asarray(read(point.name) if point.value is None else point.value))
    return converted(found, partial(_stored, to=to), to.max if to.is_int else to.largest)


def _scales(problem: Problem, read: Read, *roles: str) -> tuple[list[np.float32], list[Array]] | None:
    """The numbers and the tensors by which sums are multiplied, if there are any."""
    done = problem.scales_on_the_way.values() if isinstance(problem, Matmul) else ()
    chosen = [scale for scale in problem.scales if scale.role in roles and scale not in done]
    numbers = [scale.number for scale in chosen if scale.number is not None]
    return (numbers, [read(scale.name) for scale in chosen if scale.number is None]) if chosen else None


def _seen(problem: Problem, inputs: Mapping[str, Tensor], index: Sequence[Indices], name: str) -> Array:
    """Return the operand elements beside elements of a forward result; the operand is 1 long along broadcast dims.

    `index` is the logical one of dst; in its own type.
    """
    tensor, role = inputs[name], name.removesuffix("_scales").removesuffix("_zero_points")
    own = index[1:2] if name == "bia" and isinstance(problem, Conv) else _coordinates(problem, role, index)
    groups = _groups_of(problem, name, len(tensor.shape))
    return np.asarray(tensor[tuple(at // n if size > 1 else 0 * at for at, n, size in zip(own, groups, tensor.shape))])


def _groups_of(problem: Problem, name: str, rank: int) -> tuple[int, ...]:
    """Return how many neighbours along each dim share an element of a tensor, as its attribute says, else 1."""
    attribute = problem.attribute(name)
    groups = attribute.groups if attribute else ()
    return (*(1 for _ in range(rank - len(groups))), *groups)


def _coordinates(problem: Problem, role: str, index: Sequence[Indices]) -> Sequence[Indices]:
    """Where elements of dst are along the dims of src and of weights, 0 along those that are summed."""
    none = 0 * index[0]
    if role not in ("src", "wei"):
        return index
    if isinstance(problem, Matmul):
        *batch, m, n = index
        return [*batch, m, none] if role == "src" else [*batch, none, n]
    image, channel, *spatial = index
    if role == "src":
        return [image, none, *(none for _ in spatial)]
    group, own = np.divmod(channel, problem.oc // problem.groups)
    return [*([group] if problem.has_groups else []), own, none, *(none for _ in spatial)]


def _stored(values: Array, to: types.Type) -> Array:
    """Rounded to the nearest of a type, to which integers saturate; NaN is 0 there."""
    if to.is_int and values.dtype.kind == "f":
        values = np.rint(np.where(values == values, values, 0).astype(np.float64))
        return np.clip(values, to.min, to.max).astype(to.numpy)
    if to.is_int:
        values = np.clip(values.astype(np.int64), to.min, to.max)
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        return values.astype(numpy_type(to.name))


def whole(problem: Problem, inputs: Mapping[str, Tensor], output: str) -> Array:
    """A right output as a logical tensor."""
    rows, columns = map(np.arange, output_shape(problem, output))
    values = outputs(problem, inputs, output, rows, columns)
    logical = np.empty(problem.tensor(output).dims, values.dtype)
    logical[tuple(output_index(problem, output, rows, columns))] = values
    return logical


def _sums(
    problem: Problem, inputs: Mapping[str, Tensor], output: str, rows: Indices, columns: Indices
) -> npt.NDArray[np.float64]:
    if output == "dst":
        zero = sums.Points(*(_zero_points(problem, inputs, argument) for argument in ("src", "wei")))
        if isinstance(problem, Matmul):
            src, wei = (_dequantised(problem, inputs, role) for role in ("src", "wei"))
            return sums.by_inner(problem, src, wei, rows, columns, zero)
        return sums.forward(problem, inputs["src"], inputs["wei"], rows, columns, zero)
    assert not isinstance(problem, Matmul)
    match output:
        case "diff_src":
            return sums.by_data(problem, inputs["wei"], inputs["diff_dst"], rows, columns)
        case "diff_wei":
            return sums.by_weights(problem, inputs["src"], inputs["diff_dst"], rows, columns)
    return sums.by_bias(inputs["diff_dst"], columns)[rows]


def _zero_points(problem: Problem, inputs: Mapping[str, Tensor], argument: str) -> npt.NDArray[np.float64]:
    """Return the zero points of src or weights, in its rank, 1 long along broadcast dims."""
    point = problem.zero_point(argument)
    if isinstance(problem, Matmul) and problem.dequantises:
        point = None  # it is taken off before
    if point and point.value is None:
        return np.asarray(inputs[point.name]).astype(np.float64)
    rank = len(problem.tensor(argument).dims)
    return np.full((1,) * rank, point.value if point and point.value else 0, np.float64)


def _dequantised(problem: Matmul, inputs: Mapping[str, Tensor], role: str) -> Tensor:
    """Return src or weights as they are multiplied: (q - zero point) * scale in f32, rounded to `--attr-fpmath`'s type.

    Where that does not hold all numbers of both it is the source's type, of 16 bits, or else f32.
    """
    point, scale = problem.zero_point(role), problem.scales_on_the_way.get(role)
    if not problem.dequantises or (point is None and scale is None):
        return inputs[role]
    found = np.asarray(inputs[role]).astype(np.float32)
    if point is not None:
        found = found - (_repeated(problem, inputs, point.name, found.shape) if point.value is None else point.value)
    if scale is not None:
        found = found * _repeated(problem, inputs, scale.name, found.shape)
    given = [types.scalar(name) for name in (problem.src_type, problem.wei_type)]
    wide = [types.SCALARS[name] for name in (problem.fpmath, problem.src_type, "f32") if name in ("f16", "bf16", "f32")]
    to = next(t for t in wide if all(t.holds(each) for each in given))
    rounded: Array = found.astype(to.numpy)
    return rounded


def _repeated(
    problem: Problem, inputs: Mapping[str, Tensor], name: str, shape: tuple[int, ...]
) -> npt.NDArray[np.float32]:
    """A tensor of scales or zero points with an element for each position of a factor of that shape."""
    found = np.asarray(inputs[name]).astype(np.float32)
    for axis, (size, group) in enumerate(zip(shape, _groups_of(problem, name, len(shape)), strict=True)):
        found = found.take(np.arange(size) // group if found.shape[axis] > 1 else np.zeros(size, np.int64), axis)
    return found


def pack(layout: Layout, logical: Array, gaps: int = 0) -> npt.NDArray[np.uint8]:
    """The bytes of a logical tensor in memory: padding is zero, what strides leave out is filled with `gaps`.

    Elements of 4 bits stand two a byte, the first in the lower half.
    """
    memory = np.full(layout.size_elems * logical.itemsize, gaps, np.uint8)
    padded = logical
    if layout.padded_dims != logical.shape:
        padded = np.zeros(layout.padded_dims, logical.dtype)
        padded[tuple(map(slice, logical.shape))] = logical
    digits = _digits(layout, memory.view(logical.dtype))
    digits[...] = _raw(np.ascontiguousarray(padded)).reshape(digits.shape)
    if logical.dtype in types.half_bytes():
        return _two_a_byte(np.append(memory, np.zeros(len(memory) % 2, np.uint8)))
    return memory


def _two_a_byte(nibbles: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    joined: npt.NDArray[np.uint8] = nibbles[..., ::2] & np.uint8(0xF) | nibbles[..., 1::2] << np.uint8(4)
    return joined


def packed_bytes(layout: Layout, logical: Fill, places: Indices, gaps: int = 0) -> npt.NDArray[np.uint8]:
    """The bytes that `pack` leaves at some places: rows of neighbours that begin with an element."""
    if logical.dtype in types.half_bytes():
        both = np.repeat(places * 2, 2, axis=1)
        both[:, 1::2] += 1
        return _two_a_byte(packed(layout, logical, both, gaps).view(np.uint8))
    element = logical.dtype.itemsize
    return packed(layout, logical, places[:, ::element] // element, gaps).view(np.uint8)


def packed(layout: Layout, logical: Fill, places: Indices, gaps: int = 0) -> Array:
    """The elements that `pack` leaves at some places, counted in elements, where no two elements meet in memory."""
    memory = np.full((*places.shape, logical.dtype.itemsize), gaps, np.uint8).view(logical.dtype)[..., 0]
    rest, exists = places, places < layout.size_elems
    digits: dict[int, Indices] = {}
    for stride, at in sorted(((b.stride, at) for at, b in enumerate(layout.blocks) if b.size > 1), reverse=True):
        digits[at] = rest // stride  # numpy divides by one number quicker than `divmod` does
        rest = rest - digits[at] * stride
        exists &= digits[at] < layout.blocks[at].size
    exists &= rest == 0
    number, inside = np.zeros(1, np.int64), exists
    split = layout.digits
    for dim, size, step in zip(split.dims, logical.shape, logical.strides):
        index = np.zeros(1, np.int64)
        for at, (scale, block) in enumerate(split.stepped()):
            if block.dim == dim and at in digits:
                index = index + digits[at] * scale
        inside = inside & (index < size)
        number = number + index * step
    number = np.broadcast_to(number, places.shape)
    _raw(memory)[exists] = 0
    _raw(memory)[inside] = _raw(logical.numbered(number[inside]))
    return memory


def unpack(layout: Layout, dtype: str, memory: npt.NDArray[np.uint8]) -> Array:
    """The logical tensor that bytes in memory hold: the inverse of `pack`."""
    digits = _digits(layout, _elements(memory, dtype))
    return digits.reshape(layout.padded_dims)[tuple(map(slice, layout.dims))].copy().view(numpy_type(dtype))


def gather(layout: Layout, dtype: str, memory: npt.NDArray[np.uint8], index: Sequence[Indices]) -> Array:
    """The elements at logical indices (arrays that broadcast, one a dimension), without unpacking the rest."""
    return _elements(memory, dtype)[layout.offset(index)]


def _elements(memory: npt.NDArray[np.uint8], dtype: str) -> Array:
    """All whole elements of some bytes."""
    element = numpy_type(dtype)
    if element in types.half_bytes():
        return np.stack([memory & np.uint8(0xF), memory >> np.uint8(4)], axis=-1).reshape(-1).view(element)
    return memory[: len(memory) // element.itemsize * element.itemsize].view(element)


def _raw(values: Array) -> npt.NDArray[np.unsignedinteger]:
    """The bits: numpy takes types that are not its own for some operations only."""
    return values.view(f"u{values.dtype.itemsize}")


def _digits(layout: Layout, flat: Array) -> npt.NDArray[np.unsignedinteger]:
    """The bits of `flat` with one axis a block: dimension by dimension, each dimension's blocks outermost first."""
    blocks = [block for dim in layout.digits.dims for block in reversed(layout.digits.of(dim))]
    shape = [block.size for block in blocks]
    return np.lib.stride_tricks.as_strided(_raw(flat), shape, [block.stride * flat.itemsize for block in blocks])
