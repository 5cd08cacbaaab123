"""Scheduling: a permutation under which every instruction reads what it read before."""

from __future__ import annotations

from collections.abc import Hashable

import attrs
import pytest
from hypothesis import given, settings

from convgen.backends.machine.instruction import (
    Access,
    BasicBlock,
    Function,
    Imm,
    Instruction,
    Operand,
    Product,
    Reg,
    Unit,
    VirtualRegister,
)
from convgen.backends.machine.schedule import schedule
from tests.backends.machines import BARRIER, BRANCH, COMPARE, END, GLOBAL, MATRIX, SALU, SHARED, VALU, functions
from tests.backends.symbolic import Machine, run, virtual
from tests.strategies import FIXED

EXAMPLES = settings(FIXED, max_examples=60)


def reads(body: list[Instruction], keys: dict[int, Hashable], terms: dict[Hashable, int]) -> object:
    """What each instruction reads, by its key, and what the block leaves behind."""
    machine = Machine(virtual, terms)
    inputs = run(machine, body, keys)
    return {keys[id(i)]: read for i, read in zip(body, inputs)}, machine.state


@EXAMPLES
@given(functions(most=30))
def test_each_block_is_a_permutation_that_means_the_same(function: Function) -> None:
    before = [list(b.instructions) for b in function.blocks]
    for old, block in zip(before, schedule(function).blocks):
        new = block.instructions
        assert sorted(map(id, old)) == sorted(map(id, new))
        keys: dict[int, Hashable] = {id(i): n for n, i in enumerate(old)}
        terms: dict[Hashable, int] = {}
        assert reads(new, keys, terms) == reads(old, keys, terms)
        if old[-1].target:
            assert new[-3:] == old[-3:]
        if not any(i.op.unit is Unit.MATRIX for i in old):
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


@pytest.mark.parametrize(("covers", "reading", "behind"), [(True, 20, 3), (False, 20, 0), (True, 10, 0)])
def test_the_last_products_go_on_while_the_next_operands_are_read(covers: bool, reading: int, behind: int) -> None:
    """As many as take the time to issue what follows, where shared memory takes longer than the products."""
    share = attrs.evolve(SHARED, busy=8)
    multiply = Product("v_mfma", Unit.MATRIX, latency=11, busy=8, early_clobber=True, covers=covers)
    a, b, at, held = register(40, 2), register(41, 2), register(42), register(43, 4)
    products = [Instruction(multiply, (acc,), (a, b, acc)) for acc in (register(n, 4) for n in range(16))]
    write = Instruction(share, (), (at, held), access=Access("shared", "a", 0, True))  # late: the last turn's load
    reads = [
        Instruction(share, (register(50 + n, 2),), (at,), access=Access("shared", "a", 0, False))
        for n in range(reading)
    ]
    found = order(*products, write, load(held, "b"), Instruction(BARRIER), *reads, loop=True)
    last = found[found.index(18) + 1 :]
    assert [n for n in last if n < 16] == list(range(16 - behind, 16))
    assert set(last) >= set(range(19, 19 + reading))
    if behind:
        assert max(last.index(n) for n in last if n < 16) > reading // 3  # beside reads, not before them
