"""Assemble words from bytes of other words by V_PERM_B32 (CDNA3 ISA), which picks any four bytes of two words."""

from __future__ import annotations

from collections.abc import Sequence

from convgen.backends.amdgpu.emitter import AmdEmitter
from convgen.backends.machine.instruction import Reg
from convgen.backends.machine.vectors import WORD_BYTES, ByteNumbers

_ZERO_BYTE = 0x0C  #: selector of a zero byte


def gather_words(out: AmdEmitter, sources: Sequence[Reg], wanted: Sequence[ByteNumbers]) -> Reg:
    """Return a tuple of words; each has the bytes `wanted`, numbered from the first byte of the words `sources`."""
    sources = list(sources)
    dst = out.new("v", len(wanted))
    for n, four in enumerate(_of_two_words(out, sources, wanted)):
        start, into = four[0], dst.words(n, 1)
        if start % WORD_BYTES == 0 and four == tuple(range(start, start + len(four))):
            out.copy(into, sources[start // WORD_BYTES])
        else:
            _permute(out, sources, four, into)
    return dst


def _of_two_words(out: AmdEmitter, sources: list[Reg], wanted: Sequence[ByteNumbers]) -> list[ByteNumbers]:
    """Return the wanted words so that none has bytes of more than two words.

    Pairs of bytes from two words are first combined in new words that hold two pairs each, which are appended to
    `sources`.
    """
    wide_words = [four for four in wanted if len(_words(four)) > 2]
    pairs = [pair for four in wide_words for pair in (four[:2], four[2:])]
    pairs_of_words: dict[ByteNumbers, dict[ByteNumbers, None]] = {}  # pairs by the words that they come from
    for pair in pairs:
        if len(_words(pair)) == 2:
            pairs_of_words.setdefault(_words(pair), {})[pair] = None
    place_of: dict[ByteNumbers, ByteNumbers] = {}
    for same_words in map(list, pairs_of_words.values()):
        for two in (same_words[i : i + 2] for i in range(0, len(same_words), 2)):
            at = WORD_BYTES * len(sources)
            place_of.update((pair, (at + 2 * n, at + 2 * n + 1)) for n, pair in enumerate(two))
            sources.append(_permute(out, sources, tuple(byte for pair in two for byte in pair), out.new("v")))
    moved = {four: (*place_of.get(four[:2], four[:2]), *place_of.get(four[2:], four[2:])) for four in wide_words}
    return [moved.get(four, four) for four in wanted]


def _words(some: ByteNumbers) -> tuple[int, ...]:
    """Return the words that bytes come from, each once."""
    return tuple(dict.fromkeys(byte // WORD_BYTES for byte in some))


def _permute(out: AmdEmitter, sources: Sequence[Reg], wanted: ByteNumbers, into: Reg) -> Reg:
    """Combine bytes of at most two words in one word; unused upper bytes are zero."""
    first, *others = _words(wanted)
    second = others[0] if others else first
    places = [byte % WORD_BYTES + (0 if byte // WORD_BYTES == first else WORD_BYTES) for byte in wanted]
    places += [_ZERO_BYTE] * (WORD_BYTES - len(places))
    selector = out.constant(int.from_bytes(bytes(places), "little"))
    return out.valu("v_perm_b32", sources[second], sources[first], selector, into=into)
