"""Pair writes to shared memory: one instruction writes to two addresses that differ by a constant.

A pair takes one issue slot instead of two; shared memory takes as long as before. Lanes that transpose loaded data have
many short runs to write, often at equal addresses of two tiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from convgen.backends.amdgpu.isa import OPCODES
from convgen.backends.machine.instruction import Access, Function, Instruction, Operand, Reg, Unit, VirtualRegister
from convgen.ir.record import frozen

_OFFSET_MAX = 255  #: units; each of the two offsets has 8 bits (CDNA3 ISA, "DS")
_UNITS = {"": 1, "st64": 64}  #: suffix of the instruction -> elements; unit of its offsets
_SIZES = {"ds_write_b32": 4, "ds_write_b64": 8}  #: bytes a lane

_Place = tuple[VirtualRegister, int, str]  #: address register of a write, its word there, and the mnemonic


@frozen(eq=False)
class _Write:
    """A write to shared memory that may be the first of a pair."""

    number: int  #: index of the instruction in its block
    instruction: Instruction
    offset: int


def pair_writes(function: Function) -> Function:
    """Return the function with pairs of writes merged into the later one."""
    return function.rewritten(lambda _, block: _paired(block.instructions))


def _paired(body: Sequence[Instruction]) -> Iterable[Instruction]:
    pairs = _pairs(body)
    if not pairs:
        return body
    joined = {second: _joined(body[first], body[second]) for first, second in pairs.items()}
    return [joined.get(n, i) for n, i in enumerate(body) if n not in pairs]


def _pairs(body: Sequence[Instruction]) -> dict[int, int]:
    """Return index of the earlier write -> index of the later write, for pairs that may merge.

    Each write pairs with the next one at its address. Writes keep their order; instructions in between touch other
    memory.
    """
    waiting: dict[_Place, _Write] = {}
    readers: dict[VirtualRegister, set[_Place]] = {}  #: register -> waiting writes that read it
    pairs: dict[int, int] = {}
    for n, i in enumerate(body):
        if i.op.barrier or i.op.fence:
            waiting.clear()
        elif waiting:
            for r in i.defs():
                for place in readers.pop(r.vreg, ()):
                    waiting.pop(place, None)
        if i.op.name in _SIZES and isinstance(address := i.source("address"), Reg):
            place, write = (address.vreg, address.first, i.op.name), _Write(n, i, _offset(i))
            first = waiting.pop(place, None)
            if first and _offsets(first.offset, write.offset, _SIZES[i.op.name]):
                pairs[first.number] = n
                continue
            waiting[place] = write
            for r in i.uses():
                readers.setdefault(r.vreg, set()).add(place)
    return {first: second for first, second in pairs.items() if _may_move(body, first, second, pairs)}


def _may_move(body: Sequence[Instruction], first: int, second: int, pairs: dict[int, int]) -> bool:
    """Return whether nothing between two writes must stay after the first, except writes that also move later."""
    access = body[first].access
    return access is not None and not any(
        other.conflicts(access) and pairs.get(n, 0) <= second
        for n in range(first + 1, second)
        for other in body[n].accesses
        if body[n].op.unit is Unit.SHARED or body[n].origin
    )


def _offset(i: Instruction) -> int:
    return int(i.modifiers[0].removeprefix("offset:")) if i.modifiers else 0


def _offsets(one: int, other: int, size: int) -> tuple[str, int, int] | None:
    """Return the suffix of the instruction that encodes both offsets, and the encoded offsets; None if none does."""
    for suffix, elements in _UNITS.items():
        unit = elements * size
        if one % unit == other % unit == 0 and max(one, other) <= _OFFSET_MAX * unit:
            return suffix, one // unit, other // unit
    return None


def _joined(first: Instruction, second: Instruction) -> Instruction:
    name = first.op.name
    counted = _offsets(_offset(first), _offset(second), _SIZES[name])
    assert counted is not None
    suffix, one, other = counted
    source: tuple[Operand, ...] = (second.source("address"), first.source("data"), second.source("data"))
    offsets = tuple(f"offset{n}:{at}" for n, at in enumerate((one, other)) if at)
    also: Access | None = first.access if first.access != second.access else None
    return Instruction(
        OPCODES[name.replace("write_", f"write2{suffix}_")],
        (),
        source,
        offsets,
        second.access,
        comment=second.comment,
        line=second.line,
        also=also,
    )
