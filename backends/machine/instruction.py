"""The machine layer: instructions on virtual registers, basic blocks, functions. Shared by all targets.

An instruction is an opcode row of the target's table with operands. Virtual registers are tuples of 32-bit words in a
bank; operands view a run of words of a tuple. Flags are single physical registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import attrs

from convgen.ir.record import define, frozen


class Unit(Enum):
    """The unit that executes an instruction; each unit takes at most one instruction of a subgroup per issue slot."""

    VALU = "valu"
    SALU = "salu"
    MATRIX = "matrix"
    SHARED = "shared"  #: access of shared memory
    GLOBAL = "global"
    SCALAR_MEMORY = "scalar memory"
    CONTROL = "control"  #: waits, barriers, branches, nops

    __hash__ = object.__hash__  # inner loops use it as a key; `Enum` hashes its name, in Python


@frozen
class Role:
    """The role of an operand in an instruction."""

    name: str
    banks: str = ""  #: letters of the banks that its register may be in; any if empty
    words: int = 0  #: 32-bit words of its register; 0: any number


@frozen
class Opcode:
    """One row of an instruction table. Latencies count issue slots."""

    name: str
    unit: Unit
    latency: int = 1  #: issue slots; until a dependent instruction may issue without stalling
    busy: int = 1  #: issue slots; until the unit accepts the next instruction
    reads: tuple[str, ...] = ()  #: flags read besides the operands
    writes: tuple[str, ...] = ()  #: flags written besides the operands
    holds: int = 0  #: instructions; it reads its sources late: so many, itself included, should not overwrite them
    early_clobber: bool = False  #: the destination must not overlap the sources (tied accumulators aside)
    barrier: bool = False  #: orders the workgroup's accesses to shared memory
    fence: bool = False  #: no access to memory moves across it
    drains: bool = False  #: waits until all earlier accesses to global memory have completed
    jumps: bool = False  #: branches unconditionally
    ends: bool = False  #: ends the program
    commutes: bool = False  #: its first two sources may be swapped
    literal: bool = False  #: takes a literal (a constant without inline encoding) as its first source
    merges: bool = False  #: keeps part of its destination, which is therefore its last source, too, and is printed once
    results: tuple[Role, ...] = ()  #: roles of the destination operands; empty if unchecked
    sources: tuple[Role, ...] = ()  #: roles of the source operands; empty if unchecked
    banks: str = ""  #: letters of the banks that registers without a role may be in; any if empty
    hazard: str = ""  #: class in the family's hazard table
    port: str = ""  #: out-of-order unit that executes it, if any

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Return the index of each role among the source operands."""
        return {role.name: n for n, role in reversed(list(enumerate(self.sources)))}


@define(eq=False)
class VirtualRegister:
    """A tuple of `size` words in `bank`; `fixed` pins its first word to a register, from the end if negative."""

    number: int
    bank: str
    size: int
    name: str
    fixed: int | None = None
    residue: int | None = None  #: words; preferred place of its first word, modulo the bank's `period`

    def __repr__(self) -> str:
        return f"%{self.bank}{self.number}:{self.size}"


#: Returns the text of a register operand: virtual or physical.
Place = Callable[["Reg"], str]


@frozen(eq=False)
class Reg:
    """Words [first, first + count) of a virtual register."""

    vreg: VirtualRegister
    first: int
    count: int

    @property
    def bank(self) -> str:
        return self.vreg.bank

    def words(self, first: int, count: int) -> Reg:
        """Return a view of `count` words within this view."""
        return Reg(self.vreg, self.first + first, count)

    def same(self, other: object) -> bool:
        return isinstance(other, Reg) and (self.vreg, self.first, self.count) == (other.vreg, other.first, other.count)

    @property
    def whole(self) -> bool:
        return self.first == 0 and self.count == self.vreg.size

    def shown(self, place: Place) -> str:
        """Return the operand's text in listings."""
        return place(self)


@frozen
class Inert:
    """An operand without dependences: immediates, and a family's own kinds."""

    def shown(self, place: Place) -> str:
        return str(self)


@frozen
class Imm(Inert):
    """An immediate: a 32-bit value, signed or unsigned as written."""

    value: int

    def __str__(self) -> str:
        return str(self.value)


@frozen
class Flag:
    """A physical register outside allocation, by name."""

    name: str

    def shown(self, place: Place) -> str:
        return self.name


Operand = Reg | Inert | Flag


class Access(NamedTuple):
    """The memory that an instruction touches.

    Two accesses conflict if their regions may overlap and one writes. `region` is the name of a buffer or shared tile;
    `slot` narrows it, -1 meaning any.
    """

    space: str  #: "shared", "global" or "kernarg"
    region: str
    slot: int
    write: bool
    private: bool = False  #: no other subgroup touches this memory
    #: bytes a lane; granularity at which the copy distributes addresses over lanes and subgroups. Two accesses with
    #: equal granularity never touch one address in different subgroups; 0: not distributed
    distribution: int = 0

    def conflicts(self, other: Access) -> bool:
        if not (self.write or other.write) or self.region != other.region or self.space != other.space:
            return False
        return self.slot == other.slot or min(self.slot, other.slot) < 0


