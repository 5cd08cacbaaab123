"""Checks for problems that convgen does not generate: each refusal is one line, with the name of a rule."""

from __future__ import annotations

from collections.abc import Collection
from itertools import product as combinations
from math import prod
from typing import Any

from convgen.choose.choose import candidates
from convgen.choose.search import first_fitting
from convgen.ir.error import Unsupported
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.mapping import MOST_ALONG_Y_OR_Z
from convgen.ir.layout.memory import MOST_BYTES, View
from convgen.ir.record import evolve
from convgen.ir.types import SCALARS, has_zero, s8, scalar, u8
from convgen.passes.messages.packed_views import bytes_of, check_whole_bytes
from convgen.plan import dequantise, directions, epilogues, views
from convgen.plan.atoms import input_atoms, signed
from convgen.plan.grouped_axis import MOST_OF_LANE
from convgen.plan.padding import names_in, unsafe_halo
from convgen.plan.plan import MOST_GROUPS
from convgen.problem import fused_conv
from convgen.problem.conv import Conv, Direction
from convgen.problem.fused_conv import FusedConv
from convgen.problem.grammar import DATA_TYPES, LIMIT, is_strides
from convgen.problem.matmul import Matmul, Problem, grouping_of
from convgen.problem.post_ops import Sum
from convgen.problem.routing import Gather
from convgen.problem.tensors import refuse_others


def check_supported(problem: Problem, facts: TargetFacts) -> None:
    """Raise Unsupported, in one line with the name of a rule, for problems that convgen does not generate."""
    refuse_others(problem)
    if isinstance(problem, FusedConv):
        fused_conv.check(problem)
        for member in problem.members:
            check_supported(member.problem, facts)
        return
    _check_known(problem)
    problem = _with_outputs(problem)
    if isinstance(problem, Matmul) and not problem.k:
        raise Unsupported("given K of 0, wanted at least 1: sums of nothing are not generated yet", rule="zero-k")
    _check_gaps(problem)
    _check_sizes(problem)
    epilogues.check(problem)
    _check_nibbles(problem)
    dequantise.check(problem)
    _check_types(problem, facts)
    _check_zeros(problem)
    _check_runtime(problem)
    _check_groups(problem, facts)
    views.must_reorder(problem)  # raises where no kernel can write the result
    if views.stores_rest(problem) and not views.covers_result(problem):
        views.untouched(problem)  # raises where no kernel can write the rest of it
    _check_grid(problem, facts)


def _check_known(problem: Problem) -> None:
    """Refuse types that convgen does not know, such as f4_e3m0."""
    for spec in (*problem.factors, *problem.outputs[:1]):
        if spec.dtype not in SCALARS:
            known = ", ".join(name for name in DATA_TYPES if name in SCALARS)
            raise Unsupported(f"given {spec.name} of {spec.dtype}, wanted one of {known}", rule="types")


def _check_types(problem: Problem, facts: TargetFacts) -> None:
    """Refuse inputs that no instruction multiplies, even converted, and results to which sums cannot convert."""
    output, outputs = problem.outputs[0], epilogues.results(problem)
    inputs = " and ".join(dict.fromkeys(t.dtype for t in problem.factors))
    given = f"given {inputs} inputs and {output.name} of {output.dtype}"
    sums = dict.fromkeys(atom.acc.name for atom in facts.atoms)
    if problem.acc_type not in sums:
        given = f"{given}, whose sums are {problem.acc_type}"
        raise Unsupported(f"{given}, wanted sums of {' or '.join(sums)} on {facts.name}", rule="types")
    if output.dtype not in outputs or not input_atoms(problem, facts):
        raise Unsupported(
            f"{given}, wanted both inputs one of {_factors(facts)}, or types whose values these hold, and "
            f"{output.name} one of {', '.join(outputs)} on {facts.name}",
            rule="types",
        )


def _check_zeros(problem: Problem) -> None:
    """Refuse factors without a zero where lanes read zeros for padding, or for rows without a number."""
    for spec in (spec for spec in problem.factors if not has_zero(scalar(spec.dtype))):
        given = f"given {spec.name} of {spec.dtype}, which has no zero,"
        if isinstance(problem, Conv):
            raise Unsupported(f"{given} of a convolution, wanted a matrix product, or another type", rule="types")
        if spec.name == "src" and problem.routing and problem.routing.gather:
            raise Unsupported(f"{given} by {problem.routing.gather}, wanted another type", rule="routing")


