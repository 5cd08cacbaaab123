"""Estimated vector registers of a lane, in closed form, for one config or arrays of configs."""

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

Numbers: TypeAlias = npt.NDArray[Any]  #: integers, or floats for fractional counts
Counts: TypeAlias = Numbers | int


def masks_of(view: View, trimmed: bool) -> int:
    """Return the masks of a load with a halo: one, or two where messages are trimmed; 0 without a halo."""
    return (2 if trimmed else 1) if linearize(view).halos else 0


@frozen(eq=False)
class Pipeline:
    """Pipeline of blocks of K, for one config or arrays of them: see the properties of `Staging`."""

    slots: Counts
    stages: Counts
    depth: Counts
    round: Counts

    @classmethod
    def of(cls, number: Callable[[str], Counts]) -> Pipeline:
        return cls(*map(number, ("slots", "stages", "depth", "round")))

    def loops(self, blocks: Counts) -> npt.NDArray[np.bool_]:
        """Whether this number of blocks becomes a loop, else straight-line code."""
        return np.asarray(is_loop(blocks, self.depth, self.round))


@frozen(eq=False)
class Held:
    """Registers of a lane: sums throughout, and for a block of K its fragments and its elements in flight."""

    sums: Counts  #: registers
    fragments: Counts  #: registers; fragments of a block
    copied: Counts  #: registers; elements of a block that is copied to shared memory through registers
    masks: Counts  #: masks of a block's loads, see `masks_of`
    epilogue: int = 0  #: registers; temporaries of the epilogue, after the loop

    def registers(self, blocks: Counts, way: Pipeline, facts: TargetFacts, *, by_taps: bool) -> Numbers:
        """Return the registers for a number of blocks of K, each multiplied tap by tap (`by_taps`) or at once.

        A loop reads fragments while it multiplies others, if there are several slots or taps. Short sums without a loop
        read fragments when they need them. Where the target's scheduler moves instructions among products, a loaded
        block may stay in registers until another slot is free; in loops over taps, which are long, all blocks in flight
        do.
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
        registers: Numbers = np.ceil(np.maximum(self.sums + fragments + on_way * self.copied + others, behind))
        return registers.astype(np.int64)
