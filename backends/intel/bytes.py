"""Words put together of the bytes of others, lane by lane: moves of bytes, or of aligned pairs, a dword apart.

Destinations keep to a stride of a dword, for which all generations let sources lie anywhere within theirs (Mesa,
brw_eu_validate.c, "sub-dword integer region restrictions").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convgen.backends.intel.emitter import XeEmitter
from convgen.backends.intel.isa import region
from convgen.backends.machine.instruction import Reg
from convgen.backends.machine.vectors import WORD_BYTES, Bytes

UNSIGNED = {1: "ub", 2: "uw", 4: "ud"}  #: bytes -> the type of so many


def gather_words(out: XeEmitter, held: Sequence[Reg], wanted: Sequence[Bytes]) -> Reg:
    """A tuple of words, each of the bytes `wanted` of the words `held`, numbered through from the first."""
    dst = out.new("v", len(wanted))
    for n, four in enumerate(wanted):
        into, runs = dst.words(n, 1), list(_runs(four))
        if runs == [WORD_BYTES]:
            out.copy(into, held[four[0] // WORD_BYTES])
            continue
        at = 0
        for size in runs:
            source, offset = divmod(four[at], WORD_BYTES)
            kind, apart = UNSIGNED[size], WORD_BYTES // size
            to, of = region(into, kind, at // size, apart), region(held[source], kind, offset // size, apart)
            out.emit("mov", (to,), (of,), lanes=out.lanes, partial=at > 0)
            at += size
    return dst


def _runs(wanted: Bytes) -> Iterator[int]:
    """How many bytes each move brings: as many as follow one another, aligned where they are and where they go."""
    at = 0
    while at < len(wanted):
        size = WORD_BYTES
        while wanted[at : at + size] != tuple(range(wanted[at], wanted[at] + size)) or (at | wanted[at]) % size:
            size //= 2
        yield size
        at += size
