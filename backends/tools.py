"""Running other people's programs: what goes wrong with the machine is told from what they say of our text."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from convgen.ir.error import UserError

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
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder)},
            check=False,
        )
    except OSError as error:
        raise UserError(f"cannot run {command[0]}: {error.strerror}") from None
    if done.returncode < 0:
        raise UserError(
            f"given a {name} that is killed by {signal.Signals(-done.returncode).name}, wanted one that works"
        )
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
