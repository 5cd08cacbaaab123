"""Dequantisation of factors on their way to the product: (q - zero point) * scale, which vary along K.

Zero points and scales are views with the axes of the factor; groups along K and N share one element. The result is
rounded to the type of the product: the first of `--attr-fpmath`'s type, the source's type and f32 that holds both
inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import gcd
from typing import Any

from convgen.ir.build import Index, KernelBuilder
from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr, Pack, Shuffle, Slice
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import View
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type, bf16, f16, f32, scalar, vector
from convgen.plan import views
from convgen.plan.blocks import Cuts
from convgen.plan.contraction import REORDERED
from convgen.plan.directions import batched
from convgen.problem.matmul import Matmul, Problem
from convgen.problem.scales import Scale
from convgen.problem.tensors import TensorSpec
from convgen.problem.zero_points import ZeroPoint

_NEAR = 256  #: greatest absolute value of zero points that are stored in more than 8 bits
_AT_A_TIME = 8  #: elements of a lane; dequantised at once, few enough to need few temporary registers


@frozen
class GroupTensor:
    """A tensor of zero points or scales, by the axes of a factor; a group of neighbours shares one element.

    Of `apart` neighbouring rows each belongs to a group of its own, as rows of a gate and of its up alternate.
    """

    view: View
    #: positions over which a group extends along rows and along K: those of a whole tile, or a power of two
    spans: tuple[int, int]
    apart: int


@frozen
class Dequantisation:
    """The dequantisation of a factor: subtract `zero`, then multiply by `scale`."""

    zero: GroupTensor | int
    scale: GroupTensor | None
    is_wide: bool = False  #: whether differences from the zero point need more bits than the result has

    @property
    def tensors(self) -> tuple[GroupTensor, ...]:
        """Return the zero points and scales that are tensors, in the order of use."""
        return tuple(each for each in (self.zero, self.scale) if isinstance(each, GroupTensor))


def multiplied_type(problem: Problem, role: str) -> Type | None:
    """Return the type to which src or weights are dequantised; None where they are multiplied as stored."""
    if not isinstance(problem, Matmul) or not problem.dequantises or not _is_dequantised(problem, role):
        return None
    types = [scalar(t.dtype) for t in problem.factors]
    allowed = [t for t in (f16, bf16) if t.name == problem.fpmath]
    wide = (*allowed, *(t for t in types[:1] if t in (f16, bf16)), f32)
    return next(t for t in wide if all(map(t.holds, types)))


def multiplied_types(problem: Problem) -> tuple[Type, Type]:
    """Return the types in which N's and M's input are multiplied; a dequantised input has its wide type."""
    wide = {role: multiplied_type(problem, role) for role in ("src", "wei")}
    if not any(wide.values()):
        return views.factor_types(problem)
    n, m = (wide.get(view.memory.name.removesuffix(REORDERED)) or view.memory.elem for view in views.factors(problem))
    return n, m


def _is_dequantised(problem: Matmul, role: str) -> bool:
    """Whether a factor has a zero point, or a scale that is applied before the product."""
    return problem.zero_point(role) is not None or role in problem.dequantising_scales


def check(problem: Problem) -> None:
    """Refuse groups that straddle others along an axis, and groups along sizes known only at launch."""
    if not isinstance(problem, Matmul):
        return
    if dims := _launch_time_dims(problem):
        given = f"{problem.given_sizes} and scales or zero points along {dims[0]}"
        raise Unsupported(f"{given}, wanted a size that is known", rule="runtime-sizes")
    for axis, sizes in problem.groups.items():
        if any(larger % size for size, larger in pairwise(sizes)):
            given = f"given groups of {' and '.join(map(str, sizes))} along {axis}"
            raise Unsupported(f"{given}, wanted sizes that divide one another", rule="scales-groups")


def _launch_time_dims(problem: Matmul) -> list[str]:
    """Return the dims of sizes known only at launch along which factors have groups, or K one element a position."""
    dims = []
    for attribute in problem.attributes if problem.runtime else ():
        spans, sizes = problem.spans(attribute), problem.size(attribute.role)
        if problem.dequantises or any(1 < span < size for span, size in zip(spans, sizes)):
            index = batched(problem.tensor(attribute.role), problem.matrix(attribute.role))
            along = ((name, span) for t, span in zip(index, spans) if span < t.size for name, _ in t.terms)
            dims += [name for name, span in along if span > 1 or name == "k"]
    return [name for name in dims if name in problem.runtime]


def of(problem: Problem, factor: View, cuts: Cuts, tile: tuple[int, int]) -> Dequantisation | None:
    """Return the dequantisation of an input, None if there is none; `tile` is (rows, elements along K)."""
    role = next(r for r in ("src", "wei", "") if factor.memory.name.startswith(r))
    elem = multiplied_type(problem, role)
    if elem is None:
        return None
    assert isinstance(problem, Matmul)
    point, scale = problem.zero_point(role), problem.dequantising_scales.get(role)
    zero: GroupTensor | int = 0 if point is None or point.value is None else point.value
    if point is not None and not point.is_known:
        zero = group_tensor(problem, views.in_bytes(problem, point.name), point, factor, cuts, tile)
    scales = group_tensor(problem, problem.tensor(scale.name), scale, factor, cuts, tile) if scale else None
    return Dequantisation(zero, scales, point is not None and not _holds_differences(elem, factor.memory.elem, point))


def _holds_differences(elem: Type, stored: Type, point: ZeroPoint) -> bool:
    """Whether a float type represents each stored number less the zero point.

    Zero points of s32 are taken to lie beside 8-bit integers, in [-256, 256].
    """
    if stored.is_float:
        return False
    of_points = scalar(point.dtype)
    least, most = (-_NEAR, _NEAR) if of_points.bits > 8 else (of_points.min, of_points.max)
    if point.value is not None:
        least = most = point.value
    return elem.holds_integers(max(stored.max - least, most - stored.min))


def group_tensor(
    problem: Matmul, spec: TensorSpec, attribute: Scale | ZeroPoint, factor: View, cuts: Cuts, tile: tuple[int, int]
) -> GroupTensor:
    """Return the elements of an attribute's tensor for a factor's tile of (rows, elements along K)."""
    rows_first = slice(None) if attribute.role == "src" else slice(None, None, -1)
    sizes, spans = problem.size(attribute.role)[-2:][rows_first], problem.spans(attribute)[-2:][rows_first]
    # Columns of a gate and of its up, if they are in halves, are neighbours in a tile (`contraction.in_order`).
    in_halves = attribute.role == "wei" and problem.glu is not None and not problem.glu.alternates
    apart = 2 if in_halves and spans[0] < sizes[0] else 1
    extents = spans_of(sizes, (spans[0] * apart, spans[1]), tile)
    return GroupTensor(views.group_view(problem, spec, attribute, factor, cuts), extents, apart)


def spans_of(sizes: Sequence[int], spans: Sequence[int], tile: Sequence[int]) -> tuple[int, int]:
    """Return (along rows, along K) how many neighbours in a tile share an element: all, or a power of two.

    Along the axes (rows, K) of lengths `sizes`, groups have `spans` positions; tiles begin at multiples of their sides.
    Positions past the end of K must not share an element with positions before it.
    """
    rows, depth = (
        most if span >= size else _power_of_two_in(gcd(span, most))
        for size, span, most in zip(sizes, spans, tile, strict=True)
    )
    ends_within = spans[1] < sizes[1] and sizes[1] % spans[1]
    return rows, _power_of_two_in(gcd(depth, sizes[1])) if ends_within else depth


def _power_of_two_in(number: int) -> int:
    """Return the largest power of two that divides a number."""
    return number & -number


def load(k: KernelBuilder, group: GroupTensor, at: tuple[Index, ...], layout: Fragment) -> Expr:
    """Load the elements of the groups in a tile that begins at `at`; each lane loads an element once."""
    of_groups = layout_of_groups(layout, group.spans, group.apart)
    name = group.view.memory.name
    return k.load_view(f"{name}_part", group.view, at, of_groups, "fragment", name)


def dequantised(
    k: KernelBuilder, dequantisation: Dequantisation, loaded: Mapping[GroupTensor, Expr], value: Expr, layout: Fragment
) -> Expr:
    """Return a dequantised fragment of `value`; `loaded` are the elements of zero points and scales.

    The result is rounded once if subtraction and product are exact in f32.
    """
    elem, count = value.type.elem, gcd(_AT_A_TIME, layout.registers)
    exact = dequantisation.scale is None or dequantisation.scale.view.memory.elem is elem
    differ_in = f32 if dequantisation.is_wide else elem
    wide = differ_in if exact else f32
    zeros = (
        _spread(k, dequantisation.zero, differ_in, loaded, layout)
        if isinstance(dequantisation.zero, GroupTensor)
        else None
    )
    scales = _spread(k, dequantisation.scale, wide, loaded, layout) if dequantisation.scale else None
    parts = []
    for start in range(0, layout.registers, count):
        part: Expr = Slice(value, start, count).to(vector(differ_in, count))
        if zeros is not None:
            part = part - zeros(start)
        elif isinstance(dequantisation.zero, int) and dequantisation.zero:
            part = part - float(dequantisation.zero)
        if scales is not None:
            part = part.to(vector(wide, count)) * scales(start)
        parts.append(k.let("dequantised", part.to(vector(elem, count))))
    return Pack(value.type, tuple(parts))


def _spread(
    k: KernelBuilder, group: GroupTensor, to: Type, loaded: Mapping[GroupTensor, Expr], layout: Fragment
) -> Callable[[int], Expr]:
    """Return a function from a first register to the group elements of the next `count` registers, as the type `to`."""
    order, count = registers_of_groups(layout, group.spans, group.apart), gcd(_AT_A_TIME, layout.registers)
    elements = k.let(f"{group.view.memory.name}_{to}", loaded[group].to(vector(to, loaded[group].type.lanes)))
    return lambda start: Shuffle(elements, order[start : start + count])


def layout_of_groups(layout: Fragment, spans: tuple[int, int], apart: int) -> Fragment:
    """Return the layout of the elements of groups (see `GroupTensor`): one register for registers that share one."""
    marked = _digits_of_groups(layout, spans, apart)
    digits = (evolve(d, space=Space.FIXED, stride=0) if shared else d for d, _, shared in marked)
    return Fragment(layout.dims, tuple(digits)).renumbered(Space.REGISTER)


def _digits_of_groups(layout: Fragment, spans: tuple[int, int], apart: int) -> Iterator[tuple[Digit, int, bool]]:
    """Yield (digit, step, whether all its positions share one element); register digits are split into prime sizes.

    Positions share one if a run of `step * size` of them divides the group; tiles and subgroups begin at whole runs.
    """
    span_of, least = dict(zip(layout.dims, spans)), dict(zip(layout.dims, (apart, 1)))
    for step, d in layout.factored(Space.REGISTER).stepped():
        shares = step >= least[d.dim] and span_of[d.dim] % (step * d.size) == 0
        yield d, step, d.space == Space.REGISTER and shares


def registers_of_groups(layout: Fragment, spans: tuple[int, int], apart: int) -> tuple[int, ...]:
    """Return, for each register of a layout, the register of `layout_of_groups` that has its group's element."""
    distinct = [
        (d, step)
        for d, step, shared in _digits_of_groups(layout, spans, apart)
        if d.space == Space.REGISTER and not shared
    ]

    def place(coords: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple(int(coords[d.dim]) // step % d.size for d, step in distinct)

    return layout.broadcast_order(layout_of_groups(layout, spans, apart), place)
