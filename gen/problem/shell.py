"""Command lines in logs: their words without quotes, up to a pipe or redirection."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Word = tuple[int, str]  #: the column of a word, and its text

_WORD = re.compile(r"\S+")
_QUOTES = re.compile("[\"'`]")
_QUOTED = ("'", '"', "`")
_EDGES = "\\(),"  #: characters that a text may have right before or after a command
_GLUED = re.compile(r"^\S*[\]>:](?=[A-Za-z./$])")
_END = re.compile(r"[0-9&]?>.*|<.*|[|;&].*")  #: a word that ends a command
_LAST = re.compile(r"(.*[^;&|\\])[;&|]+")  #: a last word that ends in an operator
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")
_BETWEEN = re.compile(r"&&|\|\||(?<![>&])[;|&](?![>&])")  #: operators between commands


def words(line: str, is_program: Callable[[str], bool]) -> list[Word]:
    """The words after the first that calls a program, up to an operator or a redirection; none without such a word."""
    words_of_line = [(match.start(), match[0]) for match in _WORD.finditer(line)]
    first = next((number for number, (_, word) in enumerate(words_of_line) if is_program(called(word))), None)
    following = list[Word]()
    # A quote before the program's name encloses the whole command.
    quote = "" if first is None else words_of_line[first][1].lstrip(_EDGES)[:1]
    for column, word in words_of_line[len(words_of_line) if first is None else first + 1 :]:
        text = bare(word)
        if _END.fullmatch(text):
            break
        last = _LAST.fullmatch(text)
        if text:
            following.append((column + word.find(text[0]), last[1] if last else text))
        is_closed = quote in _QUOTED and quote in word and word.count(quote) % 2
        if last or is_closed:
            break
    return following


def bare(word: str) -> str:
    """A word without quotes, and without the brackets and commas of a text around a command."""
    text = _QUOTES.sub("", word).rstrip(_EDGES).removeprefix("$(")
    return text.lstrip("(\\")


def called(word: str) -> str:
    """Return a bare word without the prefix of a log, as in `[rank0]:convfp16`."""
    return _GLUED.sub("", bare(word))


def is_variable(word: str) -> bool:
    """Whether a word is a shell variable, whose value is unknown."""
    return _VARIABLE.fullmatch(word) is not None


def commands(line: str) -> Sequence[str]:
    """The commands of a line between a shell's operators."""
    return [part.strip() for part in _BETWEEN.split(line) if part.strip()]


def is_prose(word: str) -> bool:
    """Whether a word in the place of a flag looks like prose: letters, perhaps with a punctuation mark."""
    return re.fullmatch(r"[A-Za-z]+[.,:;!?]*|[-–—]+|[!?.:]+", word) is not None
