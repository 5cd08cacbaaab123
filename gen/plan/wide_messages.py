"""Wide messages: lanes exchange elements, so that each loads or stores longer runs of memory.

A matrix instruction leaves a lane two neighbours of the result, and takes two of a factor. Further instructions
lengthen this run only if their columns are neighbours (`MmaTile.run`), and reads of fragments may need another order.
So a digit of the lane number is swapped with a digit of the register number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convgen.backends.tuning import tuning
from convgen.ir.build import Coordinate, Index, KernelBuilder
from convgen.ir.error import DoesNotFit
from convgen.ir.expr import Expr, Pack, Shuffle, Slice
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, View
from convgen.ir.record import evolve
from convgen.ir.types import u8, u32, vector
from convgen.passes.messages.linear import linearize
from convgen.passes.messages.packed_views import bytes_of, fragment_of_bytes

_MOST_AT_A_TIME = 16  #: elements of a lane that are exchanged at a time


def store_wide(
    k: KernelBuilder,
    facts: TargetFacts,
    view: View,
    at: Sequence[Coordinate],
    value: Expr,
    layout: Fragment,
    stage: str = "",
    comment: str = "",
) -> None:
    """Store a block: at once or, where lanes exchange elements for wider stores, part by part."""
    parts = _parts_with_longer_runs(layout, view, facts)
    if not parts:
        k.store_view(view, at, value, layout, stage, comment)
        return
    whole = k.let("result", value)
    for n, (part, wide) in enumerate(parts):
        elements = Slice(whole, n * part.registers, part.registers)
        k.store_view(view, at, k.redistribute("wide", elements, part, wide, stage), wide, stage, comment)


def store_pairs(
    k: KernelBuilder,
    view: View,
    at: Sequence[Index],
    codes: Expr,
    layout: Fragment,
    stage: str = "",
    comment: str = "",
) -> None:
    """Store a block of 4-bit elements, given as codes in words; lanes exchange them where they have no pairs.

    Raises DoesNotFit where no exchange gives lanes pairs.
    """
    pairs, axis = _pairs(view)
    wide = with_pairs(layout, view)
    if wide is not layout:
        as_bytes = vector(u8, layout.registers)
        codes = k.redistribute("in_pairs", k.let("codes", codes.to(as_bytes)), layout, wide, stage)
        codes = codes.to(vector(u32, layout.registers))
    codes = k.let("codes", codes)
    first, second = (Shuffle(codes, tuple(range(n, layout.registers, 2))) for n in range(2))
    joined = (first | second << 4).to(vector(u8, layout.registers // 2))
    halved = tuple(place // 2 if n == axis else place for n, place in enumerate(at))
    k.store_view(pairs, halved, joined, fragment_of_bytes(wide, wide.dims[axis], view.memory.elem), stage, comment)


def with_pairs(layout: Fragment, view: View) -> Fragment:
    """Return `layout` with the two elements of each byte in neighbouring registers; DoesNotFit where that is none."""
    _, axis = _pairs(view)
    dim = layout.dims[axis]
    if layout.contiguous(dim) % 2 == 0:
        return layout
    wide = _with_runs(layout.factored(Space.REGISTER).factored(Space.LANE), dim, 2)
    if wide is None:
        raise DoesNotFit(f"no pairs of neighbours of {view.memory.name} in the registers of a subgroup")
    return wide


def buffer_of(view: View) -> Global:
    """Return the buffer in which a result is stored: of bytes, where two elements share one."""
    return _pairs(view)[0].memory if view.memory.elem.bits == 4 else view.memory


def _pairs(view: View) -> tuple[View, int]:
    pairs = bytes_of(view)
    assert pairs is not None
    return pairs


def load_wide(
    k: KernelBuilder,
    facts: TargetFacts,
    name: str,
    view: View,
    at: Sequence[Index],
    layout: Fragment,
    stage: str = "",
    comment: str = "",
) -> Expr:
    """Return a block loaded in a layout: at once or, where lanes exchange elements of wider loads, part by part.

    All parts are loaded before lanes exchange the first one, so that they wait for memory once.
    """
    parts = _parts_with_longer_runs(layout, view, facts)
    if not parts:
        return k.load_view(name, view, at, layout, stage, comment)
    loaded = [k.load_view(name, view, at, wide, stage, comment) for _, wide in parts]
    exchanged = [k.redistribute(name, value, wide, part, stage) for value, (part, wide) in zip(loaded, parts)]
    return k.let(name, Pack(vector(view.memory.elem, layout.registers), tuple(exchanged)))


def _parts_with_longer_runs(layout: Fragment, view: View, facts: TargetFacts) -> list[tuple[Fragment, Fragment]]:
    """Return the parts of a layout, each with the one that has longer runs; none where exchanges gain nothing."""
    parts = [(part, with_longer_runs(part, view, facts)) for part in layout.parts(_MOST_AT_A_TIME)]
    part, wide = parts[0]  # parts are alike
    return [] if wide is part else parts


def with_longer_runs(layout: Fragment, view: View, facts: TargetFacts) -> Fragment:
    """Return `layout` with longer runs of memory in each lane, or `layout` itself if exchanges gain nothing."""
    run = tuning(facts).exchanged_message // view.memory.elem.bytes
    if not run:
        return layout
    linear = linearize(view)
    if linear.unit_axis is None or linear.unit_axis >= len(layout.dims):
        return layout
    dim = layout.dims[linear.unit_axis]
    fine = layout.factored(Space.REGISTER).factored(Space.LANE)
    while run > layout.contiguous(dim):
        if linear.makes_messages(run, facts.message_alignment) and (wide := _with_runs(fine, dim, run)):
            return wide
        run //= 2
    return layout


def _with_runs(fine: Fragment, dim: str, run: int) -> Fragment | None:
    """Return a layout whose lanes hold `run` neighbours along a dim in consecutive registers; None if none is found."""
    digits, inside = list(fine.digits), list(_inside(fine, dim, run))
    in_run = {number for number in inside if digits[number].space == Space.REGISTER}
    for number in inside:
        if number in in_run:
            continue
        partner = _partner(fine, number, in_run)
        if digits[number].space != Space.LANE or partner is None:
            return None
        in_run |= {number, partner}
        digits[number], digits[partner] = _swapped(digits[number], digits[partner])
    place = {digits[number].stride: n for n, number in enumerate(inside)}
    wide = evolve(fine, digits=tuple(digits)).renumbered(
        Space.REGISTER, lambda _, d: (place.get(d.stride, len(place)), d.stride)
    )
    return wide.merged(Space.REGISTER, Space.LANE)


def _inside(fine: Fragment, dim: str, run: int) -> Iterator[int]:
    """Yield the numbers of the digits of `dim` that count positions within a run, innermost first."""
    for number, (step, d) in enumerate(fine.stepped()):
        if d.dim == dim and step < run:
            yield number


def _partner(fine: Fragment, number: int, excluded: set[int]) -> int | None:
    """Return the number of the register digit to swap with: one of the digit's own dim if possible, innermost first."""
    of = fine.digits[number]
    free = (
        (d.dim != of.dim, d.stride, n)
        for n, d in enumerate(fine.digits)
        if d.space == Space.REGISTER and d.size == of.size and n not in excluded
    )
    return min(free, default=(False, 0, None))[2]


def _swapped(a: Digit, b: Digit) -> tuple[Digit, Digit]:
    return evolve(a, space=b.space, stride=b.stride), evolve(b, space=a.space, stride=a.stride)
