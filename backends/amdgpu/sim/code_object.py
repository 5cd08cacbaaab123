"""AMD HSA code objects: ELF, kernel descriptors, metadata notes and disassembly (LLVM AMDGPUUsage)."""

from __future__ import annotations

import struct
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgpack
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from convgen.backends.amdgpu.sim.archs import Arch, arch_of_flags
from convgen.backends.amdgpu.sim.decode import Instruction, parse_disassembly
from convgen.backends.sim import elf as elf_files
from convgen.backends.sim.errors import SimulatorError, Unsupported, reading, within
from convgen.backends.simulation import Parameter, Signature
from convgen.backends.toolchain import LLVM_OBJDUMP, llvm_for, run
from convgen.ir.record import frozen

MOST_IMAGE = 1 << 26  #: bytes of loadable segments; shipped libraries of many kernels have some ten million
_MOST_METADATA = 1 << 23  #: bytes; a kernel has about two thousand
_ALLOCATED, _WRITABLE = 2, 2  #: SHF_ALLOC and PF_W
MOST_ARGUMENTS = 1 << 16  #: bytes of an argument block; runtimes allow fewer
#: Relocation type -> first bit of the address to store, bytes to store (AMDGPUUsage, "Relocations").
_RELOCATIONS: Mapping[int, tuple[int, int]] = {1: (0, 4), 2: (32, 4), 3: (0, 8), 6: (0, 4), 13: (0, 8)}
#: bytes; scratch of a lane where recursion or indirect calls hide the stack's depth from the compiler
DYNAMIC_STACK = 1 << 14
PRELOAD_SKIP = 256  #: bytes behind the entry symbol where a kernel with preloaded arguments begins


