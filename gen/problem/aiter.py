"""AITER's tables of tuned products: files of comma-separated rows, whose first line names the columns.

A row is y[M, N] = x[M, K] * w[N, K] transposed, in `dtype` with results of `outdtype`, with a bias if its column says
so.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import Any

from convgen.ir.error import Unsupported, UserError, named
from convgen.ir.record import frozen

SUFFIX = ".csv"
_SIZES = ("M", "N", "K")
_TYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "int8": "s8",
    "int32": "s32",
    "float8_e4m3fn": "f8_e4m3",
    "float8_e4m3fnuz": "f8_e4m3fnuz",
}
_TRUE, _FALSE = ("true", "1"), ("false", "0", "none", "")


@frozen
class Row:
    """A product of a table: its descriptor and knobs, or why it is none; `number` is that of its line."""

    number: int
    descriptor: str
    knobs: Mapping[str, str]
    error: Exception | None = None


def rows(text: str) -> Iterator[Row]:
    """The products of a table. Raises UserError where its first line names no sizes."""
    try:
        yield from _rows(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise UserError(f"given a table that cannot be read: {error}") from None


def _rows(reader: Any) -> Iterator[Row]:
    names = [name.strip() for name in next(reader, [])]
    for name in _SIZES:
        if name not in names:
            raise UserError(f"given a table without the column {name}, wanted {', '.join(_SIZES)} and dtype")
    for values in reader:
        if not values:
            continue
        shown = ",".join(values)[:60]
        try:
            if len(values) != len(names):
                raise UserError(f"given {len(values)} columns, wanted {len(names)}")
            yield Row(reader.line_num, *_product(dict(zip(names, map(str.strip, values)))))
        except (UserError, Unsupported) as error:
            yield Row(reader.line_num, shown, {}, error)


def _product(row: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    for name in _SIZES:
        if not row[name].isdigit():
            raise UserError(f"given {row[name][:40]!r}, wanted a number, in column {name}")
    for name in ("scaleAB", "bpreshuffle"):
        if _flag(row, name):
            raise Unsupported(f"{name} of a table of products", rule=f"table-{name.lower()}")
    if "q_dtype_w" in row or "dtype" not in row:
        raise Unsupported("tables of products whose factors are scaled", rule="table-scaleab")
    m, n, k = (row[name] for name in _SIZES)
    knobs = {"dt": f"{_type(row, 'dtype')}:{_type(row, 'dtype')}:{_type(row, 'outdtype', row['dtype'])}"}
    knobs |= {"stag": "ab", "wtag": "ba", "dtag": "ab"}
    if _flag(row, "bias"):
        knobs |= {"bia-dt": _type(row, "outdtype", row["dtype"]), "bia_mask": "2"}
    return f"{m}x{k}:{k}x{n}", knobs


def _type(row: Mapping[str, str], column: str, default: str = "") -> str:
    text = (row.get(column) or default).removeprefix("torch.")
    if text not in _TYPES:
        raise UserError(f"given the type {named(text, _TYPES)}, wanted one of {', '.join(_TYPES)}, in column {column}")
    return _TYPES[text]


def _flag(row: Mapping[str, str], column: str) -> bool:
    text = row.get(column, "").lower()
    if text not in (*_TRUE, *_FALSE):
        raise UserError(f"given {text[:40]!r}, wanted True or False, in column {column}")
    return text in _TRUE
