"""Inputs of a product: the shared tile, and the copy into it, between a view and the fragments that are multiplied."""

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
from convgen.plan.copies import ROWS, CopyLayout, K, copy_layout, deals, divide, even_rows, is_turned, pitch_of
from convgen.plan.dequantise import Dequantisation
from convgen.plan.packing import Packing


@frozen
class Operand:
    """One input of a product: its view, its shared tile if there is one, and the copy into it."""

    view: View
    elem: Type  #: type in which it is multiplied; elements are converted on the way
    tile: Shared | None
    copy: CopyLayout | None  #: each lane's share of the copy or prefetch
    dequantisation: Dequantisation | None = None  #: from stored elements to those that are multiplied, if any
    taps: tuple[int, ...] = ()  #: rows of the resident tile at which each tap's windows begin (taps=resident)
    direct: int = 0  #: bytes of a lane in messages that copy to shared memory without registers; 0: through registers
    conflicts: int = 0  #: cycles; extra ones for bank conflicts of the first accesses to the shared tile
    packing: Packing | None = None  #: how a launch packs it, if one does

    def through(self, tile: Shared, facts: TargetFacts) -> Operand:
        """Return the operand with another tile, in blocks with gaps elsewhere."""
        assert self.copy is not None
        return evolve(self, tile=tile, conflicts=write_conflicts(tile.digits, self.elem, self.copy.stored, facts))

    @property
    def offset(self) -> int:
        """Return the number subtracted from elements on their way: 128 for u8 multiplied as s8, else 0.

        The subtraction flips one bit; `compensation` corrects the sums.
        """
        return s8.max + 1 if (self.view.memory.elem, self.elem) == (u8, s8) else 0


def operand(
    view: View,
    elem: Type,
    rows: int,
    fragment: Fragment,
    config: Config,
    facts: TargetFacts,
    *,
    direct: bool = False,
    period: int = 0,
) -> Operand:
    """Return the path of `rows` rows of a view, as deep as the config's tile, to a fragment; DoesNotFit if uneven.

    Fragments of a transposed tile may begin at multiples of `period` columns.
    """
    cols = config.tile[2]
    if direct:
        return _direct(view, elem, (rows, cols), fragment, config, facts)
    turned = bool(config.slots) and is_turned(view, elem, fragment, facts)
    pitch, chunk = (0, facts.chunk_bytes) if turned else pitch_of(cols, elem.bytes, facts)
    digits = column_major(rows, cols) if turned else row_major(rows, cols, pitch)
    if facts.tiles_as_fragments:
        digits = _image(fragment, elem, facts)
    copied = config.slots or config.prefetch
    copy = copy_layout(view, digits, rows, cols, facts, config.subgroups, elem) if copied else None
    if not config.slots or copy is None:
        return Operand(view, elem, None, copy)

    def dealt(copy: CopyLayout) -> Operand:
        swizzle, conflicts = Swizzle(), 0
        if not facts.tiles_as_fragments:
            length = rows if turned else cols
            swizzle, conflicts = find_swizzle(
                length, elem, chunk, fragment, copy.stored, facts, pitch=pitch, turned=turned, period=period
            )
        tile = _tile(view, elem, digits, config.slots, swizzle, chunk)
        return Operand(view, elem, tile, copy, conflicts=conflicts)

    return _with_least_conflicts(map(dealt, deals(copy, elem, facts)))


def _with_least_conflicts(operands: Iterator[Operand]) -> Operand:
    """Return the first operand without bank conflicts, else the first with the fewest."""
    best = next(operands)
    while best.conflicts and (other := next(operands, None)):
        best = min(best, other, key=lambda each: each.conflicts)
    return best


def kept_apart(operands: tuple[Operand, ...], facts: TargetFacts) -> tuple[Operand, ...]:
    """Return the operands with gaps in their blocked tiles where gaps avoid bank conflicts and fit (see `find_gaps`).

    Tiles of resident windows get no gaps: windows begin at any row, and all rows are equally far apart.
    """
    if not facts.tiles_as_fragments:
        return operands
    apart, room = [], facts.shared_bytes - sum(o.tile.bytes for o in operands if o.tile)
    for side in operands:
        if side.tile and side.copy and not side.taps:
            stored = side.copy.stored
            tile = evolve(side.tile, digits=find_gaps(side.tile.digits, side.elem, stored, facts))
            if (longer := tile.bytes - side.tile.bytes) <= room:
                room -= longer
            else:
                tile = side.tile
            side = evolve(side, tile=tile, conflicts=write_conflicts(tile.digits, side.elem, stored, facts))
        apart.append(side)
    return tuple(apart)


def operand_in_rows(
    view: View,
    elem: Type,
    shape: tuple[int, int],
    fragment: Fragment,
    config: Config,
    facts: TargetFacts,
    *,
    run: int = 0,
    often: int,
) -> Operand:
    """Return an operand whose fragments may begin at any row, or at any run of `run` columns; it is read `often` times.

    In tiles of rows, gaps after rows avoid bank conflicts, and swizzles within a run; rows are rounded up until the
    copy divides evenly. If fragments take at most half a chunk, gaps of half chunks are tried too. A tile that reads
    transpose is stored in columns, with one swizzle for every run.
    """
    if run and is_turned(view, elem, fragment, facts):
        with suppress(DoesNotFit):
            return operand(view, elem, shape[0], fragment, config, facts, period=run)
    (rows, cols), subgroups = shape, config.subgroups
    if facts.tiles_as_fragments:
        rows = even_rows(rows, cols, elem.bytes, facts, subgroups)
    for more in range(rows, rows + facts.subgroup_size * subgroups):
        with suppress(DoesNotFit):
            if not facts.tiles_as_fragments:
                return _rows_apart(view, elem, (more, cols), fragment, config, facts, run, often)
            return _with_least_conflicts(_rows_in_blocks(view, elem, (more, cols), fragment, config, facts, run))
    raise DoesNotFit(f"rows of {cols} over {subgroups} subgroups")


