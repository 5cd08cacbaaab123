"""How a kernel is built: one replayable line of choices."""

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


EXACT, ZEROS = "exact", "zeros"  #: what padding adds to sums: nothing, or products with zeros
PADDING = EXACT  #: where a config does not say
#: How taps and channels become K, in the order in which the chooser tries them: modules of `plan/variants`.
VARIANTS = ("split", "fused", "chunk", "images", "resident", "runs", "lines")
SPLIT, FUSED = "split", "fused"
APART, MERGED = "apart", "merged"  #: launches of several products
COLUMNS = "columns"  #: stride phases as columns of one product
REGISTERS, DIRECT = "registers", "direct"
COPIES = (REGISTERS, DIRECT)  #: paths into shared memory: through registers, or by messages without


@frozen
class Own:
    """What a lane has of the result where lanes multiply and add, or a matrix instruction for blocks of them."""

    channels: int  #: neighbours along N
    rows: int  #: positions along the last axis of space but one
    columns: int  #: positions along the last axis of space
    atom: tuple[int, int, int] | None = None  #: elements; of that instruction, side x side x K

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
    """The pipeline of operands: slots of shared memory and stages of registers before them, or none and a prefetch."""

    slots: int
    stages: int = 1
    prefetch: int = 0
    copy: tuple[str, ...] = ()

    @property
    def held(self) -> int:
        """Blocks of K that registers hold on their way to shared memory."""
        return self.stages if self.slots and not self.copy else 0

    @property
    def round(self) -> int:
        """Blocks of K after which slots of shared memory and registers on the way are used as before."""
        return lcm(max(1, self.slots), self.stages)

    @property
    def depth(self) -> int:
        """Blocks of K from the load of one to its product, where any is shared."""
        return max(1, self.slots - 1 + self.held) if self.slots else 0

    @property
    def awaited(self) -> int:
        """Blocks of K from a load, or what brings it nearer, to where it is awaited: its write to shared memory if it
        comes through registers, else its product.
        """
        return self.held or self.depth or self.prefetch


