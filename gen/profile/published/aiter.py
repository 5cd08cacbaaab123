"""Products of AITER, an inference library: us, with warm caches."""

from __future__ import annotations

import re

from convgen.profile.chips import chip_of
from convgen.profile.published.table import BYTES, Row, Sample, Table, products

_CK_TILE = re.compile(r"_(64|128|192|256|512)x\d+x\d+x\d+_")  #: threads and tile in the names of ck's kernels
_TILE, _DEPTH = 128.0, 128.0  #: rows, and bytes along K, of a block where nobody says
_RATES = {"i8": "s8"}  #: type -> as chips name it
_UNKNOWN = "gfx1250"  #: has no matrix instructions that the model knows


def table(name: str, rows: list[Row]) -> Table:
    """The rows of chips that the model knows; those of ck and of assembly count."""
    return Table(
        name,
        [row for row in rows if row["gfx"] != _UNKNOWN],
        "us",
        timed=True,
        scale=1.0,
        shape=lambda row: f"{row['M']}x{row['N']}x{row['K']}",
        kinds=_kinds,
        sample=_sample,
        counts=lambda row: row["lib"] in ("ck", "asm"),
        results=frozenset(("us", "tflops", "pct_datasheet")),
        labels=("gfx", "lib", "dtype"),
    )


def _kinds(row: Row) -> tuple[str, ...]:
    chip = f"aiter/{chip_of(row['gfx'], int(row['cu'])).name}"
    by_type, maker = f"{chip}/{row['dtype']}", f"{row['lib']} {row['quant']}".rstrip()
    return tuple(dict.fromkeys((f"{by_type}/{maker}", f"{by_type}/{row['lib']}", by_type, chip)))


def _sample(row: Row) -> Sample:
    chip, type = chip_of(row["gfx"], int(row["cu"])), row["dtype"]
    m, n, k = (float(row[c]) for c in ("M", "N", "K"))
    threads = _CK_TILE.search(row["kernel"])
    waves = float(threads[1]) / 64 if threads else 4.0
    split = float(row["split_k"] or 0)
    found = products(
        rate=chip.rates[_RATES.get(type, type)],
        m=m,
        n=n,
        k=k,
        batch=1.0,
        tile_m=float(row["tile_m"] or 0) or _TILE,
        tile_n=float(row["tile_n"] or 0) or _TILE,
        tile_k=float(row["tile_k"] or 0) or _DEPTH / BYTES[type],
        split=2.0**split if row["lib"] == "ck" else max(1.0, split),
        waves=waves,
        waves_m=max(1.0, waves / 2),
        waves_n=min(2.0, waves),
        elem=BYTES[type],
        result=2.0,
        k_runs_m=1.0,
        k_runs_n=1.0,
    )
    return Sample(chip, 2 * m * n * k, found["rate"], found)
