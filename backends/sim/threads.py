"""Groups of threads and the environment of a batch: the base classes and protocols of all simulators.

A *group* is some hardware threads (waves) that execute together; a *slot* is a workgroup's number inside a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from copy import copy
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from convgen.backends.sim.local import Lds, stamps_of
from convgen.backends.sim.wave_arrays import U32, Array

if TYPE_CHECKING:
    from convgen.backends.sim.causality import Causality
    from convgen.backends.sim.run import Run
    from convgen.backends.simulation import Source


class Located(Protocol):
    """A decoded instruction, as findings name it: each family has a class of its own."""

    @property
    def address(self) -> int: ...
    @property
    def text(self) -> str: ...


class Stepped(Protocol):
    """A compiled instruction, as checks need it to name the instruction (`step.Ready` is the class behind it)."""

    @property
    def instruction(self) -> Located: ...


class Surroundings:
    """The environment of a batch of workgroups: memory, local memory, findings, counters, barrier epochs."""

    def __init__(
        self, run: Run, local: Lds, slots: int, waves: int, causality: Causality, *, strict: bool = True
    ) -> None:
        self.memory, self.reporter, self.counters = run.memory, run.reporter, run.counters
        self.observe, self.reached = run.observe, run.reached
        self.local = local
        self.waves = waves  #: threads in a workgroup
        self.strict = strict  #: whether order, races and undefined bytes are checked
        self.epoch: U32 = np.ones(slots, np.uint32)  #: barriers passed, plus one, by slot
        self.causality = causality
        #: Document that asks a thread to wait for its own stores before later accesses and barriers; None: the document
        #: of any other order.
        self.own_order: Source | None = None
        #: (ticket, thread) -> epoch in which a store was waited for; later batches share it if the kernel acquires.
        self.store_done: dict[tuple[int, int], int] = causality.store_done if causality.tracked else {}
        self.store_issued: dict[tuple[int, int], int] = causality.store_issued if causality.tracked else {}

    def ticket(self) -> int:
        """Return the ticket (number in the launch) of a new store or atomic operation."""
        self.causality.tickets += 1
        return self.causality.tickets

    def stamps(self, group: Threads, ahead: int = 0) -> U32:
        """Return the stamp of each thread's clean access to local memory, `ahead` epochs from now [threads, 1]."""
        return stamps_of(self.epoch[group.slot] + np.uint32(ahead), group.wave)


class Threads(ABC):
    """Threads with one program counter and one history."""

    #: Name of each array with an axis of threads -> that axis.
    arrays: ClassVar[Mapping[str, int]] = {"slot": 0, "group_id": 0, "wave": 0}

    def __init__(self, env: Surroundings, slot: Array, group_id: Array, wave: Array) -> None:
        self.env = env
        self.slot = slot  #: workgroup number inside the batch, per thread
        self.group_id = group_id  #: linear workgroup id in the grid, per thread
        self.wave = wave  #: thread number inside its workgroup
        self.count = len(slot)
        self.pc = 0
        self.issued = 0  #: instructions executed
        self.blocked = False  #: waits at a barrier
        self.targets: Array | None = None  #: per thread, where a divergent branch leads

    def wave_ids(self) -> npt.NDArray[np.int64]:
        """Return a number for each thread that is unique in the launch."""
        ids: npt.NDArray[np.int64] = self.group_id.astype(np.int64) * self.env.waves + self.wave
        return ids

    @abstractmethod
    def outstanding_stores(self) -> Collection[int]:
        """Return the tickets of own stores that a later access may overtake, as the group has not waited for them."""

    @abstractmethod
    def signature(self) -> tuple[object, ...]:
        """Return a key: groups with equal keys can be merged."""

    def select(self, rows: Array) -> Self:
        """Return a group of some of the threads; it shares this group's history."""
        part = copy(self)
        for name, axis in self.arrays.items():
            setattr(part, name, getattr(self, name).take(rows, axis=axis))
        part.count, part.targets = len(rows), None
        return part

    def merge(self, other: Self) -> Self:
        """Return both groups as one; their signatures are equal."""
        both = copy(self)
        for name, axis in self.arrays.items():
            setattr(both, name, np.concatenate((getattr(self, name), getattr(other, name)), axis=axis))
        both.count, both.targets = self.count + other.count, None
        both.issued = max(self.issued, other.issued)
        return both
