"""Assemble words from bytes of other words, lane by lane: two halves by one addition, else by moves with dword stride.

Destinations of moves keep a stride of a dword; then all generations let a source begin anywhere in its dword (Mesa,
brw_eu_validate.c, "sub-dword integer region restrictions"). The last source of a three-source instruction has no region
of its own: it begins where the destination does (IGC, `isGoodAlign1TernarySrc`), so it is always a lower half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convgen.backends.intel.emitter import XeEmitter
from convgen.backends.intel.isa import Literal, region
from convgen.backends.machine.instruction import Reg
from convgen.backends.machine.vectors import WORD_BYTES, ByteNumbers
from convgen.ir.record import evolve

UNSIGNED = {1: "ub", 2: "uw", 4: "ud"}  #: bytes -> unsigned type of that size
_HALF_BYTES = 2


def gather_words(out: XeEmitter, sources: Sequence[Reg], byte_numbers: Sequence[ByteNumbers]) -> Reg:
    """Return a tuple of words: four bytes each, by their numbers from the first byte of the words `sources`."""
    dst = out.new("v", len(byte_numbers))
    for n, four in enumerate(byte_numbers):
        into, runs = dst.words(n, 1), list(_runs(four))
        if runs == [WORD_BYTES]:
            out.copy(into, sources[four[0] // WORD_BYTES])
            continue
        if runs == [_HALF_BYTES] * 2:
            low, high = (divmod(b // _HALF_BYTES, WORD_BYTES // _HALF_BYTES) for b in four[::_HALF_BYTES])
            _join(out, into, (sources[low[0]], low[1]), (sources[high[0]], high[1]))
            continue
        at = 0
        for size in runs:
            source, offset = divmod(four[at], WORD_BYTES)
            kind, apart = UNSIGNED[size], WORD_BYTES // size
            to, of = region(into, kind, at // size, apart), region(sources[source], kind, offset // size, apart)
            out.emit("mov", (to,), (of,), lanes=out.lanes, partial=at > 0)
            at += size
    return dst


def _join(out: XeEmitter, into: Reg, low: tuple[Reg, int], high: tuple[Reg, int]) -> None:
    """Set `into` to two halves, each the lower (0) or upper (1) half of a word."""
    addend, (word, part) = region(low[0], "uw", low[1], 2), high
    lower = region(word, "uw", 0, 2)
    if part:  # the word minus its lower half is the upper half, in place
        name, others = "add3", (region(word, "ud"), evolve(lower, signs="-"))
    else:
        name, others = "mad", (region(out.kernel_constant(Literal(1 << 16, "ud")), "ud", 0, 0), lower)
    out.emit(name, (region(into, "ud"),), (addend, *others), lanes=out.lanes)


def _runs(byte_numbers: ByteNumbers) -> Iterator[int]:
    """Yield the bytes that each move brings: as many adjacent ones as are aligned in source and destination."""
    at = 0
    while at < len(byte_numbers):
        size = WORD_BYTES
        first = byte_numbers[at]
        while byte_numbers[at : at + size] != tuple(range(first, first + size)) or (at | first) % size:
            size //= 2
        yield size
        at += size
