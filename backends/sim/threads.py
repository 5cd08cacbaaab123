"""What the shared rooms ask of a simulator: its group of threads, their surroundings, its instructions.

A *group* is some hardware threads (waves) that execute together; *slot* numbers their workgroups inside a batch.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from convgen.backends.sim.arrays import Array

if TYPE_CHECKING:
    from convgen.backends.sim.causality import Causality
    from convgen.backends.sim.findings import Reporter
    from convgen.backends.sim.memory import Memory


class Located(Protocol):
    """An instruction, as findings name it."""

    @property
    def address(self) -> int: ...
    @property
    def text(self) -> str: ...


class Stepped(Protocol):
    """An instruction made ready to execute."""

    @property
    def instruction(self) -> Located: ...


class Surroundings(Protocol):
    """What the groups of a batch share."""

    @property
    def memory(self) -> Memory: ...
    @property
    def reporter(self) -> Reporter: ...
    @property
    def strict(self) -> bool: ...
    @property
    def waves(self) -> int: ...  # threads in a workgroup
    @property
    def epoch(self) -> npt.NDArray[np.uint32]: ...  # barriers passed, plus one, by slot
    @property
    def causality(self) -> Causality: ...
    @property
    def store_done(self) -> dict[tuple[int, int], int]: ...  # epoch in which (store, thread) was waited for


class Threads(Protocol):
    """A group of threads."""

    @property
    def env(self) -> Surroundings: ...
    @property
    def count(self) -> int: ...
    @property
    def slot(self) -> Array: ...
    @property
    def group_id(self) -> Array: ...
    @property
    def wave(self) -> Array: ...
    def wave_ids(self) -> npt.NDArray[np.int64]: ...  # a number for each thread that is unique in the launch
    def outstanding_stores(self) -> Collection[int]: ...  # own stores that a load of the same thread would miss
