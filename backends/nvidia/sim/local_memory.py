"""Memory of a thread's own: bytes by warp and lane (PTX ISA, Local State Space)."""

from __future__ import annotations

import numpy as np

from convgen.backends.nvidia.sim.state import LANES, WarpGroup
from convgen.backends.nvidia.sim.step import Step
from convgen.backends.sim.wave_arrays import Array, Bools, Bytes


class LocalMemory:
    """The local memory of all threads of a batch, `size` bytes each."""

    def __init__(self, warps: int, size: int) -> None:
        self.size = size
        self.data: Bytes = np.zeros((warps, LANES, max(size, 1)), np.uint8)
        self.defined: Bools = np.zeros((warps, LANES, max(size, 1)), np.bool_)

    def _places(self, g: WarpGroup, step: Step, offset: Array, size: int, lanes: Bools) -> tuple[Array, Bools]:
        beyond = lanes & ((offset < 0) | (offset > self.size - size))
        if beyond.any():
            finding = f"{size} bytes are outside the {self.size} bytes of local memory of a thread"
            g.env.reporter.at_first("out-of-bounds", finding, step.instruction, g, beyond)
            lanes = lanes & ~beyond
        bad = lanes & (offset % size != 0)
        if bad.any():
            finding = f"local access of {size} bytes not aligned to {size}"
            g.env.reporter.at_first("misaligned", finding, step.instruction, g, bad)
        return np.where(lanes, offset, 0)[..., None] + np.arange(size), lanes

    def load(self, g: WarpGroup, step: Step, offset: Array, size: int, lanes: Bools) -> tuple[Bytes, Bools]:
        """Return bytes [rows, lanes, size] and flags of undefined ones."""
        at, lanes = self._places(g, step, offset, size, lanes)
        rows, columns = g.thread[:, None, None], np.arange(LANES)[:, None]
        if not self.size:
            return np.zeros((*g.shape, size), np.uint8), np.zeros((*g.shape, size), np.bool_)
        return self.data[rows, columns, at], ~self.defined[rows, columns, at] & lanes[..., None]

    def store(
        self, g: WarpGroup, step: Step, offset: Array, values: Bytes, undefined: Bools | None, lanes: Bools
    ) -> None:
        """Write bytes [rows, lanes, size]; `undefined` flags undefined ones."""
        at, lanes = self._places(g, step, offset, values.shape[-1], lanes)
        row, lane = np.nonzero(lanes)
        if not len(row):
            return
        where = g.thread[row][:, None], lane[:, None], at[row, lane]
        self.data[where] = values[row, lane]
        self.defined[where] = True if undefined is None else ~undefined[row, lane]
