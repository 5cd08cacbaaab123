"""Paths of a product's inputs: from views of memory, through shared tiles or not, to the fragments that are multiplied.

A shared tile has one of three orders in memory: rows with a pitch and a swizzle; columns, if reads transpose it; or
blocks in the register order of fragments, where the target moves whole blocks (`facts.tiles_as_fragments`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Digits, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import COL, ROW, Shared, Swizzle, View, column_major, row_major
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type, s8, u8
from convgen.passes.messages.direct_copies import direct_width, places_of
from convgen.passes.messages.linear import linearize
from convgen.passes.messages.swizzle import find_gaps, find_rows, find_swizzle, write_conflicts
from convgen.plan.config import Config
from convgen.plan.copies import (
    ROWS,
    CopyLayout,
    K,
    copy_layout,
    divide,
    is_read_transposed,
    lane_swaps,
    pitch_of,
    rounded_rows,
)
from convgen.plan.dequantise import Dequantisation
from convgen.plan.packing import Packing


@frozen
class InputPath:
    """The path of one input of a product: its view, its shared tile if there is one, and the copy into it."""

    view: View
    elem: Type  #: type in which it is multiplied; elements are converted on the way
    tile: Shared | None
    copy: CopyLayout | None  #: each lane's share of the copy, or of the prefetch without a tile
    dequantisation: Dequantisation | None = None  #: from stored elements to those that are multiplied, if any
    taps: tuple[int, ...] = ()  #: rows of the resident tile at which each tap's windows begin (taps=resident)
    direct: int = 0  #: bytes of a lane in messages that copy to shared memory without registers; 0: through registers
    conflicts: int = 0  #: cycles; extra ones for bank conflicts of the first accesses to the shared tile
    packing: Packing | None = None  #: how a launch packs it, if one does

    def with_tile(self, tile: Shared, facts: TargetFacts) -> InputPath:
        """Return the path through another blocked tile, which has gaps in other places."""
        assert self.copy is not None
        return evolve(self, tile=tile, conflicts=write_conflicts(tile.digits, self.elem, self.copy.stored, facts))

    @property
    def offset(self) -> int:
        """Return the number subtracted from elements on their way: 128 for u8 multiplied as s8, else 0.

        The subtraction flips one bit; `compensation` corrects the sums.
        """
        return s8.max + 1 if (self.view.memory.elem, self.elem) == (u8, s8) else 0


def input_path(
    view: View,
    elem: Type,
    rows: int,
    fragment: Fragment,
    config: Config,
    facts: TargetFacts,
    *,
    direct: bool = False,
    period: int = 0,
) -> InputPath:
    """Return the path of `rows` rows of a view, as deep as the config's tile, to a fragment; DoesNotFit if uneven.

    Fragments of a transposed tile may begin at multiples of `period` columns.
    """
    cols = config.tile[2]
    if direct:
        return _direct(view, elem, (rows, cols), fragment, config, facts)
    transposed = bool(config.slots) and is_read_transposed(view, elem, fragment, facts)
    pitch, chunk = (0, facts.chunk_bytes) if transposed else pitch_of(cols, elem.bytes, facts)
    digits = column_major(rows, cols) if transposed else row_major(rows, cols, pitch)
    if facts.tiles_as_fragments:
        digits = _image(fragment, elem, facts)
    copied = config.slots or config.prefetch
    copy = copy_layout(view, digits, rows, cols, facts, config.subgroups, elem) if copied else None
    if not config.slots or copy is None:
        return InputPath(view, elem, None, copy)

    def with_copy(copy: CopyLayout) -> InputPath:
        swizzle, conflicts = Swizzle(), 0
        if not facts.tiles_as_fragments:
            length = rows if transposed else cols
            swizzle, conflicts = find_swizzle(
                length, elem, chunk, fragment, copy.stored, facts, pitch=pitch, transposed=transposed, period=period
            )
        tile = _tile(view, elem, digits, config.slots, swizzle, chunk)
        return InputPath(view, elem, tile, copy, conflicts=conflicts)

    return _with_least_conflicts(map(with_copy, lane_swaps(copy, elem, facts)))


def _with_least_conflicts(paths: Iterator[InputPath]) -> InputPath:
    """Return the first path without bank conflicts, else the first with the fewest; later ones are not computed."""
    best = next(paths)
    while best.conflicts and (other := next(paths, None)):
        best = min(best, other, key=lambda path: path.conflicts)
    return best


def with_gaps(paths: tuple[InputPath, ...], facts: TargetFacts) -> tuple[InputPath, ...]:
    """Return the paths with gaps in their blocked tiles where gaps avoid bank conflicts and fit (see `find_gaps`).

    Tiles of resident windows get no gaps: windows begin at any row, so the distance between rows must be constant.
    """
    if not facts.tiles_as_fragments:
        return paths
    changed, free = [], facts.shared_bytes - sum(path.tile.bytes for path in paths if path.tile)
    for path in paths:
        if path.tile and path.copy and not path.taps:
            stored = path.copy.stored
            tile = evolve(path.tile, digits=find_gaps(path.tile.digits, path.elem, stored, facts))
            if (gaps := tile.bytes - path.tile.bytes) <= free:
                free -= gaps
            else:
                tile = path.tile
            path = evolve(path, tile=tile, conflicts=write_conflicts(tile.digits, path.elem, stored, facts))
        changed.append(path)
    return tuple(changed)


def input_path_from_any_row(
    view: View,
    elem: Type,
    shape: tuple[int, int],
    fragment: Fragment,
    config: Config,
    facts: TargetFacts,
    *,
    run: int = 0,
    reads: int,
) -> InputPath:
    """Return a path to fragments that begin at any row of a tile, or, with `run`, at any run of `run` columns.

    `shape` is (rows, columns); rows are added until the copy divides evenly. Each element is read `reads` times. In a
    tile of rows, gaps after rows avoid bank conflicts, and swizzles within a run; if fragments take at most half a
    chunk, gaps of half chunks are tried too. A tile that reads transpose has one swizzle for every run.
    """
    if run and is_read_transposed(view, elem, fragment, facts):
        with suppress(DoesNotFit):
            return input_path(view, elem, shape[0], fragment, config, facts, period=run)
    (rows, cols), subgroups = shape, config.subgroups
    if facts.tiles_as_fragments:
        rows = rounded_rows(rows, cols, elem.bytes, facts, subgroups)
    for more in range(rows, rows + facts.subgroup_size * subgroups):
        with suppress(DoesNotFit):
            if not facts.tiles_as_fragments:
                return _through_rows(view, elem, (more, cols), fragment, config, facts, run, reads)
            return _with_least_conflicts(_through_blocks(view, elem, (more, cols), fragment, config, facts, run))
    raise DoesNotFit(f"rows of {cols} over {subgroups} subgroups")


def _through_blocks(
    view: View, elem: Type, shape: tuple[int, int], fragment: Fragment, config: Config, facts: TargetFacts, run: int
) -> Iterator[InputPath]:
    """Yield paths through a blocked tile of exactly this shape: one lane to a row, then two where that divides evenly.

    If a row is 2^n words long, rows start in few banks; with two lanes to a row, half as many rows start at once.
    DoesNotFit where rows do not divide evenly.
    """
    image = _image(fragment, elem, facts)
    digits = _beginning_at_runs(image, run, *shape) if run else _beginning_at_rows(image, *shape)
    tile = _tile(view, elem, digits, config.slots, Swizzle(), facts.chunk_bytes)

    def with_lanes(across: int) -> InputPath:
        copy = copy_layout(view, digits, *shape, facts, config.subgroups, elem, across)
        in_memory = find_gaps(digits, elem, copy.stored, facts) if run else digits  # as `with_gaps` changes the tile
        return InputPath(view, elem, tile, copy, conflicts=write_conflicts(in_memory, elem, copy.stored, facts))

    yield with_lanes(1)
    with suppress(DoesNotFit):
        yield with_lanes(2)


def _through_rows(
    view: View,
    elem: Type,
    shape: tuple[int, int],
    fragment: Fragment,
    config: Config,
    facts: TargetFacts,
    run: int,
    reads: int,
) -> InputPath:
    """Return the path through a tile of exactly this shape, with gaps after rows; DoesNotFit if the copy is uneven."""
    (rows, cols), chunk = shape, facts.chunk_bytes
    halved = fragment.contiguous("k") * elem.bytes <= chunk // 2

    def with_copy(copy: CopyLayout, unit: int) -> InputPath:
        chunks = run * elem.bytes // unit
        swizzled = chunks & -chunks if run else 1  # the largest power of two that divides a run's chunks
        pitch, swizzle, conflicts = find_rows(cols, elem, unit, fragment, copy.stored, facts, swizzled, reads)
        digits = row_major(rows, cols, pitch * unit // elem.bytes)
        tile = _tile(view, elem, digits, config.slots, swizzle, unit)
        return InputPath(view, elem, tile, copy, conflicts=conflicts)

    copy = copy_layout(view, row_major(rows, cols), rows, cols, facts, config.subgroups, elem)
    units = (chunk, chunk // 2) if halved else (chunk,)
    return _with_least_conflicts(
        with_copy(swapped, unit) for swapped in lane_swaps(copy, elem, facts) for unit in units
    )


def _beginning_at_runs(image: Digits, run: int, rows: int, cols: int) -> Digits:
    """Return the order of a blocked tile whose fragments begin at any run of `run` columns, the width of `image`.

    Images of the fragment stand side by side, one for each run, then below one another. DoesNotFit if uneven.
    """
    size = image.span(Space.MEMORY)
    beside = Digit(COL, cols // run, Space.MEMORY, size)
    below = Digit(ROW, divide("rows of a tile", rows, image.extent(ROW)), Space.MEMORY, size * beside.size)
    return Digits(image.dims, (*image.digits, *(d for d in (beside, below) if d.size > 1)))


def _beginning_at_rows(image: Digits, rows: int, cols: int) -> Digits:
    """Return the order of a blocked tile whose fragments begin at any row: columns of blocks, each with all rows.

    DoesNotFit if blocks of the fragment's `image` do not have consecutive rows.
    """
    depth = image.merged(Space.MEMORY).of(COL)[0]
    width = next(d.stride for d in image.of(ROW))  # elements of a block's row
    if (depth.stride, depth.size) != (1, width):
        raise DoesNotFit("taps=resident: wanted a matrix instruction whose blocks have consecutive rows")
    whole = (
        Digit(COL, width, Space.MEMORY, 1),
        Digit(ROW, rows, Space.MEMORY, width),
        Digit(COL, cols // width, Space.MEMORY, width * rows),
    )
    return Digits(image.dims, tuple(d for d in whole if d.size > 1))


def _direct(
    view: View, elem: Type, shape: tuple[int, int], fragment: Fragment, config: Config, facts: TargetFacts
) -> InputPath:
    """Return the path of a copy to shared memory without registers; DoesNotFit where no message suits."""
    name, chunk = view.memory.name, facts.chunk_bytes
    if not config.slots:
        raise DoesNotFit("copy=direct: there is no shared memory with slots=0")
    if not facts.direct_widths:
        raise DoesNotFit(f"copy=direct: {facts.name} copies through registers only")
    if elem is not view.memory.elem:
        raise DoesNotFit(f"copy=direct: {name} of {view.memory.elem} is converted to {elem} on the way")
    transposed = is_read_transposed(view, elem, fragment, facts)
    width = direct_width(linearize(view), ROWS if transposed else K, elem, chunk, facts)
    if not width:
        wanted = ", ".join(map(str, facts.direct_widths))
        raise DoesNotFit(f"copy=direct: neighbours along K of {name} are not together in messages of {wanted} bytes")
    digits = column_major(*shape) if transposed else row_major(*shape)
    places_of(digits, elem, width, facts.subgroup_size, config.subgroups)
    swizzle, conflicts = find_swizzle(shape[not transposed], elem, chunk, fragment, None, facts, transposed=transposed)
    tile = _tile(view, elem, digits, config.slots, swizzle, chunk)
    return InputPath(view, elem, tile, None, direct=width, conflicts=conflicts)


def _tile(view: View, elem: Type, digits: Digits, slots: int, swizzle: Swizzle, chunk: int) -> Shared:
    """Return the shared tile of an input."""
    rows, cols = digits.shape
    return Shared(f"{view.memory.name}_tile", elem, rows, cols, digits, slots, swizzle, chunk)


def _image(fragment: Fragment, elem: Type, facts: TargetFacts) -> Digits:
    """Return the shared tile in register order of the fragment: blocks of memory are runs of registers."""
    image = fragment.image(facts.subgroup_size, elem.bytes)
    return image.renamed(dict(zip(image.dims, (ROW, COL))))
