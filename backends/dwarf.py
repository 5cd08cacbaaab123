"""DWARF 5 debug information of kernels: entries, and their bytes for formats without an assembler.

It has a compile unit, a subprogram for each kernel, and a line table that points into the listing of the kernel's IR.
Numbers are from DWARF 5: sections 7.5.4 to 7.5.6 for entries, 6.2.4, 6.2.5 and 7.22 for lines.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import pairwise

from convgen.ir.record import frozen


class Tag(IntEnum):
    COMPILE_UNIT = 0x11
    SUBPROGRAM = 0x2E


class At(IntEnum):
    NAME = 0x03
    STMT_LIST = 0x10
    LOW_PC = 0x11
    HIGH_PC = 0x12
    COMP_DIR = 0x1B
    PRODUCER = 0x25
    DECL_FILE = 0x3A
    DECL_LINE = 0x3B


class Form(IntEnum):
    ADDR = 0x01
    DATA8 = 0x07
    STRING = 0x08
    UDATA = 0x0F
    SEC_OFFSET = 0x17


UNIT = "convgen"  #: name of the compile unit, which comes from no single file
PRODUCER = "convgen"
VERSION, UNIT_COMPILE, ADDRESS_BYTES = 5, 0x01, 8

#: Abbreviation number -> tag, whether it has children, attributes in order with their forms.
ABBREVIATIONS: Mapping[int, tuple[Tag, bool, tuple[tuple[At, Form], ...]]] = {
    1: (Tag.COMPILE_UNIT, True, (
        (At.PRODUCER, Form.STRING), (At.NAME, Form.STRING), (At.COMP_DIR, Form.STRING),
        (At.STMT_LIST, Form.SEC_OFFSET), (At.LOW_PC, Form.ADDR), (At.HIGH_PC, Form.DATA8),
    )),
    2: (Tag.SUBPROGRAM, False, (
        (At.NAME, Form.STRING), (At.DECL_FILE, Form.UDATA), (At.DECL_LINE, Form.UDATA),
        (At.LOW_PC, Form.ADDR), (At.HIGH_PC, Form.DATA8),
    )),
}  # fmt: skip


def abbreviation_codes(number: int) -> tuple[int, ...]:
    """Return the numbers, each an unsigned LEB128, that declare an abbreviation."""
    tag, nests, attributes = ABBREVIATIONS[number]
    return (number, tag, int(nests), *(code for pair in attributes for code in pair), 0, 0)


# ---------------------------------------------------------------- bytes


@frozen
class CompilationUnit:
    """A kernel in its own section: name, listing, size in bytes, and rows of (address, line of the listing)."""

    name: str
    listing: str
    size: int
    rows: Sequence[tuple[int, int]]


@frozen
class Sections:
    """The content of .debug_abbrev, .debug_info and .debug_line, and where addresses in it need relocation.

    A place is (offset in the section, number of the unit whose section address is added).
    """

    abbrev: bytes
    info: bytes
    line: bytes
    info_places: tuple[tuple[int, int], ...]
    line_places: tuple[tuple[int, int], ...]


def sections(units: Sequence[CompilationUnit]) -> Sections:
    """Return debug sections with a compile unit for each kernel; addresses count from the start of its section."""
    info, line = bytearray(), bytearray()
    info_places: list[tuple[int, int]] = []
    line_places: list[tuple[int, int]] = []
    for number, unit in enumerate(units):
        at, (content, places) = len(info), _unit_info(unit, len(line))
        info_places += [(at + place, number) for place in places]
        info += content
        at, (content, place) = len(line), _unit_lines(unit)
        line_places.append((at + place, number))
        line += content
    codes = (code for number in ABBREVIATIONS for code in abbreviation_codes(number))
    abbrev = b"".join(map(unsigned, codes)) + b"\0"
    return Sections(abbrev, bytes(info), bytes(line), tuple(info_places), tuple(line_places))


def unsigned(value: int) -> bytes:
    """Encode an unsigned LEB128."""
    head = b""
    while value > 0x7F:
        head += bytes([value & 0x7F | 0x80])
        value >>= 7
    return head + bytes([value])


def signed(value: int) -> bytes:
    """Encode a signed LEB128."""
    head = b""
    while not -0x40 <= value < 0x40:
        head += bytes([value & 0x7F | 0x80])
        value >>= 7
    return head + bytes([value & 0x7F])


def _string(text: str) -> bytes:
    return text.encode() + b"\0"


def _counted(content: bytes) -> bytes:
    """Prefix content with its length (32 bits)."""
    return struct.pack("<I", len(content)) + content


def _encode(form: Form, value: str | int) -> bytes:
    if isinstance(value, str):
        return _string(value)
    if form is Form.UDATA:
        return unsigned(value)
    return struct.pack("<I" if form is Form.SEC_OFFSET else "<Q", value)


def _unit_info(unit: CompilationUnit, lines: int) -> tuple[bytes, list[int]]:
    """Return a unit's entries and the offsets of their addresses; `lines` is the offset of its line table."""
    body = struct.pack("<HBBI", VERSION, UNIT_COMPILE, ADDRESS_BYTES, 0)
    entries: tuple[tuple[int, tuple[str | int, ...]], ...] = (
        (1, (PRODUCER, UNIT, ".", lines, 0, unit.size)),
        (2, (unit.name, 1, 1, 0, unit.size)),
    )
    places = []
    for number, values in entries:
        body += unsigned(number)
        for (_, form), value in zip(ABBREVIATIONS[number][2], values, strict=True):
            if form is Form.ADDR:
                places.append(4 + len(body))
            body += _encode(form, value)
    return _counted(body + b"\0"), places


