"""Where programs of other projects are found: one search for assemblers, simulators and analysis.

A variable of the environment may name a program, by its path or as a word on PATH. Else names with a version are tried,
the newest first, as Debian installs LLVM; then the plain name; then ROCm's folder.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from convgen.backends import family as families
from convgen.ir.error import UserError
from convgen.ir.record import frozen

if TYPE_CHECKING:
    import subprocess

VERSIONS = range(40, 16, -1)  #: of LLVM, newest first
ROCM = "/opt/rocm/llvm/bin"


def _which(word: str) -> str | None:
    """The path of a program that can be run."""
    from shutil import which  # which takes a while to load, and few commands start a program

    return which(word)


@frozen
class Tool:
    """A program, the variable that may name it, and where one gets it."""

    name: str
    package: str  #: name of Debian's package
    variable: str = ""
    versioned: bool = True

    def all(self) -> Iterator[str]:
        """The paths of what is installed, best first. Raises UserError if the variable names what is not there."""
        if self.is_given:
            yield self._given(os.environ[self.variable])
            return
        names = [f"{self.name}-{version}" for version in VERSIONS] if self.versioned else []
        for word in (*names, self.name, f"{ROCM}/{self.name}"):
            path = _which(word)
            if path is not None:
                yield path

    def find(self, processor: str = "") -> str | None:
        """The best path of a program that knows a target; None where none is installed.

        Raises UserError as `all` does.
        """
        return next((path for path in self.all() if knows(path, processor)), None)

    @property
    def is_given(self) -> bool:
        """Whether the variable names a program."""
        return bool(self.variable and os.environ.get(self.variable))

    @property
    def wanted(self) -> str:
        """How one gets it, for messages."""
        return f"Debian: {self.package}; or {self.variable} names one" if self.variable else f"Debian: {self.package}"

    def _given(self, given: str) -> str:
        path = _which(given)
        if path is None:
            raise UserError(f"given {self.variable}={given}, wanted a program that can be run")
        return str(Path(path).absolute())


def knows(path: str, processor: str) -> bool:
    """Whether a program of LLVM may know a target: one whose name has no version is asked when it runs."""
    version = Path(path).name.rpartition("-")[2]
    return not version.isdigit() or int(version) >= (first_llvm(processor) or 0)


def llvm_for(processor: str) -> str:
    """The releases of LLVM that know a target, for messages."""
    first = first_llvm(processor)
    return "a newer LLVM" if first is None else f"LLVM {first} or newer"


def first_llvm(processor: str) -> int | None:
    """The first LLVM that assembles and decodes for a target; None where its family names none."""
    family = families.of_target(processor)
    return None if family is None else family.first_llvm.get(processor)


def identity(path: str | None) -> str:
    """Tells one program, and one version of it, from another; empty for none."""
    if path is None:
        return ""
    found = os.stat(_which(path) or path)
    return f"{path} {found.st_size} {found.st_mtime_ns}"


#: What the system says where there is no room, no permission or no such place (C library, strerror).
_LACKS = tuple(
    os.strerror(number)
    for number in (
        *(errno.EACCES, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOENT),
        *(errno.ENOEXEC, errno.ENOMEM, errno.ENOSPC, errno.EPERM, errno.EROFS),
    )
)


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, where its temporary files go, too.

    Raises UserError if it cannot be started, is killed, or says that the machine lacks something.
    """
    import subprocess  # which is not needed where no program runs

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
    """The file that a program says it has written. Raises UserError if there is none that begins so."""
    content = path.read_bytes() if path.exists() else b""
    if not content or not content.startswith(magic):
        given = f"{len(content)} bytes that are none" if content else "nothing"
        raise UserError(f"given {given} from {command}, wanted machine code")
    return content


IGA64 = Tool("iga64", "libigc-tools", "CONVGEN_IGA64", versioned=False)
LLVM_OBJDUMP = Tool("llvm-objdump", "llvm-22", "CONVGEN_LLVM_OBJDUMP")
CLANG = Tool("clang", "clang-22 and lld-22", "CONVGEN_CLANG")
LLVM_MC = Tool("llvm-mc", "llvm-22")
LLD = Tool("ld.lld", "lld-22")
