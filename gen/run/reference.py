"""The reference: fills, convolutions and matmuls in plain numpy, and tensors as bytes in memory.

The reference shares no code with generation. Fills (see `fills`) are small integers, so that the accumulator holds
every partial sum exactly in any order of summation, and results can be compared bit for bit. Integer sums of a user's
data that exceed the accumulator wrap.

Outputs are treated as matrices:

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

from convgen.ir.error import Unsupported
from convgen.problem.conv import Conv
from convgen.problem.fused_conv import FusedConv
from convgen.problem.grouping import Grouping
from convgen.problem.matmul import Matmul, Problem
from convgen.problem.scales import Scale
from convgen.problem.tensors import refuse_others
from convgen.run import computed_scales
from convgen.run import oracle as sums
from convgen.run import reference_fused as fused
from convgen.run import reference_request as request
from convgen.run import reference_types as types
from convgen.run.accuracy import is_curved
from convgen.run.depthwise_sums import depthwise_sums
from convgen.run.fills import Array, Fill
from convgen.run.oracle import Tensor
from convgen.run.ranges import Range, Read, chained, converted, divided, gated, multiplied, shifted, summed, where
from convgen.run.reference_memory import Indices, gather, has_padding, pack, packed, packed_bytes, storage, unpack
from convgen.run.reference_request import RequestedTensor, depth
from convgen.run.reference_types import numpy_type

__all__ = [
    "Array",
    "Indices",
    "Tensor",
    "depth",
    "fill",
    "fills",
    "gather",
    "has_padding",
    "index_in_blocks",
    "numpy_type",
    "output_index",
    "output_shape",
    "outputs",
    "pack",
    "packed",
    "packed_bytes",
    "ranges",
    "shape_in_blocks",
    "storage",
    "stored_index",
    "stored_rows",
    "unnamed_rows",
    "unpack",
    "whole",
]

_EXACT = {"f32": 24, "f64": 53, "s32": 30}  #: power of two up to which an accumulator holds every integer
_RELAXED = 13  #: power of two up to which sums that may have fewer bits than f32 hold every integer
_BYTE_RANGE = 255  #: from the least to the greatest value of a byte
#: The largest absolute value of a fill, while sums allow it.
_MAGNITUDE = {"src": 8, "wei": 4, "bia": 8, "dst": 8, "diff_dst": 4}
_LARGEST_OPERAND = 8  #: largest absolute value of operands of post-ops, and of zero points
_OF_SLOTS = 3  #: of the seed of slots
_SCALES = (0.25, 0.5, 1.0, 2.0)


def fill(problem: Problem, seed: int = 0) -> dict[str, Array]:
    """Return the inputs of `fills` as numpy arrays by name, in their own types and logical dimensions."""
    return {name: np.asarray(tensor) for name, tensor in fills(problem, seed).items()}


def fills(problem: Problem, seed: int = 0) -> dict[str, Fill]:
    """Return the inputs by name as fills, in their own types and logical dimensions.

    Values are nonzero integers, drawn evenly: every product counts, so a wrong index shows. Only bytes that take all
    values include zero. Magnitudes are bounded so that the accumulator holds every partial sum, bias included.
    """
    if isinstance(problem, FusedConv):
        return _fused_fills(problem, seed)
    wanted = request.inputs(problem)
    magnitudes = {spec.name: _magnitude(problem, spec) for spec in wanted if spec.name in _MAGNITUDE}
    products, power = depth(problem), _EXACT[request.sum_type(problem)] if problem.acc_mode == "strict" else _RELAXED
    while _largest_sum(problem, products, magnitudes) > 2**power:
        if max(magnitudes.values()) == 1:
            raise Unsupported(f"exact sums of {products} products, more than 2^{power}")
        magnitudes = {name: max(1, magnitude // 2) for name, magnitude in magnitudes.items()}
    drawn = {spec.name: Fill.of(_values(spec, magnitudes), (seed, n), spec.dims) for n, spec in enumerate(wanted)}
    if groups := request.grouping(problem):
        drawn[request.OFFSETS] = _ends(groups)
    if isinstance(problem, Matmul) and request.routing(problem):
        drawn[request.IDS] = _slots(problem, seed)
    return drawn


def _slots(problem: Matmul, seed: int) -> Fill:
    """Return the slot of each row, one in eight of them no slot: any ones, or different ones of a scattered result."""
    random = np.random.default_rng((seed, _OF_SLOTS))
    count = request.slot_count(problem)
    beyond = count + count // 8 + 1
    if request.scatters(problem, "dst") or request.sums_slots(problem):
        slots = random.permutation(max(beyond, problem.m))[: problem.m]
    else:
        slots = random.integers(0, beyond, problem.m)
    none = Fill.of(np.zeros(1, np.int32), (0,), (problem.m,))
    return none.with_values({(n,): slot for n, slot in enumerate(slots.tolist())})


def _fused_fills(problem: FusedConv, seed: int) -> dict[str, Fill]:
    """Return the inputs of both convolutions; a scale that both read is that of the first."""
    asked = fused.requests(problem)
    later = {asked.named(name): own for name, own in fills(asked.second, seed + 1).items() if name != "src"}
    return {**later, **fills(asked.first, seed)}


def _ends(groups: Grouping) -> Fill:
    """Return the end of each group, by the sizes of the request."""
    none = Fill.of(np.zeros(1, np.int32), (0,), (groups.count,))
    return none.with_values({(n,): end for n, end in enumerate(np.cumsum(groups.sizes).tolist())})


def _magnitude(problem: Problem, spec: RequestedTensor) -> int:
    """Return the largest absolute value of a fill for which the accumulator holds all sums.

    8-bit integers take every value, to show errors in signs, unless the result is so narrow that most would saturate.
    Values are smaller before approximate functions, which are flat at large sums, and for floats of 8 bits.
    """
    result = request.outputs(problem)[0].dtype
    if is_curved(problem.post_ops) or (types.bits(result) == 8 and not types.is_integer(result)):
        return 1
    whole_range = types.is_integer(spec.dtype) and types.bits(spec.dtype) <= 8 < types.bits(result) and result != "f16"
    least, most = map(int, types.limits(spec.dtype)) if whole_range else (0, _MAGNITUDE[spec.name])
    return max(-least, most)


def _largest_sum(problem: Problem, depth: int, magnitudes: Mapping[str, int]) -> int:
    """Return a bound of the sum of all products, bias and zero points, in units of the factors' least steps."""
    factors = 1
    for spec in request.inputs(problem)[:2]:
        point = request.zero_point(problem, spec.name)
        factors *= magnitudes[spec.name] + (0 if not point else abs(point.value or _LARGEST_OPERAND))
    for _ in _before_sums(problem):
        factors *= int(max(_SCALES) / min(_SCALES))
    return depth * factors + magnitudes.get("bia", 0)


