"""Forms of statements: `Stmt.form` is split once into literal words and fields, for writer and reader alike.

`{value}` is a field. `{mask: if |true}` is an optional one: it is written behind the prefix ` if `, and left out with
its prefix if its value is `true`. Such values are `true`, `0`, nothing (an empty tuple) and `layout`, the statement's
layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from string import Formatter
from typing import Any, NamedTuple

from convgen.ir.expr import const
from convgen.ir.node import CLASSES
from convgen.ir.stmt import Stmt
from convgen.ir.text.lexer import words
from convgen.ir.types import bool_

#: (value as a form spells it, annotation of the field) -> the value.
_VALUES: dict[tuple[str, str], Any] = {
    ("true", "Expr"): const(True, bool_),
    ("0", "Expr"): const(0),
    ("0", "int"): 0,
    ("", "tuple[Expr, ...]"): (),
}


class Part(NamedTuple):
    """A literal, whose text is `prefix` (`field` is empty), or a field, with its annotation and the text before it."""

    prefix: str
    field: str = ""
    kind: str = ""
    absent: str | None = None  #: the value that is not written, as the form spells it; None if all are written

    @property
    def words(self) -> tuple[str, ...]:
        """The tokens of the literal or the prefix."""
        return words(self.prefix)

    def default(self, field_of: Any) -> Any:
        """Return the value that is not written; `field_of` gives the statement's fields by name."""
        return field_of("layout") if self.absent == "layout" else _VALUES[self.absent or "", self.kind]


_PARTS: dict[type[Any], tuple[Part, ...]] = {}


def parts_of(cls: type[Stmt]) -> tuple[Part, ...]:
    """Return the parts of a statement class in order."""
    if cls not in _PARTS:
        _PARTS[cls] = tuple(_parts(cls))
    return _PARTS[cls]


def _parts(cls: type[Stmt]) -> Iterator[Part]:
    for text, field, spec, _ in Formatter().parse(cls.form):
        if text:
            yield Part(text)
        if field:
            prefix, bar, absent = (spec or "").rpartition("|")
            yield Part(prefix, field, cls.declared[field].annotation, absent if bar else None)


@cache
def classes_with_form() -> tuple[type[Stmt], ...]:
    """Return the statement classes of `convgen.ir` that have a form: classes of tests are not in the language."""
    stmts = (c for c in CLASSES.values() if issubclass(c, Stmt) and c.__module__.startswith("convgen.ir."))
    return tuple(c for c in stmts if hasattr(c, "form"))


#: Words that a statement or an expression may begin with, beside those of forms.
_STRUCTURE = ("lane", "true", "false", "inf", "nan", "for", "carrying", "yield", "if", "else", "do", "pass")
_ROOTS = ("program", "kernel")


@cache
def reserved() -> frozenset[str]:
    """Return the words of the language. A variable or memory named like one is written in backquotes."""
    found = {*_STRUCTURE, *_ROOTS}
    for cls in classes_with_form():
        parts = parts_of(cls)
        if parts[0].field:  # "{var} = ...", where the words after the sign begin it
            parts = parts[1:]
        found |= {word for word in parts[0].words if word.isidentifier()}
    return frozenset(found)


# ---------------------------------------------------------------- the tree of forms

_MEMORY = ("View", "Shared", "Global", "Plane")


class Fork:
    """A node of the tree of forms: the parts that may follow, and the class whose form may end here."""

    def __init__(self) -> None:
        self.edges: list[tuple[Part, Fork]] = []
        self.ends: Any = None

    def add(self, parts: tuple[Part, ...], cls: type[Stmt]) -> None:
        """Add the rest of a form. Raises TypeError if another class has the same form."""
        if not parts:
            if self.ends is not None:
                raise TypeError(f"{cls.__name__} has the form of {self.ends.__name__}")
            self.ends = cls
            return
        child = next((fork for part, fork in self.edges if _key(part) == _key(parts[0])), None)
        if child is None:
            child = Fork()
            self.edges.append((parts[0], child))
            self.edges.sort(key=lambda edge: _rank(edge[0]))
        child.add(parts[1:], cls)


def _key(part: Part) -> tuple[Any, ...]:
    return part.words, part.field, part.kind, part.absent


def _rank(part: Part) -> int:
    """Return the rank by which a reader tries parts: longest words first, optional fields, names of memory, others."""
    if not part.field:
        return -len(part.words)
    return 1 if part.absent is not None else 2 if part.kind in (*_MEMORY, "Var") else 3


@cache
def forms() -> Fork:
    """Return the root of the tree of all forms."""
    root = Fork()
    for cls in classes_with_form():
        root.add(parts_of(cls), cls)
    return root
