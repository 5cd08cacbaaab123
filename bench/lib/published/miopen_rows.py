"""Implicit GEMM convolutions of MIOpen: ms of all kernels of a call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil, inf

from lib.products import SUM
from lib.published.table import BYTES, WIDEST, Row, Sample, Table, in_half_lines, of_loop
from lib.published.transposes import beside

from convgen.backends.family import chip_of
from convgen.backends.timing import LoopClocks
from convgen.ir.record import evolve, frozen
from convgen.profile.loop_times import Loops

_ATOM = re.compile(r"_wt\d+x\d+x(\d+)_")
_SEVERAL_BLOCKS = "4"  #: K of f16 instructions of several blocks, which have half the rate (CDNA3 ISA, table of MFMA)


_CHIP = chip_of("gfx942", 304)
_USUAL = 16  #: batches are multiples of that; others were measured in a run of their own


def igemm(name: str, rows: list[Row]) -> Table:
    """Rows that say which kernel ran, on an MI300X; transposes and casts beside it are part of the time."""
    return Table(
        name,
        rows,
        "ms",
        timed=True,
        scale=1e3,
        shape=forward_shape,
        kinds=lambda row: _kinds(f"miopen/mi300x/{row['dtype']}", row, row["dir"]),
        sample=_product,
        counts=lambda row: True,
        results=frozenset(("ms", "transpose_share_est")),
        labels=("dtype", "dir"),
        subsets={"above 20 GFLOP": lambda row: float(row["gflop"]) > 20},
    )


def igemm_code(name: str, rows: list[Row], clocks: Mapping[tuple[str, str], LoopClocks]) -> Table:
    """Return the table of MIOpen's rows, each with the clocks of its kernel."""
    return evolve(
        igemm(name, rows),
        kinds=lambda row: _kinds(f"miopen code/mi300x/{row['dtype']}", row),
        sample=lambda row: _loop(row, clocks[code_of(row)]),
        model=Loops,
    )


def code_of(row: Row) -> tuple[str, str]:
    """Target and name of a row's kernel."""
    return _CHIP.target, row["kernel"]


def _kinds(kind: str, row: Row, *narrower: str) -> tuple[str, ...]:
    """Rows that were measured in another run than most are of a kind of their own.

    f32 with batches of 1, 6, 8, 11, 21, 27, 28 and 30 takes 1.9 times what others tell, transposes and kernels of all
    directions, images and filters alike: launches begin 28 us later and clocks are lower.
    """
    if row["dtype"] == "f32" and int(row["n"]) % _USUAL:
        return (f"{kind}/another run",)
    return *(f"{kind}/{name}" for name in narrower), kind


def forward_shape(row: Row) -> str:
    """The forward shape of a convolution, without direction, type and layout."""
    columns = "n c h w k y x ho wo pad_h pad_w stride_h stride_w dil_h dil_w g".split()
    return "-".join(row[c] for c in columns)


def product_of(row: Row, depth: float, *, merged: bool) -> dict[str, float]:
    """M, N and K of a convolution as a product, and how many such products there are.

    A block of K holds `depth` elements of one tap, or of several if `merged`.
    """
    names = "n c h w k y x ho wo stride_h stride_w g".split()
    n, c, h, w, k, y, x, ho, wo, stride_h, stride_w, g = (float(row[name]) for name in names)
    c, k, taps, phases = c / g, k / g, y * x, stride_h * stride_w

    def along(channels: float, taps: float) -> float:
        return channels * taps if merged else taps * ceil(channels / depth) * depth

    match row["dir"]:
        case "F":
            return {"m": n * ho * wo, "n": k, "k": along(c, taps), "batch": g}
        case "B":
            pixels = n * ceil(h / stride_h) * ceil(w / stride_w)
            return {"m": pixels, "n": c, "k": along(k, max(1.0, taps / phases)), "batch": g * min(phases, taps)}
        case _:
            return {"m": k, "n": c * taps, "k": n * ho * wo, "batch": g}


