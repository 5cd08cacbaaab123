"""Build the tile-level IR of one matrix product from its plan: one loop over K blocks, then the store.

The loop is the naive one (copy, barrier, multiply); `buffer_shared` overlaps it.
"""

from __future__ import annotations

import hashlib
import itertools

import attrs

from convgen.ir import stmt as st
from convgen.ir.digits import Digit, Space
from convgen.ir.expr import Expr, Mma, Shuffle, Var, const, reset_ids, var, zeros
from convgen.ir.fragment import Fragment
from convgen.ir.memory import Global, View
from convgen.ir.mma import MmaTile
from convgen.ir.program import Kernel
from convgen.ir.types import vector
from convgen.plan import Meeting, Operand, Part, Plan
from convgen.problem import Conv

K_LOOP = "k_loop"


def kernel_name(plan: Plan, role: str) -> str:
    """Stable across runs and machines: problem and config decide it."""
    text = f"{plan.problem.knobs} {plan.problem.descriptor} {plan.config} {plan.facts.name}"
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    what = f"conv_{plan.problem.direction.value.lower()}" if isinstance(plan.problem, Conv) else "gemm"
    return f"{what}_{digest}_{role}"


def product_kernel(plan: Plan, part: Part, result: View, bias: View | None, role: str) -> Kernel:
    """One output tile and one slice of K a workgroup.

    `result` has axes N and M, or N and (slice, M) in a workspace; `bias` is added where the product is whole.
    """
    reset_ids()
    return _ProductKernel(plan, part).build(result, bias, kernel_name(plan, role))