@frozen
class Descriptor:
    """The fields of a kernel descriptor that shape a wave (AMDGPUUsage, "Code Object V3 Kernel Descriptor")."""

    group_segment: int  #: bytes of LDS of a workgroup
    private_segment: int  #: bytes of scratch of a lane
    kernarg_size: int  #: bytes
    entry: int  #: address of the first instruction
    vgprs: int  #: allocated vector registers of both kinds
    sgprs: int
    accum_offset: int  #: index of a0 in the unified register file
    tg_split: bool  #: whether waves of a workgroup may run on different compute units
    user_sgprs: int
    workgroup_id: tuple[bool, bool, bool]
    workgroup_info: bool
    private_wave_offset: bool
    work_item_dims: int  #: 1, 2 or 3 ids packed in v0
    private_buffer: bool
    dispatch_ptr: bool
    queue_ptr: bool
    kernarg_ptr: bool
    dispatch_id: bool
    flat_scratch_init: bool
    private_size: bool
    preload_length: int  #: dwords
    preload_offset: int  #: dwords

    @classmethod
    def parse(cls, raw: bytes, address: int) -> Descriptor:
        group, private, kernarg = struct.unpack_from("<III", raw, 0)
        (entry_offset,) = struct.unpack_from("<q", raw, 16)
        rsrc3, rsrc1, rsrc2 = struct.unpack_from("<III", raw, 44)
        properties, preload = struct.unpack_from("<HH", raw, 56)
        if properties >> 10 & 1:
            raise SimulatorError("wave32 kernels do not exist on CDNA")
        return cls(
            group_segment=group,
            private_segment=max(private, DYNAMIC_STACK) if properties >> 11 & 1 else private,
            kernarg_size=within(kernarg, 0, MOST_ARGUMENTS, "kernarg_size"),
            entry=address + entry_offset,
            vgprs=((rsrc1 & 0x3F) + 1) * 8,
            sgprs=((rsrc1 >> 6 & 0xF) // 2 + 1) * 16,
            accum_offset=((rsrc3 & 0x3F) + 1) * 4,
            tg_split=bool(rsrc3 >> 16 & 1),
            user_sgprs=rsrc2 >> 1 & 0x1F,
            workgroup_id=(bool(rsrc2 >> 7 & 1), bool(rsrc2 >> 8 & 1), bool(rsrc2 >> 9 & 1)),
            workgroup_info=bool(rsrc2 >> 10 & 1),
            private_wave_offset=bool(rsrc2 & 1),
            work_item_dims=(rsrc2 >> 11 & 3) + 1,
            private_buffer=bool(properties & 1),
            dispatch_ptr=bool(properties >> 1 & 1),
            queue_ptr=bool(properties >> 2 & 1),
            kernarg_ptr=bool(properties >> 3 & 1),
            dispatch_id=bool(properties >> 4 & 1),
            flat_scratch_init=bool(properties >> 5 & 1),
            private_size=bool(properties >> 6 & 1),
            preload_length=preload & 0x7F,
            preload_offset=preload >> 7,
        )


#: Entries of a kernel's metadata that are numbers, and the most that each may be.
_NUMBERS: Mapping[str, int] = {
    **dict.fromkeys((".vgpr_count", ".agpr_count", ".sgpr_count"), 1 << 12),
    **dict.fromkeys((".group_segment_fixed_size", ".private_segment_fixed_size"), (1 << 32) - 1),
    ".kernarg_segment_size": MOST_ARGUMENTS,
    ".max_flat_workgroup_size": 1 << 16,
}


@frozen(eq=False)
class KernelInfo:
    """One kernel of a code object."""

    name: str
    descriptor: Descriptor
    metadata: Mapping[str, Any]
    entry: int  #: index into `instructions` of the first one
    instructions: tuple[Instruction, ...]  #: the whole text section

    @property
    def hidden_args(self) -> tuple[tuple[str, int, int], ...]:
        """Return (value kind, offset, size) of the arguments that the runtime fills in."""
        return tuple(
            (arg[".value_kind"], int(arg[".offset"]), int(arg[".size"]))
            for arg in self.metadata.get(".args", ())
            if str(arg[".value_kind"]).startswith("hidden_")
        )

    @property
    def signature(self) -> Signature:
        """Return the arguments that a launch sets; the runtime sets those that metadata calls hidden."""
        given = [arg for arg in self.metadata.get(".args", ()) if not str(arg[".value_kind"]).startswith("hidden_")]
        parameters = (
            Parameter(
                str(arg.get(".name", "")),
                int(arg[".offset"]),
                int(arg[".size"]),
                arg[".value_kind"] == "global_buffer",
                str(arg.get(".type_name", "")),
            )
            for arg in given
        )
        return Signature(self.name, tuple(parameters), self.descriptor.group_segment)


@frozen
class Patch:
    """A relocation: a word of the image that holds an address, known once the image is placed."""

    place: int
    value: int
    moves: bool  #: whether the image's place is added to the value
    shift: int
    size: int  #: bytes


@frozen(eq=False)
class CodeObject:
    """A loaded code object: its architecture, its kernels and its memory image."""

    arch: Arch
    kernels: Mapping[str, KernelInfo]
    image: bytes  #: the loadable segments, laid out from virtual address 0
    patches: tuple[Patch, ...]
    variables: int  #: address of the first writable segment
    symbols: Mapping[str, int]  #: addresses by name, labels included
    raw: bytes

    @classmethod
    def load(cls, raw: bytes) -> CodeObject:
        """Read an ELF code object; equal bytes are read once. Raises SimulatorError, Unsupported."""
        return _load(bytes(raw))

    def line(self, address: int) -> str:
        """Return FILE:LINE of an instruction's source, "" without debug information."""
        starts, lines = source_lines(self.raw)
        at = bisect_right(starts, address) - 1
        return lines[at] if at >= 0 else ""

    def kernel(self, name: str) -> KernelInfo:
        info = self.kernels.get(name)
        if info is None:
            raise SimulatorError(f"no kernel {name!r} in the code object; it holds {', '.join(self.kernels)}")
        return info


@lru_cache(maxsize=8)
def _load(raw: bytes) -> CodeObject:
    if raw[:4] != b"\x7fELF":
        raise SimulatorError("not an ELF code object")
    with reading("the code object"):
        elf = elf_files.opened(raw)
        arch = arch_of_flags(int(elf["e_flags"]))
        image, patches, variables = _image(elf), tuple(_patches(elf)), _variables(elf)
        metadata = {str(kernel[".symbol"]): _checked(kernel) for kernel in _notes(elf).get("amdhsa.kernels", ())}
        tables = [section for section in elf.iter_sections() if isinstance(section, SymbolTableSection)]
        everything = [symbol for table in tables for symbol in table.iter_symbols() if symbol.name]
        places = {s.name: int(s["st_value"]) for s in everything}
        symbols = [symbol for symbol in everything if symbol.name.endswith(".kd")]
        descriptors = {s.name.removesuffix(".kd"): _descriptor(image, int(s["st_value"])) for s in symbols}
    instructions = parse_disassembly(_disassemble(raw, arch.name))
    by_address = {instruction.address: index for index, instruction in enumerate(instructions)}
    kernels: dict[str, KernelInfo] = {}
    for name, descriptor in descriptors.items():
        entry = descriptor.entry + (PRELOAD_SKIP if descriptor.preload_length else 0)
        if entry not in by_address:
            raise SimulatorError(f"kernel {name}.kd enters at {entry:#x}, where no instruction starts")
        kernels[name] = KernelInfo(name, descriptor, metadata.get(f"{name}.kd", {}), by_address[entry], instructions)
    return CodeObject(arch, kernels, image, patches, variables, places, raw)


@lru_cache(maxsize=8)
def source_lines(raw: bytes) -> tuple[list[int], list[str]]:
    """Return the ascending addresses at which source lines begin, and the lines as FILE:LINE ("" ends a sequence)."""
    with reading("the debug information"):
        elf = elf_files.opened(raw)
        if not elf.has_dwarf_info():
            return [], []
        info = elf.get_dwarf_info()
        line_at: dict[int, str] = {}
        for unit in info.iter_CUs():
            program = info.line_program_for_CU(unit)
            if program is None:
                continue
            names, first = program["file_entry"], int(program["version"] < 5)
            for state in filter(None, (entry.state for entry in program.get_entries())):
                name = names[state.file - first].name.decode(errors="replace")
                line_at[state.address] = "" if state.end_sequence or not state.line else f"{name}:{state.line}"
    starts = sorted(line_at)
    return starts, [line_at[start] for start in starts]


def _image(elf: ELFFile) -> bytes:
    """Return the loadable segments, laid out from virtual address 0."""
    segments = [s for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"]
    if not segments:
        raise SimulatorError("the code object is not linked: it has no loadable segments")
    size = max(int(s["p_vaddr"] + s["p_memsz"]) for s in segments)
    image = bytearray(within(size, 0, MOST_IMAGE, "segments that end at"))
    for segment in segments:
        start, content = int(segment["p_vaddr"]), segment.data()
        if len(content) != segment["p_filesz"] or len(content) > segment["p_memsz"]:
            raise SimulatorError("the code object is damaged: a segment is longer than the file, or than its memory")
        image[start : start + len(content)] = content
    return bytes(image)


def _patches(elf: ELFFile) -> Iterator[Patch]:
    """Yield the relocations of the image: addresses of variables and functions that the loader fills in."""
    for section in elf.iter_sections():
        if not isinstance(section, RelocationSection) or not section["sh_flags"] & _ALLOCATED:
            continue
        symbols = elf.get_section(section["sh_link"])
        for entry in section.iter_relocations():
            kind, number = int(entry["r_info_type"]), int(entry["r_info_sym"])
            if kind not in _RELOCATIONS:
                raise Unsupported(f"relocation type {kind} of the code object is not simulated")
            value, moves = int(entry["r_addend"]) if section.is_RELA() else 0, True
            if number:
                symbol = symbols.get_symbol(number)  # type: ignore[attr-defined]  # the symbol table that it links to
                defined = symbol["st_shndx"] != "SHN_UNDEF"
                if not defined and symbol["st_info"]["bind"] != "STB_WEAK":
                    raise SimulatorError(f"the code object needs {symbol.name!r}, which it does not define")
                value, moves = value + int(symbol["st_value"]), defined
            yield Patch(int(entry["r_offset"]), value, moves, *_RELOCATIONS[kind])


def _variables(elf: ELFFile) -> int:
    loaded = [s for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"]
    end = max((int(s["p_vaddr"] + s["p_memsz"]) for s in loaded), default=0)
    return min([end, *(int(s["p_vaddr"]) for s in loaded if s["p_flags"] & _WRITABLE)]) & ~3


def _descriptor(image: bytes, address: int) -> Descriptor:
    raw = image[address : address + 64]
    if len(raw) != 64:
        raise SimulatorError(f"a kernel descriptor at {address:#x}, outside the code object's segments")
    return Descriptor.parse(raw, address)


def _checked(kernel: Any) -> Mapping[str, Any]:
    """Return a kernel's metadata. Raises SimulatorError where it breaks the format of AMDGPUUsage."""
    for key, most in _NUMBERS.items():
        if key in kernel:
            within(kernel[key], 0, most, f"metadata {key}")
    for argument in kernel.get(".args", ()):
        end = within(argument[".offset"], 0, MOST_ARGUMENTS, "an argument's offset") + argument[".size"]
        within(end, 0, MOST_ARGUMENTS, "an argument that ends at")
        if not isinstance(argument[".value_kind"], str):
            raise SimulatorError("an argument's .value_kind is no text")
    return dict(kernel)


def _notes(elf: ELFFile) -> Mapping[str, Any]:
    """Return the metadata map of the NT_AMDGPU_METADATA note (type 32)."""
    for section in elf.iter_sections():
        if section["sh_type"] != "SHT_NOTE":
            continue
        data, at = section.data(), 0
        while at + 12 <= len(data):
            name_size, size, kind = struct.unpack_from("<III", data, at)
            at += 12 + (name_size + 3) // 4 * 4
            if kind == 32:
                within(size, 0, _MOST_METADATA, "bytes of metadata")
                unpacked: Mapping[str, Any] = msgpack.unpackb(data[at : at + size])
                return unpacked
            at += (size + 3) // 4 * 4
    return {}


def _disassemble(raw: bytes, processor: str) -> str:
    tool = LLVM_OBJDUMP.find(processor)
    if tool is None:
        wanted = f"{llvm_for(processor)}; {LLVM_OBJDUMP.how_to_install}"
        raise SimulatorError(f"no llvm-objdump found that decodes code objects for {processor} ({wanted})")
    with tempfile.TemporaryDirectory(prefix="convgen-") as folder:
        with open(Path(folder) / "kernels.hsaco", "wb") as file:
            file.write(raw)
        done = run((tool, "-d", "kernels.hsaco"), Path(folder))
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise SimulatorError(f"{Path(tool).name} cannot read the code object: {reason}")
    return done.stdout
