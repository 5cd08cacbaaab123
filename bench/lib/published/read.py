"""The tables of a folder."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lib import entries as known_entries
from lib.published import aiter_rows, miopen_rows, nhwc, rocblas
from lib.published.table import Row, Table

from convgen.backends.family import chip_of
from convgen.backends.timing import LoopClocks
from convgen.ir.error import UserError
from convgen.profile.constants import Entry

Entries = Mapping[str, Entry]  #: by kind

#: Table -> how it is read. The constants are those by which tiles are chosen where a table does not say them: a table
#: stands behind those whose constants it wants.
_READERS: dict[str, Callable[[str, list[Row], Entries], Table]] = {
    "rocblas_gfx90a": lambda name, rows, _: rocblas.table(name, rows, chip_of("gfx90a", 110)),
    "rocblas_gfx942": lambda name, rows, _: rocblas.table(name, rows, chip_of("gfx942", 304)),
    "aiter_gemm": lambda name, rows, _: aiter_rows.table(name, rows),
    "miopen_gfx942_igemm": lambda name, rows, _: miopen_rows.igemm(name, rows),
    "miopen_gfx90a_nhwc": nhwc.table,
}

Clocks = Mapping[tuple[str, str], LoopClocks]  #: by target and name of a kernel

#: Table -> how it is read where kernels are known, and which kernel a row has.
_CODED: dict[str, tuple[Callable[[str, list[Row], Clocks], Table], Callable[[Row], tuple[str, str]]]] = {
    "miopen_gfx942_igemm": (miopen_rows.igemm_code, miopen_rows.code_of),
    "aiter_gemm": (aiter_rows.coded, aiter_rows.code_of),
}


def read(
    folder: Path, only: Sequence[str] = (), clocks: Clocks | None = None, entries: Entries | None = None
) -> list[Table]:
    """The tables of a folder that the model knows (NAME.csv.gz), or `only` some of them.

    Rows of kernels whose `clocks` are given stand in a table of their own. `entries` are the constants by which tiles
    are chosen where a table does not say them, by default those that come with convgen; they are looked up when rows
    are wanted, so that tables may be fitted one after the other, each by what was found of those before.

    Raises UserError where there is none, or one that is not known.
    """
    for name in only:
        if name not in _READERS:
            raise UserError(f"given the table {name}, wanted one of {', '.join(_READERS)}")
    found = [(name, folder / f"{name}.csv.gz") for name in only or _READERS]
    by = known_entries.known() if entries is None else entries
    tables = [table for name, path in found if path.exists() for table in _tables(name, _rows(path), clocks or {}, by)]
    if not tables:
        raise UserError(f"given {folder} without tables, wanted one of {', '.join(_READERS)} (.csv.gz)")
    return tables


def _tables(name: str, rows: list[Row], clocks: Clocks, entries: Entries) -> list[Table]:
    if name not in _CODED:
        return [_READERS[name](name, rows, entries)]
    coded, code_of = _CODED[name]
    known, others = ([row for row in rows if (code_of(row) in clocks) == is_known] for is_known in (True, False))
    found = [coded(f"{name}_code", known, clocks)] if known else []
    return [*found, *([_READERS[name](name, others, entries)] if others else [])]


def _rows(path: Path) -> list[Row]:
    with gzip.open(path, "rt", newline="") as file:
        return list(csv.DictReader(file))
