"""Debug information beside the line table that the assembler makes of `.loc`: what `llvm-objdump -S` asks for.

One compile unit of all kernels, and a subprogram for each. Numbers are of DWARF 5 (sections 7.5.4 to 7.5.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class _Tag(IntEnum):
    COMPILE_UNIT = 0x11
    SUBPROGRAM = 0x2E


class _At(IntEnum):
    NAME = 0x03
    STMT_LIST = 0x10
    LOW_PC = 0x11
    HIGH_PC = 0x12
    COMP_DIR = 0x1B
    PRODUCER = 0x25
    DECL_FILE = 0x3A
    DECL_LINE = 0x3B


class _Form(IntEnum):
    ADDR = 0x01
    DATA8 = 0x07
    STRING = 0x08
    UDATA = 0x0F
    SEC_OFFSET = 0x17


_UNIT = "convgen"  #: what the compile unit is called: it is made of no one file
_VERSION, _UNIT_COMPILE, _ADDRESS_BYTES = 5, 0x01, 8

#: Abbreviation number -> tag, whether entries follow within, attributes in order with their forms.
_ABBREVIATIONS: dict[int, tuple[_Tag, bool, tuple[tuple[_At, _Form], ...]]] = {
    1: (
        _Tag.COMPILE_UNIT,
        True,
        (
            (_At.PRODUCER, _Form.STRING),
            (_At.NAME, _Form.STRING),
            (_At.COMP_DIR, _Form.STRING),
            (_At.STMT_LIST, _Form.SEC_OFFSET),
            (_At.LOW_PC, _Form.ADDR),
            (_At.HIGH_PC, _Form.DATA8),
        ),
    ),
    2: (
        _Tag.SUBPROGRAM,
        False,
        (
            (_At.NAME, _Form.STRING),
            (_At.DECL_FILE, _Form.UDATA),
            (_At.DECL_LINE, _Form.UDATA),
            (_At.LOW_PC, _Form.ADDR),
            (_At.HIGH_PC, _Form.DATA8),
        ),
    ),
}
_DIRECTIVES = {
    _Form.ADDR: ".quad",
    _Form.DATA8: ".quad",
    _Form.STRING: ".asciz",
    _Form.UDATA: ".uleb128",
    _Form.SEC_OFFSET: ".long",
}


def file_directives(kernels: Sequence[str]) -> list[str]:
    """The table of files: the listing of each kernel, by its number from 1; relative, so that no path is kept.

    File 0, the unit's, has a name of its own, for the assembler gives files of one name one number.
    """
    return [f'    .file 0 "." "{_UNIT}"', *(f'    .file {n} "{name}.ir"' for n, name in enumerate(kernels, 1))]


def sections(kernels: Sequence[str]) -> list[str]:
    """The sections of a module of these kernels, which stand one behind the other in .text."""
    first, last = kernels[0], kernels[-1]
    lines = ['    .section .debug_abbrev,"",@progbits', ".Ldebug_abbrev:"]
    for number, (tag, nests, attributes) in _ABBREVIATIONS.items():
        codes = (number, tag, int(nests), *(code for pair in attributes for code in pair), 0, 0)
        lines.append(f"    .uleb128 {', '.join(str(int(c)) for c in codes)}")
    lines += ["    .uleb128 0", '    .section .debug_info,"",@progbits']
    lines += ["    .long .Ldebug_info_end - .Ldebug_info_begin", ".Ldebug_info_begin:"]
    lines += [f"    .short {_VERSION}", f"    .byte {_UNIT_COMPILE}", f"    .byte {_ADDRESS_BYTES}"]
    lines.append("    .long .Ldebug_abbrev")
    lines += _entry(1, "convgen", _UNIT, ".", ".debug_line", first, f"{_end(last)} - {first}")
    for number, name in enumerate(kernels, 1):
        lines += _entry(2, name, number, 1, name, f"{_end(name)} - {name}")
    return [*lines, "    .byte 0", ".Ldebug_info_end:", '    .section .debug_line,"",@progbits', ""]


def _end(kernel: str) -> str:
    """The label behind a kernel's last instruction."""
    return f".L{kernel}.end"


def _entry(number: int, *values: str | int) -> list[str]:
    lines = [f"    .uleb128 {number}"]
    for (_, form), value in zip(_ABBREVIATIONS[number][2], values, strict=True):
        lines.append(f"    {_DIRECTIVES[form]} " + (f'"{value}"' if form is _Form.STRING else str(value)))
    return lines
