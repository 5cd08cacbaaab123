"""Drawings of a page: fragments by lane and register, shared tiles over their banks, the mapping of workgroups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from convgen.choose.traffic import Schedule
from convgen.choose.workgroup_orders import LaunchTraffic, takers_of, tiles_of
from convgen.explain.history import StepHistory
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.distribution import Distribution
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mapping import WorkgroupMapping
from convgen.ir.layout.memory import Shared, Swizzle
from convgen.ir.mutate import postorder
from convgen.ir.program import Kernel
from convgen.ir.record import evolve, frozen
from convgen.ir.stmt import LoadShared, Stmt
from convgen.passes.messages.swizzle import conflict_cycles
from convgen.plan.plan import Plan
from convgen.show import owners
from convgen.show.drawing import PALETTE, Axis, Cell, Drawing, draw, draw_cells

_MOST_ELEMENTS = 1 << 13  #: elements of a layout that is drawn
_MOST_LISTED = 1 << 10  #: elements of a layout whose owners are also listed
_MOST_TILES = 1 << 12  #: tiles of a mapping that is drawn and listed
_BANK = 4  #: bytes
_MOST_LINES = 24  #: lines of shared memory that are drawn; swizzles repeat earlier
_SPACES: Mapping[str, str] = {
    Space.REGISTER: "in registers",
    Space.LANE: "over lanes",
    Space.SUBGROUP: "over subgroups",
    Space.FIXED: "fixed",
}

Addresses = npt.NDArray[np.int64]


# ---------------------------------------------------------------- fragments


@frozen(eq=False)
class FragmentShown:
    """A layout of registers, the statements that use it, and its picture unless it is too large."""

    name: str  #: name of the tensor or tile
    uses: tuple[str, ...]  #: statements, as the IR prints them
    digits: str
    words: tuple[str, ...]  #: meaning of each digit
    shape: str
    drawing: Drawing | None
    table: str  #: the threads that hold each element, of a small one


def fragments(kernel: Kernel, width: int) -> list[FragmentShown]:
    """Return every layout of a kernel as built, in the order of its statements."""
    uses: dict[Fragment, dict[str, str]] = {}
    for stmt in postorder(kernel.body):
        layout = getattr(stmt, "layout", None)
        if isinstance(stmt, Stmt) and isinstance(layout, Fragment):
            line = str(stmt).splitlines()[-1].strip()
            uses.setdefault(layout, {})[line] = _named(stmt)
    return [
        _fragment(", ".join(dict.fromkeys(lines.values())), layout, tuple(lines), width, kernel.subgroups)
        for layout, lines in uses.items()
    ]


def _named(stmt: Stmt) -> str:
    """Return a statement's action and its tensor or tile: `copy: wei`."""
    site = getattr(stmt, "site", None)
    action = " ".join(text for text in (site.stage, site.comment) if text) if site else ""
    return action or type(stmt).__name__


def instruction_fragments(plan: Plan) -> list[FragmentShown]:
    """Return the operands of the matrix instruction, if there is one."""
    atom = getattr(plan.unit, "atom", None)
    if atom is None:
        return []
    named = (("a", "n x k"), ("b", "m x k"), ("d", "n x m"))
    return [
        _fragment(
            f"{atom.name}, operand {name} ({dims})", getattr(atom, name), (), plan.facts.subgroup_size, atom.spans
        )
        for name, dims in named
    ]


def _fragment(name: str, layout: Fragment, uses: tuple[str, ...], width: int, subgroups: int) -> FragmentShown:
    drawing, table = None, ""
    is_whole = all(digit.space != Space.FIXED for digit in layout.digits)
    if is_whole and math.prod(layout.shape) <= _MOST_ELEMENTS and len(layout.dims) <= 2:
        on = Distribution.of(layout, width, width * subgroups)
        if on.covers:
            drawing = owners.picture(on, "thread", width)
            table = "".join(text for _, text in owners.tables(on)) if math.prod(layout.shape) <= _MOST_LISTED else ""
    shape = " x ".join(f"{size} {dim}" for dim, size in zip(layout.dims, layout.shape))
    return FragmentShown(name, uses, str(layout), tuple(map(_digit, layout.digits)), shape, drawing, table)


def _digit(digit: Digit) -> str:
    where = _SPACES[digit.space]
    apart = "next to each other" if digit.stride == 1 else f"{digit.stride} apart"
    return f"{digit}: {digit.size} positions along {digit.dim} {where}, numbers {apart}"


# ---------------------------------------------------------------- shared tiles


