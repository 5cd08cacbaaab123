"""The launches of a plan, in order, and the workgroups of each launch that an output tile needs.

Sections are independent parts of the output: one for each matrix product (a stride phase of backward data), one for
positions that no window reaches, one for the gradient of a bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product as combinations

import numpy as np
import numpy.typing as npt

from convgen.epilogue.epilogue import Epilogue
from convgen.epilogue.steps import Convert
from convgen.ir.layout.mapping import WorkgroupMapping
from convgen.ir.layout.memory import Global, TensorDim, View
from convgen.ir.layout.walks import Ragged
from convgen.ir.program import Kernel, Program
from convgen.ir.record import evolve, frozen
from convgen.ir.types import scalar
from convgen.kernels import streams
from convgen.kernels.compensation_sums import sums_kernel
from convgen.kernels.last_arrival import ReductionBuffers
from convgen.kernels.product import kernel_name, merged_kernel, product_kernel
from convgen.kernels.slice_workspace import SliceWorkspace
from convgen.kernels.streams import Move, OfTiles, Stream
from convgen.plan import dequantise, epilogues, views
from convgen.plan.config import MERGED
from convgen.plan.contraction import GATE, Joined, Product
from convgen.plan.grouped_axis import GroupedAxis, GroupTile
from convgen.plan.lane_tile import LaneTile
from convgen.plan.packing import Packing
from convgen.plan.plan import Part, Plan, Reduction
from convgen.problem.grouping import Grouping
from convgen.problem.matmul import Matmul, Problem, grouping_of
from convgen.problem.tensors import TensorSpec
from convgen.run.code import OutputRegion

Indices = npt.NDArray[np.int64]
Positions = tuple[range, range, range]  #: ranges along M, N and the products of a batch

_FILL_TILE = (64, 64)
#: terms that one lane sums when slices are reduced, for a large and for a small result
_MOST_TERMS, _FEW_TERMS = 256, 16


@frozen
class TiledKernel:
    """One kernel, and which of its workgroups computes which tile of `tile` rows (M) and columns (N).

    Without a tile the kernel does not write the output, and every output tile needs all of its workgroups.
    """

    kernel: Kernel
    tile: tuple[int, int] | None
    mapping: WorkgroupMapping

    def groups(self, positions: Positions) -> tuple[int, ...]:
        """Return the workgroups, in all slices, that compute one of the positions."""
        if self.tile is None:
            return self.mapping.groups({})
        counts = self.mapping.counts[1:3]
        down, across = (
            range(p.start // size, min(-(-p.stop // size), count))
            for p, size, count in zip(positions, self.tile, counts)
        )
        batch = positions[2] if self.mapping.counts[0] > 1 else range(1)
        return self.mapping.groups({"m": down, "n": across, "batch": batch})


@frozen
class Section:
    """Output tiles of `result` (N, M, …) and the launches, by number, that compute them; tiles are numbered row by row.

    A launch that several sections share lists only the workgroups of this section. With several products, the rows of
    one stand below those of another; the result's third axis numbers products.
    """

    output: str
    result: View
    tile: tuple[int, int]
    grid: tuple[int, int]
    launches: Mapping[int, TiledKernel]
    overwritten: tuple[View, ...] = ()  #: views of the parts of the result that later launches overwrite
    joined: Joined | None = None  #: fused dims of the result, if any

    def positions(self, tile: int) -> Positions:
        row, column = divmod(tile, self.grid[1])
        extents = self.result.extent(1), self.result.extent(0)
        number, row = divmod(row, -(-extents[0] // self.tile[0])) if self.is_batched else (0, row)
        down, across = (range(i * s, min((i + 1) * s, e)) for i, s, e in zip((row, column), self.tile, extents))
        return down, across, range(number, number + 1)

    def groups(self, launch: TiledKernel, tile: int) -> tuple[int, ...]:
        """Return the workgroups of a launch that a tile needs."""
        return launch.groups(self.positions(tile))

    @property
    def is_batched(self) -> bool:
        """Whether the section is the result of several products."""
        return len(self.result.axes) > 2


@frozen
class GroupedSection(Section):
    """Output tiles of a product in groups of rows or columns, those that have elements with the problem's sizes."""

    tiles: tuple[GroupTile, ...] = ()
    side: int = 1  #: axis of the result that is grouped: 0 (N) or 1 (M)

    @classmethod
    def of(cls, section: Section, groups: GroupedAxis, grouping: Grouping) -> Section:
        """Return the section of a product, with the tiles of its groups if these are rows or columns."""
        if groups.side is None:
            return section
        side, rest = section.tile[1 - groups.side], list(section.grid)
        tiles = tuple(tile for tile in groups.numbered(grouping.ends, side) if tile.positions)
        rest[1 - groups.side] = len(tiles)
        return cls(
            section.output,
            section.result,
            section.tile,
            (rest[0], rest[1]),
            section.launches,
            tiles=tiles,
            side=groups.side,
        )

    def positions(self, tile: int) -> Positions:
        """Return rows, columns and the group of a tile."""
        numbers, extents = divmod(tile, self.grid[1]), (self.result.extent(1), self.result.extent(0))
        ranges = [range(i * s, min((i + 1) * s, e)) for i, s, e in zip(numbers, self.tile, extents)]
        chosen = self._chosen(tile)
        ranges[1 - self.side] = chosen.positions
        return ranges[0], ranges[1], range(chosen.group, chosen.group + 1)

    def groups(self, launch: TiledKernel, tile: int) -> tuple[int, ...]:
        """Return the workgroups of a launch that a tile needs, by the tile's number along the grouped side."""
        if launch.tile is None:
            return launch.groups(self.positions(tile))
        numbers, chosen = list(divmod(tile, self.grid[1])), self._chosen(tile)
        if isinstance(launch.mapping.order.walk, Ragged):
            _, down, across, _ = launch.mapping.counts
            other = numbers[self.side]
            numbers = list(divmod(chosen.column_by_column(other, (down, across)[self.side]), across))
        else:
            numbers[1 - self.side] = chosen.number
        return launch.mapping.groups({"m": numbers[:1], "n": numbers[1:]})

    def _chosen(self, tile: int) -> GroupTile:
        return self.tiles[divmod(tile, self.grid[1])[1 - self.side]]


