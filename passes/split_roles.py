"""Split a workgroup into roles: one subgroup starts bulk copies into the slots of a ring, the others multiply.

The loop `for i: barrier; copies(i); barrier; compute` becomes, in the two roles,

    producer:   for i: acquire slot; copies(i)
    consumers:  for i: await slot; compute; release the slot of i - 1
                release the last slot

Loops and branches around it run in both roles. The producer keeps only what its copies depend on, so that it is as far
ahead as the ring has slots, also into the next tile of a workgroup that takes several. Its copies may depend on loads,
of memory that the kernel never writes. Each role counts its uses of the ring, modulo two rounds of its slots: the count
gives slot and phase. It is carried by all loops around, and a branch around becomes a loop of at most one iteration,
which can carry it, too.

Products of one block still run while the next block is awaited (`ReleaseSlot.running`). This needs two slots, and sums
that only products read. With one slot, or where other instructions read the sums of each block within the loop's body,
consumers release a block's own slot there: behind the last product and the last load by lanes from the slot, and ahead
of the first other instruction that reads the last product's sums, which waits for all products anyway.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TypeGuard, TypeVar

from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr, Lt, Mma, Not, Select, Var, const, eq, var
from convgen.ir.facts import Roles, TargetFacts
from convgen.ir.layout.memory import Global, Shared
from convgen.ir.mutate import free_vars, rewrite, statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve, frozen
from convgen.ir.simplify.variable_ranges import exits_of
from convgen.ir.stmt import (
    AcquireSlot,
    AwaitSlot,
    Barrier,
    Block,
    For,
    If,
    Let,
    Load,
    LoadFactor,
    MatrixRead,
    ReleaseSlot,
    SharedRead,
    Site,
    StartRing,
    Stmt,
    TakeRegisters,
    TensorLoad,
    TransposedMatrixRead,
    block,
    empty,
    if_it_runs,
    stmts_of,
)
from convgen.ir.types import VectorType
from convgen.passes.clone import Cloner

Value = TypeVar("Value", bound=Expr)

_READS = SharedRead, MatrixRead, TransposedMatrixRead  #: loads by lanes on targets that have rings
_RUNNING = 1  #: blocks whose products run while the next one is awaited
_BESIDE = 64  #: registers of a lane beside its sums and factors, with which the epilogue does not spill; assumed


def split_roles(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Give the bulk copies of a kernel to a subgroup of their own, which fills the slots of a ring."""
    loads = [s for s in statements(kernel.body) if isinstance(s, TensorLoad)]
    if not loads:
        return kernel
    assert facts.roles is not None
    ring = loads[0].ring
    if any(s.ring is not ring for s in loads):
        raise Unsupported(f"given several rings in {kernel.name}, wanted one")
    cloner, consumers = Cloner(kernel), kernel.subgroups
    used = frozenset(s.tile for s in loads)
    consume, _ = _Consumer(ring, used, cloner).thread(kernel.body, const(0))
    _check_private(consume, used, kernel.name)
    produce, _ = _Producer(ring, used, cloner).thread(_needed(kernel.body), const(0))
    copied, _ = cloner.copy(stmts_of(produce), {kernel.subgroup: const(0)})
    copies = If(eq(kernel.subgroup, consumers), block(*copied), empty)
    more, fewer = _registers(kernel, facts)
    roles = If(Lt(kernel.subgroup, const(consumers)), block(*more, consume), block(*fewer, copies))
    start = StartRing(ring, consumers, cloner.site(loads[0].site, "start"))
    body = block(start, Barrier(cloner.site(loads[0].site, "started")), roles)
    return evolve(kernel, subgroups=consumers + facts.roles.team, body=body)


