"""Matrix instructions and products of whole tiles as text, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convgen.ir.layout.mma import BlockAtom, MmaAtom, MmaTile
from convgen.ir.text.declared import joined, read_fragment, write_fragment
from convgen.ir.text.expressions import Expressions as Cursor

_IN_SHARED = ("in", "shared", "memory")


_SCALES, _PACKS = "scales", "packs"


def write_instruction(atom: MmaAtom | BlockAtom, name: str) -> str:
    """Return `instruction NAME: 16 x 16 x 16, f16 x f16 to f32, 8 clocks, a …, b …, d …`; on blocks, no fragments."""
    called = f", called {atom.name}" if name != atom.name else ""
    if isinstance(atom, BlockAtom):
        sums = f"{atom.elem} x {atom.elem} to {atom.acc}"
        return f"instruction {name}: blocks of {atom.side} x {atom.k}, {sums}, {atom.clocks} clocks{called}"
    sides = "".join(f", {side} {write_fragment(getattr(atom, side))}" for side in "abd")
    rounded = f", rounds to {atom.rounds_to}" if atom.rounds_to else ""
    sums = f"{atom.a_elem} x {atom.b_elem} to {atom.acc}"
    sizes, which = joined((atom.n, atom.m, atom.k)), "a" if atom.b_in_registers else "factors"
    placed = f", {which} {' '.join(_IN_SHARED)}" if atom.in_shared else ""
    kept = f", sums of {atom.sum_bits} bits" if atom.sum_bits else ""
    scales = ", ".join(map(write_fragment, atom.scales)) if atom.scales else ""
    options = f"{rounded}{placed}{kept}{scales and f', {_SCALES} {scales}'}"
    packed = "".join(f", {side} {_PACKS} {of}" for side, of in zip("ab", atom.packed) if of)
    return f"instruction {name}: {sizes}, {sums}, {atom.clocks} clocks{sides}{options}{packed}{called}"


def read_instruction(c: Cursor, name: str) -> MmaAtom | BlockAtom:
    """Read a matrix instruction behind `instruction NAME:`."""
    is_blocks = c.skip("blocks", "of")
    sizes = [c.integer()]
    while c.skip("x"):
        sizes.append(c.integer())
    c.take(",")
    a = c.scalar_type()
    c.take("x")
    b = c.scalar_type()
    c.take("to")
    acc = c.scalar_type()
    c.take(",")
    clocks = c.integer()
    c.take("clocks")
    if len(sizes) != 3 - is_blocks or (is_blocks and a is not b):
        raise c.error("wanted N x M x K and two factors, or blocks of SIDE x K of one type")
    if is_blocks:
        return c.made(BlockAtom, _called(c, name), *sizes, a, acc, clocks)
    sides = []
    for side in "abd":
        c.take(",", side)
        sides.append(read_fragment(c))
    rounded = c.name() if c.skip(",", "rounds", "to") else ""
    in_registers = c.skip(",", "a", *_IN_SHARED)
    in_shared = in_registers or c.skip(",", "factors", *_IN_SHARED)
    sum_bits = c.integer() if c.skip(",", "sums", "of") else 0
    if sum_bits:
        c.take("bits")
    scales = None
    if c.skip(",", _SCALES):
        of_a = read_fragment(c)
        c.take(",")
        scales = of_a, read_fragment(c)
    packed = tuple(c.scalar_type() if c.skip(",", side, _PACKS) else None for side in "ab")
    options = rounded, in_shared, in_registers, sum_bits, scales, packed
    return c.made(MmaAtom, _called(c, name), *sizes, a, b, acc, *sides, clocks, *options)


def _called(c: Cursor, name: str) -> str:
    """Return the name of an instruction: the given one, unless `called` says another."""
    return c.name() if c.skip(",", "called") else name


#: Options of a product: the word, the fields whose numbers follow it, and their defaults, which are not written.
_OPTIONS: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...] = (
    ("pack", ("pack",), (1,)),
    ("teams", ("teams_n", "teams_m", "teams_k"), (1, 1, 1)),
    ("part", ("part", "parts"), (0, 1)),
    ("run", ("run",), (1,)),
    ("rows", ("rows",), (0,)),
)


_APART = ("accumulators", "apart")


def write_product(tile: MmaTile, name: str, atom: str) -> str:
    """Return `product NAME: 2 x 4 x 1 of INSTRUCTION, pack 2, teams 2 x 2 x 1`: instructions along N, M, K, options."""
    options = []
    for word, fields, defaults in _OPTIONS:
        values = tuple(getattr(tile, field) for field in fields)
        if values != defaults:
            options.append(f", {word} {joined(values)}")
    apart = ", " + " ".join(_APART) if tile.separate_accumulators else ""
    return f"product {name}: {joined((tile.tiles_n, tile.tiles_m, tile.steps))} of {atom}{''.join(options)}{apart}"


def read_product(c: Cursor, atom: Callable[[], MmaAtom]) -> MmaTile:
    """Read a product behind `product NAME:`; `atom` takes the name of its instruction."""
    counts = _numbers(c)
    c.take("of")
    instruction = atom()
    fields: dict[str, Any] = {}
    for word, names, _ in _OPTIONS:
        if c.skip(",", word):
            fields |= zip(names, _numbers(c))
    fields["separate_accumulators"] = c.skip(",", *_APART)
    if len(counts) != 3:
        raise c.error("wanted instructions along N x M x K")
    return c.made(MmaTile, instruction, *counts, **fields)


def _numbers(c: Cursor) -> list[int]:
    numbers = [c.integer()]
    while c.skip("x"):
        numbers.append(c.integer())
    return numbers
