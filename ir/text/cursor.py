"""The tokens of a line and the reader's position among them; errors have a caret under the character."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from convgen.ir.caret import PointedError
from convgen.ir.error import UserError
from convgen.ir.text.lexer import tokens
from convgen.ir.types import SCALARS, AddressSpace, AnyType, Type, pointer, vector

T = TypeVar("T")
_VECTOR = re.compile(r"([\w*]+)x([1-9][0-9]{0,9})", re.ASCII)
_MOST_DIGITS = 20  #: of an integer: as many as 2^64 has
_SPACES = {space.value: space for space in AddressSpace}


@lru_cache(maxsize=1 << 10)
def type_named(name: str) -> AnyType | None:
    """Return the type of that name, or None. Raises UserError for a vector that is too long."""
    parts = _VECTOR.fullmatch(name)
    if parts is not None:
        elem = type_named(parts[1])
        return vector(elem, int(parts[2])) if isinstance(elem, Type) else None
    pointee, star, space = name.partition("*")
    if star and pointee in SCALARS and space in _SPACES:
        return pointer(SCALARS[pointee], _SPACES[space])
    return SCALARS.get(name)


class Cursor:
    """The tokens of the current line, the position among them, and methods that take tokens from it."""

    def __init__(self) -> None:
        self.number, self.text = 0, ""  #: of the current line
        self.words: list[str] = [""]  #: the tokens of the line, then an empty one
        self.columns: list[int] = [0]  #: of each token
        self.at = 0  #: index of the next token
        self._cache: dict[str, Any] = {}

    def begin(self, number: int, text: str) -> None:
        """Make a line the current one; its first token is the next one."""
        self.number, self.text, self.at = number, text, 0
        self.words, self.columns = tokens(text)

    @property
    def place(self) -> tuple[int, str, int]:
        """The current line and the index of the next token, for `return_to`."""
        return self.number, self.text, self.at

    def return_to(self, place: tuple[int, str, int]) -> None:
        """Go back to a `place` read before, so that errors point there."""
        number, text, at = place
        self.begin(number, text)
        self.at = at

    def error(self, message: str, at: int | None = None) -> UserError:
        """Return an error that points at a token, by default at the next one."""
        column = self.columns[self.at if at is None else at]
        return PointedError(f"{message}, in line {self.number}", self.text, column)

    def made(self, maker: Callable[..., T], *args: Any, **named: Any) -> T:
        """Return `maker(...)`. If it refuses its arguments, raise an error that points at the last token taken."""
        at = max(0, self.at - 1)
        try:
            return maker(*args, **named)
        except PointedError as e:
            raise self.error(e.message, at) from None
        except (TypeError, AttributeError, ArithmeticError, ValueError, KeyError, UserError) as e:
            raise self.error(f"{getattr(maker, '__name__', 'value')}: {e}", at) from None

    def cached(self, text: str, make: Callable[[], T]) -> T:
        """Return `make()`, or what it returned before for the same text."""
        record = self._cache.get(text)
        if record is None:
            record = self._cache[text] = make()
        return record

    # ------------------------------------------------------------ tokens

    @property
    def column(self) -> int:
        """The column of the next token."""
        return self.columns[self.at]

    @property
    def ends(self) -> bool:
        """Whether nothing or only a remark follows in the line."""
        return not self.words[self.at] or self.words[self.at].startswith("#")

    def skip_to(self, column: int) -> None:
        """Skip the tokens that begin before a column."""
        while self.at < len(self.words) - 1 and self.columns[self.at] < column:
            self.at += 1

    def sees(self, word: str) -> bool:
        """Return whether the next token is this one."""
        return self.words[self.at] == word

    def following(self) -> str:
        """Return the token after the next."""
        return self.words[min(self.at + 1, len(self.words) - 1)]

    def skip(self, *words: str) -> bool:
        """Take these tokens if they are the next ones; return whether they are."""
        end = self.at + len(words)
        if tuple(self.words[self.at : end]) != words:
            return False
        self.at = end
        return True

    def take(self, *words: str) -> None:
        """Take these tokens. Raises UserError at any other token."""
        for word in words:
            if self.words[self.at] != word:
                raise self.error(f"{self.given()}, wanted {word!r}")
            self.at += 1

    def given(self) -> str:
        """Return the next token, in the words of an error."""
        word = self.words[self.at]
        return f"given {ascii(word)[:40]}" if word else "given nothing more"

    def end(self) -> None:
        """Raise UserError unless the line ends here, or a remark follows."""
        if not self.ends:
            raise self.error(f"{self.given()}, wanted the end of the line")

    def name(self) -> str:
        """Take a name, plain or in backquotes."""
        word = self.words[self.at]
        if not (word[:1].isalpha() or word[:1] in ("_", "`")) or word == "`":
            raise self.error(f"{self.given()}, wanted a name")
        self.at += 1
        return word.strip("`")

    def names(self) -> list[str]:
        """Take names with commas between them."""
        found = [self.name()]
        while self.skip(","):
            found.append(self.name())
        return found

    @property
    def at_number(self) -> bool:
        return self.words[self.at][:1].isdigit()

    def integer(self) -> int:
        """Take a decimal integer of at most 64 bits."""
        is_negative = self.skip("-")
        word = self.words[self.at]
        if not (word.isdigit() and word.isascii()) or len(word) > _MOST_DIGITS or int(word) >= 1 << 64:
            raise self.error(f"{self.given()}, wanted an integer of at most 64 bits")
        self.at += 1
        return -int(word) if is_negative else int(word)

    def string(self) -> str:
        """Take a text in double quotes."""
        word = self.words[self.at]
        try:
            found = json.loads(word) if word.startswith('"') else None
        except ValueError:
            found = None
        if not isinstance(found, str):
            raise self.error(f"{self.given()}, wanted a text in double quotes")
        self.at += 1
        return found

    def type(self) -> AnyType:
        """Take the name of a type."""
        at, name = self.at, self.name()
        if self.skip("*"):
            name = f"{name}*{self.name()}"
        found = self.made(type_named, name)
        if found is None:
            raise self.error(f"given the type {name[:40]}, wanted one such as f16, s32 or f16x8", at)
        return found

    def scalar_type(self) -> Type:
        """Take the name of a type that is no vector and no pointer."""
        at, found = self.at, self.type()
        if not isinstance(found, Type):
            raise self.error(f"given {found}, wanted the type of an element", at)
        return found
