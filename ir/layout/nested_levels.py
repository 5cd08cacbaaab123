"""The levels of a NestedLayout, recovered from digits: of a fragment, or of a layout in other dimensions."""

from __future__ import annotations

from convgen.ir.error import UserError
from convgen.ir.layout.digits import Digit, Digits, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.record import evolve

LEVELS = ("element", "thread", "outer", "batch", "subgroup")  #: innermost first
REGISTER_LEVELS = ("element", "outer", "batch")  #: levels in a thread's registers, fastest first
STRIDED_LEVELS = ("subgroup", "thread")  #: levels that a thread's number determines, by strides


def levels_of(fragment: Fragment, subgroup_size: int) -> Digits:
    """Return the fragment's digits with levels as their spaces.

    Subgroup digits inside register or lane digits become threads, whose numbers continue. Register digits inside
    threads become elements; the others get the level that keeps their order (elements, then outers, then batches, each
    with the last dimension first), or become outers if no level does. Raises UserError if a digit is fixed.
    """
    fixed = [d for d in fragment.digits if d.space == Space.FIXED]
    if fixed:
        raise UserError(f"given the fragment {fragment}, wanted a whole tile, not the part {fixed[0]} of one")
    merged = fragment.merged(Space.REGISTER, Space.LANE, Space.SUBGROUP)
    own = {dim: merged.of(dim) for dim in fragment.dims}
    digits = [_shared(d, d is own[dim][-1], subgroup_size) for dim in fragment.dims for d in own[dim]]
    sides = [_side(n, digits) for n in range(len(digits))]
    levels = _in_order(fragment.dims, digits, sides) or ["element" if side == "below" else "outer" for side in sides]
    return Digits(
        fragment.dims,
        tuple(evolve(d, space=levels[n]) if d.space == Space.REGISTER else d for n, d in enumerate(digits)),
    )


def _shared(d: Digit, outermost: bool, subgroup_size: int) -> Digit:
    """Return a lane or subgroup digit with its level as space; other digits unchanged."""
    if d.space == Space.LANE:
        return evolve(d, space="thread")
    if d.space == Space.SUBGROUP and outermost:
        return evolve(d, space="subgroup")
    if d.space == Space.SUBGROUP:
        return evolve(d, space="thread", stride=d.stride * subgroup_size)
    return d


def _side(n: int, digits: list[Digit]) -> str:
    """Return whether a digit is "below" or "above" the threads of its dimension; "" if there are none."""
    threads = [m for m, d in enumerate(digits) if d.dim == digits[n].dim and d.space == "thread"]
    return "" if not threads else "below" if n < threads[0] else "above"


def _in_order(dims: tuple[str, ...], digits: list[Digit], sides: list[str]) -> dict[int, str] | None:
    """Return the level of each register digit, by its number, if levels can express the registers' order; else None."""
    levels: dict[int, str] = {}
    level, before = 0, len(dims)
    registers = [n for n, d in enumerate(digits) if d.space == Space.REGISTER]
    for n in sorted(registers, key=lambda n: digits[n].stride):
        at = dims.index(digits[n].dim)
        if at >= before:
            level += 1
        if sides[n] == "above":
            level = max(level, 1)
        if level == len(REGISTER_LEVELS) or (sides[n] == "below" and level > 0):
            return None
        levels[n], before = REGISTER_LEVELS[level], at
    return levels


def fields_of(digits: Digits, what: str) -> dict[str, list[int]]:
    """Return the tiles and strides of the layout with these digits, whose spaces are levels.

    Adjacent digits of one level merge. Raises UserError, which begins with `what`, unless the levels of each dimension
    go up.
    """
    fields: dict[str, list[int]] = {f"{level}_tile": [] for level in LEVELS}
    fields |= {f"{level}_strides": [] for level in STRIDED_LEVELS}
    for n, dim in enumerate(digits.dims):
        own = [d for d in digits.of(dim) if d.size > 1]
        one: dict[str, Digit] = {}
        last = 0
        for d in own:
            before, level = one.get(d.space), LEVELS.index(d.space)
            goes_on = before is None or d.space in REGISTER_LEVELS or before.stride * before.size == d.stride
            if level < last or not goes_on:
                run = ", ".join(f"{d.space} {d.size}" + f" at {d.stride}" * (d.space in STRIDED_LEVELS) for d in own)
                raise UserError(f"{what}: wanted {', '.join(LEVELS)} from the inside out, at dim {n}, which has {run}")
            one[d.space] = d if before is None else evolve(before, size=before.size * d.size)
            last = level
        for level_name in LEVELS:
            fields[f"{level_name}_tile"].append(one[level_name].size if level_name in one else 1)
        for level_name in STRIDED_LEVELS:
            fields[f"{level_name}_strides"].append(one[level_name].stride if level_name in one else 0)
    return fields
