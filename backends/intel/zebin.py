"""The zebin, which Level Zero and OpenCL load on Intel GPUs: an ELF file with kernels, their description and notes.

Format: the Intel graphics compiler's documentation/zebin (zebin.md, ze_info.md), version 1.20, and what the compute
runtime's zebin_decoder.cpp accepts. Our kernels take no local ids and no inline data: the driver then enters at the
first instruction, every argument is in memory at the address in r0.0, and a thread's number in its workgroup is r0.2 &
0xff. DG2 is no exception: inline data goes only to kernels that declare `inline_data_payload_size`.

Comment lines state these facts in text, so that an assembly file is self-contained:

    //.target xehpc
    //.kernel axpy
    //.simd_size 16
    //.grf_count 128
    //.slm_bytes 0
    //.barrier_count 0
    //.workgroup 32 1 1
    //.has_dpas no
    //.argument buffer x at 0 size 8
    //.argument scalar a at 8 size 4
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any

import attrs
from elftools.construct import Container
from elftools.elf.structs import ELFStructs

from convgen.backends import dwarf
from convgen.backends.dwarf import CompilationUnit
from convgen.backends.intel.family import FAMILY
from convgen.backends.intel.zebin_devices import DEVICES, Device
from convgen.ir.error import AssemblerError
from convgen.ir.record import frozen

_VERSION = "1.20"  #: of the zebin format
_POINTER_BYTES = 8
_ARGUMENT_SIZES = (1, 2, 4, 8)  #: bytes
_ABI_VERSION = 1
_MACHINE = FAMILY.machine
_ZE_INFO = 0xFF000011  #: section type SHT_ZEBIN_ZEINFO
_ALLOCATED_CODE = 0x6  #: section flags SHF_ALLOC | SHF_EXECINSTR
_CODE_ALIGNMENT = 64  #: bytes
_PREFETCH_BYTES = 128  #: hardware prefetches past the last instruction: zeros must follow it
_NOTE_OWNER = b"IntelGT\0"
_FAMILY_NOTE, _CORE_NOTE, _VERSION_NOTE = 1, 2, 4  #: types of notes

_ADDRESS_RELOCATION = 1  #: R_ZE_SYM_ADDR: 64 bits, the address of a symbol
_LISTED = re.compile(r"//\s*(\S+\.ir):(\d+)")  #: a comment that refers to a line of a listing
_INSTRUCTION_BYTES = 16  #: of an instruction that is not compacted


@frozen
class _Section:
    """A section of the file. `link` and `info` name other sections (or are numbers)."""

    name: str
    kind: str | int
    content: bytes
    flags: int = 0
    alignment: int = 1
    link: str = ""
    info: str | int = 0
    entry_bytes: int = 0


_NAME = re.compile(r"[A-Za-z_]\w*")
_DIRECTIVE = re.compile(r"//\.(\w+)\s*(.*?)\s*")
_ARGUMENT = re.compile(r"(buffer|scalar) ([A-Za-z_]\w*) +at (\d+) +size (\d+)")


def _named(_: object, attribute: attrs.Attribute[str], name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{attribute.name} {name!r} is no identifier")


@frozen
class Argument:
    """A kernel argument in the cross-thread data, at its natural alignment (the driver would accept any)."""

    name: str = attrs.field(validator=_named)
    offset: int  #: bytes from the start of the cross-thread data
    size: int = attrs.field(validator=attrs.validators.in_(_ARGUMENT_SIZES))  #: bytes
    kind: str = attrs.field(validator=attrs.validators.in_(("buffer", "scalar")))  #: a global address, or a value

    def __attrs_post_init__(self) -> None:
        if self.offset < 0 or self.offset % self.size:
            raise ValueError(f"argument {self.name} of {self.size} bytes cannot stand at {self.offset}")
        if self.kind == "buffer" and self.size != _POINTER_BYTES:
            raise ValueError(f"buffer {self.name} has {self.size} bytes, not {_POINTER_BYTES}")


@frozen
class KernelInfo:
    """The facts by which the driver launches a kernel. Raises ValueError if they contradict each other."""

    name: str = attrs.field(validator=_named)
    simd_size: int = attrs.field(validator=attrs.validators.in_((8, 16, 32)))  #: work-items of a thread
    grf_count: int = attrs.field(validator=attrs.validators.in_((128, 256)))  #: registers of a thread
    slm_bytes: int  #: shared local memory of a workgroup
    barrier_count: int
    workgroup: tuple[int, int, int]  #: work-items in x, y, z; all threads are full
    has_dpas: bool  #: whether the matrix engine is used
    arguments: tuple[Argument, ...]  #: in the order of the host's indices; they do not overlap
    #: whether threads 2k and 2k + 1 need separate instruction pointers: the driver then switches EU fusion off for the
    #: kernel (IGC's zeinfo.md, `require_disable_eufusion`)
    unfused: bool = False

    def __attrs_post_init__(self) -> None:
        if min(self.workgroup) < 1 or prod(self.workgroup) % self.simd_size:
            raise ValueError(f"workgroup {self.workgroup} does not fill threads of {self.simd_size}")
        placed = sorted(self.arguments, key=lambda a: a.offset)
        for one, other in pairwise(placed):
            if one.offset + one.size > other.offset:
                raise ValueError(f"arguments {one.name} and {other.name} overlap")


def _triple(text: str) -> tuple[int, int, int]:
    x, y, z = map(int, text.split())
    return x, y, z


def _yes_or_no(flag: bool) -> str:
    return "yes" if flag else "no"


def _is_yes(text: str) -> bool:
    return {"yes": True, "no": False}[text]


#: Attribute of KernelInfo, which is also the directive -> its text, and the value of a text.
_FIELDS: dict[str, tuple[Callable[[Any], str], Callable[[str], object]]] = {
    "simd_size": (str, int),
    "grf_count": (str, int),
    "slm_bytes": (str, int),
    "barrier_count": (str, int),
    "workgroup": (lambda sizes: " ".join(map(str, sizes)), _triple),
    "has_dpas": (_yes_or_no, _is_yes),
    "unfused": (_yes_or_no, _is_yes),
}
_OPTIONAL = {"unfused": False}  #: optional directives with their default


def directives(info: KernelInfo) -> list[str]:
    """Return the directives above a kernel's instructions."""
    lines = [f"//.kernel {info.name}"]
    values = ((key, text, getattr(info, key)) for key, (text, _) in _FIELDS.items())
    lines += [f"//.{key} {text(value)}" for key, text, value in values if value != _OPTIONAL.get(key)]
    width = max((len(a.name) for a in info.arguments), default=0)
    return lines + [f"//.argument {a.kind} {a.name:<{width}} at {a.offset} size {a.size}" for a in info.arguments]