def _values(spec: RequestedTensor, magnitudes: Mapping[str, int]) -> Array:
    """Return the values of a fill: powers of two for scales, 0 and 1 for conditions, else integers but zero."""
    if spec.name.endswith("_scales"):
        return np.array(_SCALES).astype(numpy_type(spec.dtype))
    if spec.name.endswith("_condition"):
        return np.array([0, 1]).astype(numpy_type(spec.dtype))
    magnitude = magnitudes.get(spec.name, _LARGEST_OPERAND)
    least, most = -magnitude, magnitude
    if types.is_integer(spec.dtype):
        limits = [int(limit) for limit in types.limits(spec.dtype)]
        least, most = max(least, limits[0]), min(most, limits[1])
    values = np.array([value for value in range(least, most + 1) if value or most - least == _BYTE_RANGE])
    typed: Array = values.astype(numpy_type(spec.dtype))
    exact: Array = typed[typed.astype(np.int64) == values]
    return exact


def output_shape(problem: Problem, output: str) -> tuple[int, int]:
    """Return rows and columns of an output as a matrix."""
    refuse_others(problem)
    dims = request.tensor(problem, output).dims
    if isinstance(problem, Matmul):
        return (problem.m if request.scatters(problem, output) else prod(dims[:-1])), dims[-1]
    columns = problem.ic if output == "diff_src" else problem.oc
    return prod(dims) // columns, columns