@frozen(eq=False)
class TileShown:
    """A tile of shared memory: declaration, first state of the IR with it, bank conflicts of its reads, picture."""

    name: str
    declared: str  #: as the IR prints it
    arrangement: str  #: its swizzle, or another order of elements, in words
    since: str  #: the state of the IR that declares it first
    addressed: str  #: the first state in which messages have its addresses
    is_swizzled: bool
    conflicts: tuple[int, int] | None  #: extra clocks of the first read of a subgroup; the same without a swizzle
    drawing: Drawing


def shared_tiles(history: StepHistory, facts: TargetFacts) -> list[TileShown]:
    """Return all shared tiles of a kernel, in order."""
    *_, (_, last) = history.states
    return [_tile(tile, history, facts) for tile in last.shared]


def _tile(tile: Shared, history: StepHistory, facts: TargetFacts) -> TileShown:
    states = list(history.states)
    since = next(name for name, kernel in states if tile in kernel.shared)
    addressed = next((name for name, kernel in states if _has_addresses(kernel, tile)), "")
    reads = (s for _, kernel in states for s in postorder(kernel.body) if isinstance(s, LoadShared) and s.tile is tile)
    read = next(reads, None)
    conflicts = None
    if read is not None and tile.swizzle.mask:
        plain = Shared(tile.name, tile.elem, tile.rows, tile.cols, tile.digits, tile.slots, Swizzle(), tile.chunk)
        with_swizzle, without = (_conflicts(variant, read.layout, facts) for variant in (tile, plain))
        conflicts = None if with_swizzle is None or without is None else (with_swizzle, without)
    first = next(kernel for name, kernel in states if name == since)
    lines = (line.strip() for line in str(first).splitlines())
    return TileShown(
        tile.name,
        next(line for line in lines if line.startswith(f"shared {tile.name}:")),
        _arrangement(tile),
        since,
        addressed,
        bool(tile.swizzle.mask),
        conflicts,
        _banks(tile, facts),
    )


def _has_addresses(kernel: Kernel, tile: Shared) -> bool:
    """Return whether messages on a tile have computed addresses."""
    messages = (s for s in postorder(kernel.body) if isinstance(s, Stmt) and s.level == "message")
    return any(getattr(message, "tile", None) is tile for message in messages)


def _arrangement(tile: Shared) -> str:
    """Return a sentence on the order of a tile's elements."""
    line, across = ("column", "row") if tile.is_transposed else ("row", "column")
    if tile.swizzle.mask:
        formula = str(tile.swizzle).replace("row", line)
        of = f"of a {line}" if tile.swizzle.mask < tile.chunks else f"counted {line} after {line}"
        return f"Swizzled: chunk c of {tile.chunk} bytes, {of}, stands at place c ^ ({formula})."
    if len(tile.digits.digits) > 2:
        return "No swizzle: elements stand in the order in which the matrix instruction takes them."
    pitch = "" if tile.is_dense else f", with a gap behind each {line}"
    return f"No swizzle: {line} after {line}{pitch}, {across} by {across}."


