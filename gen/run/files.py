"""Write the files of a problem: all of them, or none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from convgen.ir.error import UserError
from convgen.ir.record import evolve, frozen
from convgen.run.code import Code


@frozen
class Files:
    """The paths of one problem's files; None for a file that was not written."""

    asm: Path | None
    object: Path | None  #: the path in `asm` where the code object is the text
    launch: Path
    machine: Path | None = None  #: machine code of a code object that is text


def write_code(code: Code, prefix: str, text_suffix: str, object_suffix: str, machine_suffix: str = "") -> Files:
    """Write assembly, object, launch record and machine code, as far as there is one, as PREFIX.*; a prefix ending in
    / is a directory, named by kernel.

    Raises UserError, with nothing written, if a file cannot be.
    """
    stem = prefix + code.name if prefix.endswith("/") else prefix
    files, contents = contents_of(code, stem, text_suffix, object_suffix, machine_suffix)
    write_all(contents)
    return files


def contents_of(
    code: Code, stem: str, text_suffix: str, object_suffix: str, machine_suffix: str
) -> tuple[Files, dict[Path, bytes]]:
    """Return the paths of the files that `write_code` writes as STEM.*, and the bytes of each file."""
    launches = bool(code.record.launches)
    files = Files(
        asm=Path(stem + text_suffix) if launches else None,
        object=Path(stem + object_suffix) if code.object is not None else None,
        launch=Path(stem + ".launch.json"),
        machine=Path(stem + machine_suffix) if code.machine is not None else None,
    )
    record = evolve(code.record, object=files.object.name if files.object else None)
    contents = {
        files.asm: code.asm.encode(),
        files.object: code.object or b"",
        files.launch: record.to_json().encode() + b"\n",
        files.machine: code.machine or b"",
    }
    listings = {Path(stem).with_name(name): text.encode() for name, text in code.listings.items()}
    return files, {path: content for path, content in contents.items() if path is not None} | listings


def write_all(contents: Mapping[Path, bytes], knob: str = "-o") -> None:
    """Write every file complete, with the folders they need, or none. Raises UserError, which names the option `knob`.

    A link of the user's own is followed; another user's link is refused. A device or a pipe is written to, not
    replaced. A replaced file keeps its permissions.
    """
    ready: dict[Path, tuple[Path, Path]] = {}  #: path -> final place, and temporary file
    placed: list[Path] = []
    folders: list[Path] = []  #: made for them, those within others first
    at = Path()
    try:
        for at, content in contents.items():
            place = _target(at)
            folders[:0] = [folder for folder in (place.parent, *place.parent.parents) if not folder.exists()]
            place.parent.mkdir(parents=True, exist_ok=True)
            if at.exists() and not at.is_file():
                raise OSError(0, "is a directory" if at.is_dir() else "is a device or a pipe")
            temporary = place.with_name(f".convgen-{os.urandom(12).hex()}")  # a name that nobody can plant a link at
            ready[at] = place, temporary
            _create(temporary, content, place)
        for at in ready:
            place, temporary = ready[at]
            temporary.replace(place)
            placed.append(place)
    except BaseException as error:
        for path in [*(temporary for _, temporary in ready.values()), *placed]:
            with suppress(OSError, ValueError):
                path.unlink(missing_ok=True)
        for folder in folders:
            with suppress(OSError, ValueError):
                folder.rmdir()
        if not isinstance(error, OSError | ValueError):  # the latter at a NUL
            raise
        named = getattr(error, "filename", None)
        where = at if named is None or named in map(str, ready.get(at, ())) else named
        raise UserError(f"cannot write {where}: {getattr(error, 'strerror', None) or error}, at {knob}") from None


def _target(at: Path) -> Path:
    """Return the file to write for a path, following links.

    Raises OSError for a link of a user who is neither this one nor the owner of the folder, which Linux does not follow
    in folders that anybody may write, such as /tmp (protected_symlinks in proc_sys_fs(5)).
    """
    if not at.is_symlink():
        return at
    if at.lstat().st_uid not in (os.geteuid(), at.parent.stat().st_uid):
        raise OSError(0, "is a link that another user made")
    return Path(os.path.realpath(at))


def _create(path: Path, content: bytes, replaced: Path) -> None:
    """Write a new file, with the permissions of the file that it will replace, if there is one."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = replaced.stat().st_mode & 0o777 if replaced.exists() else None
    number = os.open(path, flags, 0o666 if mode is None else 0o600)
    with open(number, "wb") as file:
        if mode is not None:
            os.fchmod(number, mode)
        file.write(content)
