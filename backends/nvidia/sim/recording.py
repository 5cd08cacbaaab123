"""The recorder of an outlined run: it sees warps before each instruction, and what each bulk copy moves."""

from __future__ import annotations

from typing import Protocol

from convgen.backends.nvidia.sim.state import WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step
from convgen.backends.nvidia.sim.tensor_boxes import Chunks


class Recorder(Protocol):
    """A caller's record of a launch. Groups of warps are not to be changed."""

    def begin(self, context: Context) -> None:
        """Begin a batch of workgroups of a kernel."""

    def execute(self, g: WarpGroup, step: Step) -> None:
        """Note an instruction that a group of warps is about to execute."""

    def copy(self, g: WarpGroup, step: Step, chunks: Chunks, mbarrier: int | None) -> None:
        """Note a bulk copy of one lane, alone in its group; `mbarrier` is the address of the one that counts a load."""


class Unrecorded:
    """A recorder that notes nothing: for runs whose accesses to global memory alone are observed."""

    def begin(self, context: Context) -> None:
        pass

    def execute(self, g: WarpGroup, step: Step) -> None:
        pass

    def copy(self, g: WarpGroup, step: Step, chunks: Chunks, mbarrier: int | None) -> None:
        pass
