"""List the instructions of gfx90a, gfx942 and gfx950 that LLVM decodes and the simulator refuses, by mnemonic.

Every opcode of every encoding is filled with a few choices of operands and disassembled; the simulator compiles what
LLVM knows. A mnemonic counts as known if any of its forms is. Exit codes: 0; 2 the request is wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from convgen.backends.amdgpu.sim.archs import ARCHS, Arch
from convgen.backends.amdgpu.sim.code_object import Descriptor, KernelInfo
from convgen.backends.amdgpu.sim.compile import Program
from convgen.backends.amdgpu.sim.decode import parse_instruction
from convgen.backends.sim.errors import STUMBLES
from convgen.ir.error import ConvgenError
from convgen.ir.record import fields_of

Words = tuple[int, ...]
V = 256  #: of vector registers among the sources
LITERAL, SDWA, DPP = 255, 249, 250
_SDWA_WORD = 16 | 6 << 8 | 6 << 16 | 6 << 24
_LINE = re.compile(r"\t(?P<text>.*?)\s*; encoding: \[(?P<bytes>[^\]]*)\]")


def scalar() -> Iterator[Words]:
    """SOP2, SOPK, SOP1, SOPC, SOPP and SMEM (CDNA3 ISA 13.1 to 13.2)."""
    for op in range(96):
        yield (2 << 30 | op << 23 | 20 << 16 | 12 << 8 | 8,)
    for op in range(32):
        yield (0xB << 28 | op << 23 | 20 << 16 | 0x1801,)
        yield (0xB << 28 | op << 23 | 20 << 16 | 0xF801, 1)
    for op in range(256):
        yield (0x17D << 23 | 20 << 16 | op << 8 | 8,)
    for op in range(128):
        yield (0x17E << 23 | op << 16 | 12 << 8 | 8,)
        yield (0x17E << 23 | op << 16 | 128 << 8 | 128,)
        yield (0x17F << 23 | op << 16 | 1,)
    for op in range(256):
        for immediate in (0, 1):
            yield (0x30 << 26 | op << 18 | immediate << 17 | 20 << 6 | 4, 8)


def vector() -> Iterator[Words]:
    """VOP1, VOPC, VOP2 with their SDWA and DPP forms, and VOP3 (13.3)."""
    controls = [16 | control << 8 | 0xFF << 24 for control in (0x101, 0x151)]  # row_shl:1, row_newbcast:1
    for op in range(256):
        for base in (0x3F << 25 | 8 << 17 | op << 9, 0x3E << 25 | op << 17 | 32 << 9):
            yield (base | V + 16,)
            yield (base | SDWA, _SDWA_WORD)
            yield from ((base | DPP, control) for control in controls)
    for op in range(62):
        base = op << 25 | 8 << 17 | 32 << 9
        yield (base | V + 16,)
        yield (base | V + 16, 0x3F800000)
        yield (base | SDWA, _SDWA_WORD)
        yield from ((base | DPP, control) for control in controls)
    sources = (
        (V + 16, V + 32, V + 48),
        (V + 16, V + 32, 0),
        (V + 16, 0, 0),
        (V + 16, V + 32, 8),
        (V + 16, 8, 0),
        (8, 8, 0),
    )
    for op in range(1024):
        for first in (0x34 << 26 | op << 16 | d | carry for d in (64, 20) for carry in (0, 24 << 8)):
            yield from ((first, a | b << 9 | c << 18) for a, b, c in sources)


def packed() -> Iterator[Words]:
    """VOP3P, matrix instructions among them, with and without scales (13.3.6)."""
    sources = ((V + 16, V + 32, V + 64), (V + 16, V + 32, 0), (V + 16, 0, 0), (V + 32, 8, 0))
    for op in range(128):
        base = 0x1A7 << 23 | op << 16 | 64
        for a, b, c in sources:
            yield (base | 1 << 14, a | b << 9 | c << 18 | 3 << 27)
            yield (base, a | b << 9 | c << 18)
    for op in (0x2D, 0x2E):
        for kind in (0, 4):
            matrix = (0x1A7 << 23 | op << 16 | 64 | kind << 8, V + 16 | (V + 32) << 9 | (V + 64) << 18 | kind << 29)
            yield (0xD3AC0000, V + 50 | (V + 51) << 9, *matrix)


def memory() -> Iterator[Words]:
    """DS, FLAT, MUBUF and MTBUF (13.4 to 13.6)."""
    for op in range(256):
        for second in (
            16 | 32 << 8 | 48 << 16 | 64 << 24,
            16 | 32 << 8 | 48 << 16,
            16 | 32 << 8,
            16,
            16 | 64 << 24,
            64 << 24,
            0,
        ):
            yield (0x36 << 26 | op << 17, second)
    seconds = [16 | d << 8 | base << 16 | t << 24 for base in (0x7F, 8) for d, t in ((32, 64), (32, 0), (0, 64))]
    for op in range(128):
        for first in (op << 18 | segment << 14 | returns << 16 for segment in range(3) for returns in (0, 1)):
            yield from ((0x37 << 26 | first, second) for second in seconds)
    for op in range(128):
        for bits in (0, 1 << 16, 1 << 14):
            yield (0x38 << 26 | op << 18 | bits | 1 << 12, 16 | 64 << 8 | 2 << 16 | 20 << 24)
    for op in range(16):
        yield (0x3A << 26 | 7 << 23 | 4 << 19 | op << 15 | 1 << 12, 16 | 64 << 8 | 2 << 16 | 20 << 24)


def decoded(arch: str) -> dict[str, list[tuple[Words, str]]]:
    """All forms that LLVM decodes, by mnemonic."""
    everything = dict.fromkeys((*scalar(), *vector(), *packed(), *memory()))
    lines = (" ".join(f"0x{byte:02x}" for word in words for byte in word.to_bytes(4, "little")) for words in everything)
    command = ("llvm-mc-22", "--disassemble", "-triple=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-show-encoding")
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    found: dict[str, list[tuple[Words, str]]] = {}
    for match in _LINE.finditer(done.stdout):
        raw = bytes(int(byte, 16) for byte in match["bytes"].split(","))
        words = tuple(int.from_bytes(raw[at : at + 4], "little") for at in range(0, len(raw), 4))
        text = re.sub(r"/\*.*?\*/", "", match["text"]).strip()
        found.setdefault(text.split()[0], []).append((words, text))
    return found


def refused(arch: Arch) -> tuple[int, dict[str, str]]:
    """Return the number of mnemonics, and the reason for each mnemonic of which no form is executed."""
    none: Mapping[str, Any] = {f.name: False if "bool" in str(f.type) else 0 for f in fields_of(Descriptor)}
    descriptor = Descriptor(**{**none, "vgprs": 512, "accum_offset": 256, "sgprs": 102})
    forms, why = decoded(arch.name), {}
    for mnemonic, found in forms.items():
        reasons = [_reason(arch, descriptor, words, text) for words, text in found]
        if all(reasons):
            why[mnemonic] = reasons[0]
    return len(forms), why


def _reason(arch: Arch, descriptor: Descriptor, words: Words, text: str) -> str:
    """Return the reason why a form is refused, "" if it is executed."""
    try:
        instruction = parse_instruction(0, words, text)
        Program(KernelInfo("k", descriptor, {}, 0, (instruction,)), arch).compile(0)
    except ConvgenError as error:
        return str(error)
    except STUMBLES as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object a target")
    options = parser.parse_args(arguments)
    for arch in ARCHS.values():
        total, why = refused(arch)
        if options.json:
            print(json.dumps({"target": arch.name, "mnemonics": total, "refused": why}))
            continue
        print(f"{arch.name}: {total - len(why)} of {total} mnemonics are executed; refused:")
        print("  " + ", ".join(sorted(why)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
