"""The config: how a kernel is built, as one replayable line of choices."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import lcm
from typing import Any

from convgen.ir.error import UserError
from convgen.ir.layout.order import IN_ROWS, Order
from convgen.ir.record import frozen
from convgen.ir.types import SCALARS

_TRIPLE = re.compile(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)")
_GRID = re.compile(r"([1-9]\d*)x([1-9]\d*)(?:x([1-9]\d*))?")


EXACT, ZEROS = "exact", "zeros"  #: effect of padding on sums: none, or products with zeros
BESIDE = " + "  #: between the configs of problems that are computed in one call
PADDING = EXACT  #: default of `padding=`
#: Variants by which taps and channels become K, in the order in which the chooser tries them: modules of
#: `plan/variants`.
VARIANTS = ("split", "fused", "chunk", "images", "resident", "runs", "shifted", "lines")
SPLIT, FUSED = "split", "fused"
APART, MERGED = "apart", "merged"  #: the products of stride phases: one launch each, or all in one launch
COLUMNS = "columns"  #: stride phases as columns of one product
JOINED = "joined"  #: dims of K that both factors have side by side in memory, as one dim
REGISTERS, DIRECT, TENSOR = "registers", "direct", "tensor"
#: paths from global into shared memory: through registers, by messages of lanes that bypass them, or by bulk copies of
#: tensors, which a subgroup starts that does not multiply
COPIES = (REGISTERS, DIRECT, TENSOR)


@frozen
class LanePart:
    """One lane's part of the result (`mma=fma:...`), by multiply-adds or by matrix instructions on blocks of lanes."""

    channels: int  #: neighbours along N
    rows: int  #: positions along the second to last spatial axis
    columns: int  #: positions along the last axis of space
    #: elements; side x side x K of the matrix instruction on blocks of lanes, None for multiply-adds
    atom: tuple[int, int, int] | None = None

    @property
    def size(self) -> int:
        return self.channels * self.positions

    @property
    def positions(self) -> int:
        return self.rows * self.columns

    def __str__(self) -> str:
        unit = "x".join(map(str, self.atom)) if self.atom else "fma"
        return f"{unit}:{self.channels}x{self.rows}x{self.columns}"


@frozen
class Staging:
    """The input pipeline: shared-memory slots and register stages before them, or (slots=0) a prefetch distance."""

    slots: int
    stages: int = 1
    prefetch: int = 0
    copy: tuple[str, ...] = ()  #: as `Config.copy`; one input that bypasses registers counts for both

    @property
    def in_ring(self) -> bool:
        """Return whether a subgroup that does not multiply fills the slots."""
        return TENSOR in self.copy

    @property
    def in_registers(self) -> int:
        """Return the blocks of K that registers hold on their way to shared memory, 0 with direct copies."""
        return self.stages if self.slots and not self.copy else 0

    @property
    def round(self) -> int:
        """Return the blocks of K after which shared-memory slots and register stages repeat."""
        return lcm(max(1, self.slots), self.stages)

    @property
    def depth(self) -> int:
        """Return the blocks of K from a load to its use in the product, 0 without shared memory."""
        return max(1, self.slots - 1 + self.in_registers) if self.slots else 0

    @property
    def awaited(self) -> int:
        """Return the blocks of K from a load or prefetch to the wait for it.

        A load through registers is awaited before its write to shared memory, any other before its product.
        """
        return self.in_registers or self.depth or self.prefetch


