"""Which addresses a loop carries: those that grow by a constant each turn, in offsets that do not wrap."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from convgen.backends.target import get
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import AddressOf, Const, Expr, Lane, const
from convgen.ir.interp import interpret
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.types import Type, bool_, s32, u32, u64
from convgen.ir.verify import verify
from convgen.passes.carry_addresses import carry_addresses

FACTS = get("xehpg").facts
FIRST, LAST = 2, 5  #: turns
ROOM = 1 << 14  #: bytes of the buffer that is read
EVERYWHERE = const(True, bool_)
TO = s32.bits // 8 * FACTS.subgroup_size  #: bytes that the lanes store in a turn

Make = Callable[[Expr], Expr]  #: the offset, in s32, of what a lane loads in a turn


def loads(*offsets: Make, by: Type = u32, leaves: bool = False) -> Kernel:
    """Loads at those offsets in a loop, and a store of each, in a buffer behind what a carried variable says."""
    k = KernelBuilder("k", width=FACTS.subgroup_size)
    of, to = k.buffer("of", u32, ROOM // 4), k.buffer("to", u32, TO * (LAST - FIRST) * len(offsets) // 4)
    with k.loop("i", FIRST, LAST, place=const(0)) as loop:
        for n, offset in enumerate(offsets):
            v = k.var("v", u32)
            k.add(s.FlatLoad(v, of, AddressOf(of) + offset(loop.var).to(by).to(u64), EVERYWHERE, k.site()))
            at = loop["place"] + TO * n + Lane() * 4
            k.add(s.FlatStore(to, AddressOf(to) + at.to(u32).to(u64), EVERYWHERE, v, k.site()))
        if leaves:
            k.exit_if(loop.var > LAST - 2, loop["place"])
        loop.yields(loop["place"] + TO * len(offsets))
    return verify(k.done(), "message")


def results(k: Kernel) -> bytes:
    given = np.random.default_rng(3).integers(1, 255, ROOM, dtype=np.uint8)
    memory = {"of": given, "to": np.zeros(TO * (LAST - FIRST) * 4, np.uint8)}
    interpret(k, memory, {})
    return memory["to"].tobytes()


def steps(k: Kernel) -> list[int]:
    """By what the addresses that loops carry grow."""
    loops = [each for each in statements(k.body) if isinstance(each, s.For)]
    pairs = [(v, y) for each in loops for v, y in zip(each.carried, each.yields) if v.type is u64]
    growths = [y.children()[1] for v, y in pairs if y.children()[0] is v]
    assert len(growths) == len(pairs)
    return [g.bits for g in growths if isinstance(g, Const)]


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize(
    ("offset", "wanted"),
    [
        (lambda turn: turn * 512 + Lane() * 4, [512]),
        (lambda turn: (turn + 3) * 64 + turn * 32 + 8, [96]),
        (lambda turn: Lane() * 4 + 64, []),  # steady
        (lambda turn: turn * turn * 4, []),  # grows by ever more
        (lambda turn: 2048 - turn * 64, []),  # shrinks
        (lambda turn: (turn & 3) * 64, []),
    ],
)
def test_what_grows_by_a_constant_is_carried(offset: Make, wanted: list[int], *, leaves: bool) -> None:
    before = loads(offset, leaves=leaves)
    after = verify(carry_addresses(before, FACTS), "message")
    assert steps(after) == wanted
    assert results(after) == results(before)


def test_constants_behind_an_address_have_it_from_there() -> None:
    k = KernelBuilder("k", width=FACTS.subgroup_size)
    of, to = k.buffer("of", u32, ROOM // 4), k.buffer("to", u32, ROOM // 4)
    with k.loop("i", 0, 4) as loop:
        start = AddressOf(of) + (loop.var * 256 + Lane() * 4).to(u32).to(u64)
        for far in (0, 64, 128):
            v = k.var("v", u32)
            k.add(s.FlatLoad(v, of, start + const(far, u64) if far else start, EVERYWHERE, k.site()))
            k.add(s.FlatStore(to, AddressOf(to) + (Lane() * 4 + far).to(u32).to(u64), EVERYWHERE, v, k.site()))
        loop.yields()
    before = verify(k.done(), "message")
    assert steps(verify(carry_addresses(before, FACTS), "message")) == [256]


def test_offsets_that_may_be_negative_are_not() -> None:
    assert not steps(carry_addresses(loads(lambda turn: turn * 64 - 256), FACTS))


def test_where_messages_have_immediates_nothing_is() -> None:
    facts = get("gfx942").facts
    before = loads(lambda turn: turn * 512 + Lane() * 4)
    assert facts.global_imm_max
    assert carry_addresses(before, facts) is before
