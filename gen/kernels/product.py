"""Tile-level IR of one matrix product: one loop over K blocks, then the epilogue and the store.

The loop is the plain one (copy, barrier, multiply); the pass `buffer_shared` pipelines it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice

from convgen.epilogue.epilogue import Addend, Epilogue, Held, Reader
from convgen.ir.build import Index, KernelBuilder
from convgen.ir.expr import Expr, Mma, Pack, Slice, Var, const, eq, lift, maximum, select, zeros
from convgen.ir.layout.digits import plus, times
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Shared, View
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import For, Let, block
from convgen.ir.types import vector
from convgen.kernels.exact_padding import Anew, Whole, finite
from convgen.kernels.meeting import Meet, Meeting, Start
from convgen.passes.buffer_shared import flipped
from convgen.plan import dequantise, views
from convgen.plan.inputs import Operand
from convgen.plan.plan import Part, Plan, Reduction, accumulator_registers
from convgen.problem.conv import Conv

K_LOOP = "k_loop"

_Key = tuple[Fragment, dequantise.Shared]

_MOST_MADE = 16  #: elements of a lane; sums that take the steps of an epilogue at a time
_MOST_AHEAD = 3  #: pieces whose epilogue inputs are in registers at a time
#: share of the registers beside the sums for the epilogue's inputs; as many again for inputs that pieces share
_ROOM = 0.25

_Made = Iterable[tuple[Expr, Fragment]]  #: values to store, part by part, and their distribution over lanes
_Make = Callable[[Whole, Start], _Made]
#: some sums, their distribution over lanes, and the epilogue's inputs for them
_Piece = tuple[Expr, Fragment, tuple[Held, ...]]


def kernel_name(plan: Plan, role: str) -> str:
    """Return a name that problem, config and target decide, stable across runs and machines."""
    text = f"{plan.problem.knobs} {plan.problem.descriptor} {plan.config} {plan.facts.name}"
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    what = f"conv_{plan.problem.direction.value.lower()}" if isinstance(plan.problem, Conv) else "gemm"
    return f"{what}_{digest}_{role}"


def product_kernel(
    plan: Plan, part: Part, result: View, epilogue: Epilogue, role: str, meeting: Meeting | None = None
) -> Kernel:
    """Return a kernel that computes one output tile and one slice of K in each workgroup."""
    k = _builder(plan, role, part.mapping.grid)
    _Product(plan, part, k).build(result, epilogue, meeting)
    return _done(k)


def merged_kernel(plan: Plan, role: str) -> Kernel:
    """Return one kernel for the products of all parts of a plan, each in its own workgroups of one grid.

    The branches of products exclude one another, so that no access waits for one of an earlier product.
    """
    k = _builder(plan, role, (sum(part.mapping.numbers for part in plan.parts), 1, 1))
    with ExitStack() as around:
        for number, part in enumerate(plan.parts):
            if number:
                around.enter_context(k.otherwise())
            _Product(plan, part, k).build(part.product.result, part.epilogue, None)
    return _done(k)


def _builder(plan: Plan, role: str, grid: tuple[int, int, int]) -> KernelBuilder:
    size = plan.subgroups, plan.facts.subgroup_size
    return KernelBuilder(kernel_name(plan, role), grid, *size, subgroup=None)


def _done(k: KernelBuilder) -> Kernel:
    """Return the kernel, with the parameters and tiles that products share declared once."""
    k.params, k.tiles = list(dict.fromkeys(k.params)), list(dict.fromkeys(k.tiles))
    return k.done()


class _Product:
    """One product in a kernel: its tiles, one in each workgroup."""

    def __init__(self, plan: Plan, part: Part, k: KernelBuilder) -> None:
        self.plan, self.part, self.k = plan, part, k
        self.mmas = tuple(evolve(plan.mma, part=n) for n in range(plan.mma.parts))
        k.tiles += (*part.tiles, *((plan.teams_meet.tile,) if plan.teams_meet else ()))

    def build(self, result: View, epilogue: Epilogue, meeting: Meeting | None) -> None:
        plan, part, k = self.plan, self.part, self.k
        tile_m, tile_n, _ = plan.config.tile
        beside = [what.view.memory for side in (part.of_n, part.of_m) if side.made for what in side.made.shared]
        anew = [side.packing.source.memory for side in (part.of_n, part.of_m) if side.packing and part.padding]
        buffers = part.of_m.view.memory, part.of_n.view.memory, *anew, *beside, *epilogue.reads, result.memory
        shared = (meeting.sums.memory, meeting.counts) if meeting else ()
        k.params += dict.fromkeys((*buffers, *shared))
        k.params += views.sizes(plan.problem)
        with k.tile_of(part.mapping) as self.tile:
            self.batch = (self.tile["batch"],) if len(result.axes) > 2 else ()
            self.is_backward = part.mapping.is_backward((self.tile["number"],))
            self.m0 = k.let("m0", self.tile["m"] * tile_m)
            self.n0 = k.let("n0", self.tile["n"] * tile_n)
            self._prefetch_at_first()
            adds_first = not (meeting or plan.config.separate_accumulators or plan.config.waves_k > 1)
            addend, left = epilogue.begun() if adds_first else (None, epilogue)
            self.begin = partial(self._begun, addend)
            self._finish(self._all_of(self._sums()), result, left, meeting)

    def _all_of(self, sums: Sequence[Var]) -> Whole:
        """Return the sums of this subgroup's share of the tile, reduced over subgroups along K."""
        meet = self.plan.teams_meet
        if meet is None:
            return [(total, mma.d) for mma, total in zip(self.mmas, sums)]
        return [(meet.sums(self.k, mma, total), mma.reduced_d) for mma, total in zip(self.mmas, sums)]

    def _finish(self, sums: Whole, result: View, epilogue: Epilogue, meeting: Meeting | None) -> None:
        """Store the tile, or store this sharer's sums for the last to arrive."""
        sharers = self.tile["sharers"]
        if meeting is None:
            row = self._row_of_slice() if self.plan.reduction is Reduction.LAUNCH else self.m0
            self._settle(sums, partial(self._made, epilogue), partial(self._store, result, row))
            return
        with ExitStack() as around:
            if isinstance(sharers, Expr):
                with self.k.when(eq(sharers, 1)):
                    self._settle(sums, partial(self._made, epilogue), partial(self._store, result, self.m0))
                around.enter_context(self.k.otherwise())
            meet, whole = Meet(self.k, self.plan, self.part, self.tile, meeting), [layout for _, layout in sums]
            self._leave(meet, sums)
            with meet.last_to_arrive(whole) as sum_of:
                totals = ((sum_of(part), part) for part in meet.parts(whole))
                held = ((total, layout, epilogue.load(self._reader(), layout)) for total, layout in totals)
                made = ((epilogue.apply(self.k, total, read), layout) for total, layout, read in held)
                self._store(result, self.m0, made, (0, 0))

    def _settle(self, sums: Whole, make: _Make, leave: Callable[[_Made, Start], None]) -> None:
        """Pass the finished sums to `leave`; where padding has made one NaN, recompute each piece of the tile."""
        padding = self.part.padding
        if padding is None:
            leave(make(sums, (0, 0)), (0, 0))
            return
        are_finite = finite(self.k, self.plan.facts, padding, sums)
        made = self._meanwhile(make(sums, (0, 0)))
        with self.k.when(are_finite):
            leave(made, (0, 0))
        with self.k.otherwise():
            ways = self._at, self._loaded, self.begin
            anew = Anew(self.k, self.plan, self.part, padding, *ways, self._blocks(self.n0))
            with anew.pieces() as (n, m):
                leave(make([(anew.sums((self.n0 + n, self.m0 + m)), anew.unit.d)], (n, m)), (n, m))

    def _meanwhile(self, made: _Made) -> _Made:
        """Return the values, computed now if that overlaps with the last products and reuses the sums' registers."""
        if not self.plan.facts.core.reorders or self.plan.config.separate_accumulators:
            return made
        return [(self.k.let("made", value), layout) for value, layout in made]

    def _made(self, epilogue: Epilogue, sums: Whole, start: Start) -> _Made:
        """Yield the epilogue's results for sums that begin at a place within the tile, piece by piece."""
        for total, layout, held in self._pieces(sums, self._reader(start), epilogue):
            yield epilogue.apply(self.k, total, held), layout

    def _reader(self, start: Start = (0, 0)) -> Reader:
        """Return a reader of the epilogue's inputs beside the tile, or beside a piece that begins at `start`."""
        return Reader(self.k, (plus(self.n0, start[0]), plus(self.m0, start[1]), *self.batch))

    def _pieces(self, sums: Whole, reader: Reader, epilogue: Epilogue) -> Iterator[_Piece]:
        """Yield the sums whole, or in pieces if steps need registers; the next pieces' inputs load meanwhile."""
        if epilogue.is_light:
            for total, layout in sums:
                yield total, layout, epilogue.load(reader, layout)
            return
        pieces = [(total, n, d) for total, layout in sums for n, d in enumerate(layout.parts(_MOST_MADE))]
        taken = 0 if self.plan.config.separate_accumulators else accumulator_registers(self.plan)
        room = int((self.plan.facts.registers - taken) * _ROOM)
        reader = evolve(reader, room=room)
        loaded = (epilogue.load(reader, layout) for _, _, layout in pieces)
        ahead = deque(islice(loaded, 1))
        each = max(1, reader.fresh(chain(*ahead[0])))
        ahead.extend(islice(loaded, max(0, min(room // each, _MOST_AHEAD) - 1)))
        for total, n, layout in pieces:
            yield Slice(total, n * layout.registers, layout.registers), layout, ahead.popleft()
            ahead.extend(islice(loaded, 1))

    def _store(self, result: View, row: Index, made: _Made, start: Start) -> None:
        """Store, or add atomically, values that begin at a place within the tile."""
        k, at = self.k, (plus(self.n0, start[0]), plus(row, start[1]), *self.batch)
        store = partial(k.atomic_view, "add") if self.plan.reduction is Reduction.ATOMIC else k.store_view
        for value, layout in made:
            store(result, at, value, layout, "store", result.memory.name)

    def _row_of_slice(self) -> Index:
        """Return the tile's first row in its slice's part of the workspace."""
        slice: Index = self.tile["k"]
        return self.m0 + slice * (self.part.mapping.counts[1] * self.plan.config.tile[0])

    def _leave(self, meet: Meet, sums: Whole) -> None:
        """Store the sums of this share in the workspace."""
        at = meet.left_at(self.tile["rank"])

        def leave(sums: _Made, start: Start) -> None:
            for total, layout in sums:
                meet.leave(at, total, layout, start)

        self._settle(sums, lambda sums, start: sums, leave)

    def _begun(self, addend: Addend | None, layout: Fragment, at: Sequence[Index]) -> Expr:
        """Return the start value of sums from a place on: zero, or the term of the epilogue's first step."""
        sums_type = vector(self.plan.acc_type, layout.registers)
        if addend is None:
            return zeros(sums_type)
        read, each = addend.load(Reader(self.k, (*at, *self.batch)), layout), self.plan.mma.atom.d.registers
        pieces = [tuple(b.piece(n, each) for b in read) for n in range(0, sums_type.lanes, each)]
        terms = {piece: self.k.let("begun", addend.term(sums_type.elem, piece)) for piece in dict.fromkeys(pieces)}
        return Pack(sums_type, tuple(terms[piece] for piece in pieces))

    def _sums(self) -> list[Var]:
        """Return the sums over the K blocks of this slice, for each part of the tile."""
        k, types = self.k, [mma.acc_type for mma in self.mmas]
        # Variables in this order: their numbers decide the order of operands in a sum.
        totals = [k.var("acc_total", t) for t in types]
        if not k.has_subgroup:
            k.name_subgroup("wave")
        kb, *acc = k.var("kb"), *(k.var("acc", t) for t in types)
        products = tuple(k.var("acc_next", t) for t in types)
        begin, end = self._blocks(kb)
        begun = [self.begin(mma.d, (self.n0, self.m0)) for mma in self.mmas]
        first = self._shared_parts(begin)
        held = {key: k.var(f"{key[1].view.memory.name}_held", found.type) for key, found in first.items()}
        with k.suite() as body:
            later = self._block(kb, acc, products, held)
        left = tuple(k.var(v.name, v.type) for v in held.values())  # not read after the loop
        carried, inits = (*acc, *held.values()), (*begun, *first.values())
        state = carried, inits, block(*body), (*products, *later.values()), (*totals, *left)
        k.add(For(kb, begin, end, *state, K_LOOP))
        return totals

    def _blocks(self, like: Expr) -> tuple[Expr, Expr]:
        """Return the first block of K of this slice or share, and the one after its last."""
        begin, end = (lift(self.tile[name] * self.part.mapping.grain, like) for name in ("begin", "end"))
        trips = self.part.trips(self.plan.config.tile[2])
        return begin, end if trips is None else lift(trips, like)

    def _shared_parts(self, kb: Expr) -> dict[_Key, Expr]:
        """Return the shared elements of a K block's dequantised inputs (scales, zero points), by fragment."""
        sides = [(self.part.of_n, self.n0, self.plan.mma.a)]
        sides += [(self.part.of_m, self.m0, mma.b) for mma in self.mmas]
        return {
            (layout, what): dequantise.load(self.k, what, self._at(start, kb), layout)
            for operand, start, layout in sides
            for what in (operand.made.shared if operand.made else ())
        }

    def _block(
        self, kb: Var, acc: Sequence[Var], products: Sequence[Var], held: Mapping[_Key, Expr]
    ) -> dict[_Key, Expr]:
        """Add one K block: copy it and multiply it, one part of the tile after the other.

        `held` has the block's scales and zero points; return those of the next block, loaded meanwhile.
        """
        k, part, config = self.k, self.part, self.plan.config
        operands = (part.of_n, self.n0), (part.of_m, self.m0)
        if part.tiles:
            k.barrier("release")
            for operand in operands:
                self._copy(*operand, kb)
            k.barrier("publish")
        if part.of_m.taps:
            self._taps(acc, products)
            return {}
        later = self._shared_parts(kb + 1) if held else {}
        a = self._fragment(*operands[0], kb, self.plan.mma.a, held)
        b = self._fragment(*operands[1], kb, self.mmas[0].b, held)
        ahead = config.depth + config.prefetch
        if config.prefetch and ahead < part.k_blocks:
            for operand in operands:
                self._prefetch(*operand, kb + ahead)
        for n, mma in enumerate(self.mmas):
            # Read the next part's fragment while this one multiplies.
            after = [self._fragment(*operands[1], kb, further.b, held) for further in self.mmas[n + 1 : n + 2]]
            k.add(Let(products[n], Mma(mma, acc[n], a, b)))
            b = after[0] if after else b
        return later

    def _taps(self, acc: Sequence[Var], products: Sequence[Var]) -> None:
        """Add the products of one K block of resident windows, tap by tap."""
        of_n, of_m = self.part.of_n, self.part.of_m
        assert of_n.tile is not None
        assert of_m.tile is not None
        sums: list[Expr] = list(acc)
        depth, last = of_m.tile.cols, len(of_m.taps) - 1
        for n, row in enumerate(of_m.taps):
            a = self._at_tap(of_n.tile, self.mmas[0].a, (0, n * depth))
            for i, mma in enumerate(self.mmas):
                added = Mma(mma, sums[i], a, self._at_tap(of_m.tile, mma.b, (row, 0)))
                if n == last:
                    self.k.add(Let(products[i], added))
                else:
                    sums[i] = self.k.let(f"acc_at_{n}", added)

    def _at_tap(self, tile: Shared, layout: Fragment, start: tuple[int, int]) -> Var:
        name = tile.name.removesuffix("_tile")
        return self.k.load_part(f"{name}_frag", tile, layout, start, "fragment", name)

    def _prefetch_at_first(self) -> None:
        """Prefetch the blocks for which the loop's own prefetches are too late; the first block is loaded at once."""
        config, part = self.plan.config, self.part
        for n in range(max(1, config.depth), min(config.depth + config.prefetch, part.k_blocks)):
            for operand in ((part.of_n, self.n0), (part.of_m, self.m0)):
                self._prefetch(*operand, lift(self.tile["begin"] * part.mapping.grain + n, self.m0))

    def _at(self, start: Expr, kb: Expr, depth: int = 0) -> tuple[Index, ...]:
        """Return the coordinates of a K block of this slice, and of this product if there are several.

        A block is as deep as the config's tile, or `depth`.
        """
        blocks = self.part.k_blocks
        if self.is_backward is not None:
            kb = select(self.is_backward, maximum(const(blocks - 1) - kb, 0), kb)
        block = kb + times(self.tile["first"], self.part.mapping.grain) if self.plan.config.slices > 1 else kb
        return start, block * (depth or self.plan.config.tile[2]), *self.batch

    def _copy(self, operand: Operand, start: Expr, kb: Expr) -> None:
        assert operand.tile is not None
        at, name = self._at(start, kb, operand.tile.cols), operand.view.memory.name
        if operand.direct:
            self.k.copy_directly(operand.tile, operand.view, at, operand.direct, 0, "copy", name)
            return
        assert operand.copy is not None
        copy, stages = operand.copy, self.plan.config.stages
        self.k.copy(operand.tile, operand.view, at, copy.stored, 0, "copy", copy.loaded, name, operand.less, stages)

    def _prefetch(self, operand: Operand, start: Expr, kb: Expr) -> None:
        """Prefetch the workgroup's tile, distributed over lanes as for a copy."""
        assert operand.copy is not None
        name = operand.view.memory.name
        self.k.prefetch(operand.view, self._at(start, kb), operand.copy.loaded, "prefetch", name)

    def _fragment(self, operand: Operand, start: Expr, kb: Expr, layout: Fragment, held: Mapping[_Key, Expr]) -> Var:
        """Return a fragment of an input in the type in which it is multiplied."""
        fragment, made = self._loaded(operand, self._at(start, kb), layout), operand.made
        if made is None:
            return fragment
        own = {what: held[layout, what] for what in made.shared}
        return self.k.let(f"{operand.view.memory.name}_made", dequantise.applied(self.k, made, own, fragment, layout))

    def _loaded(self, operand: Operand, at: Sequence[Index], layout: Fragment) -> Var:
        name = operand.view.memory.name
        if operand.tile is None:
            fragment = self.k.load_view(f"{name}_frag", operand.view, at, layout, "fragment", name)
            if operand.less:
                return self.k.let(f"{name}_signed", flipped(fragment, operand.less, operand.elem))
            wanted = vector(operand.elem, layout.registers)
            return fragment if fragment.type is wanted else self.k.let(f"{name}_as_{operand.elem}", fragment.to(wanted))
        return self.k.load_shared(f"{name}_frag", operand.tile, layout, 0, "fragment", name)