@frozen
class Config:
    """The choices for one kernel, with tile sizes in GEMM terms: M x N outputs, each a sum over K."""

    tile: tuple[int, int, int]  #: elements; M x N x K of a workgroup
    waves: tuple[int, int]  #: subgroups; along M and N of the tile
    #: elements; n x m x k of the matrix instruction, or each lane's part of the result
    mma: tuple[int, int, int] | LanePart
    slots: int = 2  #: buffers of the K loop in shared memory; with 0, fragments are loaded from global memory
    taps: str = SPLIT  #: how taps and channels become K: one of `VARIANTS`
    acc: str = "v"  #: accumulators: "v" in vector registers, "a" in accumulation registers, if the target has any
    slices: int = 1  #: parts of K, each computed by workgroups of its own
    reorder: tuple[str, ...] = ()  #: names of inputs that an earlier kernel reorders into their default layout
    #: Parts of M that a subgroup multiplies in sequence; its registers hold the inputs of one part at a time.
    subtiles: int = 1
    prefetch: int = 0  #: blocks of K; distance between prefetch and load
    #: names of inputs that an earlier kernel lays out as the product reads them; without `types` it converts them
    packed: tuple[str, ...] = ()
    #: How slices are reduced: value of a `plan.Reduction`; empty: `atomic` where that is correct, else `launch`. With
    #: stream-K (`map`), empty is `last` where the target has tickets, else `atomic`.
    sum: str = ""
    at_a_time: int = 0  #: slices; the most that one workgroup adds up on each level of `sum=last`; 0: all, on one level
    map: Order = IN_ROWS  #: order in which workgroups take their tiles
    #: types in which N's and M's inputs are multiplied (one name for both), where either is converted
    types: tuple[str, ...] = ()
    grids: str = APART  #: products of stride phases: "apart" in one launch each, "merged" in one launch
    #: stride phases of backward data: "apart" as one product each, "columns" as columns of one product
    phases: str = APART
    #: dims of K that both factors have side by side in memory: "apart" as several dims, "joined" as one
    pixels: str = APART
    #: groups of weight gradients that one product computes; it drops the sums between different ones
    joined_groups: int = 1
    stages: int = 1  #: blocks of K in registers on their way to shared memory
    copy: tuple[str, ...] = ()  #: paths of N's and M's inputs into shared memory (one name for both): see `COPIES`
    #: "exact": padding adds nothing; "zeros": padding adds 0 * weight, which is NaN if the weight is inf
    padding: str = PADDING
    waves_k: int = 1  #: subgroups; along K of the tile, each computes a partial sum of every output

    @property
    def subgroups(self) -> int:
        """Return the number of subgroups in a workgroup."""
        return self.waves[0] * self.waves[1] * self.waves_k

    @property
    def packs_converted(self) -> bool:
        """Whether a launch that packs inputs also converts and dequantises them: where the product does not."""
        return bool(self.packed) and not self.types

    @property
    def separate_accumulators(self) -> bool:
        return self.acc == "a"

    @property
    def paths(self) -> tuple[str, str]:
        """Return the paths of N's and M's inputs into shared memory: each one of `COPIES`."""
        paths = self.copy or (REGISTERS,)
        return paths[0], paths[-1]

    @property
    def staging(self) -> Staging:
        return Staging(self.slots, self.stages, self.prefetch, self.copy)

    def levels(self, sharers: int) -> list[int]:
        """Return, level by level, how many groups reduce the `sharers` of one tile's K; the last level has one."""
        return levels(sharers, self.at_a_time or sharers)

    @classmethod
    def parse(cls, line: str) -> Config:
        """Parse a line such as `tile=128x64x32 waves=2x2 mma=32x32x8 slots=2 taps=split acc=v`.

        Raises UserError, which names what was given, what is wanted and where.
        """
        values: dict[str, Any] = {}
        for word in line.split():
            key, sep, text = word.partition("=")
            if key not in FIELDS or not sep:
                raise UserError(f"given {word!r}, wanted one of {', '.join(f'{k}=' for k in FIELDS)} in the config")
            if key in values:
                raise UserError(f"given {key}= twice, wanted it once in the config")
            wanted, parse = FIELDS[key]
            value = parse(text)
            if value is None:
                raise UserError(f"given {word!r}, wanted {key}={wanted} in the config")
            values[key] = value
        values |= values.pop("sum", {})
        missing = [k for k in ("tile", "waves", "mma") if k not in values]
        if missing:
            raise UserError(f"given no {missing[0]}=, wanted {missing[0]}={FIELDS[missing[0]][0]} in the config")
        values["waves"], values["waves_k"] = values["waves"][:2], values["waves"][2]
        return cls(**{ATTRIBUTES.get(key, key): value for key, value in values.items()})

    def __str__(self) -> str:
        def sizes(v: tuple[int, ...]) -> str:
            return "x".join(map(str, v))

        waves = (*self.waves, self.waves_k) if self.waves_k > 1 else self.waves
        unit = str(self.mma) if isinstance(self.mma, LanePart) else sizes(self.mma)
        stages = f" stages={self.stages}" if self.stages > 1 else ""
        optional = f" slices={self.slices}" if self.slices > 1 else ""
        optional += f" subtiles={self.subtiles}" if self.subtiles > 1 else ""
        optional += f" prefetch={self.prefetch}" if self.prefetch else ""
        optional += f" reorder={'+'.join(self.reorder)}" if self.reorder else ""
        optional += f" packed={'+'.join(self.packed)}" if self.packed else ""
        optional += f" sum={self.sum}" if self.sum else ""
        optional += f":{self.at_a_time}" if self.at_a_time else ""
        optional += f" map={self.map}" if self.map != IN_ROWS else ""
        optional += f" in={':'.join(self.types)}" if self.types else ""
        optional += f" grids={self.grids}" if self.grids != APART else ""
        optional += f" phases={self.phases}" if self.phases != APART else ""
        optional += f" pixels={self.pixels}" if self.pixels != APART else ""
        optional += f" groups={self.joined_groups}" if self.joined_groups > 1 else ""
        optional += f" copy={':'.join(self.copy)}" if self.copy else ""
        optional += f" padding={self.padding}" if self.padding != PADDING else ""
        return (
            f"tile={sizes(self.tile)} waves={sizes(waves)} mma={unit} "
            f"slots={self.slots}{stages} taps={self.taps} acc={self.acc}{optional}"
        )


