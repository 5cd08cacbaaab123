"""What must follow what in a block: as looking at all pairs says, and as late as what it reads is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends.machine.dependences import dependences
from convgen.backends.machine.epochs import accesses_ahead
from convgen.backends.machine.instruction import (
    BasicBlock,
    Function,
    Instruction,
    Opcode,
    Reg,
    Unit,
    VirtualRegister,
)
from tests.backends.machines import SHARED, VALU, functions
from tests.strategies import FIXED

FENCE = Opcode("fence", Unit.GLOBAL, latency=9, fence=True)


def meet(one: Sequence[Reg], other: Sequence[Reg]) -> bool:
    """Whether some words are in both."""
    return any(a.vreg is b.vreg and words(a) & words(b) for a in one for b in other)


def words(r: Reg) -> set[int]:
    return set(range(r.first, r.first + r.count))


def reasons(a: Instruction, b: Instruction) -> Iterator[int]:
    """Why `b` must follow an earlier `a`, by the slots that it has to wait then."""
    if meet(a.defs(), b.uses()):
        yield a.op.latency
    if meet(a.defs(), b.defs()) or {*a.flag_uses(), *a.flag_defs()} & {*b.flag_uses(), *b.flag_defs()}:
        yield 1
    if meet(a.uses(), b.defs()):
        yield 0
    memory = [i.barrier or i.op.fence or i.access is not None for i in (a, b)]
    shared = [i.barrier or (i.access is not None and i.access.space == "shared") for i in (a, b)]
    if (
        (all(memory) and (a.op.fence or b.op.fence))
        or (all(shared) and (a.barrier or b.barrier))
        or (a.access is not None and b.access is not None and a.access.conflicts(b.access))
    ):
        yield a.op.latency if b.barrier else 1


def closure(edges: dict[int, dict[int, int]], count: int) -> list[set[int]]:
    """All that each must stand behind, through others too."""
    behind: list[set[int]] = []
    for n in range(count):
        behind.append({m for before in edges.get(n, {}) for m in (before, *behind[before])})
    return behind


@settings(FIXED, max_examples=40)
@given(functions(most=12), st.lists(st.integers(0, 12), max_size=2), st.integers(1, 2))
def test_all_that_must_follow_follows(function: Function, fences: list[int], turns: int) -> None:
    for at in fences:
        function.blocks[0].instructions.insert(at, Instruction(FENCE))
    published = accesses_ahead(function)
    for block in function.blocks:
        body, count = block.instructions, len(block.instructions)
        found: dict[int, dict[int, int]] = {}
        for n, is_next, before in dependences(body, published, turns):
            found[n + count * is_next] = before
        for n in range(count if turns > 1 else 0):  # of the next turn as of this one
            own = {m + count: latency for m, latency in found.get(n, {}).items()}
            found[n + count] = {**found.get(n + count, {}), **own}
        code = body * turns
        pairs = {n: {m: max(why) for m in range(n) if (why := [*reasons(code[m], code[n])])} for n in range(len(code))}
        assert closure(found, len(code)) == closure(pairs, len(code))
        for n, before in found.items():
            assert all(latency <= pairs[n][m] for m, latency in before.items())
            for word in (Reg(r.vreg, at, 1) for r in code[n].uses() for at in words(r)):
                writers = [m for m in range(n) if meet(code[m].defs(), [word])]
                assert not writers or before[writers[-1]] >= code[writers[-1]].op.latency


def _follows(*body: Instruction) -> dict[int, dict[int, int]]:
    """What each instruction must follow."""
    function = Function("f", [BasicBlock("entry", list(body))])
    return {n: before for n, _, before in dependences(body, accesses_ahead(function))}


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_overwritten_is_not_waited_for(whole: bool) -> None:
    """But where words of it are left."""
    pair, other = Reg(VirtualRegister(0, "v", 2, "pair"), 0, 2), Reg(VirtualRegister(1, "v", 1, "other"), 0, 1)
    slow = Instruction(SHARED, (pair,))
    over = Instruction(VALU, (pair if whole else pair.words(0, 1),))
    assert _follows(slow, over, Instruction(VALU, (other,), (pair,))) == {
        1: {0: 1},
        2: {1: VALU.latency} if whole else {0: SHARED.latency, 1: VALU.latency},
    }
