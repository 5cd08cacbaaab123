"""Read untrusted JSON: launch records, journals. Errors name the entry and the value that is wanted."""

from __future__ import annotations

import json
from typing import TypeAlias

from convgen.ir.checks import check_name
from convgen.ir.error import UserError
from convgen.ir.record import frozen
from convgen.ir.untrusted import shown

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_MOST = 1e18  #: largest number


@frozen
class Entry:
    """A JSON value and the path in the file that led to it, for errors."""

    value: Json
    file: str
    path: str = ""

    @classmethod
    def parse(cls, text: str, where: str) -> Entry:
        """Return the value of a JSON text. Raises UserError."""
        try:
            return cls(json.loads(text), where)
        except (ValueError, RecursionError) as error:
            raise UserError(f"given {where}, wanted JSON: {shown(error, 200)}") from None

    @property
    def place(self) -> str:
        return f"{self.path} of {self.file}" if self.path else self.file

    def error(self, wanted: str) -> UserError:
        given = shown(json.dumps(self.value), 40)
        return UserError(f"given {given}, wanted {wanted}, at {self.place}")

    def __getitem__(self, key: str) -> Entry:
        if not isinstance(self.value, dict):
            raise self.error(f"an object with {key!r}")
        if key not in self.value:
            raise UserError(f"given no {key!r}, wanted one, at {self.place}")
        return Entry(self.value[key], self.file, f"{self.path}.{key}".lstrip("."))

    def has(self, key: str) -> bool:
        return isinstance(self.value, dict) and key in self.value

    def items(self, most: int) -> list[Entry]:
        if not isinstance(self.value, list):
            raise self.error("a list")
        if len(self.value) > most:
            raise UserError(f"given a list of {len(self.value)}, wanted at most {most} items, at {self.place}")
        return [Entry(item, self.file, f"{self.path}[{n}]") for n, item in enumerate(self.value)]

    def text(self, *, empty: bool = False) -> str:
        """Return text without NUL, which no file name, problem or name of a kernel has."""
        if not isinstance(self.value, str) or "\0" in self.value or not (self.value or empty):
            raise self.error("text")
        return self.value

    def name(self, what: str) -> str:
        """Return text that may name a file and stand in assembly."""
        text = self.text()
        try:
            check_name(text, what)
        except UserError as error:
            raise UserError(f"{error}, at {self.place}") from None
        return text

    def optional_text(self, key: str) -> str | None:
        return self[key].text() if self.has(key) and self[key].value is not None else None

    def one_of(self, *words: str) -> str:
        if self.value not in words:
            raise self.error(" or ".join(words))
        return self.text()

    def integer(self, least: int, most: int) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool) or not least <= self.value <= most:
            raise self.error(f"an integer from {least} to {most}")
        return self.value

    def number(self) -> float:
        if not isinstance(self.value, int | float) or isinstance(self.value, bool) or not -_MOST <= self.value <= _MOST:
            raise self.error("a number")
        return self.value

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.error("true or false")
        return self.value
