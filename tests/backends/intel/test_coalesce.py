"""Which moves go: of what arithmetic of the block can write where it is moved to."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends.intel.coalesce import coalesce
from convgen.backends.intel.isa import OPCODES, Literal, XeInstruction, message, region
from convgen.backends.machine.instruction import BasicBlock, Function, Operand, Reg, VirtualRegister
from tests.backends.intel.bytewise import means_the_same
from tests.strategies import FIXED

LANES = 16


class Code:
    """Instructions on `p`, a payload, `t`, a tuple of two, `s` and `u`, scalars, and `v` and `w`, registers."""

    def __init__(self) -> None:
        scalars, registers = dict.fromkeys("su", ("s", 1)), dict.fromkeys("pvw", ("v", 1))
        sizes = {"t": ("v", 2), "f": ("f", 1), **scalars, **registers}
        self.r = {
            name: Reg(VirtualRegister(n, bank, size, name), 0, size)
            for n, (name, (bank, size)) in enumerate(sizes.items())
        }
        self.blocks = [BasicBlock("entry")]

    def add(self, op: str, dst: Operand, *src: Operand, lanes: int = 1, partial: bool = False) -> None:
        made = XeInstruction(OPCODES[op], (dst,), src, lanes=lanes, partial=partial)
        self.blocks[-1].instructions.append(made)

    @property
    def function(self) -> Function:
        return Function("f", self.blocks)

    def sum(self, name: str, more: int) -> None:
        self.add("add", region(self.r[name], "d"), region(self.r["u"], "d", 0, 0), Literal(more, "d"))

    def place(self, dword: int, name: str) -> None:
        self.add("mov", region(self.r["p"], "ud", dword), region(self.r[name], "ud", 0, 0), partial=True)

    def send(self) -> None:
        made = XeInstruction(message("load", "ugm", 4), (self.r["t"].words(0, 1),), (self.r["p"],))
        self.blocks[-1].instructions.append(made)

    def half(self, name: str, part: int) -> None:
        """A half of each dword of a register, of `t`."""
        to, of = region(self.r[name], "uw", part, 2), region(self.r["t"].words(0, 1), "uw", part, 2)
        self.add("mov", to, of, lanes=LANES, partial=part > 0)

    def whole(self, name: str) -> None:
        """A register, of `t`."""
        source, more = region(self.r["t"].words(0, 1), "ud"), Literal(len(self.blocks[0].instructions), "ud")
        self.add("add", region(self.r[name], "ud"), source, more, lanes=LANES)

    def put(self, at: int, name: str) -> None:
        """A register into `t`."""
        self.add("mov", region(self.r["t"].words(at, 1), "ud"), region(self.r[name], "ud"), lanes=LANES)

    def read(self, name: str) -> None:
        """A store of it to where `u` says."""
        row = message("store", "slm", 4)
        self.blocks[-1].instructions.append(XeInstruction(row, (), (self.r["u"], self.r[name])))

    def left(self) -> list[str]:
        return [
            shown(i.op.name, i.dst)
            for b in coalesce(self.function, LANES).blocks
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


@pytest.mark.parametrize("between", ["send", "dword", "word", "register", "read"])
def test_not_where_its_place_or_it_is_needed_in_between(between: str) -> None:
    c = Code()
    c.sum("s", 8)
    match between:
        case "send":
            c.send()
        case "dword":
            c.add("mov", region(c.r["p"], "ud", 5), Literal(0, "ud"), partial=True)
        case "word":
            c.add("mov", region(c.r["p"], "uw", 11), Literal(0, "uw"), partial=True)
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


@pytest.mark.parametrize("op", ["math.inv", "addc", "macl"])
def test_not_what_makes_more_than_it_says_or_takes_longer(op: str) -> None:
    c = Code()
    c.add(op, region(c.r["v"], "ud"), region(c.r["p"], "ud"), lanes=LANES)
    c.add("mov", region(c.r["t"].words(1, 1), "ud"), region(c.r["v"], "ud"), lanes=LANES)
    assert len(c.left()) == 2


_DWORDS = st.integers(0, 3)
_SCALARS, _REGISTERS = st.sampled_from("su"), st.sampled_from("pvw")
_STEPS = st.one_of(
    st.tuples(st.just("sum"), _SCALARS, _DWORDS),
    st.tuples(st.just("place"), _DWORDS, _SCALARS),
    st.tuples(st.just("half"), _REGISTERS, st.integers(0, 1)),
    st.tuples(st.just("whole"), _REGISTERS),
    st.tuples(st.just("put"), st.integers(0, 1), _REGISTERS),
    st.tuples(st.just("read"), st.sampled_from("pt")),
)


@settings(FIXED, max_examples=150)
@given(st.lists(_STEPS, min_size=4, max_size=14))
def test_messages_get_the_same(steps: list[tuple[object, ...]]) -> None:
    c = Code()
    for name in "psut":
        c.add("mov", region(c.r[name], "ud"), Literal(1, "ud"), lanes=1 if name in "su" else LANES)
    for kind, *arguments in steps:
        getattr(c, str(kind))(*arguments)
    c.read("p")
    c.read("t")
    assert means_the_same(coalesce(c.function, LANES), c.function, [(0,)], LANES)
