"""The time of kernels whose loops are known: clocks of machine code, rounds of workgroups, operand bandwidth.

Workgroups go to units in rounds; in the last round fewer share a unit. An iteration takes the clocks of the unit's
model, or the time to load its operands if that is longer; operands that come from memory add to it. At the end of a
round a unit writes results: the model of a unit knows when stores issue, not when they complete. The clock falls as
matrix units are used (see `closed`).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from convgen.backends.family import Chip
from convgen.ir.record import frozen
from convgen.profile.closed import PACE, Estimate, LaunchArrays, Numbers, Terms, WorkgroupClocks, smooth


@frozen(eq=False)
class Loops(LaunchArrays):
    """Launches of kernels, one an element; `full` is a unit with as many workgroups as it holds, `last` one in the
    last round.
    """

    overlap = 1.5
    stores: ClassVar[bool] = True  #: whether writing results takes longer than the code that stores them

    groups: Numbers  #: workgroups
    iterations: Numbers  #: mean per workgroup; products outside the loop count as iterations
    uneven: Numbers  #: iterations of the unit with the most, relative to as many average workgroups
    resident: Numbers  #: workgroups that a unit holds
    iteration_full: Numbers  #: clocks of an iteration of all workgroups of a unit
    rest_full: Numbers  #: clocks outside the iterations
    exposed_full: Numbers  #: clocks an iteration takes longer per clock of extra load latency
    iteration_last: Numbers
    rest_last: Numbers
    exposed_last: Numbers
    matrix: Numbers  #: matrix clocks of a unit for an iteration of one workgroup
    operands: Numbers  #: bytes of an iteration of a workgroup
    bytes_in: Numbers  #: bytes of operands, each touched once
    bytes_out: Numbers  #: bytes of the result
    added: Numbers  #: bytes; atomic additions to memory

    def estimate(self, chip: Chip, terms: Terms, *, timed: bool = True) -> Estimate:
        together = self.resident * chip.units
        rounds = np.floor(self.groups / together)
        last_groups = self.groups - rounds * together
        sharing = np.ceil(last_groups / chip.units)
        missed = np.minimum(1.0, chip.partitions * self.bytes_once / (self.groups * self.iterations * self.operands))

        written = np.maximum(self.bytes_out, self.added) / self.groups * self.stores

        def clocks(iteration: Numbers, rest: Numbers, exposed: Numbers, groups: Numbers) -> Numbers:
            waited = terms.far * missed * exposed
            pace = smooth(PACE, iteration * terms.matrix + waited, groups * self.operands / terms.operands)
            return self.iterations * self.uneven * pace + rest * terms.around + groups * written * terms.store

        last = np.where(
            last_groups > 0, clocks(self.iteration_last, self.rest_last, self.exposed_last, np.maximum(1, sharing)), 0.0
        )
        total = rounds * clocks(self.iteration_full, self.rest_full, self.exposed_full, self.resident) + last
        matrix = self.iterations * self.matrix
        busiest = (rounds * self.resident + sharing) * self.uneven
        workgroups = WorkgroupClocks(total, self.groups * matrix, busiest * matrix)
        return self.launch_estimate(chip, terms, workgroups, self.added / terms.shares, timed=timed)

    @property
    def bytes_once(self) -> Numbers:
        return np.asarray(self.bytes_in + self.bytes_out)


@frozen(eq=False)
class LoopsCopiedAhead(Loops):
    """Launches whose copies run many iterations ahead of products, so that memory and products hide each other."""

    overlap = PACE


@frozen(eq=False)
class LoopsOfClosedForm(Loops):
    """A launch with constants of the closed form, which contain the code around a loop that stores results.

    Their cost of stores covers everything that a workgroup does after its loop.
    """

    overlap = 2.5  #: as in the closed form
    stores = False