def _with_outputs(problem: Problem) -> Problem:
    """Return a problem with outputs that is supported exactly where the empty one is: sizes of 0 become 2.

    Strides of a tensor without elements are ignored.
    """
    if not problem.is_empty:
        return problem
    layouts = {"stag": problem.src_layout, "wtag": problem.wei_layout, "dtag": problem.dst_layout}
    changes: dict[str, Any] = {
        tag: "any" for tag, layout in layouts.items() if is_strides(getattr(problem, tag)) and not layout.size_elems
    }
    for name in ("mb",) if isinstance(problem, Conv) else ("m", "k", "n"):
        changes[name] = getattr(problem, name) or _NONEMPTY
    for name in () if isinstance(problem, Conv) else ("src_batch", "wei_batch"):
        changes[name] = tuple(size or _NONEMPTY for size in getattr(problem, name))
    return evolve(problem, **changes)


_NONEMPTY = 2  #: an even number, for 4-bit elements in pairs


def _check_nibbles(problem: Problem) -> None:
    """Refuse 4-bit elements that are not stored in pairs."""
    for point in problem.zero_points:
        if views.is_widened(problem, point.name):
            if problem.runtime:
                given = f"{problem.given_sizes} and {point.name} of {point.dtype}"
                raise Unsupported(f"{given}, wanted known sizes, or zero points in bytes", rule="runtime-sizes")
            check_whole_bytes(views.widening(problem, point.name)[0])
    if scalar(problem.outputs[0].dtype).bits == 4:
        for part in views.products(problem, 1):
            check_whole_bytes(part.result)
            _check_neighbours(part.result, (0, 1), "within one matrix")
    _check_six_bits(problem)
    if not any(SCALARS[t.dtype].bits == 4 for t in problem.factors if t.dtype in SCALARS):
        return
    for part in views.products(problem, 1):
        windows = names_in(unsafe_halo((part.of_n, part.of_m)))
        for view in (part.of_m, part.of_n):
            check_whole_bytes(view)
            _check_neighbours(view, (0, 1), "within one matrix")
            if windows:  # exact padding recomputes sums from fragments, in which lanes have neighbours along K
                _check_neighbours(view, (1,), "along channels that are summed", windows)
    if (gradient := views.bias_gradient(problem)) is not None:
        _check_neighbours(gradient, (0,), "along channels, whose sums are the gradient of a bias")


def _check_six_bits(problem: Problem) -> None:
    """Refuse 6-bit floats that no launch unpacks: factors of convolutions, of unknown sizes, or without whole bytes."""
    for name in views.by_bytes(problem):
        given = f"given {name} of {problem.tensor(name).dtype}"
        if isinstance(problem, Conv):
            raise Unsupported(f"{given} of a convolution, wanted a matrix product, or floats of 8 bits", rule="types")
        if problem.runtime:
            given = f"{problem.given_sizes} and {name} of {problem.tensor(name).dtype}"
            raise Unsupported(f"{given}, wanted known sizes, or floats of 8 bits", rule="runtime-sizes")
        check_whole_bytes(views.reordering(problem, name)[0])


def _check_neighbours(view: View, axes: Collection[int], where: str, but: Collection[str] = ()) -> None:
    """Refuse 4-bit elements whose pairs lie outside `axes` or along dims `but`: lanes would load half a pair."""
    pair = bytes_of(view) if view.memory.elem.bits == 4 else None
    if pair and (pair[1] not in axes or view.axes[pair[1]][-1].name in but):
        given = f"given {view.memory.name} of {view.memory.elem}"
        raise Unsupported(f"{given}, wanted neighbours in memory {where}", rule="nibbles")


def _check_sizes(problem: Problem) -> None:
    """Refuse sizes beyond 32-bit indices, and problems that need too many kernels."""
    sizes = {}
    if isinstance(problem, Conv):
        sizes = {"mb": problem.mb, "ic": problem.ic, "oc": problem.oc}
        axes = list(zip("dhw", problem.axes))
        sizes |= {f"{name}{axis}": getattr(a, name) for axis, a in axes for name in "iokspd"}
        _check_phases(problem)
    sizes |= dict(zip(("M", "N", "K"), _sizes_of_product(problem)))
    sizes["products"] = count = directions.product_count(problem)
    if problem.runtime and count > MOST_ALONG_Y_OR_Z:
        given = f"{problem.given_sizes} and {count} products"
        most = f"at most {MOST_ALONG_Y_OR_Z} products"
        raise Unsupported(f"{given}, wanted sizes that are known, or {most}", rule="size")
    for name, size in sizes.items():
        if size >= LIMIT - _LARGEST_TILE:
            given = f"given {name} of {size}, wanted less than 2^31 - {_LARGEST_TILE}"
            raise Unsupported(f"{given}: larger sizes are not generated", rule="size")
    for spec in problem.tensors:
        size = SCALARS[spec.dtype].size(spec.layout.size_elems) if spec.dtype in SCALARS else 0
        if size > MOST_BYTES:
            raise Unsupported(f"given {spec.name} of {size} bytes, wanted at most {MOST_BYTES}", rule="size")


