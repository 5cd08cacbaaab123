"""Reduction of a tile's slices or shares within one launch: the last workgroup to arrive adds up all stored sums.

Sharers are the workgroups that share the K of one tile: slices, or stream-K shares. None of them waits. With
`at_a_time`, sharers are reduced in groups, level by level: the last arrival of each group stores the group's sum and
counts as one sharer of the next level, until one group is left. Sums are added in the order of K within a group, and
groups in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from convgen.ir.build import Index, KernelBuilder
from convgen.ir.expr import Expr, Var, eq
from convgen.ir.layout.digits import Straddles, plus
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.index import lesser
from convgen.ir.layout.memory import Dim, Global, TensorDim, View
from convgen.ir.layout.tags import Layout
from convgen.ir.record import frozen
from convgen.ir.types import s32, vector
from convgen.kernels.agree import one_finds, voters
from convgen.plan.plan import Part, Plan

_MOST_SUMMED = 32  #: elements of a lane; sums of shares that are added at a time
_MOST_LOADED = 128  #: elements of a lane; loads in flight of several sharers' sums

Start = tuple[Index, Index]  #: coordinates along N and M
Sum = Callable[[Fragment], Var]  #: returns the sum over all sharers of a part of the tile


@frozen
class ReductionBuffers:
    """The workspace in which the sharers of a tile store their sums, and the counters that find the last arrival."""

    sums: View  #: axes N of a tile and (sharer, shared tile, M of a tile)
    #: Arrivals, by group of sharers, tile, and number in the workgroup of the subgroup, or of the subgroups that vote
    #: together (`agree.voters`).
    counts: Global

    @classmethod
    def of(cls, plan: Plan, part: Part) -> ReductionBuffers:
        """Return the workspace of a product, tile by tile, so that no access is masked."""
        tile_m, tile_n, _ = plan.config.tile
        mapping = part.mapping
        most = max(p.mapping.sharers * p.mapping.shared for p in plan.parts)
        memory = Global("workspace", plan.acc_type, most * tile_m * tile_n * plan.acc_type.bytes)
        places = mapping.sharers * mapping.shared
        groups = sum(plan.config.levels(mapping.sharers))
        counters = plan.subgroups // voters(plan.facts, plan.subgroups)  # of a workgroup
        counts = max(p.mapping.shared for p in plan.parts) * groups * counters
        sums = _in_register_order(plan, memory, places) if plan.config.at_a_time else _by_rows(plan, memory, places)
        return cls(sums, Global("counts", s32, counts * s32.bytes))


def _by_rows(plan: Plan, memory: Global, places: int) -> View:
    """Return a view of `places` tiles, each laid out as in the result."""
    tile_m, tile_n, _ = plan.config.tile
    rows = places * tile_m
    index = TensorDim(rows, (("m", 1),)), TensorDim(tile_n, (("n", 1),))
    axes = (Dim("n", tile_n, tile_n),), (Dim("m", rows, rows),)
    return View(memory, Layout.dense((rows, tile_n), (0, 1)), axes, index)


def _in_register_order(plan: Plan, memory: Global, places: int) -> View:
    """Return a view of `places` tiles in the order of lanes' registers: messages of all lanes fill whole lines.

    Where the messages cut a lane's registers unevenly, each tile is laid out as in the result.
    """
    tile_m, tile_n, _ = plan.config.tile
    try:
        image = plan.mma.reduced_d.image(plan.facts.subgroup_size, plan.acc_type.bytes, plan.facts.chunk_bytes)
    except Straddles:
        return _by_rows(plan, memory, places)
    dims = [(Dim(f"{d.dim}{n}", d.size, d.size), d.stride) for n, d in enumerate(image.digits) if d.size > 1]
    dims.append((Dim("m_place", places, places), tile_m * tile_n))
    axes = tuple(tuple(dim for dim, _ in reversed(dims) if dim.name.startswith(axis)) for axis in "nm")
    index = tuple(TensorDim(dim.size, ((dim.name, 1),)) for dim, _ in dims)
    layout = Layout.strided((dim.size for dim, _ in dims), [stride for _, stride in dims])
    return View(memory, layout, axes, index)


@frozen
class _Level:
    """One level of a workgroup's reduction: its group of sharers, or of earlier groups."""

    first: Index  #: rank of the first sharer in the group
    step: int  #: ranks from one member of the group to the next
    members: Index  #: number of members
    counter: Index  #: index of the group's counter among those of all tiles


