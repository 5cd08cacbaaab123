"""`taps=split`: each block of K lies within one innermost run of K, a tap's channels or a row of pixels.

The run is padded to whole blocks, so that lanes compute their tap once a block.
"""

from __future__ import annotations

from convgen.ir.facts import TargetFacts
from convgen.plan.variants.plain import Loads, Plain
from convgen.plan.variants.variant import Offer


class Split(Plain):
    word = "split"
    summary = "blocks of one tap's channels, or of one row of pixels"

    def block(self, tile_k: int, elem_bytes: int, chunk_bytes: int) -> int:
        return tile_k

    def suits(self, offer: Offer, loads: Loads, deepest: int, chunk: int, facts: TargetFacts) -> bool:
        return True


VARIANT = Split()
