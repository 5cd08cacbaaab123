"""Search for external programs: assemblers, simulators and analysis tools.

An environment variable may name a program, by path or by a word on PATH. Otherwise the search tries names with an LLVM
version suffix (newest first, as Debian installs them), the plain name, then the folders of a vendor's installation.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from convgen.backends import family as families
from convgen.ir.error import UserError
from convgen.ir.record import frozen

if TYPE_CHECKING:
    import subprocess

VERSIONS = range(40, 16, -1)  #: LLVM versions, newest first
ROCM = "/opt/rocm/llvm/bin"
CUDA = "/usr/local/cuda/bin"


def _which(word: str) -> str | None:
    """Return the path of an executable program, or None."""
    from shutil import which  # slow to import, and few commands start a program

    return which(word)


def cuda_folders() -> tuple[str, ...]:
    """Return the folders with CUDA's programs: of this Python's wheels, the newest CUDA first, then of the toolkit.

    The wheel nvidia-cuda-nvcc has `nvidia/cu13/bin`, the wheel nvidia-cuda-nvcc-cu12 `nvidia/cuda_nvcc/bin`.
    """
    wheels = [Path(path, "nvidia") for path in sys.path if path]
    newer = [path for wheel in wheels for path in wheel.glob("cu[0-9]*/bin")]
    newer.sort(key=lambda path: int(re.sub(r"\D", "", path.parent.name)), reverse=True)
    return (*map(str, newer), *(str(path) for wheel in wheels for path in wheel.glob("cuda_nvcc/bin")), CUDA)


@frozen
class Tool:
    """An external program, the variable that may name it, and the package that has it."""

    name: str
    package: str  #: name of Debian's package
    variable: str = ""
    versioned: bool = True
    folders: Callable[[], Sequence[str]] = lambda: (ROCM,)  #: returns folders to search behind PATH

    def all(self) -> Iterator[str]:
        """Yield paths of installed programs, best first. Raises UserError if the variable names a missing program."""
        if self.is_given:
            yield self._given(os.environ[self.variable])
            return
        names = [f"{self.name}-{version}" for version in VERSIONS] if self.versioned else []
        for word in (*names, self.name, *(f"{folder}/{self.name}" for folder in self.folders())):
            path = _which(word)
            if path is not None:
                yield path

    def find(self, processor: str = "") -> str | None:
        """Return the best path of a program that knows a target, or None if none is installed.

        Raises UserError if the variable names a missing program.
        """
        return next((path for path in self.all() if knows(path, processor)), None)

    @property
    def is_given(self) -> bool:
        """Return whether the variable names a program."""
        return bool(self.variable and os.environ.get(self.variable))

    @property
    def how_to_install(self) -> str:
        """Return how to install the program, for messages."""
        return f"Debian: {self.package}; or {self.variable} names one" if self.variable else f"Debian: {self.package}"

    def _given(self, given: str) -> str:
        path = _which(given)
        if path is None:
            raise UserError(f"given {self.variable}={given}, wanted a program that can be run")
        return str(Path(path).absolute())


def knows(path: str, processor: str) -> bool:
    """Return whether an LLVM program may know a target; True if its name has no version: only a run shows it."""
    version = Path(path).name.rpartition("-")[2]
    return not version.isdigit() or int(version) >= (first_llvm(processor) or 0)


def llvm_for(processor: str) -> str:
    """Return the LLVM releases that know a target, for messages."""
    first = first_llvm(processor)
    return "a newer LLVM" if first is None else f"LLVM {first} or newer"


def first_llvm(processor: str) -> int | None:
    """Return the first LLVM that assembles and decodes for a target, or None if its family names none."""
    family = families.of_target(processor)
    return None if family is None else family.first_llvm.get(processor)


def identity(path: str | None) -> str:
    """Return a text that identifies a program and its version (path, size, time); empty for None."""
    if path is None:
        return ""
    status = os.stat(_which(path) or path)
    return f"{path} {status.st_size} {status.st_mtime_ns}"


#: System messages for missing space, permissions or files (C library, strerror).
_LACKS = tuple(
    os.strerror(number)
    for number in (
        *(errno.EACCES, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOENT),
        *(errno.ENOEXEC, errno.ENOMEM, errno.ENOSPC, errno.EPERM, errno.EROFS),
    )
)


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, which also gets its temporary files.

    Raises UserError if it cannot be started, is killed, or reports that the machine lacks something.
    """
    import subprocess  # imported only if a program runs

    name = Path(command[0]).name
    environment = {**os.environ, "TMPDIR": str(folder)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", cwd=folder, env=environment, check=False
        )
    except OSError as error:
        raise UserError(f"cannot run {command[0]}: {error.strerror}") from None
    if done.returncode < 0:
        raise UserError(f"{name} crashed: it was killed by {signal.Signals(-done.returncode).name}")
    lines = f"{done.stderr}\n{done.stdout}".splitlines() if done.returncode else []
    if lacking := [line for line in lines if any(lack in line for lack in _LACKS)]:
        raise UserError(f"{name} cannot do its work: {lacking[0].strip()}")
    return done


def produced(path: Path, command: str, magic: bytes = b"") -> bytes:
    """Return the file that a program reports as written. Raises UserError unless it exists and begins with `magic`."""
    content = path.read_bytes() if path.exists() else b""
    if not content or not content.startswith(magic):
        given = f"{len(content)} bytes that are none" if content else "nothing"
        raise UserError(f"given {given} from {command}, wanted machine code")
    return content


IGA64 = Tool("iga64", "libigc-tools", "CONVGEN_IGA64", versioned=False)
PTXAS = Tool("ptxas", "nvidia-cuda-toolkit", "CONVGEN_PTXAS", versioned=False, folders=cuda_folders)
LLVM_OBJDUMP = Tool("llvm-objdump", "llvm-22", "CONVGEN_LLVM_OBJDUMP")
CLANG = Tool("clang", "clang-22 and lld-22", "CONVGEN_CLANG")
LLVM_MC = Tool("llvm-mc", "llvm-22")
LLD = Tool("ld.lld", "lld-22")
