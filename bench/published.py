"""Check convgen's models against published comparisons: the faster variant there should be the faster one here.

FOLDER holds the figures (its README has the sources). A ratio is right if model and publication lie on one side of 1; a
hit rate must be within 5 points, clocks of local memory equal; levels are shown without a verdict.

    HipKittens  windows of workgroups on an MI355X, lanes that local memory serves together, GEMM of several libraries
    Wave        reordered workgroups on an MI300X, hit rates of its L2
    Gluon       a ladder of GEMM kernels on an MI355X, local memory by padding, hit rates of its L2

Steps of the ladder that a config of convgen can take are predicted from convgen's own kernels. With --kernels DIR,
which holds the ladder's (v4_global_prefetch.hsaco and so on), all are predicted from the loops in their machine code,
too.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from lib import entries
from lib.gemm import Gemm
from lib.published import aiter_rows
from lib.published.table import BYTES
from rich.console import Console
from rich.table import Table

import convgen as cg
from convgen.backends.amdgpu.family import FAMILY
from convgen.backends.amdgpu.sim.archs import ARCHS, BankPhases
from convgen.backends.amdgpu.sim.banks import bank_conflicts
from convgen.backends.amdgpu.timing.kernel import profile
from convgen.backends.family import chips
from convgen.ir.record import as_dict
from convgen.problem.matmul import Matmul
from convgen.profile.closed import at_clock

_OWN = Path(__file__).parents[1] / "tests" / "data" / "measured"
_EVEN = 0.01  #: of a ratio; pairs as near as that are even
_POINTS = 5.0  #: by which a hit rate may be off

#: Unit of a comparison -> whether the prediction is right, by (measured, predicted).
_RIGHT: Mapping[str, Callable[[float, float], bool]] = {
    "times": lambda a, b: (a - 1) * (b - 1) > 0 or max(abs(a - 1), abs(b - 1)) < _EVEN,
    "% hits": lambda a, b: abs(a - b) <= _POINTS,
    "clocks": lambda a, b: a == b,
    "banks": lambda a, b: a == b,
    "pairs of lanes": lambda a, b: a == b,
}


@attrs.frozen
class Row:
    """One comparison; a ratio says how many times as quick the second variant is as the first."""

    source: str
    what: str
    unit: str
    measured: float
    told: float  #: predicted by convgen's models

    @property
    def right(self) -> bool | None:
        """None for what is only shown."""
        return _RIGHT[self.unit](self.measured, self.told) if self.unit in _RIGHT else None


def _load(path: Path) -> Any:
    """Return the content of a file, empty if there is none."""
    return json.loads(path.read_text()) if path.exists() else {}


# ---------------------------------------------------------------- orders of workgroups


def _gemm(table: Mapping[str, Any], sizes: str, tile: Sequence[int]) -> Gemm:
    return Gemm.of(table["device"], table["dtype"], sizes, tile)


def windows(folder: Path) -> Iterator[Row]:
    """HipKittens: rows of tiles that a group of workgroups takes, behind a full XCD remap; 0: no mapping."""
    found = _load(folder / "hipkittens" / "grid_micro.json")
    gemm = Gemm.of("mi355x", "bf16", "8192x8192x8192", (256, 256, 64))
    ranked = sorted(found, key=lambda rows: float(found[rows]["tflops"]))
    for slower, quicker in pairwise(ranked):
        measured = found[quicker]["tflops"] / found[slower]["tflops"]
        first, second = (gemm.clocks("rows" if rows == "0" else f"xcc:8+group:{rows}m") for rows in (slower, quicker))
        yield Row("HipKittens windows", f"{slower} to {quicker}", "times", measured, first / second)


def reorders(folder: Path) -> Iterator[Row]:
    """Wave: columns of tiles, then with XCD remap and groups of 8 rows."""
    table = _load(folder / "wave.json")
    of = table.get("reorder", {"tflops": {}})
    for sizes, (usual, other) in of["tflops"].items():
        before, after = map(_gemm(table, sizes, of["tile"]).clocks, of["orders"])
        yield Row("Wave reordering", sizes, "times", other / usual, before / after)


def hit_rates(folder: Path) -> Iterator[Row]:
    """Yield hit rates of L2: Wave's, and those that follow from the counters of Gluon's last two kernels."""
    wave, gluon = (_load(folder / name) for name in ("wave.json", "gluon.json"))
    of = wave.get("hit_rate", {"percent": {}})
    for sizes, rates in of["percent"].items():
        gemm = _gemm(wave, sizes, of["tile"])
        for order, rate in zip(of["orders"], rates):
            yield Row("Wave L2", f"{sizes} {order}", "% hits", rate, gemm.hit_rate(order))
    for order, misses in gluon.get("l2", {"misses": {}})["misses"].items():
        gemm = _gemm(gluon, gluon["sizes"], gluon["tile"])
        measured = 100 * (1 - misses / gluon["l2"]["requests"])
        yield Row("Gluon L2", order, "% hits", measured, gemm.hit_rate(order))


# ---------------------------------------------------------------- local memory


_WAVE = 64  #: lanes
_PHASES = re.compile(r"ds_(read|write)_b(\d+)_(phase|bank)\.txt")
_BANKS = next(arch.banks for arch in ARCHS.values() if arch.name == "gfx950")


def phases(folder: Path) -> Iterator[Row]:
    """Yield HipKittens' LDS: pairs of lanes of an access that conflict in one bank, and the number of banks."""
    for path in sorted((folder / "hipkittens" / "phases").glob("*.txt")):
        match = _PHASES.fullmatch(path.name)
        if match is None:
            continue
        verb, bits, kind = match.groups()
        banks, text = _BANKS[verb, int(bits) // 8], path.read_text()
        if kind == "bank":
            measured = int(re.findall(r"Number of LDS banks: (\d+)", text)[0])
            predicted = _first_conflict(banks, int(bits))
            yield Row("HipKittens LDS", f"ds_{verb}_b{bits}", "banks", measured, predicted)
        else:
            matrix = np.array([line.split()[1:] for line in text.splitlines()[-_WAVE:]], int)
            same = sum(matrix[i, j] == _conflict(banks, int(bits), i, j) for i in range(_WAVE) for j in range(i))
            yield Row("HipKittens LDS", f"ds_{verb}_b{bits}", "pairs of lanes", _WAVE * (_WAVE - 1) / 2, float(same))


def _extra(banks: BankPhases, bits: int, address: Mapping[int, int]) -> int:
    """Return the clocks that bank conflicts add to an access of some lanes, given each lane's address in bytes."""
    word, active = np.zeros((1, _WAVE), np.int64), np.zeros((1, _WAVE), np.bool_)
    for lane, at in address.items():
        word[0, lane], active[0, lane] = at // 4, True
    return bank_conflicts(banks, word, bits // 32, active)


def _conflict(banks: BankPhases, bits: int, first: int, second: int) -> bool:
    """Return whether two lanes of an access conflict if they address different words of one bank."""
    return _extra(banks, bits, {first: 0, second: 4 * banks.banks}) > 0


def _first_conflict(banks: BankPhases, bits: int) -> int:
    """Return the least distance in words, of aligned accesses, at which two lanes of a phase conflict in a bank."""
    first, second = banks.phases[0][:2]
    step = 1 << (bits // 32 - 1).bit_length()
    return next(words for words in range(step, 2048, step) if _extra(banks, bits, {first: 0, second: 4 * words}))


def paddings(folder: Path) -> Iterator[Row]:
    """Yield Gluon's LDS: clocks between a wave's ds_read_b128 while four waves read, by the padding of rows."""
    banks = _BANKS["read", 16]
    for layout in _load(folder / "gluon.json").get("lds", ()):
        at = {lane: layout["row"] * (lane % 16) + layout["piece"] * (lane // 16) for lane in range(_WAVE)}
        padded = {lane: a + sum(a // each * more for each, more in layout["pads"]) for lane, a in at.items()}
        predicted = 4 * (len(banks.phases) + _extra(banks, 128, padded))
        pads = " ".join(f"{each}:+{more}" for each, more in layout["pads"]) or "no padding"
        what = f"rows of {layout['row']} B, {layout['piece']} B a lane, {pads}"
        yield Row("Gluon LDS", what, "clocks", layout["clocks"], predicted)


# ---------------------------------------------------------------- the ladder


_CONFIG = "tile=256x256x32 waves=2x2 mma=32x32x16 acc=a"
#: Steps of the ladder that convgen can take: (from, to) -> (config, passes that are off) of each
_STEPS = {
    ("v3_lds", "v4_global_prefetch"): ((f"{_CONFIG} slots=1", ()), (f"{_CONFIG} slots=2", ())),
    ("v5_local_prefetch", "v5_local_prefetch, scheduled"): (
        (f"{_CONFIG} slots=2", ("schedule",)),
        (f"{_CONFIG} slots=2", ()),
    ),
}
_REORDERED = ("v8_sliceMN", "v9_beyond_hotloop"), ("rows", "xcc:8+group:4m")  #: the step that is but an order


def ladder(folder: Path, kernels: Path | None) -> Iterator[Row]:
    """Gluon: steps from one kernel to the next by the share of clocks in which matrix units work."""
    table = _load(folder / "gluon.json")
    if not table:
        return
    if kernels:
        yield from _coded({name: row["matrix"] for name, row in table["ladder"].items()}, kernels)
        for tile, measured in table["tiles"].items():
            yield from _coded({f"{name}_{tile}": share for name, share in measured.items()}, kernels)
    yield from _taken(table)


def _coded(measured: Mapping[str, float], folder: Path) -> Iterator[Row]:
    """By the machine code of those kernels that are there, each beside the one before."""
    files = {name: folder / f"{name}.hsaco" for name in measured}
    shares = {name: 100 * _share(path.read_bytes()) for name, path in files.items() if path.exists()}
    for name, share in shares.items():
        yield Row("Gluon kernels", name, "% matrix", measured[name], share)
    for first, second in pairwise(shares):
        ratios = (of[second] / of[first] for of in (measured, shares))
        yield Row("Gluon kernels", f"{first} to {second}", "times", *ratios)


def _taken(table: Mapping[str, Any]) -> Iterator[Row]:
    """By convgen's own kernels, and the step that changes nothing but the order of workgroups by the traffic."""
    found = table["ladder"] | {f"{name}, scheduled": row for name, row in table["scheduled"].items()}
    for (first, second), sides in _STEPS.items():
        before, after = (_share(_compiled(table["sizes"], *side)) for side in sides)
        measured = found[second]["matrix"] / found[first]["matrix"]
        yield Row("Gluon steps", f"{first} to {second}", "times", measured, after / before)
    (first, second), orders = _REORDERED
    before, after = map(_gemm(table, table["sizes"], table["tile"]).clocks, orders)
    measured = found[second]["tflops"] / found[first]["tflops"]
    yield Row("Gluon steps", f"{first} to {second}", "times", measured, before / after)


def _share(code: bytes) -> float:
    """The share of its loop in which the matrix units work, one workgroup alone on a unit."""
    (loop,) = profile(code, "a kernel of the ladder", FAMILY.load_latency, 1)[0].loops
    return loop.busy["matrix"] / loop.clocks


def _compiled(sizes: str, config: str, disable: tuple[str, ...]) -> bytes:
    m, n, k = sizes.split("x")
    problem = Matmul.parse(f"{m}x{k}:{k}x{n}", dt="f16", wtag="ba")
    code = cg.compile(cg.build(problem, target="gfx950", config=config, disable=disable)).object
    assert code is not None
    return code


# ---------------------------------------------------------------- levels

_EDGES = ((128, 128), (128, 256), (256, 256))  #: M and N of a tile; the best one counts
_DEPTH = 128  #: bytes along K


@attrs.frozen
class _Level:
    """The constants that predict a good GEMM: for its clocks and, where those are not of time, for the frequency."""

    chip: str
    clocks: str
    clock: str = ""


#: The MI325X is predicted as an MI300X, and 8 bits by constants of bf16: they were measured with block scales only.
_LEVELS = {
    "mi325x": _Level("mi300x", "rocblas/mi300x/bf16", "miopen/mi300x/f16"),
    "mi355x": _Level("mi355x", "aiter/mi355x/bf16/asm"),
}
_GEMMS = re.compile(rf"({'|'.join(_LEVELS)})_(\w+)_gemm\.json")


def levels(folder: Path) -> Iterator[Row]:
    """HipKittens: TFLOP/s of the best library on square products, and of a good kernel by the closed form."""
    for path in sorted((folder / "hipkittens").glob("*_gemm.json")):
        match = _GEMMS.fullmatch(path.name)
        if match is None or match[2] not in chips()[_LEVELS[match[1]].chip].rates:
            continue
        for size, row in _load(path).items():
            best = max(value for key, value in row.items() if key.startswith("tflops"))
            predicted = max(_tflops(_LEVELS[match[1]], match[2], int(size), tile) for tile in _EDGES)
            yield Row("HipKittens GEMM", f"{match[1]} {match[2]} {size}", "TFLOP/s", best, predicted)


def _tflops(level: _Level, dtype: str, size: int, tile: tuple[int, int]) -> float:
    chip, flop = chips()[level.chip], 2.0 * size**3
    numbers = {"cu": chip.units, "M": size, "N": size, "K": size, "tile_m": tile[0], "tile_n": tile[1],
               "tile_k": _DEPTH / BYTES[dtype], "split_k": 1}  # fmt: skip
    row = {"gfx": chip.target, "dtype": dtype, "lib": "asm", "quant": "", "kernel": "", "us": "1"}
    work = aiter_rows.table("level", [row | {name: f"{n:.0f}" for name, n in numbers.items()}]).work
    known = entries.known()
    found = work.estimate(chip, known[level.clocks].terms, timed=not level.clock)
    if not level.clock:
        return 1e-6 * flop / float(found.total[0])
    used = flop / (chip.rates[dtype] * chip.units * found.kernel)
    return 1e-6 * flop * float((at_clock(chip, known[level.clock].terms, used) / found.total)[0])


# ---------------------------------------------------------------- what is printed


def rows(folder: Path, kernels: Path | None = None) -> Iterator[Row]:
    """All that the folder has figures of."""
    for part in (windows, reorders, hit_rates, phases, paddings):
        yield from part(folder)
    yield from ladder(folder, kernels)
    yield from levels(folder)


def show(found: Sequence[Row]) -> None:
    table = Table("source", "what", "unit", "measured", "told", "")
    verdicts = {True: "right", False: "[bold red]missed", None: ""}
    for row in found:
        table.add_row(row.source, row.what, row.unit, f"{row.measured:.4g}", f"{row.told:.4g}", verdicts[row.right])
    console = Console()
    console.print(table)
    judged = [row for row in found if row.right is not None]
    console.print(f"{sum(not row.right for row in judged)} of {len(judged)} missed")
    for unit in dict.fromkeys(row.unit for row in found if row.right is None):
        ratios = [row.told / row.measured for row in found if row.unit == unit]
        off, bias = 100 * np.median(np.abs(np.array(ratios) - 1)), np.median(ratios)
        console.print(f"{unit}: off by {off:.1f} % in the median of {len(ratios)}, bias {bias:.3f}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=_OWN, metavar="FOLDER", help="default: the tests' own")
    parser.add_argument(
        "--kernels", type=Path, metavar="DIR", help="code objects of the ladder's kernels, by its names"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    given = parser.parse_args(arguments)
    found = list(rows(given.folder, given.kernels))
    if not found:
        parser.error(f"given {given.folder} without figures, wanted hipkittens/, wave.json or gluon.json there")
    if given.json:
        print(json.dumps({"rows": [as_dict(row) | {"right": row.right} for row in found]}, indent=2))
    else:
        show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
