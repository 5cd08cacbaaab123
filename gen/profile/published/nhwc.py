"""Convolutions of MIOpen with channels last on a die of an MI250: ms by solver; of their tiles nothing is known."""

from __future__ import annotations

from convgen.profile import constants
from convgen.profile.chips import CHIPS
from convgen.profile.published.miopen import forward_shape, product_of
from convgen.profile.published.table import ALONE, BYTES, Row, Sample, Table, lane_bytes
from convgen.profile.tiles import tiled

_CHIP = CHIPS["mi250"]  #: 104 units; the column of the card with 110 has the same problems
_TILES_BY = "rocblas/mi250x"  #: whose constants choose a tile
_ASSEMBLY = "ConvAsm"  #: solvers of hand-written code; the others are compiled from MLIR
_WHOLE = 64  #: pixels; those compiled load one element a lane and instruction where tiles of these do not fill M
_DEPTH = 16.0  #: elements along K; blocks of K do not cross taps


def table(name: str, rows: list[Row]) -> Table:
    """Rows of both solvers, each with the tile that the closed form would take."""
    return Table(
        name,
        rows,
        "ms_104cu",
        timed=True,
        scale=1e3,
        shape=forward_shape,
        kinds=_kinds,
        sample=_sample,
        counts=lambda row: bool(row["ms_104cu"]),
        results=frozenset(("ms_104cu", "ms_110cu")),
        labels=("dir", "dtype", "solver"),
    )


def _kinds(row: Row) -> tuple[str, ...]:
    maker = "assembly" if _is_assembly(row) else "mlir"
    by_maker = f"miopen nhwc/{_CHIP.name}/{maker}"
    by_way = f"{by_maker} {row['dir']}"
    return f"{by_way}/{row['dtype']}", by_way, by_maker


def _sample(row: Row) -> Sample:
    type, way = row["dtype"], row["dir"]
    rate, elem, c, k = float(_CHIP.rates[type]), BYTES[type], int(row["c"]), int(row["k"])
    product = product_of(row, _DEPTH, merged=c % _DEPTH > 0)
    rows = {"F": (c, c, k), "B": (k, c, c), "W": (k, c, c)}[way]
    if way != "W" and product["m"] % _WHOLE > 0 and not _is_assembly(row):
        rows = (1, 1, 1)  # each element is checked
    sizes = {
        **product,
        **_fills(row, elem),
        **dict(zip(("lane_m", "lane_n", "lane_out"), (lane_bytes(length * elem) for length in rows))),
        "rate": rate,
        "elem": elem,
        "result": elem,
        "k_runs_m": float(way != "W"),
        "k_runs_n": float(way == "F"),
    }
    terms = constants.known()[f"{_TILES_BY}/{type}"].terms
    return Sample(_CHIP, 1e9 * float(row["gflop"]), rate, tiled(sizes, _CHIP, terms))


def _is_assembly(row: Row) -> bool:
    return row["solver"].startswith(_ASSEMBLY)


def _fills(row: Row, elem: float) -> dict[str, float]:
    """Gradients of the source are set to zero before where filters pass over some of it."""
    n, c, h, w, y, x, stride_h, stride_w = (int(row[name]) for name in "n c h w y x stride_h stride_w".split())
    if row["dir"] != "B" or (y >= stride_h and x >= stride_w):
        return ALONE
    return {**ALONE, "others": 1.0, "other_written": n * c * h * w * elem}