@frozen
class Tiles:
    """The output tiles of a program (see `code.OutputTiles`), by section."""

    problem: Problem
    launches: tuple[TiledKernel, ...]
    sections: tuple[Section, ...]

    @property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """Return M tiles, N tiles of each section."""
        return tuple(s.grid for s in self.sections)

    def groups(self, part: int, tile: int) -> tuple[tuple[int, ...], ...]:
        """Return, for each launch, the workgroups that the tile needs."""
        section = self.sections[part]
        launches = map(section.launches.get, range(len(self.launches)))
        return tuple(section.groups(launch, tile) if launch else () for launch in launches)

    def regions(self, part: int, tile: int) -> tuple[OutputRegion, ...]:
        """Return the rows and columns of its output that the tile holds."""
        section = self.sections[part]
        down, across, number = section.positions(tile)
        fixed = section.result.decode(2, np.asarray(number, np.int64)) if section.is_batched else {}
        masks = self._masks(section)
        names = _split(self.problem, section, {name for mask in masks for name, _ in mask.terms})
        runs = (
            _runs(section.result, axis, names[axis], _stored(section.result, axis, np.asarray(positions, np.int64)))
            for axis, positions in enumerate((across, down))
        )
        return tuple(
            self._region(section, rows, columns, {**fixed, **of_columns, **of_rows})
            for (of_columns, columns), (of_rows, rows) in combinations(*runs)
            if all(0 <= mask.at({**of_columns, **of_rows}) < mask.size for mask in masks)
        )

    def _masks(self, section: Section) -> list[TensorDim]:
        """Return the coordinates of dims of M and N, beside the tensor's own, outside which nothing is stored."""
        view, known = section.result, _names(section.result, 0) | _names(section.result, 1)
        return [t for t in view.index[_rank(self.problem, section) :] if known.issuperset(dict(t.terms))]

    def _region(self, section: Section, down: Indices, across: Indices, fixed: dict[str, Indices]) -> OutputRegion:
        """Return the output region of some rows and columns: a product of coordinates once `fixed` dims are fixed."""
        coordinates = {**_coordinates(section, 1, down, fixed), **_coordinates(section, 0, across, fixed)}
        spec = self.problem.tensor(section.output)
        rows, columns = self._matrix(section, coordinates, _sizes_of(self.problem, spec))
        sizes = spec.layout.padded_dims
        in_blocks = None if sizes == spec.dims else self._matrix(section, coordinates, sizes)
        return OutputRegion(section.output, rows, columns, in_blocks)

    def _matrix(
        self, section: Section, coordinates: dict[int, Indices], sizes: Sequence[int]
    ) -> tuple[Indices, Indices]:
        """Return the rows and columns of coordinates that lie within `sizes` and that no later launch overwrites."""
        dims = _matrix_dims(self.problem, section.output)
        (rows, is_kept), (columns, exists) = (_flat(coordinates, side, sizes) for side in dims)
        if section.overwritten:
            reached = [_reached(view, coordinates, dims[0]) for view in section.overwritten]
            is_kept = is_kept & ~np.logical_or.reduce(reached)
        return rows[is_kept], columns[exists]


