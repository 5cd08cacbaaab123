"""`taps=chunk`: the innermost run of K is padded to whole chunks, and blocks of K may hold parts of several runs."""

from __future__ import annotations

from convgen.ir.facts import TargetFacts
from convgen.plan.loads import OperandLoad
from convgen.plan.variants.plain import Loads, Plain
from convgen.plan.variants.variant import CHUNK_ISSUE, Offer


class Chunk(Plain):
    word = "chunk"
    summary = "blocks of several taps, each padded to whole chunks of 16 bytes"
    suits_rings = False  # gradients of weights of three layers take 1.03 to 2.1 times the time of others, on an H200

    def block(self, tile_k: int, elem_bytes: int, chunk_bytes: int) -> int:
        return chunk_bytes // elem_bytes

    def suits(self, offer: Offer, loads: Loads, deepest: int, chunk: int, facts: TargetFacts) -> bool:
        return offer.inner % chunk != 0

    def issue(self, load: OperandLoad, inner: int, chunk: int) -> float:
        """Return the slots of a load that computes the tap of each chunk."""
        return CHUNK_ISSUE


VARIANT = Chunk()
