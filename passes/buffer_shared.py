"""Overlap copies into shared memory with the multiplication: software pipelining by distances.

The loop `for i: barrier; copies(i); barrier; compute` has the stages L(i), loads of block i into registers, S(i),
stores of these to slot i % slots, and compute. A stage's distance is the number of iterations by which it precedes the
block's multiplication: for S the number of slots minus one, for L as many more as the copy has `stages` (blocks in
flight in registers). A product that reads its factors in shared memory may still read a slot while the next iteration
runs: with three slots and more, S and L of such loops are one iteration closer, behind compute. In other loops, with
one stage:

    1 slot    L(0);               for i: barrier; S(i); L(i+1); barrier; compute(i)
    2 slots   L(0); S(0); L(1);   for i: barrier; compute(i); S(i+1); L(i+2)
    3 slots   ... S(1); L(2);     for i: barrier; compute(i); S(i+2); L(i+3)

and with two slots and two stages: L(0); L(1); S(0); L(2); for i: barrier; compute(i); S(i+1); L(i+3). The prologue
consists of iterations without a block to multiply. A direct copy is a single stage at the distance of S. Lets and
loads may stand between the first barrier and the copies, if places of blocks depend on them: each block has its own.

The loop runs while every stage has work; the last iterations are peeled, so that no load or store is wasted. It is
unrolled by the least common multiple of slots and stages (a round), so that slots and registers are constants. This
form needs constant bounds (the first iterations may then be peeled, too, see `loop_trips.Distances.early`), or bounds
that are multiples of a round with `begin < end` known to hold (the last loads are then wasted if their distance exceeds
a round).

For any other trip count the main loop runs whole rounds, followed by one loop a remaining iteration of a round, each
running at most once. Nothing is peeled: loads beyond the end are masked by the view, and never read.

Where the target computes slots (`TargetFacts.computed_slots`), a loop of direct copies is neither unrolled nor peeled,
whatever its trip count: it is circular (`For.circular`), carries the slot, and copies if a block is left. Where several
blocks in turn share masks, the loop stays unrolled, since it then computes these once (a circular one takes 1.05 to
1.13 of the time on an H200).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice, takewhile
from math import gcd

from convgen.ir.error import Unsupported
from convgen.ir.expr import Const, Expr, Lt, Mma, Select, Shuffle, Splat, Var, const, var
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import RunView, Shared
from convgen.ir.mutate import postorder, rewrite, statements, substitute
from convgen.ir.program import Kernel
from convgen.ir.record import evolve, frozen
from convgen.ir.simplify.variable_ranges import exits_of
from convgen.ir.stmt import (
    Barrier,
    Copy,
    DirectCopy,
    For,
    If,
    Let,
    Load,
    LoadPart,
    LoadRuns,
    LoadShared,
    LoadView,
    Site,
    Stmt,
    StoreShared,
    TileCopy,
    Trim,
    block,
    empty,
    stmts_of,
)
from convgen.ir.types import Type, s32, vector
from convgen.passes.clone import Cloner
from convgen.passes.loop_trips import CIRCULAR, LEAST_SLOTS, Distances, Trips, open_trips, runs_late, trips_of
from convgen.passes.messages.linear import linearize, loaded_elements

#: Steps along K of a product that hides barrier and copies; measured on an H200: circular loops take 1.09 of the time
#: with one step, 1.05 with two, .97 to 1.02 with four.
_LEAST_STEPS = 4


@frozen
class _Body:
    """The parts of a copy loop's body, in order."""

    release: Barrier
    starts: tuple[Stmt, ...]  #: lets and loads, on which the places of the copies may depend
    copies: tuple[Copy | DirectCopy, ...]
    publish: Barrier
    compute: tuple[Stmt, ...]

    @property
    def in_place(self) -> bool:
        """Return whether products read their factors in shared memory."""
        return any(isinstance(n, Mma) and n.op.atom.in_shared for s in self.compute for n in postorder(s))


