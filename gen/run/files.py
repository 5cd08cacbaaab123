"""Writing results: all files of a problem, or none."""

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
    """The files of one problem; None for what there was nothing to write of."""

    asm: Path | None
    object: Path | None
    launch: Path


def write_code(code: Code, prefix: str, text_suffix: str, object_suffix: str) -> Files:
    """Write assembly, object and launch record as PREFIX.*; a prefix ending in / is a directory, named by kernel.

    Raises UserError, with nothing written, if a file cannot be.
    """
    stem = prefix + code.name if prefix.endswith("/") else prefix
    launches = bool(code.record.launches)
    files = Files(
        asm=Path(stem + text_suffix) if launches else None,
        object=Path(stem + object_suffix) if code.object is not None else None,
        launch=Path(stem + ".launch.json"),
    )
    record = evolve(code.record, object=files.object.name if files.object else None)
    contents = {
        files.asm: code.asm.encode(),
        files.object: code.object or b"",
        files.launch: record.to_json().encode() + b"\n",
    }
    listings = {Path(stem).with_name(name): text.encode() for name, text in code.listings.items()}
    write_all({path: content for path, content in contents.items() if path is not None} | listings)
    return files


def write_all(contents: Mapping[Path, bytes], knob: str = "-o") -> None:
    """Write every file, each complete, with the folders they need, or nothing. Raises UserError, naming the knob.

    A link stays one, to what is written; what is there and no file, a device or a pipe, stays as it is.
    """
    ready: dict[Path, tuple[Path, Path]] = {}  #: where each is to be, and where it is made
    placed: list[Path] = []
    folders: list[Path] = []  #: made for them, those within others first
    at = Path()
    try:
        for at, content in contents.items():
            place = Path(os.path.realpath(at)) if at.is_symlink() else at
            folders[:0] = [folder for folder in (place.parent, *place.parent.parents) if not folder.exists()]
            place.parent.mkdir(parents=True, exist_ok=True)
            if at.exists() and not at.is_file():
                raise OSError(0, "is a directory" if at.is_dir() else "is a device or a pipe")
            made = place.with_name(f".{place.name}.{os.getpid()}")
            ready[at] = place, made
            made.write_bytes(content)
        for at in ready:
            place, made = ready[at]
            made.replace(place)
            placed.append(place)
    except BaseException as error:
        for path in [*(made for _, made in ready.values()), *placed]:
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
