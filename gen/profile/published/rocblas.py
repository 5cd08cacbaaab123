"""Products of rocBLAS: per cent of the matrix units' peak at the clock at which the card ran."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

from convgen.profile.chips import CHIPS, Chip
from convgen.profile.published.table import BYTES, Row, Sample, Table, products

_THREADS = re.compile(r"_WG(\d+)_(\d+)_(\d+)")  #: of a workgroup; where its waves share K they are more than M x N
_LEAST = 2.0  #: per cent; figures have three decimals, and below that they are all start


def table(name: str, rows: list[Row], chip: Chip) -> Table:
    """The table of one chip."""

    def kinds(row: Row) -> tuple[str, ...]:
        by_type = f"rocblas/{chip.name}/{row['dtype']}"
        return f"{by_type}/{row['trans']}", by_type, f"rocblas/{chip.name}"

    return Table(
        name,
        rows,
        "eff_pct",
        timed=False,
        scale=1.0,
        shape=lambda row: f"{row['M']}x{row['N']}x{row['B']}x{row['K']}",
        kinds=kinds,
        sample=_sample(chip),
        counts=lambda row: float(row["eff_pct"]) >= _LEAST,
        results=frozenset(("eff_pct",)),
        labels=("dtype", "trans", "mi"),
    )


def _sample(chip: Chip) -> Callable[[Row], Sample]:
    def sample(row: Row) -> Sample:
        m, n, k, batch = (float(row[c]) for c in ("M", "N", "K", "B"))
        source, _, out = row["dtype"].partition("_out_")
        waves_m, waves_n = map(float, row["waves"].split("x"))
        threads = _THREADS.search(row.get("kernel", ""))
        found = products(
            rate=chip.rates[source],
            m=m,
            n=n,
            k=k,
            batch=batch,
            split=float(row["gsu"]),
            tile_m=float(row["tile_m"]),
            tile_n=float(row["tile_n"]),
            tile_k=float(row["depth_u"]),
            waves=prod(map(float, threads.groups())) / 64 if threads else waves_m * waves_n,
            waves_m=waves_m,
            waves_n=waves_n,
            elem=BYTES[source],
            result=4.0 if out == "s32" else BYTES[out or source],
            # Matrices are stored by columns: T of the first, and N of the second, are contiguous along K.
            k_runs_m=float(row["trans"][0] == "T"),
            k_runs_n=float(row["trans"][1] == "N"),
        )
        return Sample(_measured_on(chip, row), 2 * m * n * k * batch, found["rate"], found)

    return sample


def _measured_on(chip: Chip, row: Row) -> Chip:
    """The chip that a row is from.

    In the table of the MI300X, f32 rows whose tiles fill whole rounds of 228 units, and not of 304, have up to 98 %
    of the peak where 304 units could reach 75: they are from an MI300A, and relative to its peak.
    """
    other = CHIPS["mi300a"]
    tiles = prod(-(-int(row[size]) // int(row[tile])) for size, tile in (("M", "tile_m"), ("N", "tile_n")))
    groups = tiles * int(row["B"]) * int(row["gsu"])
    is_other = chip.name == "mi300x" and row["dtype"] == "f32" and groups % other.units == 0 and groups % chip.units > 0
    return other if is_other else chip
