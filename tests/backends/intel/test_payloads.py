"""Which addresses stay in registers of their own all through a loop, and which parts of payloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from convgen.backends.intel.isa import OPCODES, Literal, Special, XeInstruction, message, region
from convgen.backends.intel.payloads import invariant_addresses, keep_payloads
from convgen.backends.machine.allocate import Allocation, Bank, Liveness, allocate
from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Operand, Reg, VirtualRegister
from convgen.backends.machine.verifier import verify

LANES, MESSAGES, HOLDS = 16, 6, (3, 6, 12)


class Code:
    """A loop between two blocks, with scalars `s` and `t`, a payload `p`, and the sum of what messages bring."""

    def __init__(self) -> None:
        self.count = 0
        self.s, self.t, self.p, self.sum = self.new("s"), self.new("s"), self.new("v"), self.new("v")
        self.blocks = [BasicBlock("entry"), BasicBlock("loop"), BasicBlock("exit")]
        for r in (self.s, self.t, self.p, self.sum):
            self.add("mov", region(r, "ud"), Literal(1, "ud"), lanes=LANES, block=0)

    def new(self, bank: str, size: int = 1) -> Reg:
        self.count += 1
        return Reg(VirtualRegister(self.count, bank, size, f"{bank}{self.count}"), 0, size)

    def add(self, op: str, dst: Operand, *src: Operand, lanes: int = 1, partial: bool = False, block: int = 1) -> None:
        self.blocks[block].instructions.append(XeInstruction(OPCODES[op], (dst,), src, lanes=lanes, partial=partial))

    def load(self, address: Reg, block: int = 1) -> None:
        brought = self.new("v")
        self.blocks[block].instructions.append(XeInstruction(message("load", "slm", 4), (brought,), (address,)))
        self.add("add", region(self.sum, "ud"), region(self.sum, "ud"), region(brought, "ud"), lanes=LANES, block=block)

    def address(self, of: Reg, more: int) -> Reg:
        made = self.new("v")
        self.add("add", region(made, "ud"), region(of, "ud", 0, 0), Literal(more, "ud"))
        return made

    def part(self, dword: int, value: Reg, *, block: int = 1) -> None:
        self.add("mov", region(self.p, "ud", dword), region(value, "ud", 0, 0), partial=True, block=block)

    def jump(self, block: int, target: str) -> None:
        self.blocks[block].instructions.append(XeInstruction(OPCODES["jmpi"], target=target))

    def kept(
        self, registers: int = 32, scalars: int = 16, holds: Sequence[int] = HOLDS
    ) -> Mapping[str, list[Instruction]]:
        """What is left of each block; places fit, and nothing that is needed is overwritten."""
        self.jump(-2, "loop")
        self.blocks[-1].instructions.append(XeInstruction(OPCODES["eot"], (), (self.sum,)))
        function = Function("f", self.blocks)
        banks = {"v": Bank(registers, {1: 1}), "s": Bank(scalars, {1: 1})}
        found, places = keep_payloads(function, allocate(function, banks).base, Liveness(function), banks, holds)
        verify(found, banks, Allocation(places, {"v": registers, "s": scalars}))
        assert max(at for v, at in places.items() if v.bank == "v") < registers
        return {block.label: block.instructions for block in found.blocks}


def made(instructions: list[Instruction]) -> int:
    """How many addresses are made of `s` or `t` and a number."""
    return sum(i.op.name == "add" and isinstance(i.src[1], Literal) for i in instructions)


def test_addresses_are_made_before_the_loop() -> None:
    c = Code()
    for n in range(MESSAGES):
        c.load(c.address(c.s, 64 * n))
    found = c.kept()
    assert made(found["entry"]) == MESSAGES
    assert made(found["loop"]) == 0


def kept_of(registers: int, holds: Sequence[int] = HOLDS) -> int:
    """How many of the messages' addresses stay, in so many registers."""
    c = Code()
    for n in range(MESSAGES):
        c.load(c.address(c.s, 64 * n))
    found = c.kept(registers, holds=holds)
    count = made(found["entry"])
    assert made(found["loop"]) == MESSAGES - count
    return count


def test_steady_addresses_are_counted() -> None:
    c = Code()
    assert invariant_addresses(Function("f", c.blocks)) == 0
    for more in range(3):
        c.load(c.address(c.s, more))
    changing = c.new("s")
    c.add("add", region(changing, "ud"), region(changing, "ud"), Literal(1, "ud"))
    c.load(c.address(changing, 0))
    c.jump(-2, "loop")
    assert invariant_addresses(Function("f", c.blocks)) == 3


def test_as_many_as_there_are_registers_for() -> None:
    """All as soon as there is one for each, one for the sum and one for what is brought."""
    counts = [kept_of(registers) for registers in range(4, 20)]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts.index(MESSAGES) + 4 == MESSAGES + 2


@pytest.mark.parametrize("registers", range(4, 10))
def test_the_others_are_left_alone_for_the_longest_time_that_lets_some_stay(registers: int) -> None:
    alone = [kept_of(registers, (hold,)) for hold in sorted(HOLDS, reverse=True)]
    assert kept_of(registers) == next(filter(None, alone), 0)


@pytest.mark.parametrize("case", ["not always", "from further ahead"])
def test_nothing_is_made_before_a_loop_where_all_must_come_by(case: str) -> None:
    """The block ahead of a loop may leave for elsewhere, or be one of two from which it is entered."""
    c = Code()
    c.load(c.address(c.s, 64))
    if case == "not always":
        c.jump(0, "exit")
    else:
        c.jump(0, "loop")
        c.blocks.insert(1, BasicBlock("ahead"))
    assert made(c.kept()["loop"]) == 1


