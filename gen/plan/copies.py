"""Copies of a tile into shared memory: which lane loads which elements, and in which order its registers hold them.

A lane writes chunks, runs along K, because fragments are read along K. Where memory is contiguous along K too, it loads
these chunks. Where memory is contiguous along rows, a lane loads runs of rows at several K and transposes them in
registers (`ir.stmt.Copy.loaded`). Where a 2-D message brings a rectangle of memory in the order in which shared memory
stores blocks, a subgroup copies it unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from itertools import product
from math import gcd, prod

from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Digits, Space, Straddles
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import COL, ROW, View, column_major, row_major
from convgen.ir.record import evolve, frozen
from convgen.ir.simplify.extents import upper_bound
from convgen.ir.types import Type
from convgen.passes.messages.linear import LinearView, linearize
from convgen.passes.messages.planes import is_plane, plane_of, rectangle_of
from convgen.passes.messages.shared import TRANSPOSED_BITS, reads_transposed
from convgen.passes.messages.swizzle import find_gaps, widest, write_conflicts

_WORD_BYTES = 4

K, ROWS = 1, 0  #: axes of an input's view

#: number of a line (a row or a column of the tile) in the order in which lines are distributed to lanes
_PLACE = "place"


@frozen
class CopyLayout:
    """Each lane's share of a copy, as loaded and as stored; `message` elements come with one load."""

    loaded: Fragment
    stored: Fragment
    message: int


@lru_cache(maxsize=2**10)
def copy_layout(
    view: View,
    memory: Digits,
    rows: int,
    cols: int,
    facts: TargetFacts,
    subgroups: int,
    elem: Type,
    across: int = 1,
) -> CopyLayout:
    """Return the lane layout of the copy of a rows x cols tile; DoesNotFit if it does not divide evenly.

    The shared tile has elements of type `elem` and the digits `memory`.

    Elements of the view have the type `elem` or are converted to it on the way. `across` lanes stand side by side along
    a row of a blocked tile, if memory is contiguous along rows of the tile.
    """
    linear = linearize(view)
    if elem is view.memory.elem and (whole := _split_as_stored(linear, memory, facts, subgroups)):
        return whole
    if memory == column_major(rows, cols):
        return _split_in_chunks(linear, memory, ("k", cols), ("row", rows), facts, subgroups, elem)
    if _runs_along(linear) == K:
        return _split_in_chunks(linear, memory, ("row", rows), ("k", cols), facts, subgroups, elem, across)
    if plane_of(linear, facts.planes) and (
        turned := _split_in_rectangles(linear, memory, rows, cols, facts, subgroups)
    ):
        return turned
    return _split_along_rows(linear, memory, rows, cols, facts, subgroups, elem)


