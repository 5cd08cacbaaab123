"""Products of rocBLAS: per cent of the matrix units' peak at the clock at which the card ran."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

from lib.published.table import ALONE, BYTES, WIDEST, Row, Sample, Table, lane_bytes

from convgen.backends.family import Chip, chips

_THREADS = re.compile(r"_WG(\d+)_(\d+)_(\d+)")  #: of a workgroup; where its waves share K they are more than M x N
_USUAL_THREADS = 256  #: where a name says nothing of them
#: Elements that a lane loads of M's and of N's operand, or stores, with one instruction; the first that a name spells.
_LANES = {"lane_m": ("GLVWA", "GRVW"), "lane_n": ("GLVWB", "GRVW"), "lane_out": ("SVW", "VWA", "VW")}
_MANY_ROWS = ("mi250x",)  #: chips with enough of them to tell constants of transpositions apart
_PARAMETER = re.compile(r"_([A-Z]+)")  #: a word that a kernel's name spells, without its value
#: Type -> what names of kernels spell, but not those of the run that read slowly: what that run did not try.
_NOT_TRIED = {type_: {"DTVA", "DTVB", "ELFLR", "SU"} for type_ in ("f16", "bf16")}
_NOT_TRIED["f32"] = _NOT_TRIED["f16"] | {"EPS", "EMLL"}
_LEAST = 2.0  #: per cent; figures have three decimals, and below that they are all start


def table(name: str, rows: list[Row], chip: Chip) -> Table:
    """The table of one chip."""

    def kinds(row: Row) -> tuple[str, ...]:
        by_type, own = f"rocblas/{chip.name}/{row['dtype']}", _measured_on(chip, row)
        if own is not chip:
            return f"{by_type}/{own.name}", f"rocblas/{chip.name}"
        if _begins_late(row):
            return f"{by_type}/late", by_type, f"rocblas/{chip.name}"
        if _reads_slowly(row):
            return f"rocblas/{chip.name}/slow", f"rocblas/{chip.name}"
        narrower = (f"{by_type}/{row['trans']}",) if chip.name in _MANY_ROWS else ()
        return *narrower, by_type, f"rocblas/{chip.name}"

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
        apart=lambda row: _begins_late(row) or _reads_slowly(row),
        results=frozenset(("eff_pct",)),
        labels=("dtype", "trans", "mi"),
    )


def _sample(chip: Chip) -> Callable[[Row], Sample]:
    def sample(row: Row) -> Sample:
        m, n, k, batch = (float(row[c]) for c in ("M", "N", "K", "B"))
        source, _, out = row["dtype"].partition("_out_")
        waves_m, waves_n = map(float, row["waves"].split("x"))
        elem, result = BYTES[source], 4.0 if out == "s32" else BYTES[out or source]
        k_runs_m, k_runs_n = row["trans"][0] == "T", row["trans"][1] == "N"
        widths = {
            "lane_m": (elem, k if k_runs_m else m),
            "lane_n": (elem, k if k_runs_n else n),
            "lane_out": (result, m),
        }
        found = dict(
            ALONE,
            rate=chip.rates[source],
            m=m,
            n=n,
            k=k,
            batch=batch,
            launches=1.0,
            split=float(row["gsu"]),
            tile_m=float(row["tile_m"]),
            tile_n=float(row["tile_n"]),
            tile_k=float(row["depth_u"]),
            waves=_waves(row) or waves_m * waves_n,
            waves_m=waves_m,
            waves_n=waves_n,
            elem=elem,
            result=result,
            # Matrices are stored by columns: T of the first, and N of the second, are contiguous along K.
            k_runs_m=float(k_runs_m),
            k_runs_n=float(k_runs_n),
            k_piece_m=k,
            **{name: _lane(row, name, *width) for name, width in widths.items()},
        )
        return Sample(_measured_on(chip, row), 2 * m * n * k * batch, found["rate"], found)

    return sample


def _waves(row: Row) -> float | None:
    """Waves of a workgroup, if the row names its kernel."""
    if "kernel" not in row:
        return None
    threads = _THREADS.search(row["kernel"])
    return (prod(map(int, threads.groups())) if threads else _USUAL_THREADS) / 64


def _lane(row: Row, name: str, elem: float, length: float) -> float:
    """Bytes that a lane moves with one instruction: as the kernel's name says, else as rows of that length allow."""
    spelled = (re.search(rf"_{key}(\d+)", row.get("kernel", "")) for key in _LANES[name])
    elements = next((int(found[1]) for found in spelled if found), None)
    if elements is not None:
        return min(WIDEST, elements * elem)
    return lane_bytes(length * elem)


def _begins_late(row: Row) -> bool:
    """Whether a row is from the tuning run whose launches begin late.

    Those take 9,700 clocks more than the others tell, and 81 more for each unit that has work, whatever they compute:
    as if each were timed by itself, and units had to bring its code one after the other. They are f32 without
    transposes, and the names of that run's kernels, unlike others, spell how operands are loaded or read, but not
    whether shared memory is transposed.
    """
    words = _words(row)
    is_run = bool(words & {"LRVW", "NLCA"}) and "TLDS" not in words
    return is_run and (row["dtype"], row["trans"]) == ("f32", "NN")


def _reads_slowly(row: Row) -> bool:
    """Whether a row is from the tuning run in which operands reached units at a third of the usual rate.

    That run tried neither by how much workgroups stagger (`SU`, all have 32) nor operands that go straight to registers
    (`DTVA`) nor other latencies of local memory (`ELFLR`), which names of other runs' kernels spell. Many of its rows
    are products of vision transformers. They take up to 5.6 times as many clocks as one die of an MI250X does, whose
    table has some of them; so it is not the products. What it is is not known.
    """
    words = _words(row)
    is_run = "TT" in words and row.get("stagger_u") == "32" and row["dtype"] in _NOT_TRIED
    return is_run and not words & _NOT_TRIED[row["dtype"]]


def _words(row: Row) -> set[str]:
    """Return the parameters that the name of a row's kernel spells, if the row has it."""
    return set(_PARAMETER.findall(row.get("kernel", "")))


def _measured_on(chip: Chip, row: Row) -> Chip:
    """The chip that a row is from.

    In the table of the MI300X, f32 rows whose workgroups were ordered in sixes (`wgm`) are from an MI300A, and relative
    to its peak: tuning tries multiples of a chip's XCDs, of which that has six and an MI300X eight. Some of them have
    up to 98 % of the peak where 304 units could reach 75, and none more than its 228 units can.
    """
    other = chips()["mi300a"]
    order = int(row["wgm"])
    is_other = chip.name == "mi300x" and row["dtype"] == "f32" and order > 0 and order % other.partitions == 0
    return other if is_other else chip
