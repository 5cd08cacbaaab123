"""Convolutions of MIOpen with channels last on a die of an MI250: ms by solver; the table does not say their tiles."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from lib.products import SUM
from lib.published.miopen_rows import forward_shape, product_of
from lib.published.mlir import tile_of
from lib.published.table import ALONE, BYTES, Row, Sample, Table, lane_bytes
from lib.usual_tiles import tiled

from convgen.backends.family import chips
from convgen.profile.closed import Terms
from convgen.profile.constants import Entry

_CHIP = chips()["mi250"]  #: 104 units; the column of the card with 110 has the same problems
TILES_BY = "rocblas/mi250x"  #: whose constants choose a tile
_ASSEMBLY = "ConvAsm"  #: solvers of hand-written code; the others are compiled from MLIR
_DEPTH = 16.0  #: elements along K; blocks of K do not cross taps


def table(name: str, rows: list[Row], entries: Mapping[str, Entry]) -> Table:
    """Rows of both solvers: hand-written ones with the tile that the closed form would take, others with MLIR's own.

    The former is that of least clocks by the constants for rocBLAS's products among `entries`.
    """

    def sample(row: Row) -> Sample:
        return _sample(row, entries[f"{TILES_BY}/{row['dtype']}"].terms)

    return Table(
        name,
        rows,
        "ms_104cu",
        timed=True,
        scale=1e3,
        shape=forward_shape,
        kinds=_kinds,
        sample=sample,
        counts=lambda row: bool(row["ms_104cu"]),
        results=frozenset(("ms_104cu", "ms_110cu")),
        labels=("dir", "dtype", "solver"),
    )


def _kinds(row: Row) -> tuple[str, ...]:
    maker = "assembly" if _is_assembly(row) else "mlir"
    by_way = f"miopen nhwc/{_CHIP.name}/{maker} {row['dir']}"
    return f"{by_way}/{row['dtype']}", by_way


def _sample(row: Row, tiles_by: Terms) -> Sample:
    type, way = row["dtype"], row["dir"]
    rate, elem = float(_CHIP.rates[type]), BYTES[type]
    sizes = {
        **_fills(row, elem),
        "rate": rate,
        "elem": elem,
        "result": elem,
        "k_runs_m": float(way != "W"),
        "k_runs_n": float(way == "F"),
        "k_piece_m": inf,
        "launches": 1.0,
    }
    numbers = _chosen(row, sizes, tiles_by) if _is_assembly(row) else _compiled(row, sizes)
    return Sample(_CHIP, 1e9 * float(row["gflop"]), rate, numbers)


def _chosen(row: Row, sizes: dict[str, float], tiles_by: Terms) -> dict[str, float]:
    """Numbers of hand-written code, which was tuned: with the tile of least clocks."""
    product = product_of(row, _DEPTH, merged=int(row["c"]) % _DEPTH > 0)
    return tiled({**sizes, **product, **_lanes(row, sizes["elem"])}, _CHIP, tiles_by)


def _compiled(row: Row, sizes: dict[str, float]) -> dict[str, float]:
    """Numbers of code compiled from MLIR, which was not: its rows are channels of the result, except of weights."""
    elem, way = sizes["elem"], row["dir"]
    product = product_of(row, 1, merged=True)
    m, n, k = (product[name] for name in "mnk")
    tile = tile_of(m, n, k, elem) if way == "W" else tile_of(n, m, k, elem)
    split = tile.split((m, n, k), product["batch"], int(row["n"]), _CHIP.units) if way == "W" else 1
    edges, waves = (tile.rows, tile.columns), (tile.waves_rows, tile.waves_columns)
    (tile_m, tile_n), (waves_m, waves_n) = (edges, waves) if way == "W" else (edges[::-1], waves[::-1])
    lanes = _lanes(row, elem)
    if tile.padded and way != "W":
        lanes = dict.fromkeys(lanes, elem)
    return {
        **sizes,
        **product,
        "lane_m": max(elem, min(lanes["lane_m"], tile.lane(tile_m, elem))),
        "lane_n": max(elem, min(lanes["lane_n"], tile.lane(tile_n, elem))),
        "lane_out": lanes["lane_out"],
        "tile_m": tile_m,
        "tile_n": tile_n,
        "tile_k": tile.depth,
        "split": split,
        "result": SUM if split > 1 else elem,
        "waves": tile.waves,
        "waves_m": waves_m,
        "waves_n": waves_n,
        **(_phases(row, sizes["others"], tile.depth) if way == "B" else {}),
    }


def _phases(row: Row, others: float, depth: int) -> dict[str, float]:
    """Return the numbers of a data gradient compiled from MLIR: each phase of the strides that has taps is a launch.

    Its K goes through all taps of the phase, then to the next channel; with channels last these lie apart.
    """
    y, x, stride_h, stride_w = (int(row[name]) for name in "y x stride_h stride_w".split())
    launches = min(stride_h * stride_w, y * x)
    piece = max(1.0, depth * launches / (y * x))
    return {"launches": launches, "others": others + launches - 1, "k_piece_m": piece}


def _lanes(row: Row, elem: float) -> dict[str, float]:
    """Bytes that a lane loads of operands and stores of the result, as rows of channels allow."""
    c, k = int(row["c"]), int(row["k"])
    rows = {"F": (c, c, k), "B": (k, c, c), "W": (k, c, c)}[row["dir"]]
    return dict(zip(("lane_m", "lane_n", "lane_out"), (lane_bytes(length * elem) for length in rows)))


def _is_assembly(row: Row) -> bool:
    return row["solver"].startswith(_ASSEMBLY)


def _fills(row: Row, elem: float) -> dict[str, float]:
    """Gradients of the source are set to zero before where filters pass over some of it."""
    n, c, h, w, y, x, stride_h, stride_w = (int(row[name]) for name in "n c h w y x stride_h stride_w".split())
    if row["dir"] != "B" or (y >= stride_h and x >= stride_w):
        return ALONE
    return {**ALONE, "others": 1.0, "other_written": n * c * h * w * elem}
