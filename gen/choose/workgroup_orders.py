"""Choice of the order of workgroups for a product: a few of each kind, ranked by modelled cache traffic."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product as combinations

import numpy as np

from convgen.backends.tuning import tuning
from convgen.choose.panels import Ints
from convgen.choose.traffic import Moved, Operands, Tiles, Traffic, TrafficCount
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.mapping import WorkgroupMapping
from convgen.ir.layout.order import IN_ROWS, Order
from convgen.ir.layout.walks import Chunk, Grouped, Ragged, Remap, Xcc
from convgen.ir.record import evolve, frozen
from convgen.plan.contraction import Product
from convgen.plan.grouped_axis import GroupedAxis, can_number
from convgen.plan.lane_tile import LaneTile
from convgen.plan.plan import Plan

_MATTERS = 0.2  #: share of a launch's fixed cost; with fewer clocks of memory, orders are not compared
_IN_COLUMNS = Order(walk=Grouped("m"))
_MOST_WORKGROUPS = 1 << 15  #: workgroups; in larger launches orders are not compared, as each takes milliseconds


@frozen
class LaunchTraffic:
    """The properties of a product's launch, besides the order, that decide its traffic."""

    product: Product
    tile: tuple[int, int]  #: along M and N
    tiles: tuple[int, int]  #: along M and N
    slices: int
    facts: TargetFacts
    together: int  #: workgroups on one unit

    @cached_property
    def operands(self) -> Operands:
        """Return what the tiles read and write; computed on demand, since it is slow for many tiles."""
        return Operands.of(self.product, self.tile, self.facts.caches)

    @property
    def in_flight(self) -> int:
        """Return the workgroups on one die at a time."""
        return max(1, self.facts.compute_units // self.facts.caches.dies) * self.together

    def mapping(self, order: Order) -> WorkgroupMapping:
        return WorkgroupMapping.of(*self.tiles, k=self.slices, order=order)

    @classmethod
    def of(cls, plan: Plan, together: int = 1) -> LaunchTraffic:
        """Return the largest launch of a plan, with `together` workgroups on a unit."""
        part = plan.largest
        tile_m, tile_n, _ = plan.config.tile
        _, m, n, slices = part.mapping.counts
        return cls(part.product, (tile_m, tile_n), (m, n), slices, plan.facts, together)

    @property
    def workgroups(self) -> int:
        m, n = self.tiles
        return m * n * self.slices

    @property
    def shares_columns(self) -> bool:
        """Return whether workgroups of equal columns should follow each other, which saves reads of N's input.

        That holds where all run at once and N's input is much larger than M's.
        """
        at_once = self.slices == 1 < self.tiles[0] and self.workgroups <= self.facts.compute_units * self.together
        of_n, of_m = self.product.of_n.memory.bytes, self.product.of_m.memory.bytes
        return at_once and of_n >= tuning(self.facts).much_larger * of_m

    def count(self, order: Order) -> TrafficCount:
        mapping = self.mapping(order)
        back = mapping.is_backward((np.arange(mapping.numbers), 0, 0))
        tiles, takers = tiles_of(mapping), takers_of(mapping)
        units = self.facts.compute_units
        return TrafficCount.of(tiles, self.operands, self.facts.caches, units, self.together, back, takers)

    def traffic(self, order: Order) -> Traffic:
        return self.count(order).traffic

    def least(self, traffic: Traffic) -> Traffic:
        """Return a lower bound on any order's traffic: each byte is loaded once, and results reach all channels."""
        once = self.operands.rows.whole + self.operands.columns.whole
        return evolve(traffic, fill=min(traffic.fill, once), memory=min(traffic.memory, once), channels=1.0)

    def simulated(self, order: Order, plan: Plan) -> Moved:
        """Return the traffic of a matrix product block by block, through least-recently-used caches."""
        from convgen.choose.lru import Steps, simulate

        mapping, part = self.mapping(order), plan.parts[0]
        back = mapping.is_backward((np.arange(mapping.numbers), 0, 0))
        tile_m, tile_n, tile_k = plan.config.tile
        elems = part.product.of_m.memory.elem.bytes, part.product.of_n.memory.elem.bytes
        rows, columns = (n * tile_k * elem for n, elem in zip((tile_m, tile_n), elems))
        steps = Steps(count=part.k_blocks, rows=rows, columns=columns, depth=tile_k * elems[0])
        facts = self.facts
        tiles, takers = tiles_of(mapping), takers_of(mapping)
        return simulate(tiles, steps, facts.caches, facts.compute_units, self.together, k_reversed=back, takers=takers)


def tiles_of(mapping: WorkgroupMapping) -> Tiles:
    """Return M tile, N tile and slice of K by linear workgroup number; -1 where a workgroup has no tile."""
    return mapping.tiles()[:, 1:].astype(np.int32)


def takers_of(mapping: WorkgroupMapping) -> Ints | None:
    """Return, by tile number, the persistent workgroup that computes its first blocks of K; None if none persist."""
    if not mapping.order.persist:
        return None
    first = mapping.first or 0
    return mapping.turns.first_owners()[first : first + mapping.numbers]


def best_order(launch: LaunchTraffic) -> Order:
    """Return the order with the fewest clocks of memory that fills L2 no more than `IN_ROWS`, or that if none pays.

    The traffic of workgroups that all run at once is alike in all orders. Tiles of groups have an order of their own.
    """
    if launch.product.grouped:
        return _order_of_groups(launch.product.grouped, launch)
    if not launch.facts.caches.dies < launch.workgroups <= _MOST_WORKGROUPS:
        return IN_ROWS
    if launch.shares_columns:
        return _IN_COLUMNS
    default = launch.traffic(IN_ROWS)
    clocks_of_memory = default.clocks(launch.facts.caches, launch.facts.compute_units)
    worth = tuning(launch.facts).order_worth
    if default.fill * worth <= default.bound or clocks_of_memory < _MATTERS * tuning(launch.facts).launch:
        return IN_ROWS
    least = launch.least(default)
    best, fewest = IN_ROWS, worth * clocks_of_memory
    if least.clocks(launch.facts.caches, launch.facts.compute_units) >= fewest:
        return IN_ROWS
    for order in _orders(launch):
        count = launch.count(order)
        if count.fill <= default.fill and count.clocks(least.memory) < fewest and count.clocks() < fewest:
            best, fewest = order, count.clocks()
    return best


def ordered(plan: Plan, together: int) -> Plan:
    """Return the plan in the order that suits its largest launch, with `together` workgroups on a unit."""
    if not plan.parts or plan.parts[0].product.batch > 1:
        return plan  # in a batch, the order within one product matters little
    if plan.problem.runtime:  # the number of tiles is known only at launch
        return plan
    if isinstance(plan.unit, LaneTile):  # sums over windows have an order of their own
        return plan
    order = best_order(LaunchTraffic.of(plan, together))
    return plan.in_order(evolve(order, persist=plan.config.map.persist))


def _order_of_groups(groups: GroupedAxis, launch: LaunchTraffic) -> Order:
    """Return the order of tiles of groups, of which only those of one group share a factor's columns.

    All tiles of a group follow each other, along the groups first, unless all columns of a group are in flight at once.
    Of more tiles than `ragged` can number, as many as a group has on average follow each other.
    """
    if groups.side is None:
        return IN_ROWS
    other = launch.tiles[groups.side]
    size = groups.size // groups.count // launch.tile[1 - groups.side]
    if size < 2 or size * other <= launch.in_flight:
        return IN_ROWS
    if not can_number(launch.tiles):
        return Order(walk=Grouped("m" if groups.side else "n", size, even=True))
    return Order(walk=Ragged())


def _orders(launch: LaunchTraffic) -> Iterator[Order]:
    """Yield columns, then even groups about as high or wide as the best rectangle, each die in one part of the grid."""
    dies = launch.facts.caches.dies
    remaps = (Xcc(dies),) if dies > 1 else ()
    yield _IN_COLUMNS
    for along, size in _sizes(launch):
        yield Order(remaps, Grouped(along, size, even=True))


def _sizes(launch: LaunchTraffic) -> Iterator[tuple[str, int]]:
    """Yield (dimension, tiles) of groups: sides of the rectangle that reads least, and sizes around them.

    The rectangle has as many tiles as a die has workgroups in flight, a wave of `traffic`.
    """
    rows, columns = launch.operands.rows, launch.operands.columns
    row, column = rows.whole / rows.tiles, columns.whole / columns.tiles
    wave = launch.in_flight
    height = min(range(1, wave + 1), key=lambda r: r * row + -(-wave // r) * column)
    for along, size, most in (("m", height, launch.tiles[0]), ("n", -(-wave // height), launch.tiles[1])):
        for near in dict.fromkeys((size, max(1, size * 3 // 4), size * 3 // 2)):
            if near < most:
                yield along, near


def well_known_orders(dies: int, size: int) -> dict[str, Order]:
    """Return well-known orders by name, with groups of `size`; without remaps if there is one die."""
    remaps: tuple[tuple[Remap, ...], ...] = ((Xcc(dies),), (Chunk(dies, size * size),)) if dies > 1 else ()
    texts = [f"group:{size}m", f"group:{size}n", f"even:{size}m:snake", f"even:{size}n:snake", "hilbert"]
    walks = {text: Order.parse(text).walk for text in ("rows", "cols", *texts)}
    orders = (Order(remap, walk) for remap, walk in combinations(((), *remaps), walks.values()))
    return {str(order): order for order in orders}