def target_directive(target: str) -> str:
    """Return the first line of an assembly file."""
    return f"//.target {target}"


def parse(text: str) -> tuple[str, list[tuple[KernelInfo, str]]]:
    """Return the target of an assembly file, and its kernels, each with its lines.

    Empty lines precede a kernel's lines, so that each keeps its number. Raises AssemblerError.
    """
    lines = text.splitlines()
    found_directives = [(n, m[1], m[2]) for n, line in enumerate(lines, 1) if (m := _DIRECTIVE.fullmatch(line.strip()))]
    if not found_directives or found_directives[0][1] != "target":
        raise AssemblerError("no //.target before the first kernel")
    _, _, target = found_directives.pop(0)
    if target not in DEVICES:
        raise AssemblerError(f"//.target of {target}, wanted one of {', '.join(DEVICES)}")
    starts = [place for place, (_, key, _) in enumerate(found_directives) if key == "kernel"]
    if found_directives and starts[:1] != [0]:
        raise AssemblerError(f"line {found_directives[0][0]}: //.{found_directives[0][1]} before the first //.kernel")
    kernels: dict[str, tuple[KernelInfo, str]] = {}
    for start, end in pairwise([*starts, len(found_directives)]):
        first = found_directives[start][0] - 1
        last = found_directives[end][0] - 1 if end < len(found_directives) else len(lines)
        info = _info(found_directives[start:end])
        if info.name in kernels:
            raise AssemblerError(f"line {first + 1}: kernel {info.name} twice")
        kernels[info.name] = info, "\n" * first + "\n".join([*lines[first:last], ""])
    return target, list(kernels.values())


def _info(directive_lines: Sequence[tuple[int, str, str]]) -> KernelInfo:
    """Return a kernel from its directives as (line, key, value), `kernel` first."""
    first, _, name = directive_lines[0]
    fields: dict[str, Any] = {"name": name}
    arguments = []
    for line, key, value in directive_lines[1:]:
        try:
            if key == "argument":
                arguments.append(_argument(value))
            elif key in fields or key not in _FIELDS:
                raise ValueError("unknown or twice")
            else:
                fields[key] = _FIELDS[key][1](value)
        except (ValueError, KeyError) as error:
            raise AssemblerError(f"line {line}: //.{key} {value}: {error}") from None
    missing = [key for key in _FIELDS if key not in fields and key not in _OPTIONAL]
    if missing:
        raise AssemblerError(f"line {first}: kernel {name} has no //.{missing[0]}")
    try:
        return KernelInfo(**fields, arguments=tuple(arguments))
    except ValueError as error:
        raise AssemblerError(f"line {first}: {error}") from None