class _Registers(NamedTuple):
    """The registers and flags among an instruction's operands."""

    written: tuple[Reg, ...]
    read: tuple[Reg, ...]
    flags_written: tuple[str, ...]
    flags_read: tuple[str, ...]


@define(eq=False)
class Instruction:
    """An opcode with operands; `modifiers` are printed after them, `target` is a branch's label.

    Instructions compare by identity and serve as keys.
    """

    op: Opcode
    dst: tuple[Operand, ...] = ()
    src: tuple[Operand, ...] = ()
    modifiers: tuple[str, ...] = ()
    access: Access | None = None
    target: str = ""
    comment: str = ""
    line: int = 0  #: line of the IR listing that it comes from, from 1; 0: none
    #: source of a copy from one memory to another; `access` is the destination
    origin: Access | None = attrs.field(default=None, kw_only=True)
    also: Access | None = attrs.field(default=None, kw_only=True)  #: second access of an instruction with two
    _registers: _Registers | None = attrs.field(default=None, init=False, repr=False)

    @property
    def barrier(self) -> bool:
        return self.op.barrier

    @property
    def early_clobber(self) -> bool:
        """Return whether the destination must not overlap the sources, tied accumulators aside."""
        return self.op.early_clobber

    @property
    def loads(self) -> bool:
        """Return whether it loads from global memory, to registers or to shared memory."""
        return self.op.unit is Unit.GLOBAL and (self.origin is not None or bool(self.defs()))

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Return all its accesses to memory."""
        return tuple(a for a in (self.access, self.origin, self.also) if a is not None)

    def source(self, role: str) -> Operand:
        """Return the source operand with that role in the opcode's row."""
        return self.src[self.op.places[role]]

    def head(self, place: Place) -> str:
        """Return the text before the operands in listings: the mnemonic, and the family's additions."""
        return self.op.name

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return the words after the operands in listings."""
        return self.modifiers

    def retarget(self, dst: Operand) -> None:
        """Let it write its one result to `dst`."""
        self.dst, self._registers = (dst,), None

    def defs(self) -> Sequence[Reg]:
        """Return the registers written."""
        return (self._registers or self._operand_registers()).written

    def uses(self) -> Sequence[Reg]:
        """Return the registers read, including destinations that are kept in part."""
        return (self._registers or self._operand_registers()).read

    def touched(self) -> list[Reg]:
        """Return the registers whose contents are read, without destinations that are kept in part."""
        return [r for r in self.src if isinstance(r, Reg)]

    def flag_defs(self) -> Sequence[str]:
        """Return the flags written."""
        return (self._registers or self._operand_registers()).flags_written

    def flag_uses(self) -> Sequence[str]:
        """Return the flags read."""
        return (self._registers or self._operand_registers()).flags_read

    def _written(self) -> list[Reg]:
        return [r for r in self.dst if isinstance(r, Reg)]

    def _read(self) -> list[Reg]:
        return self.touched()

    def _operand_registers(self) -> _Registers:
        """Return the registers and flags, computed on first use."""
        self._registers = _Registers(
            tuple(self._written()),
            tuple(self._read()),
            _flags(self.op.writes, self.dst),
            _flags(self.op.reads, self.src),
        )
        return self._registers


def _flags(named: tuple[str, ...], operands: tuple[Operand, ...]) -> tuple[str, ...]:
    """Return the flags that a row names, and those among the operands."""
    for o in operands:
        if isinstance(o, Flag):
            named = *named, o.name
    return named


@define(eq=False)
class BasicBlock:
    """Straight-line code. Control falls through to the next block unless the last instruction branches or ends."""

    label: str
    instructions: list[Instruction] = attrs.Factory(list)
    comment: str = ""


@define(eq=False)
class Function:
    """Blocks in layout order; the first is the entry. A finished function is not modified: stages make a new one."""

    name: str
    blocks: list[BasicBlock] = attrs.Factory(list)

    def rewritten(self, body: Callable[[int, BasicBlock], Iterable[Instruction]]) -> Function:
        """Return the function with `body(index, block)` as the instructions of each block."""
        blocks = [BasicBlock(b.label, list(body(n, b)), b.comment) for n, b in enumerate(self.blocks)]
        return Function(self.name, blocks)

    def successors(self, index: int) -> list[int]:
        """Return the indices of the blocks that may run after block `index`."""
        labels = {b.label: i for i, b in enumerate(self.blocks)}
        last = self.blocks[index].instructions[-1] if self.blocks[index].instructions else None
        out = [labels[last.target]] if last is not None and last.target else []
        falls = last is None or not (last.op.ends or last.op.jumps)
        if falls and index + 1 < len(self.blocks):
            out.append(index + 1)
        return out

    def instructions(self) -> Iterator[Instruction]:
        for b in self.blocks:
            yield from b.instructions
