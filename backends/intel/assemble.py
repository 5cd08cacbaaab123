"""Assemble text into a zebin: iga64 encodes each kernel, `zebin.build` packs them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from convgen.backends.intel.zebin import build, debug_unit, parse
from convgen.backends.intel.zebin_devices import DEVICES
from convgen.backends.toolchain import IGA64, produced, run
from convgen.ir.error import AssemblerError, UserError

_COMPLAINT = re.compile(r"line (\d+)\.(\d+): (?:error|warning): (.*)")


def available(platform: str) -> bool:
    """Return whether an iga64 on this machine knows a platform. Raises UserError if it does not work."""
    tool = IGA64.find()
    return tool is not None and _knows(tool, platform)


@cache
def _knows(tool: str, platform: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="convgen-") as folder:
        process = _iga64(tool, "nop\n", platform, Path(folder))
        if process.returncode and "platform" in process.stderr + process.stdout:
            return False
        if process.returncode:
            raise UserError(f"{tool} crashed: it cannot assemble a nop: {_first(process)}")
        return bool(produced(Path(folder) / "kernel.bin", "iga64"))


def assemble(text: str) -> bytes | None:
    """Return the zebin of an assembly file; None if no iga64 for its target is installed.

    `Device.assembler` says where to get one. Raises AssemblerError with the first complaint about the text (error or
    warning), UserError if the assembler itself fails.
    """
    target, kernels = parse(text)
    device, tool = DEVICES[target], IGA64.find()
    if tool is None or not available(device.platform):
        return None
    with tempfile.TemporaryDirectory(prefix="convgen-") as folder:
        codes = [_encode(tool, body, device.platform, Path(folder)) for _, body in kernels]
    units = [debug_unit(info, body, len(code)) for (info, body), code in zip(kernels, codes, strict=True)]
    made = [(info, code) for (info, _), code in zip(kernels, codes, strict=True)]
    return build(device, made, [unit for unit in units if unit is not None])


def _encode(tool: str, body: str, platform: str, folder: Path) -> bytes:
    """Return the instructions of one kernel; its lines have the numbers of the whole text."""
    done = _iga64(tool, body, platform, folder)
    said = (done.stderr or done.stdout).strip()
    if done.returncode or said:
        raise AssemblerError(f"iga64: {_complaint(said, body.splitlines())}")
    return produced(folder / "kernel.bin", "iga64")


def _iga64(tool: str, body: str, platform: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "kernel.asm").write_text(body)
    (folder / "kernel.bin").unlink(missing_ok=True)  # output of the previous kernel
    command = [tool, "-a", f"-p={platform}", "--color=never", "-Wall", "kernel.asm", "-o", "kernel.bin"]
    return run(command, folder)


def _first(process: subprocess.CompletedProcess[str]) -> str:
    return next(iter((process.stderr or process.stdout).strip().splitlines()), "it says nothing")


def _complaint(said: str, lines: list[str]) -> str:
    complaint = _COMPLAINT.search(said)
    if complaint is None or int(complaint[1]) > len(lines):
        raise UserError(f"iga64 crashed: it cannot do its work: {(said.splitlines() or ['it says nothing'])[0]}")
    line, column, reason = complaint.groups()
    return f"line {line}, column {column}: {reason}: {' '.join(lines[int(line) - 1].split())}"
