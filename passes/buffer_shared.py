"""Overlap copies into shared memory with the multiplication, on one, two or three slots of the tile.

The loop `for i: barrier; copies(i); barrier; compute` becomes, with L(i) the loads of iteration i into registers and
S(i) their stores to slot i % slots:

    1 slot    L(0);               for i: barrier; S(i); L(i+1); barrier; compute(i)
    2 slots   L(0); S(0); L(1);   for i: barrier; compute(i); S(i+1); L(i+2)
    3 slots   ... S(1); L(2);     for i: barrier; compute(i); S(i+2); L(i+3)

The loop runs while every stage has work; the last iterations are peeled, so nothing is loaded or stored in vain. The
body is unrolled by the number of slots, so that slots are constants. That is so where bounds are constants, or
multiples of the number of slots where `begin < end` is known to hold.

Of any other trips whole rounds run in the main loop, and one loop for each slot but the last has the iteration that may
be left over. Nothing is peeled: what is loaded behind the end is masked by the view, and never read.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import attrs

from convgen.ir.error import VerifyError
from convgen.ir.expr import Const, Expr, Lt, Mul, Shuffle, Splat, Var, const, maximum, minimum, var
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Shared
from convgen.ir.mutate import postorder, rewrite, substitute
from convgen.ir.node import replace
from convgen.ir.program import Kernel
from convgen.ir.sizes import Extent
from convgen.ir.stmt import Barrier, Block, Copy, For, If, Let, LoadShared, LoadView, Site, Stmt, StoreShared, block
from convgen.ir.types import Type, vector
from convgen.passes.clone import Cloner


@attrs.frozen
class _Stages:
    """The parts of a copy loop's body, in order."""

    release: Barrier
    copies: tuple[Copy, ...]
    publish: Barrier
    compute: tuple[Stmt, ...]


def buffer_shared(kernel: Kernel) -> Kernel:
    """Pipeline every loop whose body begins with barrier, copies, barrier; its trips are constant, or whole rounds."""
    cloner = Cloner(kernel)
    known = dict(_conditions(kernel.body, frozenset()))

    def pipelined(loop: For) -> Stmt:
        stages = _stages(loop)
        if stages is None:
            return loop
        trips = _trips(loop, stages.copies[0].tile.slots, known.get(loop, frozenset()))
        return _Pipeline(loop, stages, trips, cloner).build()

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


def _conditions(s: Stmt, known: frozenset[Expr]) -> Iterator[tuple[Stmt, frozenset[Expr]]]:
    """Every statement with what holds where it runs."""
    yield s, known
    match s:
        case If(cond, then, other):
            yield from _conditions(then, known | {cond})
            yield from _conditions(other, known)
        case _:
            for inner in s.bodies:
                yield from _conditions(inner, known)


@attrs.frozen
class _Trips:
    """The iterations of a pipelined loop: `slots` of them a round of the main loop, then the rest, peeled."""

    slots: int
    first: tuple[Expr, ...]  #: indices; those before the main loop has begun
    counter: tuple[Expr, Expr] | None  #: bounds of the main loop's counter, if there is one
    begin: Extent  #: index of the first iteration of round zero
    rest: tuple[tuple[Expr, int], ...]  #: indices and slots
    left: tuple[tuple[Expr, Expr], ...] = ()  #: of the rounds that may not be whole, each index and how often it runs


def _trips(loop: For, slots: int, known: Container[Expr]) -> _Trips:
    if isinstance(loop.begin, Const) and isinstance(loop.end, Const):
        return _constant_trips(loop.begin.bits, loop.end.bits, slots)
    begin, end = (_rounds(bound, slots) for bound in (loop.begin, loop.end))
    first = tuple(loop.begin + i for i in range(slots))
    if begin is None or end is None or Lt(begin, end) not in known:
        return _any_trips(loop, slots, first)
    rest = tuple((loop.end + (i - slots), i) for i in range(slots))
    return _Trips(slots, first, (begin, end - 1), 0, rest)


def _any_trips(loop: For, slots: int, first: tuple[Expr, ...]) -> _Trips:
    """Trips of which nothing is known, not even that there are any."""
    count = maximum(loop.end - loop.begin, 0)
    rounds = count // slots
    over = count - rounds * slots
    left = tuple((first[i] + rounds * slots, minimum(maximum(over - i, 0), 1)) for i in range(slots - 1))
    return _Trips(slots, first, (const(0), rounds), loop.begin, (), left)


def _constant_trips(begin: int, end: int, slots: int) -> _Trips:
    count = end - begin
    slots = min(slots, count)
    rounds = max(0, count - slots) // slots
    done = rounds * slots if rounds > 1 else 0
    first = tuple(const(begin + i) for i in range(slots))
    rest = tuple((const(begin + i), i % slots) for i in range(done, count))
    return _Trips(slots, first, (const(0), const(rounds)) if done else None, begin, rest)


