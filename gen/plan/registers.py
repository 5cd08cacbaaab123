"""Vector registers that a lane takes, in closed form, of one config or of many at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from convgen.backends.tuning import tuning
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.memory import View
from convgen.ir.record import frozen
from convgen.passes.buffer_shared import is_loop
from convgen.passes.messages.linear import linearize

Numbers: TypeAlias = npt.NDArray[Any]  #: integers, or floats where there are parts
Counts: TypeAlias = Numbers | int


def masks_of(view: View, trimmed: bool) -> int:
    """What masks a load, if a halo does: two masks where messages are trimmed, which also takes places of the cuts."""
    return (2 if trimmed else 1) if linearize(view).halos else 0


@frozen(eq=False)
class Pipeline:
    """How blocks of K follow one another: see the properties of a config's way."""

    slots: Counts
    stages: Counts
    depth: Counts
    round: Counts

    @classmethod
    def of(cls, number: Callable[[str], Counts]) -> Pipeline:
        return cls(*map(number, ("slots", "stages", "depth", "round")))

    def loops(self, blocks: Counts) -> npt.NDArray[np.bool_]:
        """Whether so many blocks are a loop; others stand one after the other."""
        return np.asarray(is_loop(blocks, self.depth, self.round))


@frozen(eq=False)
class Held:
    """What a lane holds: sums throughout, and of a block of K what is multiplied and what is on its way."""

    sums: Counts  #: registers
    fragments: Counts  #: registers; of a block
    copied: Counts  #: registers; of a block that comes into shared memory through registers
    masks: Counts  #: of a block's loads, see `masks_of`
    epilogue: int = 0  #: registers; temporaries of what is computed from sums behind the loop

    def registers(self, blocks: Counts, way: Pipeline, facts: TargetFacts, *, by_taps: bool) -> Numbers:
        """All registers with so many blocks of K, each multiplied tap by tap or at once.

        A loop reads fragments while it multiplies others, if there are several slots, or taps. Short sums are no loop:
        what they need is read when they need it. Where instructions move among products, a block that was loaded may
        stay in its registers until another slot is free; in loops over taps, which take long, all on their way do.
        """
        loops, several = way.loops(blocks), np.asarray(way.slots > 1)
        far = loops & by_taps & several
        tuned = tuning(facts)
        at_once, overlapped = tuned.fragment_sets
        waiting = np.where(far, way.depth, np.maximum(1, way.depth - 1)) if facts.core.reorders else way.stages
        on_way = np.minimum(waiting, blocks - 1)
        fragments = np.where(loops & (by_taps | several), overlapped, at_once) * self.fragments
        others = tuned.mask_registers * self.masks + tuned.other_registers + far * tuned.tap_registers
        behind = self.sums + self.epilogue + tuned.other_registers
        found: Numbers = np.ceil(np.maximum(self.sums + fragments + on_way * self.copied + others, behind))
        return found.astype(np.int64)
