"""Explanations in plain words: the words of a config, and the causes that bound a time."""

from __future__ import annotations

from collections.abc import Iterator

from convgen.ir.layout.order import STEPS
from convgen.ir.record import fields_of
from convgen.plan.config import ATTRIBUTES, FIELDS, Config
from convgen.plan.variants.variant import variant_of

#: Word of a config -> the meaning of its value; docs/config.md has more.
MEANINGS: dict[str, str] = {
    "tile": "outputs of a workgroup along M and N, and the block of K that it takes at a time, in elements",
    "waves": "subgroups of a workgroup, along M and N of its tile, and along K if given",
    "mma": "the matrix instruction: rows along N, columns along M, depth along K; or the outputs that each lane sums",
    "slots": "copies of the tile's inputs in shared memory; 0: fragments are loaded from global memory",
    "stages": "blocks of K that registers hold on their way to shared memory",
    "taps": "how K, taps times channels, is cut into blocks",
    "acc": "registers of the accumulators: v vector registers, a accumulation registers",
    "slices": "parts of K (split-K), each summed by other workgroups",
    "subtiles": "parts of M that a subgroup multiplies one after the other",
    "prefetch": "blocks of K between the prefetch into caches and the load",
    "reorder": "inputs that an earlier launch copies to their default layout",
    "packed": "inputs that an earlier launch lays out as the product reads them: rows of K, without gaps",
    "sum": "how slices of K are reduced",
    "map": "the order in which workgroups take their tiles",
    "in": "types in which inputs are multiplied",
    "grids": "launches of several products: apart, or merged into one",
    "phases": "stride phases: products apart, or columns of one product",
    "pixels": "dims of K that both factors have side by side in memory: several dims, or one",
    "groups": "groups of weight gradients that one product computes; sums between different ones are not stored",
    "copy": "the path into shared memory: through registers, direct, or by bulk copies (tensor)",
    "padding": "what padding adds to sums: exact: nothing; zeros: zero times the other factor, NaN for an infinity",
}
assert MEANINGS.keys() == FIELDS.keys()

#: Step of an order of workgroups -> what it does; docs/mapping.md has more.
STEPS_OF_ORDERS: dict[str, str] = {
    "rows": "one row of tiles after another, N fastest",
    "cols": "one column of tiles after another, M fastest",
    "group": "so many rows (m) or columns (n) of tiles at a time, across them first; snake: every second one back",
    "even": "as group, in groups of nearly equal size, which have at most so many rows or columns",
    "wgm": "as group; the size is a kernel argument",
    "rect": "in rectangles of so many tiles, one row or column of rectangles after another",
    "zorder": "in blocks that double alternately along N and M, then one row of blocks after another",
    "hilbert": "along a Hilbert curve: consecutive workgroups have adjacent tiles",
    "ragged": "one group of rows after another, whatever their sizes, each column by column",
    "xcc": "the chip distributes workgroups round robin over so many dies; each die gets one run of consecutive tiles",
    "chunk": "the chip distributes workgroups round robin over so many dies; each die gets runs of so many tiles",
    "flip": "in every second round of so many workgroups K runs backwards, and its end is still in the cache",
    "persist": "so many workgroups are launched, and take one tile after another",
    "stream": "so many workgroups are launched, and share the K of the last tiles (all: of all tiles) evenly",
}
assert STEPS_OF_ORDERS.keys() == STEPS.keys()

#: Bound of a launch or loop -> its meaning.
BOUNDS: dict[str, str] = {
    "matrix": "the matrix units work for most of the time, at the clock that their power leaves",
    "lds": "shared memory is busy for most of the time: wider or fewer accesses to it would help",
    "global": "the path from global memory is busy for most of the time",
    "addresses": "the address unit of memory instructions is busy for most of the time",
    "valu": "vector arithmetic takes most of the time: addresses, masks and conversions",
    "salu": "scalar arithmetic takes most of the time",
    "issue": "there are so many instructions that issuing them takes most of the time",
    "l2": "the L2 caches deliver operands no faster",
    "memory": "memory delivers operands no faster",
    "write back": "the caches write back results no faster",
    "launch": "the launch itself takes most of the time: the problem is small",
    "latency": "no pipe is busy for half of the time: subgroups wait for each other, or for memory to answer",
}
BOUNDS["waiting"] = BOUNDS["latency"]  # a loop is bound by `waiting` where a launch is by `latency`


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