def _rows_in_blocks(
    view: View, elem: Type, shape: tuple[int, int], fragment: Fragment, config: Config, facts: TargetFacts, run: int
) -> Iterator[Operand]:
    """Yield operands with blocked tiles of exactly these rows: one lane to a row, then two where that divides evenly.

    Rows of a power of two of words start in few banks; with two lanes to a row, half as many rows start at once.
    DoesNotFit where rows do not divide evenly.
    """
    digits = _rows_of_blocks(_image(fragment, elem, facts), run, *shape)
    tile = _tile(view, elem, digits, config.slots, Swizzle(), facts.chunk_bytes)

    def dealt(across: int) -> Operand:
        copy = copy_layout(view, digits, *shape, facts, config.subgroups, elem, across)
        apart = find_gaps(digits, elem, copy.stored, facts) if run else digits
        return Operand(view, elem, tile, copy, conflicts=write_conflicts(apart, elem, copy.stored, facts))

    yield dealt(1)
    with suppress(DoesNotFit):
        yield dealt(2)


def _rows_apart(
    view: View,
    elem: Type,
    shape: tuple[int, int],
    fragment: Fragment,
    config: Config,
    facts: TargetFacts,
    run: int,
    often: int,
) -> Operand:
    """Return an operand with a tile of exactly these rows, gaps after them; DoesNotFit if they divide unevenly."""
    (rows, cols), chunk = shape, facts.chunk_bytes
    halved = fragment.contiguous("k") * elem.bytes <= chunk // 2

    def dealt(copy: CopyLayout, unit: int) -> Operand:
        chunks = run * elem.bytes // unit
        within = chunks & -chunks if run else 1
        apart, swizzle, conflicts = find_rows(cols, elem, unit, fragment, copy.stored, facts, within, often)
        digits = row_major(rows, cols, apart * unit // elem.bytes)
        tile = _tile(view, elem, digits, config.slots, swizzle, unit)
        return Operand(view, elem, tile, copy, conflicts=conflicts)

    copy = copy_layout(view, row_major(rows, cols), rows, cols, facts, config.subgroups, elem)
    units = (chunk, chunk // 2) if halved else (chunk,)
    ways = ((each, unit) for each in deals(copy, elem, facts) for unit in units)
    return _with_least_conflicts(dealt(each, unit) for each, unit in ways)


def _rows_of_blocks(image: Digits, run: int, rows: int, cols: int) -> Digits:
    """Return a tile in the block order of a fragment's image: runs of columns, or rows as wide as a block.

    DoesNotFit where it does not divide evenly, or blocks may not begin at any row.
    """
    if run:
        size = image.span(Space.MEMORY)
        beside = Digit(COL, cols // run, Space.MEMORY, size)
        below = Digit(ROW, divide("rows of a tile", rows, image.extent(ROW)), Space.MEMORY, size * beside.size)
        return Digits(image.dims, (*image.digits, *(d for d in (beside, below) if d.size > 1)))
    depth = image.merged(Space.MEMORY).of(COL)[0]
    down = next(d.stride for d in image.of(ROW))
    if (depth.stride, depth.size) != (1, down):
        raise DoesNotFit("taps=resident: wanted a matrix instruction whose blocks have consecutive rows")
    whole = (
        Digit(COL, down, Space.MEMORY, 1),
        Digit(ROW, rows, Space.MEMORY, down),
        Digit(COL, cols // down, Space.MEMORY, down * rows),
    )
    return Digits(image.dims, tuple(d for d in whole if d.size > 1))


def _direct(
    view: View, elem: Type, shape: tuple[int, int], fragment: Fragment, config: Config, facts: TargetFacts
) -> Operand:
    """Return an operand that is copied to shared memory without registers; DoesNotFit where no message suits."""
    name, chunk = view.memory.name, facts.chunk_bytes
    if not config.slots:
        raise DoesNotFit("copy=direct: there is no shared memory with slots=0")
    if not facts.direct_widths:
        raise DoesNotFit(f"copy=direct: {facts.name} copies through registers only")
    if elem is not view.memory.elem:
        raise DoesNotFit(f"copy=direct: {name} of {view.memory.elem} is converted to {elem} on the way")
    turned = is_turned(view, elem, fragment, facts)
    width = direct_width(linearize(view), ROWS if turned else K, elem, chunk, facts)
    if not width:
        wanted = ", ".join(map(str, facts.direct_widths))
        raise DoesNotFit(f"copy=direct: neighbours along K of {name} are not together in messages of {wanted} bytes")
    digits = column_major(*shape) if turned else row_major(*shape)
    places_of(digits, elem, width, facts.subgroup_size, config.subgroups)
    swizzle, conflicts = find_swizzle(shape[not turned], elem, chunk, fragment, None, facts, turned=turned)
    tile = _tile(view, elem, digits, config.slots, swizzle, chunk)
    return Operand(view, elem, tile, None, direct=width, conflicts=conflicts)


def _tile(view: View, elem: Type, digits: Digits, slots: int, swizzle: Swizzle, chunk: int) -> Shared:
    """Return the shared tile of an input."""
    rows, cols = digits.shape
    return Shared(f"{view.memory.name}_tile", elem, rows, cols, digits, slots, swizzle, chunk)


def _image(fragment: Fragment, elem: Type, facts: TargetFacts) -> Digits:
    """Return the shared tile in register order of the fragment: blocks of memory are runs of registers."""
    image = fragment.image(facts.subgroup_size, elem.bytes)
    return image.renamed(dict(zip(image.dims, (ROW, COL))))
