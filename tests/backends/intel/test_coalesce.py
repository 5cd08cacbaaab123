"""Which moves go: of what arithmetic of the block can write where it is moved to."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from convgen.backends.intel.coalesce import coalesce
from convgen.backends.intel.isa import OPCODES, Literal, XeInstruction, message, region
from convgen.backends.machine.instruction import BasicBlock, Function, Operand, Reg, VirtualRegister

LANES = 16


class Code:
    """Instructions on `p`, a payload, `t`, a tuple of two, `s` and `u`, scalars, and `v`, a register."""

    def __init__(self) -> None:
        sizes = {"p": ("v", 1), "t": ("v", 2), "s": ("s", 1), "u": ("s", 1), "v": ("v", 1), "f": ("f", 1)}
        self.r = {
            name: Reg(VirtualRegister(n, bank, size, name), 0, size)
            for n, (name, (bank, size)) in enumerate(sizes.items())
        }
        self.blocks = [BasicBlock("entry")]

    def add(self, op: str, dst: Operand, *src: Operand, lanes: int = 1, partial: bool = False) -> None:
        made = XeInstruction(OPCODES[op], (dst,), src, lanes=lanes, partial=partial)
        self.blocks[-1].instructions.append(made)

    def sum(self, name: str, more: int) -> None:
        self.add("add", region(self.r[name], "d"), region(self.r["u"], "d", 0, 0), Literal(more, "d"))

    def place(self, dword: int, name: str) -> None:
        self.add("mov", region(self.r["p"], "ud", dword), region(self.r[name], "ud", 0, 0), partial=True)

    def send(self) -> None:
        made = XeInstruction(message("load", "ugm", 4), (self.r["t"].words(0, 1),), (self.r["p"],))
        self.blocks[-1].instructions.append(made)

    def left(self) -> list[str]:
        return [
            shown(i.op.name, i.dst)
            for b in coalesce(Function("f", self.blocks), LANES).blocks
            for i in b.instructions
            if isinstance(i, XeInstruction)
        ]


def shown(name: str, dst: Iterable[Operand]) -> str:
    places = [f"{r.vreg.name}[{r.first}].{getattr(r, 'sub', 0)}" for r in dst if isinstance(r, Reg)]
    return f"{name} {places[0]}"


def test_a_scalar_is_computed_in_its_payload() -> None:
    c = Code()
    c.sum("s", 8)
    c.add("mov", region(c.r["p"], "ud", 6), Literal(0, "ud"), partial=True)  # another dword
    c.place(5, "s")
    assert c.left() == ["add p[0].5", "mov p[0].6"]


@pytest.mark.parametrize("between", ["send", "dword", "register", "read"])
def test_not_where_its_place_or_it_is_needed_in_between(between: str) -> None:
    c = Code()
    c.sum("s", 8)
    match between:
        case "send":
            c.send()
        case "dword":
            c.add("mov", region(c.r["p"], "ud", 5), Literal(0, "ud"), partial=True)
        case "register":
            c.add("mov", region(c.r["p"], "ud"), Literal(0, "ud"), lanes=LANES)
        case _:
            c.add("mov", region(c.r["u"], "ud"), region(c.r["s"], "ud", 0, 0))
    before = len(c.blocks[0].instructions)
    c.place(5, "s")
    assert len(c.left()) == before + 1


def test_not_from_another_block() -> None:
    c = Code()
    c.sum("s", 8)
    c.blocks.append(BasicBlock("next"))
    c.place(5, "s")
    assert c.left() == ["add s[0].0", "mov p[0].5"]


def test_a_register_that_is_written_in_parts_is_made_in_its_tuple() -> None:
    c = Code()
    halves = region(c.r["t"].words(0, 1), "uw", 0, 2)
    c.add("mov", region(c.r["v"], "uw", 0, 2), halves, lanes=LANES)
    c.add("mov", region(c.r["v"], "uw", 1, 2), halves, lanes=LANES, partial=True)
    c.add("mov", region(c.r["t"].words(1, 1), "ud"), region(c.r["v"], "ud"), lanes=LANES)
    assert c.left() == ["mov t[1].0", "mov t[1].1"]


def test_not_where_the_move_takes_part_of_it() -> None:
    c = Code()
    c.add("add", region(c.r["v"], "ud"), region(c.r["p"], "ud"), Literal(1, "ud"), lanes=LANES)
    c.add("mov", region(c.r["t"].words(1, 1), "ud"), region(c.r["v"], "ud", 1, 2), lanes=LANES)
    assert c.left() == ["add v[0].0", "mov t[1].0"]


@pytest.mark.parametrize("types", [("d", "f"), ("f", "d"), ("f", "ud")])
def test_not_where_the_move_converts(types: tuple[str, str]) -> None:
    c = Code()
    c.add("add", region(c.r["v"], types[1]), region(c.r["p"], types[1]), Literal(1, types[1]), lanes=LANES)
    c.add("mov", region(c.r["t"].words(1, 1), types[0]), region(c.r["v"], types[1]), lanes=LANES)
    assert c.left() == ["add v[0].0", "mov t[1].0"]


def test_not_what_a_message_brings() -> None:
    c = Code()
    row = message("load", "ugm", 4)
    c.blocks[-1].instructions.append(XeInstruction(row, (c.r["v"],), (c.r["p"],)))
    c.add("mov", region(c.r["t"].words(1, 1), "ud"), region(c.r["v"], "ud"), lanes=LANES)
    assert len(c.left()) == 2