def _sizes_of(problem: Problem, spec: TensorSpec) -> tuple[int, ...]:
    """Return the sizes of an output, with the rows of the product in place of those that it scatters them to."""
    routing = problem.routing if isinstance(problem, Matmul) else None
    scatters = routing is not None and routing.scatter is not None and not routing.sums_slots
    return (problem.m, problem.columns) if isinstance(problem, Matmul) and scatters else spec.dims


def _rank(problem: Problem, section: Section) -> int:
    """Return the dims of the output; further coordinates of its view are masks."""
    return len(problem.tensor(section.output).dims)


def _names(view: View, axis: int) -> set[str]:
    return {d.name for d in view.axes[axis]}


def _shared(view: View, axis: int) -> set[str]:
    """Return the dims of an axis (0: N, 1: M) that share a tensor coordinate with the other axis, such as phases."""
    own, others = _names(view, axis), _names(view, 1 - axis)
    return {name for t in view.index for name, _ in t.terms if others.intersection(dict(t.terms))} & own - others


def _split(problem: Problem, section: Section, masking: set[str]) -> tuple[set[str], set[str]]:
    """Return the dims of N and M to fix, run by run, so that a region is the product of some rows and columns.

    Dims in `masking` decide whether anything is stored, and are fixed as well.
    """
    of_n, of_m = _apart(problem, section, masking)
    view = section.result
    return of_n | masking & _names(view, 0), of_m | masking & _names(view, 1)


def _apart(problem: Problem, section: Section, known: set[str]) -> tuple[set[str], set[str]]:
    """Return the dims of N and M to fix, beside the `known` ones, for `_split`.

    For that the rows of the output's matrix depend on one axis alone, and so do its columns. The dims of N are fixed
    that share a tensor coordinate with M, such as phases. Where rows or columns depend on both axes even then, the
    phases of M are fixed if M has them, else the dims of N that number these rows or columns together with dims of M,
    as groups along N and channels along M do, or such dims of M, as taps beside output channels are.
    """
    view = evolve(section.result, index=section.result.index[: _rank(problem, section)])
    shared = _shared(view, 0)
    joined = section.joined
    index = joined.index if joined else view.index
    matrix = [{n for d in dims for n, _ in index[d].terms} - known for dims in _matrix_dims(problem, section.output)]
    fused = {d.name: joined.name for d in joined.dims} if joined else {}
    names = [{d.name for d in dims} for dims in view.axes[:2]]
    names = [own | {n for n, whole in fused.items() if whole in own} for own in names]
    if joined and _are_apart(matrix, names):
        return shared, set()
    if not any(used & names[0] - shared and used & names[1] for used in matrix):
        return shared, set()
    if phases := _shared(view, 1):
        return set(), phases
    on_both = [all(used & own for own in names) for used in matrix]
    for sides in (0, 0), (1, 1), (1, 0), (0, 1):  # of rows, of columns
        fixed = [
            set[str]().union(*(u & names[n] for u, side, both in zip(matrix, sides, on_both) if both and side == n))
            for n in (0, 1)
        ]
        if _are_apart([used - fixed[0] - fixed[1] for used in matrix], names):
            of_n, of_m = ({fused.get(name, name) for name in own} for own in fixed)
            return of_n, of_m
    raise AssertionError(f"no regions of {section.result.axes}")


def _are_apart(matrix: Sequence[set[str]], names: Sequence[set[str]]) -> bool:
    """Whether rows depend on one axis of the view, and columns on another one."""
    rows, columns = ({n for n, own in enumerate(names) if used & own} for used in matrix)
    return len(rows) <= 1 and len(columns) <= 1 and not rows & columns


