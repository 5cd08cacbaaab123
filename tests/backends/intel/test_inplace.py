"""Which tuples are made in place: of words that partly stand where they go, in a tuple that nobody else needs."""

from __future__ import annotations

import pytest

from convgen.backends.intel.inplace import make_in_place
from convgen.backends.intel.isa import OPCODES, XeInstruction, message, region
from convgen.backends.machine.instruction import BasicBlock, Function, Operand, Reg, VirtualRegister

LANES = 8


class Code:
    """Instructions on `a` and `b`, tuples of two that are loaded, `x` and `y`, which are put together, and `p`."""

    def __init__(self) -> None:
        sizes = {"a": 2, "b": 2, "x": 2, "y": 2, "p": 1}
        self.r = {
            name: Reg(VirtualRegister(n, "v", size, name), 0, size) for n, (name, size) in enumerate(sizes.items())
        }
        self.blocks = [BasicBlock("entry")]

    def add(self, op: str, dst: Operand, *src: Operand, lanes: int = LANES, partial: bool = False) -> None:
        self.blocks[-1].instructions.append(XeInstruction(OPCODES[op], (dst,), src, lanes=lanes, partial=partial))

    def load(self, *names: str) -> None:
        for name in names:
            row = message("load", "slm", 8)
            self.blocks[-1].instructions.append(XeInstruction(row, (self.r[name],), (self.r["p"],), lanes=LANES))

    def store(self, name: str) -> None:
        row = message("store", "slm", 8)
        self.blocks[-1].instructions.append(XeInstruction(row, (), (self.r["p"], self.r[name]), lanes=LANES))

    def half(self, to: str, place: int, of: str, part: int) -> None:
        """Half `part` of each dword of `of` becomes half `place` of `to`, in both registers."""
        for n in range(2):
            read = region(self.r[of].words(n, 1), "uw", part, 2)
            self.add("mov", region(self.r[to].words(n, 1), "uw", place, 2), read, partial=place > 0)

    def turned(self) -> Code:
        """Two tuples loaded, turned and stored."""
        self.load("a", "b")
        return self.turn("xy")

    def turn(self, stored: str) -> Code:
        """Two by two halves turned: the lower ones in `x`, the upper ones in `y`; some are stored at once."""
        for to, part in (("x", 0), ("y", 1)):
            self.half(to, 0, "a", part)
            self.half(to, 1, "b", part)
            if to in stored:
                self.store(to)
        return self

    def made(self) -> list[str]:
        """The moves and stores that are left, by register and half."""
        done = make_in_place(Function("f", self.blocks), LANES)
        return [
            _shown(i)
            for b in done.blocks
            for i in b.instructions
            if i.op.name == "mov" or i.op.name.startswith("store")
        ]


def _shown(i: object) -> str:
    assert isinstance(i, XeInstruction)
    *_, last = (o for o in i.src if isinstance(o, Reg))
    if not i.dst:
        return f"store {last.vreg.name}"
    to = i.dst[0]
    assert isinstance(to, Reg)
    places = (f"{r.vreg.name}{r.first}.{getattr(r, 'sub', 0)}" for r in (to, last))
    return " ".join(places) + (" kept" if i.partial else "")


def test_a_little_matrix_turns_in_three_moves_for_two_registers() -> None:
    lower = ["x0.0 a0.0", "x1.0 a1.0", "x0.1 b0.0 kept", "x1.1 b1.0 kept", "store x"]
    assert Code().turned().made() == [*lower, "b0.0 a0.1 kept", "b1.0 a1.1 kept", "store b"]


def test_not_where_what_it_overwrites_is_read_later() -> None:
    c = Code().turned()
    before = len(c.made())
    c.store("b")
    assert len(c.made()) == before + 3


def test_not_where_another_block_reads_what_it_overwrites() -> None:
    c = Code().turned()
    before = len(c.made())
    c.blocks.append(BasicBlock("next"))
    c.store("b")
    assert len(c.made()) == before + 3


def test_not_where_what_it_overwrites_is_read_before_it_is_done() -> None:
    """Made in `a`, the lower halves would take the place of upper ones that are moved next."""
    c = Code()
    c.load("a", "b")
    c.turn("")
    for name in "xy":
        c.store(name)
    assert c.made()[-2:] == ["store x", "store b"]


def test_not_what_another_block_reads() -> None:
    c = Code().turned()
    before = len(c.made())
    c.blocks.append(BasicBlock("next"))
    c.store("y")
    assert len(c.made()) == before + 3


@pytest.mark.parametrize("when", ["ahead of its reader", "behind its reader"])
def test_a_tuple_is_loaded_again_behind_the_reader_only(when: str) -> None:
    c = Code().turned()
    stored = c.blocks[-1].instructions.pop()
    c.load(*(["b"] if when.startswith("ahead") else []))
    c.blocks[-1].instructions.append(stored)
    c.load(*([] if when.startswith("ahead") else ["b"]))
    assert ("store b" in c.made()) == when.startswith("behind")


def test_in_a_loop_it_is_read_at_the_next_turn_what_was_loaded_behind() -> None:
    """The tuple that the loop carries is needed again only once it was loaded."""
    c = Code()
    c.load("a", "b")
    c.blocks.append(BasicBlock("loop"))
    c.turn("xy")
    c.load("a", "b")
    c.blocks[-1].instructions.append(XeInstruction(OPCODES["jump"], target="loop"))
    c.blocks.append(BasicBlock("end"))
    assert "store b" in c.made()


def test_not_what_other_instructions_make_or_lanes_share() -> None:
    c = Code()
    c.load("a", "b")
    c.half("x", 0, "a", 1)
    c.add("add", region(c.r["x"].words(0, 1), "ud"), region(c.r["x"].words(0, 1), "ud"), region(c.r["p"], "ud"))
    c.half("x", 1, "b", 1)
    c.store("x")
    assert "store x" in c.made()
