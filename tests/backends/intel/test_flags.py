"""What sets flags that a register has still is not done again."""

from __future__ import annotations

from convgen.backends.intel.flags import keep_flags
from convgen.backends.intel.isa import OPCODES, Literal, Null, XeInstruction, region
from convgen.backends.machine.instruction import BasicBlock, Function, Operand, Reg, VirtualRegister

LANES, MOST = 16, 8


class Code:
    """Instructions on scalars `s` and `t`, the register `v`, and as many flags as one asks for."""

    def __init__(self) -> None:
        self.count = 0
        self.s, self.t, self.v = self.new("s"), self.new("s"), self.new("v")
        self.blocks = [BasicBlock("entry")]

    def new(self, bank: str, size: int = 1) -> Reg:
        self.count += 1
        return Reg(VirtualRegister(self.count, bank, size, f"{bank}{self.count}"), 0, size)

    def add(self, made: XeInstruction) -> None:
        self.blocks[-1].instructions.append(made)

    def compare(
        self,
        than: int,
        *,
        condition: str = "lt",
        of: Reg | None = None,
        into: Reg | None = None,
        flag: Reg | None = None,
    ) -> Reg:
        flag, dst = flag or self.new("f"), Null("d") if into is None else region(into, "d")
        source = region(of or self.v, "d")
        self.add(
            XeInstruction(
                OPCODES["cmp"], (dst,), (source, Literal(than, "d")), lanes=LANES, condition=condition, flag=flag
            )
        )
        return flag

    def copy(self, flag: Reg, to: Reg) -> None:
        self.add(XeInstruction(OPCODES["mov"], (region(to, "ud"),), (region(flag, "uw", 0, 0),)))

    def load(self, held: Reg) -> Reg:
        flag = self.new("f")
        self.add(XeInstruction(OPCODES["mov"], (region(flag, "uw"),), (region(held, "uw", 0, 0),)))
        return flag

    def both(self, a: Reg, b: Reg) -> Reg:
        flag = self.new("f")
        sources = region(a, "uw", 0, 0), region(b, "uw", 0, 0)
        self.add(XeInstruction(OPCODES["and"], (region(flag, "uw"),), sources))
        return flag

    def choose(self, by: Reg) -> None:
        sources: tuple[Operand, ...] = (region(self.v, "ud"), Literal(0, "ud"))
        self.add(XeInstruction(OPCODES["sel"], (region(self.new("v"), "ud"),), sources, lanes=LANES, predicate=by))

    def write(self, r: Reg) -> None:
        self.add(XeInstruction(OPCODES["mov"], (region(r, "ud"),), (Literal(7, "ud"),), lanes=LANES))

    def left(self, most: int = MOST) -> list[str]:
        """Each instruction that is left with the flag it reads or sets."""
        found = []
        for i in keep_flags(Function("f", self.blocks), most).instructions():
            assert isinstance(i, XeInstruction)
            flags = [r.vreg.name for r in (*i.uses(), *i.defs()) if r.bank == "f"]
            found.append(" ".join([i.op.name, *flags]))
        return found


def test_a_comparison_is_made_once() -> None:
    c = Code()
    first = c.compare(3)
    c.choose(first)
    c.choose(c.compare(3))
    c.choose(c.compare(3))
    name = first.vreg.name
    assert c.left() == [f"cmp {name}", *[f"sel {name}"] * 3]


def test_another_comparison_is_made() -> None:
    c = Code()
    flags = [c.compare(3), c.compare(4), c.compare(3, condition="ge"), c.compare(3, of=c.new("v"))]
    for flag in flags:
        c.choose(flag)
    assert sum(line.startswith("cmp") for line in c.left()) == 4


def test_what_is_compared_may_have_changed() -> None:
    c = Code()
    c.choose(c.compare(3))
    c.write(c.v)
    c.choose(c.compare(3))
    assert sum(line.startswith("cmp") for line in c.left()) == 2


def test_a_comparison_may_change_what_it_compares() -> None:
    c = Code()
    c.choose(c.compare(3, into=c.v))
    c.choose(c.compare(3))
    assert sum(line.startswith("cmp") for line in c.left()) == 2


def test_a_result_is_made_whatever_flags_there_are() -> None:
    c = Code()
    first = c.compare(3, into=c.new("v"))
    c.choose(c.compare(3))
    c.compare(3, into=c.new("v"))
    assert c.left()[:2] == [f"cmp {first.vreg.name}", f"sel {first.vreg.name}"]
    assert sum(line.startswith("cmp") for line in c.left()) == 2


def test_a_copy_brings_nothing_back_that_is_there() -> None:
    c = Code()
    first = c.compare(3)
    c.copy(first, c.s)
    c.choose(c.load(c.s))
    assert c.left() == [f"cmp {first.vreg.name}", f"sel {first.vreg.name}"]


def test_a_copy_that_is_read_elsewhere_stays() -> None:
    c = Code()
    c.copy(c.compare(3), c.s)
    c.blocks.append(BasicBlock("next"))
    c.choose(c.load(c.s))
    assert [line.split()[0] for line in c.left()] == ["cmp", "mov", "mov", "sel"]


