"""Which moves go: of what arithmetic of the block can write where it is moved to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends.amdgpu.coalesce import coalesce
from convgen.backends.amdgpu.isa import OPCODES
from convgen.backends.machine.instruction import Access, BasicBlock, Function, Imm, Instruction, Reg, VirtualRegister
from tests.backends.symbolic import Machine, virtual
from tests.strategies import FIXED

_A, _B, _C = (Reg(VirtualRegister(n, "v", 1, name), 0, 1) for n, name in enumerate("abc"))
_TUPLE = Reg(VirtualRegister(3, "v", 4, "tuple"), 0, 4)
_SCALAR, _SUM = Reg(VirtualRegister(4, "s", 1, "s"), 0, 1), Reg(VirtualRegister(5, "a", 1, "sum"), 0, 1)


def add(to: Reg, of: Reg) -> Instruction:
    return Instruction(OPCODES["v_add_u32"], (to,), (Imm(1), of))


def move(to: Reg, of: Reg) -> Instruction:
    return Instruction(OPCODES["v_mov_b32"], (to,), (of,))


def write(data: Reg) -> Instruction:
    name = f"ds_write_b{32 * data.count}"
    return Instruction(OPCODES[name], (), (_C, data), access=Access("shared", "a", 0, True))


def word(n: int) -> Reg:
    return _TUPLE.words(n, 1)


def left(*blocks: list[Instruction]) -> list[list[Instruction]]:
    function = Function("f", [BasicBlock(f"b{n}", body) for n, body in enumerate(blocks)])
    return [block.instructions for block in coalesce(function).blocks]


def written(body: list[Instruction]) -> list[tuple[str, int]]:
    return [(i.op.name, i.defs()[0].first) for i in body if i.defs()]


def test_parts_of_a_tuple_are_computed_in_it() -> None:
    body = [add(_A, _C), add(_B, _C), move(word(2), _B), move(word(1), _A), write(_TUPLE)]
    (found,) = left(body)
    assert written(found) == [("v_add_u32", 1), ("v_add_u32", 2)]
    assert found[-1] is body[-1]


@pytest.mark.parametrize(
    "between", [write(_TUPLE), write(word(1)), move(word(1), _C)], ids=["tuple", "read", "written"]
)
def test_not_where_its_place_is_looked_at_in_between(between: Instruction) -> None:
    body = [add(_A, _C), between, move(word(1), _A), write(_TUPLE)]
    assert left(body) == [body]
    assert written(left([between, *body[:1], *body[2:]])[0])[-1] == ("v_add_u32", 1)


@pytest.mark.parametrize(
    "body",
    [
        [add(_A, _C), move(word(0), _A), move(word(1), _A), write(_TUPLE)],
        [add(_A, _C), move(word(0), _A), write(_A)],
        [Instruction(OPCODES["ds_read_b32"], (_A,), (_C,), access=Access("shared", "a", 0, False)), move(word(0), _A)],
        [Instruction(OPCODES["s_mov_b32"], (_SCALAR,), (Imm(1),)), move(word(0), _SCALAR)],
        [add(_A, _C), Instruction(OPCODES["v_accvgpr_write_b32"], (_SUM,), (_A,))],
    ],
    ids=["twice", "read besides", "loaded", "a scalar", "to another bank"],
)
def test_a_move_stays_whose_value_has_to_be_where_it_is(body: list[Instruction]) -> None:
    assert left(body) == [body]


def test_not_from_another_block() -> None:
    blocks = [[add(_A, _C)], [move(word(0), _A), write(_TUPLE)]]
    assert left(*blocks) == blocks


@st.composite
def bodies(draw: st.DrawFn) -> list[Instruction]:
    """Sums, moves and writes of few registers, so that many moves are nearly in vain."""
    single = [Reg(VirtualRegister(10 + n, "v", 1, f"v{n}"), 0, 1) for n in range(6)]
    anywhere = st.sampled_from([*single, *(word(n) for n in range(4))])
    of_kinds = st.one_of(
        st.builds(add, anywhere, anywhere),
        st.builds(move, anywhere, anywhere),
        st.builds(write, st.sampled_from([_TUPLE, *single])),
    )
    return draw(st.lists(of_kinds, max_size=12))


@settings(FIXED, max_examples=200)
@given(bodies())
def test_what_is_written_to_memory_stays_the_same(body: list[Instruction]) -> None:
    """Moves are taken for what they are; a sum is a function of what it reads, wherever it is written."""
    terms: dict[object, int] = {}

    def writes(code: list[Instruction]) -> list[tuple[int, ...]]:
        machine, found = Machine(virtual, terms), []
        for i in code:
            read = [machine.read(p) for r in i.uses() for p in virtual(r)]
            for p in (p for r in i.defs() for p in virtual(r)):
                machine.state[p] = read[0] if i.op.name == "v_mov_b32" else machine.number(("sum", *read))
            if not i.defs():
                found.append(tuple(read))
        return found

    assert writes(left(body)[0]) == writes(body)
