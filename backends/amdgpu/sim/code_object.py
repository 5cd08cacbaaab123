"""AMD HSA code objects: ELF, kernel descriptors, metadata notes and disassembly (LLVM AMDGPUUsage)."""

from __future__ import annotations

import io
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs
import msgpack
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from convgen.backends.amdgpu.sim.archs import Arch, arch_of_flags
from convgen.backends.amdgpu.sim.decode import Instruction, parse_disassembly
from convgen.backends.sim.errors import SimulatorError
from convgen.backends.toolchain import LLVM_OBJDUMP

PRELOAD_SKIP = 256  #: hardware with kernarg preload enters this many bytes behind the entry symbol


@attrs.frozen
class Descriptor:
    """The fields of a kernel descriptor that shape a wave (AMDGPUUsage, "Code Object V3 Kernel Descriptor")."""

    group_segment: int
    private_segment: int
    kernarg_size: int
    entry: int  #: address of the first instruction
    vgprs: int  #: allocated vector registers of both kinds
    sgprs: int
    accum_offset: int  #: index of a0 in the unified register file
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
    round_mode: int
    denorm_f32: int

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
            private_segment=private,
            kernarg_size=kernarg,
            entry=address + entry_offset,
            vgprs=((rsrc1 & 0x3F) + 1) * 8,
            sgprs=((rsrc1 >> 6 & 0xF) // 2 + 1) * 16,
            accum_offset=((rsrc3 & 0x3F) + 1) * 4,
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
            round_mode=rsrc1 >> 12 & 0xF,
            denorm_f32=rsrc1 >> 16 & 3,
        )


@attrs.frozen(eq=False)
class KernelInfo:
    """One kernel of a code object."""

    name: str
    descriptor: Descriptor
    metadata: Mapping[str, Any]
    entry: int  #: index into `instructions` of the first one
    instructions: tuple[Instruction, ...]  #: the whole text section

    @property
    def hidden_args(self) -> tuple[tuple[str, int, int], ...]:
        """(value kind, offset, size) of the arguments that the runtime fills in."""
        return tuple(
            (arg[".value_kind"], int(arg[".offset"]), int(arg[".size"]))
            for arg in self.metadata.get(".args", ())
            if str(arg[".value_kind"]).startswith("hidden_")
        )


@attrs.frozen(eq=False)
class CodeObject:
    """A loaded code object: its architecture, its kernels and its memory image."""

    arch: Arch
    kernels: Mapping[str, KernelInfo]
    image: bytes  #: the loadable segments, laid out from virtual address 0

    @classmethod
    def load(cls, raw: bytes) -> CodeObject:
        """Read an ELF code object. The disassembly of equal bytes is kept."""
        return _load(bytes(raw))

    def kernel(self, name: str) -> KernelInfo:
        info = self.kernels.get(name)
        if info is None:
            raise SimulatorError(f"no kernel {name!r} in the code object; it holds {', '.join(self.kernels)}")
        return info


@lru_cache(maxsize=8)
def _load(raw: bytes) -> CodeObject:
    try:
        elf = ELFFile(io.BytesIO(raw))
    except ELFError as error:
        raise SimulatorError(f"not an ELF code object: {error}") from error
    arch = arch_of_flags(int(elf["e_flags"]))
    segments = [s for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"]
    if not segments:
        raise SimulatorError("the code object is not linked: it has no loadable segments")
    image = bytearray(max(int(s["p_vaddr"] + s["p_memsz"]) for s in segments))
    for segment in segments:
        start = int(segment["p_vaddr"])
        image[start : start + int(segment["p_filesz"])] = segment.data()
    metadata = {str(kernel[".symbol"]): kernel for kernel in _notes(elf).get("amdhsa.kernels", ())}
    instructions = parse_disassembly(_disassemble(raw))
    by_address = {instruction.address: index for index, instruction in enumerate(instructions)}
    kernels: dict[str, KernelInfo] = {}
    tables = [section for section in elf.iter_sections() if isinstance(section, SymbolTableSection)]
    for symbol in (symbol for table in tables for symbol in table.iter_symbols()):
        if not symbol.name.endswith(".kd"):
            continue
        address = int(symbol["st_value"])
        descriptor = Descriptor.parse(bytes(image[address : address + 64]), address)
        entry = descriptor.entry + (PRELOAD_SKIP if descriptor.preload_length and arch.kernarg_preload else 0)
        if entry not in by_address:
            raise SimulatorError(f"kernel {symbol.name} enters at {entry:#x}, where no instruction starts")
        name = symbol.name.removesuffix(".kd")
        kernels[name] = KernelInfo(name, descriptor, metadata.get(symbol.name, {}), by_address[entry], instructions)
    return CodeObject(arch, kernels, bytes(image))


def _notes(elf: ELFFile) -> Mapping[str, Any]:
    """The metadata map of the NT_AMDGPU_METADATA note (type 32)."""
    for section in elf.iter_sections():
        if section["sh_type"] != "SHT_NOTE":
            continue
        data, at = section.data(), 0
        while at + 12 <= len(data):
            name_size, size, kind = struct.unpack_from("<III", data, at)
            at += 12 + (name_size + 3) // 4 * 4
            if kind == 32:
                unpacked: Mapping[str, Any] = msgpack.unpackb(data[at : at + size])
                return unpacked
            at += (size + 3) // 4 * 4
    return {}


def _disassemble(raw: bytes) -> str:
    tool = LLVM_OBJDUMP.find()
    if tool is None:
        raise SimulatorError(f"no llvm-objdump found ({LLVM_OBJDUMP.wanted}), which decodes code objects")
    with tempfile.NamedTemporaryFile(suffix=".hsaco") as file:
        file.write(raw)
        file.flush()
        done = subprocess.run([tool, "-d", file.name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SimulatorError(f"{Path(tool).name} failed: {done.stderr.strip()}")
    return done.stdout
