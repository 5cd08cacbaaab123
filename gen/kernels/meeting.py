"""Reduction of a tile's slices or shares within one launch: the last workgroup to arrive adds up all stored sums.

No workgroup waits. With `at_a_time`, sharers are reduced in groups: the last of each group stores the group's sum and
meets the last of other groups, until one group is left. Sums are added in the order of K within a group, and groups in
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from convgen.ir.build import Index, KernelBuilder
from convgen.ir.expr import Expr, Var, eq
from convgen.ir.layout.digits import plus
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.index import lesser
from convgen.ir.layout.memory import Dim, Global, TensorDim, View
from convgen.ir.layout.tags import Layout
from convgen.ir.record import frozen
from convgen.ir.types import s32, vector
from convgen.kernels.agree import one_finds, teams
from convgen.plan.plan import Part, Plan

_MOST_SUMMED = 32  #: elements of a lane; sums of shares that are added at a time
_MOST_LOADED = 128  #: elements of a lane; loads in flight of several sharers' sums

Start = tuple[Index, Index]  #: coordinates along N and M
Sum = Callable[[Fragment], Var]  #: returns the sum over all sharers of a part of the tile


@frozen
class Meeting:
    """The workspace in which the sharers of a tile store their sums, and the counters that find the last to arrive."""

    sums: View  #: axes N of a tile and (sharer, shared tile, M of a tile)
    #: Arrived subgroups, by group of sharers, tile and number in the workgroup; subgroups that branch together count as
    #: a team.
    counts: Global

    @classmethod
    def of(cls, plan: Plan, part: Part) -> Meeting:
        """Return the workspace of a product, tile by tile, so that no access is masked."""
        tile_m, tile_n, _ = plan.config.tile
        mapping = part.mapping
        most = max(p.mapping.sharers * p.mapping.shared for p in plan.parts)
        memory = Global("workspace", plan.acc_type, most * tile_m * tile_n * plan.acc_type.bytes)
        places = mapping.sharers * mapping.shared
        groups, each = sum(plan.config.groups(mapping.sharers)), plan.subgroups // teams(plan.facts, plan.subgroups)
        counts = max(p.mapping.shared for p in plan.parts) * groups * each
        sums = _as_held(plan, memory, places) if plan.config.at_a_time else _by_rows(plan, memory, places)
        return cls(sums, Global("counts", s32, counts * s32.bytes))


def _by_rows(plan: Plan, memory: Global, places: int) -> View:
    """Return a view of `places` tiles, each laid out as in the result."""
    tile_m, tile_n, _ = plan.config.tile
    rows = places * tile_m
    index = TensorDim(rows, (("m", 1),)), TensorDim(tile_n, (("n", 1),))
    axes = (Dim("n", tile_n, tile_n),), (Dim("m", rows, rows),)
    return View(memory, Layout.dense((rows, tile_n), (0, 1)), axes, index)


def _as_held(plan: Plan, memory: Global, places: int) -> View:
    """Return a view of `places` tiles in the order of lanes' registers: messages of all lanes fill whole lines."""
    tile_m, tile_n, _ = plan.config.tile
    image = plan.mma.reduced_d.image(plan.facts.subgroup_size, plan.acc_type.bytes, plan.facts.chunk_bytes)
    held = [(Dim(f"{d.dim}{n}", d.size, d.size), d.stride) for n, d in enumerate(image.digits) if d.size > 1]
    held.append((Dim("m_place", places, places), tile_m * tile_n))
    axes = tuple(tuple(dim for dim, _ in reversed(held) if dim.name.startswith(axis)) for axis in "nm")
    index = tuple(TensorDim(dim.size, ((dim.name, 1),)) for dim, _ in held)
    layout = Layout.strided((dim.size for dim, _ in held), [stride for _, stride in held])
    return View(memory, layout, axes, index)


@frozen
class _Level:
    """A group of sharers, or of groups of them, that one arrival reduces."""

    first: Index  #: rank of the first sharer in the group
    step: int  #: ranks from one member of the group to the next
    turns: Index  #: number of members
    place: Index  #: index of the group's counter among those of all tiles


