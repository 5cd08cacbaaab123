"""Pipelining of copies and fragments: what is loaded, stored and read when, for few and many trips."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import gcd, lcm

import attrs
import pytest

from convgen.backends.target import get
from convgen.ir.error import Unsupported
from convgen.ir.expr import Const, Expr, Mma, Var, const, eq, var
from convgen.ir.interp import InterpError
from convgen.ir.mutate import mutate, postorder, substitute
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.simplify import simplify
from convgen.ir.stmt import Barrier, Block, ExitIf, For, If, Let, LoadShared, LoadView, Stmt, StoreShared, block
from convgen.ir.types import s32, s64
from convgen.ir.verify import verify
from convgen.passes.buffer_shared import buffer_shared
from convgen.passes.clone import sites
from convgen.passes.drop_barriers import drop_barriers
from convgen.passes.rotate_fragments import rotate_fragments
from convgen.plan.config import Config
from convgen.problem.conv import Conv
from tests.passes.running import assert_right, tile_kernel

FACTS = get("gfx942").facts
TILE_K = 32


@attrs.frozen
class Event:
    """One step of a run: `step` is the K block that is loaded, stored or read, `slot` where it stands."""

    kind: str  #: load, store, read, mma or barrier
    operand: str = ""
    step: int = -1
    slot: int = -1


def problem(trips: int) -> Conv:
    return Conv.parse(f"mb1ic{TILE_K * trips}ih6oc32kh1", dir="FWD_D", dt="f16")


def kernel(trips: int, slots: int, waves: int, stages: int = 1) -> Kernel:
    config = Config((32, 32, TILE_K), (waves, 1), (16, 16, 16), slots, stages=stages)
    return tile_kernel(problem(trips), config, FACTS)


def run(
    body: Stmt, values: dict[Var, Expr], held: dict[Expr, int], slots: dict[tuple[str, int], int]
) -> Iterator[Event]:
    """The events of a statement; `values` are integers, `held` the K block in each variable, `slots` in each slot."""
    match body:
        case Block(stmts):
            for s in stmts:
                yield from run(s, values, held, slots)
        case For():
            state = [held.get(e, -1) for e in body.inits]
            for i in range(integer(body.begin, values), integer(body.end, values)):
                values[body.var] = const(i)
                held.update(zip(body.carried, state))
                yield from run(body.body, values, held, slots)
                state = [held.get(e, -1) for e in body.yields]
            held.update(zip(body.results, state))
        case LoadView():
            held[body.var] = step = integer(body.coords[1], values) // TILE_K
            yield Event("load", body.view.memory.name, step)
        case StoreShared():
            slot = integer(body.slot, values)
            slots[body.tile.name, slot] = held[body.value]
            yield Event("store", body.tile.name, held[body.value], slot)
        case LoadShared():
            slot = integer(body.slot, values)
            yield Event("read", body.tile.name, slots[body.tile.name, slot], slot)
        case Let(_, Mma()):
            yield Event("mma")
        case Let(v, Var() as source) if source in held:
            held[v] = held[source]
        case Barrier():
            yield Event("barrier")
        case If(cond, then, other):
            yield from run(then if integer(cond, values) else other, values, held, slots)


def integer(e: Expr, values: dict[Var, Expr]) -> int:
    found = simplify(substitute(e, values))
    assert isinstance(found, Const)
    return found.bits


def pipelined(trips: int, slots: int, waves: int, stages: int = 1) -> Kernel:
    """With the fragments of the next iteration read ahead too."""
    return rotate_fragments(buffer_shared(kernel(trips, slots, waves, stages), FACTS), get("gfx942").facts)


def top(k: Kernel) -> tuple[Stmt, ...]:
    assert isinstance(k.body, Block)
    return k.body.stmts


def staged(trips: int, slots: int, waves: int, stages: int = 1) -> Kernel:
    return buffer_shared(kernel(trips, slots, waves, stages), FACTS)


def bare(trips: int, slots: int, waves: int, stages: int = 1) -> Kernel:
    """Without the barriers that order nothing."""
    return drop_barriers(buffer_shared(kernel(trips, slots, waves, stages), FACTS), FACTS)


def trace(k: Kernel) -> list[Event]:
    return list(run(k.body, {}, {}, {}))


DEEP = [(1, 2), (2, 2), (2, 3), (3, 2), (4, 1), (4, 2)]  #: slots and stages
CASES = [(trips, slots, 1) for trips in range(1, 7) for slots in (1, 2, 3)]
CASES += [(trips, *deep) for trips in (1, 2, 3, 4, 7, 18) for deep in DEEP]


@pytest.mark.parametrize(("trips", "slots", "stages"), CASES)
@pytest.mark.parametrize("waves", [1, 2])
@pytest.mark.parametrize("rotate", [False, True])
def test_every_block_is_loaded_stored_and_read_once(
    trips: int, slots: int, stages: int, waves: int, rotate: bool
) -> None:
    events = trace((pipelined if rotate else staged)(trips, slots, waves, stages))
    for operand, tile in (("src", "src_tile"), ("wei", "wei_tile")):
        assert [e.step for e in events if e.kind == "load" and e.operand == operand] == list(range(trips))
        stores = [(e.step, e.slot) for e in events if e.kind == "store" and e.operand == tile]
        assert stores == [(i, i % slots) for i in range(trips)]
        reads = [(e.step, e.slot) for e in events if e.kind == "read" and e.operand == tile]
        assert reads == stores
    assert sum(e.kind == "mma" for e in events) == trips


@pytest.mark.parametrize(("trips", "slots", "stages"), CASES)
def test_loads_run_ahead_of_the_multiplication(trips: int, slots: int, stages: int) -> None:
    events, ahead = trace(staged(trips, slots, 2, stages)), slots - 1 + stages
    products = [n for n, e in enumerate(events) if e.kind == "mma"]
    for n, e in enumerate(events):
        if e.kind == "load" and e.step >= ahead:
            assert n < products[e.step - ahead]
        if e.kind == "store" and slots > 1 and e.step >= slots - 1:
            assert n < products[e.step - slots + 1]


@pytest.mark.parametrize("slots", [2, 3])
def test_only_what_the_first_product_needs_is_read_before_the_next_copies(slots: int) -> None:
    """The fragments of the other parts come behind them, so that fewer registers are live."""
    facts, parts = get("xehpc").facts, Config((32, 32, TILE_K), (2, 1), (16, 8, 16), slots, subtiles=2)
    buffered = buffer_shared(tile_kernel(problem(5), parts, facts), facts)
    steps = " ".join(e.kind for e in trace(buffered)).split("barrier")
    turn = "read read store store load load read mma mma"
    assert [step.strip() for step in steps[1:-2]].count(turn) == 5 - slots
    assert steps[-1].strip() == "read read read mma mma"
    assert_right(problem(5), buffered)


@pytest.mark.parametrize(("trips", "slots", "stages"), CASES)
def test_barriers(trips: int, slots: int, stages: int) -> None:
    events = trace(bare(trips, slots, 2, stages))
    first = next(s for s in top(staged(trips, slots, 2, stages)) if isinstance(s, (For, Barrier)))
    first_release = isinstance(first, For)  # there if the release is part of a loop's body, else left out
    published_already = min(max(slots - 2, 0), max(trips - 2, 0))  # what the last iterations but one read
    wanted = 2 * trips - 1 + first_release if slots == 1 else trips - published_already
    assert sum(e.kind == "barrier" for e in events) == wanted
    alone = bare(trips, slots, 1, stages)
    assert not any(isinstance(s, Barrier) for s in postorder(alone))


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize(
    ("trips", "slots", "stages"),
    [
        (1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1), (5, 1, 1), (6, 2, 1), (3, 3, 1), (10, 3, 1), (3, 1, 2), (8, 2, 2),
        (3, 3, 2), (17, 3, 2), (9, 4, 1),
    ],
)  # fmt: skip
def test_no_barrier_is_there_in_vain(trips: int, slots: int, stages: int, rotate: bool) -> None:
    bared = drop_barriers(pipelined(trips, slots, 2, stages), FACTS) if rotate else bare(trips, slots, 2, stages)
    assert_right(problem(trips), bared)
    for lost in [s for s in postorder(bared) if isinstance(s, Barrier)]:
        with pytest.raises(InterpError, match=r"race|uninitialized memory"):
            assert_right(problem(trips), mutate(bared, {Block: partial(dropping, lost)}))


def dropping(lost: Stmt, b: Block) -> Stmt:
    return block(*(s for s in b.stmts if s is not lost))


@pytest.mark.parametrize("trips", [6, 7])
def test_fragments_are_read_one_iteration_ahead(trips: int) -> None:
    """In the loop every multiplication stands before every read; the operands it takes are carried."""
    (loop,) = (s for s in postorder(pipelined(trips, 2, 2)) if isinstance(s, For))
    stmts = loop.body.stmts if isinstance(loop.body, Block) else ()
    kinds = ["mma" if isinstance(s, Let) else "read" for s in stmts if isinstance(s, (Let, LoadShared))]
    assert kinds == ["mma", "read", "read", "mma", "read", "read"]
    first = next(s.value for s in stmts if isinstance(s, Let) and isinstance(s.value, Mma))
    assert {first.a, first.b} <= set(loop.carried)


def test_a_loop_on_one_slot_cannot_read_ahead() -> None:
    buffered = buffer_shared(kernel(6, 1, 2), FACTS)
    assert rotate_fragments(buffered, get("gfx942").facts) is buffered


def test_a_loop_followed_by_reads_of_another_slot_stays() -> None:
    buffered = buffer_shared(kernel(7, 2, 2), FACTS)
    assert isinstance(buffered.body, Block)
    after = buffered.body.stmts.index(next(s for s in buffered.body.stmts if isinstance(s, For))) + 1
    other = [evolve(s, slot=1 - s.slot) if isinstance(s, LoadShared) else s for s in buffered.body.stmts[after:]]
    changed = evolve(buffered, body=block(*buffered.body.stmts[:after], *other))
    assert rotate_fragments(changed, get("gfx942").facts) is changed
    assert rotate_fragments(buffered, get("gfx942").facts) is not buffered


@pytest.mark.parametrize("each", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize(("slots", "stages"), [(1, 1), (2, 1), (3, 1), *DEEP])
def test_no_more_taps_than_must_be_have_a_part_in_the_loads_of_a_round(slots: int, stages: int, each: int) -> None:
    """Of so many blocks each, as far as a power of two divides both that and a round."""
    conv = Conv.parse(f"mb1ic{TILE_K * each}ih6oc32kh7ph3", dir="FWD_D", dt="f16")
    config = Config((32, 32, TILE_K), (2, 1), (16, 16, 16), slots, stages=stages)
    loop = next(s for s in top(buffer_shared(tile_kernel(conv, config, FACTS), FACTS)) if isinstance(s, For))
    together = gcd(lcm(slots, stages) & -lcm(slots, stages), each)
    first = next(s for s in postorder(loop.body) if isinstance(s, LoadView))
    assert [integer(first.coords[1], {loop.var: const(n)}) // TILE_K % together for n in (0, 1)] == [0, 0]


@pytest.mark.parametrize("trips", range(16, 29))
@pytest.mark.parametrize(("slots", "stages"), [(1, 1), (2, 1), (3, 1), *DEEP])
def test_all_iterations_behind_a_loop_of_one_tap_only_finish_what_was_loaded(
    slots: int, stages: int, trips: int
) -> None:
    """Those that are left over stand before it."""
    buffered = staged(trips, slots, 2, stages)
    at = next(n for n, s in enumerate(top(buffered)) if isinstance(s, For))
    behind = [s for s in top(buffered)[at + 1 :] if isinstance(s, (LoadView, Let))]
    assert not any(isinstance(s, LoadView) for s in behind)
    assert sum(isinstance(s, Let) and isinstance(s.value, Mma) for s in behind) == slots - 1 + stages


@pytest.mark.parametrize(("slots", "stages"), [(1, 1), (2, 1), (3, 1), *DEEP])
def test_a_long_loop_stays_a_loop(slots: int, stages: int) -> None:
    short, long = (len(list(postorder(staged(trips, slots, 2, stages)))) for trips in (24, 36))
    assert short == pytest.approx(long, abs=4)


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_sites_stay_distinct(slots: int) -> None:
    numbers = [s.number for s in sites(buffer_shared(kernel(6, slots, 2), FACTS).body)]
    assert len(numbers) == len(set(numbers))


def test_other_loops_stay_as_they_are() -> None:
    buffered = buffer_shared(kernel(6, 2, 2), FACTS)
    assert buffer_shared(buffered, FACTS) is buffered


@pytest.mark.parametrize(("begin", "end"), [(0, 0), (0, 1), (0, 2), (1, 4), (2, 6), (3, 2), (1, 14)])
@pytest.mark.parametrize(("slots", "stages"), [(1, 1), (2, 1), (3, 1), *DEEP])
def test_a_loop_of_any_length(slots: int, stages: int, begin: int, end: int) -> None:
    """Bounds of which nothing is known: each block is read once, in order, from the slot that holds it."""
    naive = kernel(6, slots, 2, stages)
    loop = next(n for n in postorder(naive.body) if isinstance(n, For))
    first, last = var("first"), var("last")
    runtime = evolve(naive, body=evolve(loop, begin=first, end=last))
    values = {first: const(begin), last: const(end)}
    found = list(run(buffer_shared(runtime, FACTS).body, dict(values), {}, {}))
    for operand in ("src_tile", "wei_tile"):
        assert [e.step for e in found if (e.kind, e.operand) == ("read", operand)] == list(range(begin, end))
    assert sum(e.kind == "mma" for e in found) == max(end - begin, 0)


@pytest.mark.parametrize("whole", ["begin", "end"])
def test_a_loop_of_which_one_end_is_of_whole_rounds(whole: str) -> None:
    naive = kernel(6, 2, 2)
    loop = next(n for n in postorder(naive.body) if isinstance(n, For))
    first, last = var("first"), var("last")
    begin, end = (first * 2, last) if whole == "begin" else (first, last * 2)
    runtime = evolve(naive, body=If(begin < end, evolve(loop, begin=begin, end=end), block()))
    values = {first: const(1), last: const(3)}
    found = list(run(buffer_shared(runtime, FACTS).body, dict(values), {}, {}))
    wanted = list(range(2, 3)) if whole == "begin" else list(range(1, 6))
    assert [e.step for e in found if (e.kind, e.operand) == ("read", "src_tile")] == wanted


@pytest.mark.parametrize(
    ("slots", "stages", "begin", "end"),
    [
        (1, 1, 2, 6), (2, 1, 0, 2), (2, 1, 2, 6), (3, 1, 0, 6), (3, 1, 3, 6), (3, 1, 6, 6), (1, 2, 2, 6), (2, 2, 0, 2),
        (2, 2, 2, 8), (3, 2, 0, 6), (3, 2, 6, 18), (2, 3, 6, 12), (4, 2, 4, 8), (4, 2, 0, 12),
    ],
)  # fmt: skip
def test_a_loop_of_whole_rounds(slots: int, stages: int, begin: int, end: int) -> None:
    """Bounds that are known at run time only, in rounds: as with constants, but that blocks behind may be loaded."""
    naive, each = kernel(6, slots, 2, stages), lcm(slots, stages)
    loop = next(n for n in postorder(naive.body) if isinstance(n, For))
    first, last = var("first"), var("last")
    bounded = evolve(loop, begin=first * each, end=last * each)
    runtime = evolve(naive, body=If(first < last, bounded, block()))
    values = {first: const(begin // each), last: const(end // each)}
    if begin == end:
        assert not list(run(buffer_shared(runtime, FACTS).body, dict(values), {}, {}))
        return
    found = list(run(buffer_shared(runtime, FACTS).body, dict(values), {}, {}))
    constant = evolve(naive, body=evolve(loop, begin=const(begin), end=const(end)))
    wanted = list(run(buffer_shared(constant, FACTS).body, {}, {}, {}))
    used = [e for e in found if e.kind != "load" or e.step < end]
    assert len(found) - len(used) == 2 * max(0, slots - 1 + stages - each)
    for kind in ("load", "store", "read", "mma"):
        assert [e for e in used if e.kind == kind] == [e for e in wanted if e.kind == kind]


def test_a_statement_among_the_copies_is_refused() -> None:
    def shuffled(s: For) -> Stmt:
        stmts = list(s.body.stmts) if isinstance(s.body, Block) else []
        stmts.insert(2, Let(var("odd"), const(1)))
        return evolve(s, body=block(*stmts))

    with pytest.raises(Unsupported, match="wanted barrier, copies, barrier, compute"):
        buffer_shared(mutate(kernel(3, 1, 2), {For: shuffled}), FACTS)


@pytest.mark.parametrize(("begin", "end"), [(0, 0), (5, 5), (5, 3)])
def test_a_loop_that_never_runs_passes_its_initial_values(begin: int, end: int) -> None:
    bounds = {"begin": const(begin), "end": const(end)}
    made = buffer_shared(mutate(kernel(3, 2, 1), {For: lambda s: evolve(s, **bounds)}), FACTS)
    assert not any(isinstance(s, For | LoadView | StoreShared) for s in postorder(made.body))
    assert verify(made) is made


def test_a_loop_of_copies_with_an_exit_is_refused() -> None:
    def leaving(s: For) -> Stmt:
        return evolve(s, body=block(s.body, ExitIf(eq(s.var, 1), s.carried)))

    with pytest.raises(Unsupported, match="and an exit, wanted one of s32 without exits"):
        buffer_shared(mutate(kernel(3, 2, 1), {For: leaving}), FACTS)


def test_a_loop_of_copies_that_counts_in_another_type_is_refused() -> None:
    def counting(s: For) -> Stmt:
        counter = var("n", s64)
        body = substitute(s.body, {s.var: counter.to(s32)})
        return evolve(s, var=counter, begin=const(0, s64), end=const(3, s64), body=body)

    with pytest.raises(Unsupported, match="with a counter of s64, wanted one of s32"):
        buffer_shared(mutate(kernel(3, 2, 1), {For: counting}), FACTS)
