"""Plain variants: products of the tensors as stored; they differ in where blocks of K end."""

from __future__ import annotations

from convgen.backends.tuning import tuning
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.mma import MmaAtom
from convgen.plan.config import Staging
from convgen.plan.loads import OperandLoad, are_rectangles
from convgen.plan.variants.variant import TILE_M, Choices, Offer, Variant, rings, stagings, tiles_k, tiles_n

_UNSHARED = Staging(0, prefetch=3)  #: fragments loaded from global memory, as in oneDNN's convolutions

Loads = tuple[OperandLoad, OperandLoad]


class Plain(Variant):
    """A plain variant. One offer holds all plain variants, so that the chooser compares them tile by tile."""

    is_plain = True
    is_alone = False  #: where it suits, no other plain variant is tried

    def suits(self, offer: Offer, loads: Loads, deepest: int, chunk: int, facts: TargetFacts) -> bool:
        """Whether the variant is worth trying with blocks of K up to `deepest` elements and chunks of `chunk`."""
        raise NotImplementedError

    def choices(self, offer: Offer, atom: MmaAtom, facts: TargetFacts) -> Choices:
        """Return the configs worth trying, for all plain variants of the offer."""
        elem, depths, loads = atom.elem_bytes, tiles_k(atom, facts), offer.loads(atom, facts)
        if offer.form.blocks and offer.form.blocks.suits(atom):
            depths = offer.form.blocks.depths(depths)
        if all(load.by_reads for load in loads):  # by `convgen profile`, deep rows take 1.0 to 1.14 of the time
            depths = tuple(k for k in depths if k * elem not in tuning(facts).deep_rows)
        suiting = _suiting(offer, loads, depths[-1], facts.chunk_bytes // elem, facts)
        least = min((depth for depth in depths if depth >= offer.outer * offer.inner), default=max(depths))
        depths = tuple(depth for depth in depths if depth <= least)  # a longer block holds all of K, and more zeros
        through = stagings(facts, direct=not offer.types(atom) and need_no_registers(loads, elem, facts))
        if facts.roles and atom.in_shared and not offer.types(atom) and need_no_registers(loads, elem, facts):
            through += rings(tuning(facts).rings)
        unshared = (_UNSHARED,) if _may_bypass_shared(offer, atom, facts) else ()
        return Choices(TILE_M, tiles_n(facts), depths, tuning(facts).grids, suiting, (*through, *unshared))


def _suiting(offer: Offer, loads: Loads, deepest: int, chunk: int, facts: TargetFacts) -> tuple[Plain, ...]:
    """Return the plain variants of an offer that are worth trying: one that is alone, else all that suit."""
    suiting = [v for v in offer.variants if isinstance(v, Plain) and v.suits(offer, loads, deepest, chunk, facts)]
    return tuple([v for v in suiting if v.is_alone] or suiting)


def need_no_registers(loads: Loads, elem_bytes: int, facts: TargetFacts) -> bool:
    """Whether messages are whole chunks that stay as they are, so that direct copies are possible."""
    whole = facts.chunk_bytes in facts.direct_widths
    stay = all(load.along_k or load.in_columns for load in loads)
    return whole and stay and all(load.widest * elem_bytes == facts.chunk_bytes for load in loads)


def _may_bypass_shared(offer: Offer, atom: MmaAtom, facts: TargetFacts) -> bool:
    """Whether 2-D messages load both inputs as the instruction reads them, and the target has prefetches."""
    operands = (offer.of_m, atom.b), (offer.of_n, atom.a)
    return facts.prefetch and all(are_rectangles(view, fragment, facts) for view, fragment in operands)