def output_index(problem: Problem, output: str, rows: Indices, columns: Indices) -> list[Indices]:
    """Return the logical index of the elements rows x columns: one array per dimension, which broadcast.

    Rows of a result that is scattered are those of the product (see `stored_index`).
    """
    dims = request.tensor(problem, output).dims
    if request.scatters(problem, output) or request.sums_slots(problem):
        return [rows[:, None], columns[None, :]]
    return _index(problem, output, dims, rows, columns)


def stored_rows(problem: Problem, inputs: Mapping[str, Tensor], output: str, rows: Indices) -> Indices:
    """Return the rows of an output that are stored: all, but those of a scattered result without a slot."""
    if not request.scatters(problem, output):
        return rows
    return rows[request.has_slot(problem, _slots_in(inputs)[rows])]


def stored_index(
    problem: Problem, inputs: Mapping[str, Tensor], output: str, rows: Indices, columns: Indices
) -> list[Indices]:
    """Return the logical index at which the elements of stored rows x columns lie in the output."""
    if not request.scatters(problem, output):
        return output_index(problem, output, rows, columns)
    return [_slots_in(inputs)[rows][:, None], columns[None, :]]


def _slots_in(inputs: Mapping[str, Tensor]) -> Indices:
    """Return the slot of each row of a product."""
    return np.asarray(inputs[request.IDS]).astype(np.int64)


def unnamed_rows(problem: Problem, inputs: Mapping[str, Tensor], output: str) -> Indices:
    """Return the rows of an output that no row of the product is scattered to, which nobody stores."""
    if not request.scatters(problem, output):
        return np.arange(0)
    return np.setdiff1d(np.arange(request.tensor(problem, output).dims[0]), _slots_in(inputs))


def shape_in_blocks(problem: Problem, output: str) -> tuple[int, int]:
    """Return rows and columns of an output as a matrix that includes the padding of blocks."""
    dims = storage(request.tensor(problem, output)).padded_dims
    if isinstance(problem, Matmul):
        return prod(dims[:-1]), dims[-1]
    channels = 1 if output in ("dst", "diff_src") else 0
    grouped = output == "diff_wei" and problem.has_groups
    columns = dims[channels] * (dims[1] if grouped else 1)
    return prod(dims) // columns if columns else 0, columns


def index_in_blocks(problem: Problem, output: str, rows: Indices, columns: Indices) -> list[Indices]:
    """Return the index of elements rows x columns of the matrix that includes the padding of blocks.

    Elements whose index reaches the size of a dimension are padding.
    """
    return _index(problem, output, storage(request.tensor(problem, output)).padded_dims, rows, columns)


def _index(problem: Problem, output: str, dims: Sequence[int], rows: Indices, columns: Indices) -> list[Indices]:
    """Return the index of elements rows x columns of an output of some size: one array per dimension."""
    down, across = rows[:, None], columns[None, :]
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
    """Return the right values rows x columns of an output; the least ones if several are right (see `ranges`)."""
    return ranges(problem, inputs, output, rows, columns).least


def ranges(problem: Problem, inputs: Mapping[str, Tensor], output: str, rows: Indices, columns: Indices) -> Range:
    """Return the range of right results for rows x columns of an output.

    Exact sums are rounded to the accumulator, multiplied by the scales of the factors, biased, passed through post-ops,
    divided by the scale of the result, and rounded once to its type, to which integers saturate.
    """
    if isinstance(problem, FusedConv):
        return _fused(problem, inputs, rows, columns)
    if computed := request.computed_scale(problem):
        steps = partial(_summed, problem, inputs, "dst", rows)
        scales, quotients = computed_scales.ranges(computed, problem.dst_type, request.size(problem, "dst")[-1])
        return quotients(steps, columns) if output == "dst" else scales(steps, columns)
    if request.sums_slots(problem) and isinstance(problem, Matmul):
        return _over_slots(problem, inputs, rows, columns)
    return _finished(problem, inputs, output, rows, columns, _summed(problem, inputs, output, rows, columns))


