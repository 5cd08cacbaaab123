"""Link a module's relocatable object into the code object that HSA loads.

Little is left to link: sections get addresses, kernel descriptors their distance to the code, kernels an entry in two
hash tables. All loaded bytes equal those of `ld.lld -shared`; objects with other sections are left to it. Formats:
System V ABI, chapters 4 and 5; LLVM's AMDGPUUsage; `DT_GNU_HASH` as in lld's SyntheticSections.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum, IntFlag
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

from convgen.ir.record import frozen

_HEADER = Struct("<4s12sHHIQQQIHHHHHH")
_SECTION = Struct("<IIQQQQIIQQ")
_SEGMENT = Struct("<IIQQQQQQ")
_SYMBOL = Struct("<IBBHQQ")
_RELOCATION = Struct("<QQq")
_NOTE = Struct("<III")
_ENTRY = Struct("<QQ")  #: entry of the dynamic section
_DISTANCE = Struct("<q")

_PAGE = 0x1000
_RELATIVE_64 = 5  #: R_AMDGPU_REL64
_SHARED_OBJECT = 3  #: ET_DYN
_HIDDEN = 2  #: STV_HIDDEN


class _Kind(IntEnum):
    """Section types."""

    SYMTAB = 2
    STRTAB = 3
    HASH = 5
    DYNAMIC = 6
    DYNSYM = 11
    GNU_HASH = 0x6FFFFFF6


class _Flag(IntFlag):
    """Section flags."""

    WRITE = 1
    ALLOC = 2


class _Part(IntEnum):
    """Types of program headers."""

    LOAD = 1
    DYNAMIC = 2
    NOTE = 4
    HEADERS = 6
    STACK = 0x6474E551
    RELRO = 0x6474E552


class _Right(IntFlag):
    """Access rights of a segment."""

    EXECUTE = 1
    WRITE = 2
    READ = 4


class _Tag(IntEnum):
    """Tags of entries in the dynamic section."""

    NULL = 0
    HASH = 4
    STRTAB = 5
    SYMTAB = 6
    STRSZ = 10
    SYMENT = 11
    GNU_HASH = 0x6FFFFEF5


_PADDING = {bytes.fromhex("000080bf"), bytes.fromhex("00009fbf")}  #: s_nop, s_code_end
#: (binding and type, section) of a kernel and its descriptor: a global function, a global object.
_SYMBOLS = {(0x12, ".text"), (0x11, ".rodata")}
_KNOWN = {"", ".strtab", ".text", ".rodata", ".rela.rodata", ".note", ".symtab"}


class _Section(NamedTuple):
    kind: int
    flags: int
    content: bytes
    alignment: int


@frozen
class _Symbol:
    name: str
    info: int  #: binding and type
    visibility: int
    section: str
    value: int  #: bytes from the start of its section
    size: int  #: bytes


@frozen
class _Module:
    """The parts of a relocatable object."""

    identity: bytes  #: ELF class, ABI of the machine and its version
    machine: int
    flags: int
    sections: Mapping[str, _Section]
    symbols: Sequence[_Symbol]
    distances: Sequence[tuple[int, _Symbol, int]]  #: relocations in .rodata: offset of a distance, symbol, addend


def linked(relocatable: bytes) -> bytes | None:
    """Return the code object of a module's relocatable; None if it needs more than this linker does."""
    module = _read(relocatable)
    return None if module is None else _written(module)


# ---------------------------------------------------------------- the relocatable


