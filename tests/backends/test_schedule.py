"""Scheduling: a permutation under which every instruction reads what it read before."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import given, settings

from convgen.backends.machine.allocate import Bank, Liveness
from convgen.backends.machine.barrier_accesses import Ahead, accesses_ahead
from convgen.backends.machine.dependences import dependences
from convgen.backends.machine.instruction import (
    Access,
    BasicBlock,
    Function,
    Imm,
    Instruction,
    Operand,
    Reg,
    Unit,
    VirtualRegister,
)
from convgen.backends.machine.schedule import schedule
from convgen.ir.record import evolve
from tests.backends.machines import BARRIER, BRANCH, COMPARE, END, GLOBAL, MATRIX, SALU, SHARED, VALU, functions
from tests.backends.symbolic import Machine, run, virtual
from tests.strategies import FIXED

EXAMPLES = settings(FIXED, max_examples=60)


def reads(
    body: list[Instruction], keys: dict[int, Hashable], terms: dict[Hashable, int], ahead: Ahead | None = None
) -> object:
    """What each instruction reads, by its key, and what the block leaves behind."""
    machine = Machine(virtual, terms, ahead=ahead)
    inputs = run(machine, body, keys)
    return {keys[id(i)]: read for i, read in zip(body, inputs)}, machine.state


def assert_held(old: list[Instruction], new: list[Instruction], ahead: Ahead) -> None:
    """No access is ahead of a barrier behind which it stood, or behind one behind which others meet it."""
    at = {i: n for n, i in enumerate(new)}
    for n, barrier in enumerate(old):
        if not barrier.barrier:
            continue
        for i in old[n + 1 :]:
            assert all(a.space != "shared" for a in i.accesses) or at[i] > at[barrier]
        for i in old[:n]:
            assert at[i] < at[barrier] or not any(a.conflicts(b) for a in i.accesses for b in ahead[barrier])


@EXAMPLES
@given(functions(most=30, pairs=True))
def test_each_block_is_a_permutation_that_means_the_same(function: Function) -> None:
    """In a loop of products, accesses may go behind barriers that are there for others."""
    before, ahead = [list(b.instructions) for b in function.blocks], accesses_ahead(function)
    multiplying = {n for n, old in enumerate(before) if any(i.op.unit is Unit.MATRIX for i in old)}
    loops = {n for n in multiplying if n in function.successors(n)}
    for n, (old, block) in enumerate(zip(before, schedule(function).blocks)):
        new = block.instructions
        assert sorted(map(id, old)) == sorted(map(id, new))
        of_loop = ahead if n in loops else None
        keys: dict[int, Hashable] = {id(i): n for n, i in enumerate(old)}
        terms: dict[Hashable, int] = {}
        assert reads(new, keys, terms, of_loop) == reads(old, keys, terms, of_loop)
        assert_held(old, new, ahead)
        if old[-1].target:
            assert new[-3:] == old[-3:]
        if n not in multiplying and loops.isdisjoint(function.successors(n)):
            assert new == old


def register(number: int, size: int = 1, bank: str = "v") -> Reg:
    return Reg(VirtualRegister(number, bank, size, ""), 0, size)


def product(acc: Reg, *operands: Operand) -> Instruction:
    return Instruction(MATRIX, (acc,), (*operands, acc))


def order(*body: Instruction, loop: bool = False) -> list[int]:
    """The positions, in `body`, of the scheduled instructions."""
    instructions = list(body)
    if loop:
        c = register(99, 1, "s")
        instructions += [
            Instruction(SALU, (c,), (c, Imm(1))),
            Instruction(COMPARE, (), (c, Imm(4))),
            Instruction(BRANCH, target="loop"),
        ]
    function = Function("f", [BasicBlock("loop", list(instructions)), BasicBlock("end", [Instruction(END)])])
    return [instructions.index(i) for i in schedule(function).blocks[0].instructions]


def load(into: Reg, region: str = "a") -> Instruction:
    return Instruction(GLOBAL, (into,), access=Access("global", region, -1, False))


def test_loads_are_issued_before_the_products_that_hide_them() -> None:
    accumulators = [register(n, 4) for n in range(4)]
    a, b, loaded = register(10, 2), register(11, 2), register(12, 4)
    assert order(*(product(acc, a, b) for acc in accumulators), load(loaded)).index(4) <= 1


def test_shared_writes_of_what_the_last_iteration_loaded_come_late() -> None:
    accumulators = [register(n, 4) for n in range(6)]
    a, b, held = register(10, 2), register(11, 2), register(12, 4)
    write = Instruction(SHARED, (), (a, held), access=Access("shared", "a", 0, True))
    found = order(write, *(product(acc, a, b) for acc in accumulators), load(held), loop=True)
    assert found.index(0) > found.index(2)
    straight = order(write, *(product(acc, a, b) for acc in accumulators), load(held))
    assert straight.index(0) <= 1


def test_independent_work_fills_the_wait_for_an_operand() -> None:
    acc, a, b, c = register(1, 4), register(10, 2), register(11, 2), register(12)
    read = Instruction(SHARED, (a,), (c,), access=Access("shared", "a", 0, False))
    other = Instruction(VALU, (register(13),), (c,))
    assert order(read, product(acc, a, b), other) == [0, 2, 1]


def test_a_barrier_holds_shared_accesses_and_no_others() -> None:
    acc, a, b, c = register(1, 4), register(10, 2), register(11, 2), register(12)
    write = Instruction(SHARED, (), (c, a), access=Access("shared", "a", 0, True))
    found = order(product(acc, a, b), write, Instruction(BARRIER), load(register(14, 4)))
    assert found.index(1) < found.index(2)
    assert found.index(3) < found.index(2)


@pytest.mark.parametrize(("work", "finished"), [(1, False), (200, True)])
def test_sums_with_much_work_behind_them_are_finished_one_after_the_other(work: int, finished: bool) -> None:
    """With more than the matrix instructions take; then it goes on beside those of the next sums."""
    accumulators, a, b = [register(n, 4) for n in range(2)], register(10, 2), register(11, 2)
    products = [product(acc, a, b) for _ in range(8) for acc in accumulators]
    behind = [Instruction(VALU, (register(100 + n),), (accumulators[n % 2],)) for n in range(work)]
    found = [n for n in order(*products, *behind) if n < len(products)]
    assert (found == [*range(0, 16, 2), *range(1, 16, 2)]) == finished


def loop_of_tiles() -> tuple[list[Instruction], list[Instruction], list[Instruction], list[Instruction]]:
    """A loop as pipelining leaves it: products, writes of what was loaded, loads, reads for the next turn."""
    share = evolve(SHARED, busy=8)
    at, held = register(42), [register(50 + n, 4) for n in range(3)]
    first, second = ([register(60 + 10 * half + n, 4) for n in range(4)] for half in range(2))
    products = [
        product(register(n, 16), of[n % 8 // 4], of[2 + n % 8 // 4])
        for half, of in enumerate((first, second))
        for n in range(8 * half, 8 * half + 8)
    ]
    writes = [Instruction(share, (), (at, h), access=Access("shared", "a", 0, True)) for h in held]
    reads = [Instruction(share, (r,), (at,), access=Access("shared", "a", 0, False)) for r in first]
    return products, writes, [load(h) for h in held], reads


def test_in_a_loop_products_part_what_one_unit_does() -> None:
    """Writes before the barrier, and behind it the next turn's reads, one a product."""
    products, writes, loads, reads = loop_of_tiles()
    found = order(*writes, *loads, *products, Instruction(BARRIER), *reads, loop=True)
    kinds = "".join(("wwwlll" + "p" * 16 + "brrrr---")[n] for n in found)
    assert not any(several in kinds for several in ("rrr", "ww", "ll"))
    assert kinds[kinds.index("b") :].count("p") >= 3
    assert kinds[kinds.rindex("w") : kinds.index("b")].count("p") >= 2  # writes have landed when the barrier comes


