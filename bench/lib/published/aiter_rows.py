"""Products of AITER, an inference library: us, with warm caches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import ceil, inf

from lib.products import SUM
from lib.published.table import ALONE, BYTES, WIDEST, Row, Sample, Table, of_loop

from convgen.backends.family import chip_of
from convgen.backends.timing import LoopClocks
from convgen.ir.record import evolve
from convgen.profile.loop_times import Loops

_CK_TILE = re.compile(r"_(64|128|192|256|512)x\d+x\d+x\d+_")  #: threads and tile in the names of ck's kernels
_TILE, _DEPTH = 128.0, 128.0  #: rows, and bytes along K, of a block where nobody says
_RESULT = 2.0  #: bytes of an element; bf16
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
        subsets={f"asm {type} 256x256": _is_large(type) for type in ("bf16", "fp4")},
    )


def coded(name: str, rows: list[Row], clocks: Mapping[tuple[str, str], LoopClocks]) -> Table:
    """Rows whose kernels' clocks are known."""
    return evolve(
        table(name, rows), kinds=_code_kinds, sample=lambda row: _loop(row, clocks[code_of(row)]), model=Loops
    )


def code_of(row: Row) -> tuple[str, str]:
    """Target and name of a row's kernel."""
    return row["gfx"], row["kernel"]


def _code_kinds(row: Row) -> tuple[str, ...]:
    chip = f"aiter code/{chip_of(row['gfx'], int(row['cu'])).name}"
    by_type = f"{chip}/{row['dtype']}"
    return f"{by_type}/{row['tile_m']}x{row['tile_n']}", by_type, chip, "aiter code"


def _loop(row: Row, clocks: LoopClocks) -> Sample:
    chip, type = chip_of(row["gfx"], int(row["cu"])), row["dtype"]
    m, n, k, tile_m, tile_n = (float(row[c]) for c in ("M", "N", "K", "tile_m", "tile_n"))
    split, elem = max(1.0, float(row["split_k"] or 0)), BYTES[type]
    groups = ceil(m / tile_m) * ceil(n / tile_n) * split
    numbers = {
        **of_loop(clocks, chip, groups, k / split, (tile_m, tile_n), (tile_m + tile_n) * elem),
        "bytes_in": (m + n) * k * elem,
        "bytes_out": m * n * _RESULT,
        "added": groups * tile_m * tile_n * SUM if split > 1 else 0.0,
        **ALONE,
    }
    return Sample(chip, 2 * m * n * k, float(chip.rates[_RATES.get(type, type)]), numbers)


def _is_large(type: str) -> Callable[[Row], bool]:
    large = ("asm", type, "256", "256")
    return lambda row: (row["lib"], row["dtype"], row["tile_m"], row["tile_n"]) == large


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
    found = dict(
        ALONE,
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
        result=_RESULT,
        k_runs_m=1.0,
        k_runs_n=1.0,
        k_piece_m=inf,
        launches=1.0,
        lane_m=WIDEST,
        lane_n=WIDEST,
        lane_out=WIDEST,
    )
    return Sample(chip, 2 * m * n * k, found["rate"], found)
