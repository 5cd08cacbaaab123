"""Copies of a tile into shared memory: which lane loads which elements, and in which order its registers hold them.

A lane writes chunks, runs along K, because fragments are read along K. Where memory is contiguous along K too, it loads
these chunks. Where memory is contiguous along rows, a lane loads runs of rows at several K and transposes them in
registers (`ir.stmt.Copy.loaded`). A *blocked tile* stands in shared memory as blocks, runs of a fragment's registers
(`facts.tiles_as_fragments`). Where a 2-D message brings such blocks, a subgroup copies them unchanged.

Every copy must divide evenly. A round of a copy is what all lanes write with one chunk each. Subgroups stand one below
another as far as they divide the steps down the rows (`gcd(subgroups, steps)`), and side by side otherwise; the copy is
even if the number side by side divides the chunks of a row (`_subgroups_across`). Where lanes transpose in registers,
as many subgroups stand side by side as there are runs along K for them (`_even_blocks`).
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
from convgen.ir.layout.memory import COL, ROW, View, row_major
from convgen.ir.record import evolve, frozen
from convgen.ir.simplify.extents import upper_bound
from convgen.ir.types import Type
from convgen.passes.messages.linear import LinearView, linearize
from convgen.passes.messages.planes import is_plane, plane_of, rectangle_of
from convgen.passes.messages.shared import TRANSPOSED_BITS, reads_transposed
from convgen.passes.messages.swizzle import find_gaps, widest, write_conflicts

_WORD_BYTES = 4

K, ROWS = 1, 0  #: axes of an input's view

#: dim: rank of a line (a row, or a column of a transposed tile) in the order in which lines are distributed to lanes
_RANK = "rank"


@frozen
class CopyLayout:
    """Each lane's share of a copy, as loaded and as stored; `message` elements come with one load."""

    loaded: Fragment
    stored: Fragment
    message: int


@lru_cache(maxsize=2**10)
def copy_layout(
    view: View, memory: Digits, rows: int, cols: int, facts: TargetFacts, subgroups: int, elem: Type, across: int = 1
) -> CopyLayout:
    """Return the lane layout of the copy of a rows x cols tile; DoesNotFit if it does not divide evenly.

    The shared tile has elements of type `elem` in the order `memory`; elements of the view are converted to that type
    on the way. In a blocked tile `across` lanes stand side by side along a row, if the view is contiguous along K.
    """
    linear = linearize(view)
    if elem is view.memory.elem and (whole := _split_as_stored(linear, memory, facts, subgroups)):
        return whole
    if memory.digits[0].dim == ROW and not facts.tiles_as_fragments:
        return _split_in_chunks(linear, memory, ("k", cols), ("row", rows), facts, subgroups, elem)
    if _lane_axis(linear) == K:
        return _split_in_chunks(linear, memory, ("row", rows), ("k", cols), facts, subgroups, elem, across)
    if plane_of(linear, facts.planes) and (
        transposed := _split_in_rectangles(linear, memory, rows, cols, facts, subgroups)
    ):
        return transposed
    return _split_along_rows(linear, memory, rows, cols, facts, subgroups, elem)


