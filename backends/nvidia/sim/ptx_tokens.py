"""Tokens of PTX text (PTX ISA, "Syntax"), and a cursor that takes them from first to last."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from convgen.backends.nvidia.sim.ptx_text import literal
from convgen.backends.sim.errors import SimulatorError

T = TypeVar("T")

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<string>"[^"\n]*")
    |(?P<number>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
        |[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|[0-9]+U?)
    |(?P<word>[%$_A-Za-z.](?:[\w$.%]|::)*)
    |(?P<mark>[{}()\[\];,:!@|+\-<>=*&~/])""",
    re.S | re.X,
)


class Token(NamedTuple):
    """A word, number, string or mark, and its byte offset in the text."""

    kind: str
    text: str
    at: int


def tokens(text: str) -> list[Token]:
    """Split PTX into tokens. Raises SimulatorError at a character that PTX lacks."""
    taken, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            line = text.count("\n", 0, at) + 1
            raise SimulatorError(f"given {text[at : at + 10]!r} in line {line} of the PTX, wanted PTX")
        if match.lastgroup != "space":
            taken.append(Token(str(match.lastgroup), match.group(), at))
        at = match.end()
    return taken


class Cursor:
    """A place between the tokens of a file. Its methods raise SimulatorError for a token that they do not expect."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokens(text)
        self.at = 0  #: number of the next token

    @property
    def taken(self) -> Token:
        """Return the token that was taken last."""
        return self.tokens[self.at - 1]

    def peek(self) -> str:
        """Return the text of the next token; "" behind the end."""
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def take(self, wanted: str | None = None) -> Token:
        """Return the next token, which must be `wanted` if that is given."""
        if self.at >= len(self.tokens):
            raise SimulatorError("given PTX that ends within a statement, wanted a whole file")
        token = self.tokens[self.at]
        if wanted is not None and token.text != wanted:
            raise self.wrong(f"{wanted!r}", token)
        self.at += 1
        return token

    def accept(self, wanted: str) -> bool:
        """Take the next token if it is `wanted`."""
        if self.peek() != wanted:
            return False
        self.at += 1
        return True

    def wrong(self, wanted: str, token: Token | None = None) -> SimulatorError:
        """Return the error for an unexpected token."""
        where = token or self.tokens[min(self.at, len(self.tokens) - 1)]
        line = self.text.count("\n", 0, where.at) + 1
        return SimulatorError(f"given {where.text!r} in line {line} of the PTX, wanted {wanted}")

    def integer(self) -> int:
        """Take an integer constant."""
        sign = -1 if self.accept("-") else 1
        token = self.take()
        if token.kind != "number":
            raise self.wrong("a number", token)
        value = literal(token.text)
        if value.kind != "int":
            raise self.wrong("an integer", token)
        return sign * value.bits

    def listed(self, read: Callable[[], T]) -> list[T]:
        """Return what `read` returns, again behind each comma."""
        items = [read()]
        while self.accept(","):
            items.append(read())
        return items

    def skip_to(self, *ends: str) -> None:
        """Take tokens up to one of `ends`, which is taken too."""
        while self.take().text not in ends:
            pass

    def skip_line(self) -> None:
        """Take the rest of a directive that ends with its line."""
        end = self.text.find("\n", self.taken.at)
        while self.at < len(self.tokens) and (end < 0 or self.tokens[self.at].at < end):
            self.at += 1
