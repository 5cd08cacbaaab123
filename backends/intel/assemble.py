"""From text to zebin: iga64 encodes each kernel, `zebin.build` wraps them."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from convgen.backends import tools
from convgen.backends.intel.devices import DEVICES
from convgen.backends.intel.zebin import build, parse
from convgen.ir.error import AssemblerError, UserError

_COMPLAINT = re.compile(r"line (\d+)\.(\d+): (?:error|warning): (.*)")


@cache
def available(platform: str) -> bool:
    """Whether there is an iga64 on this machine that knows a platform. Raises UserError if it does not work."""
    if shutil.which("iga64") is None:
        return False
    with tempfile.TemporaryDirectory(prefix="convgen-") as folder:
        return _iga64("nop\n", platform, Path(folder)).returncode == 0


def assemble(text: str) -> bytes | None:
    """The zebin of an assembly file; None if no iga64 for its target is installed (`Device.assembler` says whence).

    Raises AssemblerError with the first complaint of the text, an error or a warning of any kind; UserError where the
    assembler itself fails.
    """
    target, kernels = parse(text)
    device = DEVICES[target]
    if not available(device.platform):
        return None
    with tempfile.TemporaryDirectory(prefix="convgen-") as folder:
        return build(device, [(info, _encode(body, device.platform, Path(folder))) for info, body in kernels])


def _encode(body: str, platform: str, folder: Path) -> bytes:
    """The instructions of one kernel, whose lines have the numbers of the whole text."""
    done = _iga64(body, platform, folder)
    said = (done.stderr or done.stdout).strip()
    if done.returncode or said:
        raise AssemblerError(f"iga64: {_complaint(said, body.splitlines())}")
    return tools.produced(folder / "kernel.bin", "iga64")


def _iga64(body: str, platform: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "kernel.asm").write_text(body)
    command = ["iga64", "-a", f"-p={platform}", "--color=never", "-Wall", "kernel.asm", "-o", "kernel.bin"]
    return tools.run(command, folder)


def _complaint(said: str, lines: list[str]) -> str:
    found = _COMPLAINT.search(said)
    if found is None or int(found[1]) > len(lines):
        raise UserError(f"iga64 cannot do its work: {(said.splitlines() or ['it says nothing'])[0]}")
    line, column, reason = found.groups()
    return f"line {line}, column {column}: {reason}: {' '.join(lines[int(line) - 1].split())}"
