"""The time of kernels whose loops are known: clocks of machine code, rounds of workgroups, and what reaches them.

Workgroups go to units in rounds of as many as these hold; the last round has the rest, which share units less. An
iteration takes what the model of a unit says, or what it takes to bring its operands, and longer where these come from
memory. At the end of a round a unit writes results; the model of a unit knows when their stores are issued, not when
they are done. The clock falls as matrix units are used (see `closed`).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from convgen.backends.family import Chip
from convgen.ir.record import frozen
from convgen.profile.closed import PACE, Estimate, Inner, Numbers, Terms, Work, smooth


@frozen(eq=False)
class Loops(Work):
    """Launches of kernels, one an element; `full` is a unit that holds all it may, `last` one in the last round."""

    overlap = 1.5
    stores: ClassVar[bool] = True  #: whether what a round writes takes longer than the code that stores it

    groups: Numbers  #: workgroups
    iterations: Numbers  #: of a workgroup, on average: of the loop, and what products beside it are worth
    uneven: Numbers  #: iterations of the unit that has most, relative to those of as many average workgroups
    resident: Numbers  #: workgroups that a unit holds
    each_full: Numbers  #: clocks of an iteration of all workgroups of a unit
    rest_full: Numbers  #: clocks of what is left
    exposed_full: Numbers  #: clocks of an iteration for each clock more that loads take to return
    each_last: Numbers
    rest_last: Numbers
    exposed_last: Numbers
    matrix: Numbers  #: clocks of the matrix units of a unit, of an iteration of one workgroup
    operands: Numbers  #: bytes of an iteration of a workgroup
    bytes_in: Numbers  #: of operands, each touched once
    bytes_out: Numbers  #: of the result
    added: Numbers  #: bytes of sums that are added to memory

    def estimate(self, chip: Chip, terms: Terms, *, timed: bool = True) -> Estimate:
        together = self.resident * chip.units
        rounds = np.floor(self.groups / together)
        left = self.groups - rounds * together
        sharing = np.ceil(left / chip.units)
        missed = np.minimum(1.0, chip.partitions * self.bytes_once / (self.groups * self.iterations * self.operands))

        written = np.maximum(self.bytes_out, self.added) / self.groups * self.stores

        def clocks(each: Numbers, rest: Numbers, exposed: Numbers, groups: Numbers) -> Numbers:
            waited = terms.far * missed * exposed
            pace = smooth(PACE, each * terms.matrix + waited, groups * self.operands / terms.operands)
            return self.iterations * self.uneven * pace + rest * terms.around + groups * written * terms.store

        last = np.where(
            left > 0, clocks(self.each_last, self.rest_last, self.exposed_last, np.maximum(1, sharing)), 0.0
        )
        total = rounds * clocks(self.each_full, self.rest_full, self.exposed_full, self.resident) + last
        matrix = self.iterations * self.matrix
        busiest = (rounds * self.resident + sharing) * self.uneven
        inner = Inner(total, self.groups * matrix, busiest * matrix)
        return self.whole(chip, terms, inner, self.added / terms.shares, timed=timed)

    @property
    def bytes_once(self) -> Numbers:
        return np.asarray(self.bytes_in + self.bytes_out)


@frozen(eq=False)
class Borrowed(Loops):
    """The same told by constants of the closed form, which knows no code around a loop that stores results.

    What they say of stores is of all that a workgroup does behind its loop.
    """

    overlap = 2.5  #: as in the closed form
    stores = False
