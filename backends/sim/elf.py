"""Open untrusted ELF files: refuse headers that make a small file cost much time or memory.

A reader of sections trusts sizes and counts of the headers. Tables whose entries overlap, sections that are the whole
file many times over, compressed sections and names without end turn kilobytes into gigabytes.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

from elftools.elf.elffile import ELFFile

from convgen.backends.sim.errors import SimulatorError, within

_MOST_SECTIONS = 1 << 14  #: a kernel has up to six
_MOST_SEGMENTS = 1 << 10
_MOST_INFLATED = 1 << 25  #: bytes of compressed sections, such as debug information
_MOST_NAME = 1 << 12  #: bytes of a name; those of C++ have some hundred
_OVERLAP = 4  #: sections or segments that may hold a byte of the file, on average
_HEADER, _SECTION, _SEGMENT = 64, 64, 56  #: bytes of the headers of ELF64
_SYMTAB, _STRTAB, _RELA, _DYNAMIC, _NOBITS, _REL, _DYNSYM = 2, 3, 4, 6, 8, 9, 11  #: sh_type
_ENTRIES = {_SYMTAB: 24, _DYNSYM: 24, _RELA: 24, _REL: 16, _DYNAMIC: 16}  #: bytes of an entry by sh_type
_COMPRESSED = 0x800  #: sh_flags


def opened(raw: bytes) -> ELFFile:
    """Return the reader of a little-endian ELF64 file. Raises SimulatorError where its headers ask for too much."""
    if len(raw) < _HEADER or raw[4:6] != b"\x02\x01":
        raise SimulatorError("the code object is damaged: no header of a little-endian ELF64 file")
    segments, sections = struct.unpack_from("<QQ", raw, 32)
    segment_size, segment_count, section_size, section_count, names = struct.unpack_from("<5H", raw, 54)
    _check_segments(raw, _table(raw, segments, segment_count, segment_size, _SEGMENT, _MOST_SEGMENTS))
    _check_sections(raw, list(_table(raw, sections, section_count, section_size, _SECTION, _MOST_SECTIONS)), names)
    return ELFFile(io.BytesIO(raw))


def _table(raw: bytes, offset: int, count: int, size: int, wanted: int, most: int) -> Iterator[int]:
    """Return the offset of each entry of a table of headers."""
    if count == 0 and offset == 0:
        return iter(())
    within(count, 1, most, "a number of sections or segments")
    within(size, wanted, wanted, "bytes of a header")
    within(offset + count * size, 0, len(raw), "a table of headers that ends at")
    return iter(range(offset, offset + count * size, size))


def _check_segments(raw: bytes, headers: Iterator[int]) -> None:
    total = 0
    for at in headers:
        (size,) = struct.unpack_from("<Q", raw, at + 32)
        total += size
    within(total, 0, _OVERLAP * len(raw), "bytes of segments")


def _check_sections(raw: bytes, headers: list[int], names: int) -> None:
    total = inflated = 0
    for number, at in enumerate(headers):
        kind, flags, _, offset, size = struct.unpack_from("<IQQQQ", raw, at + 4)
        (entry,) = struct.unpack_from("<Q", raw, at + 56)
        if kind == _NOBITS:
            continue
        total += size
        if kind in _ENTRIES and size:
            within(entry, _ENTRIES[kind], _ENTRIES[kind], "bytes of an entry of a section")
        if flags & _COMPRESSED and offset + 16 <= len(raw):
            inflated += struct.unpack_from("<Q", raw, offset + 8)[0]
        if kind == _STRTAB or number == names:
            _check_names(raw[offset : offset + size])
    within(total, 0, _OVERLAP * len(raw), "bytes of sections")
    within(inflated, 0, _MOST_INFLATED, "bytes of compressed sections")


def _check_names(table: bytes) -> None:
    at = 0
    while at < len(table):
        end = table.find(b"\0", at)
        within((len(table) if end < 0 else end) - at, 0, _MOST_NAME, "bytes of a name")
        at = len(table) if end < 0 else end + 1