def test_in_a_loop_loads_wait_for_the_write_of_what_is_in_their_registers() -> None:
    products, writes, loads, reads = loop_of_tiles()
    found = order(*writes, *loads, *products, Instruction(BARRIER), *reads, loop=True)
    assert all(found.index(n) < found.index(3 + n) for n in range(3))


def test_in_a_loop_products_stand_between_a_load_and_its_use() -> None:
    """Also where a turn itself writes what it has loaded; then loads come first."""
    products, writes, loads, reads = loop_of_tiles()
    found = order(*loads, *writes, *products, Instruction(BARRIER), *reads, loop=True)
    assert sum(6 <= n < 22 for n in found[found.index(0) : found.index(3)]) >= 8


def busy_tile() -> tuple[list[Instruction], list[Instruction], list[Instruction]]:
    """Products, writes and so many reads of shared memory that only a turn's first slots are left for the writes."""
    products, writes, _, reads = loop_of_tiles()
    return products, writes, [evolve(reads[0], dst=(register(300 + n, 4),)) for n in range(16)]


def test_in_a_loop_writes_that_are_due_at_its_begin_stand_beside_products() -> None:
    products, writes, reads = busy_tile()
    found = order(*writes, *products, Instruction(BARRIER), *reads, loop=True)
    kinds = "".join(("www" + "p" * 16 + "b" + "r" * 16 + "---")[n] for n in found)
    assert kinds.index("p") < kinds.index("w")
    assert max(map(len, kinds.split("p"))) < MATRIX.busy


