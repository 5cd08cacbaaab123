"""Allocation: whoever runs on the physical registers reads what it would have read on the virtual ones."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise

import pytest
from hypothesis import given, settings

from convgen.backends.machine.allocate import Allocation, Bank, Liveness, allocate
from convgen.backends.machine.instruction import (
    BasicBlock,
    Function,
    Imm,
    Instruction,
    Opcode,
    Reg,
    Unit,
    VirtualRegister,
)
from convgen.ir.error import DoesNotFit
from convgen.ir.record import evolve
from tests.backends.machines import BRANCH, END, MATRIX, VALU, functions
from tests.backends.symbolic import Machine, path_of, physical, run, virtual
from tests.strategies import FIXED

BANKS = {"v": Bank(64, {1: 1, 2: 2}), "s": Bank(40, {1: 1, 2: 2, 4: 4})}
EXAMPLES = settings(FIXED, max_examples=80)


def check(function: Function, allocation: Allocation) -> None:
    """Both machines read the same at every step of a run, and registers stand as they must."""
    for v, base in allocation.base.items():
        assert base % BANKS[v.bank].align(v.size) == 0
        assert base == v.fixed or v.fixed is None
        assert base + v.size <= allocation.used[v.bank] <= BANKS[v.bank].limit
    path = path_of(function)
    keys: dict[int, Hashable] = {id(i): n for n, i in enumerate(function.instructions())}
    terms: dict[Hashable, int] = {}
    one, other = Machine(virtual, terms), Machine(physical(allocation.base), terms)
    for v in allocation.base:
        if v.fixed is not None:
            for here, there in zip(virtual(Reg(v, 0, v.size)), other.home(Reg(v, 0, v.size))):
                other.state[there] = one.read(here)
    assert run(one, path, keys) == run(other, path, keys)


@EXAMPLES
@given(functions())
def test_no_two_live_registers_overlap(function: Function) -> None:
    for largest_first in (False, True):
        banks = {name: evolve(bank, largest_first=largest_first) for name, bank in BANKS.items()}
        check(function, allocate(function, banks))


def reg(number: int, size: int = 1) -> Reg:
    return Reg(VirtualRegister(number, "v", size, f"r{number}"), 0, size)


def straight(*body: Instruction) -> Function:
    return Function("f", [BasicBlock("entry", [*body, Instruction(END)])])


def define(r: Reg, *sources: Reg) -> Instruction:
    return Instruction(VALU, (r,), (*sources, Imm(0)))


def allocated(limit: int, *body: Instruction) -> Allocation:
    return allocate(straight(*body), {"v": Bank(limit, {1: 1, 2: 2})})


def test_the_last_free_register_is_used_and_no_more() -> None:
    live = [reg(n) for n in range(8)]
    body = [*map(define, live), define(reg(99), *live)]
    assert allocated(8, *body).used == {"v": 8}
    with pytest.raises(DoesNotFit, match="bank v has no 1 free words of 7 for r7"):
        allocated(7, *body)


def test_registers_are_free_again_once_read() -> None:
    chain = [reg(n) for n in range(8)]
    body = [define(chain[0]), *(define(new, old) for old, new in pairwise(chain))]
    assert allocated(8, *body).used == {"v": 1}


def test_a_result_that_nobody_reads_has_a_place_of_its_own() -> None:
    kept, dead = reg(0), reg(1)
    found = allocated(8, define(kept), define(dead), define(reg(2), kept))
    assert found.base[kept.vreg] != found.base[dead.vreg]


def test_tuples_start_even() -> None:
    odd, pair = reg(0), reg(1, 2)
    found = allocated(8, define(odd), define(pair), define(reg(2), odd, pair))
    assert found.base[pair.vreg] == 2
    with pytest.raises(DoesNotFit):
        allocated(3, define(odd), define(pair), define(reg(2), odd, pair))


def test_what_is_set_aside_only_pinned_registers_take() -> None:
    live = [reg(n) for n in range(6)]
    last = Reg(evolve(reg(98).vreg, fixed=-1), 0, 1)
    function = straight(*map(define, live), define(last, *live), define(reg(99), last))
    found = allocate(function, {"v": Bank(8, {1: 1}, pinned_only=2)})
    assert {found.base[r.vreg] for r in live} == set(range(6))
    assert found.base[last.vreg] == 7
    with pytest.raises(DoesNotFit):
        allocate(function, {"v": Bank(8, {1: 1}, pinned_only=3)})


def test_with_the_largest_first_smaller_ones_fill_what_is_left() -> None:
    odd, pair = reg(0), reg(1, 2)
    body = straight(define(odd), define(pair), define(reg(2), odd, pair))
    found = allocate(body, {"v": Bank(3, {1: 1, 2: 2}, largest_first=True)})
    assert (found.base[odd.vreg], found.base[pair.vreg]) == (2, 0)


def test_early_clobber_results_do_not_take_the_place_of_an_operand() -> None:
    a, b, d = reg(0, 2), reg(1, 2), reg(2, 4)
    product = Instruction(MATRIX, (d,), (a, b, Imm(0)))
    found = allocated(8, define(a), define(b), product, define(reg(3), d))
    assert found.base[d.vreg] >= 4
    late = Instruction(VALU, (d,), (a, b, Imm(0)))
    assert allocated(8, define(a), define(b), late, define(reg(3), d)).base[d.vreg] == 0


def test_tied_accumulators_stay_where_they_are() -> None:
    a, acc = reg(0, 2), reg(1, 4)
    body = [define(a), define(acc), Instruction(MATRIX, (acc,), (a, a, acc)), define(reg(2), acc)]
    assert allocated(6, *body).used == {"v": 6}


def test_a_tuple_built_in_parts_lives_from_its_first_part() -> None:
    parts, other = reg(0, 2), reg(1)
    low, high = parts.words(0, 1), parts.words(1, 1)
    found = allocated(4, define(low), define(other), define(high, other), define(reg(2), parts))
    assert found.base[other.vreg] not in (0, 1)


def test_a_tuple_built_in_parts_takes_no_room_before() -> None:
    early, late, parts = reg(0), reg(1), reg(2, 2)
    low, high = parts.words(0, 1), parts.words(1, 1)
    body = [define(early), define(late, early), define(low, late), define(high), define(reg(3), parts)]
    assert allocated(8, *body).used == {"v": 2}


def test_a_tuple_of_which_a_part_is_read_first_takes_no_room_before() -> None:
    early, late, parts = reg(0), reg(1), reg(2, 2)
    low, high = parts.words(0, 1), parts.words(1, 1)
    body = [define(early), define(late, early), define(low, late), define(high, low), define(reg(3), parts)]
    assert allocated(8, *body).used == {"v": 2}


def test_a_tuple_may_be_built_again_before_it_is_read() -> None:
    parts = reg(0, 2)
    built, again = ([define(parts.words(n, 1)) for n in range(2)] for _ in range(2))
    assert allocated(4, *built, *again, define(reg(1), parts)).used == {"v": 2}


@pytest.mark.parametrize("read_between", [False, True])
def test_a_tuple_built_again_in_parts_takes_no_room_before(read_between: bool) -> None:
    """But where a part of the old value is read in between."""
    parts, other = reg(0, 2), reg(1, 2)
    low, high = parts.words(0, 1), parts.words(1, 1)
    first = [define(parts), define(reg(2), parts), define(other), define(reg(3), other)]
    again = [define(low), *([define(reg(4), high)] if read_between else []), define(high), define(reg(5), parts)]
    found = allocated(8, *first, *again)
    assert (found.base[other.vreg] == found.base[parts.vreg]) == (not read_between)


def test_what_a_loop_reads_is_kept_through_it() -> None:
    kept, inside = reg(0), reg(1)
    back = Instruction(BRANCH, target="loop")
    function = Function(
        "f",
        [
            BasicBlock("entry", [define(kept)]),
            BasicBlock("loop", [define(reg(2), kept), define(inside), define(reg(3), inside), back]),
            BasicBlock("end", [Instruction(END)]),
        ],
    )
    found = allocate(function, {"v": Bank(8, {1: 1})})
    assert all(base != found.base[kept.vreg] for v, base in found.base.items() if v is not kept.vreg)


# ---------------------------------------------------------------- what a family may ask for


def placed(r: Reg, *, fixed: int | None = None, residue: int | None = None) -> Reg:
    """The register with a wish."""
    r.vreg.fixed, r.vreg.residue = fixed, residue
    return r


def test_a_bank_begins_where_it_says() -> None:
    body = [define(reg(0)), define(reg(1, 2)), define(reg(2))]
    found = allocate(straight(*body), {"v": Bank(16, {1: 1, 2: 2}, first=5)})
    assert min(found.base.values()) == 5
    assert all(base % 2 == 0 for v, base in found.base.items() if v.size == 2)
    live = [reg(n) for n in range(4)]
    body = [*map(define, live), define(reg(9), *live)]
    assert allocate(straight(*body), {"v": Bank(9, {1: 1}, first=5)}).used == {"v": 9}
    with pytest.raises(DoesNotFit, match="bank v has no 1 free words of 8"):
        allocate(straight(*body), {"v": Bank(8, {1: 1}, first=5)})


def test_places_modulo_a_period() -> None:
    """Only tuples with a wish follow it; a period of 0 asks nobody."""
    wishes = [placed(reg(n, 4), residue=r) for n, r in enumerate((0, 3, 3, None, 0))]
    body = [*map(define, wishes), define(reg(9), *wishes)]
    for first in (0, 1, 6):
        found = allocate(straight(*body), {"v": Bank(64, {1: 1}, first, 4)})
        for r in wishes:
            assert found.base[r.vreg] >= first
            assert r.vreg.residue is None or found.base[r.vreg] % 4 == r.vreg.residue
    packed = allocate(straight(*body), {"v": Bank(20, {1: 1}, 0, 0)})
    assert packed.used == {"v": 20}
    with pytest.raises(DoesNotFit):
        allocate(straight(*body), {"v": Bank(20, {1: 1}, 0, 4)})


def test_a_wish_that_need_not_be_followed() -> None:
    """A place as wished comes first; where there is none, a strict bank gives none, and another any."""
    wishes = [placed(reg(n, 2), residue=3) for n in range(2)]
    body = [*map(define, wishes), define(reg(9), *wishes)]
    found = allocate(straight(*body), {"v": Bank(8, {1: 1}, 0, 4, is_strict=False)})
    assert [found.base[r.vreg] for r in wishes] == [3, 0]
    with pytest.raises(DoesNotFit):
        allocate(straight(*body), {"v": Bank(8, {1: 1}, 0, 4)})


def test_a_negative_place_counts_from_the_end() -> None:
    last, first, other = placed(reg(0), fixed=-1), placed(reg(1), fixed=0), reg(2)
    body = [define(first), define(other), define(last), define(reg(3), first, last, other)]
    for limit in (4, 128):
        found = allocate(straight(*body), {"v": Bank(limit, {1: 1})})
        assert (found.base[last.vreg], found.base[first.vreg]) == (limit - 1, 0)
        assert found.base[other.vreg] == 1


def test_only_the_banks_that_are_asked_for() -> None:
    scalar = Reg(VirtualRegister(7, "s", 1, "scalar"), 0, 1)
    function = straight(define(scalar), define(reg(0), scalar))
    assert [v.bank for v in allocate(function, {"s": Bank(4, {1: 1})}).base] == ["s"]
    assert [v.bank for v in allocate(function, {"v": Bank(4, {1: 1})}).base] == ["v"]


SLOW = Opcode("send", Unit.GLOBAL, holds=3)


def test_what_is_held_is_not_overwritten_for_a_while() -> None:
    """The source of a slow instruction stays for as many instructions, itself the first, as that holds it."""
    source = reg(0)
    after = [reg(n) for n in range(1, 6)]
    function = straight(define(source), Instruction(SLOW, (), (source,)), *map(define, after))
    held = allocate(function, {"v": Bank(16, {1: 1})}, Liveness(function).ranges(hold=9))
    plain = allocate(function, {"v": Bank(16, {1: 1})}, Liveness(function).ranges())
    at = held.base[source.vreg]
    assert [held.base[r.vreg] == at for r in after] == [False, False, True, True, True]
    assert all(plain.base[r.vreg] == at for r in after)
    assert Liveness(function).ranges()[source.vreg] & ~Liveness(function).ranges(hold=9)[source.vreg] == 0


def test_nothing_is_held_beyond_its_block() -> None:
    source, after = reg(0), reg(1)
    function = Function(
        "f",
        [
            BasicBlock("entry", [define(source), Instruction(SLOW, (), (source,))]),
            BasicBlock("end", [define(after), Instruction(END)]),
        ],
    )
    held = allocate(function, {"v": Bank(16, {1: 1})}, Liveness(function).ranges(hold=9))
    assert held.base[source.vreg] == held.base[after.vreg] == 0


@EXAMPLES
@given(functions())
def test_held_sources_only_live_longer(function: Function) -> None:
    plain = Liveness(function).ranges()
    check(function, allocate(function, BANKS, Liveness(function).ranges(hold=9)))
    assert all(plain[v] & ~longer == 0 for v, longer in Liveness(function).ranges(hold=9).items())


def test_where_control_goes() -> None:
    """A jump never falls through, a branch may, the end of the program goes nowhere."""
    jump = Opcode("goto", Unit.CONTROL, jumps=True)
    blocks = [
        BasicBlock("a", [Instruction(BRANCH, target="c")]),
        BasicBlock("b", [Instruction(jump, target="a")]),
        BasicBlock("c", []),
        BasicBlock("d", [Instruction(END)]),
    ]
    function = Function("f", blocks)
    assert [sorted(function.successors(n)) for n in range(4)] == [[1, 2], [0], [3], []]
