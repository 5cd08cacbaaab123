"""The plan: from problem and config to everything that the builder needs, with checks of what fits.

A plan fixes views, fragments, shared tiles and grids, and estimates registers. `supported` refuses problems for which
no plan exists; `DoesNotFit` concerns the config.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from functools import partial
from math import prod
from typing import Any

from convgen.epilogue.epilogue import Epilogue
from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import times
from convgen.ir.layout.mapping import WorkgroupMapping
from convgen.ir.layout.memory import Shared, View
from convgen.ir.layout.mma import MmaTile
from convgen.ir.layout.order import Order
from convgen.ir.layout.walks import Ragged
from convgen.ir.record import evolve, frozen
from convgen.ir.simplify.extents import rounded_up
from convgen.ir.sizes import Extent
from convgen.ir.types import Type, scalar
from convgen.passes.messages.packed_views import check_halves
from convgen.passes.split_chains import ROOM as EPILOGUE_REGISTERS
from convgen.plan import block_scales, epilogues
from convgen.plan.atoms import packed_type, sums_outside
from convgen.plan.compensation import Sums, compensation
from convgen.plan.config import EXACT, MERGED, TENSOR, Config, LanePart
from convgen.plan.contraction import Product
from convgen.plan.copies import is_read_transposed
from convgen.plan.grouped_axis import MOST_NUMBERED, can_number
from convgen.plan.inputs import InputPath
from convgen.plan.lane_tile import LaneTile
from convgen.plan.packing import Packing, packed
from convgen.plan.padding import Padding, padding, recomputed_tile
from convgen.plan.refusals import check_words
from convgen.plan.registers import LaneRegisters, Pipeline, masks_of
from convgen.plan.subgroup_reduction import SubgroupReduction
from convgen.plan.variants.variant import Packings, variant_of
from convgen.plan.wide_messages import with_pairs
from convgen.plan.window_views import Windows
from convgen.problem.matmul import Problem

#: numbers of runs into which an instruction's rows may be cut, so that its rows are interleaved with those of others
_ROW_RUNS = (2, 4, 8)
MOST_GROUPS = (1 << 31) - 1  #: workgroups; along an axis of a grid, which kernels count in s32


class Reduction(Enum):
    """How slices of K are reduced to one result, as the config word `sum=` says.

    (`SubgroupReduction` reduces the partial sums of one workgroup's subgroups before that.)
    """

    ALONE = ""  #: there is one slice
    ATOMIC = "atomic"  #: each slice adds to the result, which starts as zero or the bias
    LAUNCH = "launch"  #: each slice stores to a part of a workspace; a second launch sums them in order
    LAST = "last"  #: each slice stores to a part of a workspace; the last to arrive sums them in order


@frozen
class Part:
    """One matrix product of the problem."""

    product: Product
    of_n: InputPath
    of_m: InputPath
    launches_before: tuple[Sums, ...]  #: launches of sums that the product, or its epilogue, reads
    epilogue: Epilogue
    mapping: WorkgroupMapping
    padding: Padding | None = None  #: views for exact padding, where needed

    @property
    def k_blocks(self) -> int:
        """Return the blocks of K of one slice."""
        return self.mapping.turns.blocks_of_tile

    def trips(self, tile_k: int) -> Extent | None:
        """Return the blocks of K as an expression of launch-time sizes; None where the number is known."""
        blocks = rounded_up(self.product.along_k.length(1), tile_k)
        return None if isinstance(blocks, int) else blocks

    @property
    def tiles(self) -> tuple[Shared, ...]:
        """Return the tiles in shared memory."""
        paths = self.of_n, self.of_m, self.of_n.scale_path, self.of_m.scale_path
        return tuple(path.tile for path in paths if path and path.tile)


@frozen
class Plan:
    """All decisions about the kernels of one problem."""

    problem: Problem
    config: Config
    facts: TargetFacts
    unit: MmaTile | LaneTile  #: the tile of matrix instructions, or of lanes that multiply by themselves
    parts: tuple[Part, ...]
    reduction: Reduction
    registers: int  #: registers; of a lane, accumulators included, estimate
    subgroup_reduction: SubgroupReduction | None = None  #: reduction over subgroups along K, if `waves_k` > 1

    @property
    def mma(self) -> MmaTile:
        """Return the tile of matrix instructions; the plan must have one."""
        assert isinstance(self.unit, MmaTile)
        return self.unit

    @property
    def subgroups(self) -> int:
        return self.config.subgroups

    @property
    def shared_bytes(self) -> int:
        """Return the most bytes of shared memory that a workgroup of any part takes."""
        return max((sum(t.bytes for t in p.tiles) for p in self.parts), default=0)

    @property
    def largest(self) -> Part:
        """Return the part with the most work."""
        return max(self.parts, key=lambda p: p.product.m * p.product.n * p.product.k)

    def in_order(self, order: Order) -> Plan:
        """Return the plan with workgroups in another order."""
        parts = (evolve(part, mapping=evolve(part.mapping, order=order)) for part in self.parts)
        return evolve(self, config=evolve(self.config, map=order), parts=tuple(parts))

    @property
    def acc_type(self) -> Type:
        return scalar(self.problem.acc_type)

    @property
    def sums_outside(self) -> bool:
        """Return whether sums are kept outside of the instruction (`atoms.sums_outside`)."""
        return sums_outside(self.mma.atom, self.problem.acc_mode, block_scales.of(self.problem))


def make_plan(problem: Problem, config: Config, facts: TargetFacts) -> Plan:
    """Return the plan; raises DoesNotFit where the config does not suit problem or target."""
    check_words(problem, config, facts)
    unit, products = variant_of(config).lay_out(problem, config, facts)
    unit, parts = _laid_out(problem, products, unit, config, facts)
    reduction = _reduction(problem, config, parts, facts)
    if reduction is Reduction.ATOMIC and isinstance(unit, MmaTile) and unit.regroups_columns:
        # Atomics add one element a lane at a time, fastest where neighbouring lanes have neighbouring elements.
        unit, parts = _laid_out(problem, products, evolve(unit, run=1), config, facts)
    if isinstance(unit, MmaTile):
        _check_halves(parts, unit, facts)
        _check_groupings(parts, unit, reduction)
    if config.grids == MERGED:
        parts = _in_one_grid(parts, config, unit, reduction, facts)
    plan = Plan(problem, config, facts, unit, parts, reduction, 0)
    if plan.shared_bytes > facts.shared_bytes:
        raise DoesNotFit(f"{plan.shared_bytes} bytes of shared memory, at most {facts.shared_bytes}")
    if config.waves_k > 1:
        plan = _with_subgroup_reduction(plan)
    plan = evolve(plan, registers=max((_estimate_registers(plan, p) for p in parts), default=0))
    _check_registers(plan)
    return plan


def _check_halves(parts: Sequence[Part], mma: MmaTile, facts: TargetFacts) -> None:
    """Raise DoesNotFit where a lane would load only one of two 4-bit elements in a byte."""
    for part in parts:
        for side, whole in ((part.of_n, mma.a), (part.of_m, mma.b)):
            check_halves(side.view, side.copy.loaded if side.copy else whole)
        if part.padding:
            one = recomputed_tile(mma, facts)
            try:
                check_halves(part.padding.of_n, one.a)
                check_halves(part.padding.of_m, one.b)
            except DoesNotFit as error:  # independent of the tile
                raise DoesNotFit(f"padding={EXACT}: {error}", short_of="pairs") from error


def _check_groupings(parts: Sequence[Part], mma: MmaTile, reduction: Reduction) -> None:
    """Raise DoesNotFit where a step on groups of the result has not all sums of a group in one subgroup."""
    if any(part.epilogue.groupings for part in parts) and reduction is not Reduction.ALONE:
        raise DoesNotFit("slices: wanted one, for steps on groups of the result")
    for part in parts:
        for layout in part.epilogue.parts(mma.reduced_d, mma.reduced_d.registers):
            if part.product.result.memory.elem.bits == 4:
                with_pairs(layout, part.product.result)


def _with_subgroup_reduction(plan: Plan) -> Plan:
    """Return the plan with a scratch tile for the reduction over subgroups along K; DoesNotFit where it has no room."""
    reduction = SubgroupReduction.of(plan.mma, plan.parts[0].tiles if plan.parts else (), plan.facts)
    if not reduction:
        raise DoesNotFit("no input's shared memory has room to reduce the sums of subgroups along K")
    return evolve(plan, subgroup_reduction=reduction)


def _laid_out(
    problem: Problem, products: Sequence[Product], unit: MmaTile | LaneTile, config: Config, facts: TargetFacts
) -> tuple[MmaTile | LaneTile, tuple[Part, ...]]:
    """Return the tile and the parts of a plan, rows and columns in the order that has the fewest bank conflicts.

    On ties lanes have runs of columns, for wide stores, and rows are in order.
    """

    def parts_of(unit: MmaTile | LaneTile) -> tuple[Part, ...]:
        return tuple(_part(problem, product, unit, config, facts) for product in products)

    if isinstance(unit, MmaTile) and _needs_columns_in_order(products, unit, config, facts):
        unit = evolve(unit, run=1)
    parts = parts_of(unit)
    if isinstance(unit, MmaTile):
        for side, change in _other_orders(unit, parts, config, facts):
            if conflicts := _conflicts(parts, side):
                changed = evolve(unit, **change)
                changed_parts = parts_of(changed)
                unit, parts = (changed, changed_parts) if _conflicts(changed_parts, side) < conflicts else (unit, parts)
    return unit, parts


def _needs_columns_in_order(products: Sequence[Product], unit: MmaTile, config: Config, facts: TargetFacts) -> bool:
    """Whether transposing reads bring N's input only if neighbouring lanes of an instruction have neighbouring rows."""
    ordered, elem = evolve(unit, run=1), unit.atom.a_elem
    views = [product.of_n for product in products]
    return (
        config.slots > 0
        and facts.matrix_reads is not None
        and any(
            is_read_transposed(view, elem, ordered.a, facts) and not is_read_transposed(view, elem, unit.a, facts)
            for view in views
        )
    )


def _other_orders(
    unit: MmaTile, parts: Sequence[Part], config: Config, facts: TargetFacts
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (side, changed fields): columns of N in order; rows of M interleaved over instructions of blocked tiles.

    M stays in order where windows are resident and may begin at any row, and where an instruction's rows are numbered
    by tap.
    """
    if unit.run > 1:
        yield 0, {"run": 1}
    by_taps = any(part.padding and part.padding.has_taps(1) for part in parts)
    if facts.tiles_as_fragments and variant_of(config).rows_are_free and not by_taps:
        yield from ((1, {"rows": unit.atom.m // runs}) for runs in _ROW_RUNS if unit.atom.m % runs == 0)


def _conflicts(parts: tuple[Part, ...], side: int) -> int:
    """Return the extra cycles for bank conflicts of the first accesses to shared tiles of N's or M's inputs."""
    return sum((part.of_n, part.of_m)[side].conflicts for part in parts)


def _in_one_grid(
    parts: tuple[Part, ...], config: Config, unit: MmaTile | LaneTile, reduction: Reduction, facts: TargetFacts
) -> tuple[Part, ...]:
    """Return the products one after another in one grid, most work first; DoesNotFit where that is impossible."""
    given = f"grids={config.grids}"
    if len(parts) < 2 or isinstance(unit, LaneTile):
        raise DoesNotFit(f"{given}: wanted several products of stride phases by matrix instructions")
    if reduction is not Reduction.ALONE or config.map.shares or any(part.mapping.exact for part in parts):
        raise DoesNotFit(f"{given}: wanted workgroups of whole tiles, one slice and sizes that are known")
    if any(part.mapping.arguments for part in parts):
        raise DoesNotFit(f"{given}: map={config.map} takes an argument for each product")
    parts = _with_common_gaps(parts, facts)
    if len({part.tiles for part in parts}) > 1:
        raise DoesNotFit(f"{given}: products would take different tiles of shared memory")
    together = sum(part.mapping.numbers for part in parts) if config.map.persist else 0
    first, in_grid = 0, []
    for part in sorted(parts, key=lambda part: -part.k_blocks):
        in_grid.append(evolve(part, mapping=evolve(part.mapping, first=first, together=together)))
        first += part.mapping.numbers
    return tuple(in_grid)


def _with_common_gaps(parts: tuple[Part, ...], facts: TargetFacts) -> tuple[Part, ...]:
    """Return the parts with gaps at the same places in their blocked tiles: products of one grid use one tile in turn.

    Lanes may write each product's tile in another order; the gaps with the fewest bank conflicts in all are taken.
    """
    sides = [part.of_n for part in parts], [part.of_m for part in parts]
    paths = [_with_common_tile(side, facts) for side in sides]
    return tuple(evolve(part, of_n=of_n, of_m=of_m) for part, of_n, of_m in zip(parts, *paths))


def _with_common_tile(paths: Sequence[InputPath], facts: TargetFacts) -> Sequence[InputPath]:
    """Return the inputs of several products with one common tile, unless tiles are not blocked or there is no copy."""
    distinct_tiles = dict.fromkeys(path.tile for path in paths)
    if not facts.tiles_as_fragments or len(distinct_tiles) == 1 or not all(path.tile and path.copy for path in paths):
        return paths
    candidates = ([path.with_tile(tile, facts) for path in paths] for tile in distinct_tiles if tile)
    return min(candidates, key=lambda paths: sum(path.conflicts for path in paths))


def _reduction(problem: Problem, config: Config, parts: tuple[Part, ...], facts: TargetFacts) -> Reduction:
    """Return how slices are reduced: by `sum=`, else by atomics where that is correct; DoesNotFit if impossible."""
    if all(part.mapping.sharers == 1 for part in parts):
        return Reduction.ALONE
    acc = scalar(problem.acc_type)
    by_units = not isinstance(config.mma, LanePart)
    any_order = acc.is_int or not problem.deterministic  # integer sums are equal in any order
    may_add = by_units and any_order and all(part.epilogue.may_precede_sums(acc) for part in parts)
    if config.sum == "atomic" and not may_add:
        raise DoesNotFit("sum=atomic: slices cannot be added to the result in any order")
    if config.sum == "last" and not facts.tickets:
        raise DoesNotFit(f"sum=last: {facts.name} cannot order workgroups")
    if config.map.shares:
        return _stream_k_reduction(config, may_add, facts)
    return Reduction(config.sum or ("atomic" if may_add else "launch"))


def _stream_k_reduction(config: Config, may_add: bool, facts: TargetFacts) -> Reduction:
    """Return the reduction within a stream-K launch: in the order of K where the target has tickets."""
    if config.at_a_time:
        raise DoesNotFit(f"sum={config.sum}:{config.at_a_time}: map={config.map} reduces all shares of K at once")
    if config.sum == "launch":
        raise DoesNotFit(f"sum=launch: map={config.map} reduces shares of K within its own launch")
    if not config.sum and not facts.tickets and not may_add:
        raise DoesNotFit(f"map={config.map}: {facts.name} cannot order workgroups, so shares cannot be added in order")
    return Reduction(config.sum or ("last" if facts.tickets else "atomic"))


def _part(problem: Problem, product: Product, unit: MmaTile | LaneTile, config: Config, facts: TargetFacts) -> Part:
    """Return one product's part of the plan: paths of inputs, mapping, compensation, epilogue and exact padding."""
    tile_k = config.tile[2]
    blocks = -(-product.k // (tile_k * config.slices))
    packings = _packings(problem, product, unit, config, facts, blocks * config.slices * tile_k)
    of_n, of_m = variant_of(config).inputs(problem, product, packings, unit, config, facts)
    of_n, of_m = (evolve(path, packing=packing) for path, packing in zip((of_n, of_m), packings))
    mapping = _mapping(problem, product, config, blocks)
    _check_grid(mapping, config, facts)
    if isinstance(unit, MmaTile) and not facts.checks_bounds and not problem.runtime:
        mapping = _in_whole_rounds(mapping, product, config)
    blocks_of_slice = rounded_up(product.along_k.length(1), tile_k) if problem.runtime else mapping.turns.blocks_of_tile
    offsets, depth = (of_n.offset, of_m.offset), times(blocks_of_slice, tile_k * config.slices)
    compensated = compensation(problem, product, offsets, depth)
    epilogue = Epilogue((*compensated.steps, *epilogues.of(problem, product)))
    padding_views = None
    if config.padding == EXACT and isinstance(unit, MmaTile):
        images = [n for n, packing in enumerate(packings) if packing and packing.is_image]
        padding_views = padding(product, unit, images, shared=mapping.sharers > 1)
    return Part(product, of_n, of_m, compensated.launches, epilogue, mapping, padding_views)


def _check_grid(mapping: WorkgroupMapping, config: Config, facts: TargetFacts) -> None:
    """Raise DoesNotFit for more workgroups along x than a launch allows; `WorkgroupMapping` limits y and z."""
    lanes = config.subgroups * facts.subgroup_size
    most = min(MOST_GROUPS, facts.grid_items // lanes if facts.grid_items else MOST_GROUPS)
    if mapping.grid[0] > most:
        given = f"{mapping.grid[0]} workgroups of {lanes} work-items along x"
        raise DoesNotFit(f"{given}, wanted at most {most}: larger tiles make fewer")


def _packings(
    problem: Problem,
    product: Product,
    unit: MmaTile | LaneTile,
    config: Config,
    facts: TargetFacts,
    depth: int,
) -> Packings:
    """Return the packings of N's and M's input: whole tiles of rows, with `depth` elements of K each."""
    atom = unit.atom if isinstance(unit, MmaTile) else None

    def packing(side: int, view: View, rows: int, tile: int) -> Packing | None:
        if view.memory.name not in config.packed:
            return None
        if product.gathered and view.memory.name == "src":
            raise DoesNotFit(f"packed={view.memory.name}: its rows have numbers, wanted rows one after another")
        elem, dequantises = view.memory.elem, False
        if atom and config.packs_converted:
            elem = packed_type(elem, atom.factor_types[side])
            dequantises = block_scales.dequantises(problem, view, atom)
        chunk = facts.chunk_bytes // elem.bytes if variant_of(config).packs_images else 0
        whole = packed(view, product.role, (-(-rows // tile) * tile, depth), elem, row_multiple=chunk)
        return evolve(whole, dequantises=dequantises)

    tile_m, tile_n, _ = config.tile
    return packing(0, product.of_n, product.n, tile_n), packing(1, product.of_m, product.m, tile_m)


def _mapping(problem: Problem, product: Product, config: Config, blocks: int) -> WorkgroupMapping:
    """Return the mapping of workgroups to tiles, and of `blocks` blocks of K to each slice."""
    tile_m, tile_n, _ = config.tile
    tiles = product.tiles(tile_m, tile_n)
    if isinstance(config.map.walk, Ragged) and not can_number(tiles):
        raise DoesNotFit(f"map={config.map}: {prod(tiles)} tiles, wanted at most {MOST_NUMBERED}")
    if not problem.runtime:
        # Shares of a tile's K are cut at whole rounds, after which shared-memory slots and register stages repeat.
        grain = config.staging.round if config.map.shares else 1
        return WorkgroupMapping.of(
            *tiles, k=config.slices, batch=product.batch, order=config.map, blocks=blocks, grain=grain
        )
    result = product.result
    exact = rounded_up(result.length(1), tile_m), rounded_up(result.length(0), tile_n)
    products = result.length(2) if len(result.axes) > 2 else 1
    return WorkgroupMapping.sized((product.batch, *tiles, 1), (products, *exact, 1), config.map, blocks)


def _in_whole_rounds(mapping: WorkgroupMapping, product: Product, config: Config) -> WorkgroupMapping:
    """Return the mapping with whole rounds of blocks in each slice, unless that makes a slice longer.

    Some slices take one round more than others. Otherwise the last slice has blocks past the end of K, and loads are
    masked in every slice.
    """
    grain = config.staging.round
    rounds, rest = divmod(product.k, config.tile[2] * grain)
    longest = -(-rounds // config.slices) * grain
    if rest or rounds < config.slices or rounds % config.slices == 0 or longest > mapping.blocks or config.map.flip:
        return mapping
    return evolve(mapping, blocks=longest, grain=grain, uneven_grains=rounds)


def accumulator_registers(plan: Plan) -> int:
    """Return the registers of a lane that hold its sums."""
    if isinstance(plan.unit, LaneTile):
        lane, parts = plan.unit.lane_part, (part.product for part in plan.parts)
        most_sums = max((product.sums(lane) for product in parts if isinstance(product, Windows)), default=0)
        return lane.channels * most_sums * plan.acc_type.bytes // 4
    atom = plan.mma.atom
    return (1 + plan.sums_outside) * plan.mma.parts * plan.mma.d.registers * atom.acc.bytes // 4


def _estimate_registers(plan: Plan, part: Part) -> int:
    """Return the vector registers of a lane, accumulators included."""
    sums = accumulator_registers(plan)
    if isinstance(plan.unit, LaneTile):
        assert isinstance(part.product, Windows)
        return sums + part.product.registers(plan.unit.lane_part) + _MARGIN
    mma, elem, variant = plan.mma, plan.mma.atom.elem_bytes, variant_of(plan.config)
    copied = masks = 0
    for side in (part.of_n, part.of_m):
        messages = 0
        if side.tile and side.direct_bytes:
            messages = side.tile.slot_bytes // (side.direct_bytes * plan.facts.subgroup_size * plan.subgroups)
        elif side.tile and side.copy:
            messages = side.copy.loaded.registers // side.copy.message
            copied += side.copy.loaded.registers * elem // 4
        masks += messages * masks_of(side.view, variant.trims)
    epilogue = 0 if part.epilogue.is_light else EPILOGUE_REGISTERS
    registers = LaneRegisters(sums, mma.fragment_elements * elem // 4, copied, masks, epilogue)
    pipeline = Pipeline.of(partial(getattr, plan.config.staging))
    return int(registers.registers(part.k_blocks, pipeline, plan.facts, by_taps=variant.by_taps))


_MARGIN = 16  #: registers; addresses and temporaries of a lane that multiplies by itself; assumed
#: factor over the available registers up to which a config is tried, since the estimate may be too high; assumed
_ESTIMATE_TOLERANCE = 1.15


def vector_registers(plan: Plan) -> int:
    """Return the estimated registers of a lane, without accumulators that have a file of their own."""
    return plan.registers - (accumulator_registers(plan) if plan.config.separate_accumulators else 0)


def _check_registers(plan: Plan) -> None:
    """Raise DoesNotFit where a lane's estimated registers, or its accumulators, exceed those of the target."""
    acc = accumulator_registers(plan)
    separate = plan.config.separate_accumulators
    alu = vector_registers(plan)
    # Products whose sums an instruction keeps in flight must not spill any.
    may_spill = not (isinstance(plan.unit, MmaTile) and plan.unit.atom.in_shared)
    most = plan.facts.registers if may_spill else _most_registers(plan)
    if alu > most * (_ESTIMATE_TOLERANCE if may_spill else 1) or (separate and acc > plan.facts.accumulators):
        raise DoesNotFit(f"about {alu} registers and {acc} accumulators, at most {most}")


def registers_left(plan: Plan) -> int:
    """Return the registers of a lane beside the estimated ones, at least 0."""
    return max(0, _most_registers(plan) - vector_registers(plan))


def _most_registers(plan: Plan) -> int:
    """Return the most registers of a lane, where all subgroups of a workgroup share the SIMDs of a compute unit."""
    return min(plan.facts.registers, _share_of_simd(plan))


def _share_of_simd(plan: Plan) -> int:
    """Return a lane's share of the registers of the SIMDs of a compute unit."""
    core, roles = plan.facts.core, plan.facts.roles
    if roles and TENSOR in plan.config.paths:
        return roles.multiplying(core.simd_registers, plan.subgroups // roles.team + 1)
    subgroups = -(-plan.subgroups // core.simds)
    return core.simd_registers // subgroups // core.register_granule * core.register_granule
