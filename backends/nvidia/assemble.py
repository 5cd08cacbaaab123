"""Compile PTX into a cubin with an installed ptxas (`toolchain` searches for it).

The code object of a target is the text: the driver compiles it, and the simulator reads it. ptxas is optional: it
checks the text, reports registers and spills, and makes the machine code that convgen writes beside the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from convgen.backends.stages import MachineCode
from convgen.backends.toolchain import PTXAS, produced, run
from convgen.ir.error import AssemblerError, UserError

if TYPE_CHECKING:
    import subprocess

_ARCHITECTURE = re.compile(r"^\.target (\w+)", re.MULTILINE)
_DEBUG = re.compile(r"^\s*\.loc ", re.MULTILINE)
_FUNCTION = re.compile(r"Compiling entry function '(?P<name>[^']+)'|Function properties for (?P<called>\S+)")
_USED = re.compile(r"Used (\d+) registers")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")

#: ptxas's messages on text that a ptxas of an older CUDA, or of a newer one without the target, does not know.
_UNKNOWN = ("Unsupported .version", "Unsupported .target", "is not defined for option 'gpu-name'")

#: Advisory messages of ptxas -> what they mean for a kernel. Each is a defect of the emitter.
ADVISORIES = {
    "C7508": "setmaxnreg is ignored",
    **dict.fromkeys((f"C75{n}" for n in range(10, 16)), "matrix products are serialised"),
    "C7517": "a wait for matrix products is missing",
    "C7519": "a fence before matrix products is missing",
}
_TOO_FEW_REGISTERS = "C7512"
_PLACE = re.compile(r"\(C7517\).* in around line (\d+) ")
_NEAR = 2  #: lines of the text behind a product that may have its wait: `commit_group`, `wait_group`
_ADVISORY = re.compile(rf"[^\n]*\((?P<code>{'|'.join(ADVISORIES)})\)[^\n]*")


def compiled(text: str) -> MachineCode | None:
    """Return the cubin of PTX; None without a ptxas that knows its target and version.

    Raises AssemblerError if ptxas rejects the text or prints one of `ADVISORIES`; UserError if ptxas fails itself or
    has too few registers, or if the environment variable of `toolchain` names a ptxas that does not know the target.
    """
    import tempfile

    tool = PTXAS.find()
    target = _ARCHITECTURE.search(text)
    if tool is None or target is None:
        return None
    with tempfile.TemporaryDirectory(prefix="convgen-") as folder:
        (Path(folder) / "kernel.ptx").write_text(text)
        lines = ["--generate-line-info"] if _DEBUG.search(text) else []
        command = [tool, f"--gpu-name={target[1]}", "--verbose", *lines, "kernel.ptx", "--output-file", "kernel.cubin"]
        process = run(command, Path(folder))
        if any(words in process.stderr for words in _UNKNOWN):
            if PTXAS.is_given:
                wanted = f"a ptxas that knows {target[1]}"
                raise UserError(f"given {PTXAS.variable}={tool}, wanted {wanted}: {_first(process.stderr)}")
            return None
        _check(process, text)
        return MachineCode(produced(Path(folder) / "kernel.cubin", "ptxas", b"\x7fELF"), resources(process.stderr))


def _check(process: subprocess.CompletedProcess[str], text: str) -> None:
    """Raise AssemblerError for rejected text and for an advisory, UserError for a failure that names no line.

    A kernel whose sums leave too few registers is a UserError, too: the emitter cannot know how many ptxas needs.
    """
    advisories = (found for found in _ADVISORY.finditer(process.stderr) if not _is_spurious(found[0], text))
    if advisory := next(advisories, None):
        message = advisory[0].partition(":")[2].strip()
        if advisory["code"] == _TOO_FEW_REGISTERS:
            given = f"given a kernel whose matrix products ptxas serialises for want of registers: {message}"
            raise UserError(f"{given}, wanted smaller tiles, or more subgroups, at --config")
        raise AssemblerError(f"ptxas: {ADVISORIES[advisory['code']]}: {message}")
    if process.returncode:
        first = _first(process.stderr)
        if "kernel.ptx, line " in first:
            raise AssemblerError(f"ptxas: {first}")
        raise UserError(f"ptxas cannot do its work: {first}")


def _is_spurious(message: str, text: str) -> bool:
    """Return whether a C7517 is false: the text has the wait, which ptxas misses where some sums are unused."""
    place = _PLACE.search(message)
    if place is None:
        return False
    number = int(place[1])
    return "wgmma.wait_group" in "".join(text.splitlines()[number - 1 : number + _NEAR])


def _first(stderr: str) -> str:
    """Return the first of ptxas's messages that is not marked `info`, on one line."""
    lines = [line for line in stderr.splitlines() if line.strip() and " info " not in line]
    return " ".join(lines[0].removeprefix("ptxas ").split()) if lines else "it says nothing"


def resources(stderr: str) -> Mapping[str, Mapping[str, int]]:
    """Return the registers of each kernel, and the bytes of its stack and spills, from what `ptxas --verbose` prints.

    Counts that are zero are left out, but for registers.
    """
    kernels: dict[str, dict[str, int]] = {}
    name = ""
    for line in stderr.splitlines():
        if function := _FUNCTION.search(line):
            name = function["name"] or function["called"]
        elif stack := _STACK.search(line):
            words = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
            kernels.setdefault(name, {}).update({w: int(n) for w, n in zip(words, stack.groups()) if int(n)})
        elif used := _USED.search(line):
            kernels[name] = {"reg": int(used[1]), **kernels.get(name, {})}
    return {name: counts for name, counts in kernels.items() if "reg" in counts}