def levels(sharers: int, at_a_time: int) -> list[int]:
    """Return the number of groups of at most `at_a_time` on each level of a reduction; the last level has one group."""
    counts = [-(-sharers // at_a_time)]
    while counts[-1] > 1:
        counts.append(-(-counts[-1] // at_a_time))
    return counts


def even_group_size(sharers: int, at_a_time: int) -> int:
    """Return the least group size up to `at_a_time` that needs as few groups and levels: groups are nearly equal."""
    counts = levels(sharers, at_a_time)
    even = -(-sharers // counts[0])
    return even if counts[0] > 1 and levels(sharers, even) == counts else at_a_time


_AT_A_TIME = range(2, 9)  #: slices reduced at a time; each adds straight-line code
#: config word -> attribute of Config, where the two names differ
ATTRIBUTES = {"in": "types", "groups": "joined_groups"}


def _numbers(pattern: re.Pattern[str]) -> Callable[[str], tuple[int, ...] | None]:
    def parse(text: str) -> tuple[int, ...] | None:
        match = pattern.fullmatch(text)
        return tuple(int(g or 1) for g in match.groups()) if match and len(text) < 24 else None

    return parse


def _triple(text: str) -> tuple[int, int, int] | None:
    sizes = _numbers(_TRIPLE)(text)
    return (sizes[0], sizes[1], sizes[2]) if sizes else None


def _unit(text: str) -> tuple[int, int, int] | LanePart | None:
    unit, colon, own = text.rpartition(":")
    sizes, atom = _triple(own), _triple(unit)
    if not colon or not sizes:
        return sizes if not colon else None
    return LanePart(*sizes, atom) if atom or unit == "fma" else None


def _choice(*options: str) -> Callable[[str], str | None]:
    return lambda text: text if text in options else None


def _one_of(*options: int) -> Callable[[str], int | None]:
    known = {str(option): option for option in options}
    return known.get


def _count(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[1-9]\d{0,5}", text) else None


def _sum(text: str) -> dict[str, Any] | None:
    method, colon, count = text.partition(":")
    if method not in ("atomic", "launch", "last") or (colon and method != "last"):
        return None
    at_a_time = _count(count) if colon else 0
    return {"sum": method, "at_a_time": at_a_time} if at_a_time in (0, *_AT_A_TIME) else None


def _names(text: str) -> tuple[str, ...] | None:
    names = tuple(text.split("+"))
    known = dict.fromkeys(names).keys() <= {"src", "wei", "diff_dst"}
    return names if known and len(names) == len(dict.fromkeys(names)) else None


def _types(text: str) -> tuple[str, ...] | None:
    names = tuple(text.split(":"))
    return names if len(names) <= 2 and SCALARS.keys() >= set(names) else None


def _copies(text: str) -> tuple[str, ...] | None:
    paths = tuple(text.split(":"))
    if len(paths) > 2 or not set(paths) <= set(COPIES):
        return None
    return () if {*paths} == {REGISTERS} else tuple(dict.fromkeys(paths))


FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "tile": ("MxNxK", _numbers(_TRIPLE)),
    "waves": ("MxN|MxNxK", _numbers(_GRID)),
    "mma": ("ROWSxCOLSxK|fma:NxROWSxCOLS|SIDExSIDExK:NxROWSxCOLS", _unit),
    "slots": ("0|1|...|8", _one_of(*range(9))),
    "stages": ("1|2|3|4", _one_of(1, 2, 3, 4)),
    "taps": ("|".join(VARIANTS), _choice(*VARIANTS)),
    "acc": ("v|a", _choice("v", "a")),
    "slices": ("COUNT", _count),
    "subtiles": ("1|2|4|8", _one_of(1, 2, 4, 8)),
    "prefetch": ("COUNT", _count),
    "reorder": ("src|wei|diff_dst[+...]", _names),
    "packed": ("src|wei|diff_dst[+...]", _names),
    "sum": ("atomic|launch|last[:2..8]", _sum),
    "map": ("ORDER", Order.parse),
    "in": ("TYPE[:TYPE]", _types),
    "grids": (f"{APART}|{MERGED}", _choice(APART, MERGED)),
    "phases": (f"{APART}|{COLUMNS}", _choice(APART, COLUMNS)),
    "pixels": (f"{APART}|{JOINED}", _choice(APART, JOINED)),
    "groups": ("COUNT", _count),
    "copy": (f"{REGISTERS}|{DIRECT}|{TENSOR}[:...]", _copies),
    "padding": (f"{EXACT}|{ZEROS}", _choice(EXACT, ZEROS)),
}