def _argument(text: str) -> Argument:
    match = _ARGUMENT.fullmatch(text)
    if match is None:
        raise ValueError("wanted buffer|scalar NAME at OFFSET size BYTES")
    kind, name, offset, size = match.groups()
    return Argument(name, int(offset), int(size), kind)


def debug_unit(info: KernelInfo, body: str, size: int) -> CompilationUnit | None:
    """Return the line table of a kernel's `size` bytes of instructions, from the comments in its text.

    None without these comments, or if instructions are compacted, so that lines do not determine addresses.
    """
    listing, rows, at = "", [], 0
    for line in body.splitlines():
        if (found := _LISTED.fullmatch(line.strip())) is not None:
            listing, number = found[1], int(found[2])
            rows.append((at, number))
        elif (text := line.partition("//")[0].strip()) and not text.endswith(":"):
            at += _INSTRUCTION_BYTES
    return CompilationUnit(info.name, listing, size, rows) if rows and at == size else None


def build(device: Device, kernels: Sequence[tuple[KernelInfo, bytes]], units: Sequence[CompilationUnit] = ()) -> bytes:
    """Return the zebin of kernels with their instructions; `units` are the kernels with debug information.

    Equal input gives equal bytes.
    """
    sections = [
        _Section(f".text.{info.name}", "SHT_PROGBITS", _padded(code), _ALLOCATED_CODE, _CODE_ALIGNMENT)
        for info, code in kernels
    ]
    sections += _debug_sections(units, [info.name for info, _ in kernels])
    sections.append(_Section(".ze_info", _ZE_INFO, _ze_info([info for info, _ in kernels]).encode()))
    sections.append(_Section(".note.intelgt.compat", "SHT_NOTE", b"".join(_notes(device)), alignment=4))
    return _elf(sections)


def _debug_sections(units: Sequence[CompilationUnit], kernels: Sequence[str]) -> list[_Section]:
    """Return DWARF sections like the graphics compiler's -g, with addresses relative to the kernels' sections."""
    if not units:
        return []
    content = dwarf.sections(units)
    # a kernel's section and its symbol have one number
    numbers = [1 + kernels.index(unit.name) for unit in units]

    def relocations(places: Sequence[tuple[int, int]]) -> bytes:
        return b"".join(_relocation(at, numbers[unit]) for at, unit in places)

    symbols = [_section_symbol(section) for section in range(len(kernels) + 1)]
    rela = {"link": ".symtab", "entry_bytes": _structs().Elf_Rela.sizeof(), "alignment": 8}
    return [
        _Section(".debug_abbrev", "SHT_PROGBITS", content.abbrev),
        _Section(".debug_info", "SHT_PROGBITS", content.info),
        _Section(".debug_line", "SHT_PROGBITS", content.line),
        _Section(".rela.debug_info", "SHT_RELA", relocations(content.info_places), info=".debug_info", **rela),
        _Section(".rela.debug_line", "SHT_RELA", relocations(content.line_places), info=".debug_line", **rela),
        _Section(
            *(".symtab", "SHT_SYMTAB", b"".join(symbols)),
            alignment=8,
            link=".strtab",
            info=len(symbols),
            entry_bytes=len(symbols[0]),
        ),
    ]


def _section_symbol(section: int) -> bytes:
    """Return the symbol of a section by its number; 0 gives the null symbol."""
    info = Container(bind="STB_LOCAL", type="STT_SECTION" if section else "STT_NOTYPE")
    other = Container(local=0, visibility="STV_DEFAULT")
    symbol: bytes = _structs().Elf_Sym.build(
        Container(st_name=0, st_value=0, st_size=0, st_info=info, st_other=other, st_shndx=section or "SHN_UNDEF")
    )
    return symbol


def _relocation(at: int, symbol: int) -> bytes:
    """Return the relocation that puts the address of a symbol at byte `at`."""
    info = {"r_info": symbol << 32 | _ADDRESS_RELOCATION, "r_info_sym": symbol, "r_info_type": _ADDRESS_RELOCATION}
    relocation: bytes = _structs().Elf_Rela.build(Container(r_offset=at, r_addend=0, **info))
    return relocation


