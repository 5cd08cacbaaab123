"""Debug information that `llvm-objdump -S` needs besides the line table, which the assembler makes from `.loc`.

It has one compile unit for all kernels, and a subprogram for each; `backends.dwarf` defines the entries.
"""

from __future__ import annotations

from collections.abc import Sequence

from convgen.backends.dwarf import (
    ABBREVIATIONS,
    ADDRESS_BYTES,
    PRODUCER,
    UNIT,
    UNIT_COMPILE,
    VERSION,
    Form,
    abbreviation_codes,
)

_DIRECTIVES = {
    Form.ADDR: ".quad",
    Form.DATA8: ".quad",
    Form.STRING: ".asciz",
    Form.UDATA: ".uleb128",
    Form.SEC_OFFSET: ".long",
}


def file_directives(kernels: Sequence[str]) -> list[str]:
    """Return the file table: the listing of each kernel, numbered from 1, by relative path.

    File 0, the unit's own, has another name, since the assembler gives files of one name one number.
    """
    return [f'    .file 0 "." "{UNIT}"', *(f'    .file {n} "{name}.ir"' for n, name in enumerate(kernels, 1))]


def sections(kernels: Sequence[str]) -> list[str]:
    """Return the debug sections of a module whose kernels follow one another in .text."""
    first, last = kernels[0], kernels[-1]
    lines = ['    .section .debug_abbrev,"",@progbits', ".Ldebug_abbrev:"]
    for number in ABBREVIATIONS:
        lines.append(f"    .uleb128 {', '.join(str(int(c)) for c in abbreviation_codes(number))}")
    lines += ["    .uleb128 0", '    .section .debug_info,"",@progbits']
    lines += ["    .long .Ldebug_info_end - .Ldebug_info_begin", ".Ldebug_info_begin:"]
    lines += [f"    .short {VERSION}", f"    .byte {UNIT_COMPILE}", f"    .byte {ADDRESS_BYTES}"]
    lines.append("    .long .Ldebug_abbrev")
    lines += _entry(1, PRODUCER, UNIT, ".", ".debug_line", first, f"{_end(last)} - {first}")
    for number, name in enumerate(kernels, 1):
        lines += _entry(2, name, number, 1, name, f"{_end(name)} - {name}")
    return [*lines, "    .byte 0", ".Ldebug_info_end:", '    .section .debug_line,"",@progbits', ""]


def _end(kernel: str) -> str:
    """Return the label after a kernel's last instruction."""
    return f".L{kernel}.end"


def _entry(number: int, *values: str | int) -> list[str]:
    lines = [f"    .uleb128 {number}"]
    for (_, form), value in zip(ABBREVIATIONS[number][2], values, strict=True):
        lines.append(f"    {_DIRECTIVES[form]} " + (f'"{value}"' if form is Form.STRING else str(value)))
    return lines