@frozen
class _Tiled:
    """The product of a row, and how it is shared out."""

    product: dict[str, float]
    tile_m: float
    tile_n: float
    tile_k: float
    split: float  #: workgroups that share the K of a tile

    @classmethod
    def of(cls, row: Row) -> _Tiled:
        tile_m, tile_n, tile_k, cut = (float(row[c]) for c in ("tile_m", "tile_n", "tile_k", "gks"))
        product, split = product_of(row, tile_k, merged=row["merge_e"] == "1"), 2.0**cut
        if row["dir"] == "W":
            tiles = ceil(product["m"] / tile_m) * ceil(product["n"] / tile_n) * product["batch"]
            split = max(1.0, _CHIP.units * cut // tiles)
        blocks = ceil(product["k"] / tile_k)
        return cls(product, tile_m, tile_n, tile_k, ceil(blocks / ceil(blocks / split)))  # those without work are left

    @property
    def groups(self) -> float:
        tiles = ceil(self.product["m"] / self.tile_m) * ceil(self.product["n"] / self.tile_n)
        return tiles * self.product["batch"] * self.split


def _product(row: Row) -> Sample:
    tiled, elem = _Tiled.of(row), BYTES[row["dtype"]]
    atom = _ATOM.search(row["kernel"])
    rate = float(_CHIP.rates[row["dtype"]])
    if row["dtype"] == "f16" and atom and atom[1] == _SEVERAL_BLOCKS:
        rate /= 2
    found = dict(
        rate=rate,
        **tiled.product,
        tile_m=tiled.tile_m,
        tile_n=tiled.tile_n,
        tile_k=tiled.tile_k,
        split=tiled.split,
        waves=4.0,
        waves_m=2.0,
        waves_n=2.0,
        elem=elem,
        result=SUM if tiled.split > 1 else elem,
        k_runs_m=float(row["dir"] != "W"),
        k_runs_n=float(row["dir"] == "F"),
        k_piece_m=inf,
        launches=1.0,
        lane_m=WIDEST,
        lane_n=WIDEST,
        lane_out=WIDEST,
        **beside(row),
    )
    return Sample(_CHIP, 1e9 * float(row["gflop"]), rate, found)


def _loop(row: Row, clocks: LoopClocks) -> Sample:
    tiled, elem = _Tiled.of(row), BYTES[row["dtype"]]
    blocks = ceil(ceil(tiled.product["k"] / tiled.tile_k) / tiled.split)
    n, c, h, w, k, y, x, ho, wo, g = (float(row[name]) for name in "n c h w k y x ho wo g".split())
    tensors = {"B": n * c * h * w * elem, "W": k * c / g * y * x * elem, "F": n * k * ho * wo * elem}
    out = tensors[row["dir"]]
    along_m, along_n = {
        "F": (min(tiled.tile_k, c / g), min(tiled.tile_k, c / g)),
        "B": (min(tiled.tile_k, k / g), min(tiled.tile_n, c / g)),
        "W": (min(tiled.tile_m, k / g), min(tiled.tile_n, c / g)),
    }[row["dir"]]  # contiguous elements of the operands
    sides = (tiled.tile_m, along_m), (tiled.tile_n, along_n)
    operands = sum(edge * elem * in_half_lines(run * elem) for edge, run in sides)
    numbers = {
        **of_loop(clocks, _CHIP, tiled.groups, blocks * tiled.tile_k, (tiled.tile_m, tiled.tile_n), operands),
        "bytes_in": sum(tensors.values()) - out,
        "bytes_out": out,
        "added": tiled.groups * tiled.tile_m * tiled.tile_n * SUM if tiled.split > 1 else 0.0,
        **beside(row),
    }
    return Sample(_CHIP, 1e9 * float(row["gflop"]), float(_CHIP.rates[row["dtype"]]), numbers)
