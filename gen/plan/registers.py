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
from convgen.passes.loop_trips import is_loop
from convgen.passes.messages.linear import linearize

Numbers: TypeAlias = npt.NDArray[Any]  #: integers, or floats for fractional counts
Counts: TypeAlias = Numbers | int


# How an epilogue whose steps need registers takes the sums: in pieces, with the inputs of some loaded ahead.
PIECE = 16  #: elements of a lane; sums that take the steps at a time
MOST_AHEAD = 3  #: pieces whose inputs are in registers at a time
#: share of the registers beside the sums for the inputs; as many again for inputs that pieces share
ROOM = 0.25
KEPT_FREE = 16  #: registers of a lane that inputs loaded before the loop over K leave free; chosen


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
        """Return the pipeline whose numbers are `number` of the names of `Staging`'s properties."""
        return cls(*map(number, ("slots", "stages", "depth", "round")))

    def loops(self, blocks: Counts) -> npt.NDArray[np.bool_]:
        """Whether this number of blocks becomes a loop, else straight-line code."""
        return np.asarray(is_loop(blocks, self.depth, self.round))


@frozen(eq=False)
class LaneRegisters:
    """Parts of a lane's registers: sums, and for each block of K its fragments, its elements in flight and masks."""

    sums: Counts  #: registers
    fragments: Counts  #: registers; fragments of a block
    copied: Counts  #: registers; elements of a block that is copied to shared memory through registers
    masks: Counts  #: masks of a block's loads, see `masks_of`
    epilogue: int = 0  #: registers; temporaries of the epilogue, after the loop

    def registers(self, blocks: Counts, pipeline: Pipeline, facts: TargetFacts, *, by_taps: bool) -> Numbers:
        """Return the registers for a number of blocks of K, each multiplied tap by tap (`by_taps`) or at once.

        A loop reads fragments while it multiplies others, if there are several slots or taps. Short sums without a loop
        read fragments when they need them. Where the target's scheduler moves instructions among products, a loaded
        block may stay in registers until another slot is free; in loops over taps, which are long, all blocks in flight
        do. The registers are the most of those in the loop and those of the epilogue.
        """
        loops, several_slots = pipeline.loops(blocks), np.asarray(pipeline.slots > 1)
        taps_ahead = loops & by_taps & several_slots
        tuned = tuning(facts)
        at_once, overlapped = tuned.fragment_sets
        loaded_blocks = pipeline.stages
        if facts.core.reorders:
            loaded_blocks = np.where(taps_ahead, pipeline.depth, np.maximum(1, pipeline.depth - 1))
        in_flight = np.minimum(loaded_blocks, blocks - 1)
        fragments = np.where(loops & (by_taps | several_slots), overlapped, at_once) * self.fragments
        temporaries = tuned.mask_registers * self.masks + tuned.other_registers + taps_ahead * tuned.tap_registers
        in_loop = self.sums + fragments + in_flight * self.copied + temporaries
        after_loop = self.sums + self.epilogue + tuned.other_registers
        registers: Numbers = np.ceil(np.maximum(in_loop, after_loop))
        return registers.astype(np.int64)