def _runs(view: View, axis: int, names: set[str], positions: Indices) -> Iterator[tuple[dict[str, Indices], Indices]]:
    """Yield the values of the named dims of an axis, and the positions along the axis that have these values."""
    decoded = view.decode(axis, positions).items()
    dims = {name: np.broadcast_to(at, positions.shape) for name, at in decoded if name in names}
    combinations, index = np.unique(np.array([*dims.values(), np.zeros_like(positions)]), axis=1, return_inverse=True)
    for n, values in enumerate(combinations.T):
        yield dict(zip(dims, values)), positions[index.ravel() == n]


def _stored(view: View, axis: int, positions: Indices) -> Indices:
    """Return the positions along an axis of a result that are stored: those of a gate, of pairs of gate and up."""
    if GATE not in _names(view, axis):
        return positions
    is_gate: npt.NDArray[np.bool_] = np.asarray(view.decode(axis, positions)[GATE]) == 0
    return positions[is_gate]


def _coordinates(section: Section, axis: int, positions: Indices, fixed: dict[str, Indices]) -> dict[int, Indices]:
    """Return the tensor coordinates that depend on one axis, at positions along it, and on dims that are fixed."""
    view, joined = section.result, section.joined
    dims = view.decode(axis, positions) | fixed
    index = view.index
    if joined:
        dims, index = joined.separated(dims), joined.index
    return {n: t.at(dims) for n, t in enumerate(index) if t.terms and all(name in dims for name, _ in t.terms)}


