"""Tile-level IR of one matrix product: one loop over K blocks, then the epilogue and the store.

The loop is the plain one (copy, barrier, multiply); the pass `buffer_shared` pipelines it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import chain, islice

from convgen.epilogue.epilogue import Addend, Epilogue, Loaded, Reader, coordinates
from convgen.epilogue.numbered_rows import TileRows
from convgen.ir.build import Coordinate, Index, KernelBuilder
from convgen.ir.expr import Expr, Mma, Pack, Slice, Var, const, eq, lift, maximum, select, zeros
from convgen.ir.layout.digits import plus, times
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Shared, View
from convgen.ir.layout.mma import MmaTile
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.ring import ring_of
from convgen.ir.stmt import For, Let, block
from convgen.ir.types import vector
from convgen.kernels.epilogue_inputs import Ahead, Piece
from convgen.kernels.exact_padding import Recomputation, TileSums, sums_are_finite
from convgen.kernels.last_arrival import LastArrival, ReductionBuffers, Start
from convgen.kernels.tile_place import place_of
from convgen.passes.buffer_shared import flipped
from convgen.passes.messages.direct_copies import places_of
from convgen.plan import block_scales, dequantise, views
from convgen.plan.inputs import InputPath
from convgen.plan.plan import Part, Plan, Reduction, accumulator_registers, registers_left
from convgen.plan.registers import KEPT_FREE, MOST_AHEAD, PIECE, ROOM
from convgen.plan.scaled_factors import by_groups
from convgen.plan.wide_messages import buffer_of, store_pairs, store_wide
from convgen.problem.conv import Conv

K_LOOP = "k_loop"

_Key = tuple[Fragment, dequantise.GroupTensor]  #: a factor's fragment, and zero points or scales of it

_Results = Iterable[tuple[Expr, Fragment]]  #: values to store, part by part, and their distribution over lanes
#: returns the values to store for sums that begin at a place, with the inputs of an epilogue that are loaded
_Finish = Callable[[TileSums, Start, Ahead | None], _Results]


def kernel_name(plan: Plan, role: str) -> str:
    """Return a name that problem, config and target decide, stable across runs and machines."""
    text = f"{plan.problem.knobs} {plan.problem.descriptor} {plan.config} {plan.facts.name}"
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    kind = "gemm"
    if isinstance(plan.problem, Conv):
        kind = f"{plan.problem.driver}_{plan.problem.direction.value.lower()}"
    return f"{kind}_{digest}_{role}"


def product_kernel(
    plan: Plan, part: Part, result: View, epilogue: Epilogue, role: str, buffers: ReductionBuffers | None
) -> Kernel:
    """Return a kernel that computes one output tile and one slice of K in each workgroup."""
    k = _builder(plan, role, part.mapping.grid)
    _ProductBuilder(plan, part, k).build(result, epilogue, buffers)
    return _done(k)


def merged_kernel(plan: Plan, role: str) -> Kernel:
    """Return one kernel for the products of all parts of a plan, each in its own workgroups of one grid.

    The branches of products exclude one another, so that no access waits for one of an earlier product. Workgroups that
    persist take tiles of any product.
    """
    mapping = plan.parts[0].mapping
    persists = mapping.together > 0
    k = _builder(plan, role, mapping.grid if persists else (sum(part.mapping.numbers for part in plan.parts), 1, 1))
    with k.numbers_of(mapping) if persists else nullcontext() as number, ExitStack() as around:
        for n, part in enumerate(plan.parts):
            if n:
                around.enter_context(k.otherwise())
            _ProductBuilder(plan, part, k).build(part.product.result, part.epilogue, None, number)
    return _done(k)


def _builder(plan: Plan, role: str, grid: tuple[int, int, int]) -> KernelBuilder:
    size = plan.subgroups, plan.facts.subgroup_size
    return KernelBuilder(kernel_name(plan, role), grid, *size, subgroup=None)


def _done(k: KernelBuilder) -> Kernel:
    """Return the kernel, with the parameters and tiles that products share declared once."""
    k.params, k.tiles = list(dict.fromkeys(k.params)), list(dict.fromkeys(k.tiles))
    return k.done()


class _ProductBuilder:
    """One product in a kernel: its tiles, one in each workgroup."""

    def __init__(self, plan: Plan, part: Part, k: KernelBuilder) -> None:
        self.plan, self.part, self.k = plan, part, k
        self.mmas = tuple(evolve(plan.mma, part=n) for n in range(plan.mma.parts))
        self.ring = ring_of("ring", plan.config.slots) if part.of_n.step else None
        k.tiles += (*part.tiles, *((plan.subgroup_reduction.tile,) if plan.subgroup_reduction else ()))
        k.tiles += [self.ring] if self.ring else []

    def build(
        self, result: View, epilogue: Epilogue, reduction: ReductionBuffers | None, number: Index | None = None
    ) -> None:
        """Add the product; with `reduction`, the last workgroup to arrive at a tile reduces its slices or shares.

        With a `number`, add the product of this tile of a grid that products share.
        """
        plan, part, k = self.plan, self.part, self.k
        dequantised = [side.dequantisation for side in (part.of_n, part.of_m) if side.dequantisation]
        scales_and_points = [group.view.memory for dequantisation in dequantised for group in dequantisation.tensors]
        scales_and_points += [side.scales.view.memory for side in (part.of_n, part.of_m) if side.scales]
        unpacked = [side.packing.source.memory for side in (part.of_n, part.of_m) if side.packing and part.padding]
        factors = part.of_m.view.memory, part.of_n.view.memory, *unpacked, *scales_and_points
        workspace = (reduction.sums.memory, reduction.counts) if reduction else ()
        numbered = [rows.numbers for rows in (part.product.gathered, part.product.scattered) if rows]
        ends = (*((part.product.grouped.offsets,) if part.product.grouped else ()), *numbered)
        k.params += dict.fromkeys((*factors, *epilogue.reads, *epilogue.writes, buffer_of(result), *workspace, *ends))
        k.params += views.sizes(plan.problem)
        with k.tile_of(part.mapping, number) as self.tile, place_of(k, plan, part, self.tile) as self.place:
            self.is_backward = part.mapping.is_backward((self.tile["number"],))
            self.m0, self.n0 = self.place.m0, self.place.n0
            self._load_rows()
            self._prefetch_at_first()
            adds_first = not (reduction or plan.config.separate_accumulators or plan.config.waves_k > 1)
            addend, rest = epilogue.first_addend() if adds_first else (None, epilogue)
            self.begin = partial(self._start_value, addend)
            before = None if reduction else self._loaded_before(rest)
            self._store_tile(self._over_all_subgroups(self._sums()), result, rest, reduction, before)

    def _over_all_subgroups(self, sums: Sequence[Var]) -> TileSums:
        """Return the sums with their layouts, reduced over subgroups along K if there are several."""
        reduction = self.plan.subgroup_reduction
        if reduction is None:
            return [(total, mma.d) for mma, total in zip(self.mmas, sums)]
        return [(reduction.sums(self.k, mma, total), mma.reduced_d) for mma, total in zip(self.mmas, sums)]

    def _store_tile(
        self,
        sums: TileSums,
        result: View,
        epilogue: Epilogue,
        buffers: ReductionBuffers | None,
        before: Ahead | None = None,
    ) -> None:
        """Store the tile, or store this sharer's sums for the last to arrive.

        `before` are inputs of the epilogue that were loaded before the sums.
        """
        sharers = self.tile["sharers"]
        if buffers is None:
            row = self._row_of_slice() if self.plan.reduction is Reduction.LAUNCH else self.m0
            self._store_exact(sums, partial(self._results, epilogue), partial(self._store, result, row), before)
            return
        with ExitStack() as around:
            if isinstance(sharers, Expr):
                with self.k.when(eq(sharers, 1)):
                    self._store_exact(sums, partial(self._results, epilogue), partial(self._store, result, self.m0))
                around.enter_context(self.k.otherwise())
            arrival = LastArrival(self.k, self.plan, self.part, self.tile, buffers)
            whole = [layout for _, layout in sums]
            self._store_share(arrival, sums)
            with arrival.last_to_arrive(whole) as sum_of:
                totals = ((sum_of(part), part) for part in arrival.parts(whole))
                loaded = ((total, layout, epilogue.load(self._reader(), layout)) for total, layout in totals)
                results = ((epilogue.apply(self.k, total, inputs), layout) for total, layout, inputs in loaded)
                self._store(result, self.m0, results, (0, 0))

    def _store_exact(
        self,
        sums: TileSums,
        finish: _Finish,
        store: Callable[[_Results, Start], None],
        before: Ahead | None = None,
    ) -> None:
        """Finish and store the sums; where padding has made one NaN, first recompute them, piece by piece of the tile.

        `finish` computes the values to store from sums, with inputs `before` that are loaded; `store` stores them.
        """
        padding = self.part.padding
        if padding is None:
            store(finish(sums, (0, 0), before), (0, 0))
            return
        are_finite = sums_are_finite(self.k, self.plan.facts, padding, sums)
        results = self._before_the_test(finish(sums, (0, 0), before))
        with self.k.when(are_finite):
            store(results, (0, 0))
        with self.k.otherwise():
            functions = partial(self._at, depth=self.plan.config.tile[2]), self._loaded, self.begin
            again = Recomputation(self.k, self.plan, self.part, padding, *functions, self._blocks(self.n0))
            with again.pieces() as (n, m):
                store(finish([(again.sums((self.n0 + n, self.m0 + m)), again.unit.d)], (n, m), None), (n, m))

    def _before_the_test(self, results: _Results) -> _Results:
        """Return the results, computed before the sums are tested if that overlaps with the last products.

        This also reuses the sums' registers. Where instructions stay in order it gains nothing.
        """
        if not self.plan.facts.core.reorders or self.plan.config.separate_accumulators:
            return results
        return [(self.k.let("made", value), layout) for value, layout in results]

    def _results(self, epilogue: Epilogue, sums: TileSums, start: Start, before: Ahead | None) -> _Results:
        """Yield the epilogue's results for sums that begin at a place within the tile, piece by piece."""
        pieces = self._cut([layout for _, layout in sums], epilogue)
        ahead = before or self._loaded_ahead(pieces, self._reader(start), epilogue)
        for place, inputs in zip(pieces, ahead.inputs(epilogue, pieces)):
            total = sums[place.sums][0]
            if not epilogue.is_light:
                total = Slice(total, place.number * place.layout.registers, place.layout.registers)
            made = epilogue.apply(self.k, total, inputs, place.layout, ahead.reader.at)
            yield made, epilogue.layout_after(place.layout)

    def _reader(self, start: Start = (0, 0)) -> Reader:
        """Return a reader of the epilogue's inputs beside the tile, or beside a piece that begins at `start`."""
        at = plus(self.n0, start[0]), plus(self.m0, start[1])
        return self._reader_at(at)

    def _reader_at(self, at: tuple[Index, Index]) -> Reader:
        """Return a reader of the epilogue's inputs beside sums that begin at a column and a row."""
        return Reader(self.k, (*at, *self.place.of_result), rows=self._rows_at(at))

    def _rows_at(self, at: Sequence[Index]) -> dict[str, TileRows]:
        """Return the rows by number of sums that begin at a column and a row."""
        return {name: rows.at(at[rows.axis]) for name, rows in self.place.rows.items()}

    def _cut(self, layouts: Sequence[Fragment], epilogue: Epilogue) -> list[Piece]:
        """Return the pieces of a tile: sums whole, or in parts if steps of the epilogue need registers."""
        if epilogue.is_light:
            return [Piece(n, 0, layout) for n, layout in enumerate(layouts)]
        parts = ((n, epilogue.parts(layout, PIECE)) for n, layout in enumerate(layouts))
        return [Piece(n, number, part) for n, of_sums in parts for number, part in enumerate(of_sums)]

    def _loaded_ahead(self, pieces: Sequence[Piece], reader: Reader, epilogue: Epilogue) -> Ahead:
        """Return the first pieces' inputs: as many as fit in `ROOM` of the free registers, at most `MOST_AHEAD`."""
        if epilogue.is_light:
            return Ahead(reader, deque())
        taken = 0 if self.plan.config.separate_accumulators else accumulator_registers(self.plan)
        room = int((self.plan.facts.registers - taken) * ROOM)
        reader = evolve(reader, room=room)
        loaded = (epilogue.load(reader, piece.layout) for piece in pieces)
        first = deque(islice(loaded, 1))
        registers = max(1, reader.fresh(chain(*first[0])))
        first.extend(islice(loaded, max(0, min(room // registers, MOST_AHEAD) - 1)))
        return Ahead(reader, first)

    def _loaded_before(self, epilogue: Epilogue) -> Ahead | None:
        """Load the inputs of the tile's first pieces before the loop over K: as many as its registers leave room for.

        Lanes that another role brings tiles load nothing in the loop, and wait for memory behind it: with a sum as
        post-op, a 3x3 layer of 256 channels, 14x14, takes .96 of the time on an H200, and one of 1x1 with swish .88.
        """
        if not (self.ring and epilogue.reads) or self.plan.subgroup_reduction:
            return None
        self._name_subgroup()
        pieces = self._cut([mma.d for mma in self.mmas], epilogue)
        room, reader, loaded = registers_left(self.plan) - KEPT_FREE, self._reader(), deque[tuple[Loaded, ...]]()
        operands = sum(len(step.operands) for step in epilogue.steps)
        most = operands * max(piece.layout.registers for piece in pieces)  # of 32 bits each
        for piece in pieces:
            if room < most:
                break
            loaded.append(epilogue.load(reader, piece.layout))
            room -= reader.fresh(chain(*loaded[-1]))
        return Ahead(reader, loaded) if loaded else None

    def _store(self, result: View, row: Index, results: _Results, start: Start) -> None:
        """Store, or add atomically, values that begin at a place within the tile."""
        k, at = self.k, (plus(self.n0, start[0]), plus(row, start[1]), *self.place.of_result)
        adds = self.plan.reduction is Reduction.ATOMIC
        store = partial(k.atomic_view, "add") if adds else partial(store_wide, k, self.plan.facts)
        if result.memory.elem.bits == 4:
            store = partial(store_pairs, k)
        to = coordinates(result, at, self._rows_at(at))
        for value, layout in results:
            store(result, to, value, layout, "store", result.memory.name)

    def _row_of_slice(self) -> Index:
        """Return the tile's first row in its slice's part of the workspace."""
        slice: Index = self.tile["k"]
        return self.m0 + slice * (self.part.mapping.counts[1] * self.plan.config.tile[0])

    def _store_share(self, arrival: LastArrival, sums: TileSums) -> None:
        """Store the sums of this slice or share in the workspace, without an epilogue."""
        at = arrival.place_of(self.tile["rank"])

        def store(sums: _Results, start: Start) -> None:
            for total, layout in sums:
                arrival.store(at, total, layout, start)

        self._store_exact(sums, lambda sums, start, before: sums, store)

    def _start_value(self, addend: Addend | None, layout: Fragment, at: Sequence[Index]) -> Expr:
        """Return the start value of sums from a place on: zero, or the term of the epilogue's first step.

        Registers with equal terms share one value.
        """
        sums_type = vector(self.plan.acc_type, layout.registers)
        if addend is None:
            return zeros(sums_type)
        broadcasts = addend.load(self._reader_at((at[0], at[1])), layout)
        count = self.plan.mma.atom.d.registers
        pieces = [
            tuple(broadcast.piece(n, count) for broadcast in broadcasts) for n in range(0, sums_type.lanes, count)
        ]
        terms = {piece: self.k.let("begun", addend.term(sums_type.elem, piece)) for piece in dict.fromkeys(pieces)}
        return Pack(sums_type, tuple(terms[piece] for piece in pieces))

    def _sums(self) -> list[Var]:
        """Return the sums over the K blocks of this slice, for each part of the tile."""
        k, types = self.k, [mma.acc_type for mma in self.mmas]
        # Variables in this order: their numbers decide the order of operands in a sum.
        totals = [k.var("acc_total", t) for t in types]
        self._name_subgroup()
        kb, *acc = k.var("kb"), *(k.var("acc", t) for t in types)
        products = tuple(k.var("acc_next", t) for t in types)
        begin, end = self._blocks(kb)
        begun = [self.begin(mma.d, (self.n0, self.m0)) for mma in self.mmas]
        first_elements = self._scales_and_points(begin)
        tensors = {key: k.var(f"{key[1].view.memory.name}_held", first.type) for key, first in first_elements.items()}
        with k.suite() as body:
            next_elements = self._block(kb, acc, products, tensors)
        last_elements = tuple(k.var(v.name, v.type) for v in tensors.values())  # not read after the loop
        carried, inits = (*acc, *tensors.values()), (*begun, *first_elements.values())
        state = carried, inits, block(*body), (*products, *next_elements.values()), (*totals, *last_elements)
        k.add(For(kb, begin, end, *state, K_LOOP, False))
        return totals

    def _name_subgroup(self) -> None:
        """Name the subgroup's number, unless it has a name."""
        if not self.k.has_subgroup:
            self.k.name_subgroup("wave")

    def _blocks(self, like: Expr) -> tuple[Expr, Expr]:
        """Return the first block of K of this slice or share, and the one after its last."""
        if self.place.blocks is not None:
            return lift(0, like), self.place.blocks
        begin, end = (lift(self.tile[name] * self.part.mapping.grain, like) for name in ("begin", "end"))
        trips = self.part.trips(self.plan.config.tile[2])
        return begin, end if trips is None else lift(trips, like)

    def _scales_and_points(self, kb: Expr) -> dict[_Key, Expr]:
        """Load the scales and zero points of a K block's inputs, by fragment and tensor."""
        of_n, of_m = self.part.of_n, self.part.of_m
        sides = [(of_n.dequantisation, self.n0, self.plan.mma.a)]
        sides += [(of_m.dequantisation, self.m0, mma.b) for mma in self.mmas]
        loads = [(group, start, layout) for d, start, layout in sides for group in (d.tensors if d else ())]
        for mma in self.mmas:
            scaled = zip((of_n, of_m), (self.n0, self.m0), mma.scales or ())
            loads += [
                (path.scales, start, layout) for path, start, layout in scaled if path.scales and not path.scale_path
            ]
        elements = {
            (layout, group): dequantise.load(self.k, group, self._at(start, kb, layout.extent("k")), layout)
            for group, start, layout in loads
        }
        over_sums = [(mma.d, group) for mma in self.mmas if not mma.scales for group in self._block_scales]
        at = self.n0, *self._at(self.m0, kb, self.plan.config.tile[2])
        return elements | {key: dequantise.load(self.k, key[1], at, key[0]) for key in over_sums}

    @property
    def _block_scales(self) -> list[dequantise.GroupTensor]:
        """Return the scales of N's and M's input by which the sums of a block are multiplied."""
        paths = self.part.of_n, self.part.of_m
        return [] if self.plan.mma.scales else [path.scales for path in paths if path.scales]

    def _block(
        self, kb: Var, acc: Sequence[Var], products: Sequence[Var], elements: Mapping[_Key, Expr]
    ) -> dict[_Key, Expr]:
        """Add one K block: copy it and multiply it, one part of the tile after the other.

        `elements` has the block's scales and zero points; return those of the next block, loaded meanwhile.
        """
        k, part, config = self.k, self.part, self.plan.config
        paths = (part.of_n, self.n0), (part.of_m, self.m0)
        if part.tiles:
            k.barrier("release")
            for path in paths:
                self._copy(*path, kb)
            for scale_path, start in ((side.scale_path, start) for side, start in paths):
                if scale_path:
                    self._copy(scale_path, start, kb)
            k.barrier("publish")
        if part.of_m.tap_rows:
            self._taps(acc, products)
            return {}
        next_elements = self._scales_and_points(kb + 1) if elements else {}
        a = self._fragment(*paths[0], kb, self.plan.mma.a, elements)
        b = self._fragment(*paths[1], kb, self.mmas[0].b, elements)
        ahead = config.staging.depth + config.prefetch
        if config.prefetch and ahead < part.k_blocks:
            for path in paths:
                self._prefetch(*path, kb + ahead)
        for n, mma in enumerate(self.mmas):
            # Read the next part's fragment while this one multiplies.
            after = [self._fragment(*paths[1], kb, further.b, elements) for further in self.mmas[n + 1 : n + 2]]
            self._multiply(products[n], mma, acc[n], a, b, elements)
            b = after[0] if after else b
        return next_elements

    def _scales(self, mma: MmaTile, elements: Mapping[_Key, Expr]) -> Iterator[Expr]:
        """Yield the scales of both factors that an instruction applies: loaded before, or in shared memory."""
        for layout, path in zip(mma.scales or (), (self.part.of_n, self.part.of_m)):
            assert path.scales is not None
            if path.scale_path is None:
                yield elements[layout, path.scales]
                continue
            name, tile = path.scale_path.view.memory.name, path.scale_path.tile
            assert tile is not None
            yield self.k.load_shared(f"{name}_frag", tile, by_groups(layout), 0, "fragment", name)

    def _multiply(self, total: Var, mma: MmaTile, acc: Expr, a: Expr, b: Expr, elements: Mapping[_Key, Expr]) -> None:
        """Add a product to sums, in the instruction unless its sums lose bits that the problem wants, or have scales.

        `elements` has the block's scales.
        """
        scales = tuple(self._scales(mma, elements))
        if not self.plan.sums_outside:
            self.k.add(Let(total, Mma(mma, acc, a, b, scales)))
            return
        product = self.k.let("product", Mma(mma, zeros(mma.acc_type), a, b, scales))
        if groups := self._block_scales:
            loaded = {group: elements[mma.d, group] for group in groups}
            self.k.add(Let(total, block_scales.scaled(product, loaded, mma.d, acc)))
            return
        self.k.add(Let(total, acc + product))

    def _taps(self, acc: Sequence[Var], products: Sequence[Var]) -> None:
        """Add the products of one K block of resident windows, tap by tap."""
        of_n, of_m = self.part.of_n, self.part.of_m
        assert of_n.tile is not None
        assert of_m.tile is not None
        sums: list[Expr] = list(acc)
        depth, last = of_m.tile.cols, len(of_m.tap_rows) - 1
        for n, row in enumerate(of_m.tap_rows):
            a = self._at_tap(of_n.tile, self.mmas[0].a, (0, n * depth))
            for i, mma in enumerate(self.mmas):
                b = self._at_tap(of_m.tile, mma.b, (row, 0))
                total = products[i] if n == last else self.k.var(f"acc_at_{n}", mma.acc_type)
                self._multiply(total, mma, sums[i], a, b, {})
                sums[i] = total

    def _at_tap(self, tile: Shared, layout: Fragment, start: tuple[int, int]) -> Var:
        name = tile.name.removesuffix("_tile")
        return self.k.load_part(f"{name}_frag", tile, layout, start, "fragment", name)

    def _prefetch_at_first(self) -> None:
        """Prefetch the blocks for which the loop's own prefetches are too late; the first block is loaded at once."""
        staging, part = self.plan.config.staging, self.part
        for n in range(max(1, staging.depth), min(staging.depth + staging.prefetch, part.k_blocks)):
            for path in ((part.of_n, self.n0), (part.of_m, self.m0)):
                self._prefetch(*path, lift(self.tile["begin"] * part.mapping.grain + n, self.m0))

    def _at(self, start: Expr, kb: Expr, depth: int) -> tuple[Index, ...]:
        """Return the coordinates of a K block of this slice, `depth` positions deep, and of this product."""
        blocks = self.part.k_blocks
        if self.is_backward is not None:
            kb = select(self.is_backward, maximum(const(blocks - 1) - kb, 0), kb)
        block = kb + times(self.tile["first"], self.part.mapping.grain) if self.plan.config.slices > 1 else kb
        return start, plus(block * depth, self.place.k0), *self.place.of_factors

    def _of_view(self, view: View, at: Sequence[Index]) -> tuple[Coordinate, ...]:
        """Return the coordinates of a factor's tile, with the rows by number if the factor is gathered."""
        rows = self.place.gathered
        return coordinates(view, at, {rows.rows.name: rows} if rows else {})

    def _load_rows(self) -> None:
        """Load the numbers of the rows of a gathered factor, for the accesses of the loop."""
        rows = self.place.gathered
        sides = ((self.part.of_n, (self.plan.mma.a,)), (self.part.of_m, [mma.b for mma in self.mmas]))
        for path, fragments in sides:
            if rows is None or path.view.axes[-1][0].name != rows.rows.name:
                continue
            for layout in [self._places(path)] if path.direct_bytes else [path.copy.loaded] if path.copy else ():
                rows.of(layout)
            for layout in fragments if path.tile is None else ():
                rows.of(layout)

    def _places(self, path: InputPath) -> Fragment:
        """Return the places of a shared tile that lanes fill by direct copies."""
        assert path.tile is not None
        return places_of(path.tile.digits, path.tile.elem, path.direct_bytes, self.k.width, self.k.subgroups)

    def _copy(self, path: InputPath, start: Expr, kb: Expr) -> None:
        assert path.tile is not None
        whole, name = self._at(start, kb, path.tile.cols), path.view.memory.name
        if path.step:
            assert self.ring is not None
            self.k.copy_as_tensor(path.tile, path.view, whole, path.step, self.ring, 0, "copy", name)
            return
        at = self._of_view(path.view, whole)
        if path.direct_bytes:
            resolved = [each if isinstance(each, Expr | int) else each.of(self._places(path)) for each in at]
            self.k.copy_directly(path.tile, path.view, resolved, path.direct_bytes, 0, "copy", name)
            return
        assert path.copy is not None
        copy, stages = path.copy, self.plan.config.stages
        self.k.copy(path.tile, path.view, at, copy.stored, 0, "copy", copy.loaded, name, path.offset, stages)

    def _prefetch(self, path: InputPath, start: Expr, kb: Expr) -> None:
        """Prefetch the workgroup's tile, distributed over lanes as for a copy."""
        assert path.copy is not None
        name = path.view.memory.name
        at = self._of_view(path.view, self._at(start, kb, path.copy.loaded.extent("k")))
        self.k.prefetch(path.view, at, path.copy.loaded, "prefetch", name)

    def _fragment(self, path: InputPath, start: Expr, kb: Expr, layout: Fragment, elements: Mapping[_Key, Expr]) -> Var:
        """Return a fragment of an input in the type in which it is multiplied."""
        at, dequantisation = self._at(start, kb, layout.extent("k")), path.dequantisation
        fragment = self._loaded(path, at, layout)
        if dequantisation is None:
            return fragment
        groups = {group: elements[layout, group] for group in dequantisation.tensors}
        wide = dequantise.dequantised(self.k, dequantisation, groups, fragment, layout)
        return self.k.let(f"{path.view.memory.name}_made", wide)

    def _loaded(self, path: InputPath, at: Sequence[Index], layout: Fragment) -> Var:
        name = path.view.memory.name
        if path.tile is None:
            whole = self._of_view(path.view, at)
            fragment = self.k.load_view(f"{name}_frag", path.view, whole, layout, "fragment", name)
            if path.offset:
                return self.k.let(f"{name}_signed", flipped(fragment, path.offset, path.elem))
            wanted = vector(path.elem, layout.registers)
            return fragment if fragment.type is wanted else self.k.let(f"{name}_as_{path.elem}", fragment.to(wanted))
        return self.k.load_shared(f"{name}_frag", path.tile, layout, 0, "fragment", name)
