"""The environment of a batch of workgroups on NVIDIA: memory, shared and local memory, barriers, copies in flight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from convgen.backends.nvidia.sim.async_copies import Copies
from convgen.backends.nvidia.sim.shared_memory import Shared
from convgen.backends.nvidia.sim.state import LANES
from convgen.backends.nvidia.sim.warpgroup_products import Products
from convgen.backends.sim.causality import Causality
from convgen.backends.sim.run import Run
from convgen.backends.sim.threads import Surroundings
from convgen.backends.sim.wave_arrays import Array, Bools, Bytes
from convgen.ir.layout.tensor_map import TensorMap

if TYPE_CHECKING:
    from convgen.backends.nvidia.sim.bulk_copies import BulkCopies
    from convgen.backends.nvidia.sim.local_memory import LocalMemory
    from convgen.backends.nvidia.sim.mbarriers import Mbarriers
    from convgen.backends.nvidia.sim.one_cluster import ClusterBarriers
    from convgen.backends.nvidia.sim.register_pool import RegisterPool

BARRIERS = 16  #: barriers of a workgroup (PTX ISA, bar: "Each CTA has sixteen barriers numbered 0..15")


class Environment(Surroundings):
    """The environment of one batch of workgroups."""

    local: Shared
    register_pool: RegisterPool
    mbarriers: Mbarriers
    bulk_copies: BulkCopies
    cluster_barriers: ClusterBarriers

    def __init__(
        self,
        run: Run,
        shared: Shared,
        slots: int,
        waves: int,
        causality: Causality,
        dtypes: Sequence[Any],
        live: Callable[[int], Sequence[int]],
    ) -> None:
        super().__init__(run, shared, slots, waves, causality)
        self.dtypes, self.live = dtypes, live
        self.alive: Bools = np.zeros((slots * waves, LANES), np.bool_)  #: threads that have not ended
        #: Threads at barriers that take a number of threads: those of arrivals before each warp's last one.
        self.arrived: Array = np.zeros((slots, BARRIERS), np.int64)
        self.arriving: Bools = np.zeros((slots, BARRIERS, waves, LANES), np.bool_)  #: lanes of each warp's last arrival
        self.threads: Array = np.zeros((slots, BARRIERS), np.int64)  #: threads at barriers that take all live threads
        self.expected: Array = np.zeros((slots, BARRIERS), np.int64)  #: threads; 0 while nobody has arrived; -1: all
        #: By workgroup's slot and barrier: the clocks that warps pass on at bar.arrive.
        self.passed_on: dict[tuple[int, int], list[Array]] = {}
        self.reduction: dict[tuple[int, int], list[Array]] = {}  #: predicates of bar.red by slot and barrier
        self.names: Sequence[str] = ()  #: names of registers, by number
        self.copies = Copies(slots * waves)
        self.products = Products(slots, waves)
        #: Ticket of each lane's first store since a barrier ordered it before the other lanes; 0: none.
        self.first_store: Array = np.zeros((slots * waves, LANES), np.int64)
        self.grid: tuple[int, int, int] = (1, 1, 1)
        self.workgroup: tuple[int, int, int] = (1, 1, 1)
        self.shared_bytes: int = 0
        self.dynamic_bytes: int = 0
        self.parameters: Bytes = np.zeros(0, np.uint8)
        self.parameters_defined: Bools = np.zeros(0, np.bool_)
        self.tensor_maps: Mapping[int, TensorMap] = {}  #: byte offset among the parameters -> tensor map
        self.thread_local: LocalMemory | None = None
        self.clock = 0
        #: Flags of dwords by buffer: those that ld.global.nc has read in this launch.
        self.constant_reads: dict[str, Bools] = {}

    def add_arrivals(self, slot: int, barrier: int, warp: int, lanes: Bools) -> None:
        """Count the lanes [LANES] of a warp at a barrier that takes a number of threads."""
        arriving = self.arriving[slot, barrier, warp]
        if (arriving & lanes).any():  # the warp arrives once more
            self.arrived[slot, barrier] += self._counted(slot, barrier)[warp]
            arriving[:] = False
        arriving |= lanes

    def arrivals(self, slot: int, barrier: int) -> int:
        """Return the threads that have arrived at a barrier that takes a number of threads."""
        return int(self.arrived[slot, barrier] + self._counted(slot, barrier).sum())

    def _counted(self, slot: int, barrier: int) -> Array:
        """Return the threads [warps] that the last arrival of each warp counts for.

        A warp counts whole as soon as all its live threads have arrived (PTX ISA, barrier: the executing thread waits
        for all non-exited threads of its warp).
        """
        arriving, alive = self.arriving[slot, barrier], self.alive[slot * self.waves : (slot + 1) * self.waves]
        whole = arriving.any(axis=1) & ~(alive & ~arriving).any(axis=1)
        return np.where(whole, LANES, arriving.sum(axis=1))
