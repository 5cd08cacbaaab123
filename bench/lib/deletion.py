"""Which waits and barriers of a kernel the simulator misses when they are deleted, one at a time.

A wait that is executed only when nothing that it waits for is outstanding is no case: nothing is lost with it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from io import BytesIO

from elftools.elf.elffile import ELFFile

from convgen.backends.amdgpu.sim import CodeObject, Halt
from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.simulation import Scrutiny

S_NOP_0 = 0xBF800000
#: Runs a code object under scrutiny; gives whether anything was found or is wrong.
Noticed = Callable[[bytes, Scrutiny], bool]


def patched(code: bytes, address: int, word: int) -> bytes:
    """The code object with one instruction word replaced."""
    text = ELFFile(BytesIO(code)).get_section_by_name(".text")
    at = address - text["sh_addr"] + text["sh_offset"]
    return code[:at] + struct.pack("<I", word) + code[at + 4 :]


def executed(code: bytes, kernel: str, noticed: Noticed) -> list[Instruction]:
    """The barriers, and the waits behind something outstanding, that a run executes, in order of address."""
    info = CodeObject.load(code).kernel(kernel)
    at = {i.address - info.descriptor.entry: i for i in info.instructions}
    found: dict[int, Instruction] = {}

    def watch(halt: Halt) -> None:
        instruction = at[halt.pc]
        vm, lgkm = halt.outstanding
        word = instruction.words[0]
        waits = vm > (word & 0xF | word >> 10 & 0x30) or lgkm > (word >> 8 & 0xF)
        if instruction.name == "s_barrier" or (instruction.name == "s_waitcnt" and waits):
            found[instruction.address] = instruction

    noticed(code, Scrutiny(watch=watch))
    return [found[address] for address in sorted(found)]


def deletions(code: bytes, kernel: str, noticed: Noticed) -> Iterator[tuple[Instruction, bool]]:
    """Each such instruction, and whether a run without it is noticed."""
    for instruction in executed(code, kernel, noticed):
        yield instruction, noticed(patched(code, instruction.address, S_NOP_0), Scrutiny())