def _padded(code: bytes) -> bytes:
    size = -(-(len(code) + _PREFETCH_BYTES) // _CODE_ALIGNMENT) * _CODE_ALIGNMENT
    return code.ljust(size, b"\0")


def _ze_info(kernels: Sequence[KernelInfo]) -> str:
    """Return the YAML that describes the kernels. The driver's reader knows no inline mappings."""
    lines = ["---", f"version: '{_VERSION}'", "kernels:"]
    for info in kernels:
        lines += [f"  - name: {info.name}", "    execution_env:"]
        lines += [f"      {key}: {value}" for key, value in _environment(info).items()]
        if info.arguments:
            lines.append("    payload_arguments:")
        for index, a in enumerate(info.arguments):
            first, *rest = (f"{key}: {value}" for key, value in _payload(index, a).items())
            lines += [f"      - {first}", *(f"        {line}" for line in rest)]
    return "\n".join([*lines, "...", ""])


def _environment(info: KernelInfo) -> Mapping[str, object]:
    """Return the execution environment without flags that are off, as the graphics compiler writes it."""
    flags = {
        # The graphics compiler sets it for every kernel with a barrier.
        "disable_mid_thread_preemption": info.barrier_count > 0,
        "has_4gb_buffers": True,  # all addresses have 64 bits
        "has_dpas": info.has_dpas,
        "require_disable_eufusion": info.unfused,
    }
    return {
        "barrier_count": info.barrier_count,
        **{key: "true" for key, on in flags.items() if on},
        "grf_count": info.grf_count,
        "required_sub_group_size": info.simd_size,
        "required_work_group_size": list(info.workgroup),
        "simd_size": info.simd_size,
        "slm_size": info.slm_bytes,
    }


def _payload(index: int, a: Argument) -> Mapping[str, object]:
    kind = "arg_bypointer" if a.kind == "buffer" else "arg_byvalue"
    fields: dict[str, object] = {"arg_type": kind, "offset": a.offset, "size": a.size, "arg_index": index}
    if a.kind == "buffer":
        fields |= {"addrmode": "stateless", "addrspace": "global", "access_type": "readwrite"}
    return fields


@cache
def _structs() -> Any:
    structs = ELFStructs(little_endian=True, elfclass=64)
    structs.create_basic_structs()
    structs.create_advanced_structs("ET_REL")
    return structs


def _notes(device: Device) -> Iterator[bytes]:
    """Yield the notes that the driver compares with the device before it loads."""
    if device.product_family is not None:
        yield _note(_FAMILY_NOTE, device.product_family.to_bytes(4, "little"))
    yield _note(_CORE_NOTE, device.gfx_core.to_bytes(4, "little"))
    yield _note(_VERSION_NOTE, _VERSION.encode() + b"\0")


def _note(kind: int, content: bytes) -> bytes:
    head: bytes = _structs().Elf_Nhdr.build(Container(n_namesz=len(_NOTE_OWNER), n_descsz=len(content), n_type=kind))
    return head + _NOTE_OWNER + content + bytes(-len(content) % 4)


def _elf(sections: Sequence[_Section]) -> bytes:
    """Return an object file with these sections."""
    structs = _structs()
    names = b"\0".join([b"", *(section.name.encode() for section in sections), b".strtab", b""])
    every = [_Section("", "SHT_NULL", b"", alignment=0), *sections, _Section(".strtab", "SHT_STRTAB", names)]
    numbers = {section.name: number for number, section in enumerate(every)}
    header_bytes = structs.Elf_Ehdr.sizeof()
    content = bytearray(header_bytes)
    headers = []
    name_at = 0
    for section in every:
        content += bytes(-len(content) % max(1, section.alignment))
        header = {"sh_addr": 0, "sh_name": name_at, "sh_flags": section.flags, "sh_addralign": section.alignment}
        header |= {"sh_size": len(section.content), "sh_entsize": section.entry_bytes}
        header["sh_link"] = numbers[section.link]
        header["sh_info"] = section.info if isinstance(section.info, int) else numbers[section.info]
        header["sh_offset"] = len(content) if section.content else 0
        headers.append(structs.Elf_Shdr.build(Container(sh_type=section.kind, **header)))
        content += section.content
        name_at += len(section.name) + 1
    content += bytes(-len(content) % _POINTER_BYTES)
    content[:header_bytes] = _file_header(headers_at=len(content), sections=len(every))
    return bytes(content) + b"".join(headers)


def _file_header(*, headers_at: int, sections: int) -> bytes:
    """Return the ELF header of a file with the section headers at a byte; the last section has their names."""
    structs = _structs()
    ident = {
        "EI_MAG": b"\x7fELF",
        "EI_CLASS": "ELFCLASS64",
        "EI_DATA": "ELFDATA2LSB",
        "EI_VERSION": "EV_CURRENT",
        "EI_OSABI": "ELFOSABI_SYSV",
        "EI_ABIVERSION": _ABI_VERSION,
    }
    header: bytes = structs.Elf_Ehdr.build(
        Container(
            e_ident=Container(**ident),
            e_type="ET_REL",
            e_machine=_MACHINE,
            e_version="EV_CURRENT",
            e_shoff=headers_at,
            e_ehsize=structs.Elf_Ehdr.sizeof(),
            e_shentsize=structs.Elf_Shdr.sizeof(),
            e_shnum=sections,
            e_shstrndx=sections - 1,
            **dict.fromkeys(("e_entry", "e_phoff", "e_flags", "e_phentsize", "e_phnum"), 0),
        )
    )
    return header