_PATH, _DIRECTORY_INDEX = 1, 2  #: content types of the tables of files (DW_LNCT)
_COPY, _ADVANCE_PC, _ADVANCE_LINE = 1, 2, 3  #: standard opcodes (DW_LNS)
_END_SEQUENCE, _SET_ADDRESS = 1, 2  #: extended opcodes (DW_LNE)
_OPERANDS = (0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1)  #: number of operands of each standard opcode, from opcode 1
_LINE_BASE, _LINE_RANGE = -5, 14  #: parameters of special opcodes, which are not used


def _unit_lines(unit: CompilationUnit) -> tuple[bytes, int]:
    """Return a unit's line table, and the offset of its address."""
    head = struct.pack("<BBBbBB", 1, 1, 1, _LINE_BASE, _LINE_RANGE, len(_OPERANDS) + 1) + bytes(_OPERANDS)
    head += bytes([1]) + unsigned(_PATH) + unsigned(Form.STRING) + unsigned(1) + _string(".")
    head += bytes([2]) + b"".join(map(unsigned, (_PATH, Form.STRING, _DIRECTORY_INDEX, Form.UDATA)))
    files = (UNIT, unit.listing)
    head += unsigned(len(files)) + b"".join(_string(name) + unsigned(0) for name in files)
    before = struct.pack("<HBB", VERSION, ADDRESS_BYTES, 0) + _counted(head)
    opening = b"\0" + unsigned(1 + ADDRESS_BYTES) + bytes([_SET_ADDRESS])
    place = 4 + len(before) + len(opening)
    program = opening + bytes(ADDRESS_BYTES) + b"".join(_steps(unit))
    return _counted(before + program), place


def _steps(unit: CompilationUnit) -> Iterator[bytes]:
    """Yield the line program's instructions, row by row, up to the end of the sequence."""
    start = (0, 1)
    for (at, line), (next_at, next_line) in pairwise((start, *unit.rows)):
        yield bytes([_ADVANCE_PC]) + unsigned(next_at - at)
        yield bytes([_ADVANCE_LINE]) + signed(next_line - line) + bytes([_COPY])
    last = unit.rows[-1][0] if unit.rows else 0
    yield bytes([_ADVANCE_PC]) + unsigned(unit.size - last)
    yield b"\0" + unsigned(1) + bytes([_END_SEQUENCE])