def _over_slots(problem: Matmul, inputs: Mapping[str, Tensor], tokens: Indices, columns: Indices) -> Range:
    """Return the range of sums over the slots of some tokens; a slot that no row of a group has adds nothing."""
    slots, ends = _slots_in(inputs), np.asarray(inputs[request.OFFSETS])
    exists = request.has_slot(problem, slots) & (np.arange(len(slots)) < ends[-1])
    row_of = np.full(request.slots_of_dst(problem), -1)
    row_of[slots[exists]] = np.flatnonzero(exists)
    topk = request.slots_of_dst(problem) // request.tensor(problem, "dst").dims[0]
    terms = []
    for n in range(topk):
        rows = row_of[tokens * topk + n]
        term = _summed(problem, inputs, "dst", np.maximum(rows, 0), columns)
        terms.append(where(rows[:, None] >= 0, term))
    to = request.tensor(problem, "dst").dtype
    return converted(summed(terms), partial(_stored, to=to), types.limits(to)[1])


def _fused(problem: FusedConv, inputs: Mapping[str, Tensor], rows: Indices, columns: Indices) -> Range:
    """Return the range of right results of a depthwise convolution after another one."""
    asked = fused.requests(problem)
    first = {spec.name: inputs[spec.name] for spec in request.inputs(asked.first)}
    second = {s.name: inputs[asked.named(s.name)] for s in request.inputs(asked.second) if s.name != "src"}
    read = partial(ranges, asked.first, first, "dst", columns=columns)
    kind = request.sum_type(asked.second)
    exact = depthwise_sums(asked.second, read, second["wei"], rows, columns, kind)
    own = numpy_type(kind)
    total = exact.map(lambda point: (np.rint(point).astype(np.int64) if own.kind == "i" else point).astype(own))
    steps = _processed(asked.second, second, "dst", rows, columns, total)
    return _finished(asked.second, second, "dst", rows, columns, steps)


def _finished(
    problem: Problem, inputs: Mapping[str, Tensor], output: str, rows: Indices, columns: Indices, result: Range
) -> Range:
    """Return processed sums divided by the scale of the result and rounded to its type."""
    to = request.tensor(problem, output).dtype
    if output != "dst" or not (problem.post_ops or problem.scales or request.zero_point(problem, "dst")):
        return result.map(partial(_stored, to=to))
    read = partial(_operand, problem, inputs, output_index(problem, output, rows, columns))
    if scale := request.scale(problem, "dst"):
        result = divided(result, read("dst_scales") if scale.value is None else np.asarray(_number(scale)))
    if point := request.zero_point(problem, "dst"):
        result = shifted(result, np.asarray(read("dst_zero_points") if point.value is None else point.value))
    return converted(result, partial(_stored, to=to), types.limits(to)[1])


def _summed(problem: Problem, inputs: Mapping[str, Tensor], output: str, rows: Indices, columns: Indices) -> Range:
    """Return the range of exact sums after the scales of the factors, the bias and post-ops."""
    acc_type = request.sum_type(problem)

    def acc(columns: Indices) -> Range:
        sums_ = _sums(problem, inputs, output, rows, columns)
        exact = sums_.astype(np.int64) if types.is_integer(acc_type) else sums_
        return Range.of([exact.astype(numpy_type(acc_type))])

    unit = request.gated(problem)
    if unit is None or not isinstance(problem, Matmul):
        return _processed(problem, inputs, output, rows, columns, acc(columns))
    gate, up = (
        _scaled_and_biased(problem, inputs, output, rows, own, acc(own))
        for own in request.columns_of_gate_and_up(problem, columns)
    )
    return _after_post_ops(problem, inputs, output, rows, columns, gated(unit, gate, up))


def _processed(
    problem: Problem, inputs: Mapping[str, Tensor], output: str, rows: Indices, columns: Indices, acc: Range
) -> Range:
    """Return the range of sums, in their type, after the scales of the factors, the bias and post-ops."""
    before = _scaled_and_biased(problem, inputs, output, rows, columns, acc)
    return _after_post_ops(problem, inputs, output, rows, columns, before)


