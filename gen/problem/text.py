"""Batch files as text: what is read, and its lines without comments."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from convgen.ir.error import UserError
from convgen.problem import miopen

_BYTES = 64 * 2**20  #: of a file

_COMMENT = re.compile(r"(?:^|\s)#.*")
_JOINED = re.compile(r"\s*\\\s+")


def text_of(path: Path) -> str:
    """The text of a file that somebody names. Raises UserError."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(opened, "rb") as file:
            status = os.fstat(opened)
            if stat.S_ISDIR(status.st_mode):
                raise UserError(f"cannot read {path}: Is a directory")
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"given {str(path)!r} that is a device or a pipe, wanted a batch file")
            content = file.read(_BYTES + 1)
        if len(content) > _BYTES:
            raise UserError(f"given {str(path)!r} of more than {_BYTES >> 20} MiB, wanted a batch file")
        return content.decode()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:  # not UTF-8, or a name that no file has
        raise UserError(f"given {str(path)!r} that is not text, wanted a batch file") from None


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that say something, without comments, continued ones joined, each with its number in the file.

    A word that ends in `\\` is joined with the next word, and a `\\` that stands alone joins the words around it; in a
    line that calls MIOpenDriver it only continues the line, as in a shell.
    """
    glued, first, joins = "", 0, False
    for number, line in enumerate(text.split("\n"), 1):
        said = _COMMENT.sub("", line).strip()
        if joins and not said:
            continue
        first = first if joins else number
        glued = glued + said if joins else said
        joins = glued.endswith("\\")
        if joins:
            glued = f"{glued[:-1].rstrip()} " if miopen.is_line(glued) else glued[:-1].rstrip()
        elif glued:
            yield first, _JOINED.sub("", glued)
    if joins and glued:
        yield first, _JOINED.sub("", glued)