@frozen
class Config:
    """Tiles in GEMM terms: M pixels, N output channels, K taps and input channels."""

    tile: tuple[int, int, int]  #: elements; M x N x K of a workgroup
    waves: tuple[int, int]  #: subgroups; along M and N of the tile
    mma: tuple[int, int, int] | Own  #: elements; n x m x k of the matrix instruction, or what each lane has
    slots: int = 2  #: buffers of the K loop in shared memory; with 0 fragments come from global memory
    taps: str = SPLIT  #: how taps and channels become K: one of `VARIANTS`
    acc: str = "v"  #: where accumulators live: "v" among the vector registers, "a" in a file of their own
    slices: int = 1  #: parts of K, each with workgroups of its own
    reorder: tuple[str, ...] = ()  #: names of inputs that an earlier kernel brings into their default layout
    #: Parts of M that a subgroup multiplies one after the other, each with registers for its inputs only.
    subtiles: int = 1
    prefetch: int = 0  #: blocks of K; distance between prefetch and load
    packed: tuple[str, ...] = ()  #: names of inputs that an earlier kernel lays out as the product reads them
    sum: str = ""  #: how slices meet, by name of a `plan.Reduction`; empty: atomically if that is right, else `launch`
    at_a_time: int = 0  #: slices; that meet at most where `last` ones add up, then as many of their sums; 0: all
    map: Order = IN_ROWS  #: order in which workgroups take their tiles
    types: tuple[str, ...] = ()  #: in which N's and M's inputs are multiplied, one for both, where any is converted
    grids: str = APART  #: products of several stride phases: "apart" in launches of their own, "merged" in one
    phases: str = APART  #: of strides in backward data: "apart" in products of their own, or "columns" of one
    stages: int = 1  #: blocks of K in registers on their way to shared memory
    copy: tuple[str, ...] = ()  #: how N's and M's inputs come into shared memory, one way for both: see `COPIES`
    padding: str = PADDING  #: what it adds to sums: "exact": nothing; "zeros": these times weights, a NaN of infinities
    waves_k: int = 1  #: subgroups; along K of the tile, each with a part of every sum

    @property
    def subgroups(self) -> int:
        """Of a workgroup."""
        return self.waves[0] * self.waves[1] * self.waves_k

    @property
    def separate_accumulators(self) -> bool:
        return self.acc == "a"

    @property
    def direct(self) -> tuple[bool, bool]:
        """Whether N's and M's inputs come into shared memory without registers."""
        ways = self.copy or (REGISTERS,)
        return ways[0] == DIRECT, ways[-1] == DIRECT

    @property
    def staging(self) -> Staging:
        return Staging(self.slots, self.stages, self.prefetch, self.copy)

    @property
    def depth(self) -> int:
        """Blocks of K from the load of one to its product, of N's or M's input that is loaded later."""
        return self.staging.depth

    @property
    def round(self) -> int:
        """Blocks of K after which slots of shared memory and registers on the way are used as before."""
        return self.staging.round

    def groups(self, sharers: int) -> list[int]:
        """Groups of those that share K which meet, level after level, the last of which is one."""
        return levels(sharers, self.at_a_time or sharers)

    @classmethod
    def parse(cls, line: str) -> Config:
        """The config of a line such as `tile=128x64x32 waves=2x2 mma=32x32x8 slots=2 taps=split acc=v`.

        Raises UserError: given, wanted, where.
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
        unit = str(self.mma) if isinstance(self.mma, Own) else sizes(self.mma)
        stages = f" stages={self.stages}" if self.stages > 1 else ""
        rest = f" slices={self.slices}" if self.slices > 1 else ""
        rest += f" subtiles={self.subtiles}" if self.subtiles > 1 else ""
        rest += f" prefetch={self.prefetch}" if self.prefetch else ""
        rest += f" reorder={'+'.join(self.reorder)}" if self.reorder else ""
        rest += f" packed={'+'.join(self.packed)}" if self.packed else ""
        rest += f" sum={self.sum}" if self.sum else ""
        rest += f":{self.at_a_time}" if self.at_a_time else ""
        rest += f" map={self.map}" if self.map != IN_ROWS else ""
        rest += f" in={':'.join(self.types)}" if self.types else ""
        rest += f" grids={self.grids}" if self.grids != APART else ""
        rest += f" phases={self.phases}" if self.phases != APART else ""
        rest += f" copy={':'.join(self.copy)}" if self.copy else ""
        rest += f" padding={self.padding}" if self.padding != PADDING else ""
        return (
            f"tile={sizes(self.tile)} waves={sizes(waves)} mma={unit} "
            f"slots={self.slots}{stages} taps={self.taps} acc={self.acc}{rest}"
        )


def levels(sharers: int, at_a_time: int) -> list[int]:
    """Groups of so many at most that meet, level after level, the last of which is one."""
    found = [-(-sharers // at_a_time)]
    while found[-1] > 1:
        found.append(-(-found[-1] // at_a_time))
    return found


def evenly(sharers: int, at_a_time: int) -> int:
    """The least that meet at a time, of numbers up to one, in as many groups and levels: so none is left with few."""
    counts = levels(sharers, at_a_time)
    even = -(-sharers // counts[0])
    return even if counts[0] > 1 and levels(sharers, even) == counts else at_a_time


_AT_A_TIME = range(2, 9)  #: slices that may meet at a time: straight-line code, which grows with their number
ATTRIBUTES = {"in": "types"}  #: of a Config, where a line calls it otherwise


def _numbers(pattern: re.Pattern[str]) -> Callable[[str], tuple[int, ...] | None]:
    def parse(text: str) -> tuple[int, ...] | None:
        match = pattern.fullmatch(text)
        return tuple(int(g or 1) for g in match.groups()) if match and len(text) < 24 else None

    return parse


def _triple(text: str) -> tuple[int, int, int] | None:
    sizes = _numbers(_TRIPLE)(text)
    return (sizes[0], sizes[1], sizes[2]) if sizes else None


def _unit(text: str) -> tuple[int, int, int] | Own | None:
    unit, colon, own = text.rpartition(":")
    sizes, atom = _triple(own), _triple(unit)
    if not colon or not sizes:
        return sizes if not colon else None
    return Own(*sizes, atom) if atom or unit == "fma" else None


def _choice(*options: str) -> Callable[[str], str | None]:
    return lambda text: text if text in options else None


def _one_of(*options: int) -> Callable[[str], int | None]:
    known = {str(option): option for option in options}
    return known.get


def _count(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[1-9]\d{0,5}", text) else None


def _sum(text: str) -> dict[str, Any] | None:
    way, colon, count = text.partition(":")
    if way not in ("atomic", "launch", "last") or (colon and way != "last"):
        return None
    at_a_time = _count(count) if colon else 0
    return {"sum": way, "at_a_time": at_a_time} if at_a_time in (0, *_AT_A_TIME) else None


def _names(text: str) -> tuple[str, ...] | None:
    names = tuple(text.split("+"))
    known = dict.fromkeys(names).keys() <= {"src", "wei", "diff_dst"}
    return names if known and len(names) == len(dict.fromkeys(names)) else None


def _types(text: str) -> tuple[str, ...] | None:
    names = tuple(text.split(":"))
    return names if len(names) <= 2 and SCALARS.keys() >= set(names) else None


def _copies(text: str) -> tuple[str, ...] | None:
    ways = tuple(text.split(":"))
    if len(ways) > 2 or not set(ways) <= set(COPIES):
        return None
    return () if {*ways} == {REGISTERS} else tuple(dict.fromkeys(ways))


FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "tile": ("MxNxK", _numbers(_TRIPLE)),
    "waves": ("MxN|MxNxK", _numbers(_GRID)),
    "mma": ("ROWSxCOLSxK|fma:NxROWSxCOLS|SIDExSIDExK:NxROWSxCOLS", _unit),
    "slots": ("0|1|2|3|4", _one_of(0, 1, 2, 3, 4)),
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
    "copy": (f"{REGISTERS}|{DIRECT}[:...]", _copies),
    "padding": (f"{EXACT}|{ZEROS}", _choice(EXACT, ZEROS)),
}
