"""Explanations in plain words: the words of a config, and the causes that bound a time."""

from __future__ import annotations

from collections.abc import Iterator

from convgen.ir.layout.order import STEPS
from convgen.ir.record import fields_of
from convgen.plan.config import ATTRIBUTES, FIELDS, Config
from convgen.plan.variants.variant import variant_of

#: Word of a config -> what it means, of a value (`docs/config.md` says more).
MEANINGS: dict[str, str] = {
    "tile": "outputs of a workgroup along M and N, and the block of K that it takes at a time, in elements",
    "waves": "subgroups of a workgroup, along M and N of its tile, and along K if given",
    "mma": "the matrix instruction: rows along N, columns along M, depth along K; or what each lane sums by itself",
    "slots": "copies of the tile's inputs in shared memory; 0: fragments come straight from global memory",
    "stages": "blocks of K that registers hold on their way to shared memory",
    "taps": "how K, which is taps times channels, is cut into blocks",
    "acc": "registers of the sums: v vector registers, a accumulation registers",
    "slices": "parts of K, each with workgroups of its own",
    "subtiles": "parts of M that a subgroup multiplies one after the other",
    "prefetch": "blocks of K by which memory is brought nearer ahead of its load",
    "reorder": "inputs that a launch before brings into their default layout",
    "packed": "inputs that a launch before lays out as the product reads them: rows of K, without gaps",
    "sum": "how slices of K meet",
    "map": "the order in which workgroups take their tiles",
    "in": "types in which inputs are multiplied",
    "grids": "launches of several products: apart, or merged in one",
    "phases": "phases of strides: products of their own, or columns of one",
    "copy": "the way into shared memory: through registers, or direct",
    "padding": "what padding adds to sums of infinities: exact nothing, or NaN with zeros",
}
assert MEANINGS.keys() == FIELDS.keys()

#: Step of an order of workgroups -> what it does (`docs/mapping.md` says more).
STEPS_OF_ORDERS: dict[str, str] = {
    "rows": "one row of tiles comes after the other, N fastest",
    "cols": "one column of tiles comes after the other, M fastest",
    "group": "so many rows (m) or columns (n) of tiles at a time, across them first; snake: each second one back",
    "even": "so many rows (m) or columns (n) of tiles at a time at most, in groups of even size, across them first",
    "wgm": "as group, with a size that a host may change from launch to launch",
    "rect": "in rectangles of so many tiles, one row or column of them after the other",
    "zorder": "in blocks that double by turns along N and M, then one row of blocks after the other",
    "hilbert": "along a curve on which neighbours in time are neighbours in the result",
    "xcc": "of workgroups, which the chip deals in turns to so many dies, each die gets one run of neighbours",
    "chunk": "of workgroups, which the chip deals in turns to so many dies, each die gets runs of so many neighbours",
    "flip": "workgroups of every second round of so many walk K backwards, and find its end in the cache",
    "persist": "so many workgroups are launched, and take one tile after the other",
    "stream": "so many workgroups are launched, and share the K of the last tiles (all: of all tiles) evenly",
}
assert STEPS_OF_ORDERS.keys() == STEPS.keys()

#: What holds a launch -> what that says.
BOUNDS: dict[str, str] = {
    "matrix": "the matrix units work for most of the time, at the clock that their power leaves",
    "lds": "shared memory is busy for most of the time: wider or fewer accesses to it would help",
    "global": "the path from global memory is busy for most of the time",
    "addresses": "the unit that takes addresses of memory instructions is busy for most of the time",
    "valu": "vector arithmetic takes most of the time: addresses, masks and conversions",
    "salu": "scalar arithmetic takes most of the time",
    "issue": "there are so many instructions that issuing them takes most of the time",
    "l2": "operands come no faster from the L2 caches",
    "memory": "operands come no faster from memory",
    "write back": "results leave the caches no faster",
    "launch": "the launch itself takes most of the time: the problem is small",
    "latency": "no pipe is busy for half of the time: subgroups wait for each other, or for memory to answer",
    "waiting": "no pipe is busy for half of the time: subgroups wait for each other, or for memory to answer",
}


def bound(cause: str) -> str:
    """Return the explanation of a cause that bounds a launch."""
    return BOUNDS.get(cause, f"the {cause} pipe is busy for most of the time")


def config_words(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield each word of a config's line, its value and its meaning."""
    for word in str(config).split():
        name, _, value = word.partition("=")
        summary = f": {variant_of(config).summary}" if name == "taps" else ""
        yield name, value, f"{MEANINGS[name]}{summary}"


def order_words(order: str) -> list[tuple[str, str]]:
    """Return each step of an order of workgroups and its effect."""
    return [(step, STEPS_OF_ORDERS[step.partition(":")[0]]) for step in order.split("+")]


def default(word: str) -> str:
    """Return the default of a word of the config."""
    value = getattr(fields_of(Config), ATTRIBUTES.get(word, word)).default
    return "none" if value in ((), "") else str(value)
