"""From text to code object with whichever assembler is installed, Debian's versioned LLVM first."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from convgen.backends import tools
from convgen.ir.error import AssemblerError, UserError

_PLACE = re.compile(r"\bkernel\.s:\d+:\d+: ")  #: in our text
_TRIPLE = "amdgcn-amd-amdhsa"
Steps = Callable[[str, str, str, str], list[list[str]]]


def _clang(driver: Sequence[str]) -> Steps:
    """One driver call that assembles and links (clang runs lld itself)."""
    return lambda target, source, _, out: [
        [*driver, f"--target={_TRIPLE}", f"-mcpu={target}", "-x", "assembler", source, "-o", out]
    ]


def _mc_and_lld(mc: str, lld: str) -> Steps:
    return lambda target, source, middle, out: [
        [mc, f"-triple={_TRIPLE}", f"-mcpu={target}", "-filetype=obj", source, "-o", middle],
        [lld, "-shared", middle, "-o", out],
    ]


#: name -> (executables or module it needs, its command lines), in order of preference
ASSEMBLERS: dict[str, tuple[tuple[str, ...], Steps]] = {
    "clang-22": (("clang-22", "ld.lld-22"), _clang(["clang-22"])),
    "llvm-mc-22": (("llvm-mc-22", "ld.lld-22"), _mc_and_lld("llvm-mc-22", "ld.lld-22")),
    "rocm": (("/opt/rocm/llvm/bin/clang",), _clang(["/opt/rocm/llvm/bin/clang"])),
    "ziglang": (("module:ziglang",), _clang([sys.executable, "-m", "ziglang", "clang"])),
}


def _present(need: str) -> bool:
    if need.startswith("module:"):
        return find_spec(need.removeprefix("module:")) is not None
    return shutil.which(need) is not None


#: Where one gets the first of them.
WANTED = "Debian: clang-22 and lld-22"


@cache
def available() -> tuple[str, ...]:
    """The assemblers on this machine, best first."""
    return tuple(name for name, (needs, _) in ASSEMBLERS.items() if all(map(_present, needs)))


def assemble(text: str, target: str, assembler: str | None = None) -> bytes | None:
    """The linked code object; None if no assembler is installed.

    Raises AssemblerError with the first complaint of the text, UserError where the assembler itself fails.
    """
    name = assembler or next(iter(available()), None)
    if name is None:
        return None
    with tempfile.TemporaryDirectory(prefix="convgen-") as folder:
        source, middle, out = (Path(folder) / n for n in ("kernel.s", "kernel.o", "kernel.hsaco"))
        source.write_text(text)
        for command in ASSEMBLERS[name][1](target, str(source), str(middle), str(out)):
            # Run inside the folder, so that no path of ours reaches the object.
            done = tools.run(command, Path(folder))
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["it says nothing"]
                if _PLACE.search(done.stderr):
                    raise AssemblerError(f"{name}: {lines[0]}")
                raise UserError(f"{name} cannot do its work: {lines[0]}")
        return tools.produced(out, name, b"\x7fELF")
