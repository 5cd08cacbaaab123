"""Factors that become floats on their way: (q - zero point) * scale, which differ along what is summed.

Both are views with the axes of the factor, of which K and N go in groups that share one. What comes of it is rounded
to the type in which the product multiplies: that of `--attr-fpmath`, the source's, or f32, the first that holds both.
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
from convgen.ir.types import Type, VectorType, bf16, f16, f32, scalar, vector
from convgen.plan import views
from convgen.plan.blocks import Cuts
from convgen.problem.matmul import Matmul, Problem
from convgen.problem.scales import Scale
from convgen.problem.tensors import TensorSpec
from convgen.problem.zero_points import ZeroPoint

_AT_A_TIME = 8  #: elements of a lane; what is held of them in between is not much


@frozen
class Shared:
    """A tensor of which `spans` neighbours along rows and K share an element: all, or a power of two."""

    view: View
    spans: tuple[int, int]


@frozen
class Dequantisation:
    """What becomes of a factor: `zero` is taken off, then they are multiplied by `scale`."""

    zero: Shared | int
    scale: Shared | None

    @property
    def shared(self) -> tuple[Shared, ...]:
        """The tensors, in order."""
        return tuple(each for each in (self.zero, self.scale) if isinstance(each, Shared))


def multiplied_type(problem: Problem, role: str) -> Type | None:
    """The type that src or weights become; None where they are multiplied as they are."""
    if not isinstance(problem, Matmul) or not problem.dequantises or not _is_made(problem, role):
        return None
    given = [scalar(t.dtype) for t in problem.factors]
    allowed = [t for t in (f16, bf16) if t.name == problem.fpmath]
    wide = (*allowed, *(t for t in given[:1] if t in (f16, bf16)), f32)
    return next(t for t in wide if all(map(t.holds, given)))


def _is_made(problem: Matmul, role: str) -> bool:
    """Whether anything is taken off a factor, or it is multiplied by anything, on its way."""
    return problem.zero_point(role) is not None or role in problem.scales_on_the_way


def check(problem: Problem) -> None:
    """Refuse groups that end within others along one axis, and dequantised factors where sizes are not known."""
    if not isinstance(problem, Matmul):
        return
    if problem.runtime and (problem.dequantises or any(problem.groups.values())):
        given = f"{problem.given_sizes} and {'factors that are dequantised' if problem.dequantises else 'groups'}"
        raise Unsupported(f"{given}, wanted numbers", rule="runtime-sizes")
    for axis, sizes in problem.groups.items():
        if any(larger % size for size, larger in pairwise(sizes)):
            given = f"given groups of {' and '.join(map(str, sizes))} along {axis}"
            raise Unsupported(f"{given}, wanted sizes that divide one another", rule="scales-groups")


def of(problem: Problem, operand: View, cuts: Cuts, tile: tuple[int, int]) -> Dequantisation | None:
    """How a factor is dequantised, of which a workgroup takes so many rows, and so many along K."""
    role = next(r for r in ("src", "wei", "") if operand.memory.name.startswith(r))
    if multiplied_type(problem, role) is None:
        return None
    assert isinstance(problem, Matmul)
    point, scale = problem.zero_point(role), problem.scales_on_the_way.get(role)
    zero: Shared | int = 0 if point is None or point.value is None else point.value
    if point is not None and not point.is_known:
        zero = _shared(problem, views.bytes_of(problem, point.name), point, operand, cuts, tile)
    scales = _shared(problem, problem.tensor(scale.name), scale, operand, cuts, tile) if scale else None
    return Dequantisation(zero, scales)


def _shared(
    problem: Matmul, spec: TensorSpec, attribute: Scale | ZeroPoint, operand: View, cuts: Cuts, tile: tuple[int, int]
) -> Shared:
    rows_first = slice(None) if attribute.role == "src" else slice(None, None, -1)
    sizes, spans = problem.size(attribute.role)[-2:][rows_first], problem.spans(attribute)[-2:][rows_first]
    return Shared(views.beside(problem, spec, attribute, operand, cuts), spans_of(sizes, spans, tile))


def spans_of(sizes: Sequence[int], spans: Sequence[int], tile: Sequence[int]) -> tuple[int, int]:
    """Return how many neighbours along rows and K of a tile share an element: all, or a power of two.

    `spans` of them share one along axes of `sizes`; tiles begin at multiples of their sides. Behind the end of K none
    has the element of those before it.
    """
    rows, depth = (
        most if span >= size else _power_of_two(gcd(span, most))
        for size, span, most in zip(sizes, spans, tile, strict=True)
    )
    ends_within = spans[1] < sizes[1] and sizes[1] % spans[1]
    return rows, _power_of_two(gcd(depth, sizes[1])) if ends_within else depth


def _power_of_two(number: int) -> int:
    return number & -number


def load(k: KernelBuilder, what: Shared, at: tuple[Index, ...], layout: Fragment) -> Expr:
    """What neighbours share, of a tile at coordinates: each lane loads an element once."""
    few = few_of(layout, what.spans)
    name = what.view.memory.name
    return k.load_view(f"{name}_part", what.view, at, few, "fragment", name)


def held_type(what: Shared, layout: Fragment) -> VectorType:
    """Of what `load` gives."""
    return vector(what.view.memory.elem, few_of(layout, what.spans).registers)


def applied(k: KernelBuilder, how: Dequantisation, held: Mapping[Shared, Expr], value: Expr, layout: Fragment) -> Expr:
    """A fragment as floats; rounded once where zero point and product are exact in f32."""
    elem, each = value.type.elem, gcd(_AT_A_TIME, layout.registers)
    exact = how.scale is None or how.scale.view.memory.elem is elem
    wide = elem if exact else f32
    zeros = _spread(k, how.zero, elem, held, layout) if isinstance(how.zero, Shared) else None
    scales = _spread(k, how.scale, wide, held, layout) if how.scale else None
    parts = []
    for start in range(0, layout.registers, each):
        part: Expr = Slice(value, start, each)
        if zeros is not None:
            part = part - zeros(start)
        elif isinstance(how.zero, int) and how.zero:
            part = part - float(how.zero)
        if scales is not None:
            part = (part.to(vector(wide, each)) * scales(start)).to(part.type)
        parts.append(k.let("dequantised", part))
    return Pack(value.type, tuple(parts))


def _spread(
    k: KernelBuilder, what: Shared, to: Type, held: Mapping[Shared, Expr], layout: Fragment
) -> Callable[[int], Expr]:
    """For a few registers from one on what they share, as another type."""
    order, each = order_of(layout, what.spans), gcd(_AT_A_TIME, layout.registers)
    few = k.let(f"{what.view.memory.name}_{to}", held[what].to(vector(to, held[what].type.lanes)))
    return lambda start: Shuffle(few, order[start : start + each])


def few_of(layout: Fragment, spans: tuple[int, int]) -> Fragment:
    """The layout without the registers of what neighbours share: they are at the first of these."""
    digits = (evolve(d, space=Space.FIXED, stride=0) if shared else d for d, _, shared in _told(layout, spans))
    return Fragment(layout.dims, tuple(digits)).renumbered(Space.REGISTER)


def _told(layout: Fragment, spans: tuple[int, int]) -> Iterator[tuple[Digit, int, bool]]:
    """The digits, registers' of prime sizes, each with its step and whether all its positions share one element.

    They do if runs of so many positions, of which tiles and subgroups have whole numbers, divide what is shared.
    """
    of = dict(zip(layout.dims, spans))
    for step, d in layout.factored(Space.REGISTER).stepped():
        yield d, step, d.space == Space.REGISTER and of[d.dim] % (step * d.size) == 0


def order_of(layout: Fragment, spans: tuple[int, int]) -> tuple[int, ...]:
    """For each register of a layout that of what it shares."""
    own = [(d, step) for d, step, shared in _told(layout, spans) if d.space == Space.REGISTER and not shared]

    def place(coords: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple(int(coords[d.dim]) // step % d.size for d, step in own)

    return layout.shared_order(few_of(layout, spans), place)
