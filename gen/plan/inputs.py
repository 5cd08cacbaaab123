"""How an input of a product comes from a view to the fragments that are multiplied: through which shared tile, and by
which copy into it.
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
from convgen.plan.copies import ROWS, CopyLayout, K, copy_layout, deals, divide, even_rows, is_turned, pitch_of
from convgen.plan.dequantise import Dequantisation
from convgen.plan.packing import Packing


@frozen
class Operand:
    """One input of a product on its way: from a view through a shared tile, if there is one, into fragments."""

    view: View
    elem: Type  #: in which it is multiplied; elements are converted on the way
    tile: Shared | None
    copy: CopyLayout | None  #: each lane's share of the copy or prefetch
    made: Dequantisation | None = None  #: what becomes of it before it is multiplied
    taps: tuple[int, ...] = ()  #: of windows that are resident in the tile, the rows at which they are at each tap
    direct: int = 0  #: bytes of a lane; in messages that bring it to shared memory without registers, if such do
    conflicts: int = 0  #: cycles; extra ones of the first accesses to its shared tile
    packing: Packing | None = None  #: how a launch packs it, if one does

    def through(self, tile: Shared, facts: TargetFacts) -> Operand:
        """The same through a tile in blocks that has gaps elsewhere."""
        assert self.copy is not None
        return evolve(self, tile=tile, conflicts=write_conflicts(tile.digits, self.elem, self.copy.stored, facts))

    @property
    def less(self) -> int:
        """By how much less than they are numbers are multiplied: unsigned ones as signed ones, by half their range.

        It is the bit that makes one of the other, which is flipped on the way.
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
    """How `rows` rows of a view, as deep as the config's tile, come to a fragment of a type; DoesNotFit if uneven.

    Of a turned tile, fragments may begin at multiples of `period` columns.
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


def _with_least_conflicts(found: Iterator[Operand]) -> Operand:
    """The first operand without conflicts of banks, else the first with the fewest."""
    best = next(found)
    while best.conflicts and (other := next(found, None)):
        best = min(best, other, key=lambda each: each.conflicts)
    return best


def kept_apart(operands: tuple[Operand, ...], facts: TargetFacts) -> tuple[Operand, ...]:
    """The same, their tiles with gaps where these spare conflicts of banks and there is room (see `find_gaps`).

    Windows that are resident begin at any row, of which none is further from the next.
    """
    if not facts.tiles_as_fragments:
        return operands
    found, room = [], facts.shared_bytes - sum(o.tile.bytes for o in operands if o.tile)
    for each in operands:
        if each.tile and each.copy and not each.taps:
            stored = each.copy.stored
            tile = evolve(each.tile, digits=find_gaps(each.tile.digits, each.elem, stored, facts))
            if (longer := tile.bytes - each.tile.bytes) <= room:
                room -= longer
            else:
                tile = each.tile
            each = evolve(each, tile=tile, conflicts=write_conflicts(tile.digits, each.elem, stored, facts))
        found.append(each)
    return tuple(found)


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
    """An operand whose fragments, read so `often`, may begin at any row, or at any of the runs of so many columns.

    Of tiles in rows gaps behind these keep banks apart, and swizzles within a run; there are as many rows as come out
    even. Where fragments take no more than half of a chunk, gaps of halves may do better. What is turned by
    its reads stands in columns, with swizzles that are the same for each run.
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
    """The same in blocks, of so many rows and no more, with a lane to each or, where that comes out even, with two.

    Rows as many words long as a power of two begin in few banks; where two lanes are to each, half as many rows do.
    DoesNotFit where they do not come out even.
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
    """The same with gaps behind rows, of so many and no more; DoesNotFit where they do not come out even."""
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
    """A tile in the order of the blocks that a fragment's image has: runs of columns behind one another, or rows of as
    many columns as blocks have.

    DoesNotFit where it does not come out even, or blocks may not begin at any row.
    """
    if run:
        size = image.span(Space.MEMORY)
        beside = Digit(COL, cols // run, Space.MEMORY, size)
        below = Digit(ROW, divide("rows of a tile", rows, image.extent(ROW)), Space.MEMORY, size * beside.size)
        return Digits(image.dims, (*image.digits, *(d for d in (beside, below) if d.size > 1)))
    depth = image.merged(Space.MEMORY).of(COL)[0]
    down = next(d.stride for d in image.of(ROW))
    if (depth.stride, depth.size) != (1, down):
        raise DoesNotFit("taps=resident: wanted a matrix instruction whose blocks have rows one behind the other")
    whole = (
        Digit(COL, down, Space.MEMORY, 1),
        Digit(ROW, rows, Space.MEMORY, down),
        Digit(COL, cols // down, Space.MEMORY, down * rows),
    )
    return Digits(image.dims, tuple(d for d in whole if d.size > 1))


def _direct(
    view: View, elem: Type, shape: tuple[int, int], fragment: Fragment, config: Config, facts: TargetFacts
) -> Operand:
    """The same without registers on the way; DoesNotFit where the target or the operand has no such messages."""
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
    """The shared tile through which an input of a product goes."""
    rows, cols = digits.shape
    return Shared(f"{view.memory.name}_tile", elem, rows, cols, digits, slots, swizzle, chunk)


def _image(fragment: Fragment, elem: Type, facts: TargetFacts) -> Digits:
    """The shared tile in the order of the registers that hold it: blocks of memory then are runs of registers."""
    image = fragment.image(facts.subgroup_size, elem.bytes)
    return image.renamed(dict(zip(image.dims, (ROW, COL))))
