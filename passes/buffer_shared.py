"""Overlap copies into shared memory with the multiplication, on one, two or three slots of the tile.

The loop `for i: barrier; copies(i); barrier; compute` becomes, with L(i) the loads of iteration i into registers and
S(i) their stores to slot i % slots:

    1 slot    L(0);               for i: barrier; S(i); L(i+1); barrier; compute(i)
    2 slots   L(0); S(0); L(1);   for i: barrier; compute(i); S(i+1); L(i+2)
    3 slots   ... S(1); L(2);     for i: barrier; compute(i); S(i+2); L(i+3)

The loop runs while every stage has work; the last iterations are peeled, so nothing is loaded or stored in vain. The
body is unrolled by the number of slots, so that slots are constants.
"""

from __future__ import annotations

import attrs

from convgen.ir.error import VerifyError
from convgen.ir.expr import Const, Expr, Shuffle, Var, const, var
from convgen.ir.layout.fragment import Fragment
from convgen.ir.mutate import postorder, rewrite, substitute
from convgen.ir.node import replace
from convgen.ir.program import Kernel
from convgen.ir.stmt import Barrier, Block, Copy, For, Let, LoadShared, LoadView, Site, Stmt, StoreShared, block
from convgen.ir.types import vector
from convgen.passes.clone import Cloner


@attrs.frozen
class _Stages:
    """The parts of a copy loop's body, in order."""

    release: Barrier
    copies: tuple[Copy, ...]
    publish: Barrier
    compute: tuple[Stmt, ...]


def buffer_shared(kernel: Kernel) -> Kernel:
    """Pipeline every loop whose body begins with barrier, copies, barrier; requires constant trip counts."""
    cloner = Cloner(kernel)

    def pipelined(loop: For) -> Stmt:
        stages = _stages(loop)
        return _Pipeline(loop, stages, cloner).build() if stages else loop

    return replace(kernel, body=rewrite(kernel.body, {For: pipelined}))


def _stages(loop: For) -> _Stages | None:
    stmts = loop.body.stmts if isinstance(loop.body, Block) else (loop.body,)
    copies = tuple(s for s in stmts if isinstance(s, Copy))
    rest = stmts[len(copies) + 2 :]
    if not copies or not isinstance(stmts[0], Barrier):
        return None
    release, publish = stmts[0], stmts[len(copies) + 1]
    if stmts[1 : len(copies) + 1] != copies or not isinstance(publish, Barrier):
        raise VerifyError(f"buffer_shared: loop {loop.label} is not barrier, copies, barrier, compute")
    return _Stages(release, copies, publish, rest)


def _on_slot(s: Stmt, slot: int) -> Stmt:
    return replace(s, slot=const(slot)) if isinstance(s, LoadShared) else s


def reordered(value: Expr, held: Fragment, wanted: Fragment) -> Expr:
    """A fragment that is distributed as `held`, its registers in the order of `wanted`."""
    return value if held == wanted else Shuffle(value, held.order_of(wanted))