def _read(data: bytes) -> _Module | None:
    """Return the parts of a module without debug information; None if it has anything else."""
    _, identity, _, machine, _, _, _, at, flags, _, _, _, _, count, names = _HEADER.unpack_from(data)
    rows = [_SECTION.unpack_from(data, at + n * _SECTION.size) for n in range(count)]
    texts = data[rows[names][4] :]
    sections: dict[str, _Section] = {}
    order = []
    for name, kind, section_flags, _, start, size, _, _, alignment, _ in rows:
        key = _text(texts, name)
        if key in sections or (key not in _KNOWN and size):
            return None
        sections[key] = _Section(kind, section_flags, data[start : start + size], alignment)
        order.append(key)
    if any(name not in sections or not sections[name].content for name in (".text", ".rodata", ".note")):
        return None
    table = [
        _Symbol(_text(texts, name), info, visibility, order[section] if section < count else "", value, size)
        for name, info, visibility, section, value, size in _SYMBOL.iter_unpack(sections[".symtab"].content)
    ]
    if any((s.info, s.section) not in _SYMBOLS for s in table[1:]):
        return None
    relocations = _RELOCATION.iter_unpack(sections[".rela.rodata"].content if ".rela.rodata" in sections else b"")
    distances = []
    for place, info, addend in relocations:
        if info & 0xFFFFFFFF != _RELATIVE_64:
            return None
        distances.append((place, table[info >> 32], addend))
    code = _code(sections[".text"].content, table[1:])
    if code is None:
        return None
    sections[".text"] = sections[".text"]._replace(content=code)
    sections[".note"] = sections[".note"]._replace(content=_first_note(sections[".note"].content))
    return _Module(identity, machine, flags, sections, table[1:], distances)


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(0, start)].decode()


def _code(content: bytes, symbols: Sequence[_Symbol]) -> bytes | None:
    """Return the code of all kernels, without LLVM's padding; None if anything else follows it."""
    end = max((s.value + s.size for s in symbols if s.section == ".text"), default=0)
    words = {content[at : at + 4] for at in range(end, len(content), 4)}
    return content[:end] if words <= _PADDING else None