def deals(copy: CopyLayout, elem: Type, facts: TargetFacts) -> Iterator[CopyLayout]:
    """Yield the copy, then variants with shares swapped between lanes, so that other lanes write together.

    Each variant swaps two bits of the lane number, low bits last: lanes that load one run of memory stay neighbours.
    """
    yield copy
    if facts.tiles_as_fragments:
        return
    side_by_side = next((d.size for d in copy.stored.digits if (d.space, d.stride) == (Space.REGISTER, 1)), 1)
    written = widest(side_by_side * elem.bytes, facts.chunk_bytes)
    together = len(facts.shared_write.narrower(facts.chunk_bytes // written).phases[0])
    powers = [1 << bit for bit in range(facts.subgroup_size.bit_length() - 1)]
    within, beyond = ([power for power in powers if (power < together) is inside] for inside in (True, False))
    for one, other in product(reversed(within), beyond):
        loaded, stored = (_with_lanes_swapped(layout, one, other) for layout in (copy.loaded, copy.stored))
        yield evolve(copy, loaded=loaded, stored=stored)


def _with_lanes_swapped(layout: Fragment, one: int, other: int) -> Fragment:
    """Return the layout with two bits of the lane number, given by their values, swapped."""
    place = {one: other, other: one}
    bits = layout.factored(Space.LANE)
    return bits.renumbered(Space.LANE, lambda _, d: place.get(d.stride, d.stride)).merged(Space.LANE)


def is_turned(view: View, elem: Type, fragment: Fragment, facts: TargetFacts, *, repeated: bool = False) -> bool:
    """Whether shared memory keeps a tile contiguous along rows, as memory does, and reads transpose it.

    The fragment is that of the tile, or `repeated` in it.
    """
    linear = linearize(view)
    if elem is not view.memory.elem or elem.bits != TRANSPOSED_BITS:
        return False
    runs = linear.unit_axis == ROWS and linear.makes_messages(facts.chunk_bytes // elem.bytes, facts.message_alignment)
    return runs and reads_transposed(fragment, facts, repeated=repeated)


def message_elems(view: View, chunk_bytes: int, along: int = K, alignment: int = 4) -> int:
    """Return the elements along an axis that one load can bring, at most a chunk."""
    linear = linearize(view)
    return _message(linear, chunk_bytes // linear.memory.elem.bytes, alignment) if linear.unit_axis == along else 1


def _runs_along(view: LinearView) -> int:
    """Return the axis with the smaller stride in memory: neighbouring lanes go along it."""
    if view.unit_axis is not None:
        return view.unit_axis
    return min((K, ROWS), key=lambda axis: upper_bound(view.axes[axis][-1].stride) or view.memory.bytes)


def _message(view: LinearView, most: int, alignment: int) -> int:
    run = most
    while run > 1 and not view.makes_messages(run, alignment):
        run //= 2
    return run


def power_of_two(most: int) -> int:
    """Return the largest power of two that is not above a number from 1."""
    return 1 << most.bit_length() - 1


def divide(what: str, total: int, part: int) -> int:
    """Return the quotient; DoesNotFit unless it is whole and positive."""
    count, rest = divmod(total, part)
    if rest or not count:
        raise DoesNotFit(f"{what}: {total} is not a multiple of {part}")
    return count


def _split_as_stored(view: LinearView, memory: Digits, facts: TargetFacts, subgroups: int) -> CopyLayout | None:
    """Return a copy by 2-D messages that bring runs of the shared tile unchanged; None where that is impossible.

    Runs are the longest blocks that divide evenly; they are distributed so that one message brings the most elements.
    """
    elem, total = view.memory.elem.bytes, prod(memory.shape)
    if plane_of(view, facts.planes) is None:
        return None
    block = facts.block_bytes // elem
    while block * elem >= facts.subgroup_size * _WORD_BYTES:
        near = (n for n in range(subgroups, 0, -1) if subgroups % n == 0 and total % (block * subgroups) == 0)
        dealt = (_blocks(memory, block, elem, facts, (n, subgroups // n)) for n in near)
        layouts = [layout for layout in dealt if layout and comes_as_rectangles(view, layout, facts, block)]
        if layouts:
            layout = max(layouts, key=partial(_rectangle_size, view, facts=facts))
            return CopyLayout(layout, layout, block // facts.subgroup_size)
        block //= 2
    return None


def _blocks(
    memory: Digits, block: int, elem_bytes: int, facts: TargetFacts, subgroups: tuple[int, int]
) -> Fragment | None:
    """Return a layout of blocks: near subgroups take blocks of `block` elements in turn, far ones a part each.

    `subgroups` counts near and far ones. None where digits straddle.
    """
    lanes, word = facts.subgroup_size, _WORD_BYTES // elem_bytes
    near, far = subgroups
    rounds = prod(memory.shape) // (block * near * far)
    dealt = (
        Digit(Space.MEMORY, word, Space.REGISTER, 1),
        Digit(Space.MEMORY, lanes, Space.LANE, 1),
        Digit(Space.MEMORY, block // (word * lanes), Space.REGISTER, word),
        Digit(Space.MEMORY, near, Space.SUBGROUP, 1),
        Digit(Space.MEMORY, rounds, Space.REGISTER, block // lanes),
        Digit(Space.MEMORY, far, Space.SUBGROUP, near),
    )
    try:
        return _share(*memory.then(Digits((Space.MEMORY,), dealt)).renamed({COL: "k"}).digits)
    except Straddles:
        return None


def _split_in_chunks(
    view: LinearView,
    memory: Digits,
    across_lines: tuple[str, int],
    along: tuple[str, int],
    facts: TargetFacts,
    subgroups: int,
    elem: Type,
    across: int = 1,
    suits: Callable[[Fragment], bool] = lambda loaded: True,
) -> CopyLayout:
    """Return a layout in which each lane copies whole chunks along one dim, usually K.

    Neighbouring lanes continue along that dim, or go across it where tiles are blocked. `across_lines` and `along` are
    (dim, positions). Among the layouts that suit, the one whose writes take the least time; DoesNotFit where none does.
    """
    lanes = facts.subgroup_size
    (line, rows), (k, cols) = across_lines, along
    chunk, across = _chunks(rows, cols, elem.bytes, facts, subgroups, across)
    down = lanes // across
    chunks = cols // (chunk * across)
    subgroups_down = gcd(subgroups, rows // down)
    subgroups_across = subgroups // subgroups_down
    rounds_across = divide("chunks copied a round", chunks, subgroups_across)
    rounds_down = divide("rows copied a round", rows, down * subgroups_down)
    places = Digits(
        (_PLACE,),
        (
            Digit(_PLACE, down, Space.LANE, across),
            Digit(_PLACE, subgroups_down, Space.SUBGROUP, 1),
            Digit(_PLACE, rounds_down, Space.REGISTER, chunk * rounds_across),
        ),
    )
    along_k = (
        Digit(k, chunk, Space.REGISTER, 1),
        Digit(k, across, Space.LANE, 1),
        Digit(k, subgroups_across, Space.SUBGROUP, subgroups_down),
        Digit(k, rounds_across, Space.REGISTER, chunk),
    )
    layouts = []
    for dealt in _deals(line, rows, memory, elem, facts):
        with suppress(Straddles):
            loaded = _share(*along_k, *Digits((line,), dealt).then(places).digits)
            if suits(loaded):
                message = _message(view, chunk, facts.message_alignment)
                layouts.append(CopyLayout(loaded, in_memory_order(loaded, memory), message))
    if not layouts:
        raise DoesNotFit("no such layout suits")
    return _with_least_conflicts(layouts, memory, elem, facts)


def _with_least_conflicts(found: Iterable[CopyLayout], memory: Digits, elem: Type, facts: TargetFacts) -> CopyLayout:
    """Return the layout whose writes to a blocked tile, with gaps added, take the fewest extra cycles."""

    def conflicts(each: CopyLayout) -> int:
        return write_conflicts(find_gaps(memory, elem, each.stored, facts), elem, each.stored, facts)

    few = [*found]
    return min(few, key=conflicts) if few[1:] else few[0]


def _lanes_of(memory: Digits, elem: Type, lanes: int) -> tuple[str, int]:
    """Return (side of a blocked tile along which neighbouring lanes stand, their distance in elements)."""
    word = _WORD_BYTES // elem.bytes
    return next(((d.dim, step) for step, d in memory.stepped() if (d.stride, d.size) == (word, lanes)), (ROW, 1))


def _deals(line: str, rows: int, memory: Digits, elem: Type, facts: TargetFacts) -> Iterator[tuple[Digit, ...]]:
    """Yield distributions of lines to places; the first places belong to the lanes of one message.

    Tiles in rows keep lines in order. A blocked tile whose neighbouring lanes stand `apart` > 1 along lines takes the
    matching interleave. Other blocked tiles try lines in order, then distributions where some lanes take neighbouring
    lines and others lines of further blocks: neighbours within a block start in few banks, whatever gap follows it.
    """
    in_order = (Digit(line, rows, _PLACE, 1),)
    if not facts.tiles_as_fragments:
        yield in_order
        return
    lanes = facts.subgroup_size
    side, apart = _lanes_of(memory, elem, lanes)
    if side == line and apart > 1 and rows % (apart * lanes) == 0:
        yield (
            Digit(line, apart, _PLACE, lanes),
            Digit(line, lanes, _PLACE, 1),
            Digit(line, rows // (apart * lanes), _PLACE, apart * lanes),
        )
        return
    yield in_order
    powers = [lanes >> n for n in range(1, lanes.bit_length())]
    # How many neighbours, and how many messages until the next block: first the pairs whose product is `lanes`.
    ways = sorted(product(powers, powers), key=lambda way: (way[0] * way[1] != lanes, -way[0]))
    for near, messages in ways:
        if near * messages <= lanes and messages > 1 and rows % (lanes * messages) == 0:
            yield (
                Digit(line, near, _PLACE, 1),
                Digit(line, messages, _PLACE, lanes),
                Digit(line, lanes // near, _PLACE, near),
                Digit(line, rows // (lanes * messages), _PLACE, lanes * messages),
            )


def _split_in_rectangles(
    view: LinearView, memory: Digits, rows: int, cols: int, facts: TargetFacts, subgroups: int
) -> CopyLayout | None:
    """Return chunks along K of memory that is contiguous along rows, if 2-D messages can transpose it; else None."""
    elem, suits = view.memory.elem, partial(comes_as_rectangles, view, facts=facts)
    with suppress(DoesNotFit):
        return _split_in_chunks(view, memory, ("row", rows), ("k", cols), facts, subgroups, elem, suits=suits)
    return None


def comes_as_rectangles(view: LinearView, layout: Fragment, facts: TargetFacts, least: int = 1) -> bool:
    """Whether 2-D messages of at least `least` elements load the layout and are worth the cost of their start address.

    The address takes about four instructions; per-lane messages take one or two a register, and two more to transpose.
    """
    size = _rectangle_size(view, layout, facts)
    if size < least:
        return False
    registers = size * view.memory.elem.bytes // (facts.subgroup_size * _WORD_BYTES)
    return is_plane(view, facts.planes) or registers >= (4 if view.unit_axis == K else 2)


def _rectangle_size(view: LinearView, layout: Fragment, facts: TargetFacts) -> int:
    """Return the elements that one 2-D message brings, 0 where the layout is no rectangle."""
    shape = rectangle_of(view, layout, facts)
    return shape.size if shape else 0


@lru_cache(maxsize=4096)
def _chunks(
    rows: int, cols: int, elem_bytes: int, facts: TargetFacts, subgroups: int, side_by_side: int = 1
) -> tuple[int, int]:
    """Return (elements of a chunk, lanes side by side along a row); DoesNotFit if the tile does not divide evenly.

    Where tiles are blocked, `side_by_side` lanes stand along a row, and chunks are halved until no subgroup is idle.
    """
    lanes, chunk = facts.subgroup_size, min(cols, facts.chunk_bytes // elem_bytes)
    if not facts.tiles_as_fragments:
        across = divide("chunks of a row", cols, chunk)
        if lanes % across and across < lanes:
            return _in_parts(rows, cols, chunk, lanes, subgroups)
        return chunk, gcd(lanes, across)
    strips = divide("rows over lanes", rows * side_by_side, lanes)
    across = side_by_side * subgroups // gcd(subgroups, strips)
    while cols % (chunk * across) and chunk * elem_bytes > _WORD_BYTES:
        chunk //= 2
    return chunk, side_by_side


def even_rows(rows: int, cols: int, elem_bytes: int, facts: TargetFacts, subgroups: int) -> int:
    """Return `rows`, rounded up to a number whose copy divides evenly (see `copy_layout`).

    Where lanes go down rows, up to one strip of lanes more for each subgroup is tried, and the fewest messages win.
    """
    if facts.tiles_as_fragments:
        lanes = facts.subgroup_size
        strips = range(-(-rows // lanes), -(-rows // lanes) + subgroups)
        chunks = {n: _chunks(n * lanes, cols, elem_bytes, facts, subgroups)[0] for n in strips}
        whole = (n for n in strips if cols // chunks[n] % (subgroups // gcd(subgroups, n)) == 0)
        return lanes * min(whole, key=lambda n: n / chunks[n])
    chunk, across = _chunks(rows, cols, elem_bytes, facts, subgroups)
    down, runs = facts.subgroup_size // across, cols // (chunk * across)
    counts = range(-(-rows // down), -(-rows // down) + subgroups)
    even = (n for n in counts if runs % (subgroups // gcd(subgroups, n)) == 0)
    return next(even) * down


def _in_parts(rows: int, cols: int, most: int, lanes: int, subgroups: int) -> tuple[int, int]:
    """Return (elements of a chunk, lanes side by side) for rows whose chunks do not divide the lanes evenly.

    The longest chunks that make the tile divide evenly, then the most lanes side by side.
    """
    chunk = most
    while chunk:
        across = lanes
        while across:
            down, rest = divmod(rows, lanes // across)
            runs, more = divmod(cols, chunk * across)
            if runs and not more and not rest and runs % (subgroups // gcd(subgroups, down)) == 0:
                return chunk, across
            across //= 2
        chunk //= 2
    raise DoesNotFit(f"rows of {cols} over {lanes} lanes of {subgroups} subgroups")


def copied_at_once(rows: int, cols: int, elem_bytes: int, facts: TargetFacts, subgroups: int) -> int:
    """Return the elements along K in one chunk of a tile that divides evenly."""
    return _chunks(rows, cols, elem_bytes, facts, subgroups)[0]


def pitch_of(cols: int, elem_bytes: int, facts: TargetFacts) -> tuple[int, int]:
    """Return (elements from row to row of a shared tile, bytes of the chunks to whose multiples elements are aligned).

    No swizzle avoids conflicts if rows have an odd number of chunks. Half a chunk of padding then makes the number of
    half chunks odd, so that rows start in different banks.
    """
    chunk = facts.chunk_bytes
    row = cols * elem_bytes
    if facts.tiles_as_fragments or row <= chunk or row // chunk % 2 == 0:
        return cols, chunk
    return cols + chunk // 2 // elem_bytes, chunk // 2


def comes_out_even(rows: int, cols: int, elem_bytes: int, facts: TargetFacts, subgroups: int) -> bool:
    """Whether a tile can be distributed over the lanes of a workgroup in whole chunks."""
    try:
        chunk, across = _chunks(rows, cols, elem_bytes, facts, subgroups)
    except DoesNotFit:
        return False
    return rows * cols % (chunk * facts.subgroup_size * subgroups) == 0 and rows % (facts.subgroup_size // across) == 0


def in_memory_order(loaded: Fragment, memory: Digits) -> Fragment:
    """Return a layout with each lane's registers in the order of the shared tile's memory."""
    tile = memory.renamed({COL: "k"})
    by_place = loaded.factored(Space.REGISTER).renumbered(Space.REGISTER, lambda step, d: tile.distance(d.dim, step))
    return _share(*by_place.digits)


def _share(*digits: Digit) -> Fragment:
    """Return a fragment without digits of size 1, adjacent register digits merged."""
    return Fragment(("row", "k"), digits).merged(Space.REGISTER)


def rows_at_once(widest: int, share: int, elem_bytes: int) -> int:
    """Return the rows that a lane loads with one message: at least a word, and few enough that a word along K remains.

    `share` counts the lane's elements. The address pipe takes one message in a fixed time, whatever its width, and the
    transpose in registers moves words; shared memory takes short runs along K as fast as whole chunks.
    """
    word = max(1, _WORD_BYTES // elem_bytes)
    return power_of_two(max(1, min(widest, max(word, share // word), share)))


def rows_evenly(widest: int, share: int, elem_bytes: int) -> int:
    """Return `rows_at_once` halved until whole words along K remain: about what `_blocks_of_words` takes for a tile."""
    run, word = rows_at_once(widest, share, elem_bytes), max(1, _WORD_BYTES // elem_bytes)
    while run > word and share % (run * word):
        run //= 2
    return run


def _blocks_of_words(
    most: int, rows: int, cols: int, elem_bytes: int, facts: TargetFacts, subgroups: int, side: str
) -> tuple[int, int, int, int]:
    """Return (rows of a lane's run, lanes down the rows, elements of its run along K, subgroups along K).

    `side` is the side of a blocked tile along which lanes stand. The run has the most rows, at most `most`, that leave
    a lane a word along K, because single elements are written one by one; failing that, the most that divide evenly.
    DoesNotFit where none does.
    """
    word = max(1, _WORD_BYTES // elem_bytes)
    share, run, blocks = rows * cols // (facts.subgroup_size * subgroups), most, []
    while run >= min(word, most):
        with suppress(DoesNotFit):
            lines = max(1, facts.caches.line_bytes // (run * elem_bytes))
            if facts.tiles_as_fragments:
                lines = 1 if side == COL else facts.subgroup_size
            messages = divide("rows over those of a message", rows, run)
            down = gcd(facts.subgroup_size, lines, messages)
            chunk = min(facts.chunk_bytes // elem_bytes, power_of_two(max(1, share // run)), power_of_two(cols))
            across = facts.subgroup_size // down
            blocks.append((run, down, *_even_blocks(chunk, cols, across, subgroups, messages // down)))
        run //= 2
    if not blocks:
        raise DoesNotFit(f"{rows} rows of {cols} over the lanes of {subgroups} subgroups")
    return next((each for each in blocks if each[2] >= word), blocks[0])


def _even_blocks(most: int, cols: int, across: int, subgroups: int, down: int) -> tuple[int, int]:
    """Return (elements of the longest runs along K that divide evenly, subgroups side by side along K).

    Runs have at most `most` elements. Lanes stand `across` side by side and take `down` steps down the rows. As many
    subgroups stand side by side as there are runs for them. Raises DoesNotFit where nothing divides evenly.
    """
    chunk = most
    while chunk:
        runs, rest = divmod(cols, chunk * across)
        side = (n for n in range(gcd(subgroups, runs), 0, -1) if subgroups % n == 0 and runs % n == 0)
        even = next((n for n in side if down % (subgroups // n) == 0), 0)
        if runs and not rest and even:
            return chunk, even
        chunk //= 2
    raise DoesNotFit(f"rows of {cols} over {across} lanes of {subgroups} subgroups, {down} times one below another")


def _split_along_rows(
    view: LinearView, memory: Digits, rows: int, cols: int, facts: TargetFacts, subgroups: int, elem: Type
) -> CopyLayout:
    """Return a layout with a block of `run` rows by `chunk` of K in each lane, neighbouring lanes down the rows.

    Where each lane writes by itself, lanes go down the rows for one cache line of memory: longer runs are no faster.
    Lanes that write together then differ along K, and a swizzle moves these to different banks, which it does not for
    distant rows.
    """
    lanes = facts.subgroup_size
    share = divide("elements of a lane", rows * cols, lanes * subgroups)
    widest = _message(view, facts.chunk_bytes // elem.bytes, facts.message_alignment) if view.unit_axis == ROWS else 1
    run = rows_at_once(widest, share, elem.bytes)
    if view.memory.elem.bits == 4:  # two elements share a byte
        run = max(run, 2)
        divide("elements of a lane over those of a byte", share, run)
    side, _ = _lanes_of(memory, elem, lanes)
    run, down, chunk, subgroups_across = _blocks_of_words(run, rows, cols, elem.bytes, facts, subgroups, side)
    across = lanes // down
    subgroups_down = subgroups // subgroups_across
    rounds_across = cols // (chunk * across * subgroups_across)
    rounds_down = rows // (run * down * subgroups_down)

    def copied(near: int) -> CopyLayout:
        """Return a layout with `near` lanes side by side along K, the rest after the subgroups and rounds."""
        loaded = _share(
            Digit("k", chunk, Space.REGISTER, run),
            Digit("k", near, Space.LANE, down),
            Digit("k", subgroups_across, Space.SUBGROUP, 1),
            Digit("k", rounds_across, Space.REGISTER, run * chunk),
            Digit("k", across // near, Space.LANE, down * near),
            Digit("row", run, Space.REGISTER, 1),
            Digit("row", down, Space.LANE, 1),
            Digit("row", subgroups_down, Space.SUBGROUP, subgroups_across),
            Digit("row", rounds_down, Space.REGISTER, run * chunk * rounds_across),
        )
        return CopyLayout(loaded, in_memory_order(loaded, memory), run)

    # In a blocked tile neighbours along K may start in few banks, as neighbouring lines do (see `_deals`).
    in_blocks = facts.tiles_as_fragments and memory != row_major(rows, cols)
    ways = [across >> n for n in range(across.bit_length())] if in_blocks else [across]
    return _with_least_conflicts(map(copied, ways), memory, elem, facts)
