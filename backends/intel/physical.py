"""Physical registers: the places of tuples and scalars after allocation, and the text of operands.

Scalars are packed, a dword each, into the registers after r0; tuples follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, cached_property

from convgen.backends.intel.isa import FLOATS, TYPE_BYTES, Literal, Null, Region, Special, XeInstruction
from convgen.backends.machine.allocate import Allocation
from convgen.backends.machine.instruction import Operand, Reg, VirtualRegister

#: Place of each virtual register: the first register of a tuple, the number of a scalar or flag.
Places = dict[VirtualRegister, int]

_DWORD = 4  #: bytes
#: A set of cells, one bit each, by which dependences are tracked: quarters of the registers of tuples, scalars, flags,
#: named registers. Quarter q consists of bytes 2 q and 2 q + 1 of each 8 bytes of a register, so that halves of
#: qwords, and of dwords, are cells of their own.
Cells = int

_QUARTERS = 4
_WORD = 2  #: bytes


class Physical:
    """Instructions seen through an allocation; a register has `lanes` dwords."""

    def __init__(self, allocation: Allocation, lanes: int, scalars_at: int) -> None:
        self.allocation, self.lanes, self.scalars_at = allocation, lanes, scalars_at
        self.base = allocation.base
        self._named: dict[str, Cells] = {}
        self._read: dict[XeInstruction, Cells] = {}
        self._written: dict[XeInstruction, Cells] = {}

    # ------------------------------------------------------------ dependences

    @cached_property
    def _runs(self) -> tuple[Mapping[str, int], int]:
        """Return the first bit of each bank, and the first bit after all banks."""
        first, end = dict[str, int](), 0
        for bank in dict.fromkeys(v.bank for v in self.base):
            first[bank] = end
            end += _bits_of(bank) * max(at + v.size for v, at in self.base.items() if v.bank == bank)
        return first, end

    def read(self, i: XeInstruction) -> Cells:
        """Return the cells that an instruction reads, without parts of its destination that it keeps."""
        if (known := self._read.get(i)) is None:
            known = self._read[i] = self._registers(i.touched(), i.lanes) | self.named(i.flag_uses())
        return known

    def written(self, i: XeInstruction) -> Cells:
        """Return the cells that an instruction writes."""
        if (known := self._written.get(i)) is None:
            known = self._written[i] = self._registers(i.defs(), i.lanes) | self.named(i.flag_defs())
        return known

    def by_register(self, registers: Iterable[Reg]) -> list[Cells]:
        """Return the cells of operands, register by register."""
        cells: list[Cells] = []
        for r in registers:
            bits, begin = _bits_of(r.bank), self._begin(r)
            cells += [(1 << bits) - 1 << begin + bits * n for n in range(r.count)]
        return cells

    def _begin(self, r: Reg) -> int:
        """Return the bit of an operand's first cell."""
        return self._runs[0][r.bank] + _bits_of(r.bank) * (self.base[r.vreg] + r.first)

    def _registers(self, registers: Iterable[Reg], lanes: int = 0) -> Cells:
        """Return the cells of operands; operands of all lanes may skip quarters of their registers."""
        result = 0
        for r in registers:
            bits = _bits_of(r.bank)
            cells = (1 << bits * r.count) - 1
            if bits > 1 and lanes == self.lanes and isinstance(r, Region):
                cells = cells // ((1 << bits) - 1) * _quarters(r.type, r.stride, r.sub)
            result |= cells << self._begin(r)
        return result

    def named(self, names: Iterable[str]) -> Cells:
        """Return the cells of architecture registers and other names."""
        cells = 0
        for name in names:
            cells |= self._named.setdefault(name, 1 << self._runs[1] + len(self._named))
        return cells

    @property
    def flags(self) -> Cells:
        """Return the cells of all flag registers."""
        first, end = self._runs
        if "f" not in first:
            return 0
        return (1 << min((at for at in first.values() if at > first["f"]), default=end)) - (1 << first["f"])

    # ------------------------------------------------------------ text

    def grf(self, r: Reg) -> str:
        """Return the text of a whole register."""
        return f"r{self.base[r.vreg] + r.first}"

    def flag(self, r: Reg) -> str:
        number = self.base[r.vreg] + r.first
        return f"f{number // 2}.{number % 2}"

    def _place(self, r: Region) -> str:
        """Return register and subregister, the latter in elements of the type."""
        if r.bank == "f":
            return self.flag(r)
        number, offset = divmod(self.byte(r), self.lanes * _DWORD)
        return f"r{number}.{offset // TYPE_BYTES[r.type]}"

    def byte(self, r: Region) -> int:
        """Return the offset of the first element of a general register's region, in bytes from r0."""
        at = self.base[r.vreg] + r.first
        dwords = at * self.lanes if r.bank == "v" else self.scalars_at * self.lanes + at
        return dwords * _DWORD + r.sub * TYPE_BYTES[r.type]

    def destination(self, o: Operand, matrix: bool) -> str:
        """Return a destination operand as IGA reads it."""
        if isinstance(o, Null):
            return f"null<1>:{o.type}"
        if isinstance(o, Special):
            return f"{o.name}.0<1>:{o.type}"
        assert isinstance(o, Region)
        if matrix:
            return f"{self.grf(o)}:{o.type}"
        return f"{'(sat)' if o.saturated else ''}{self._place(o)}<{max(1, o.stride)}>:{o.type}"

    def source(self, o: Operand, scalar: bool) -> str:
        """Return a source operand of an instruction with at most two; `scalar` instructions work on one element."""
        if isinstance(o, Literal):
            return literal(o)
        if isinstance(o, Special):
            return f"{o.name}.0<{'0;1,0' if scalar else '1;1,0'}>:{o.type}"
        assert isinstance(o, Region)
        stride = f"{o.stride};1,0"
        return f"{o.signs}{self._place(o)}<{stride}>:{o.type}"

    def source_of_three(self, o: Operand, last: bool) -> str:
        """Return a source operand of an instruction with three."""
        if isinstance(o, Literal):
            return literal(o)
        assert isinstance(o, Region)
        stride = str(o.stride) if last else f"{o.stride};0" if o.stride < 2 else f"{2 * o.stride};{o.stride}"
        return f"{o.signs}{self._place(o)}<{stride}>:{o.type}"

    def matrix_source(self, o: Operand, last: bool) -> str:
        """Return an operand of a matrix instruction; the last one, the packed rows, has a subregister."""
        if isinstance(o, Null):
            return f"null:{o.type}"
        assert isinstance(o, Region)
        return f"{self.grf(o)}{'.0' if last else ''}:{o.type}"


def _bits_of(bank: str) -> int:
    """Return the number of cells of a register of a bank."""
    return _QUARTERS if bank == "v" else 1


@cache
def _quarters(type: str, stride: int, sub: int) -> Cells:
    """Return the quarters of each register that an operand of all lanes with this region covers."""
    size, distance = TYPE_BYTES[type], stride * TYPE_BYTES[type]
    begin = sub * size
    if distance not in (_DWORD, 2 * _DWORD) or begin + size > distance:
        return (1 << _QUARTERS) - 1
    covered = range(begin // _WORD, -(-(begin + size) // _WORD))
    return sum(1 << at + quarter for quarter in covered for at in range(0, _QUARTERS, distance // _WORD))


def literal(o: Literal) -> str:
    """Return an immediate: small integers in decimal; others, and bits of floats, in hexadecimal."""
    value = o.value
    small = isinstance(value, int) and -0x8000 <= value < 0x10000 and o.type not in FLOATS
    return f"{value}:{o.type}" if small or isinstance(value, float) else f"{value & 0xFFFFFFFFFFFFFFFF:#x}:{o.type}"