def _conflicts(tile: Shared, layout: Fragment, facts: TargetFacts) -> int | None:
    """Return the extra clocks of subgroup 0's first read, if each lane reads a chunk; None for other reads."""
    lane, register = np.meshgrid(np.arange(facts.subgroup_size), np.arange(layout.registers), indexing="ij")
    row, col = layout.coords(0, lane, register).values()
    at = np.broadcast_to(tile.address(0, row, col), lane.shape)
    width = facts.chunk_bytes
    count = width // tile.elem.bytes
    if layout.registers % count or (at[:, :count] - at[:, :1] != np.arange(count) * tile.elem.bytes).any():
        return None
    return conflict_cycles(at[:, 0] // width, facts.shared_read, width)


def _banks(tile: Shared, facts: TargetFacts) -> Drawing:
    """Draw the first lines of shared memory, a row of all banks each; cells are as wide as runs of neighbours."""
    banks = facts.shared_read.banks
    at = np.asarray(tile.address(0, *np.indices((tile.rows, tile.cols))))
    most = min(tile.chunk, facts.chunk_bytes, banks * _BANK)
    by_rows, by_columns = (_run(addresses, tile.elem.bytes, most) for addresses in (at, at.T))
    name, along, width = ("row", at, by_rows) if by_rows >= by_columns else ("column", at.T, by_columns)
    across, per = banks * _BANK // width, width // tile.elem.bytes
    lines = -(-tile.slot_bytes // (across * width))
    shown = min(lines, _MOST_LINES)
    cells = [[Cell(None, 0, ()) for _ in range(across)] for _ in range(shown)]
    for line in range(along.shape[0]):
        for part in range(along.shape[1] // per):
            down, place = divmod(int(along[line, part * per]) // width, across)
            if down < shown:
                colour = part if tile.swizzle.mask else line
                cells[down][place] = Cell(colour % len(PALETTE), 0, (f"{name[0]}{line}", f"·{part}"))
    title = f"{tile.name}: {tile.rows} x {tile.cols} {tile.elem}, a slot of {tile.slot_bytes} bytes"
    some = f"the first {shown} of {lines} lines; " if shown < lines else ""
    remark = f"{some}in each cell: the {name}, and which {width} bytes of it; its first bank; colours repeat after 8"
    kinds = ("part" if tile.swizzle.mask else name, "")
    bytes_ = Axis("byte", tuple(str(n * across * width) for n in range(shown)))
    return draw_cells(
        cells, bytes_, Axis("bank", tuple(str(n * width // _BANK) for n in range(across))), kinds, title, remark
    )


def _run(along: Addresses, elem_bytes: int, most: int) -> int:
    """Return the bytes of the longest runs, up to `most`, whose neighbours along a line are neighbours in memory."""
    width = elem_bytes
    while 2 * width <= most and along.shape[1] % (count := 2 * width // elem_bytes) == 0:
        runs = along.reshape(along.shape[0], -1, count)
        if (runs - runs[..., :1] != np.arange(count) * elem_bytes).any():
            break
        width *= 2
    return width


# ---------------------------------------------------------------- the mapping


@frozen(eq=False)
class MappingShown:
    """The mapping of the largest launch: workgroup, die and round of each tile."""

    order: str
    m: int
    n: int
    slices: int
    batch: int
    dies: int
    in_flight: int  #: workgroups of a die at a time
    persists: bool  #: whether workgroups take several tiles, or shares of tiles
    drawing: Drawing | None
    tiles: Sequence[Sequence[str]]  #: by M and N, in words: its die, workgroup and round; none where there are too many

    @property
    def example(self) -> tuple[int, int]:
        """Return an example tile, along M and N."""
        return min(3, self.m - 1), min(5, self.n - 1)

    @property
    def at_example(self) -> str:
        """Return the text of the example tile."""
        return self.tiles[self.example[0]][self.example[1]]


def mapping(plan: Plan, together: int) -> MappingShown | None:
    """Return the mapping of the largest product, with `together` workgroups on a unit."""
    if not plan.parts:
        return None
    launch = LaunchTraffic.of(plan, together)
    chosen = plan.largest.mapping
    batch, m, n, slices = chosen.counts
    dies, persists, takers = plan.facts.caches.dies, chosen.order.persist is not None, takers_of(chosen)
    in_flight = -(-chosen.turns.workgroups // dies) if persists else launch.in_flight
    shown = MappingShown(str(chosen.order), m, n, slices, batch, dies, in_flight, persists, None, ())
    if chosen.numbers > _MOST_TILES:
        return shown
    first = np.where((chosen.tiles()[:, 0] == 0)[:, None], tiles_of(chosen), -1)  # of the first result
    title = f"{m} x {n} tiles in the order {chosen.order}"
    drawing = draw(first, (m, n), dies, in_flight, title, takers)
    tiles = _of_persisting(chosen, dies) if persists else _by_tile(Schedule.of(first, dies, in_flight), chosen, dies)
    return evolve(shown, drawing=drawing, tiles=tiles)


def _by_tile(schedule: Schedule, chosen: WorkgroupMapping, dies: int) -> list[list[str]]:
    """Return, for each tile, the workgroup that has its first slice."""
    _, m, n, _ = chosen.counts
    texts = [["none"] * n for _ in range(m)]
    columns = schedule.tile, schedule.number, schedule.round
    for (row, column, part), number, turn in zip(*(values.tolist() for values in columns)):
        if part == 0:
            texts[row][column] = f"{_who((chosen.first or 0) + number, dies)}, round {turn}"
    return texts


def _of_persisting(chosen: WorkgroupMapping, dies: int) -> list[list[str]]:
    """Return, for each tile, all workgroups that have a share of it."""
    _, m, n, _ = chosen.counts
    here = {"batch": (0,), "k": (0,)}
    groups = [[chosen.groups({**here, "m": (row,), "n": (column,)}) for column in range(n)] for row in range(m)]
    return [["; ".join(_who(group, dies) for group in groups_of_tile) for groups_of_tile in row] for row in groups]


def _who(group: int, dies: int) -> str:
    """Return a workgroup with the die to which the chip distributes it, as text."""
    return f"die {group % dies}, workgroup {group}" if dies > 1 else f"workgroup {group}"
