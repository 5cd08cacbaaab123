"""`taps=fused`: K is one run of taps and channels without padding, and blocks may end anywhere."""

from __future__ import annotations

from convgen.ir.facts import TargetFacts
from convgen.plan.loads import OperandLoad
from convgen.plan.variants.plain import Loads, Plain
from convgen.plan.variants.variant import CHUNK_ISSUE, ELEMENT_ISSUE, Offer


class Fused(Plain):
    word = "fused"
    summary = "blocks of one run of taps and channels, which end anywhere"

    def suits(self, offer: Offer, loads: Loads, deepest: int, chunk: int, facts: TargetFacts) -> bool:
        return offer.inner % deepest != 0

    def issue(self, load: OperandLoad, inner: int, chunk: int) -> float:
        """Return the slots of a load: one tap or a whole chunk has one address, other elements compute a tap each."""
        has_one_tap = not load.along_k or load.by_reads or inner % chunk == 0
        return CHUNK_ISSUE if has_one_tap or load.widest == chunk else ELEMENT_ISSUE


VARIANT = Fused()