def lane_swaps(copy: CopyLayout, elem: Type, facts: TargetFacts) -> Iterator[CopyLayout]:
    """Yield the copy, then copies with two bits of the lane number swapped, so that other lanes write in one phase.

    Low bits are swapped last: lanes that load one run of memory stay neighbours as long as possible. Blocked tiles get
    no swaps; `_line_orders` permutes their lines instead.
    """
    yield copy
    if facts.tiles_as_fragments:
        return
    side_by_side = next((d.size for d in copy.stored.digits if (d.space, d.stride) == (Space.REGISTER, 1)), 1)
    written = widest(side_by_side * elem.bytes, facts.chunk_bytes)
    together = len(facts.shared_write.narrower(facts.chunk_bytes // written).phases[0])
    powers = [1 << bit for bit in range(facts.subgroup_size.bit_length() - 1)]
    within = [power for power in powers if power < together]
    beyond = [power for power in powers if power >= together]
    for low, high in product(reversed(within), beyond):
        loaded, stored = (_with_lanes_swapped(layout, low, high) for layout in (copy.loaded, copy.stored))
        yield evolve(copy, loaded=loaded, stored=stored)


def _with_lanes_swapped(layout: Fragment, low: int, high: int) -> Fragment:
    """Return the layout with two bits of the lane number, given by their values, swapped."""
    swapped = {low: high, high: low}
    bits = layout.factored(Space.LANE)
    return bits.renumbered(Space.LANE, lambda _, d: swapped.get(d.stride, d.stride)).merged(Space.LANE)


def is_read_transposed(
    view: View, elem: Type, fragment: Fragment, facts: TargetFacts, *, repeated: bool = False
) -> bool:
    """Return whether a shared tile stays contiguous along rows, as in memory, and reads of fragments transpose it.

    `fragment` covers the whole tile or, if `repeated`, a part of it that repeats.
    """
    if elem is not view.memory.elem or elem.bits != TRANSPOSED_BITS:
        return False
    return linearize(view).has_chunks(ROWS, facts) and reads_transposed(fragment, facts, repeated=repeated)


def message_elems(view: View, chunk_bytes: int, along: int = K, alignment: int = 4) -> int:
    """Return the elements along an axis that one load can bring, at most a chunk."""
    linear = linearize(view)
    most = chunk_bytes // linear.memory.elem.bytes
    return _widest_message(linear, most, alignment) if linear.unit_axis == along else 1


def _lane_axis(view: LinearView) -> int:
    """Return the axis along which neighbouring lanes go: that with the smaller stride in memory."""
    if view.unit_axis is not None:
        return view.unit_axis
    return min((K, ROWS), key=lambda axis: upper_bound(view.axes[axis][-1].stride) or view.memory.bytes)


def _widest_message(view: LinearView, most: int, alignment: int) -> int:
    """Return the elements of the widest message along the view's contiguous axis: `most` over a power of two."""
    run = most
    while run > 1 and not view.makes_messages(run, alignment):
        run //= 2
    return run


def power_of_two(most: int) -> int:
    """Return the largest power of two that is not above a number from 1."""
    return 1 << most.bit_length() - 1


def next_power_of_two(least: int) -> int:
    """Return the least power of two that is not below a number from 1."""
    return 1 << (least - 1).bit_length()


def divide(name: str, total: int, part: int) -> int:
    """Return the quotient; DoesNotFit unless it is whole and positive."""
    count, rest = divmod(total, part)
    if rest or not count:
        raise DoesNotFit(f"{name}: {total} is not a multiple of {part}")
    return count


def _split_as_stored(view: LinearView, memory: Digits, facts: TargetFacts, subgroups: int) -> CopyLayout | None:
    """Return a copy by 2-D messages that bring runs of the shared tile unchanged; None where that is impossible.

    The runs are the longest blocks that divide evenly, distributed so that one message brings the most elements.
    """
    elem, total = view.memory.elem.bytes, prod(memory.shape)
    if plane_of(view, facts.planes) is None:
        return None
    block = facts.block_bytes // elem
    while block * elem >= facts.subgroup_size * _WORD_BYTES:
        near = (n for n in range(subgroups, 0, -1) if subgroups % n == 0 and total % (block * subgroups) == 0)
        tried = (_blocks(memory, block, elem, facts, (n, subgroups // n)) for n in near)
        layouts = [layout for layout in tried if layout and comes_as_rectangles(view, layout, facts, block)]
        if layouts:
            layout = max(layouts, key=partial(_rectangle_size, view, facts=facts))
            return CopyLayout(layout, layout, block // facts.subgroup_size)
        block //= 2
    return None


def _blocks(
    memory: Digits, block: int, elem_bytes: int, facts: TargetFacts, subgroups: tuple[int, int]
) -> Fragment | None:
    """Return a layout of blocks of `block` elements of the tile's memory; None where blocks cut its digits unevenly.

    `subgroups` are (near, far): the tile is cut into `far` equal parts; in each, `near` subgroups take blocks in turn.
    """
    lanes, word = facts.subgroup_size, _WORD_BYTES // elem_bytes
    near, far = subgroups
    rounds = prod(memory.shape) // (block * near * far)
    owners = (
        Digit(Space.MEMORY, word, Space.REGISTER, 1),
        Digit(Space.MEMORY, lanes, Space.LANE, 1),
        Digit(Space.MEMORY, block // (word * lanes), Space.REGISTER, word),
        Digit(Space.MEMORY, near, Space.SUBGROUP, 1),
        Digit(Space.MEMORY, rounds, Space.REGISTER, block // lanes),
        Digit(Space.MEMORY, far, Space.SUBGROUP, near),
    )
    try:
        return _fragment(*memory.then(Digits((Space.MEMORY,), owners)).renamed({COL: "k"}).digits)
    except Straddles:
        return None


def _split_in_chunks(
    view: LinearView,
    memory: Digits,
    lines: tuple[str, int],
    along: tuple[str, int],
    facts: TargetFacts,
    subgroups: int,
    elem: Type,
    across: int = 1,
    suits: Callable[[Fragment], bool] = lambda loaded: True,
) -> CopyLayout:
    """Return a layout in which each lane copies whole chunks along one dim, usually K.

    `lines` and `along` are (dim, positions): the dim that numbers lines, and the dim along a line. Neighbouring
    lanes continue along a line; in blocked tiles they go from line to line, with `across` lanes side by side on one.
    Of the layouts for which `suits` holds, it takes the one whose writes cost least; DoesNotFit where there is none.
    """
    lanes = facts.subgroup_size
    (line, rows), (k, cols) = lines, along
    chunk, across = _chunks(rows, cols, elem.bytes, facts, subgroups, across)
    down = lanes // across
    chunks = cols // (chunk * across)
    subgroups_across = _subgroups_across(subgroups, rows // down)
    subgroups_down = subgroups // subgroups_across
    rounds_across = divide("chunks copied a round", chunks, subgroups_across)
    rounds_down = divide("rows copied a round", rows, down * subgroups_down)
    ranks_to_lanes = (
        Digit(_RANK, down, Space.LANE, across),
        Digit(_RANK, subgroups_down, Space.SUBGROUP, 1),
        Digit(_RANK, rounds_down, Space.REGISTER, chunk * rounds_across),
    )
    along_k = (
        Digit(k, chunk, Space.REGISTER, 1),
        Digit(k, across, Space.LANE, 1),
        Digit(k, subgroups_across, Space.SUBGROUP, subgroups_down),
        Digit(k, rounds_across, Space.REGISTER, chunk),
    )
    message, layouts = _widest_message(view, chunk, facts.message_alignment), []
    for ranks in _line_orders(line, rows, memory, elem, facts):
        with suppress(Straddles):
            loaded = _fragment(*along_k, *Digits((line,), ranks).then(Digits((_RANK,), ranks_to_lanes)).digits)
            if suits(loaded):
                layouts.append(CopyLayout(loaded, in_memory_order(loaded, memory), message))
    if not layouts:
        raise DoesNotFit(f"{rows} lines of {cols} elements do not divide into chunks of {chunk} over the lanes")
    return _least_conflicting(layouts, memory, elem, facts)


def _least_conflicting(layouts: Iterable[CopyLayout], memory: Digits, elem: Type, facts: TargetFacts) -> CopyLayout:
    """Return the layout whose writes to a blocked tile, with gaps added, take the fewest extra cycles."""

    def conflicts(layout: CopyLayout) -> int:
        return write_conflicts(find_gaps(memory, elem, layout.stored, facts), elem, layout.stored, facts)

    first, *others = layouts
    return min((first, *others), key=conflicts) if others else first


def _lane_step(memory: Digits, elem: Type, lanes: int) -> tuple[str, int]:
    """Return (dim of a blocked tile along which neighbouring lanes stand in its blocks, their distance in elements)."""
    word = _WORD_BYTES // elem.bytes
    return next(((d.dim, step) for step, d in memory.stepped() if (d.stride, d.size) == (word, lanes)), (ROW, 1))


def _line_orders(line: str, rows: int, memory: Digits, elem: Type, facts: TargetFacts) -> Iterator[tuple[Digit, ...]]:
    """Yield orders of the lines, as digits from line to rank; the first ranks belong to the lanes of one message.

    Tiles in rows keep lines in order. A blocked tile whose neighbouring lanes stand more than one line apart takes the
    matching interleave. Other blocked tiles try lines in order, then orders where some lanes take neighbouring lines
    and others lines of further blocks: neighbours within a block start in few banks, whatever gap follows it.
    """
    in_order = (Digit(line, rows, _RANK, 1),)
    if not facts.tiles_as_fragments:
        yield in_order
        return
    lanes = facts.subgroup_size
    dim, distance = _lane_step(memory, elem, lanes)
    if dim == line and distance > 1 and rows % (distance * lanes) == 0:
        yield (
            Digit(line, distance, _RANK, lanes),
            Digit(line, lanes, _RANK, 1),
            Digit(line, rows // (distance * lanes), _RANK, distance * lanes),
        )
        return
    yield in_order
    powers = [lanes >> n for n in range(1, lanes.bit_length())]
    # (neighbouring lines of one message, messages until its next group of neighbours): first the pairs whose product is
    # `lanes`
    pairs = sorted(product(powers, powers), key=lambda pair: (pair[0] * pair[1] != lanes, -pair[0]))
    for near, messages in pairs:
        if near * messages <= lanes and messages > 1 and rows % (lanes * messages) == 0:
            yield (
                Digit(line, near, _RANK, 1),
                Digit(line, messages, _RANK, lanes),
                Digit(line, lanes // near, _RANK, near),
                Digit(line, rows // (lanes * messages), _RANK, lanes * messages),
            )


def _split_in_rectangles(
    view: LinearView, memory: Digits, rows: int, cols: int, facts: TargetFacts, subgroups: int
) -> CopyLayout | None:
    """Return a copy in chunks along K of memory contiguous along rows, if 2-D messages transpose it; else None."""
    elem, suits = view.memory.elem, partial(comes_as_rectangles, view, facts=facts)
    with suppress(DoesNotFit):
        return _split_in_chunks(view, memory, ("row", rows), ("k", cols), facts, subgroups, elem, suits=suits)
    return None


def comes_as_rectangles(view: LinearView, layout: Fragment, facts: TargetFacts, least: int = 1) -> bool:
    """Return whether 2-D messages of `least` or more elements load the layout, and cost less than per-lane messages.

    An address takes about four instructions; per-lane messages take one or two a register, and two more to transpose.
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


def _subgroups_across(subgroups: int, steps: int) -> int:
    """Return how many subgroups stand side by side along a row, if lanes take `steps` steps down the rows.

    As many stand one below another as divide the steps.
    """
    return subgroups // gcd(subgroups, steps)


@lru_cache(maxsize=4096)
def _chunks(
    rows: int, cols: int, elem_bytes: int, facts: TargetFacts, subgroups: int, side_by_side: int = 1
) -> tuple[int, int]:
    """Return (elements of a chunk, lanes side by side along a row); DoesNotFit if rows or columns do not divide evenly.

    In blocked tiles `side_by_side` lanes stand along a row, and chunks are halved until no subgroup is idle. Callers
    check that subgroups divide the chunks evenly.
    """
    lanes, chunk = facts.subgroup_size, min(cols, facts.chunk_bytes // elem_bytes)
    if not facts.tiles_as_fragments:
        chunks = divide("chunks of a row", cols, chunk)
        if lanes % chunks and chunks < lanes:
            return _shorter_chunks(rows, cols, chunk, lanes, subgroups)
        return chunk, gcd(lanes, chunks)
    steps = divide("rows over lanes", rows * side_by_side, lanes)
    across = side_by_side * _subgroups_across(subgroups, steps)
    while cols % (chunk * across) and chunk * elem_bytes > _WORD_BYTES:
        chunk //= 2
    return chunk, side_by_side


def rounded_rows(rows: int, cols: int, elem_bytes: int, facts: TargetFacts, subgroups: int) -> int:
    """Return `rows`, rounded up to a number whose copy divides evenly (see `copy_layout`).

    Where tiles are blocked, lanes go down rows; of the numbers up to `subgroups` steps of all lanes more, the one with
    the fewest messages is taken. Elsewhere it is the least number.
    """
    if facts.tiles_as_fragments:
        lanes = facts.subgroup_size
        steps = range(-(-rows // lanes), -(-rows // lanes) + subgroups)
        chunks = {n: _chunks(n * lanes, cols, elem_bytes, facts, subgroups)[0] for n in steps}
        even = (n for n in steps if cols // chunks[n] % _subgroups_across(subgroups, n) == 0)
        return lanes * min(even, key=lambda n: n / chunks[n])
    chunk, across = _chunks(rows, cols, elem_bytes, facts, subgroups)
    down, runs = facts.subgroup_size // across, cols // (chunk * across)
    steps = range(-(-rows // down), -(-rows // down) + subgroups)
    return down * next(n for n in steps if runs % _subgroups_across(subgroups, n) == 0)


def _shorter_chunks(rows: int, cols: int, most: int, lanes: int, subgroups: int) -> tuple[int, int]:
    """Return (elements of a chunk, lanes side by side) for rows whose chunks do not divide the lanes evenly.

    The longest chunks, halved from `most`, with which the copy divides evenly, then the most lanes side by side.
    """
    chunk = most
    while chunk:
        across = lanes
        while across:
            steps, rows_over = divmod(rows, lanes // across)
            runs, cols_over = divmod(cols, chunk * across)
            if runs and not cols_over and not rows_over and runs % _subgroups_across(subgroups, steps) == 0:
                return chunk, across
            across //= 2
        chunk //= 2
    raise DoesNotFit(f"rows of {cols} over {lanes} lanes of {subgroups} subgroups")


def chunk_elems(rows: int, cols: int, elem_bytes: int, facts: TargetFacts, subgroups: int) -> int:
    """Return the elements that a lane copies along K at once; DoesNotFit if the tile does not divide evenly."""
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
    """Return whether a tile can be distributed over the lanes of a workgroup in whole chunks."""
    try:
        chunk, across = _chunks(rows, cols, elem_bytes, facts, subgroups)
    except DoesNotFit:
        return False
    return rows * cols % (chunk * facts.subgroup_size * subgroups) == 0 and rows % (facts.subgroup_size // across) == 0


def in_memory_order(loaded: Fragment, memory: Digits) -> Fragment:
    """Return a layout with each lane's registers in the order of the shared tile's memory."""
    tile = memory.renamed({COL: "k"})
    by_place = loaded.factored(Space.REGISTER).renumbered(Space.REGISTER, lambda step, d: tile.distance(d.dim, step))
    return _fragment(*by_place.digits)


def _fragment(*digits: Digit) -> Fragment:
    """Return the fragment of a tile with these digits, without those of size 1, adjacent register digits merged."""
    return Fragment(("row", "k"), digits).merged(Space.REGISTER)


def rows_at_once(widest: int, share: int, elem_bytes: int) -> int:
    """Return the rows that a lane loads with one message: at least a word, and few enough that a word along K remains.

    `share` counts the lane's elements. The address pipe takes one message in a fixed time, whatever its width, and the
    transpose in registers moves words; shared memory takes short runs along K as fast as whole chunks.
    """
    word = max(1, _WORD_BYTES // elem_bytes)
    return power_of_two(max(1, min(widest, max(word, share // word), share)))


def even_rows_at_once(widest: int, share: int, elem_bytes: int) -> int:
    """Return `rows_at_once`, halved until whole words along K remain: an estimate of `_LaneBlock.rows`."""
    run, word = rows_at_once(widest, share, elem_bytes), max(1, _WORD_BYTES // elem_bytes)
    while run > word and share % (run * word):
        run //= 2
    return run


@frozen
class _LaneBlock:
    """The block that a lane loads and transposes in its registers at a time, and how lanes and subgroups stand."""

    rows: int  #: rows of one message
    chunk: int  #: elements along K, one from each message
    lanes_down: int  #: lanes down the rows; the others stand side by side along K
    subgroups_across: int  #: subgroups side by side along K; the others stand one below another


def _lane_block(
    most: int, rows: int, cols: int, elem_bytes: int, facts: TargetFacts, subgroups: int, dim: str
) -> _LaneBlock:
    """Return the lanes' blocks of a tile: at most `most` rows, a power of two; DoesNotFit where none is even.

    `dim` is the dim of a blocked tile along which lanes stand. The block has the most rows that leave a lane a word
    along K, because single elements are written one by one; failing that, the most that divide evenly.
    """
    word = max(1, _WORD_BYTES // elem_bytes)
    share, run, blocks = rows * cols // (facts.subgroup_size * subgroups), most, list[_LaneBlock]()
    while run >= min(word, most):
        with suppress(DoesNotFit):
            lanes = max(1, facts.caches.line_bytes // (run * elem_bytes))  # of one cache line
            if facts.tiles_as_fragments:
                lanes = 1 if dim == COL else facts.subgroup_size
            messages = divide("rows over those of a message", rows, run)
            down = gcd(facts.subgroup_size, lanes, messages)
            chunk = min(facts.chunk_bytes // elem_bytes, power_of_two(max(1, share // run)), power_of_two(cols))
            across = facts.subgroup_size // down
            chunk, subgroups_across = _even_blocks(chunk, cols, across, subgroups, messages // down)
            blocks.append(_LaneBlock(run, chunk, down, subgroups_across))
        run //= 2
    if not blocks:
        raise DoesNotFit(f"{rows} rows of {cols} over the lanes of {subgroups} subgroups")
    return next((block for block in blocks if block.chunk >= word), blocks[0])


def _even_blocks(most: int, cols: int, across: int, subgroups: int, steps: int) -> tuple[int, int]:
    """Return (elements of the longest runs along K that divide evenly, subgroups side by side along K).

    Runs have at most `most` elements. Lanes stand `across` side by side and take `steps` steps down the rows. As many
    subgroups stand side by side as there are runs for them. Raises DoesNotFit where nothing divides evenly.
    """
    chunk = most
    while chunk:
        runs, rest = divmod(cols, chunk * across)
        side_by_side = (n for n in range(gcd(subgroups, runs), 0, -1) if subgroups % n == 0 and runs % n == 0)
        even = next((n for n in side_by_side if steps % (subgroups // n) == 0), 0)
        if runs and not rest and even:
            return chunk, even
        chunk //= 2
    raise DoesNotFit(f"rows of {cols} over {across} lanes of {subgroups} subgroups, {steps} times one below another")


def _split_along_rows(
    view: LinearView, memory: Digits, rows: int, cols: int, facts: TargetFacts, subgroups: int, elem: Type
) -> CopyLayout:
    """Return a layout in which each lane transposes a block of rows by elements of K, neighbouring lanes down the rows.

    Where each lane writes by itself, lanes go down the rows for one cache line of memory: longer runs are no faster.
    Lanes that write in one phase then differ along K; a swizzle moves these to different banks, but not distant rows.
    """
    lanes = facts.subgroup_size
    share = divide("elements of a lane", rows * cols, lanes * subgroups)
    alignment = facts.message_alignment
    widest = _widest_message(view, facts.chunk_bytes // elem.bytes, alignment) if view.unit_axis == ROWS else 1
    most = rows_at_once(widest, share, elem.bytes)
    if view.memory.elem.bits == 4:  # two elements share a byte
        most = max(most, 2)
        divide("elements of a lane over those of a byte", share, most)
    dim, _ = _lane_step(memory, elem, lanes)
    block = _lane_block(most, rows, cols, elem.bytes, facts, subgroups, dim)
    across = lanes // block.lanes_down
    # In a blocked tile neighbours along K may start in few banks, as neighbouring lines do (see `_line_orders`).
    in_blocks = facts.tiles_as_fragments and memory != row_major(rows, cols)
    neighbours = [across >> n for n in range(across.bit_length())] if in_blocks else [across]
    fragments = [_blocks_of_lanes(block, rows, cols, lanes, subgroups, near) for near in neighbours]
    layouts = (CopyLayout(loaded, in_memory_order(loaded, memory), block.rows) for loaded in fragments)
    return _least_conflicting(layouts, memory, elem, facts)


def _blocks_of_lanes(block: _LaneBlock, rows: int, cols: int, lanes: int, subgroups: int, near: int) -> Fragment:
    """Return the layout of a tile in lanes' blocks.

    `near` lanes stand side by side along K in one round of a subgroup, the other lanes along K beyond all rounds.
    """
    run, chunk, down, subgroups_across = block.rows, block.chunk, block.lanes_down, block.subgroups_across
    across, subgroups_down = lanes // down, subgroups // subgroups_across
    rounds_across = cols // (chunk * across * subgroups_across)
    rounds_down = rows // (run * down * subgroups_down)
    return _fragment(
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