def _first_note(content: bytes) -> bytes:
    """Return the first note, which is the module's; the one after it is that of LLVM's empty module."""
    owner, described, _ = _NOTE.unpack_from(content)
    return content[: _NOTE.size + -(-owner // 4) * 4 + -(-described // 4) * 4]


# ---------------------------------------------------------------- the code object


@frozen
class _Placed:
    """A section of the code object with its place in the file and in memory (0: not loaded)."""

    name: str
    section: _Section
    offset: int
    address: int
    link: str = ""  #: section that it refers to
    info: int = 0
    entry_bytes: int = 0

    @property
    def size(self) -> int:
        return len(self.section.content)

    @property
    def end(self) -> int:
        return self.offset + self.size


_PROGRAM_HEADERS = 8  #: entries of the program header table
_LINKS = {".dynsym": ".dynstr", ".gnu.hash": ".dynsym", ".hash": ".dynsym", ".dynamic": ".dynstr", ".symtab": ".strtab"}
_ENTRY_BYTES = {".dynsym": _SYMBOL.size, ".hash": 4, ".dynamic": _ENTRY.size, ".symtab": _SYMBOL.size}


class _File:
    """The code object while its sections get their places, one after the other."""

    def __init__(self) -> None:
        self.placed: dict[str, _Placed] = {}
        self.end = _HEADER.size + _PROGRAM_HEADERS * _SEGMENT.size
        self._ahead = 0  # addresses minus offsets

    def place(self, name: str, section: _Section, info: int = 0) -> None:
        offset = -(-self.end // section.alignment) * section.alignment
        address = offset + self._ahead if section.flags & _Flag.ALLOC else 0
        self.placed[name] = _Placed(
            name, section, offset, address, _LINKS.get(name, ""), info, _ENTRY_BYTES.get(name, 0)
        )
        self.end = self.placed[name].end

    def next_page(self) -> None:
        """Start a new page: the next section is loaded with other access rights."""
        address = self.end + self._ahead
        self._ahead += -(-address // _PAGE) * _PAGE + address % _PAGE - address


def _written(module: _Module) -> bytes:
    """Return the file: loaded sections first, then sections for debuggers and listings."""
    symbols = _by_bucket(module.symbols)
    names = _Names(s.name for s in module.symbols)
    empty = bytes((1 + len(symbols)) * _SYMBOL.size)
    file = _File()
    file.place(".note", module.sections[".note"])
    file.place(".dynsym", _Section(_Kind.DYNSYM, _Flag.ALLOC, empty, 8), 1)
    file.place(".gnu.hash", _Section(_Kind.GNU_HASH, _Flag.ALLOC, _gnu_hash(symbols), 8))
    file.place(".hash", _Section(_Kind.HASH, _Flag.ALLOC, _system_v_hash(symbols), 4))
    file.place(".dynstr", _Section(_Kind.STRTAB, _Flag.ALLOC, names.table, 1))
    file.place(".rodata", module.sections[".rodata"])
    file.next_page()
    file.place(".text", module.sections[".text"])
    file.next_page()
    file.place(".dynamic", _Section(_Kind.DYNAMIC, _Flag.WRITE | _Flag.ALLOC, _dynamic(file.placed), 8))
    all_names = _Names([*(s.name for s in module.symbols), "_DYNAMIC"])
    file.place(".symtab", _Section(_Kind.SYMTAB, 0, empty + bytes(_SYMBOL.size), 8), 2)
    file.place(".strtab", _Section(_Kind.STRTAB, 0, all_names.table, 1))
    section_names = _Names([*file.placed, ".shstrtab"])
    file.place(".shstrtab", _Section(_Kind.STRTAB, 0, section_names.table, 1))
    return _filled(module, file, symbols, names, all_names, section_names)


def _filled(
    module: _Module, file: _File, symbols: Sequence[_Symbol], names: _Names, all_names: _Names, section_names: _Names
) -> bytes:
    """Return the bytes of the file after all sections are placed."""
    placed = file.placed
    index = {name: n for n, name in enumerate(placed, 1)}

    def address(symbol: _Symbol) -> int:
        return placed[symbol.section].address + symbol.value

    def entries(of: Sequence[_Symbol], names: _Names) -> bytes:
        rows = ((names.at[s.name], s.info, s.visibility, index[s.section], address(s), s.size) for s in of)
        return b"".join(_SYMBOL.pack(*row) for row in rows)

    content = {name: p.section.content for name, p in placed.items()}
    content[".dynsym"] = bytes(_SYMBOL.size) + entries(symbols, names)
    own = _Symbol("_DYNAMIC", 0, _HIDDEN, ".dynamic", 0, 0)
    content[".symtab"] = bytes(_SYMBOL.size) + entries([own, *module.symbols], all_names)
    descriptors = bytearray(content[".rodata"])
    for place, to, addend in module.distances:
        _DISTANCE.pack_into(descriptors, place, address(to) + addend - placed[".rodata"].address - place)
    content[".rodata"] = bytes(descriptors)
    sections_at = -(-file.end // 8) * 8
    file_bytes = bytearray(sections_at)
    segments = b"".join(_SEGMENT.pack(*row) for row in _segments(placed))
    file_bytes[_HEADER.size : _HEADER.size + len(segments)] = segments
    for name, p in placed.items():
        file_bytes[p.offset : p.end] = content[name]
    file_bytes[: _HEADER.size] = _HEADER.pack(
        *(b"\x7fELF", module.identity, _SHARED_OBJECT, module.machine, 1, 0, _HEADER.size, sections_at, module.flags),
        *(_HEADER.size, _SEGMENT.size, _PROGRAM_HEADERS, _SECTION.size, 1 + len(placed), index[".shstrtab"]),
    )
    rows = [
        (section_names.at[n], p.section.kind, p.section.flags, p.address, p.offset, p.size,
         index.get(p.link, 0), p.info, p.section.alignment, p.entry_bytes)
        for n, p in placed.items()
    ]  # fmt: skip
    return bytes(file_bytes) + bytes(_SECTION.size) + b"".join(_SECTION.pack(*row) for row in rows)


def _segments(placed: Mapping[str, _Placed]) -> Iterator[tuple[int, ...]]:
    """Yield the program headers: type, rights, offset, address twice, bytes in the file and in memory, alignment."""
    read, write, execute = _Right.READ, _Right.WRITE, _Right.EXECUTE
    note, constants, code, dynamic = (placed[name] for name in (".note", ".rodata", ".text", ".dynamic"))
    headers = _PROGRAM_HEADERS * _SEGMENT.size
    protected = -(-(dynamic.address + dynamic.size) // _PAGE) * _PAGE - dynamic.address
    yield (_Part.HEADERS, read, _HEADER.size, _HEADER.size, _HEADER.size, headers, headers, 8)
    yield (_Part.LOAD, read, 0, 0, 0, constants.end, constants.end, _PAGE)
    yield (_Part.LOAD, read | execute, code.offset, code.address, code.address, code.size, code.size, _PAGE)
    at = dynamic.offset, dynamic.address, dynamic.address, dynamic.size
    yield (_Part.LOAD, read | write, *at, protected, _PAGE)
    yield (_Part.DYNAMIC, read | write, *at, dynamic.size, 8)
    yield (_Part.RELRO, read, *at, protected, 1)
    yield (_Part.STACK, read | write, 0, 0, 0, 0, 0, 0)
    yield (_Part.NOTE, read, note.offset, note.address, note.address, note.size, note.size, 4)


def _dynamic(placed: Mapping[str, _Placed]) -> bytes:
    """Return the dynamic section: where a loader finds symbols, their names and hashes."""
    entries = (
        (_Tag.SYMTAB, placed[".dynsym"].address),
        (_Tag.SYMENT, _SYMBOL.size),
        (_Tag.STRTAB, placed[".dynstr"].address),
        (_Tag.STRSZ, placed[".dynstr"].size),
        (_Tag.GNU_HASH, placed[".gnu.hash"].address),
        (_Tag.HASH, placed[".hash"].address),
        (_Tag.NULL, 0),
    )
    return b"".join(_ENTRY.pack(*entry) for entry in entries)


class _Names:
    """A string table, with the offset of each name."""

    def __init__(self, names: Iterable[str]) -> None:
        names = list(names)
        starts = accumulate((len(name.encode()) + 1 for name in names), initial=1)
        self.at = dict(zip(names, starts))
        self.table = b"\0" + b"".join(name.encode() + b"\0" for name in names)


# ---------------------------------------------------------------- hash tables


def _buckets(count: int) -> int:
    return max(count // 4, 1)


def _by_bucket(symbols: Sequence[_Symbol]) -> list[_Symbol]:
    """Return the symbols in the order of `DT_GNU_HASH`."""
    return sorted(symbols, key=lambda s: _gnu(s.name) % _buckets(len(symbols)))


def _gnu(name: str) -> int:
    hashed = 5381
    for byte in name.encode():
        hashed = hashed * 33 + byte & 0xFFFFFFFF
    return hashed


def _gnu_hash(symbols: Sequence[_Symbol]) -> bytes:
    """Return `DT_GNU_HASH`: a filter of two bits a symbol, the first symbol of each bucket, and all hashes."""
    words, shift = 1 << (len(symbols) * 12 // 64).bit_length(), 26
    hashes = [_gnu(s.name) for s in symbols]
    buckets = [h % _buckets(len(symbols)) for h in hashes]
    bits = [0] * words
    for h in hashes:
        bits[h // 64 % words] |= 1 << h % 64 | 1 << (h >> shift) % 64
    firsts = [1 + buckets.index(b) if b in buckets else 0 for b in range(_buckets(len(symbols)))]
    last = [n + 1 == len(buckets) or buckets[n + 1] != b for n, b in enumerate(buckets)]
    chain = [h & ~1 | ends for h, ends in zip(hashes, last)]
    return b"".join(
        (
            _words(len(firsts), 1, words, shift),
            b"".join(word.to_bytes(8, "little") for word in bits),
            _words(*firsts, *chain),
        )
    )


def _system_v_hash(symbols: Sequence[_Symbol]) -> bytes:
    """Return `DT_HASH`: as many buckets as symbols, each a chain."""
    count = 1 + len(symbols)
    buckets, chains = [0] * count, [0] * count
    for n, s in enumerate(symbols, 1):
        bucket = _system_v(s.name) % count
        chains[n], buckets[bucket] = buckets[bucket], n
    return _words(count, count, *buckets, *chains)


def _system_v(name: str) -> int:
    hashed = 0
    for byte in name.encode():
        hashed = (hashed << 4) + byte
        hashed ^= (hashed & 0xF0000000) >> 24
        hashed &= 0x0FFFFFFF
    return hashed


def _words(*numbers: int) -> bytes:
    return b"".join(n.to_bytes(4, "little") for n in numbers)
