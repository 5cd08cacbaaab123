"""Loops turned so that they end with the scalars that their first loads need: all that stays reads what it read."""

from __future__ import annotations

from collections.abc import Hashable

from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends.machine.instruction import (
    Access,
    BasicBlock,
    Function,
    Imm,
    Instruction,
    Reg,
    VirtualRegister,
)
from convgen.backends.machine.rotate import rotate
from tests.backends.machines import BARRIER, BRANCH, COMPARE, END, GLOBAL, MATRIX, SALU, SELECT
from tests.backends.symbolic import Machine, Term, path_of, run, virtual
from tests.strategies import FIXED

_ACC = Reg(VirtualRegister(50, "v", 4, "sums"), 0, 4)
_SCALARS = [Reg(VirtualRegister(n, "s", 1, f"s{n}"), 0, 1) for n in range(5)]
_COUNTER = _SCALARS[0]
_steps = st.tuples(st.sampled_from("aasl"), st.sampled_from(_SCALARS[1:]), st.sampled_from(_SCALARS))
_LOADS = [("l", _SCALARS[1], _SCALARS[n]) for n in (3, 4)]  #: of what is not read behind the loop


def step(kind: str, to: Reg, of: Reg) -> Instruction:
    """An operation that sets a flag, one that reads it, or a load."""
    if kind == "l":
        into = Reg(VirtualRegister(60, "v", 1, "loaded"), 0, 1)
        return Instruction(GLOBAL, (into,), (of,), access=Access("global", "a", -1, False))
    return Instruction(SALU if kind == "a" else SELECT, (to,), (of,))


def loop(first: list[Instruction], *rest: Instruction) -> Function:
    """A loop with a barrier and a product behind what is given first, and what stands ahead of it and behind."""
    closing = (
        Instruction(SALU, (_COUNTER,), (_COUNTER, Imm(1))),
        Instruction(COMPARE, (), (_COUNTER, Imm(3))),
        Instruction(BRANCH, target="loop"),
    )
    body = [*first, Instruction(BARRIER), Instruction(MATRIX, (_ACC,), (Imm(0), Imm(0), _ACC)), *rest, *closing]
    ahead = [Instruction(SALU, (r,), (Imm(n),)) for n, r in enumerate(_SCALARS)]
    behind = [Instruction(SALU, (_SCALARS[1],), (_SCALARS[1], _SCALARS[2])), Instruction(END)]
    return Function("f", [BasicBlock("entry", ahead), BasicBlock("loop", body), BasicBlock("end", behind)])


def read_by(
    function: Function, names: dict[int, Hashable], terms: dict[Hashable, Term]
) -> dict[Hashable, list[object]]:
    """What each instruction reads, turn by turn."""
    path, found = path_of(function), dict[Hashable, list[object]]()
    for i, read in zip(path, run(Machine(virtual, terms), path, names)):
        found.setdefault(names[id(i)], []).append(read)
    return found


@settings(FIXED, max_examples=150)
@given(st.lists(_steps, max_size=8), st.lists(_steps, max_size=5))
def test_all_reads_what_it_read(first: list[tuple[str, Reg, Reg]], rest: list[tuple[str, Reg, Reg]]) -> None:
    """What moved has one turn more: the last one, which nobody reads."""
    old = loop([step(*each) for each in (*first, *_LOADS)], *(step(*each) for each in rest))
    new = rotate(old)
    names: dict[int, Hashable] = {id(i): n for n, i in enumerate(old.instructions())}
    moved = new.blocks[0].instructions[len(old.blocks[0].instructions) :]
    *_, compare, branch = new.blocks[1].instructions
    assert (compare.op, branch.op) == (COMPARE, BRANCH)
    for copy, original in zip(moved, new.blocks[1].instructions[-2 - len(moved) : -2]):
        assert (copy.op, copy.dst, copy.src) == (original.op, original.dst, original.src)
        names[id(copy)] = names[id(original)]
    terms: dict[Hashable, Term] = {}
    before, after = read_by(old, names, terms), read_by(new, names, terms)
    for name, reads in before.items():
        assert after[name][: len(reads)] == reads
        assert len(after[name]) - len(reads) in (0, 1)


def test_a_chain_of_scalars_to_a_load_moves_behind_the_counter_that_it_reads() -> None:
    chain = [step("a", _SCALARS[3], _COUNTER), step("a", _SCALARS[4], _SCALARS[3]), step("l", _ACC, _SCALARS[4])]
    new = rotate(loop(chain))
    *_, count, first, second, compare, branch = new.blocks[1].instructions
    assert [first, second] == chain[:2]
    assert count.dst == (_COUNTER,)
    assert (compare.op, branch.op) == (COMPARE, BRANCH)
    assert [(i.op, i.src) for i in new.blocks[0].instructions[-2:]] == [(i.op, i.src) for i in chain[:2]]


def test_what_is_read_behind_the_loop_and_what_no_load_needs_stays() -> None:
    kept = [step("a", _SCALARS[2], _COUNTER), step("l", _ACC, _SCALARS[2]), step("a", _SCALARS[3], _COUNTER)]
    assert rotate(loop(kept)).blocks[1].instructions[:3] == kept


def test_what_follows_from_something_that_stays_does_too() -> None:
    """The second scalar is read behind the loop, and stays; so does what is made of it, or reads its flag."""
    for following in ("a", "s"):
        kept = [step("a", _SCALARS[2], _COUNTER), step(following, _SCALARS[3], _SCALARS[2])]
        assert rotate(loop([*kept, step("l", _ACC, _SCALARS[3])])).blocks[1].instructions[:2] == kept


def test_a_flag_that_is_read_behind_the_barrier_stays() -> None:
    kept = step("a", _SCALARS[3], _SCALARS[4])
    assert (
        rotate(loop([kept, step("l", _ACC, _SCALARS[3])], step("s", _SCALARS[2], _COUNTER))).blocks[1].instructions[0]
        is kept
    )