def _matrix_dims(problem: Problem, output: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tensor dims that form the rows and columns of an output matrix (see `reference.output_shape`)."""
    count = len(problem.tensor(output).dims)
    if isinstance(problem, Matmul):
        return tuple(range(count - 1)), (count - 1,)
    if output == "diff_bia":
        return (), (0,)
    if output == "diff_wei":
        g = int(problem.has_groups)
        return (*range(2 + g, count), 1 + g), (*range(g), g)
    return (0, *range(2, count)), (1,)


def _flat(
    coordinates: dict[int, Indices], dims: Sequence[int], sizes: Sequence[int]
) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """Return row or column numbers from coordinates along some dims, outermost first, and whether each is inside."""
    number, inside = np.zeros(1, np.int64), np.ones(1, np.bool_)
    for d in dims:
        at = coordinates.get(d, np.zeros(1, np.int64))
        number, inside = number * sizes[d] + at, inside & (at >= 0) & (at < sizes[d])
    return number, np.broadcast_to(inside, number.shape)


def _reached(other: View, coordinates: dict[int, Indices], dims: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Whether each coordinate lies on the grid that another view of the tensor writes."""
    on_grid = np.ones(1, np.bool_)
    for d in dims:
        (_, step), *_ = other.index[d].terms
        on_grid = on_grid & ((coordinates[d] - other.index[d].const) % step == 0)
    return on_grid


# ---------------------------------------------------------------- the launches


def build(plan: Plan) -> tuple[Program, Tiles]:
    """Return the program of a plan, and its output tiles."""
    builder = _Builder(plan)
    builder.uncovered()
    builder.reorders()
    builder.widened()
    builder.products()
    builder.bias_gradient()
    kernels = tuple(launch.kernel for launch in builder.launches)
    buffers = dict.fromkeys(p for k in kernels for p in k.params if isinstance(p, Global))
    return Program(kernels, tuple(buffers)), Tiles(plan.problem, tuple(builder.launches), tuple(builder.sections))


_Launches = dict[int, TiledKernel]  #: by number


class _Builder:
    """Collector of the launches and sections of a plan; its public methods are called in launch order."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.problem = plan, plan.problem
        self.launches: list[TiledKernel] = []
        self.sections: list[Section] = []
        self.shared: _Launches = {}  # launches that every product needs

    def _launch(self, kernel: Kernel, tile: tuple[int, int] | None, mapping: WorkgroupMapping) -> _Launches:
        self.launches.append(TiledKernel(kernel, tile, mapping))
        return {len(self.launches) - 1: self.launches[-1]}

    def _stream(self, stream: Stream, *, by_tile: bool = True) -> _Launches:
        """Add a stream's launch; unless `by_tile`, every reader needs all of its workgroups."""
        kernel = stream.kernel(kernel_name(self.plan, stream.role), self.plan.facts)
        return self._launch(kernel, stream.tile if by_tile else None, stream.mapping)

    def _sums(self, part: Part) -> _Launches:
        """Add the launches that sum a factor; every tile of the product needs all of their workgroups."""
        launches: _Launches = {}
        for sums in part.launches_before:
            name = kernel_name(self.plan, sums.role)
            kernel, mapping = sums_kernel(name, sums, views.sizes(self.problem), self.plan.facts)
            launches |= self._launch(kernel, None, mapping)
        return launches

    def _copied(self, role: str, *moves: Move) -> _Launches:
        """Add the kernel that copies tensors; every reader needs all of its workgroups."""
        kernel, mapping = streams.transpose(kernel_name(self.plan, role), moves, self.plan.facts)
        return self._launch(kernel, None, mapping)

    def reorders(self) -> None:
        """Add the kernel that reorders inputs; every tile needs all of its workgroups."""
        names = self.plan.config.reorder
        if names and self.plan.parts:
            role = "_".join(("reorder", *names))
            self.shared |= self._copied(role, *(Move(*views.reordering(self.problem, name)) for name in names))

    def _packed(self, part: Part) -> _Launches:
        """Add the kernel that packs a product's inputs; every tile of the product needs all of its workgroups."""
        packings = [path.packing for path in (part.of_n, part.of_m) if path.packing]
        moves = [Move(each.source, each.target, self._dequantisation(part, each)) for each in packings]
        role = "_".join(("pack", *(move.target.memory.name for move in moves)))
        return self._copied(role, *moves) if moves else {}

    def _dequantisation(self, part: Part, packing: Packing) -> OfTiles | None:
        """Return the dequantisation of an input of a product that a launch packs, by its tiles; None without any."""
        return partial(dequantise.of, self.problem, packing.source, part.product.cuts) if packing.dequantises else None

    def _before(self, part: Part) -> _Launches:
        """Add the launches that only this product needs first."""
        return {**self._packed(part), **self._sums(part)}

    def widened(self) -> None:
        """Add the kernels that widen 4-bit zero points to bytes."""
        for point in self.problem.zero_points:
            if views.is_widened(self.problem, point.name):
                self.shared |= self._copied(f"widen_{point.name}", Move(*views.widening(self.problem, point.name)))

    def products(self) -> None:
        """Add the launches of all matrix products."""
        if self.plan.config.grids == MERGED:
            self._merged()
            return
        for part in self.plan.parts:
            self._product(part)

    def _merged(self) -> None:
        """Add one launch for all products, after the launches that they need."""
        plan = self.plan
        launches_before = [self._before(part) for part in plan.parts]
        main = self._launch(merged_kernel(plan, "main"), plan.config.tile[:2], plan.parts[0].mapping)
        for part, before in zip(plan.parts, launches_before):
            own = {n: evolve(launch, mapping=part.mapping) for n, launch in main.items()}
            self._section(part, {**self.shared, **before, **own})

    def _section(self, part: Part, used: _Launches) -> None:
        batch, rows, columns, _ = part.mapping.counts
        output, tile = self.problem.outputs[0].name, self.plan.config.tile[:2]
        result, joined, groups = part.product.result, part.product.joined, part.product.grouped
        section = Section(output, result, tile, (batch * rows, columns), used, joined=joined)
        grouping = grouping_of(self.problem)
        sections = [section]
        for step in part.epilogue.groupings:
            sections += [evolve(section, output=view.memory.name, result=view) for view in step.views_written]
        for each in sections:
            self.sections.append(GroupedSection.of(each, groups, grouping) if groups and grouping else each)

    def _product(self, part: Part) -> None:
        """Add the launches of one matrix product."""
        plan, tile = self.plan, self.plan.config.tile[:2]
        result, acc, facts = part.product.stored, plan.acc_type, plan.facts
        slots = views.slots_of(self.problem)
        tail = f"_{part.product.role}" if part.product.role else ""
        used = {**self.shared, **self._before(part)}

        def multiply(target: View, epilogue: Epilogue, buffers: ReductionBuffers | None = None) -> None:
            if isinstance(plan.unit, LaneTile):
                from convgen.kernels.window_sums import windows_kernel  # long, and seldom needed

                kernel = windows_kernel(plan, part, target, epilogue, f"main{tail}")
            else:
                kernel = product_kernel(plan, part, target, epilogue, f"main{tail}", buffers)
            used.update(self._launch(kernel, None if slots else tile, part.mapping))

        if slots:
            used |= self._filled(slots, tile, tail)
        match plan.reduction:
            case Reduction.ALONE:
                multiply(result, part.epilogue)
            case Reduction.ATOMIC:
                used |= self._stream(streams.fill(result, part.epilogue, acc, tile, facts, f"begin{tail}"))
                multiply(views.without_padding(self.problem, result), _NOTHING)
            case Reduction.LAST:
                multiply(result, part.epilogue, ReductionBuffers.of(plan, part) if part.mapping.sharers > 1 else None)
            case Reduction.LAUNCH:
                workspace = SliceWorkspace(plan, part)
                multiply(workspace.slices, _NOTHING)
                terms, most = workspace.terms, _FEW_TERMS if isinstance(plan.unit, LaneTile) else _MOST_TERMS
                total = streams.sum_slices(terms, result, part.epilogue, acc, tile, facts, f"sum{tail}", most)
                used |= self._stream(total)
        if slots:
            self._tokens(slots, tile, tail, used)
        else:
            self._section(part, used)

    def _filled(self, slots: views.Slots, tile: tuple[int, int], tail: str) -> _Launches:
        """Add the launch that stores zeros in all slots, of which some may have no row."""
        elem = slots.memory.elem
        stream = streams.fill(slots.whole, _NOTHING, elem, tile, self.plan.facts, f"begin{tail}")
        return self._stream(stream, by_tile=False)

    def _tokens(self, slots: views.Slots, tile: tuple[int, int], tail: str, used: _Launches) -> None:
        """Add the launch that sums the slots of each token; any tile of the result may need all rows of the product."""
        output, elem = self.problem.outputs[0], slots.memory.elem
        result, rounded = views.rows_and_columns(output), Epilogue((Convert(scalar(output.dtype)),))
        total = streams.sum_slices(slots.terms, result, rounded, elem, tile, self.plan.facts, f"sum{tail}", _MOST_TERMS)
        launches = {**used, **self._stream(total)}
        self.sections.append(Section(output.name, result, total.tile, total.mapping.counts[1:3], launches))

    def uncovered(self) -> None:
        """Fill positions that no window reaches, if there are any.

        Without steps after the sums zeros are stored everywhere, as the products overwrite the rest.
        """
        if views.covers_result(self.problem, self.plan.config.phases):
            return
        if views.stores_rest(self.problem):
            for product in views.untouched(self.problem):
                self._without_terms(product)
            return
        whole = views.whole_result(self.problem)
        zero = Epilogue((Convert(whole.memory.elem),))
        stream = streams.fill(whole, zero, self.plan.acc_type, _FILL_TILE, self.plan.facts, "zero")
        reached = tuple(part.product.result for part in self.plan.parts)
        output, used = self.problem.outputs[0].name, self._stream(stream)
        self.sections.append(Section(output, stream.result, stream.tile, stream.mapping.counts[1:3], used, reached))

    def _without_terms(self, product: Product) -> None:
        """Add the launch that stores the epilogue of sums without terms."""
        plan, result, role = self.plan, product.result, "_".join(filter(None, ("rest", product.role)))
        epilogue = Epilogue(epilogues.of(self.problem, product))
        stream = streams.fill(result, epilogue, plan.acc_type, _FILL_TILE, plan.facts, role)
        batch, rows, columns, _ = stream.mapping.counts
        output, used = self.problem.outputs[0].name, self._stream(stream)
        self.sections.append(Section(output, result, stream.tile, (batch * rows, columns), used))

    def bias_gradient(self) -> None:
        """Add the sums of diff_dst over all positions, if the problem asks for a bias gradient."""
        gradient = views.bias_gradient(self.problem)
        if gradient is None:
            return
        target = self.problem.tensor("diff_bia")
        chain = streams.sums_of_channels(gradient, target, self.plan.acc_type, self.plan.facts, "bias")
        used, last = {n: launch for stream in chain for n, launch in self._stream(stream).items()}, chain[-1]
        self.sections.append(Section(target.name, last.result, last.tile, last.mapping.counts[1:3], used))


_NOTHING = Epilogue(())  #: sums stored unchanged