@pytest.mark.parametrize(("slot", "reads", "passes"), [(2, 16, True), (2, 8, False), (0, 16, False)])
def test_in_a_loop_a_write_may_pass_a_barrier_behind_which_nobody_meets_it(slot: int, reads: int, passes: bool) -> None:
    """Where ahead of that is no room; what is read there must be in its place."""
    products, writes, all_reads = busy_tile()
    write = evolve(writes[0], access=Access("shared", "a", slot, True))
    later = Instruction(SHARED, (register(43),), (register(42),), access=Access("shared", "a", slot, False))
    barriers = Instruction(BARRIER), Instruction(BARRIER)
    body = [write, barriers[0], *all_reads[:reads], *products, barriers[1], later]
    found = order(*body, loop=True)
    at, first, second = (found.index(body.index(i)) for i in (write, *barriers))
    assert (first < at < second) if passes else at < first
    straight = order(*body)
    assert straight.index(0) < straight.index(1)


def test_in_a_loop_a_write_stays_ahead_of_a_barrier_if_there_is_room() -> None:
    """However late others meet it: its data's registers are free, and the pipe, when the barrier opens."""
    products, writes, _, reads = loop_of_tiles()
    write = evolve(writes[0], access=Access("shared", "a", 2, True))
    operands = [products[n].src[at] for at in (0, 1) for n in (8, 12)]
    mine = [evolve(read, dst=(operand,)) for read, operand in zip(reads, operands)]
    later = Instruction(SHARED, (register(43),), (register(42),), access=Access("shared", "a", 2, False))
    barriers = Instruction(BARRIER), Instruction(BARRIER)
    body = [write, *products[:8], barriers[0], *mine, *products[8:], barriers[1], later]
    found = order(*body, loop=True)
    assert found.index(0) < found.index(body.index(barriers[0]))


def test_the_last_product_of_a_loop_covers_the_branch() -> None:
    """What issues beside a product has slots before it, as many as the branch and its condition take."""
    products, _, _, _ = loop_of_tiles()
    work = [Instruction(VALU, (register(200 + n),), (register(42),)) for n in range(6)]
    found = order(*products, *work, loop=True)
    behind = found[found.index(len(products) - 1) + 1 :]
    assert len(behind) < MATRIX.busy


def around(before: list[Instruction], behind: list[Instruction]) -> list[list[int]]:
    """The order of blocks before and behind a loop of one product."""
    c = register(99, 1, "s")
    turn = [
        product(register(90, 4), register(91, 2), register(92, 2)),
        Instruction(SALU, (c,), (c, Imm(1))),
        Instruction(COMPARE, (), (c, Imm(4))),
        Instruction(BRANCH, target="loop"),
    ]
    end = [*behind, Instruction(END)]
    blocks = [BasicBlock("before", list(before)), BasicBlock("loop", turn), BasicBlock("end", end)]
    found = schedule(Function("f", blocks)).blocks
    return [[of.index(i) for i in block.instructions] for of, block in ((before, found[0]), (end, found[2]))]


def test_ahead_of_a_loop_work_fills_the_wait_for_a_load() -> None:
    loaded, at = register(1), register(2)
    body = [load(loaded), Instruction(VALU, (register(3),), (loaded,)), Instruction(VALU, (register(4),), (at,))]
    assert around(body, [])[0] == [0, 2, 1]
    assert around([], body)[1] == [0, 1, 2, 3]  # where no loop follows


