"""The text of layouts as MLIR attributes: `#dialect.name<field = [1, 2], other = [3]>`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from convgen.ir.caret import PointedError
from convgen.ir.error import named

_HEAD = re.compile(r"\s*(#[\w.]*)\s*(<?)")
_FIELD = re.compile(r"\s*(\w+)\s*=\s*\[([^\[\]]*)\]\s*")
_INTEGER = re.compile(r"\s*(-?[0-9]{1,9})\s*")


def written(name: str, fields: Mapping[str, Sequence[int]]) -> str:
    """Return the text of the attribute `name` with its lists of integers."""
    return f"#{name}<{', '.join(f'{field} = {list(values)}' for field, values in fields.items())}>"


def read(text: str, name: str, fields: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the lists of integers of an attribute, one for each of `fields`, in any order.

    The name may be left out, with or without the angle brackets. Raises PointedError.
    """
    at, end = _body(text, name)
    values: dict[str, tuple[int, ...]] = {}
    while True:
        field = _FIELD.match(text, at, end)
        if field is None:
            raise PointedError(f"given {_shown(text[at:end])}, wanted FIELD = [INTEGERS]", text, at)
        if field[1] not in fields or field[1] in values:
            given = f"{field[1]} twice" if field[1] in values else named(field[1], fields)
            raise PointedError(f"given {given}, wanted each of {', '.join(fields)}", text, field.start(1))
        values[field[1]] = tuple(_integers(text, field.start(2), field.end(2)))
        at = field.end()
        if at == end:
            break
        if text[at] != ",":
            raise PointedError(f"given {_shown(text[at:end])}, wanted a comma or the end", text, at)
        at += 1
    missing = [field for field in fields if field not in values]
    if missing:
        raise PointedError(f"given no {missing[0]}, wanted each of {', '.join(fields)}", text, end)
    return values


def _body(text: str, name: str) -> tuple[int, int]:
    """Return the first column of the fields and the column behind them."""
    head = _HEAD.match(text)
    if head and (head[1] != f"#{name}" or not head[2]):
        raise PointedError(f"given {_shown(head[0].strip())}, wanted #{name}<", text, head.start(1))
    start = head.end() if head else len(text) - len(text.lstrip())
    opened = bool(head)
    if not opened and text[start : start + 1] == "<":
        start, opened = start + 1, True
    end = len(text.rstrip())
    if opened and text[start:end][-1:] != ">":
        raise PointedError("given no >, wanted one", text, end)
    return start, end - opened


def _integers(text: str, at: int, end: int) -> Iterator[int]:
    """Yield the integers of a list, which may be empty."""
    if not text[at:end].strip():
        return
    while True:
        number = _INTEGER.match(text, at, end)
        if number is None:
            raise PointedError(f"given {_shown(text[at:end])}, wanted an integer of up to 9 digits", text, at)
        yield int(number[1])
        at = number.end()
        if at == end:
            return
        if text[at] != ",":
            raise PointedError(f"given {_shown(text[at:end])}, wanted a comma or ]", text, at)
        at += 1


def _shown(text: str) -> str:
    """Return a quoted excerpt of the input for an error message."""
    return repr(text if len(text) <= 20 else f"{text[:20]}...") if text else "the end"