def buffer_shared(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Pipeline every loop whose body begins with barrier, copies, barrier.

    Copies elsewhere become a load and a store at their place.
    """
    cloner = Cloner(kernel)
    known = dict(_conditions(kernel.body, frozenset()))
    loops = [s for s in statements(kernel.body) if isinstance(s, For)]
    # Loops by counter, ahead of all changes: a pipelined loop begins with copies of its own in the loop around it.
    between = {loop.var: _between_barriers(loop) for loop in loops}
    repeated = {inner.var for loop in loops for inner in statements(loop.body) if isinstance(inner, For)}

    def pipelined(loop: For) -> Stmt:
        if not between[loop.var]:
            return loop
        parts = _parts(loop, between[loop.var])
        if loop.runs is False:
            return block(*map(Let, loop.results, loop.inits))
        slots, run = parts.copies[0].tile.slots, gcd(*map(_run, parts.copies))
        is_circular = facts.computed_slots and _may_be_circular(loop, parts, slots, run)
        late = CIRCULAR if is_circular else _read_late(parts, slots)
        distances = Distances(slots, tuple(map(_in_flight, parts.copies)), run, late)
        trips = open_trips(loop, distances) if is_circular else trips_of(loop, distances, known.get(loop, frozenset()))
        pipeline = _Pipeline(loop, parts, trips, cloner)
        return (pipeline.circular if is_circular else pipeline.build)(repeated=loop.var in repeated)

    def unpipelined(copy: Copy) -> Stmt:
        value = _block_var(copy)
        load = _loaded(copy, copy.coords, value, cloner.site(copy.site, "load"))
        return block(load, *_stored(copy, copy.slot, copy.coords, value, cloner.site(copy.site, "store")))

    body = rewrite(kernel.body, {For: pipelined})
    return evolve(kernel, body=rewrite(body, {Copy: unpipelined}))


def _between_barriers(loop: For) -> int:
    """Return the number of statements between the barriers with which a loop of copies begins; 0 for other loops.

    Raises Unsupported for others than lets and loads, then copies, for exits, and for a counter that is not s32.
    """
    stmts = stmts_of(loop.body)
    count = sum(isinstance(s, (Copy, DirectCopy)) for s in stmts)
    if not count or not isinstance(stmts[0], Barrier):
        return 0
    starts = tuple(takewhile(lambda s: isinstance(s, (Let, Load)) and not s.updates, stmts[1:]))
    copies, publish = stmts[len(starts) + 1 :][:count], next(iter(stmts[len(starts) + count + 1 :]), None)
    if not all(isinstance(s, (Copy, DirectCopy)) for s in copies) or not isinstance(publish, Barrier):
        raise Unsupported(
            f"given loop {loop.label}, which begins with a barrier, wanted barrier, copies, barrier, compute"
        )
    if any(exits_of(loop.body)) or loop.var.type is not s32:
        given = f"with a counter of {loop.var.type}" + ", and an exit" * any(exits_of(loop.body))
        raise Unsupported(f"given loop {loop.label} of copies {given}, wanted one of s32 without exits")
    return len(starts) + count


def _parts(loop: For, between: int) -> _Body:
    """Return the parts of a loop that begins with a barrier, `between` statements and another barrier."""
    stmts = stmts_of(loop.body)
    starts = tuple(s for s in stmts[1 : between + 1] if not isinstance(s, (Copy, DirectCopy)))
    copies = tuple(s for s in stmts[1 : between + 1] if isinstance(s, (Copy, DirectCopy)))
    release, publish = stmts[0], stmts[between + 1]
    assert isinstance(release, Barrier)
    assert isinstance(publish, Barrier)
    return _Body(release, starts, copies, publish, stmts[between + 2 :])


def _in_flight(copy: TileCopy) -> int:
    """Return how many blocks of a copy are in flight in registers."""
    return copy.stages if isinstance(copy, Copy) else 0


def _read_late(parts: _Body, slots: int) -> int:
    """Return how many iterations later than its own a product may still read its slot: 1 if a third slot allows it.

    Only products in place run on while the next iteration begins.
    """
    return int(runs_late(slots) and parts.in_place)


def _run(copy: TileCopy) -> int:
    """Return the blocks of K in a run of the view's innermost dim; 0 if its axis has no other dim.

    Blocks of one run have equal positions along the other dims.
    """
    dims = linearize(copy.view).axes[1]
    if len(dims) == 1:
        return 0
    blocks, rest = divmod(dims[-1].padded, copy.tile.cols)
    return 1 if rest else blocks


def _registers(copy: Copy) -> int:
    """Return the elements of a lane in flight for one block."""
    registers, view = copy.layout.registers, copy.view
    return loaded_elements(view, copy.loaded) if isinstance(view, RunView) else registers


def _conditions(s: Stmt, known: frozenset[Expr]) -> Iterator[tuple[Stmt, frozenset[Expr]]]:
    """Yield every statement with the conditions that hold where it runs."""
    yield s, known
    match s:
        case If(cond, then, other):
            yield from _conditions(then, known | {cond})
            yield from _conditions(other, known)
        case _:
            for inner in s.bodies:
                yield from _conditions(inner, known)


def _may_be_circular(loop: For, parts: _Body, slots: int, run: int) -> bool:
    """Return whether a loop may compute its slots: one of direct copies, with iterations left when all slots are full.

    Its blocks share no masks (`run`, see `_run`). Its products have enough steps to hide the barrier and the copies
    that stand behind them. It reads no other tile with several slots, since only those of its copies are named relative
    to the iteration.
    """
    count = loop.end.bits - loop.begin.bits if isinstance(loop.begin, Const) and isinstance(loop.end, Const) else None
    if run > 1 or slots < LEAST_SLOTS or (count is not None and count <= slots):
        return False
    nodes = [n for s in parts.compute for n in postorder(s)]
    is_long = any(isinstance(n, Mma) and n.op.steps >= _LEAST_STEPS for n in nodes)
    is_direct = all(isinstance(copy, DirectCopy) and copy.tile.slots == slots for copy in parts.copies)
    own = {copy.tile for copy in parts.copies}
    others = {n.tile for n in nodes if isinstance(n, LoadShared)} - own
    return is_long and is_direct and not parts.in_place and all(tile.slots == 1 for tile in others)


def _on_slot(s: Stmt, slot: Expr, tiles: Container[Shared]) -> Stmt:
    """Return the statement on slot `slot` if it reads a copied tile; other tiles keep their own slots."""
    return evolve(s, slot=slot) if isinstance(s, LoadShared) and s.tile in tiles else s


def _in_own_slot(s: LoadShared | DirectCopy) -> Stmt:
    """Return a statement of a circular loop whose site says that it accesses the iteration's own slot."""
    return s if isinstance(s.slot, Const) else evolve(s, site=evolve(s.site, slot=0))


def reordered(value: Expr, layout: Fragment, wanted: Fragment) -> Expr:
    """Return a fragment distributed as `layout` with its registers in the order of `wanted`."""
    return value if layout == wanted else Shuffle(value, layout.order_of(wanted))


def flipped(value: Expr, flip: int, elem: Type) -> Expr:
    """Return the elements XORed with `flip`, as elements of type `elem`."""
    if not flip:
        return value
    dtype = vector(value.type.elem, value.type.lanes)
    return (value ^ Splat(dtype, const(flip, dtype.elem))).to(vector(elem, dtype.lanes))


def _as_stored(copy: Copy, value: Expr) -> Expr:
    """Return a loaded value in the order and element type of the shared tile."""
    if copy.flip:
        return flipped(reordered(value, copy.loaded, copy.layout), copy.flip, copy.tile.elem)
    return reordered(value.to(vector(copy.tile.elem, copy.layout.registers)), copy.loaded, copy.layout)


def _block_var(copy: Copy) -> Var:
    """Return a variable for one block of a copy in flight."""
    return var(f"{copy.site.comment or copy.tile.name}_next", vector(copy.view.memory.elem, _registers(copy)))


def _loaded(copy: Copy, coords: tuple[Expr, ...], to: Var, site: Site) -> Stmt:
    load = LoadRuns if isinstance(copy.view, RunView) else LoadView
    return load(to, copy.view, coords, copy.loaded, site)


def _stored(copy: Copy, slot: Expr, coords: tuple[Expr, ...], value: Expr, site: Site) -> list[Stmt]:
    """Return the store of a block; runs are trimmed just before it, when the loads have arrived."""
    trims: list[Stmt] = []
    if isinstance(copy.view, RunView):
        whole = var(f"{copy.tile.name}_trimmed", vector(copy.view.memory.elem, copy.layout.registers))
        trims = [Trim(whole, copy.view, coords, value, copy.loaded)]
        value = whole
    return [*trims, StoreShared(copy.tile, slot, _as_stored(copy, value), copy.layout, site)]


#: For each copy, its blocks in flight in registers, the next one to store first.
_InFlight = tuple[tuple[Expr, ...], ...]


def _rotated(in_flight: _InFlight, by: int) -> _InFlight:
    """Rotate the blocks in flight by `by` places, so that each keeps its registers from one iteration to the next."""
    return tuple((*values[by % n :], *values[: by % n]) if (n := len(values)) else () for values in in_flight)


class _Pipeline:
    """Builds prologue, loop and peeled iterations of one loop."""

    def __init__(self, loop: For, parts: _Body, trips: Trips, cloner: Cloner) -> None:
        self.loop, self.parts, self.trips, self.cloner = loop, parts, trips, cloner
        self.distances, self.slots = trips.distances, trips.distances.slots

    def build(self, *, repeated: bool) -> Stmt:
        """Build prologue, peeled iterations, main loop and remaining iterations.

        The prologue of a loop that another loop repeats stores to slots that its last iterations read before.
        """
        out, in_flight = self._prologue()
        if repeated and self.distances.stores:
            out.insert(0, Barrier(self.cloner.site(self.parts.release.site)))
        state = self.loop.inits
        for index, slot in self.trips.early:
            stmts, state, in_flight = self._iteration(index, slot, state, in_flight, self.distances.loads)
            out += stmts
        if self.trips.counter:
            main, state, in_flight = self._main_loop(*self.trips.counter, state, in_flight)
            out.append(main)
        for behind, (index, slot) in zip(reversed(range(len(self.trips.rest))), self.trips.rest):
            stmts, state, in_flight = self._iteration(index, slot, state, in_flight, behind)
            out += stmts
        for number, (index, trips) in enumerate(self.trips.remainder):
            counter = var(self.loop.var.name)
            iteration = index, number % self.slots
            last, state, in_flight = self._looped(counter, (const(0), trips), (iteration,), state, in_flight)
            out.append(last)
        results = [Let(r, value) for r, value in zip(self.loop.results, state)]
        return block(*out, *results)

    def circular(self, *, repeated: bool) -> Stmt:
        """Build a prologue that fills all slots, and a loop that carries the slot of its iteration.

        An iteration multiplies a block, awaits the next one, and copies to the slot that it has read if a block is left
        for it. So the assembler may move barrier and copies ahead of products, which it never moves over a loop's end.
        """
        out, _ = self._prologue()
        if repeated:
            out.insert(0, Barrier(self.cloner.site(self.parts.release.site)))
        counter, slot, following = var(self.loop.var.name), var("slot"), var("next_slot")
        step = Let(following, Select(Lt(slot, const(self.slots - 1)), slot + 1, const(0)))
        carried = tuple(var(v.name, v.type) for v in self.loop.carried)
        reads, rest, state = self._compute(counter, slot, carried)
        fetch, _ = self._fetch(slot, ((),) * len(self.parts.copies), lambda distance: counter + distance)
        copies = If(Lt(counter + self.distances.stores, self.loop.end), block(*fetch), empty)
        first, publish = (Barrier(self.cloner.site(self.parts.publish.site)) for _ in range(2))
        loop = evolve(
            self.loop,
            var=counter,
            carried=(slot, *carried),
            inits=(const(0), *self.loop.inits),
            body=block(step, *reads, *rest, publish, copies),
            yields=(following, *state),
            results=(var("slot"), *self.loop.results),
            circular=True,
        )
        return block(*out, first, rewrite(loop, dict.fromkeys((LoadShared, LoadPart, DirectCopy), _in_own_slot)))

    def _prologue(self) -> tuple[list[Stmt], _InFlight]:
        """Build the fetches before the first iteration."""
        out: list[Stmt] = []
        in_flight: _InFlight = ((),) * len(self.parts.copies)
        for before in reversed(range(1, self.distances.loads + 1)):

            def at(distance: int, before: int = before) -> Expr | None:
                return self.trips.first[distance - before] if distance >= before else None

            slot = const((self.distances.stores - before) % self.slots)
            stmts, in_flight = self._fetch(slot, in_flight, at)
            out += stmts
        return out, in_flight

    def _main_loop(
        self, begin: Expr, end: Expr, state: tuple[Expr, ...], in_flight: _InFlight
    ) -> tuple[For, tuple[Expr, ...], _InFlight]:
        counter, each = var(self.loop.var.name), self.distances.round
        scaled = counter * each if each > 1 else counter
        slots = ((len(self.trips.early) + j) % self.slots for j in range(each))
        rounds = tuple((scaled + (self.trips.begin + j), slot) for j, slot in enumerate(slots))
        return self._looped(counter, (begin, end), rounds, state, in_flight)

    def _looped(
        self,
        counter: Var,
        bounds: tuple[Expr, Expr],
        iterations: Sequence[tuple[Expr, int]],
        state: tuple[Expr, ...],
        in_flight: _InFlight,
    ) -> tuple[For, tuple[Expr, ...], _InFlight]:
        """Build a loop over these indices and slots; loads in it reach `loads` iterations ahead, perhaps in vain.

        A loop over part of a round runs at most once, and nothing after it runs if it does not.
        """
        carried = tuple(var(v.name, v.type) for v in (*self.loop.carried, *self._block_vars()))
        results = tuple(var(v.name, v.type) for v in carried)
        split = len(self.loop.carried)
        values: tuple[Expr, ...] = carried[:split]
        blocks = self._by_copy(carried[split:])
        body: list[Stmt] = []
        for index, slot in iterations:
            stmts, values, blocks = self._iteration(index, slot, values, blocks, self.distances.loads)
            body += stmts
        loop = evolve(
            self.loop,
            var=counter,
            begin=bounds[0],
            end=bounds[1],
            carried=carried,
            inits=(*state, *chain(*in_flight)),
            body=block(*body),
            yields=(*values, *chain(*_rotated(blocks, -len(iterations)))),
            results=results,
        )
        return loop, results[:split], _rotated(self._by_copy(results[split:]), len(iterations))

    def _iteration(
        self, index: Expr, slot: int, state: tuple[Expr, ...], in_flight: _InFlight, after: int
    ) -> tuple[list[Stmt], tuple[Expr, ...], _InFlight]:
        """Build one iteration; at least `after` more follow, which decides the stages that still have work."""

        def at(distance: int) -> Expr | None:
            return index + distance if distance <= after else None

        fetch, kept = self._fetch(const((slot + self.distances.stores) % self.slots), in_flight, at)
        reads, rest, state = self._compute(index, const(slot), state)
        publish = Barrier(self.cloner.site(self.parts.publish.site))
        if self.distances.late:
            return [publish, *reads, *rest, *fetch], state, kept
        if self.distances.stores:
            return [publish, *reads, *fetch, *rest], state, kept
        release = Barrier(self.cloner.site(self.parts.release.site))
        return [release, *fetch, publish, *reads, *rest], state, kept

    def _fetch(
        self, slot: Expr, in_flight: _InFlight, at: Callable[[int], Expr | None]
    ) -> tuple[list[Stmt], _InFlight]:
        """Build the copies' stages of one iteration: store the oldest block to `slot`, load a new one.

        The lets and loads on which the places of blocks depend come first. The new block takes the registers of the
        stored one. `at(distance)` returns the index of the block multiplied that many iterations later, None if there
        is none.
        """
        starts: list[Stmt] = []
        stores: list[Stmt] = []
        loads: list[Stmt] = []
        kept: list[tuple[Expr, ...]] = []

        @cache
        def names(index: Expr) -> Mapping[Var, Expr]:
            stmts, known = self.cloner.copy(self.parts.starts, {self.loop.var: index})
            starts.extend(stmts)
            return known

        def coords(copy: TileCopy, index: Expr) -> tuple[Expr, ...]:
            return tuple(substitute(x, names(index)) for x in copy.coords)

        for copy, count, values in zip(self.parts.copies, self.distances.in_flight, in_flight):
            queue, due = values, at(self.distances.stores)
            if isinstance(copy, DirectCopy):
                if due is not None:
                    site = self.cloner.site(copy.site, "copy")
                    stores.append(evolve(copy, slot=slot, coords=coords(copy, due), site=site))
                kept.append(())
                continue
            if due is not None:
                site = self.cloner.site(copy.site, "store")
                place = coords(copy, due) if isinstance(copy.view, RunView) else ()
                stores += _stored(copy, slot, place, queue[0], site)
                queue = queue[1:]
            index = at(self.distances.stores + count)
            if index is not None:
                loaded, site = _block_var(copy), self.cloner.site(copy.site, "load")
                loads.append(_loaded(copy, coords(copy, index), loaded, site))
                queue = (*queue, loaded)
            kept.append(queue)
        return [*starts, *stores, *loads], tuple(kept)

    def _block_vars(self) -> tuple[Var, ...]:
        copies = ((c, blocks) for c, blocks in zip(self.parts.copies, self.distances.in_flight) if isinstance(c, Copy))
        return tuple(_block_var(c) for c, blocks in copies for _ in range(blocks))

    def _by_copy(self, flat: Sequence[Expr]) -> _InFlight:
        """Return a flat list of blocks in flight by copy."""
        rest = iter(flat)
        return tuple(tuple(islice(rest, blocks)) for blocks in self.distances.in_flight)

    def _compute(
        self, index: Expr, slot: Expr, state: tuple[Expr, ...]
    ) -> tuple[list[Stmt], list[Stmt], tuple[Expr, ...]]:
        """Build the compute stage on one slot: the reads that its first operation needs, the rest, and the yields."""
        values: dict[Var, Expr] = {self.loop.var: index, **dict(zip(self.loop.carried, state))}
        stmts, names = self.cloner.copy(self.parts.compute, values)
        tiles = [c.tile for c in self.parts.copies]
        placed = [_on_slot(s, slot, tiles) for s in stmts]
        first = next((s for s in placed if not isinstance(s, LoadShared)), None)
        needed = dict.fromkeys(n for n in postorder(first) if isinstance(n, Var)) if first else {}
        reads: list[Stmt] = [s for s in placed if isinstance(s, LoadShared) and (s.var in needed or not first)]
        yields = tuple(substitute(y, names) for y in self.loop.yields)
        return reads, [s for s in placed if s not in reads], yields