class _ProductKernel:
    def __init__(self, plan: Plan, part: Part) -> None:
        self.plan, self.part = plan, part
        self.mmas = tuple(attrs.evolve(plan.mma, part=n) for n in range(plan.mma.parts))
        self.numbers = itertools.count(1)
        self.group = tuple(var(f"group_{axis}") for axis in "xyz")
        self.m0, self.n0 = var("m0"), var("n0")

    def site(self, stage: str, comment: str = "") -> st.Site:
        return st.Site(next(self.numbers), stage, comment)

    def build(self, result: View, bias: View | None, name: str) -> Kernel:
        plan, part = self.plan, self.part
        tile_m, tile_n, _ = plan.config.tile
        tiles_m, tiles_n = part.grid
        totals = tuple(var("acc_total", mma.acc_type) for mma in self.mmas)
        buffers = (part.of_m.view, part.of_n.view, *([bias] if bias else []), result)
        params: dict[Global, None] = dict.fromkeys(v.memory for v in buffers)
        return Kernel(
            name,
            tuple(params),
            (tiles_m * tiles_n, plan.config.slices, 1),
            plan.subgroups,
            plan.facts.subgroup_size,
            self.group,
            var("wave"),
            part.tiles,
            st.block(
                st.Let(self.m0, self.group[0] // tiles_n * tile_m),
                st.Let(self.n0, self.group[0] % tiles_n * tile_n),
                *self._prefetched_at_first(),
                self._loop(totals),
                *(s for mma, total in zip(self.mmas, totals) for s in self._store(mma, total, result, bias)),
            ),
        )

    def _loop(self, totals: tuple[Var, ...]) -> st.For:
        """The sum over the K blocks of this slice; parts of the tile one after the other."""
        part, config = self.part, self.plan.config
        kb = var("kb")
        of_n, of_m = (part.of_n, self.n0), (part.of_m, self.m0)
        acc, products = (tuple(var(name, v.type) for v in totals) for name in ("acc", "acc_next"))
        a = var(f"{part.of_n.view.memory.name}_frag", self.plan.mma.a_type)
        body: list[st.Stmt] = []
        if part.tiles:
            body.append(st.Barrier(self.site("release")))
            body += [self._copy(*operand, kb) for operand in (of_n, of_m)]
            body.append(st.Barrier(self.site("publish")))
        body.append(self._fragment(a, *of_n, kb, self.plan.mma.a))
        b = [var(f"{part.of_m.view.memory.name}_frag", mma.b_type) for mma in self.mmas]
        reads = [self._fragment(v, *of_m, kb, mma.b) for v, mma in zip(b, self.mmas)]
        body += reads[:1]
        if config.prefetch:
            body += [self._prefetch(*operand, kb + (config.slots + config.prefetch)) for operand in (of_n, of_m)]
        for n, (mma, product) in enumerate(
            zip(self.mmas, products)
        ):  # each part is read while the one before multiplies
            body += [*reads[n + 1 : n + 2], st.Let(product, Mma(mma, acc[n], a, b[n]))]
        starts = tuple(zeros(mma.acc_type) for mma in self.mmas)
        return st.For(kb, const(0), const(part.k_blocks), acc, starts, st.block(*body), products, totals, K_LOOP)

    def _prefetched_at_first(self) -> list[st.Prefetch]:
        """The blocks that the loop's own prefetches come too late for; the first one is loaded at once."""
        config, part = self.plan.config, self.part
        blocks = range(max(1, config.slots), min(config.slots + config.prefetch, part.k_blocks))
        operands = (part.of_n, self.n0), (part.of_m, self.m0)
        return [self._prefetch(*operand, const(n)) for n in blocks for operand in operands]

    def _k(self, kb: Expr) -> Expr:
        """Where a K block of this slice begins."""
        block = kb + self.group[1] * self.part.k_blocks if self.plan.config.slices > 1 else kb
        return block * self.plan.config.tile[2]

    def _copy(self, operand: Operand, start: Expr, kb: Expr) -> st.Copy:
        assert operand.tile is not None
        assert operand.copy is not None
        copy, site = operand.copy, self.site("copy", operand.view.memory.name)
        return st.Copy(operand.tile, const(0), operand.view, (start, self._k(kb)), copy.loaded, copy.stored, site)

    def _prefetch(self, operand: Operand, start: Expr, kb: Expr) -> st.Prefetch:
        """The workgroup's tile, shared out as if it were copied."""
        assert operand.copy is not None
        site = self.site("prefetch", operand.view.memory.name)
        return st.Prefetch(operand.view, (start, self._k(kb)), operand.copy.loaded, site)

    def _fragment(self, v: Var, operand: Operand, start: Expr, kb: Expr, layout: Fragment) -> st.Stmt:
        site = self.site("fragment", operand.view.memory.name)
        if operand.tile is None:
            return st.LoadView(v, operand.view, (start, self._k(kb)), layout, site)
        return st.LoadShared(v, operand.tile, const(0), layout, site)

    def _store(self, mma: MmaTile, total: Var, result: View, bias: View | None) -> list[st.Stmt]:
        """What becomes of the sums of a tile, or of a part of it."""
        name, layout = result.memory.name, mma.d
        out: list[st.Stmt] = []
        value: Expr = total
        row: Expr = self.m0
        if bias is not None:
            few, order = _along(mma, "i" if bias.axes[0] == result.axes[0] else "j")
            held = var("bias", vector(bias.memory.elem, few.registers))
            out.append(st.LoadView(held, bias, (self.n0, self.m0), few, self.site("load", bias.memory.name)))
            value = total + Shuffle(held, order)
        if self.plan.meeting is Meeting.WORKSPACE:
            row = self.m0 + self.group[1] * (self.part.grid[0] * self.plan.config.tile[0])
        how = st.AddView if self.plan.meeting is Meeting.ATOMIC else st.StoreView
        elem = result.memory.elem
        stored = value.to(vector(elem, layout.registers), saturate=elem.is_int)
        return [*out, how(result, (self.n0, row), stored, layout, self.site("store", name))]


def _along(mma: MmaTile, side: str) -> tuple[Fragment, tuple[int, ...]]:
    """The layout of what is the same all along the other side: the accumulator's without that side's registers.

    With it, for each register of the accumulator the one that belongs to it.
    """
    digits: list[Digit] = []
    registers = 1
    for d in mma.d.digits:
        if d.space is not Space.REGISTER:
            digits.append(d)
        elif d.dim == side:
            digits.append(attrs.evolve(d, stride=registers))
            registers *= d.size
    few = Fragment(mma.d.dims, tuple(digits))
    place = {few.coords(0, 0, r)[side]: r for r in range(registers)}
    return few, tuple(place[mma.d.coords(0, 0, r)[side]] for r in range(mma.d.registers))
