"""NestedLayouts derived from other layouts: for results, copies, and conversions by shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from convgen.ir.error import UserError
from convgen.ir.layout.nested import NestedLayout
from convgen.ir.layout.nested_levels import STRIDED_LEVELS
from convgen.ir.record import fields_of


def recombined(
    layouts: Sequence[NestedLayout], maps: Sequence[Sequence[int]], result: Sequence[int]
) -> NestedLayout | None:
    """Return the layout of an operation's result from those of its operands.

    `maps` gives, for each operand, the dimension of the iteration space of each of its dimensions; `result` gives those
    of the result. Return None if operands disagree, if no operand has a dimension, or if two dimensions would share
    threads.
    """
    of_dim: dict[int, NestedLayout] = {}
    for layout, map_ in zip(layouts, maps):
        if len(map_) != layout.rank:
            raise UserError(f"given a map to {list(map_)}, wanted {layout.rank} dimensions as of {layout}")
        for n, dim in enumerate(map_):
            own = layout.apply([n])
            if dim in result and of_dim.setdefault(dim, own) != own:
                return None
    if any(dim not in of_dim for dim in result):
        return None
    try:
        return _side_by_side([of_dim[dim] for dim in result])
    except UserError:
        return None


def _side_by_side(layouts: Sequence[NestedLayout]) -> NestedLayout:
    """Return the layout with the dimensions of all layouts. UserError if dimensions share threads."""
    fields = (f.name for f in fields_of(NestedLayout))
    return NestedLayout(**{name: [n for layout in layouts for n in getattr(layout, name)] for name in fields})


def needs_shared_memory(source: NestedLayout, target: NestedLayout) -> bool:
    """Return whether converting between two layouts moves elements between threads, not only between registers."""
    if source.shape != target.shape:
        raise UserError(f"given layouts of {list(source.shape)} and {list(target.shape)}, wanted one shape")
    return source.levels.canonical(*STRIDED_LEVELS) != target.levels.canonical(*STRIDED_LEVELS)


def copy_layout(shape: Sequence[int], element_tile: Sequence[int], threads: int) -> NestedLayout:
    """Return a vector's layout in a copy by `threads` threads, each moving an `element_tile` at a time, coalesced.

    Threads are distributed from the innermost dimension on until none is left; the rest of a dimension is batches.
    """
    given = f"given a vector of {list(shape)}, element_tile {list(element_tile)} and {threads} threads"
    if len(shape) != len(element_tile) or any(e < 1 or n < 1 or n % e for n, e in zip(shape, element_tile)):
        raise UserError(f"{given}, wanted an element_tile that divides the vector")
    remaining, stride = threads, 1
    tiles: list[tuple[int, int, int]] = []  # batch, threads and stride of each dimension, innermost first
    for dim in reversed(range(len(shape))):
        size = shape[dim] // element_tile[dim]
        if remaining % size and size % remaining:
            raise UserError(
                f"{given}, wanted {remaining} threads that {size} tiles divide or are divided by, at dim {dim}"
            )
        along = min(size, remaining)  # threads along this dimension
        tiles.append((size // along, along, stride))
        remaining, stride = remaining // along, stride * along
    batches, thread_tile, strides = ([tile[n] for tile in reversed(tiles)] for n in range(3))
    once = [1] * len(shape)
    return NestedLayout(once, batches, once, thread_tile, element_tile, [0] * len(shape), strides)
