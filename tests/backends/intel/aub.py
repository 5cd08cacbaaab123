"""What the GPU would see of a launch, read from an AUB file: the driver's trace of all that it writes to memory.

Packets: compute-runtime, aub_mem_dump/definitions/aub_services.h. Commands: its hw_cmds_generated for the Xe cores
(COMPUTE_WALKER with INTERFACE_DESCRIPTOR_DATA from dword 18, STATE_BASE_ADDRESS, STATE_COMPUTE_MODE).
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence

import attrs

_MEMORY_WRITE = 7 << 29 | 0x2E << 23 | 6 << 16  # header without the dword count
_WRITE_HEAD = struct.Struct("<5I")  # header, address low and high, flags, bytes
_LOCAL, _SYSTEM = 1, 2  #: address spaces, in bits 31:28 of the flags
_ROOT_TABLE = 68  #: the hint, in bits 27:20, of a write to a page table of the outermost level

_PAGE = 4096
_LEVELS = (39, 30, 21, 12)  #: lowest address bit that each page table resolves
_PRESENT, _IN_LOCAL = 1 << 0, 1 << 11  #: bits of an entry
_FRAME = 0x0000_FFFF_FFFF_F000

_WALKER, _WALKER_DWORDS = 0x72080025, 39
_BASES, _BASES_DWORDS = 0x61010014, 22
_MODE, _MODE_DWORDS = 0x61050000, 2
_LARGE_REGISTERS = 1 << 15

#: Encoding of a workgroup's local memory -> KiB.
_SLM_KIB = (0, 1, 2, 4, 8, 16, 32, 64, 24, 48, 96, 128)


@attrs.frozen
class Dispatch:
    """One COMPUTE_WALKER with the memory that it leads to."""

    grid: tuple[int, int, int]  #: workgroups
    threads: int  #: of a workgroup
    simd_size: int
    lanes: int  #: execution mask of the last thread
    slm_bytes: int  #: what a workgroup gets, at least what it asks for
    barriers: int
    inline: bytes | None  #: inline data, if threads get any
    local_ids: bool  #: whether the hardware makes local ids
    payload: bytes  #: indirect data, read where r0.0 of a thread points
    code_address: int

    @classmethod
    def of(cls, walker: Sequence[int], payload: bytes, code_base: int) -> Dispatch:
        mode, descriptor = walker[4], walker[18:26]
        x, y, z = walker[7:10]
        return cls(
            grid=(x, y, z),
            threads=descriptor[5] & 0x3FF,
            simd_size=8 << (mode >> 30),
            lanes=walker[5],
            slm_bytes=_SLM_KIB[descriptor[5] >> 16 & 0x1F] * 1024,
            barriers=descriptor[5] >> 28 & 7,
            inline=struct.pack("<8I", *walker[31:39]) if mode >> 25 & 1 else None,
            local_ids=bool(mode >> 26 & 0xF),
            payload=payload,
            code_address=code_base + descriptor[0],
        )


class Trace:
    """Memory as the GPU's page tables show it after the whole trace, and the launches in it."""

    def __init__(self, aub: bytes) -> None:
        physical, roots = _physical_memory(aub)
        self._pages = {
            address: bytes(physical[place])
            for root in roots
            for address, place in _mapped(physical, root)
            if place in physical
        }
        stretches = list(self._stretches())
        ((general, code),) = {
            ((bases[1] | bases[2] << 32) & -_PAGE, (bases[10] | bases[11] << 32) & -_PAGE)
            for bases in _commands(stretches, _BASES, _BASES_DWORDS)
        }
        #: In the order of their commands in memory, which is that of a short command list.
        self.dispatches = tuple(
            Dispatch.of(walker, self.read(general + (walker[3] & ~0x3F), walker[2] & 0x1FFFF), code)
            for walker in _commands(stretches, _WALKER, _WALKER_DWORDS)
        )
        #: Whether threads have 256 registers.
        self.large_registers = any(v & _LARGE_REGISTERS for _, v in _commands(stretches, _MODE, _MODE_DWORDS))

    def read(self, address: int, size: int) -> bytes:
        """Bytes at a virtual address; KeyError where nothing was written."""
        first = address & -_PAGE
        pages = [self._pages[page] for page in range(first, address + size, _PAGE)]
        return b"".join(pages)[address - first :][:size]

    def _stretches(self) -> Iterator[bytes]:
        """Memory in pieces without holes."""
        pages: list[bytes] = []
        end = 0
        for address in sorted(self._pages):
            if address != end and pages:
                yield b"".join(pages)
                pages = []
            pages.append(self._pages[address])
            end = address + _PAGE
        yield b"".join(pages)


def _physical_memory(aub: bytes) -> tuple[dict[tuple[int, int], bytearray], set[int]]:
    """The pages written by (space, address), and the addresses of the outermost page tables."""
    pages: defaultdict[tuple[int, int], bytearray] = defaultdict(lambda: bytearray(_PAGE))
    roots = set()
    at = 0
    while at < len(aub):
        (header,) = struct.unpack_from("<I", aub, at)
        if header & ~0xFFFF == _MEMORY_WRITE:
            _, low, high, flags, size = _WRITE_HEAD.unpack_from(aub, at)
            address, space = low | high << 32, flags >> 28
            data = memoryview(aub)[at + _WRITE_HEAD.size :][:size]
            for start in range(address & -_PAGE, address + size, _PAGE):
                first, end = max(start, address), min(start + _PAGE, address + size)
                pages[space, start][first - start : end - start] = data[first - address : end - address]
            if flags >> 20 & 0xFF == _ROOT_TABLE:
                roots.add(address & -_PAGE)
        at += 4 * ((header & 0xFFFF) + 1)
    return dict(pages), roots


def _mapped(
    physical: dict[tuple[int, int], bytearray], table: int, base: int = 0, level: int = 0
) -> Iterator[tuple[int, tuple[int, int]]]:
    """The virtual address of each page under a page table, and where the page is."""
    entries = struct.unpack("<512Q", physical.get((_LOCAL, table), bytes(_PAGE)))
    for index, entry in enumerate(entries):
        if entry & _PRESENT:
            address = base | index << _LEVELS[level]
            if level + 1 < len(_LEVELS):
                yield from _mapped(physical, entry & _FRAME, address, level + 1)
            else:
                yield address, (_LOCAL if entry & _IN_LOCAL else _SYSTEM, entry & _FRAME)


def _commands(stretches: Sequence[bytes], header: int, dwords: int) -> Iterator[tuple[int, ...]]:
    """Every command of one kind."""
    mark = header.to_bytes(4, "little")
    for memory in stretches:
        at = memory.find(mark)
        while at >= 0:
            if at % 4 == 0 and at + 4 * dwords <= len(memory):
                yield struct.unpack_from(f"<{dwords}I", memory, at)
            at = memory.find(mark, at + 1)
