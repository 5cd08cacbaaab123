"""Build the tile-level IR of one matrix product from its plan: one loop over K blocks, then the store.

The loop is the naive one (copy, barrier, multiply); `buffer_shared` overlaps it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs

from convgen.ir.build import Index, KernelBuilder
from convgen.ir.expr import Expr, Mma, Var, const, eq, maximum, select, zeros
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, View
from convgen.ir.layout.mma import MmaTile
from convgen.ir.program import Kernel
from convgen.ir.stmt import For, Let, block
from convgen.kernels.epilogue import Epilogue
from convgen.plan.plan import Operand, Part, Plan, Reduction
from convgen.problem.conv import Conv

K_LOOP = "k_loop"


def kernel_name(plan: Plan, role: str) -> str:
    """Stable across runs and machines: problem and config decide it."""
    text = f"{plan.problem.knobs} {plan.problem.descriptor} {plan.config} {plan.facts.name}"
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    what = f"conv_{plan.problem.direction.value.lower()}" if isinstance(plan.problem, Conv) else "gemm"
    return f"{what}_{digest}_{role}"


@attrs.frozen
class Meeting:
    """Where the slices of a tile meet: each leaves its sums, and the last subgroup to count itself adds them up."""

    sums: View  #: axes N and (slice, M)
    counts: Global  #: of subgroups that have arrived, by tile and number within the workgroup


def product_kernel(
    plan: Plan, part: Part, result: View, epilogue: Epilogue, role: str, meeting: Meeting | None = None
) -> Kernel:
    """One output tile and one slice of K a workgroup.

    `result` has axes N and M, or N and (slice, M) in a workspace.
    """
    return _ProductKernel(plan, part, kernel_name(plan, role)).build(result, epilogue, meeting)


class _ProductKernel:
    def __init__(self, plan: Plan, part: Part, name: str) -> None:
        self.plan, self.part = plan, part
        self.mmas = tuple(attrs.evolve(plan.mma, part=n) for n in range(plan.mma.parts))
        size = part.mapping.grid, plan.subgroups, plan.facts.subgroup_size
        self.k = KernelBuilder(name, *size, subgroup=None)
        self.k.tiles += part.tiles

    def build(self, result: View, epilogue: Epilogue, meeting: Meeting | None) -> Kernel:
        plan, part, k = self.plan, self.part, self.k
        tile_m, tile_n, _ = plan.config.tile
        buffers = part.of_m.view.memory, part.of_n.view.memory, *epilogue.reads, result.memory
        shared = (meeting.sums.memory, meeting.counts) if meeting else ()
        k.params += dict.fromkeys((*buffers, *shared))
        with k.tile_of(part.mapping) as tile:
            self.slice = tile["k"]
            self.is_backward = part.mapping.is_backward((tile["number"],))
            self.m0 = k.let("m0", tile["m"] * tile_m)
            self.n0 = k.let("n0", tile["n"] * tile_n)
            self._prefetch_at_first()
            sums = self._sums()
            if meeting:
                with self._last_to_arrive(meeting, tile, sums):
                    totals = (self._sum_of_slices(meeting, mma) for mma in self.mmas)
                    self._store(result, self.m0, totals, epilogue)
            else:
                row = self._row(self.slice) if plan.reduction is Reduction.LAUNCH else self.m0
                self._store(result, row, sums, epilogue)
        return k.done()

    def _store(self, result: View, row: Expr, totals: Iterable[Var], epilogue: Epilogue) -> None:
        """Store, or add, what the epilogue makes of the sums of each part of the tile."""
        k = self.k
        for mma, total in zip(self.mmas, totals):
            stored = epilogue.apply(k, total, (self.n0, self.m0), mma.d)
            store = k.add_view if self.plan.reduction is Reduction.ATOMIC else k.store_view
            store(result, (self.n0, row), stored, mma.d, "store", result.memory.name)

    def _row(self, slice: Index) -> Expr:
        """The first row of the tile in the part of a slice in a workspace."""
        return self.m0 + slice * (self.part.mapping.counts[1] * self.plan.config.tile[0])

    @contextmanager
    def _last_to_arrive(self, meeting: Meeting, tile: Mapping[str, Index], sums: Sequence[Var]) -> Iterator[None]:
        """Leave the sums of this slice; the suite runs in the subgroup that is the last of the slices' to do so."""
        k, slices = self.k, self.plan.config.slices
        for mma, total in zip(self.mmas, sums):
            place = self.n0, self._row(self.slice)
            k.store_view(meeting.sums, place, total, mma.d, "leave", meeting.sums.memory.name)
        _, _, tiles_n, _ = self.part.mapping.counts
        index = (tile["m"] * tiles_n + tile["n"]) * self.plan.subgroups + k.subgroup
        with k.when(eq(k.ticket("arrived", meeting.counts, index, slices), slices - 1)):
            yield

    def _sum_of_slices(self, meeting: Meeting, mma: MmaTile) -> Var:
        """The slices' sums, added in their order."""
        k = self.k
        with k.loop("slices", 0, self.plan.config.slices, total=k.zeros(mma.acc_type)) as loop:
            place = self.n0, self._row(loop.var)
            part = k.load_view("part", meeting.sums, place, mma.d, "sum", meeting.sums.memory.name)
            loop.yields(k.let("total_next", loop["total"] + part))
        return loop.result("total")

    def _sums(self) -> list[Var]:
        """The sums over the K blocks of this slice, of each part of the tile."""
        k, part, types = self.k, self.part, [mma.acc_type for mma in self.mmas]
        # Variables in this order: the order of operands in a sum follows from their numbers.
        totals = [k.var("acc_total", t) for t in types]
        k.name_subgroup("wave")
        kb, *acc = k.var("kb"), *(k.var("acc", t) for t in types)
        products = tuple(k.var("acc_next", t) for t in types)
        with k.suite() as body:
            self._block(kb, acc, products)
        state = tuple(acc), tuple(map(zeros, types)), block(*body), products, tuple(totals)
        k.add(For(kb, const(0), const(part.k_blocks), *state, K_LOOP))
        return totals

    def _block(self, kb: Var, acc: Sequence[Var], products: Sequence[Var]) -> None:
        """One K block: copy it, multiply it. The parts of the tile come one after the other."""
        k, part, config = self.k, self.part, self.plan.config
        operands = (part.of_n, self.n0), (part.of_m, self.m0)
        if part.tiles:
            k.barrier("release")
            for operand in operands:
                self._copy(*operand, kb)
            k.barrier("publish")
        a = self._fragment(*operands[0], kb, self.plan.mma.a)
        b = self._fragment(*operands[1], kb, self.mmas[0].b)
        if config.prefetch:
            for operand in operands:
                self._prefetch(*operand, kb + (config.slots + config.prefetch))
        for n, mma in enumerate(self.mmas):
            # The next part is read while this one multiplies.
            after = [self._fragment(*operands[1], kb, later.b) for later in self.mmas[n + 1 : n + 2]]
            k.add(Let(products[n], Mma(mma, acc[n], a, b)))
            b = after[0] if after else b

    def _prefetch_at_first(self) -> None:
        """The blocks that the loop's own prefetches come too late for; the first one is loaded at once."""
        config, part = self.plan.config, self.part
        for n in range(max(1, config.slots), min(config.slots + config.prefetch, part.k_blocks)):
            for operand in ((part.of_n, self.n0), (part.of_m, self.m0)):
                self._prefetch(*operand, const(n))

    def _at(self, start: Expr, kb: Expr) -> tuple[Expr, Expr]:
        """The coordinates of a K block of this slice."""
        blocks = self.part.k_blocks
        if self.is_backward is not None:
            kb = select(self.is_backward, maximum(const(blocks - 1) - kb, 0), kb)
        block = kb + self.slice * blocks if self.plan.config.slices > 1 else kb
        return start, block * self.plan.config.tile[2]

    def _copy(self, operand: Operand, start: Expr, kb: Expr) -> None:
        assert operand.tile is not None
        assert operand.copy is not None
        copy, name = operand.copy, operand.view.memory.name
        self.k.copy(operand.tile, operand.view, self._at(start, kb), copy.stored, 0, "copy", copy.loaded, name)

    def _prefetch(self, operand: Operand, start: Expr, kb: Expr) -> None:
        """The workgroup's tile, shared out as if it were copied."""
        assert operand.copy is not None
        name = operand.view.memory.name
        self.k.prefetch(operand.view, self._at(start, kb), operand.copy.loaded, "prefetch", name)

    def _fragment(self, operand: Operand, start: Expr, kb: Expr, layout: Fragment) -> Var:
        name = operand.view.memory.name
        if operand.tile is None:
            return self.k.load_view(f"{name}_frag", operand.view, self._at(start, kb), layout, "fragment", name)
        return self.k.load_shared(f"{name}_frag", operand.tile, layout, 0, "fragment", name)