@frozen
class Meet:
    """One workgroup's part in a reduction."""

    k: KernelBuilder
    plan: Plan
    part: Part
    tile: dict[str, Index]
    meeting: Meeting

    def leave(
        self, at: tuple[Index, Index], total: Expr, layout: Fragment, start: tuple[Index, Index] = (0, 0)
    ) -> None:
        """Store sums of the tile from `start` on in the sharer's place `at` (see `left_at`)."""
        place = plus(at[0], start[0]), plus(at[1], start[1])
        self.k.store_view(self.meeting.sums, place, total, layout, "leave", self.meeting.sums.memory.name)

    def left_at(self, rank: Index) -> Start:
        """Return where a sharer of the tile stores its sums."""
        mapping = self.part.mapping
        place = rank * mapping.shared + mapping.place(self.tile)
        return 0, self.k.let("left_at", place * self.plan.config.tile[0])

    @contextmanager
    def last_to_arrive(self, whole: Sequence[Fragment]) -> Iterator[Sum]:
        """Open a block for the subgroup that is the last of all sharers to have stored its sums of the whole tile.

        Yields a function that returns the sum of one of the `parts`.
        """
        levels = self._levels()
        with ExitStack() as around:
            for level in levels:
                self._arrive(around, level)
                if level is not levels[-1]:
                    at = self.left_at(level.first)
                    for part in self.parts(whole):
                        self.leave(at, self._sum(level, part), part)
            yield lambda part: self._sum(levels[-1], part)

    def parts(self, whole: Sequence[Fragment]) -> Iterator[Fragment]:
        """Yield the parts of a tile that are added up at a time."""
        most = min(_MOST_SUMMED, max(1, _MOST_LOADED // max(1, self.plan.config.at_a_time)))
        return (part for layout in whole for part in layout.parts(most))

    def _arrive(self, around: ExitStack, level: _Level) -> None:
        """Open a block for the last of a group, which closes with `around`."""
        k, facts, together = self.k, self.plan.facts, teams(self.plan.facts, self.plan.subgroups)
        if together == 1:
            index, turns = level.place * self.plan.subgroups + k.subgroup, level.turns
        else:  # a team counts in one place; if one of its subgroups is the last, all of them go on
            index, turns = (
                level.place * (self.plan.subgroups // together) + k.subgroup // together,
                level.turns * together,
            )
        arrived = k.ticket("arrived", self.meeting.counts, index, turns)
        around.enter_context(k.when(one_finds(k, facts, eq(arrived, turns - 1))))
        if together > 1:
            k.acquire()

    def _levels(self) -> list[_Level]:
        sharers, rank, of_tile = self.tile["sharers"], self.tile["rank"], self.part.mapping.place(self.tile)
        at_a_time = self.plan.config.at_a_time
        if not at_a_time or not isinstance(sharers, int):
            return [_Level(0, 1, sharers, of_tile)]
        levels, step, counts, members = list[_Level](), 1, 0, sharers
        for groups in self.plan.config.groups(sharers):
            group = rank // (step * at_a_time) if groups > 1 else 0
            turns = members if groups == 1 else lesser(members - group * at_a_time, at_a_time)
            place = plus(of_tile * groups + group, counts)
            levels.append(_Level(group * (step * at_a_time), step, turns, place))
            step, counts, members = step * at_a_time, counts + groups * self.part.mapping.shared, groups
        return levels

    def _sum(self, level: _Level, layout: Fragment) -> Var:
        """Return the sum of a group's stored parts of a layout, added in the order of K."""
        k, held = self.k, vector(self.plan.acc_type, layout.registers)
        if self.plan.config.at_a_time and isinstance(self.tile["sharers"], int):
            return self._sum_at_once(level, layout)
        with k.loop("shares", 0, level.turns, total=k.zeros(held)) as loop:
            loop.yields(k.let("total_next", loop["total"] + self._left(loop.var, layout)))
        return loop.result("total")

    def _sum_at_once(self, level: _Level, layout: Fragment) -> Var:
        """Return the sum of a group without a loop; members that do not exist read as zeros."""
        most = level.turns if isinstance(level.turns, int) else self.plan.config.at_a_time
        first, *others = [self._left(level.first + n * level.step, layout) for n in range(most)]
        total = first
        for part in others:
            total = self.k.let("total_next", total + part)
        return total

    def _left(self, rank: Index, layout: Fragment) -> Var:
        """Return the sums that one sharer has stored."""
        memory = self.meeting.sums.memory
        return self.k.load_view("part", self.meeting.sums, self.left_at(rank), layout, "sum", memory.name)
