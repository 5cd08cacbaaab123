"""What must follow what in a block: as looking at all pairs says, and as late as what it reads is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends.machine.barrier_accesses import Ahead, accesses_ahead
from convgen.backends.machine.dependences import dependences
from convgen.backends.machine.instruction import (
    Access,
    BasicBlock,
    Function,
    Instruction,
    Opcode,
    Reg,
    Unit,
    VirtualRegister,
)
from tests.backends.machines import BRANCH, COMPARE, SALU, SELECT, SHARED, VALU, functions
from tests.strategies import FIXED

FENCE = Opcode("fence", Unit.GLOBAL, latency=9, fence=True)


def meet(one: Sequence[Reg], other: Sequence[Reg]) -> bool:
    """Whether some words are in both."""
    return any(a.vreg is b.vreg and words(a) & words(b) for a in one for b in other)


def words(r: Reg) -> set[int]:
    return set(range(r.first, r.first + r.count))


def is_kept(body: Sequence[Instruction], n: int, flag: str, in_loop: bool) -> bool:
    """Whether an instruction sets a flag and somebody reads it, who may stand behind a block that is no loop."""
    users = (i for i in body[n + 1 :] if flag in (*i.flag_uses(), *i.flag_defs()))
    following = next(users, None)
    wanted = not in_loop if following is None else flag in following.flag_uses()
    return wanted and flag in body[n].flag_defs()


def keeps_flag(body: Sequence[Instruction], m: int, n: int, flag: str, in_loop: bool) -> bool:
    """Whether one must follow an earlier one for a flag: not where both only read it, or both set it for nobody, and
    what is between does, too.
    """
    named = [i for i in body[m : n + 1] if flag in (*i.flag_uses(), *i.flag_defs())]
    if named[:1] != [body[m]] or named[-1:] != [body[n]]:
        return False
    readers = [flag in i.flag_uses() for i in named]
    setters = [flag in i.flag_defs() for i in named]
    kept = [is_kept(body, k, flag, in_loop) for k in range(m, n + 1)]
    return any(setters) and (any(readers) or any(kept))


def keeps_order(a: Instruction, b: Instruction, published: Ahead, in_loop: bool) -> bool:
    """Whether `b` must follow an earlier `a` for what they do in memory.

    What goes to shared memory from elsewhere, and in a loop any access, is free until a barrier behind which others may
    touch its place.
    """
    if not all(i.barrier or i.op.fence or i.access is not None for i in (a, b)):
        return False
    if a.op.fence or b.op.fence:
        return True
    if b.barrier and a.access is not None and (a.origin is not None or in_loop):
        return any(x.conflicts(other) for x in a.accesses for other in published[b])
    if a.barrier or b.barrier:
        return all(i.barrier or any(x.space == "shared" for x in i.accesses) for i in (a, b))
    return any(x.conflicts(y) for x in a.accesses for y in b.accesses)


def reasons(a: Instruction, b: Instruction, published: Ahead, in_loop: bool) -> Iterator[int]:
    """Why `b` must follow an earlier `a`, by the slots that it has to wait then, flags apart."""
    if meet(a.defs(), b.uses()):
        yield a.op.latency
    if meet(a.defs(), b.defs()):
        yield 1
    if meet(a.uses(), b.defs()):
        yield 0
    if keeps_order(a, b, published, in_loop):
        yield a.op.latency if b.barrier else 1


def closure(edges: dict[int, dict[int, int]], count: int) -> list[set[int]]:
    """All that each must stand behind, through others too."""
    behind: list[set[int]] = []
    for n in range(count):
        behind.append({m for before in edges.get(n, {}) for m in (before, *behind[before])})
    return behind


def needed(code: Sequence[Instruction], n: int, published: Ahead, in_loop: bool) -> Iterator[tuple[int, int]]:
    """What an instruction must wait for itself: last writers of words and of flags, what a barrier is there for."""
    i = code[n]
    for word in (Reg(r.vreg, at, 1) for r in i.uses() for at in words(r)):
        yield from [(m, code[m].op.latency) for m in range(n) if meet(code[m].defs(), [word])][-1:]
    for flag in i.flag_uses() if not in_loop else ():
        yield from [(m, 1) for m in range(n) if flag in code[m].flag_defs()][-1:]
    awaited = set[int]()
    for m in reversed(range(n if i.barrier else 0)):
        if m not in awaited and keeps_order(code[m], i, published, in_loop):
            yield m, code[m].op.latency
            if code[m].barrier:
                awaited |= {k for k in range(m) if keeps_order(code[k], code[m], published, in_loop)}


@settings(FIXED, max_examples=60)
@given(functions(most=12, pairs=True), st.lists(st.integers(0, 12), max_size=2), st.integers(1, 2), st.integers(1, 5))
def test_all_that_must_follow_follows(function: Function, fences: list[int], iterations: int, brought: int) -> None:
    """Of code with fences, and accesses of which some bring from one memory to another."""
    for at in fences:
        function.blocks[0].instructions.insert(at, Instruction(FENCE))
    for n, i in enumerate(function.instructions()):
        if i.access is not None and i.access.space == "global" and n % brought == 0:
            i.origin, i.access = i.access._replace(write=False), Access("shared", i.access.region, n % 3 - 1, True)
    published = accesses_ahead(function)
    for block in function.blocks:
        body, count = block.instructions, len(block.instructions)
        found: dict[int, dict[int, int]] = {}
        for n, is_next, before in dependences(body, published, iterations):
            found[n + count * is_next] = before
        code = body * iterations
        pairs = {
            n: {m: max(why) for m in range(n) if (why := [*reasons(code[m], code[n], published, iterations > 1)])}
            for n in range(len(code))
        }
        for n in range(len(code)):  # a loop's branch sets its flag anew
            for m in range(n // count * count, n):
                if any(keeps_flag(body, m % count, n % count, flag, iterations > 1) for flag in ("scc", "vcc")):
                    pairs[n][m] = max(pairs[n].get(m, 0), 1)
        for n, before in found.items():
            assert all(latency <= pairs[n][m] for m, latency in before.items())
        for n in range(count if iterations > 1 else 0):  # of the next iteration as of this one
            own = {m + count: latency for m, latency in found.get(n, {}).items()}
            found[n + count] = {**found.get(n + count, {}), **own}
        assert closure(found, len(code)) == closure(pairs, len(code))
        for n in range(len(code)):
            assert all(found[n][m] >= latency for m, latency in needed(code, n, published, iterations > 1))


def _follows(*body: Instruction) -> dict[int, dict[int, int]]:
    """What each instruction must follow."""
    function = Function("f", [BasicBlock("entry", list(body))])
    return {n: before for n, _, before in dependences(body, accesses_ahead(function))}


def test_who_sets_a_flag_for_nobody_stands_between_those_that_are_read() -> None:
    """Sums set it as they are made, in any order; a comparison and its reader keep them on their side."""
    results = [Reg(VirtualRegister(n, "s", 1, f"r{n}"), 0, 1) for n in range(5)]
    sums = [Instruction(SALU, (r,)) for r in results[:4]]
    compare, select = Instruction(COMPARE), Instruction(SELECT, (results[4],))
    end = Instruction(COMPARE), Instruction(BRANCH)
    assert _follows(sums[0], sums[1], compare, select, sums[2], sums[3], *end) == {
        2: {0: 1, 1: 1},
        3: {2: 1},
        4: {3: 1},
        5: {3: 1},
        6: {3: 1, 4: 1, 5: 1},
        7: {6: 1},
    }


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