@frozen
class LastArrival:
    """One workgroup's part in a reduction by the last arrival: it stores its sums, then reduces if it is the last."""

    k: KernelBuilder
    plan: Plan
    part: Part
    tile: dict[str, Index]  #: numbers of the workgroup's tile and share, see `WorkgroupMapping`
    buffers: ReductionBuffers

    def store(
        self, at: tuple[Index, Index], total: Expr, layout: Fragment, start: tuple[Index, Index] = (0, 0)
    ) -> None:
        """Store sums of the tile from `start` on in the sharer's place `at` (see `place_of`)."""
        place = plus(at[0], start[0]), plus(at[1], start[1])
        self.k.store_view(self.buffers.sums, place, total, layout, "leave", self.buffers.sums.memory.name)

    def place_of(self, rank: Index) -> Start:
        """Return where the sharer `rank` of the tile stores its sums."""
        mapping = self.part.mapping
        place = rank * mapping.shared + mapping.place(self.tile)
        return 0, self.k.let("left_at", place * self.plan.config.tile[0])

    @contextmanager
    def last_to_arrive(self, whole: Sequence[Fragment]) -> Iterator[Sum]:
        """Open a block that only the last of all sharers executes, once all have stored their sums of the whole tile.

        Yields a function that returns the sum over all sharers of one of the `parts`.
        """
        levels = self._levels()
        with ExitStack() as around:
            for level in levels:
                self._arrive(around, level)
                if level is not levels[-1]:
                    at = self.place_of(level.first)
                    for part in self.parts(whole):
                        self.store(at, self._sum(level, part), part)
            yield lambda part: self._sum(levels[-1], part)

    def parts(self, whole: Sequence[Fragment]) -> Iterator[Fragment]:
        """Yield the parts of a tile that are added up at a time, few enough for a lane's registers."""
        most = min(_MOST_SUMMED, max(1, _MOST_LOADED // max(1, self.plan.config.at_a_time)))
        return (part for layout in whole for part in layout.parts(most))

    def _arrive(self, around: ExitStack, level: _Level) -> None:
        """Count this workgroup's arrival, and open a block for the last of a group, which closes with `around`."""
        k, facts, together = self.k, self.plan.facts, voters(self.plan.facts, self.plan.subgroups)
        if together == 1:
            index, arrivals = level.counter * self.plan.subgroups + k.subgroup, level.members
        else:  # voters share a counter; if one of these subgroups is the last, all of them go on
            index, arrivals = (
                level.counter * (self.plan.subgroups // together) + k.subgroup // together,
                level.members * together,
            )
        arrived = k.ticket("arrived", self.buffers.counts, index, arrivals)
        around.enter_context(k.when(one_finds(k, facts, eq(arrived, arrivals - 1))))
        if together > 1:
            k.acquire()

    def _levels(self) -> list[_Level]:
        """Return this workgroup's group on each level; one level with all sharers without `at_a_time`."""
        sharers, rank, of_tile = self.tile["sharers"], self.tile["rank"], self.part.mapping.place(self.tile)
        at_a_time = self.plan.config.at_a_time
        if not at_a_time or not isinstance(sharers, int):
            return [_Level(0, 1, sharers, of_tile)]
        levels, step, counts, members = list[_Level](), 1, 0, sharers
        for groups in self.plan.config.levels(sharers):
            group = rank // (step * at_a_time) if groups > 1 else 0
            own = members if groups == 1 else lesser(members - group * at_a_time, at_a_time)
            counter = plus(of_tile * groups + group, counts)
            levels.append(_Level(group * (step * at_a_time), step, own, counter))
            step, counts, members = step * at_a_time, counts + groups * self.part.mapping.shared, groups
        return levels

    def _sum(self, level: _Level, layout: Fragment) -> Var:
        """Return the sum of the group's stored sums in a part of the tile, added in the order of K."""
        k, sums_type = self.k, vector(self.plan.acc_type, layout.registers)
        if self.plan.config.at_a_time and isinstance(self.tile["sharers"], int):
            return self._straight_line_sum(level, layout)
        with k.loop("shares", 0, level.members, total=k.zeros(sums_type)) as loop:
            loop.yields(k.let("total_next", loop["total"] + self._stored(loop.var, layout)))
        return loop.result("total")

    def _straight_line_sum(self, level: _Level, layout: Fragment) -> Var:
        """Return the sum of a group without a loop; members that do not exist read as zeros."""
        most = level.members if isinstance(level.members, int) else self.plan.config.at_a_time
        first, *others = [self._stored(level.first + n * level.step, layout) for n in range(most)]
        total = first
        for part in others:
            total = self.k.let("total_next", total + part)
        return total

    def _stored(self, rank: Index, layout: Fragment) -> Var:
        """Load the sums that the sharer `rank` has stored for a part of the tile."""
        memory = self.buffers.sums.memory
        return self.k.load_view("part", self.buffers.sums, self.place_of(rank), layout, "sum", memory.name)