def _registers(kernel: Kernel, facts: TargetFacts) -> tuple[list[Stmt], list[Stmt]]:
    """Return the statements by which consumers take more registers and the producer fewer; none if all have enough."""
    roles, whole = facts.roles, facts.core.simd_registers
    assert isinstance(roles, Roles)
    teams = kernel.subgroups // roles.team + 1
    before = roles.at_entry(whole, teams)
    values = [s.value for s in statements(kernel.body) if isinstance(s, Let) and isinstance(s.value, Mma)]
    factors = sum(op.fragment_elements * op.atom.b_elem.bits // 32 for op in dict.fromkeys(v.op for v in values))
    sums = _sums(kernel, values)
    if before >= min(facts.registers, sums + factors + _BESIDE):
        return [], []
    return [TakeRegisters(roles.multiplying(whole, teams), before)], [TakeRegisters(roles.copying, before)]


def _sums(kernel: Kernel, products: Iterable[Mma]) -> int:
    """Return the registers of a lane that hold sums: those of instructions, and vectors that loops carry besides."""
    taken = {product.acc for product in products}
    carried = dict.fromkeys(v for s in statements(kernel.body) if isinstance(s, For) for v in s.carried)
    beside = sum(v.type.bits // 32 for v in carried if isinstance(v.type, VectorType) and v not in taken)
    return beside + sum(op.d.registers for op in dict.fromkeys(product.op for product in products))


def _check_private(s: Stmt, tiles: frozenset[Shared], name: str) -> None:
    """Raise Unsupported if subgroups share memory outside the ring: no barrier of a role's subgroups orders it."""
    for access in statements(s):
        shared = [m for m in access.memory() if isinstance(m, Shared) and m not in tiles]
        if shared and access.site and not access.site.private and not isinstance(access, (AwaitSlot, ReleaseSlot)):
            raise Unsupported(f"given {shared[0].name} of {name}, which subgroups share, beside a ring of bulk copies")


def _is_ring_loop(s: Stmt) -> bool:
    """Return whether a loop's body begins with a barrier and bulk copies."""
    if not isinstance(s, For) or not isinstance(stmts_of(s.body)[0], Barrier):
        return False
    return any(isinstance(inner, TensorLoad) for inner in statements(block(*_copies_and_rest(s)[0])))


def _copies_and_rest(loop: For) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """Return the statements of a loop's body between its first two barriers, and those behind."""
    stmts = stmts_of(loop.body)[1:]
    end = next((n for n, s in enumerate(stmts) if isinstance(s, Barrier)), 0)
    return stmts[:end], stmts[end + 1 :]


def _products(s: Stmt) -> Iterator[Let]:
    return filter(_is_product, statements(s))


def _is_product(s: Stmt) -> TypeGuard[Let]:
    return isinstance(s, Let) and isinstance(s.value, Mma)


def _reads_own_sums(compute: Iterable[Stmt]) -> bool:
    """Return whether other instructions read the sums of all products of a block within the block."""
    body = block(*compute)
    products = [*_products(body)]
    added_to = {product.value.acc for product in products if isinstance(product.value, Mma)}
    return {product.var for product in products} - added_to <= _read(body)


def _read(s: Stmt) -> set[Var]:
    """Return the variables that a statement reads, but for products and what loops carry."""
    beside = (inner for inner in statements(s) if not isinstance(inner, For) and not _is_product(inner))
    return {v for inner in beside for e in inner.operands for v in free_vars(e)}


def _first_read_of_last(stmts: Sequence[Stmt]) -> int:
    """Return the number of the first statement that reads the sums of the last product; 0 if none does."""
    products = [*_products(block(*stmts))]
    return next((n for n, s in enumerate(stmts) if products and products[-1].var in _read(s)), 0)


def _has_copies(s: Stmt) -> bool:
    return any(isinstance(inner, TensorLoad) for inner in statements(s))


@frozen
class _Place:
    """The place in a ring after a number of uses, modulo two rounds: its slot and phase."""

    slots: int
    uses: Expr

    @property
    def slot(self) -> Expr:
        return Select(Lt(self.uses, const(self.slots)), self.uses, self.uses - self.slots)

    @property
    def phase(self) -> Expr:
        return Select(Lt(self.uses, const(self.slots)), const(0), const(1))

    @property
    def next(self) -> Expr:
        """Return the uses after one more."""
        return Select(Lt(self.uses, const(2 * self.slots - 1)), self.uses + 1, const(0))

    @property
    def before(self) -> _Place:
        """Return the place of the use before."""
        return evolve(self, uses=Select(Lt(const(0), self.uses), self.uses - 1, const(2 * self.slots - 1)))


class _Role:
    """Rewrites the body of one role, and threads the number of uses of the ring through it."""

    def __init__(self, ring: Shared, tiles: frozenset[Shared], cloner: Cloner) -> None:
        self.ring, self.tiles, self.cloner = ring, tiles, cloner

    def of_blocks(self, loop: For, place: _Place, after: _Place) -> tuple[Stmt, Stmt]:
        """Return the body of the loop over blocks in this role, and what follows it; `after` is the next use there."""
        raise NotImplementedError

    def thread(self, s: Stmt, uses: Expr) -> tuple[Stmt, Expr]:
        """Return a statement in this role, and the uses of the ring behind it."""
        if not _has_copies(s):  # barriers order nothing: the ring orders its slots, other shared memory is private
            return rewrite(s, {Barrier: lambda barrier: empty}), uses
        match s:
            case Block(stmts):
                out: list[Stmt] = []
                for inner in stmts:
                    threaded, uses = self.thread(inner, uses)
                    out.append(threaded)
                return block(*out), uses
            case For():
                return self._loop(s, uses)
            case If(cond, then, other):
                out = []
                for holds, arm in ((cond, then), (Not(cond), other)):
                    if arm is not empty:
                        once = For(
                            var("once"), const(0), Select(holds, const(1), const(0)), (), (), arm, (), (), "once", False
                        )
                        threaded, uses = self._loop(once, uses) if _has_copies(arm) else (If(holds, arm, empty), uses)
                        out.append(threaded)
                return block(*out), uses
        raise Unsupported(f"given bulk copies outside a loop that begins with a barrier, copies and a barrier: {s}")

    def _loop(self, loop: For, uses: Expr) -> tuple[Stmt, Expr]:
        if any(exits_of(loop.body)):
            raise Unsupported(f"given loop {loop.label} of bulk copies with an exit, wanted one without")
        before, after = var("uses"), var("uses")
        if _is_ring_loop(loop):
            place = _Place(self.ring.cols, before)
            body, behind = self.of_blocks(loop, place, _Place(self.ring.cols, after))
            uses_next = place.next
        else:
            (body, uses_next), behind = self.thread(loop.body, before), empty
        threaded = evolve(
            loop,
            carried=(*loop.carried, before),
            inits=(*loop.inits, uses),
            body=body,
            yields=(*loop.yields, uses_next),
            results=(*loop.results, after),
        )
        return block(threaded, behind), after

    def _site(self, loop: For, stage: str) -> Site:
        sites = (s.site for s in statements(loop.body) if isinstance(s, TensorLoad))
        return evolve(self.cloner.site(next(sites), stage), comment="")


class _Producer(_Role):
    """Acquires each slot and starts the copies into it."""

    def of_blocks(self, loop: For, place: _Place, after: _Place) -> tuple[Stmt, Stmt]:
        copies, _ = _copies_and_rest(loop)
        due = sum(s.tensor.bytes for s in statements(block(*copies)) if isinstance(s, TensorLoad))
        slot = var("slot")
        acquire = AcquireSlot(self.ring, slot, place.phase, due, self._site(loop, "acquire"))
        placed = (rewrite(s, {TensorLoad: lambda load: evolve(load, slot=slot)}) for s in copies)
        return block(Let(slot, place.slot), acquire, *placed), empty


class _Consumer(_Role):
    """Awaits each slot, multiplies it, and releases it or the slot before, whose products are done by then."""

    def of_blocks(self, loop: For, place: _Place, after: _Place) -> tuple[Stmt, Stmt]:
        _, compute = _copies_and_rest(loop)
        slot = var("slot")
        start = Let(slot, place.slot), AwaitSlot(self.ring, slot, place.phase, self._site(loop, "await"))
        placed = [self._in_slot(s, slot) for s in compute]
        if self.ring.cols == 1 or _reads_own_sums(compute):  # the block releases its own slot
            behind = 1 + max(n for n, s in enumerate(placed) if self._reads_slot(s))
            at = max(behind, _first_read_of_last(placed))
            release = ReleaseSlot(self.ring, slot, 0, self._site(loop, "release"))
            return block(*start, *placed[:at], release, *placed[at:]), empty
        release = ReleaseSlot(self.ring, place.before.slot, _RUNNING, self._site(loop, "release"))
        body = block(*start, *placed, If(Lt(loop.begin, loop.var), release, empty))
        last = ReleaseSlot(self.ring, after.before.slot, 0, self._site(loop, "release"))
        return body, if_it_runs(loop, last)

    def _in_slot(self, s: Stmt, slot: Var) -> Stmt:
        """Return a statement that reads the tiles in a slot in place of the first one."""

        def factor_in_slot(factor: LoadFactor) -> LoadFactor:
            return evolve(factor, slot=slot) if factor.tile in self.tiles else factor

        def read_in_slot(read: SharedRead) -> SharedRead:
            at = slot * read.tile.slot_bytes + read.address
            return evolve(read, address=at) if read.tile in self.tiles else read

        return rewrite(s, {LoadFactor: factor_in_slot, **dict.fromkeys(_READS, read_in_slot)})

    def _reads_slot(self, s: Stmt) -> bool:
        """Return whether a statement multiplies, or whether lanes load from the tiles by it."""
        return any(_products(s)) or any(isinstance(e, SharedRead) and e.tile in self.tiles for e in statements(s))


# ---------------------------------------------------------------- what the copies depend on


def _needed(body: Stmt) -> Stmt:
    """Return the loops and branches around the bulk copies, with what they depend on.

    That is lets, carried values, and loads of memory that the kernel never writes.
    """
    wanted, written = _dependences(body), {m for s in statements(body) for m in s.writes}

    def kept(s: Stmt) -> Iterator[Stmt]:
        match s:
            case Block(stmts):
                for inner in stmts:
                    yield from kept(inner)
            case Let():
                if s.var in wanted:
                    yield s
            case Load() if s.var in wanted and not s.updates and _is_constant(s, written):
                yield s
            case TensorLoad() | Barrier():
                yield s
            case For() if _has_copies(s):
                body = block(*kept(_without_compute(s) if _is_ring_loop(s) else s.body))
                yield _carrying(evolve(s, body=body), [v in wanted for v in s.carried])
            case If(cond, then, other) if _has_copies(s):
                yield If(cond, block(*kept(then)), block(*kept(other)))
            case _:
                for v in s.binds:
                    if v in wanted:
                        wanted_values = "wanted lets, and loads of buffers that the kernel never writes"
                        raise Unsupported(f"given bulk copies that depend on {v.name}, {wanted_values}")

    return block(*kept(body))


def _is_constant(load: Load, written: Container[object]) -> bool:
    """Return whether a load has one value in both roles: it reads buffers only, none of which the kernel writes."""
    return all(isinstance(m, Global) and m not in written for m in load.reads)


def _without_compute(loop: For) -> Stmt:
    """Return the body of a loop over blocks up to its second barrier."""
    copies, _ = _copies_and_rest(loop)
    return block(*stmts_of(loop.body)[: len(copies) + 2])


def _carrying(loop: For, keeps: Iterable[bool]) -> For:
    """Return a loop that carries some of its values only."""
    keeps = list(keeps)

    def some(values: Iterable[Value]) -> tuple[Value, ...]:
        return tuple(value for value, keep in zip(values, keeps) if keep)

    inits, yields = some(loop.inits), some(loop.yields)
    return evolve(loop, carried=some(loop.carried), inits=inits, yields=yields, results=some(loop.results))


def _dependences(body: Stmt) -> set[Var]:
    """Return the variables on which bulk copies, and the loops and branches around them, depend."""
    of: dict[Var, tuple[Expr, ...]] = {}
    roots: list[Expr] = []
    for s in statements(body):
        match s:
            case Let(v, value):
                of[v] = (value,)
            case Load():
                of[s.var] = s.operands
            case For():
                ends = zip(s.carried, s.results, s.inits, s.yields)
                of |= {v: (init, out) for carried, result, init, out in ends for v in (carried, result)}
        if _has_copies(s):
            roots += (s.begin, s.end) if isinstance(s, For) else s.operands
    wanted: set[Var] = set()
    pending = [v for e in roots for v in free_vars(e)]
    while pending:
        v = pending.pop()
        if v not in wanted:
            wanted.add(v)
            pending += [w for e in of.get(v, ()) for w in free_vars(e)]
    return wanted
