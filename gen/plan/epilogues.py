"""Epilogues of problems: the steps from sums to results, and checks for steps that convgen does not generate."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convgen.epilogue.epilogue import Step, axes_of
from convgen.epilogue.steps import (
    Bias,
    Binary,
    Codes,
    Convert,
    Eltwise,
    FpScale,
    Gated,
    MxScale,
    Prelu,
    Scale,
    Sum,
    ZeroPadding,
)
from convgen.ir.error import Unsupported
from convgen.ir.layout.memory import View
from convgen.ir.record import evolve
from convgen.ir.types import f16, scalar
from convgen.plan import views
from convgen.plan.blocks import Index
from convgen.plan.contraction import GATE, Product
from convgen.problem import post_ops
from convgen.problem import scales as problem_scales
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul, Problem
from convgen.problem.zero_points import ZeroPoint

_ADDED = ("f32", "f16", "bf16", "s32", "s8", "u8")  #: types of biases and results beside floats of 8 bits
_MX_RESULTS = ("f8_e4m3", "f8_e5m2", "f4_e2m1")  #: types of results with computed scales
_FLOATS_OF_8_BITS = ("f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz")


def results(problem: Problem) -> tuple[str, ...]:
    """Return the types to which sums can be converted."""
    scaled = _MX_RESULTS if any(scale.is_dynamic for scale in problem.scales) else ()
    return tuple(dict.fromkeys((*_addends(problem), *scaled)))


def _addends(problem: Problem) -> tuple[str, ...]:
    """Return the types of biases that can be added to sums, to which these can also be converted."""
    return ("f64",) if problem.acc_type == "f64" else (*_ADDED, *_FLOATS_OF_8_BITS)


def check(problem: Problem) -> None:
    """Raise Unsupported for a bias, scales, zero points or post-ops that convgen does not generate."""
    _check_bias(problem)
    _check_scales(problem)
    _check_zero_points(problem)
    _check_post_ops(problem)


def _check_bias(problem: Problem) -> None:
    """Refuse a bias, or its gradient, of a type that cannot be added to sums or converted from them."""
    known = _addends(problem)
    if problem.bias_type and problem.bias_type not in known:
        wanted = f"wanted one of {', '.join(known)}"
        raise Unsupported(f"given a bias of {problem.bias_type}, {wanted}", rule="bias-type")


def _check_scales(problem: Problem) -> None:
    """Refuse scales where they have no meaning, and scales that vary along K unless factors are dequantised."""
    _check_steps(problem, "attr-scales", "scales")
    for scale in problem.scales:
        if scale.is_dynamic and (isinstance(problem, Conv) or problem.dst_type not in _MX_RESULTS):
            given = f"given the scale {scale} of {problem.dst_type}"
            wanted = f"wanted the result of a matrix product, of {' or '.join(_MX_RESULTS)}"
            raise Unsupported(f"{given}, {wanted}", rule="scales-dynamic")
        if scale.is_dynamic and problem.zero_point("dst"):
            given = f"given the scale {scale} and zero points of dst"
            raise Unsupported(f"{given}, wanted one of both", rule="scales-dynamic")
        if _multiplies_a_factor(problem, scale):
            continue
        given = f"given the scale {scale}"
        if isinstance(problem, Conv) and _is_grouped(problem, scale):
            raise Unsupported(f"{given}, wanted one without groups", rule="scales-groups")
        if isinstance(problem, Conv) and _is_along_windows(problem, scale):
            given = f"{given} that differs along positions or taps"
            raise Unsupported(f"{given}, wanted one along images or channels", rule="scales-k")
        if scale.value is None and views.is_along_k(problem, scale.name, scale.role):
            raise Unsupported(f"{given} that differs along dims that are summed, wanted another mask", rule="scales-k")


def _is_along_windows(problem: Conv, scale: problem_scales.Scale) -> bool:
    """Whether the scale of src or weights differs along an axis over which windows move."""
    if scale.value is not None or scale.role == "dst":
        return False
    return any(size > 1 for size in problem.tensor(scale.name).dims[-len(problem.spatial) :])


def _check_zero_points(problem: Problem) -> None:
    """Refuse zero points where they have no meaning, and zero points that vary along dims without compensation sums."""
    text = problem.knob_texts["attr-zero-points"]
    ranks = {role: len(problem.size(role)) for role in ("src", "wei", "dst")}
    if not text:
        return
    given = f"given attr-zero-points {text}"
    if isinstance(problem, Conv) and not problem.direction.is_forward:
        raise Unsupported(f"{given} in {problem.direction.value}, wanted none", rule="zero-points")
    if isinstance(problem, Matmul) and problem.dequantises and _suits_dequantisation(problem):
        return
    if problem.acc_type != "s32":
        types = " and ".join(dict.fromkeys(t.dtype for t in problem.factors))
        raise Unsupported(f"{given} of {types}, wanted integers of 8 bits", rule="zero-points")
    all_but_k = (1 << ranks["wei"]) - 1 & ~(1 << ranks["wei"] - 2)  # of the weights of a matrix product
    allowed = {"src": 2, "wei": 3 if problem.has_groups else 1} if isinstance(problem, Conv) else {"wei": all_but_k}
    allowed = {"src": 1 << ranks["src"] - 1, "dst": (1 << ranks["dst"]) - 1, **allowed}
    for point in problem.zero_points:
        dims = problem.point_dims(point)
        if any(size > 1 and not allowed[point.role] >> n & 1 for n, size in enumerate(dims)):
            wanted = {"src": "one value, or one for each position along K", "wei": "one value, or one a column"}
            raise Unsupported(f"{given}, wanted for {point.role} {wanted[point.role]}", rule="zero-points")
        if _is_grouped(problem, point):
            raise Unsupported(f"{given}, wanted none that several columns share", rule="zero-points-groups")


def _suits_dequantisation(problem: Matmul) -> bool:
    """Whether src holds integers if it has a zero point. That of weights is subtracted from floats, too.

    With zero points of both factors, scales that differ along K make one of them zero past the end of K.
    """
    return problem.zero_point("src") is None or scalar(problem.src_type).is_int


def _is_grouped(problem: Problem, attribute: problem_scales.Scale | ZeroPoint) -> bool:
    """Whether several positions along an axis, but not all, share an element."""
    return any(1 < span < size for span, size in zip(problem.spans(attribute), problem.size(attribute.role)))


def _check_steps(problem: Problem, knob: str, rule: str) -> None:
    """Refuse steps after the sums in directions other than forward, and in types in which they are not computed."""
    text = problem.knob_texts[knob]
    if text and isinstance(problem, Conv) and not problem.direction.is_forward:
        raise Unsupported(f"given {knob} {text} in {problem.direction.value}, wanted none", rule=f"{rule}-backward")
    if text and problem.result_type != "f32":
        given = f"given {knob} {text} of sums of {problem.acc_type}"
        raise Unsupported(f"{given}, wanted those of f32 or s32", rule=f"{rule}-type")


def _check_post_ops(problem: Problem) -> None:
    """Refuse post-ops where they have no meaning, or in types in which they are not computed."""
    _check_steps(problem, "attr-post-ops", "post-op")
    given = f"given attr-post-ops {problem.knob_texts['attr-post-ops']}"
    sums = {op.dtype for op in problem.post_ops if isinstance(op, post_ops.Sum)}
    if sums and scalar(problem.dst_type).bits < 8:
        raise Unsupported(f"{given} of {problem.dst_type}, wanted a type of whole bytes", rule="post-op-sum")
    for read in sums - {"", problem.dst_type}:
        if {read, problem.dst_type} != {"s8", "u8"}:
            wanted = f"wanted {problem.dst_type}; only s8 and u8 may be read as one another"
            raise Unsupported(f"{given} that reads dst as {read}, {wanted}", rule="post-op-sum")


def of(problem: Problem, product: Product) -> tuple[Step, ...]:
    """Return the steps from sums to results, with the rounding at the end, or earlier where that is equal and cheaper.

    An element-wise step that keeps rounded numbers rounded follows the rounding to f16, because two f16 share a
    register.
    """
    steps, elem = list(_unrounded(problem, product)), product.result.memory.elem
    match steps:
        case [*others, Eltwise() as last] if elem is f16 and last.keeps_rounded:
            return (*others, Convert(elem), last)
    return (*steps, Codes(elem) if elem.bits == 4 else Convert(elem))


def _unrounded(problem: Problem, product: Product) -> Iterator[Step]:
    """Yield the steps before rounding: scales of the factors, bias, post-ops, scale and zero point of dst.

    Sums are first converted to the type of the result's arithmetic; padding of blocks is zeroed last.
    """
    if problem.result_type != problem.acc_type:
        yield Convert(scalar(problem.result_type))
    yield from _scaled(problem, product, "src", "wei")
    if "bia" in [t.name for t in problem.inputs]:
        yield Bias(views.view_over_result(problem, product, "bia"))
    for n, op in enumerate(problem.post_ops):
        yield _post_op(problem, product, op, n)
    if (computed := next((scale for scale in problem.scales if scale.is_dynamic), None)) is not None:
        yield from _computed(problem, product, computed)
    else:
        yield from _scaled(problem, product, "dst")
    if point := problem.zero_point("dst"):
        yield _shifted(problem, product, point)
    if (output := problem.outputs[0]).layout.padded_dims != output.dims:
        yield ZeroPadding(product.result, output.dims)


def grouped_sides(problem: Problem) -> tuple[int, int]:
    """Return the elements along M and N of the product that share a computed scale of the result; 1 without any."""
    sizes = [scale.groups[-1] for scale in problem.scales if scale.is_dynamic]
    if not sizes:
        return 1, 1
    result = views.products(problem, 1, views.must_reorder(problem))[0].result
    *_, last = _coordinates_and_masks(problem, result)[0]
    is_along_n = 0 in axes_of(result, last)
    return (1, sizes[0]) if is_along_n else (sizes[0], 1)


def _computed(problem: Problem, product: Product, scale: problem_scales.Scale) -> Iterator[Step]:
    """Yield the step that computes the scales of the result; elements past its edge are zeros before that."""
    result, to = product.result, product.result.memory.elem
    (*before, last), masks = _coordinates_and_masks(problem, result)
    *outer, size = problem.size("dst")
    group = scale.groups[-1]
    if size % group:
        whole = evolve(last, size=size + -size % group)
        yield ZeroPadding(evolve(result, index=(*before, whole)), (*outer, size))
    kind = MxScale if scale.dtype == "e8m0" else FpScale
    # Rows of other groups have their own scales.
    scales = views.zero_outside(views.view_over_result(problem, product, scale.name), masks)
    yield kind(scales, result, last, group, to)


def _coordinates_and_masks(problem: Problem, result: View) -> tuple[Index, Index]:
    """Return the coordinates of the dims of a result's tensor, and the masks that stand behind them."""
    rank = len(problem.outputs[0].dims)
    return result.index[:rank], result.index[rank:]


