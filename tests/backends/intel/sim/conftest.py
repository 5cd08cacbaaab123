"""Assembling small kernels, wrapping them as zebin, and running them on the simulator."""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import yaml

from convgen.backends.intel.sim import simulate
from convgen.backends.simulation import KernelArg, LaunchRequest, SimReport
from convgen.ir.record import evolve, frozen

KERNELS = Path(__file__).parent / "kernels"
COMPILED = Path(__file__).parents[3] / "data" / "intel"
Array = npt.NDArray[Any]
#: -p= of iga64 and product family of the compatibility note.
PLATFORMS = {"xehpg": ("12p71", 0x4F6, 8, 32), "xehpc": ("12p72", 0x4F7, 16, 64)}


@frozen
class Source:
    """A kernel's text and what .ze_info says of it."""

    text: str
    simd: int = 0  #: 0: that of the platform
    grf: int = 128
    slm: int = 0
    barriers: int = 0
    inline: int = 0
    skip: int = 0
    ids: int = 0  #: bytes of local ids per thread
    payload: int = 64  #: bytes of arguments


class NotAssembled(Exception):
    """The assembler refuses a text."""


_ASSEMBLED: dict[str, bytes] = {}


def machine_code(platform: str, text: str) -> bytes:
    """Assemble; equal texts are assembled once."""
    if shutil.which("iga64") is None:
        pytest.skip("iga64 is not installed")
    iga = PLATFORMS[platform][0]
    key = hashlib.sha256((iga + text).encode()).hexdigest()
    if key not in _ASSEMBLED:
        with tempfile.TemporaryDirectory() as folder:
            source, binary = Path(folder) / "k.asm", Path(folder) / "k.bin"
            source.write_text(text)
            done = subprocess.run(
                ["iga64", "-a", f"-p={iga}", str(source), "-o", str(binary)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise NotAssembled(done.stderr)
            _ASSEMBLED[key] = binary.read_bytes() + bytes(128)
    return _ASSEMBLED[key]


def _note(kind: int, data: bytes) -> bytes:
    return struct.pack("<III", 8, len(data), kind) + b"IntelGT\0" + data.ljust(-(-len(data) // 4) * 4, b"\0")


def elf(sections: Sequence[tuple[str, int, bytes]]) -> bytes:
    """A minimal relocatable ELF for EM_INTELGT from (name, type, content)."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _, _ in sections) + b".strtab\0"
    every = [*sections, (".strtab", 3, names)]
    body, headers, at = b"", [bytes(64)], 1
    for name, kind, content in every:
        body += bytes(-len(body) % 64)
        headers.append(struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, 64 + len(body), len(content), 0, 0, 1, 0))
        body += content
        at += len(name) + 1
    body += bytes(-len(body) % 8)
    ident = b"\x7fELF\x02\x01\x01\x00\x01".ljust(16, b"\0")
    count = len(headers)
    head = ident + struct.pack("<HHIQQQIHHHHHH", 1, 205, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, count, count - 1)
    return head + body + b"".join(headers)


def zebin(platform: str, kernels: Mapping[str, Source], product: int | None = None) -> bytes:
    """A code object of some kernels."""
    _, family, simd, _ = PLATFORMS[platform]
    entries = []
    sections: list[tuple[str, int, bytes]] = []
    for name, source in kernels.items():
        environment = {
            "barrier_count": source.barriers,
            "grf_count": source.grf,
            "simd_size": source.simd or simd,
            "slm_size": source.slm,
            "inline_data_payload_size": source.inline,
            "offset_to_skip_per_thread_data_load": source.skip,
        }
        arguments = [
            {"arg_type": "arg_byvalue", "offset": 4 * at, "size": 4, "arg_index": at}
            for at in range(source.payload // 4)
        ]
        entry: dict[str, Any] = {"name": name, "execution_env": environment, "payload_arguments": arguments}
        if source.ids:
            entry["per_thread_payload_arguments"] = [{"arg_type": "local_id", "offset": 0, "size": source.ids}]
        entries.append(entry)
        sections.append((f".text.{name}", 1, machine_code(platform, source.text)))
    info = yaml.safe_dump({"version": "1.20", "kernels": entries})
    note = _note(1, struct.pack("<I", family if product is None else product))
    sections += [(".ze_info", 0xFF000011, info.encode()), (".note.intelgt.compat", 7, note)]
    return elf(sections)


def launch(
    kernel: str,
    arguments: Sequence[str | int | tuple[int, str | int]],
    grid: tuple[int, int, int] = (1, 1, 1),
    workgroup: int = 16,
) -> LaunchRequest:
    """A launch with buffers by name (8 bytes) and u32 numbers, in order, naturally aligned, or at given offsets."""
    args, offset = [], 0
    for argument in arguments:
        if isinstance(argument, tuple):
            offset, argument = argument
        size = 8 if isinstance(argument, str) else 4
        offset = (offset + size - 1) // size * size
        value = argument if isinstance(argument, str) else struct.pack("<I", argument & 0xFFFFFFFF)
        args.append(KernelArg(offset, size, value))
        offset += size
    return LaunchRequest(kernel, grid, (workgroup, 1, 1), tuple(args))


#: Loads the arguments: buffer addresses in (r4.0:uq, r4.1:uq ...), numbers behind them.
PROLOGUES = {
    "xehpc": """
(W) and (1|M0) r126.0<1>:ud r0.0<0;1,0>:ud 0xFFFFFFC0:ud
(W) load.ugm.d32x16t.a32.ca.ca (1|M0) r4:1 bti[255][r126:1] {I@1,$0}
(W) or (1|M0) cr0.0<1>:ud cr0.0<0;1,0>:ud 0x4C0:uw {A@1}
(W) sync.nop null {A@1}
(W) sync.nop null {$0.dst}
""",
    "xehpg": """
(W) and (1|M0) r126.0<1>:ud r0.0<0;1,0>:ud 0xFFFFFFC0:ud
(W) load.ugm.d32x16t.a32.ca.ca (1|M0) r4:2 bti[255][r126:1] {A@1,$0}
(W) or (1|M0) cr0.0<1>:ud cr0.0<0;1,0>:ud 0x4C0:uw {A@1}
(W) sync.nop null {A@1}
(W) sync.nop null {$0.dst}
""",
}
EPILOGUES = {
    "xehpc": """
(W) mov (16|M0) r127.0<1>:f r0.0<1;1,0>:f
(W) send.gtwy (8|M0) null r127 null:0 0x0 0x02000010 {EOT,F@1,$15}
nop
""",
    "xehpg": """
(W) mov (8|M0) r127.0<1>:f r0.0<1;1,0>:f
(W) send.gtwy (8|M0) null r127 null:0 0x0 0x02000010 {EOT,A@1,$15}
nop
""",
}


def run(
    platform: str,
    body: str,
    buffers: Mapping[str, Array],
    *,
    numbers: Sequence[int] = (),
    grid: tuple[int, int, int] = (1, 1, 1),
    workgroup: int | None = None,
    source: Source | None = None,
    **options: Any,
) -> SimReport:
    """Run a body between a prologue and an epilogue; the buffers are the arguments and are changed in place."""
    text = PROLOGUES[platform] + body + EPILOGUES[platform]
    made = evolve(source or Source(""), text=text)
    code = zebin(platform, {"k": made})
    raw = {name: data.view(np.uint8).reshape(-1) for name, data in buffers.items()}
    items = workgroup or PLATFORMS[platform][2]
    return simulate(code, [launch("k", [*buffers, *numbers], grid, items)], raw, **options)


class Harness:
    """What tests use, as one fixture: pytest's importlib mode leaves no other way to share functions."""

    Source = Source
    machine_code = staticmethod(machine_code)
    zebin = staticmethod(zebin)
    elf = staticmethod(elf)
    launch = staticmethod(launch)
    run = staticmethod(run)
    NotAssembled = NotAssembled
    kernels = KERNELS
    iga: ClassVar[dict[str, str]] = {name: row[0] for name, row in PLATFORMS.items()}  #: names for iga64 -p=
    compiled = COMPILED
    prologues = PROLOGUES
    epilogues = EPILOGUES

    @staticmethod
    def kinds(report: SimReport) -> list[str]:
        return sorted({finding.kind for finding in report.findings})


@pytest.fixture(scope="session")
def sim() -> type[Harness]:
    return Harness
