"""Forms of statements as parts: literal words and fields, compiled once from `Stmt.form` for writing and reading.

`{value}` is a field. `{mask: if |true}` is an optional one: its text follows the prefix ` if `, and where it has the
value `true` both are left out. Such values are `true`, `0`, nothing (an empty tuple) and `layout`, the statement's own.
"""

from __future__ import annotations

from functools import cache
from string import Formatter
from typing import Any, NamedTuple

from convgen.ir.expr import const
from convgen.ir.node import CLASSES
from convgen.ir.stmt import Stmt
from convgen.ir.text.lexer import words
from convgen.ir.types import bool_

_VALUES: dict[tuple[str, str], Any] = {
    ("true", "Expr"): const(True, bool_),
    ("0", "Expr"): const(0),
    ("0", "int"): 0,
    ("", "tuple[Expr, ...]"): (),
}


class Part(NamedTuple):
    """A literal (`field` is empty) or a field with its annotation; `prefix` is the literal's text, or the field's."""

    prefix: str
    field: str = ""
    kind: str = ""
    absent: str | None = None  #: how the form calls the value that is left out; None if it is always written

    @property
    def words(self) -> tuple[str, ...]:
        """The tokens of the literal or the prefix."""
        return words(self.prefix)

    def default(self, of: Any) -> Any:
        """The value that is left out, in a statement whose fields `of` gives by name."""
        return of("layout") if self.absent == "layout" else _VALUES[self.absent or "", self.kind]


@cache
def parts_of(cls: type[Stmt]) -> tuple[Part, ...]:
    """The parts of a statement class in order."""
    parts = []
    for text, field, spec, _ in Formatter().parse(cls.form):
        if text:
            parts.append(Part(text))
        if field:
            prefix, bar, absent = (spec or "").rpartition("|")
            parts.append(Part(prefix, field, cls.declared[field].annotation, absent if bar else None))
    return tuple(parts)


@cache
def formed() -> tuple[type[Stmt], ...]:
    """The statement classes that have a form."""
    stmts = (c for c in CLASSES.values() if issubclass(c, Stmt) and c.__module__.startswith("convgen.ir."))
    return tuple(c for c in stmts if hasattr(c, "form"))


#: Words that a statement or an expression may begin with, beside those of forms.
_STRUCTURE = ("lane", "true", "false", "inf", "nan", "for", "carrying", "yield", "if", "else", "do", "pass")
_ROOTS = ("program", "kernel")


@cache
def reserved() -> frozenset[str]:
    """Words of the language: the name of a variable or of memory that is one of these is written in backquotes."""
    found = {*_STRUCTURE, *_ROOTS}
    for cls in formed():
        parts = parts_of(cls)
        if parts[0].field:  # "{var} = ...", where the words after the sign begin it
            parts = parts[1:]
        found |= {word for word in parts[0].words if word.isidentifier()}
    return frozenset(found)