def test_what_the_loop_changes_is_made_there() -> None:
    c = Code()
    c.load(c.address(c.s, 64))
    c.load(c.address(c.t, 64))
    c.add("add", region(c.t, "ud"), region(c.t, "ud", 0, 0), Literal(1, "ud"))
    found = c.kept()
    assert made(found["entry"]) == 1
    assert made(found["loop"]) == 2  # the other address, and what it is made of


def test_what_others_read_too_stays() -> None:
    c = Code()
    address = c.address(c.s, 64)
    c.load(address)
    c.add("add", region(c.sum, "ud"), region(c.sum, "ud"), region(address, "ud"), lanes=LANES)
    behind = c.address(c.s, 128)
    c.load(behind)
    c.load(behind, block=2)
    assert made(c.kept()["loop"]) == 2


def test_what_the_accumulator_changes_is_made_there() -> None:
    c = Code()
    made_of_carry = c.new("v")
    c.add("add", region(made_of_carry, "ud"), region(c.s, "ud", 0, 0), Special("acc0", "ud"))
    c.load(made_of_carry)
    assert any(isinstance(o, Special) for i in c.kept()["loop"] for o in i.src)


def test_what_runs_in_some_lanes_stays() -> None:
    c = Code()
    c.load(c.address(c.s, 64))
    flag = c.new("f")
    (last,) = (i for i in c.blocks[1].instructions if made([i]))
    assert isinstance(last, XeInstruction)
    last.predicate = flag
    c.blocks[1].instructions.append(XeInstruction(OPCODES["jmpi"], target="loop"))
    function = Function("f", c.blocks)
    banks = {"v": Bank(32, {1: 1}), "s": Bank(16, {1: 1}), "f": Bank(4, {1: 1})}
    found, _ = keep_payloads(function, allocate(function, banks).base, Liveness(function), banks, HOLDS)
    assert found is function


def test_parts_that_stay_the_same_are_set_once() -> None:
    c = Code()
    for _ in range(2):
        c.part(5, c.s)
        c.load(c.p)
    found = c.kept()
    assert sum(i.op.name == "mov" for i in found["loop"]) == 0
    assert sum(i.op.name == "mov" for i in found["entry"]) == 5


@pytest.mark.parametrize("case", ["two values", "changed", "read before", "all of it", "several dwords"])
def test_parts_that_do_not_are_set_again(case: str) -> None:
    c = Code()
    if case == "read before":
        c.load(c.p)
    c.part(5, c.s)
    c.load(c.p)
    if case == "two values":
        c.part(5, c.t)
        c.load(c.p)
    if case == "changed":
        c.add("add", region(c.s, "ud"), region(c.s, "ud", 0, 0), Literal(1, "ud"))
    if case == "all of it":
        c.part(15, c.s)
        c.load(c.p)
        c.add("mov", region(c.p, "ud"), Literal(0, "ud"), lanes=LANES)
    if case == "several dwords":
        c.add("mov", region(c.p, "ud", 6), region(c.s, "ud", 0, 0), lanes=2, partial=True)
    found = c.kept()
    assert sum(i.op.name == "mov" for i in found["loop"]) == sum(i.op.name == "mov" for i in c.blocks[1].instructions)


def test_other_parts_do_not_matter() -> None:
    c = Code()
    for n in range(2):
        c.part(5, c.s)
        c.add("mov", region(c.p, "ud", 6), Literal(n, "ud"), partial=True)
        c.load(c.p)
    c.add("add", region(c.p, "q"), region(c.p, "q"), Literal(8, "q"), partial=True)  # dwords 0 and 1
    assert sum(i.op.name == "mov" for i in c.kept()["loop"]) == 2


def test_a_loop_may_go_on_in_a_block_without_messages() -> None:
    c = Code()
    c.part(5, c.s)
    c.load(c.p)
    c.blocks.insert(2, BasicBlock("latch"))
    assert sum(i.op.name == "mov" for i in c.kept()["loop"]) == 0


def test_a_part_within_a_wider_one_is_set_again() -> None:
    c = Code()
    c.part(1, c.s)
    c.load(c.p)
    c.add("add", region(c.p, "q"), region(c.p, "q"), Literal(8, "q"), partial=True)
    assert sum(i.op.name == "mov" for i in c.kept()["loop"]) == 1


def constant(c: Code) -> Reg:
    """A scalar that the loop gives a number, and adds to `sum`."""
    made = c.new("s")
    c.add("mov", region(made, "ud"), Literal(1 << 31, "ud"))
    c.add("add", region(c.sum, "ud"), region(c.sum, "ud"), region(made, "ud", 0, 0), lanes=LANES)
    return made


def numbers(instructions: list[Instruction]) -> int:
    """How many scalars get a number there."""
    return sum(i.op.name == "mov" and i.defs()[0].bank == "s" for i in instructions)


def test_constants_are_put_into_scalars_before_the_loop() -> None:
    c = Code()
    constant(c)
    c.load(c.address(c.s, 64))
    c.load(c.address(c.t, 64))
    found = c.kept()
    assert (numbers(found["entry"]), numbers(found["loop"])) == (3, 0)


def test_not_those_that_are_read_behind_the_loop() -> None:
    c = Code()
    made = constant(c)
    c.add("add", region(c.sum, "ud"), region(c.sum, "ud"), region(made, "ud", 0, 0), lanes=LANES, block=2)
    assert numbers(c.kept()["loop"]) == 1


@pytest.mark.parametrize("scalars", range(10, 22))
def test_only_as_many_as_scalars_are_left(scalars: int) -> None:
    """All, or all scalars but one, in which the others are made again."""
    c = Code()
    for _ in range(20):
        constant(c)
    assert numbers(c.kept(scalars=scalars)["loop"]) == (0 if scalars >= 20 else 21 - scalars)
