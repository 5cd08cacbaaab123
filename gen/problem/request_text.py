"""Read batch files as text, and yield their lines without comments."""

from __future__ import annotations

import codecs
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from convgen.ir import untrusted
from convgen.ir.error import UserError
from convgen.problem import driver_lines, request_lines

STDIN = Path("-")
_STREAMS = re.compile(r"/dev/stdin|(?:/dev|/proc/self)/fd/[0-9]+")  #: what a shell connects: not every pipe has an end
_BYTES = 64 * 2**20  #: of a file
_GZIP = b"\x1f\x8b"  #: the first bytes of a gzip file

_COMMENT = re.compile(r"(?:^|\s)#.*")
_STEP = re.compile(r"^#[0-9]+ +(?=[0-9]+\.[0-9]+ )")  #: BuildKit's prefix, which is no comment
_JOINED = re.compile(r"\s*\\\s+")


def text_of(path: Path) -> str:
    """The text of a file that somebody names, or of the standard input, `-`. Raises UserError."""
    content = _unzipped(_content(path), path)
    is_wide = content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and len(content) > 2
    try:
        return content.decode("utf-16" if is_wide else "utf-8-sig")
    except ValueError:
        raise UserError(f"given {_name(path)} that is not text, wanted a batch file") from None


def _content(path: Path) -> bytes:
    """At most `_BYTES` of a regular file or of a stream that a shell connects."""
    if not (path == STDIN or _STREAMS.fullmatch(str(path))):
        return untrusted.read(path, "a batch file", _BYTES)
    try:
        if path in (STDIN, Path("/dev/stdin")):
            content = sys.stdin.buffer.read(_BYTES + 1)
        else:
            with path.open("rb") as stream:
                content = stream.read(_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > _BYTES:
        raise UserError(f"given {_name(path)} of more than {_BYTES >> 20} MiB, wanted a batch file")
    return content


def _unzipped(content: bytes, path: Path) -> bytes:
    """Return the content of a gzip file, any other content as it is. Raises UserError if it is damaged or too large."""
    if not content.startswith(_GZIP):
        return content
    reader = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        text = reader.decompress(content, _BYTES + 1)
    except zlib.error:
        raise UserError(f"given {_name(path)} that is damaged, wanted a gzip file") from None
    if len(text) > _BYTES:
        raise UserError(f"given {_name(path)} of more than {_BYTES >> 20} MiB of text, wanted a batch file")
    return text


def _name(path: Path) -> str:
    return "the standard input" if path == STDIN else repr(str(path))


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the non-empty lines without comments, continued ones joined, each with its number in the file.

    In a driver line a word that ends in `\\` is joined with the next word, and a `\\` that stands alone joins the words
    around it; a command is continued as in a shell. In another text a `\\` at the end means nothing.
    """
    joined, first_line, continues, is_spaced = "", 0, False, False
    for number, line in enumerate(text.split("\n"), 1):
        for segment in line.rstrip("\r").split("\r"):  # what a progress bar wrote over
            content = _COMMENT.sub("", _STEP.sub("", request_lines.plain(segment))).strip()
            if continues and not content:
                continue
            separator = _separator(joined, content, is_spaced) if continues else None
            if continues and separator is None:  # a sentence, whose backslash means nothing
                yield first_line, f"{joined}\\"
            first_line = number if separator is None else first_line
            joined = content if separator is None else f"{joined}{separator}{content}"
            continues = joined.endswith("\\")
            is_spaced = joined.endswith(" \\")
            if continues:
                joined = joined[:-1].rstrip()
            elif joined:
                yield first_line, _without_backslashes(joined)
    if continues and joined:
        yield first_line, _without_backslashes(joined)


def _separator(text: str, more: str, is_spaced: bool) -> str | None:
    """Return what joins a line that ends in a backslash with the next one: "" or a space; None if they stay two lines.

    `is_spaced` says whether a space is before the backslash, as in the commands of other programs.
    """
    is_command = request_lines.is_command(text) or request_lines.is_command(f"{text} {more}")
    if is_command:
        return " "
    joint = driver_lines.joint(_JOINED.sub("", text), more)
    return " " if joint is None and is_spaced and more.startswith("-") else joint


def _without_backslashes(text: str) -> str:
    """A line without the backslashes within; those of other texts stay."""
    return text if request_lines.driver_of(text) else _JOINED.sub("", text)
