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

LANES = 8


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

    def new(self, bank: str, size: int = 1) -> Reg:
        number = len(self.r)
        made = self.r[str(number)] = Reg(VirtualRegister(number, bank, size, f"{bank}{number}"), 0, size)
        return made

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

    def left(self) -> list[str]:
        return [
            shown(i.op.name, i.dst)
            for b in coalesce(self.function, LANES).blocks
            for i in b.instructions
            if isinstance(i, XeInstruction)
        ]


def shown(name: str, dst: Iterable[Operand]) -> str:
    places = [f"{r.vreg.name}[{r.first}].{getattr(r, 'sub', 0)}" for r in dst if isinstance(r, Reg)]
    return " ".join([name, *places[:1]])


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


def test_signs_are_no_conversion() -> None:
    c = Code()
    c.add("add", region(c.r["v"], "d"), region(c.r["p"], "d"), Literal(1, "d"), lanes=LANES)
    c.add("mov", region(c.r["t"].words(1, 1), "ud"), region(c.r["v"], "d"), lanes=LANES)
    assert c.left() == ["add t[1].0"]


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


def test_not_where_the_tuple_is_stored_in_between() -> None:
    c = Code()
    c.add("add", region(c.r["v"], "ud"), region(c.r["p"], "ud"), Literal(1, "ud"), lanes=LANES)
    c.blocks[-1].instructions.append(XeInstruction(message("store", "ugm", 8), (), (c.r["p"], c.r["t"])))
    c.add("mov", region(c.r["t"].words(1, 1), "ud"), region(c.r["v"], "ud"), lanes=LANES)
    assert c.left()[-1] == "mov t[1].0"


def test_not_where_the_results_of_two_cross() -> None:
    """What is made in the place of the first must not be overwritten by its second half."""
    c = Code()
    for part in range(2):
        halves = region(c.r["p"], "uw", part, 2)
        c.add("mov", region(c.r["v"], "uw", part, 2), halves, lanes=LANES, partial=part > 0)
        if not part:
            c.add("add", region(c.r["w"], "ud"), region(c.r["p"], "ud"), Literal(1, "ud"), lanes=LANES)
    for name in "vw":
        c.add("mov", region(c.r["t"].words(1, 1), "ud"), region(c.r[name], "ud"), lanes=LANES)
    assert c.left() == ["mov t[1].0", "add w[0].0", "mov t[1].1", "mov t[1].0"]


_TYPES = st.sampled_from(("ud", "ud", "ud", "d", "uw", "f"))
_WIDTHS = st.sampled_from((LANES, LANES, LANES, LANES // 2))
_MOVES = st.sampled_from(("mov", "mov", "mov", "not"))
_SIGNS = st.sampled_from(("", "", "", "-"))


@st.composite
def moved(draw: st.DrawFn, c: Code) -> list[XeInstruction]:
    """What makes a scalar or a register, then what moves it into the payload or the tuple, more or less plainly."""
    op, to, of, signs, saturated = draw(_MOVES), draw(_TYPES), draw(_TYPES), draw(_SIGNS), draw(st.integers(0, 5)) == 0
    more = Literal(draw(st.integers(0, 1)), "ud")
    if draw(st.booleans()):
        made, u = c.new("s"), region(c.r["u"], "ud", 0, 0)
        place = region(c.r["p"], to, draw(st.integers(0, 2)), saturated=saturated)
        maker = XeInstruction(OPCODES["add"], (region(made, draw(_TYPES)),), (u, more))
        return [maker, XeInstruction(OPCODES[op], (place,), (region(made, of, 0, 0, signs=signs),), partial=True)]
    made, source = c.new("v", draw(st.integers(1, 2))), c.r["w"]
    if draw(st.booleans()):
        views = [(region(made.words(n, 1), "ud"), region(source, "ud"), False) for n in range(made.count)]
    else:
        views = [(region(made.words(0, 1), "uw", n, 2), region(source, "uw", n, 2), n > 0) for n in range(2)]
    width, word = draw(_WIDTHS), c.r["t"].words(draw(st.integers(0, 1)), 1)
    makers = [
        XeInstruction(OPCODES["add"], (view,), (by, more), lanes=LANES, partial=partial) for view, by, partial in views
    ]
    place, value = region(word, to, saturated=saturated), region(made.words(0, 1), of, signs=signs)
    return [*makers, XeInstruction(OPCODES[op], (place,), (value,), lanes=width, partial=width < LANES)]


@st.composite
def functions(draw: st.DrawFn) -> Function:
    """Some values that are made and moved, their instructions mixed with one another and with others."""
    c = Code()
    code: list[XeInstruction] = []
    for _ in range(draw(st.integers(1, 3))):
        at = 0
        for i in draw(moved(c)):
            at = draw(st.integers(at, len(code)))
            code.insert(at, i)
            at += 1
    for _ in range(draw(st.integers(0, 2))):
        name, sub = draw(st.sampled_from("ptuw")), draw(st.integers(0, 2))
        words = region(c.r[name].words(0, 1), draw(_TYPES), sub)
        store = XeInstruction(message("store", "slm", 4), (), (c.r["u"], c.r[name]))
        write = XeInstruction(OPCODES["mov"], (words,), (Literal(7, words.type),), partial=True)
        code.insert(draw(st.integers(0, len(code))), draw(st.sampled_from((store, write))))
    for name in "ptuw":
        for n in range(c.r[name].count):
            words = region(c.r[name].words(n, 1), "ud")
            c.add("mov", words, Literal(n, "ud"), lanes=1 if words.bank == "s" else LANES)
    c.blocks[0].instructions += code
    c.blocks[0].instructions += (XeInstruction(message("store", "slm", 4), (), (c.r["u"], c.r[n])) for n in "pt")
    return c.function


@settings(FIXED, max_examples=120)
@given(functions())
def test_messages_get_the_same(function: Function) -> None:
    assert means_the_same(coalesce(function, LANES), function, (0,), LANES)