class _Pipeline:
    """Builds prologue, loop and peeled iterations of one loop."""

    def __init__(self, loop: For, stages: _Stages, cloner: Cloner) -> None:
        if not isinstance(loop.begin, Const) or not isinstance(loop.end, Const):
            raise VerifyError(f"buffer_shared: loop {loop.label} has no constant bounds")
        self.loop, self.stages, self.cloner = loop, stages, cloner
        self.first = loop.begin.bits
        self.trips = loop.end.bits - loop.begin.bits
        self.slots = min(stages.copies[0].tile.slots, self.trips)

    def build(self) -> Stmt:
        out: list[Stmt] = []
        held: tuple[Expr, ...] = ()
        for i in range(min(self.slots, self.trips)):
            if i:
                out += self._store(i - 1, held)
            loads, held = self._load(const(self.first + i))
            out += loads
        state = self.loop.inits
        rounds = max(0, self.trips - self.slots) // self.slots
        done = 0
        if rounds > 1:
            main, state, held = self._main_loop(rounds, state, held)
            out.append(main)
            done = rounds * self.slots
        for i in range(done, self.trips):
            stmts, state, held = self._iteration(const(self.first + i), i % self.slots, state, held, self.trips - 1 - i)
            out += stmts
        results = [Let(r, value) for r, value in zip(self.loop.results, state)]
        return block(*out, *results)

    def _main_loop(
        self, rounds: int, state: tuple[Expr, ...], held: tuple[Expr, ...]
    ) -> tuple[For, tuple[Expr, ...], tuple[Expr, ...]]:
        counter = var(self.loop.var.name)
        carried = tuple(var(v.name, v.type) for v in (*self.loop.carried, *self._held_vars()))
        results = tuple(var(v.name, v.type) for v in carried)
        split = len(self.loop.carried)
        now: tuple[Expr, ...] = carried[:split]
        regs: tuple[Expr, ...] = carried[split:]
        body: list[Stmt] = []
        for j in range(self.slots):
            index = counter * self.slots + (self.first + j) if self.slots > 1 else counter + self.first
            stmts, now, regs = self._iteration(index, j, now, regs, self.slots)
            body += stmts
        loop = replace(
            self.loop,
            var=counter,
            begin=const(0),
            end=const(rounds),
            carried=carried,
            inits=(*state, *held),
            body=block(*body),
            yields=(*now, *regs),
            results=results,
        )
        return loop, results[:split], results[split:]

    def _iteration(
        self, index: Expr, slot: int, state: tuple[Expr, ...], held: tuple[Expr, ...], after: int
    ) -> tuple[list[Stmt], tuple[Expr, ...], tuple[Expr, ...]]:
        """One iteration, behind which at least `after` others run: that decides which stages still have work."""
        ahead = self.slots - 1
        fetch: list[Stmt] = []
        kept = held
        if after >= ahead:
            fetch += self._store((slot + ahead) % self.slots, held)
        if after >= self.slots:
            more, kept = self._load(index + self.slots)
            fetch += more
        reads, rest, state = self._compute(index, slot, state)
        publish = Barrier(self.cloner.site(self.stages.publish.site))
        if ahead:
            return [publish, *reads, *fetch, *rest], state, kept
        release = Barrier(self.cloner.site(self.stages.release.site))
        return [release, *fetch, publish, *reads, *rest], state, kept

    def _held_vars(self) -> tuple[Var, ...]:
        return tuple(
            var(f"{c.site.comment or c.tile.name}_next", vector(c.tile.elem, c.layout.registers))
            for c in self.stages.copies
        )

    def _load(self, index: Expr) -> tuple[list[Stmt], tuple[Expr, ...]]:
        held = self._held_vars()
        at = {self.loop.var: index}
        loads: list[Stmt] = [
            LoadView(v, c.view, tuple(substitute(x, at) for x in c.coords), c.loaded, self._site(c, "load"))
            for v, c in zip(held, self.stages.copies)
        ]
        return loads, held

    def _store(self, slot: int, held: tuple[Expr, ...]) -> list[Stmt]:
        return [
            StoreShared(c.tile, const(slot), reordered(value, c.loaded, c.layout), c.layout, self._site(c, "store"))
            for c, value in zip(self.stages.copies, held)
        ]

    def _site(self, copy: Copy, stage: str) -> Site:
        return attrs.evolve(self.cloner.site(copy.site), stage=stage)

    def _compute(
        self, index: Expr, slot: int, state: tuple[Expr, ...]
    ) -> tuple[list[Stmt], list[Stmt], tuple[Expr, ...]]:
        """The compute stage on one slot: the reads that its first operation needs, the rest, and what it yields."""
        values: dict[Var, Expr] = {self.loop.var: index, **dict(zip(self.loop.carried, state))}
        stmts, names = self.cloner.copy(self.stages.compute, values)
        placed = [_on_slot(s, slot) for s in stmts]
        first = next((s for s in placed if not isinstance(s, LoadShared)), None)
        needed = dict.fromkeys(n for n in postorder(first) if isinstance(n, Var)) if first else {}
        reads: list[Stmt] = [s for s in placed if isinstance(s, LoadShared) and (s.var in needed or not first)]
        yields = tuple(names[y] if isinstance(y, Var) else y for y in self.loop.yields)
        return reads, [s for s in placed if s not in reads], yields