def _scaled(problem: Problem, product: Product, *roles: str) -> Iterator[Scale]:
    """Yield at most one step for the scales of some tensors."""
    chosen = [scale for scale in problem.scales if scale.role in roles and not _multiplies_a_factor(problem, scale)]
    if chosen:
        tensors = [views.view_over_result(problem, product, s.name, s.role) for s in chosen if s.value is None]
        numbers = tuple(s.number for s in chosen if s.number is not None)
        yield Scale(numbers, tuple(tensors), divides="dst" in roles)


def _multiplies_a_factor(problem: Problem, scale: problem_scales.Scale) -> bool:
    """Whether the scale multiplies a factor before products are summed."""
    return isinstance(problem, Matmul) and scale in problem.dequantising_scales.values()


def _shifted(problem: Problem, product: Product, point: ZeroPoint) -> Step:
    """Return the step that adds the zero point of the result."""
    if point.value is None:
        return Bias(views.view_over_result(problem, product, point.name))
    return Eltwise(post_ops.Eltwise("linear", 1, point.value))


def _gate_of(product: Product) -> tuple[int, int]:
    """Return the axis of the result along which gate and up differ, and the distance between them along it."""
    for axis, dims in enumerate(product.result.axes[:2]):
        names = [d.name for d in dims]
        if GATE in names:
            return axis, prod(d.padded for d in dims[names.index(GATE) + 1 :])
    raise AssertionError(f"no gate in {product.result.axes}")


def _post_op(problem: Problem, product: Product, op: post_ops.PostOp, number: int) -> Step:
    assert not isinstance(op, post_ops.Depthwise)  # the members of a fused convolution have none
    if isinstance(op, post_ops.Sum):
        return Sum(op, product.stored)
    if isinstance(op, post_ops.Eltwise):
        return Eltwise(op)
    if isinstance(op, post_ops.Glu):
        return Gated(op, *_gate_of(product))
    own = [views.view_over_result(problem, product, post_ops.operand_name(number, ending)) for ending in op.operands]
    return Prelu(*own) if isinstance(op, post_ops.Prelu) else Binary(op.name, *own)
