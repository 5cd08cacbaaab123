"""Which tuples are made in place: of words that partly stand where they go, in a tuple that nobody else needs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convgen.backends.intel.inplace import make_in_place
from convgen.backends.intel.isa import OPCODES, Literal, XeInstruction, message, region
from convgen.backends.machine.instruction import BasicBlock, Function, Operand, Reg, VirtualRegister
from tests.backends.intel.bytewise import is_defined, means_the_same
from tests.strategies import FIXED

LANES = 2

_Half = tuple[str, int, int]  # of each dword: the tuple, which of its registers, which half


class Code:
    """Instructions on `a` and `b`, tuples of two that are loaded, `x` and `y`, which are put together, `z` and `p`."""

    def __init__(self) -> None:
        sizes = {"a": 2, "b": 2, "x": 2, "y": 2, "z": 1, "p": 1}
        self.r = {
            name: Reg(VirtualRegister(n, "v", size, name), 0, size) for n, (name, size) in enumerate(sizes.items())
        }
        self.blocks = [BasicBlock("entry")]
        self.add("mov", region(self.r["p"], "ud"), Literal(0, "ud"))

    @property
    def function(self) -> Function:
        return Function("f", self.blocks)

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
            self.move((to, n, place), (of, n, part))

    def move(self, to: _Half, of: _Half, how: str = "mov") -> None:
        """A half of each dword of a register becomes that of another; the lower half is written first."""
        (name, n, place), (source, m, part) = to, of
        read = region(self.r[source].words(m, 1), "uw", part, 2, signs="-" if how == "-" else "")
        made, lanes = region(self.r[name].words(n, 1), "uw", place, 2), 1 if how == "one lane" else LANES
        self.add("not" if how == "not" else "mov", made, read, lanes=lanes, partial=place > 0 or lanes < LANES)

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
        done = make_in_place(self.function, LANES)
        return [
            _shown(i)
            for b in done.blocks
            for i in b.instructions
            if (i.op.name == "mov" and isinstance(i.src[0], Reg)) or i.op.name.startswith("store")
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


@pytest.mark.parametrize("pinned", "by")
def test_not_what_is_pinned_to_a_register(pinned: str) -> None:
    c = Code().turned()
    c.r[pinned].vreg.fixed = 3
    assert "store b" not in c.made()


def test_not_what_other_instructions_make_or_lanes_share() -> None:
    c = Code()
    c.load("a", "b")
    c.half("x", 0, "a", 1)
    c.add("add", region(c.r["x"].words(0, 1), "ud"), region(c.r["x"].words(0, 1), "ud"), region(c.r["p"], "ud"))
    c.half("x", 1, "b", 1)
    c.store("x")
    assert "store x" in c.made()


def test_not_where_it_is_read_once_more_behind_what_is_loaded_again() -> None:
    c = Code().turned()
    c.load("b")
    c.store("y")
    assert c.made()[-1] == "store y"


@pytest.mark.parametrize("how", ["stored", "packed"])
def test_not_where_its_home_is_read_when_part_of_it_is_overwritten(how: str) -> None:
    c = Code()
    c.load("a", "b")
    c.move(("y", 1, 0), ("a", 1, 1))
    if how == "stored":
        c.store("b")
    else:
        c.add("add", region(c.r["z"], "ud"), region(c.r["b"].words(1, 1), "uw", 1, 1), Literal(1, "ud"))
        c.store("z")
    c.move(("y", 0, 0), ("a", 0, 1))
    c.half("y", 1, "b", 1)
    c.store("y")
    assert c.made()[-1] == "store y"
    assert means_the_same(make_in_place(c.function, LANES), c.function, (0,), LANES)


def test_what_nobody_reads_stays_where_it_is() -> None:
    assert len(Code().turned().made()) == 8
    c = Code()
    c.load("a", "b")
    assert len(c.turn("x").made()) == 9


def test_not_what_reads_its_home_as_well() -> None:
    c = Code().turned()
    c.blocks[-1].instructions.pop()
    c.add("xor", region(c.r["z"], "ud"), *(region(c.r[name].words(0, 1), "ud") for name in "yb"))
    c.store("z")
    assert means_the_same(make_in_place(c.function, LANES), c.function, (0,), LANES)


_NAMES, _BITS = st.sampled_from("abxy"), st.integers(0, 1)
_HALVES = st.tuples(_NAMES, _BITS, _BITS)
_HOW = st.sampled_from(("mov", "mov", "mov", "mov", "not", "-", "one lane"))
_STEPS = st.one_of(
    st.tuples(st.sampled_from(("load", "store")), _NAMES),
    st.tuples(st.just("move"), _HALVES, _HALVES, _HOW),
)
_TURN: list[tuple[Any, ...]] = [
    *(("load", name) for name in "ab"),
    *(("move", ("x", n, place), (of, n, 0), "mov") for place, of in enumerate("ab") for n in range(2)),
    ("store", "x"),
    *(("move", ("y", n, place), (of, n, 1), "mov") for place, of in enumerate("ab") for n in range(2)),
    ("store", "y"),
]
_PLACES = st.integers(0, len(_TURN) - 1)


@settings(FIXED, max_examples=150)
@given(
    st.lists(st.tuples(_PLACES, st.one_of(_HOW, _HALVES)), max_size=1),
    st.lists(st.tuples(_PLACES, _STEPS), max_size=3),
    _BITS,
    st.tuples(*[st.integers(0, 18)] * 2),
)
def test_messages_get_the_same(
    changed: list[tuple[int, Any]], more: list[tuple[int, tuple[Any, ...]]], loops: int, cuts: tuple[int, int]
) -> None:
    """Two tuples turned, not quite, with other steps between, in three blocks of which the second may be a loop."""
    steps = list(_TURN)
    for at, new in changed:
        kind, *rest = steps[at]
        if kind == "move":
            to, of, how = rest
            steps[at] = (kind, to, of, new) if isinstance(new, str) else (kind, to, new, how)
    for at, step in more:
        steps.insert(at + 1, step)
    c = Code()
    for n, (kind, *arguments) in enumerate(steps):
        c.blocks += [BasicBlock(f"b{n}.{m}") for m, cut in enumerate(cuts) if cut == n]
        getattr(c, kind)(*arguments)
    c.blocks += [BasicBlock(f"end{m}") for m in range(3 - len(c.blocks))]
    if loops:
        c.blocks[1].instructions.append(XeInstruction(OPCODES["jmpi"], target=c.blocks[1].label))
    path = (0, 1, *[1] * loops, 2)
    assume(is_defined(c.function, path, LANES))
    assert means_the_same(make_in_place(c.function, LANES), c.function, path, LANES)
