"""Streaming kernels: sums along one axis, fills (sums of no terms), and reorders.

    result[n, m, p] = epilogue(sum over the r of part p of source[n, m, r])

for each product of a batch. A workgroup has one tile of N x M and one slice of R; its lanes are spread along N, then M,
then R. The partial sums of
different lanes and slices are the parts p; a long sum takes several such kernels in sequence. The order of all
additions is fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import isqrt, prod

from convgen.epilogue.epilogue import Epilogue, Reader
from convgen.epilogue.steps import Convert
from convgen.ir.build import Index, KernelBuilder
from convgen.ir.expr import Add, Expr, Slice, zeros
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mapping import WorkgroupMapping
from convgen.ir.layout.memory import Dim, Global, TensorDim, View, row_major
from convgen.ir.layout.tags import Layout
from convgen.ir.narrow import unpacked
from convgen.ir.program import Kernel
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type, VectorType, vector
from convgen.passes.buffer_shared import reordered
from convgen.passes.messages.packed_views import Run, bytes_of, fragment_of_bytes
from convgen.plan import dequantise
from convgen.plan.contraction import buffer
from convgen.plan.copies import copy_layout, next_power_of_two, power_of_two
from convgen.plan.dequantise import Dequantisation
from convgen.problem.tensors import TensorSpec

_VECTOR = 4  #: neighbours along N in the registers of a lane: one wide access
_AHEAD = 8  #: terms that a lane loads together, so that their latencies overlap
_SUBGROUPS = 4
_MOST_TERMS = 256  #: terms that one lane sums

_TRANSPOSED_ELEMS = 64  #: elements of a lane that it transposes in registers

ONE = Dim("one", 1, 1)  #: an axis with one position


@frozen
class Stream:
    """One streaming kernel. `layout` distributes a tile over dims n, m and r."""

    role: str
    source: View | None  #: axes N, M, R and, in a batch, its product
    result: View  #: axes N, M, P and, in a batch, its product
    epilogue: Epilogue
    acc: Type
    layout: Fragment
    rounds: int  #: tiles along R of one slice
    slices: int

    @property
    def tile(self) -> tuple[int, int]:
        """Return the extents along M and N."""
        return self.layout.extent("m"), self.layout.extent("n")

    @property
    def reduces(self) -> bool:
        """Whether the kernel reduces the partial sums of lanes and subgroups, instead of storing them as parts."""
        return self.result.extent(2) == 1 and any(
            d.dim == "r" and d.space is not Space.REGISTER for d in self.layout.digits
        )

    @property
    def mapping(self) -> WorkgroupMapping:
        tiles = (-(-self.result.extent(axis) // size) for axis, size in zip((1, 0), self.tile))
        return WorkgroupMapping.of(*tiles, k=self.slices, batch=self.result.extent(3) if self.is_batched else 1)

    @property
    def is_batched(self) -> bool:
        return len(self.result.axes) > 3

    def kernel(self, name: str, facts: TargetFacts) -> Kernel:
        k = KernelBuilder(name, self.mapping.grid, self.layout.subgroups, facts.subgroup_size)
        source = [self.source.memory] if self.source else []
        k.params += dict.fromkeys([*source, *self.epilogue.reads, self.result.memory])
        tile_m, tile_n = self.tile
        with k.tile_of(self.mapping) as tile:
            m0, n0 = k.let("m0", tile["m"] * tile_m), k.let("n0", tile["n"] * tile_n)
            batch = (tile["batch"],) if self.is_batched else ()
            of_sums = _without_terms(self.layout)
            parts = of_sums.extent("p")
            total = self._sum(k, (n0, m0), tile["k"], batch, vector(self.acc, of_sums.registers))
            if self.reduces:
                total, of_sums = k.reduce("whole", total, of_sums, "p", Add)
            stored = self.epilogue.apply(k, total, self.epilogue.load(Reader(k, (n0, m0, *batch)), of_sums))
            k.store_view(self.result, (n0, m0, tile["k"] * parts, *batch), stored, of_sums, "store")
        return k.done()

    def _sum(
        self, k: KernelBuilder, at: tuple[Expr, Expr], part: Index, batch: Sequence[Index], total: VectorType
    ) -> Expr:
        """Return a lane's sums over the terms of part `part`: term after term, then its registers pairwise."""
        if self.source is None:
            return zeros(total)
        sums_type = vector(self.acc, self.layout.registers)
        with k.loop("r_loop", 0, self.rounds, sum=zeros(sums_type)) as loop:
            r0 = (loop.var + part * self.rounds) * self.layout.extent("r")
            term = k.load_view("term", self.source, (*at, r0, *batch), self.layout, "load")
            loop.yields(k.let("sum_next", loop["sum"] + term.to(sums_type)))
        parts: list[Expr] = [Slice(loop.result("sum"), i, total.lanes) for i in range(0, sums_type.lanes, total.lanes)]
        while len(parts) > 1:
            parts = [parts[i] + parts[i + 1] for i in range(0, len(parts), 2)]
        return k.let("total", parts[0])


