"""Batch files as text: what is read, and its lines without comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from convgen.ir import untrusted
from convgen.ir.error import UserError
from convgen.problem import miopen

_BYTES = 64 * 2**20  #: of a file

_COMMENT = re.compile(r"(?:^|\s)#.*")
_JOINED = re.compile(r"\s*\\\s+")


def text_of(path: Path) -> str:
    """The text of a file that somebody names. Raises UserError."""
    try:
        return untrusted.read(path, "a batch file", _BYTES).decode()
    except UnicodeDecodeError:
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
