"""Two writes to shared memory at one address and constants as one instruction, where the later one stands."""

from __future__ import annotations

import pytest

from convgen.backends.amdgpu.isa import OPCODES
from convgen.backends.amdgpu.physical import Physical
from convgen.backends.amdgpu.waits import insert_waits
from convgen.backends.amdgpu.write_pairs import pair_writes
from convgen.backends.machine.allocate import Bank, allocate
from convgen.backends.machine.instruction import Access, BasicBlock, Function, Imm, Instruction, Reg, VirtualRegister

_V = [Reg(VirtualRegister(n, "v", size, f"v{n}"), 0, size) for n, size in enumerate((1, 1, 1, 1, 1, 2, 2, 4))]
_HERE, _THERE, _A, _B, _C, _PAIR, _OTHER_PAIR, _READ = _V


def write(address: Reg, data: Reg, offset: int, tile: str = "a") -> Instruction:
    modifiers = (f"offset:{offset}",) if offset else ()
    access = Access("shared", tile, 0, True)
    return Instruction(OPCODES[f"ds_write_b{32 * data.count}"], (), (address, data), modifiers, access)


def read(tile: str = "a") -> Instruction:
    return Instruction(OPCODES["ds_read_b128"], (_READ,), (_HERE,), access=Access("shared", tile, 0, False))


def move(to: Reg) -> Instruction:
    return Instruction(OPCODES["v_mov_b32"], (to,), (Imm(0),))


def paired(*body: Instruction) -> list[Instruction]:
    return list(pair_writes(Function("f", [BasicBlock("entry", list(body))])).blocks[0].instructions)


@pytest.mark.parametrize(
    ("data", "offsets", "expected"),
    [
        ((_A, _B), (0, 4), "ds_write2_b32 offset1:1"),
        ((_A, _B), (8, 1020), "ds_write2_b32 offset0:2 offset1:255"),
        ((_A, _B), (40960, 16384), "ds_write2st64_b32 offset0:160 offset1:64"),
        ((_PAIR, _OTHER_PAIR), (0, 16384), "ds_write2st64_b64 offset1:32"),
        ((_A, _B), (4, 1024), ""),
        ((_A, _B), (0, 65536), ""),
        ((_A, _PAIR), (0, 8), ""),
    ],
)
def test_offsets_count_elements_or_64_of_them(data: tuple[Reg, Reg], offsets: tuple[int, int], expected: str) -> None:
    found = paired(*(write(_HERE, each, at) for each, at in zip(data, offsets)))
    assert [" ".join((i.op.name, *i.modifiers)) for i in found if "write2" in i.op.name] == [expected] * bool(expected)
    if expected:
        assert found[0].src == (_HERE, *data)


def test_writes_of_two_tiles_join_in_their_order() -> None:
    one, two = write(_HERE, _A, 0), write(_THERE, _B, 0)
    found = paired(one, two, move(_C), write(_HERE, _C, 256, "b"), write(_THERE, _C, 256, "b"))
    assert [i.src for i in found[1:]] == [(_HERE, _A, _C), (_THERE, _B, _C)]
    assert {a.region for a in found[1].accesses} == {"a", "b"}


@pytest.mark.parametrize(
    "between",
    [Instruction(OPCODES["s_barrier"]), move(_HERE), move(_A), read(), write(_THERE, _C, 0)],
    ids=[
        "barrier",
        "another address",
        "other data",
        "a read of what is written",
        "a write that may be to the same place",
    ],
)
def test_what_may_not_pass_keeps_them_apart(between: Instruction) -> None:
    first, second = write(_HERE, _A, 0), write(_HERE, _B, 256, "b")
    assert paired(first, between, second) == [first, between, second]
    assert len(paired(first, read("b"), move(_B), write(_HERE, _B, 512))) == 3


def test_a_barrier_waits_for_both_places() -> None:
    """Of a pair, the tile that is read behind it may be either."""
    for tile in "ab":
        body = [*paired(write(_HERE, _A, 0), write(_HERE, _B, 256, "b")), Instruction(OPCODES["s_barrier"]), read(tile)]
        function = Function("f", [BasicBlock("entry", [*map(move, _V[:4]), *body])])
        placed = Physical(allocate(function, {"v": Bank(256, {1: 1, 2: 2})}))
        (block,) = insert_waits(function, placed).blocks
        names = [i.op.name for i in block.instructions]
        assert names[names.index("s_barrier") - 1] == "s_waitcnt"