def _check_grid(problem: Problem, facts: TargetFacts) -> None:
    """Refuse results so large that no tile makes few enough workgroups for a launch."""
    count = directions.product_count(problem)
    rows, columns = _sides_of_one_product(problem, count)
    if count * -(-rows // _SIDE) * -(-columns // _SIDE) * _SIDE**2 < _MANY_LANES:
        return
    if first_fitting(problem, candidates(problem, facts), facts) is None:
        given = f"given {f'{count} products' if count > 1 else 'a product'} of {rows} x {columns} elements"
        launch = f"{facts.grid_items} work-items" if facts.grid_items else f"{MOST_GROUPS} workgroups"
        raise Unsupported(f"{given}, wanted no more than tiles cover in a launch of {launch}", rule="size")


def _check_gaps(problem: Problem) -> None:
    """Refuse layouts with gaps or blocks where sizes are known only at launch: strides do not follow from the sizes."""
    gaps = [t for t in problem.tensors if not t.layout.is_dense]
    if problem.runtime and gaps:
        given = f"{problem.given_sizes} and the layout {gaps[0].layout.tag}"
        raise Unsupported(f"{given}, wanted {gaps[0].name} without blocks or gaps", rule="runtime-sizes")


def _check_runtime(problem: Problem) -> None:
    """Refuse launch-time sizes where a kernel beside the product's would need them."""
    if not problem.runtime:
        return
    given = problem.given_sizes
    parts = views.products(problem, 1)
    axes = [axis for part in parts for view in (part.of_m, part.result) for axis in view.axes]
    inner = [d.name for axis in axes for d in axis[1:] if d.exact is not None]
    if isinstance(problem, Matmul):
        if inner:
            raise Unsupported(f"{given}, wanted {inner[0]} known, or outermost of the batch", rule="runtime-sizes")
    elif inner or problem.direction is Direction.BWD_WB or not views.covers_result(problem):
        wanted = "images outermost in memory, one product, and no gradient of a bias"
        raise Unsupported(f"{given} in {problem.direction.value}, wanted {wanted}", rule="runtime-sizes")


def _check_groups(problem: Problem, facts: TargetFacts) -> None:
    """Refuse groups that no kernel finds, and those of terms whose sums a launch before the product would add."""
    grouping = grouping_of(problem)
    if grouping is None:
        return
    if problem.runtime:
        raise Unsupported(f"{problem.given_sizes} and groups, wanted sizes that are known", rule="runtime-sizes")
    _check_routing(problem, facts)
    most = MOST_OF_LANE * facts.subgroup_size
    if grouping.dim == "m" and grouping.count > most:
        given = f"given {grouping.count} groups of rows, wanted at most {most} on {facts.name}"
        raise Unsupported(given, rule="grouped-gemm")
    types = views.factor_types(problem)
    has_points = any(problem.zero_point(role) for role in ("src", "wei"))
    if grouping.dim == "k" and problem.acc_type == "s32" and (has_points or signed(types, facts) != types):
        given = f"given groups along k of {' and '.join(t.dtype for t in problem.factors)}"
        wanted = f"wanted factors without zero points, of types that {facts.name} multiplies as they are"
        raise Unsupported(f"{given}, {wanted}", rule="grouped-gemm")


def _check_routing(problem: Problem, facts: TargetFacts) -> None:
    """Refuse rows by number of tensors whose elements no message of a lane moves, or that a launch before sums."""
    if not isinstance(problem, Matmul) or problem.routing is None:
        return
    routing = problem.routing
    for name, part in (("src", routing.gather), ("dst", routing.scatter)):
        spec = problem.tensor(name)
        if part and part.slots >= LIMIT:
            raise Unsupported(f"given {part}, wanted fewer than 2^31 slots, whose numbers are s32", rule="size")
        if part and (not spec.layout.is_plain or SCALARS[spec.dtype].bits < 8):
            given = f"given {name} of {spec.dtype} with tag {spec.layout.tag} by {part}"
            raise Unsupported(f"{given}, wanted elements of a byte or more in a plain layout", rule="routing")
    if routing.gather:
        _check_gather(problem, routing.gather, facts)
    if routing.scatter and any(scale.is_dynamic for scale in problem.scales):
        raise Unsupported(f"given {routing.scatter} and computed scales, wanted other scales", rule="routing")
    reads_dst = any(isinstance(op, Sum) for op in problem.post_ops)
    if routing.sums_slots and (reads_dst or any(each.role == "dst" for each in problem.attributes)):
        given = f"given {routing.scatter}, which sums rows, and a scale, a zero point or a sum of dst"
        raise Unsupported(f"{given}, wanted none, or one slot of a token", rule="routing")
    for memory in views.numbered_memories(problem):
        if memory.bytes > facts.surface_max:
            given = f"given {memory.name} of {memory.bytes} bytes, whose rows have numbers"
            raise Unsupported(f"{given}, wanted at most {facts.surface_max}", rule="size")


def _check_gather(problem: Matmul, gather: Gather, facts: TargetFacts) -> None:
    """Refuse gathered rows of src that another launch sums, or whose scales differ along K."""
    point = problem.zero_point("src") or (None if problem.dequantises else problem.zero_point("wei"))
    if point:
        given = f"given {gather} and a zero point of {point.role}, for which rows of src are summed"
        raise Unsupported(f"{given}, wanted no zero points", rule="routing")
    types = views.factor_types(problem)
    if (problem.acc_type, problem.wei_type) == ("s32", "u8") and signed(types, facts) != types:
        given = f"given {gather} and weights of u8, which {facts.name} multiplies as s8 beside sums of src"
        raise Unsupported(f"{given}, wanted weights of s8", rule="routing")
    scales = [scale for scale in problem.scales if scale.role == "src" and not scale.is_known]
    if "src" in problem.dequantising_scales or any(scale.groups for scale in scales):
        given = f"given {gather} and scales of src in groups or along K"
        raise Unsupported(f"{given}, wanted a scale for each row at most", rule="routing")


def _check_phases(problem: Conv) -> None:
    """Refuse strides with too many phases, each of which is a kernel."""
    count = directions.phase_count(problem)
    if problem.convolution.direction is Direction.BWD_D and count > _MOST_PHASES:
        given = "".join(f"s{axis}{a.s}" for axis, a in zip("dhw", problem.axes) if a.s > 1)
        given = f"given {given} in {problem.direction.value}, which makes {count} stride phases"
        raise Unsupported(f"{given}, wanted at most {_MOST_PHASES}: each is a kernel", rule="stride-phases")


_LARGEST_TILE = 2**12  #: along M, N or K: padding adds at most as much
_MANY_LANES = 2**31  #: work-items along x; the grids of launches with fewer, estimated from `_SIDE`, are not checked
_SIDE = 256  #: side of the largest tiles, to which rows and columns are rounded up
_MOST_PHASES = 2**8  #: phases of backward data: as many as strides of 16 x 16 have


def _sides_of_one_product(problem: Problem, count: int) -> tuple[int, int]:
    """Return the rows and columns of one of `count` products; groups have their own channels."""
    rows, columns, _ = _sizes_of_product(problem)
    if isinstance(problem, Matmul):
        return rows, columns
    has_own_rows = problem.direction in (Direction.BWD_W, Direction.BWD_WB)  # output channels
    return rows // (count if has_own_rows else 1), columns // count


def _sizes_of_product(problem: Problem) -> tuple[int, int, int]:
    """Return M, N and K of the product; for backward data, of all phases together."""
    if isinstance(problem, Matmul):
        return problem.m, problem.n, problem.k
    own = problem.convolution
    outputs, inputs = (own.mb * prod(getattr(a, name) for a in own.axes) for name in "oi")
    taps = prod(a.k for a in own.axes)
    if own.direction.is_forward:
        return outputs, own.oc, taps * own.ic
    if own.direction is Direction.BWD_D:
        return inputs, own.ic, taps * own.oc
    return own.oc, taps * own.ic, outputs


def _factors(facts: TargetFacts) -> str:
    """Return the types that the target multiplies, as text: each with itself, and mixed pairs."""
    types = {(atom.a_elem, atom.b_elem) for atom in facts.atoms}
    types |= {pair for pair in combinations((s8, u8), (s8, u8)) if signed(pair, facts) in types}
    pairs = {tuple(sorted((a.name, b.name))) for a, b in types}
    mixed = [f"{a} with {b}" for a, b in sorted(pairs) if a != b]
    return ", ".join([a for a, b in sorted(pairs) if a == b] + mixed)