def _scaled_and_biased(
    problem: Problem, inputs: Mapping[str, Tensor], output: str, rows: Indices, columns: Indices, acc: Range
) -> Range:
    """Return the range of sums, in their type, after the scales of the factors and the bias."""
    step_type = numpy_type(request.step_type(problem, output))
    read = partial(_operand, problem, inputs, output_index(problem, output, rows, columns))
    factors = _scales(problem, read)
    acc = acc.map(lambda point: point.astype(step_type))
    if factors:
        acc = acc.map(lambda point: multiplied(point, *factors))
    if "bia" in inputs:
        acc = acc.map(lambda point: point + read("bia").astype(step_type))
    return acc


def _after_post_ops(
    problem: Problem, inputs: Mapping[str, Tensor], output: str, rows: Indices, columns: Indices, given: Range
) -> Range:
    """Return the range of results after the post-ops; a gated linear unit, the first of them, precedes this."""
    read = partial(_operand, problem, inputs, output_index(problem, output, rows, columns))
    return chained(problem.post_ops, given, read) if output == "dst" and problem.post_ops else given


def _scales(problem: Problem, read: Read) -> tuple[list[np.float32], list[Array]] | None:
    """Return the scales of src and weights by which sums are multiplied: numbers, and tensors."""
    scaled_before = _before_sums(problem)
    chosen = [scale for scale in problem.scales if scale.role != "dst" and scale.role not in scaled_before]
    numbers = [_number(scale) for scale in chosen if scale.value is not None]
    return (numbers, [read(f"{scale.role}_scales") for scale in chosen if scale.value is None]) if chosen else None


def _before_sums(problem: Problem) -> tuple[str, ...]:
    """Return the factors, src or weights, that are scaled before products are summed."""
    if not isinstance(problem, Matmul) or not request.is_dequantised(problem):
        return ()
    return tuple(role for role in ("src", "wei") if request.differs_along_k(problem, role))


def _number(scale: Scale) -> np.float32:
    """Return the value of a scale in its type; infinite if the type is too narrow."""
    with np.errstate(over="ignore"):
        return np.float32(np.array(scale.value).astype(numpy_type(scale.dtype)))


