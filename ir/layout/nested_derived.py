"""NestedLayouts that follow from others: of an operation's result, of a copy; and what a conversion needs."""

from __future__ import annotations

from collections.abc import Sequence

from convgen.ir.error import UserError
from convgen.ir.layout.nested import NestedLayout
from convgen.ir.layout.nested_levels import SHARED
from convgen.ir.record import fields_of


def recombined(
    layouts: Sequence[NestedLayout], maps: Sequence[Sequence[int]], result: Sequence[int]
) -> NestedLayout | None:
    """The layout of an operation's result from those of its operands.

    `maps` say of each operand, and `result` of the result, which dimension of the iteration space each of theirs is.
    None where operands disagree, where no operand has a dimension, or where two dimensions would share threads.
    """
    found: dict[int, NestedLayout] = {}
    for layout, map_ in zip(layouts, maps):
        if len(map_) != layout.rank:
            raise UserError(f"given a map to {list(map_)}, wanted {layout.rank} dimensions as of {layout}")
        for n, dim in enumerate(map_):
            own = layout.apply([n])
            if dim in result and found.setdefault(dim, own) != own:
                return None
    if any(dim not in found for dim in result):
        return None
    try:
        return _side_by_side([found[dim] for dim in result])
    except UserError:
        return None


def _side_by_side(layouts: Sequence[NestedLayout]) -> NestedLayout:
    """The layout with the dimensions of all. UserError where their threads meet."""
    fields = (f.name for f in fields_of(NestedLayout))
    return NestedLayout(**{name: [n for layout in layouts for n in getattr(layout, name)] for name in fields})


def needs_shared_memory(source: NestedLayout, target: NestedLayout) -> bool:
    """Whether elements change threads between two layouts of a vector; else they only change registers."""
    if source.shape != target.shape:
        raise UserError(f"given layouts of {list(source.shape)} and {list(target.shape)}, wanted one shape")
    return source.levels.owners(*SHARED) != target.levels.owners(*SHARED)


def copy_layout(shape: Sequence[int], element_tile: Sequence[int], threads: int) -> NestedLayout:
    """A vector's layout in a copy by `threads` threads, each with an `element_tile` at a time, neighbours side by side.

    From the innermost dimension threads are dealt until none is left; what remains of a dimension are batches.
    """
    given = f"given a vector of {list(shape)}, element_tile {list(element_tile)} and {threads} threads"
    if len(shape) != len(element_tile) or any(e < 1 or n < 1 or n % e for n, e in zip(shape, element_tile)):
        raise UserError(f"{given}, wanted an element_tile that divides the vector")
    left, stride = threads, 1
    tiles: list[tuple[int, int, int]] = []  # batch, threads and stride of each dimension, innermost first
    for dim in reversed(range(len(shape))):
        size = shape[dim] // element_tile[dim]
        if left % size and size % left:
            raise UserError(f"{given}, wanted {left} threads that {size} tiles divide or are divided by, at dim {dim}")
        dealt = min(size, left)
        tiles.append((size // dealt, dealt, stride))
        left, stride = left // dealt, stride * dealt
    batches, thread_tile, strides = ([tile[n] for tile in reversed(tiles)] for n in range(3))
    once = [1] * len(shape)
    return NestedLayout(once, batches, once, thread_tile, element_tile, [0] * len(shape), strides)
