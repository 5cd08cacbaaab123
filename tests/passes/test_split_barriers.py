"""Barriers in two halves: where the arrival goes, what it does not cross, and that nothing else changes."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends.target import get
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.error import VerifyError
from convgen.ir.expr import AddressOf, Lane, Var, const
from convgen.ir.interp import interpret
from convgen.ir.mutate import mutate
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.types import bool_, u32, u64
from convgen.ir.verify import verify
from convgen.passes.clone import sites
from convgen.passes.split_barriers import split_barriers
from tests.strategies import FIXED

FACTS = get("xehpc").facts
WIDTH, SUBGROUPS = 16, 2


class Body(KernelBuilder):
    """Statements by letter: a let, a global load and one out; shared reads and writes, capital ones in blocks.

    A word that begins with F or I is a loop or a branch with the others inside; E is an exit.
    """

    def __init__(self) -> None:
        super().__init__("k", subgroups=SUBGROUPS, width=WIDTH)
        self.out = self.buffer("out", u32, 4096)
        self.tile = self.shared("tile", u32, 2, WIDTH)
        self.value: Var = self.let("value", Lane().to(u32) + self.subgroup.to(u32))
        self.stores = 0

    def letter(self, c: str) -> None:
        mine, masked = self.subgroup * (4 * WIDTH), const(True, bool_)
        address = AddressOf(self.out) + (self.subgroup * (4 * WIDTH) + Lane() * 4 + self.stores * (8 * WIDTH)).to(u64)
        match c:
            case "b":
                self.barrier()
            case "l":
                self.value = self.let("v", self.value * 3 + 1)
            case "g":
                v = self.var("loaded", u32)
                self.add(s.FlatLoad(v, self.out, address, masked, self.site()))
            case "o":
                self.stores += 1
                self.add(s.FlatStore(self.out, address, masked, self.value, self.site()))
            case "r":
                self.value = self.shared_read("read", u32, self.tile, mine + Lane() * 4)
            case "w":
                self.shared_write(self.tile, self.value, mine + Lane() * 4)
            case "R":
                self.value = v = self.var("read", u32)
                self.add(s.BlockRead(v, self.tile, mine, 0, self.site()))
            case "W":
                self.add(s.BlockWrite(self.tile, mine, 0, self.value, self.site()))

    def body(self, text: str) -> Body:
        for word in text.split():
            kept = self.value
            match word[0]:
                case "F":
                    with self.loop("i", 0, 2):
                        self.body(" ".join(word[1:]))
                    self.value = kept
                case "I":
                    with self.when(self.subgroup < SUBGROUPS):
                        self.body(" ".join(word[1:]))
                    self.value = kept
                case "E":
                    self.exit_if(self.subgroup < 0)
                case _:
                    self.letter(word)
        return self


def outline(node: s.Stmt) -> str:
    """The statements by letter; parentheses are the halves of a barrier."""
    names: dict[type[s.Stmt], str] = {
        s.Let: "l", s.FlatLoad: "g", s.FlatStore: "o", s.SharedRead: "r", s.SharedWrite: "w", s.BlockRead: "R",
        s.BlockWrite: "W", s.Barrier: "b", s.Arrive: "(", s.Wait: ")", s.ExitIf: "E",
    }  # fmt: skip
    match node:
        case s.Block(stmts):
            return " ".join(map(outline, stmts))
        case s.For(body=body):
            return f"F{outline(body).replace(' ', '')}"
        case s.If(_, then, _):
            return f"I{outline(then).replace(' ', '')}"
    return names[type(node)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("w l g o b r", "w ( l g o ) r"),
        ("w b r", "w b r"),  # nothing to put between
        ("W l b R", "W ( l ) R"),
        ("l w r l b", "l w r ( l ) "),
        ("R l b W l b", "R ( l ) W ( l ) "),
        ("w l b l b r", "w ( l ) ( l ) r"),
        ("w b l b r", "w b ( l ) r"),
        ("w Fgl l b r", "w Fgl ( l ) r"),
        ("w Il l b r", "w Il ( l ) r"),
        ("w Fgl b r", "w Fgl b r"),
        ("w b Frlbw b", "w b Fr(l)w b"),
        ("Flb", "F(l)"),  # not out of the loop
        ("w FlElb r", "w FlE(l) r"),
        ("w FgEb r", "w FgEb r"),
    ],
)
def test_where_the_arrival_goes(before: str, after: str) -> None:
    kernel = Body().body(before).done()
    new = verify(split_barriers(verify(kernel, "message"), FACTS), "message")
    assert outline(new.body) == f"l {after}".strip()
    if before == after:
        assert new.body is kernel.body


def test_only_where_barriers_have_halves() -> None:
    kernel = Body().body("w l b r").done()
    assert split_barriers(kernel, evolve(FACTS, split_barriers=False)) is kernel


def test_sites_stay_unique_and_keep_their_stage() -> None:
    k = Body()
    k.barrier("publish")
    k.letter("l")
    k.barrier("release")
    new = split_barriers(k.done(), FACTS)
    numbers = [site.number for site in sites(new.body)]
    assert len(numbers) == len(set(numbers)) == 4  # the first goes up before what is bound at the start
    assert [site.stage for site in sites(new.body)] == ["publish", "publish", "release", "release"]


def memory_of(kernel: Kernel) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    memory = {"out": np.full(4096 * 4, 0xA5, np.uint8)}
    interpret(kernel, memory)
    return memory["out"]


BODIES = st.lists(st.sampled_from([*"llgobbrwRW", "Flob", "Frlbw", "Iolb", "FE", "Fb"]), max_size=14)


@settings(FIXED, max_examples=150)
@given(BODIES)
def test_the_same_memory_before_and_after(words: list[str]) -> None:
    kernel = verify(Body().body(" ".join(["w", *words, "o"])).done(), "message")
    new = verify(split_barriers(kernel, FACTS), "message")
    assert np.array_equal(memory_of(kernel), memory_of(new))
    flat = outline(new.body).replace(" ", "")
    assert all(not set("rwRWbFIE(") & set(between.split(")")[0]) for between in flat.split("(")[1:])
    assert not re.search("[lgo][b]", flat), "an arrival could go up"


def without(kind: type[s.Stmt]) -> Callable[[Kernel], Kernel]:
    return lambda k: evolve(k, body=mutate(k.body, {kind: lambda n: s.empty if type(n) is kind else n}))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (s.Arrive, "a wait at a barrier without an arrival"),
        (s.Wait, "between arrival and wait at a barrier|an arrival at a barrier without a wait"),
    ],
)
@pytest.mark.parametrize("body", ["w l b r", "w l b", "w Flb l", "w l b l b r"])
def test_losing_a_half_is_noticed(kind: type[s.Stmt], message: str, body: str) -> None:
    new = split_barriers(Body().body(body).done(), FACTS)
    with pytest.raises(VerifyError, match=message):
        verify(without(kind)(new))
