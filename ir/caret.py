"""User errors that point at one character of the text they complain about."""

from __future__ import annotations

from convgen.ir.error import UserError

_AROUND = 100  #: characters shown on either side


class PointedError(UserError):
    """A wrong character of a descriptor, tag or knob: `column` counts from 0 in the one-line `text`.

    `str` is one line; the excerpt with the caret is a note, so tracebacks show it and front ends may.
    """

    def __init__(self, message: str, text: str, column: int) -> None:
        super().__init__(message, text, column)
        self.message, self.text, self.column = message, text, column
        self.add_note(self.excerpt)

    def __str__(self) -> str:
        return f"{self.message}, at column {self.column + 1}"

    @property
    def excerpt(self) -> str:
        """Return the text and, on the next line, a caret under the character."""
        text, column = self._window()
        return f"  {text}\n  {' ' * column}^"

    @property
    def one_line(self) -> str:
        """Return the message and the text with a caret inserted before the character, for logs and pipes."""
        text, column = self._window()
        return f"{self}: {text[:column]}^{text[column:]}"

    def _window(self) -> tuple[str, int]:
        """Return the text around the character, unprintable characters as `?`, and the character's column in it."""
        start = max(0, self.column - _AROUND)
        text = self.text[start : self.column + _AROUND]
        return "".join(c if c.isprintable() else "?" for c in text), self.column - start