def test_a_scalar_that_was_written_since_is_no_copy() -> None:
    c = Code()
    c.copy(c.compare(3), c.s)
    c.write(c.s)
    c.choose(c.load(c.s))
    assert [line.split()[0] for line in c.left()] == ["cmp", "mov", "mov", "mov", "sel"]


def test_logic_on_flags_that_are_kept() -> None:
    c = Code()
    c.choose(c.both(c.compare(3), c.compare(4)))
    c.choose(c.both(c.compare(3), c.compare(4)))
    assert [line.split()[0] for line in c.left()] == ["cmp", "cmp", "sel", "sel"]


def test_no_more_are_kept_than_there_are_registers() -> None:
    c = Code()
    first = c.compare(3)
    c.choose(first)
    others = [c.compare(n) for n in (4, 5)]
    for flag in others:
        c.choose(flag)
    c.choose(c.compare(3))
    assert sum(line.startswith("cmp") for line in c.left(3)) == 3
    assert sum(line.startswith("cmp") for line in c.left(2)) == 4


def test_flags_take_no_register_more_from_their_last_reader_on() -> None:
    c = Code()
    for _ in range(3):
        c.choose(c.compare(3))
    assert sum(line.startswith("cmp") for line in c.left(1)) == 1


def test_not_what_another_block_reads() -> None:
    c = Code()
    c.choose(c.compare(3))
    second = c.compare(3)
    c.blocks.append(BasicBlock("next"))
    c.choose(second)
    assert sum(line.startswith("cmp") for line in c.left()) == 2


def test_not_what_is_set_again() -> None:
    c = Code()
    first = c.compare(3)
    c.choose(first)
    c.choose(c.compare(4, flag=first))
    c.choose(c.compare(3))
    assert sum(line.startswith("cmp") for line in c.left()) == 3


def test_pairs_stand_even() -> None:
    c = Code()
    wide = c.new("f", 2)
    c.add(
        XeInstruction(
            OPCODES["cmp"], (Null("d"),), (region(c.v, "d"), Literal(1, "d")), lanes=32, condition="eq", flag=wide
        )
    )
    c.choose(c.compare(3))
    c.choose(wide)
    c.choose(c.compare(3))
    assert sum(line.startswith("cmp") for line in c.left(8)) == 2
    assert sum(line.startswith("cmp") for line in c.left(4)) == 3


def test_what_sets_flags_in_some_lanes_is_done() -> None:
    c = Code()
    guard = c.compare(1)
    for _ in range(2):
        c.choose(c.compare(3))
        comparison = c.blocks[-1].instructions[-2]
        assert isinstance(comparison, XeInstruction)
        comparison.predicate = guard
    assert sum(line.startswith("cmp") for line in c.left()) == 3


def test_the_second_of_two_comparisons_is_made_where_the_first_holds() -> None:
    c = Code()
    c.choose(c.both(c.compare(3), c.compare(4)))
    _, name = c.left()[0].split()
    assert c.left() == [f"cmp {name}", f"cmp {name} {name}", f"sel {name}"]


def test_so_are_further_ones() -> None:
    c = Code()
    c.choose(c.both(c.both(c.compare(3), c.compare(4)), c.compare(5)))
    first, second, third, choice = (line.split() for line in c.left())
    assert [first[0], second[0], third[0], choice[0]] == ["cmp", "cmp", "cmp", "sel"]
    assert {*first[1:], *second[1:], *third[1:], *choice[1:]} in ({first[1]}, {first[1], third[1]})
    assert third[1:] == [choice[1]] * 2
    assert second[1] == second[2] == first[1]


def test_not_where_one_is_needed_by_itself() -> None:
    c = Code()
    first, second = c.compare(3), c.compare(4)
    c.choose(c.both(first, second))
    c.choose(first)
    c.choose(second)
    assert "and" in [line.split()[0] for line in c.left()]


def test_only_what_is_last_needed_there_is_overwritten() -> None:
    c = Code()
    row = c.compare(3)
    c.choose(row)
    c.choose(c.both(row, c.compare(4)))
    assert [line.split()[0] for line in c.left()] == ["cmp", "sel", "cmp", "sel"]
    c.choose(row)
    assert [line.split()[0] for line in c.left()] == ["cmp", "sel", "cmp", "and", "sel", "sel"]


def test_not_what_was_compared_before_it_changed() -> None:
    c = Code()
    w = c.new("v")
    first = c.compare(3)
    second = c.compare(4, of=w)
    c.write(c.v)
    c.write(w)
    c.choose(c.both(first, second))
    assert "and" in [line.split()[0] for line in c.left()]


def test_what_another_block_reads_is_made_as_it_was() -> None:
    c = Code()
    joined = c.both(c.compare(3), c.compare(4))
    c.blocks.append(BasicBlock("next"))
    c.choose(joined)
    assert [line.split()[0] for line in c.left()] == ["cmp", "cmp", "and", "sel"]