def _operand(problem: Problem, inputs: Mapping[str, Tensor], index: Sequence[Indices], name: str) -> Array:
    """Return the elements of input `name`, in its type, that belong to elements of dst at a logical `index`.

    The input is 1 long along broadcast dims.
    """
    tensor, role = inputs[name], name.removesuffix("_scales").removesuffix("_zero_points")
    own = index[1:2] if name == "bia" and isinstance(problem, Conv) else _coordinates(problem, inputs, role, index)
    groups = _groups_of(problem, name, len(tensor.shape))
    return np.asarray(tensor[tuple(at // n if size > 1 else 0 * at for at, n, size in zip(own, groups, tensor.shape))])


def _groups_of(problem: Problem, name: str, rank: int) -> tuple[int, ...]:
    """Return how many neighbours along each dim share an element of a tensor, as its attribute says, else 1."""
    attribute = request.attribute(problem, name)
    groups = attribute.groups if attribute else ()
    return (*(1 for _ in range(rank - len(groups))), *groups)


def _coordinates(
    problem: Problem, inputs: Mapping[str, Tensor], role: str, index: Sequence[Indices]
) -> Sequence[Indices]:
    """Return the indices of dst's elements along the dims of src, of weights and of a bias, 0 along summed dims.

    A dim is summed if a sum has several of its positions.
    """
    none = 0 * index[0]
    if groups := request.grouping(problem):
        *numbers, m, n = index
        group = numbers[0] if groups.dim == "k" else np.searchsorted(np.asarray(inputs[request.OFFSETS]), m, "right")
        of_weights = [group, none, n] if groups.dim == "m" else [none, n]
        tokens, slots = m, m
        if request.routing(problem):
            ids = _slots_in(inputs)[m]
            tokens = request.tokens_of(problem, ids)[0] if request.gathers(problem) else m
            slots = request.slots_of(problem, ids, m)
        by_role: dict[str, Sequence[Indices]] = {"src": [tokens, none], "wei": of_weights, "bia": [group, n]}
        return by_role.get(role, [*numbers, slots, n])
    if role not in ("src", "wei"):
        return index
    if isinstance(problem, Matmul):
        *batch, m, n = index
        return [*batch, m, none] if role == "src" else [*batch, none, n]
    image, channel, *spatial = index
    group, own = np.divmod(channel, problem.oc // problem.groups)
    if role == "src":  # a group's only channel is that of all its sums
        return [image, group if problem.ic == problem.groups else none, *(none for _ in spatial)]
    return [*([group] if problem.has_groups else []), own, none, *(none for _ in spatial)]


def _stored(values: Array, to: str) -> Array:
    """Round to the nearest number of a type; integers saturate, NaN becomes integer 0."""
    if types.is_integer(to):
        least, most = map(int, types.limits(to))
        if values.dtype.kind == "f":
            values = np.rint(np.where(values == values, values, 0).astype(np.float64))
        else:
            values = values.astype(np.int64)
        return np.clip(values, least, most).astype(numpy_type(to))
    with np.errstate(over="ignore"):  # overflow becomes infinity
        return values.astype(numpy_type(to))


def whole(problem: Problem, inputs: Mapping[str, Tensor], output: str) -> Array:
    """Return a whole right output as a logical tensor; rows that nobody stores are zero."""
    rows, columns = map(np.arange, output_shape(problem, output))
    rows = stored_rows(problem, inputs, output, rows)
    values = outputs(problem, inputs, output, rows, columns)
    logical = np.zeros(request.tensor(problem, output).dims, values.dtype)
    logical[tuple(stored_index(problem, inputs, output, rows, columns))] = values
    return logical


def _sums(
    problem: Problem, inputs: Mapping[str, Tensor], output: str, rows: Indices, columns: Indices
) -> npt.NDArray[np.float64]:
    if not len(rows) or not len(columns):  # of a tile in the padding of a blocked output
        return np.empty((len(rows), len(columns)))
    if output == "dst":
        zero = sums.Points(*(_zero_points(problem, inputs, argument) for argument in ("src", "wei")))
        if isinstance(problem, Matmul):
            src, wei = (_dequantised(problem, inputs, role) for role in ("src", "wei"))
            if request.grouping(problem):
                ends = np.asarray(inputs[request.OFFSETS]).astype(np.int64)
                slots = _slots_in(inputs)[rows] if request.gathers(problem) else None
                return sums.by_groups(problem, src, wei, ends, rows, columns, zero, slots)
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
    point = request.zero_point(problem, argument)
    if request.is_dequantised(problem):
        point = None  # `_dequantised` subtracts it
    if point and point.value is None:
        return np.asarray(inputs[f"{argument}_zero_points"]).astype(np.float64)
    rank = len(request.size(problem, argument))
    return np.full((1,) * rank, point.value if point and point.value else 0, np.float64)


def _dequantised(problem: Matmul, inputs: Mapping[str, Tensor], role: str) -> Tensor:
    """Return src or weights as multiplied: (q - zero point) * scale in f32, rounded to `dequantised_type`."""
    point, is_scaled = request.zero_point(problem, role), role in _before_sums(problem)
    if not request.is_dequantised(problem) or (point is None and not is_scaled):
        return inputs[role]
    values = np.asarray(inputs[role]).astype(np.float32)
    if point is not None:
        name = f"{role}_zero_points"
        values = values - (_repeated(problem, inputs, name, values.shape) if point.value is None else point.value)
    if is_scaled:
        values = values * _repeated(problem, inputs, f"{role}_scales", values.shape)
    rounded: Array = values.astype(numpy_type(request.dequantised_type(problem)))
    return rounded


def _repeated(
    problem: Problem, inputs: Mapping[str, Tensor], name: str, shape: tuple[int, ...]
) -> npt.NDArray[np.float32]:
    """Repeat a tensor of scales or zero points to the shape of its factor."""
    repeated = np.asarray(inputs[name]).astype(np.float32)
    for axis, (size, group) in enumerate(zip(shape, _groups_of(problem, name, len(shape)), strict=True)):
        repeated = repeated.take(
            np.arange(size) // group if repeated.shape[axis] > 1 else np.zeros(size, np.int64), axis
        )
    return repeated
