"""Reading zebin code objects: ELF sections, the compatibility note, .ze_info.

Intel's zebin specification (IGC, ZEBinary documentation): one section .text.<kernel> a kernel, attributes in YAML.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from convgen.backends.intel.sim.decode import Instruction, disassemble
from convgen.backends.intel.sim.platforms import Platform, platform_of
from convgen.backends.sim import elf as elf_files
from convgen.backends.sim.errors import SimulatorError, reading, within
from convgen.ir.error import UserError
from convgen.ir.record import frozen
from convgen.ir.untrusted import shown, yaml_of

MACHINE = 205  # EM_INTELGT
MOST_PAYLOAD = 1 << 16  #: bytes of arguments; runtimes allow fewer
MOST_MEMORY = 1 << 24  #: bytes of local memory that are worth a finding; devices have up to 128 KiB


@frozen
class PayloadArgument:
    """A payload argument, which the runtime or, with an `index`, the host sets."""

    kind: str  #: `arg_type` of .ze_info
    offset: int  #: bytes
    size: int  #: bytes
    index: int = -1  #: number of the kernel argument that it belongs to


@frozen(eq=False)
class KernelInfo:
    """A kernel: its code and its entry in .ze_info."""

    name: str
    code: bytes
    simd: int  #: work-items of a thread
    registers: int  #: of a thread
    slm: int  #: bytes of local memory of a workgroup
    barriers: int
    inline_bytes: int  #: cross-thread data that arrives in registers
    skip_offset: int  #: bytes; entry for threads whose local ids the hardware generates
    local_id_bytes: int  #: per thread; 0 if the kernel reads none
    payload: tuple[PayloadArgument, ...]
    bindings: Mapping[int, int]  #: argument index by binding table index
    required_size: tuple[int, int, int] | None
    unfused: bool  #: the driver runs it without EU fusion (IGC, zeinfo.md, require_disable_eufusion)

    @property
    def payload_bytes(self) -> int:
        """Return the bytes of cross-thread data, in whole blocks of 32, with the inline part."""
        end = max([item.offset + item.size for item in self.payload] + [0])
        return (end + 31) // 32 * 32


@frozen(eq=False)
class CodeObject:
    """A code object's kernels and platform."""

    platform: Platform
    kernels: Mapping[str, KernelInfo]

    @classmethod
    def load(cls, data: bytes) -> CodeObject:
        """Parse a zebin. Raises SimulatorError."""
        return _load(data)

    def kernel(self, name: str) -> KernelInfo:
        """Return the kernel of a name."""
        if name not in self.kernels:
            raise SimulatorError(f"no kernel {name!r} in the code object; it has {', '.join(self.kernels) or 'none'}")
        return self.kernels[name]

    def instructions(self, name: str) -> tuple[Instruction, ...]:
        """Return a kernel's instructions."""
        with reading(f"the code of kernel {name!r}"):
            return disassemble(self.kernel(name).code, self.platform)


@lru_cache(maxsize=8)
def _load(data: bytes) -> CodeObject:
    if data[:4] != b"\x7fELF":
        raise SimulatorError("not a code object: not an ELF file")
    with reading("the code object"):
        elf = elf_files.opened(data)
        machine = elf.header["e_machine"]
        if machine not in (MACHINE, "EM_INTEL205", "EM_INTELGT"):
            raise SimulatorError(f"not an Intel code object: machine {machine}, {MACHINE} wanted")
        sections = {
            section.name: section.data() for section in elf.iter_sections() if section["sh_type"] != "SHT_NOBITS"
        }
        platform = platform_of(*_compatibility(sections.get(".note.intelgt.compat")))
    if ".ze_info" not in sections:
        raise SimulatorError("the code object has no .ze_info")
    info = _parsed(sections[".ze_info"].rstrip(b"\0"))
    try:
        return CodeObject(platform, _kernels(info, sections))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise SimulatorError(f".ze_info is not as the zebin specification wants it: {shown(error, 200)}") from None


@lru_cache(maxsize=64)
def _parsed(info: bytes) -> Any:
    """Parse a .ze_info; the result is cached, so callers must not change it. Raises SimulatorError."""
    try:
        return yaml_of(info, ".ze_info")
    except UserError as error:
        raise SimulatorError(str(error)) from None


def _kernels(info: Any, sections: Mapping[str, bytes]) -> Mapping[str, KernelInfo]:
    kernels = {}
    for entry in info["kernels"]:
        name = entry["name"]
        if f".text.{name}" not in sections:
            given = shown(name)
            raise SimulatorError(f"kernel '{given}' has no section .text.{given}")
        kernels[name] = _kernel(entry, sections[f".text.{name}"])
    return kernels


def _compatibility(note: bytes | None) -> tuple[int | None, int | None]:
    """Return product family and graphics core family of the compatibility note; None where it has none."""
    if note is None:
        raise SimulatorError("the code object has no .note.intelgt.compat, so its platform is unknown")
    fields: dict[int, int] = {}
    at = 0
    while at + 12 <= len(note):
        name_size, size, kind = struct.unpack_from("<III", note, at)
        at += 12
        owner = note[at : at + name_size]
        at += (name_size + 3) // 4 * 4
        if owner.rstrip(b"\0") == b"IntelGT" and size == 4:
            fields[kind] = struct.unpack_from("<I", note, at)[0]
        at += (size + 3) // 4 * 4
    return fields.get(1) or None, fields.get(2) or None


def _kernel(entry: Mapping[str, Any], code: bytes) -> KernelInfo:
    """Return a kernel from its entry in .ze_info. Raises SimulatorError."""
    environment = entry.get("execution_env") or {}
    if "simd_size" not in environment:
        raise SimulatorError(f"kernel {entry['name']!r} does not say its simd_size")
    per_thread = entry.get("per_thread_payload_arguments") or []
    size = environment.get("required_work_group_size")

    def number(key: str, default: int, most: int) -> int:
        return within(environment.get(key, default), 0, most, key)

    def place(key: str, item: Mapping[str, Any]) -> int:
        return within(item[key], 0, MOST_PAYLOAD, f"{key} of an argument")

    simd = number("simd_size", 0, 32)
    if simd not in (1, 8, 16, 32):
        raise SimulatorError(f"kernel {entry['name']!r}: simd_size {simd}; 1, 8, 16 or 32 are possible")
    return KernelInfo(
        name=str(entry["name"]),
        code=code,
        simd=simd,
        registers=number("grf_count", 128, 512),
        slm=number("slm_size", 0, MOST_MEMORY),
        barriers=number("barrier_count", 0, 64),
        inline_bytes=number("inline_data_payload_size", 0, MOST_PAYLOAD),
        skip_offset=number("offset_to_skip_per_thread_data_load", 0, MOST_MEMORY),
        local_id_bytes=sum(place("size", item) for item in per_thread if item["arg_type"] == "local_id"),
        payload=tuple(
            PayloadArgument(
                str(item["arg_type"]),
                place("offset", item),
                place("size", item),
                within(item.get("arg_index", -1), -1, 1 << 12, "arg_index"),
            )
            for item in entry.get("payload_arguments") or []
        ),
        bindings={item["bti_value"]: item["arg_index"] for item in entry.get("binding_table_indices") or []},
        required_size=None if size is None else _extents(size),
        unfused=environment.get("require_disable_eufusion") is True,
    )


def _extents(size: Sequence[Any]) -> tuple[int, int, int]:
    x, y, z = (within(extent, 0, 1024, "required_work_group_size") for extent in size)
    return x, y, z