def test_ahead_of_a_loop_the_first_load_has_its_address_first() -> None:
    """What they bring the loop waits for; nothing in the block does."""
    found_at, brought = (
        [[register(10 * n + step) for step in range(3)] for n in range(3)],
        [register(n) for n in (5, 6, 7)],
    )
    steps = [Instruction(VALU, (at[step],), (at[step - 1],)) for step in (1, 2) for at in found_at]
    loads = [
        Instruction(GLOBAL, (into,), (at[2],), access=Access("global", "a", -1, False))
        for into, at in zip(brought, found_at)
    ]
    other = Instruction(VALU, (register(50),), (register(51),))
    found = around([other, *steps, *loads], [])[0]
    assert [n for n in found if n > 6] == [7, 8, 9]
    assert found.index(7) < found.index(6)  # the place of the last one
    assert found[-1] == 0


def test_behind_a_loop_sums_are_finished_one_after_the_other() -> None:
    """However little is done with them: there is nothing else beside which it could be done."""
    accumulators, a, b = [register(n, 4) for n in range(2)], register(10, 2), register(11, 2)
    products = [product(acc, a, b) for _ in range(8) for acc in accumulators]
    work = [Instruction(VALU, (register(100 + n),), (acc,)) for n, acc in enumerate(accumulators)]
    found = around([], [*products, *work])[1]
    assert [n for n in found if n < len(products)] == [*range(0, 16, 2), *range(1, 16, 2)]
    assert found.index(16) < found.index(15)


def told(*body: Instruction, turns: int = 1) -> list[tuple[int, bool, dict[int, int]]]:
    function = Function("f", [BasicBlock("b", list(body))])
    return list(dependences(body, accesses_ahead(function), turns))


def test_what_follows_from_other_dependences_goes_without_saying() -> None:
    read, *writes = (Instruction(GLOBAL, access=Access("global", "a", -1, write)) for write in (False, True, True))
    assert told(read, *writes) == [(1, False, {0: 1}), (2, False, {1: 1})]
    assert told(read, *writes, turns=2)[2:] == [(0, True, {2: 1})]


def test_a_barrier_waits_for_what_no_barrier_has_waited_for() -> None:
    first, second = (Instruction(SHARED, access=Access("shared", name, -1, True)) for name in "ab")
    barriers = Instruction(BARRIER), Instruction(BARRIER)
    waits = SHARED.latency
    assert told(first, barriers[0], second, barriers[1]) == [
        (1, False, {0: waits}),
        (2, False, {1: 1}),
        (3, False, {1: BARRIER.latency, 2: waits}),
    ]


def most_taken(function: Function, index: int, bank: str) -> int:
    """Words of a bank that hold something at one place of a block, at most."""
    liveness = Liveness(function)
    places = range(*liveness.starts[index : index + 2])
    ranges = [(v.size, at) for v, at in liveness.ranges().items() if v.bank == bank]
    return max((sum(size for size, at in ranges if at >> place & 1) for place in places), default=0)


@EXAMPLES
@given(functions(most=30, pairs=True))
def test_where_the_order_as_written_stays_within_banks_blocks_do(function: Function) -> None:
    blocks = range(len(function.blocks))
    limits = {bank: max(most_taken(function, n, bank) for n in blocks) for bank in ("v", "s")}
    new = schedule(function, within={bank: Bank(limit, {1: 1}) for bank, limit in limits.items()})
    for n in blocks:
        assert sorted(map(id, function.blocks[n].instructions)) == sorted(map(id, new.blocks[n].instructions))
        if n not in function.successors(n):
            assert all(most_taken(new, n, bank) <= limit for bank, limit in limits.items())


def test_loads_go_ahead_as_far_as_there_are_registers() -> None:
    acc, a, loaded = register(0, 4), register(1, 4), [register(n, 4) for n in range(10, 16)]
    body = [i for r in loaded for i in (load(r), product(acc, a, r))]
    function = Function("f", [BasicBlock("all", [*body, Instruction(END)])])
    assert most_taken(function, 0, "v") == 12
    assert most_taken(schedule(function), 0, "v") == 32
    for limit in (12, 20, 32):
        assert most_taken(schedule(function, within={"v": Bank(limit, {1: 1})}), 0, "v") == limit
