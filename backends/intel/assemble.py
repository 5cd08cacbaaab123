"""From text to zebin: iga64 encodes each kernel, `zebin.build` wraps them."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from convgen.backends.intel.devices import DEVICES
from convgen.backends.intel.zebin import build, parse
from convgen.ir.error import AssemblerError

_COMPLAINT = re.compile(r"line (\d+)\.(\d+): (?:error|warning): (.*)")


@cache
def missing(target: str) -> str | None:
    """Why text for a target cannot be assembled on this machine; None if it can."""
    if shutil.which("iga64") is None:
        return "no iga64 (Debian: libigc-tools)"
    platform = DEVICES[target].platform
    with tempfile.TemporaryDirectory(prefix="convgen-") as folder:
        if _iga64("", platform, Path(folder)).returncode:
            return f"this iga64 does not know {platform}; that of a newer Debian does (libigc-tools)"
    return None


def assemble(text: str) -> bytes | None:
    """The zebin of an assembly file; None where `missing` has a reason for its target.

    Raises AssemblerError with the first complaint: an error, or a warning of any kind.
    """
    target, kernels = parse(text)
    if missing(target) is not None:
        return None
    device = DEVICES[target]
    with tempfile.TemporaryDirectory(prefix="convgen-") as folder:
        return build(device, [(info, _encode(body, device.platform, Path(folder))) for info, body in kernels])


def _encode(body: str, platform: str, folder: Path) -> bytes:
    """The instructions of one kernel, whose lines have the numbers of the whole text."""
    done = _iga64(body, platform, folder)
    said = (done.stderr or done.stdout).strip()
    if done.returncode or said:
        raise AssemblerError(f"iga64: {_complaint(said, body.splitlines())}")
    return (folder / "kernel.bin").read_bytes()


def _iga64(body: str, platform: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "kernel.asm").write_text(body)
    command = ["iga64", "-a", f"-p={platform}", "--color=never", "-Wall", "kernel.asm", "-o", "kernel.bin"]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def _complaint(said: str, lines: list[str]) -> str:
    found = _COMPLAINT.search(said)
    if found is None:
        return (said.splitlines() or ["no message"])[0]
    line, column, reason = found.groups()
    return f"line {line}, column {column}: {reason}: {' '.join(lines[int(line) - 1].split())}"
