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
    """Write every file, each complete, with the folders they need, or nothing. Raises UserError, naming the knob."""
    ready = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in contents}
    placed: list[Path] = []
    folders: list[Path] = []  #: made for them, those within others first
    at = Path()
    try:
        for at, temporary in ready.items():
            folders[:0] = [folder for folder in (at.parent, *at.parent.parents) if not folder.exists()]
            at.parent.mkdir(parents=True, exist_ok=True)
            if at.is_dir():
                raise IsADirectoryError(0, "is a directory")
            temporary.write_bytes(contents[at])
        for at, temporary in ready.items():
            temporary.replace(at)
            placed.append(at)
    except BaseException as error:
        for path in [*ready.values(), *placed]:
            with suppress(OSError, ValueError):
                path.unlink(missing_ok=True)
        for folder in folders:
            with suppress(OSError, ValueError):
                folder.rmdir()
        if not isinstance(error, OSError | ValueError):  # the latter at a NUL
            raise
        named = getattr(error, "filename", None)
        where = at if named is None or named == str(ready.get(at)) else named
        raise UserError(f"cannot write {where}: {getattr(error, 'strerror', None) or error}, at {knob}") from None
