"""What the GPU would see of a launch, read from an AUB file: the driver's trace of all that it writes to memory.

Packets: compute-runtime, aub_mem_dump/definitions/aub_services.h. Commands: its hw_cmds_generated for the Xe cores
(COMPUTE_WALKER with INTERFACE_DESCRIPTOR_DATA from dword 18, STATE_BASE_ADDRESS, STATE_COMPUTE_MODE).
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator

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


@attrs.frozen
class Dispatch:
    """One COMPUTE_WALKER with the memory that it leads to."""

    grid: tuple[int, int, int]  #: workgroups
    threads: int  #: of a workgroup
    simd_size: int
    lanes: int  #: execution mask of the last thread
    slm_bytes: int
    barriers: int
    inline: bytes | None  #: inline data, if threads get any
    local_ids: bool  #: whether the hardware makes local ids
    payload: bytes  #: indirect data, read where r0.0 of a thread points
    code_address: int

    @classmethod
    def of(cls, walker: tuple[int, ...], payload: bytes, code_base: int) -> Dispatch:
        mode, descriptor = walker[4], walker[18:26]
        slm = descriptor[5] >> 16 & 0x1F
        x, y, z = walker[7:10]
        return cls(
            grid=(x, y, z),
            threads=descriptor[5] & 0x3FF,
            simd_size=8 << (mode >> 30),
            lanes=walker[5],
            slm_bytes=512 << slm if slm else 0,
            barriers=descriptor[5] >> 28 & 7,
            inline=struct.pack("<8I", *walker[31:39]) if mode >> 25 & 1 else None,
            local_ids=bool(mode >> 26 & 0xF),
            payload=payload,
            code_address=code_base + descriptor[0],
        )


class Trace:
    """Memory as the whole trace leaves it, and the launches in it."""

    def __init__(self, aub: bytes) -> None:
        self._pages: defaultdict[tuple[int, int], bytearray] = defaultdict(lambda: bytearray(_PAGE))
        self._roots: set[int] = set()
        commands = [command for write in self._writes(aub) for command in self._commands(*write)]
        self.dispatches = tuple(self._dispatches(commands))
        #: Whether threads have 256 registers.
        self.large_registers = any(head == _MODE and value & _LARGE_REGISTERS for head, value, *_ in commands)

    def _writes(self, aub: bytes) -> Iterator[tuple[int, int, bytes]]:
        """(space, address, data) of each write, which is applied."""
        at = 0
        while at < len(aub):
            (header,) = struct.unpack_from("<I", aub, at)
            if header & ~0xFFFF == _MEMORY_WRITE:
                _, low, high, flags, size = _WRITE_HEAD.unpack_from(aub, at)
                address, space = low | high << 32, flags >> 28
                data = aub[at + _WRITE_HEAD.size :][:size]
                for start in range(address & -_PAGE, address + size, _PAGE):
                    first, end = max(start, address), min(start + _PAGE, address + size)
                    page = self._pages[space, start]
                    page[first - start : end - start] = data[first - address : end - address]
                if flags >> 20 & 0xFF == _ROOT_TABLE:
                    self._roots.add(address & -_PAGE)
                yield space, address, data
            at += 4 * ((header & 0xFFFF) + 1)

    @staticmethod
    def _commands(space: int, address: int, data: bytes) -> Iterator[tuple[int, ...]]:
        """The commands in one write that matter here; no command is split over two."""
        words = struct.unpack(f"<{len(data) // 4}I", data[: len(data) // 4 * 4])
        for at, word in enumerate(words):
            for head, size in ((_WALKER, _WALKER_DWORDS), (_BASES, _BASES_DWORDS), (_MODE, _MODE_DWORDS)):
                if word == head and at + size <= len(words):
                    yield words[at : at + size]

    def _dispatches(self, commands: list[tuple[int, ...]]) -> Iterator[Dispatch]:
        """The walkers. Buffers are not traced in the order of execution; all state is set once, before the first."""
        general, code = next(
            ((low | high << 32) & -_PAGE, (code_low | code_high << 32) & -_PAGE)
            for head, low, high, *_, code_low, code_high in (command[:12] for command in commands)
            if head == _BASES
        )
        for command in commands:
            if command[0] == _WALKER:
                payload = self.read(general + (command[3] & ~0x3F), command[2] & 0x1FFFF)
                yield Dispatch.of(command, payload, code)

    def read(self, address: int, size: int) -> bytes:
        """Bytes at a virtual address; LookupError where nothing is mapped."""
        out = b""
        while len(out) < size:
            space, physical = self._translate(address + len(out))
            start = physical % _PAGE
            out += self._pages[space, physical - start][start : start + size - len(out)]
        return out

    def _translate(self, address: int) -> tuple[int, int]:
        for root in self._roots:
            frame, entry = root, _PRESENT
            for level in _LEVELS:
                (entry,) = struct.unpack_from("<Q", self._pages[_LOCAL, frame], 8 * (address >> level & 0x1FF))
                if not entry & _PRESENT:
                    break
                frame = entry & _FRAME
            else:
                return _LOCAL if entry & _IN_LOCAL else _SYSTEM, frame | address % _PAGE
        raise LookupError(f"{address:#x} is not mapped")