def _rounds(bound: Expr, slots: int) -> Expr | None:
    """A bound counted in rounds; None if it is not known to be whole ones."""
    match bound:
        case Const(_, bits) if bits % slots == 0:
            return const(bits // slots)
        case Mul(a, Const(_, bits)) if bits == slots:
            return a
    return bound if slots == 1 else None


def _on_slot(s: Stmt, slot: int, tiles: Container[Shared]) -> Stmt:
    """The statement on a slot of the tiles that are copied; others have slots of their own."""
    return replace(s, slot=const(slot)) if isinstance(s, LoadShared) and s.tile in tiles else s


def reordered(value: Expr, held: Fragment, wanted: Fragment) -> Expr:
    """A fragment that is distributed as `held`, its registers in the order of `wanted`."""
    return value if held == wanted else Shuffle(value, held.order_of(wanted))


def flipped(value: Expr, flip: int, elem: Type) -> Expr:
    """The elements, combined with `flip` by exclusive or, as those of another type."""
    if not flip:
        return value
    held = vector(value.type.elem, value.type.lanes)
    return (value ^ Splat(held, const(flip, held.elem))).to(vector(elem, held.lanes))


def _as_stored(copy: Copy, value: Expr) -> Expr:
    """What was loaded in the order, and of the type, of the tile."""
    if copy.flip:
        return flipped(reordered(value, copy.loaded, copy.layout), copy.flip, copy.tile.elem)
    return reordered(value.to(vector(copy.tile.elem, copy.layout.registers)), copy.loaded, copy.layout)


class _Pipeline:
    """Builds prologue, loop and peeled iterations of one loop."""

    def __init__(self, loop: For, stages: _Stages, trips: _Trips, cloner: Cloner) -> None:
        self.loop, self.stages, self.trips, self.cloner = loop, stages, trips, cloner
        self.slots = trips.slots

    def build(self) -> Stmt:
        out: list[Stmt] = []
        held: tuple[Expr, ...] = ()
        for i, index in enumerate(self.trips.first):
            if i:
                out += self._store(i - 1, held)
            loads, held = self._load(index)
            out += loads
        state = self.loop.inits
        if self.trips.counter:
            main, state, held = self._main_loop(*self.trips.counter, state, held)
            out.append(main)
        for behind, (index, slot) in zip(reversed(range(len(self.trips.rest))), self.trips.rest):
            stmts, state, held = self._iteration(index, slot, state, held, behind)
            out += stmts
        for slot, (index, trips) in enumerate(self.trips.left):
            counter = var(self.loop.var.name)
            last, state, held = self._looped(counter, (const(0), trips), ((index, slot),), state, held)
            out.append(last)
        results = [Let(r, value) for r, value in zip(self.loop.results, state)]
        return block(*out, *results)

    def _main_loop(
        self, begin: Expr, end: Expr, state: tuple[Expr, ...], held: tuple[Expr, ...]
    ) -> tuple[For, tuple[Expr, ...], tuple[Expr, ...]]:
        counter = var(self.loop.var.name)
        scaled = counter * self.slots if self.slots > 1 else counter
        rounds = tuple((scaled + (self.trips.begin + j), j) for j in range(self.slots))
        return self._looped(counter, (begin, end), rounds, state, held)

    def _looped(
        self,
        counter: Var,
        bounds: tuple[Expr, Expr],
        iterations: Sequence[tuple[Expr, int]],
        state: tuple[Expr, ...],
        held: tuple[Expr, ...],
    ) -> tuple[For, tuple[Expr, ...], tuple[Expr, ...]]:
        """A loop over these indices and slots, behind which as many run, or are loaded in vain."""
        carried = tuple(var(v.name, v.type) for v in (*self.loop.carried, *self._held_vars()))
        results = tuple(var(v.name, v.type) for v in carried)
        split = len(self.loop.carried)
        now: tuple[Expr, ...] = carried[:split]
        regs: tuple[Expr, ...] = carried[split:]
        body: list[Stmt] = []
        for index, slot in iterations:
            stmts, now, regs = self._iteration(index, slot, now, regs, self.slots)
            body += stmts
        loop = replace(
            self.loop,
            var=counter,
            begin=bounds[0],
            end=bounds[1],
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
            var(f"{c.site.comment or c.tile.name}_next", vector(c.view.memory.elem, c.layout.registers))
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
            StoreShared(c.tile, const(slot), _as_stored(c, value), c.layout, self._site(c, "store"))
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
        tiles = [c.tile for c in self.stages.copies]
        placed = [_on_slot(s, slot, tiles) for s in stmts]
        first = next((s for s in placed if not isinstance(s, LoadShared)), None)
        needed = dict.fromkeys(n for n in postorder(first) if isinstance(n, Var)) if first else {}
        reads: list[Stmt] = [s for s in placed if isinstance(s, LoadShared) and (s.var in needed or not first)]
        yields = tuple(substitute(y, names) for y in self.loop.yields)
        return reads, [s for s in placed if s not in reads], yields