def _without_terms(layout: Fragment) -> Fragment:
    """Return the layout of the sums: terms in one lane are one sum, those in other lanes and subgroups are parts."""
    kept = (d for d in layout.digits if d.dim != "r" or d.space is not Space.REGISTER)
    return Fragment(("n", "m", "p"), tuple(evolve(d, dim="p") if d.dim == "r" else d for d in kept))


def _layout(n: int, m: int, lanes: int, subgroups: int, ahead: int, lanes_r: int = 1, subgroups_r: int = 1) -> Fragment:
    """Return a tile of at most n x m: registers along N, lanes along N and M, `ahead` terms of a lane in registers."""
    registers = min(_VECTOR, power_of_two(n))
    lanes_n = min(lanes // lanes_r, power_of_two(n) // registers)
    lanes_m = lanes // lanes_r // lanes_n
    digits = (
        Digit("n", registers, Space.REGISTER, 1),
        Digit("n", lanes_n, Space.LANE, 1),
        Digit("m", lanes_m, Space.LANE, lanes_n),
        Digit("m", subgroups // subgroups_r, Space.SUBGROUP, 1),
        Digit("r", ahead, Space.REGISTER, registers),
        Digit("r", lanes_r, Space.LANE, lanes_n * lanes_m),
        Digit("r", subgroups_r, Space.SUBGROUP, subgroups // subgroups_r),
    )
    return Fragment(("n", "m", "r"), tuple(d for d in digits if d.size > 1))


#: dequantisation of an input by tiles of so many rows and elements along K
OfTiles = Callable[[tuple[int, int]], Dequantisation | None]


@frozen
class Move:
    """A copy of a tensor to another layout and type of elements, from one view as (rows, K[, product]) to another."""

    source: View
    target: View
    dequantisation: OfTiles | None = None  #: None: elements are only converted

    def mapping(self, side: int) -> WorkgroupMapping:
        """Return the workgroups, each of which copies a square of `side` elements."""
        down, across, *batch = (self.target.extent(axis) for axis in range(len(self.target.axes)))
        return WorkgroupMapping.of(-(-down // side), -(-across // side), batch=prod(batch))


def transpose(name: str, moves: Sequence[Move], facts: TargetFacts) -> tuple[Kernel, WorkgroupMapping]:
    """Return one launch that copies tensors.

    Each lane transposes a small matrix in its registers, so that loads and stores both run along memory.
    """
    side = power_of_two(isqrt(_TRANSPOSED_ELEMS * facts.subgroup_size))
    mappings = [move.mapping(side) for move in moves]
    whole, *more = mappings
    if more:
        firsts = list(accumulate((prod(mapping.counts) for mapping in mappings), initial=0))
        mappings = [evolve(mapping, first=first) for mapping, first in zip(mappings, firsts)]
        whole = WorkgroupMapping.of(firsts[-1], 1)
    k = KernelBuilder(name, whole.grid, 1, facts.subgroup_size)
    for move, mapping in zip(moves, mappings):
        source, target = move.source, move.target
        of = source.memory.elem
        dequantisation = move.dequantisation((side, side)) if move.dequantisation else None
        layouts = copy_layout(source, row_major(side, side), side, side, facts, 1, target.memory.elem)
        read, (rows, cols), loads = _bytes_read(source, side, layouts.loaded)
        groups = dequantisation.tensors if dequantisation else ()
        k.params += [read.memory, *(group.view.memory for group in groups), target.memory]
        with k.tile_of(mapping) as tile:
            number = (tile["batch"],) if len(target.axes) > 2 else ()
            at = k.let("row0", tile["m"] * side), k.let("k0", tile["n"] * side), *number
            of_bytes = at if read is source else (tile["m"] * rows, tile["n"] * cols, *number)
            loaded: Expr = k.load_view("held", read, of_bytes, loads, "load")
            numbers = unpacked(loaded, of) if of.is_by_bytes else loaded
            converted = numbers.to(vector(target.memory.elem, layouts.loaded.registers))
            if dequantisation:
                elements = {group: dequantise.load(k, group, at, layouts.loaded) for group in groups}
                converted = dequantise.dequantised(k, dequantisation, elements, converted, layouts.loaded)
            k.store_view(target, at, reordered(converted, layouts.loaded, layouts.stored), layouts.stored, "store")
    return k.done(), whole


def _bytes_read(source: View, side: int, layout: Fragment) -> tuple[View, tuple[int, int], Fragment]:
    """Return the view that a square of `side` elements is loaded from, its rows and columns, and lanes' shares.

    Of elements that kernels load by bytes it is a view of bytes.
    """
    if not source.memory.elem.is_by_bytes:
        return source, (side, side), layout
    found = bytes_of(source)
    assert found is not None  # `supported` refuses others
    view, axis = found
    sides = [side, side]
    sides[axis] = Run.of(source.memory.elem).in_bytes(side)
    return view, (sides[0], sides[1]), fragment_of_bytes(layout, layout.dims[axis], source.memory.elem)


def fill(result: View, epilogue: Epilogue, acc: Type, tile: tuple[int, int], facts: TargetFacts, role: str) -> Stream:
    """Return a stream that stores the epilogue of zero all over `result` (N, M and, in a batch, its product).

    Its tiles lie within those of `tile` (M, N).
    """
    return Stream(role, None, _with_parts(result), epilogue, acc, _nested(tile, facts, 1), 0, 1)


def sum_slices(
    source: View,
    result: View,
    epilogue: Epilogue,
    acc: Type,
    tile: tuple[int, int],
    facts: TargetFacts,
    role: str,
    most_terms: int,
) -> Stream:
    """Return a stream that sums `source` (axes as in `Stream`) over R; its tiles lie within those of `tile` (M, N).

    Subgroups and lanes share the terms if there are more than `most_terms`, or if one workgroup for each tile would
    leave units idle, as long as each lane has several terms to load together.
    """
    terms, ahead = source.extent(2), min(_AHEAD, power_of_two(source.extent(2)))
    products = source.extent(3) if len(source.axes) > 3 else 1
    sums = source.extent(0) * source.extent(1) * products
    workgroups = -(-sums // (_VECTOR * facts.subgroup_size * _SUBGROUPS))
    to_fill_units = min(max(1, facts.compute_units // workgroups), terms // ahead)
    sharers = max(next_power_of_two(-(-terms // most_terms)), power_of_two(to_fill_units))
    layout = _nested(tile, facts, ahead, sharers)
    rounds = -(-terms // layout.extent("r"))
    return Stream(role, source, _with_parts(result), epilogue, acc, layout, rounds, 1)


def _nested(tile: tuple[int, int], facts: TargetFacts, ahead: int, sharers: int = 1) -> Fragment:
    """Return a layout whose tile lies within `tile` and whose terms `sharers` subgroups and lanes share."""
    tile_m, tile_n = (size & -size for size in tile)
    subgroups_r = min(sharers, _SUBGROUPS)
    lanes_r = min(sharers // subgroups_r, facts.subgroup_size)
    lanes = facts.subgroup_size // lanes_r
    n = min(tile_n, _VECTOR * lanes)
    lanes_m = lanes // max(1, n // _VECTOR)
    subgroups = max(subgroups_r, min(_SUBGROUPS, max(1, tile_m // lanes_m)))
    return _layout(n, tile_m, facts.subgroup_size, subgroups, ahead, lanes_r, subgroups_r)


def _with_parts(view: View) -> View:
    """Return a result's view (N, M and, in a batch, its product) with an axis of one part behind M."""
    n, m, *batch = view.axes
    return View(view.memory, view.layout, (n, m, (ONE,), *batch), view.index)


def sums_of_channels(
    gradient: View, result: TensorSpec, acc: Type, facts: TargetFacts, role: str
) -> tuple[Stream, ...]:
    """Return streams, in order, that sum `gradient` (N, R) along R into a vector of N elements."""
    streams: list[Stream] = []
    target, (channels, terms_axis) = buffer(result), gradient.axes
    (n,), terms = result.dims, gradient.extent(1)
    source = View(gradient.memory, gradient.layout, (channels, (ONE,), terms_axis), gradient.index)
    to_result = Epilogue((Convert(target.elem),))
    if not terms:
        return (fill(_rows(target, n, 1).of_axes(2), to_result, acc, (1, n), facts, f"{role}_0"),)
    while True:
        is_last = terms <= _MOST_TERMS
        lanes_n = min(facts.subgroup_size, -(-next_power_of_two(n) // _VECTOR))
        lanes_r, subgroups = (1, 1) if is_last else (facts.subgroup_size // lanes_n, _SUBGROUPS)
        layout = _layout(lanes_n * _VECTOR, 1, facts.subgroup_size, subgroups, _AHEAD, lanes_r, subgroups)
        rounds = -(-min(terms, _MOST_TERMS) // _AHEAD)
        slices = -(-terms // (rounds * layout.extent("r")))
        parts = slices * layout.extent("r") // _AHEAD
        memory = target if is_last else Global(f"{role}_{len(streams)}", acc, n * parts * acc.bytes)
        view = _rows(memory, n, parts)
        epilogue = to_result if is_last else Epilogue((Convert(acc),))
        streams.append(Stream(f"{role}_{len(streams)}", source, view, epilogue, acc, layout, rounds, slices))
        if is_last:
            return tuple(streams)
        source, terms = view, parts  # the parts of one kernel are the terms of the next


def _rows(memory: Global, n: int, parts: int) -> View:
    """Return a view of `parts` rows of n elements as (N, M, P); of a vector if there is one part."""
    axes = ((Dim("n", n, n),), (Dim("m", 1, 1),), (Dim("p", parts, parts),))
    columns, rows = TensorDim(n, (("n", 1),)), TensorDim(parts, (("p", 1),))
    if parts == 1:
        return View(memory, Layout.dense((n,), (0,)), axes, (columns,))
    return View(memory, Layout.dense((parts, n), (0, 1)), axes, (rows, columns))
