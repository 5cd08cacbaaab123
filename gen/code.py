"""Compiled code: the assembly, the object, how to launch it and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from convgen.matmul import Problem
from convgen.record import LaunchRecord


class OutputTiles(Protocol):
    """Which part of the output each tile is and which workgroups make it.

    Tiles are numbered row by row: tile = m * (N tiles) + n.
    """

    @property
    def grid(self) -> tuple[int, int]:
        """M tiles, N tiles."""

    def groups(self, tile: int) -> tuple[tuple[int, ...], ...]:
        """For each launch, the linear workgroup ids (x fastest) that the tile needs."""

    def region(self, tile: int) -> tuple[range, range]:
        """The tile's rows and columns of the output matrix; parts beyond the output do not count.

        Rows are flattened n, [od,] oh, ow of a convolution and M of a matmul, columns are oc and N.
        """


@attrs.frozen
class KernelCost:
    """What one kernel takes of a compute unit: registers by class (vgpr, agpr, sgpr, ...) and static local memory."""

    registers: Mapping[str, int]
    lds_bytes: int

    def __str__(self) -> str:
        registers = " ".join(f"{name} {count}" for name, count in self.registers.items())
        return f"{registers}, {self.lds_bytes} bytes of LDS"


@attrs.frozen
class Code:
    """A compiled program. `object` is None where no assembler is installed or nothing is to be launched.

    `kernels` holds the cost of each kernel in launch order; `stages` the seconds each stage took; `listings` the IR
    that debug information leads to, by file name.
    """

    problem: Problem | None
    target: str
    config: str
    asm: str
    object: bytes | None
    record: LaunchRecord
    kernels: Mapping[str, KernelCost]
    stages: Mapping[str, float]
    tiles: OutputTiles | None = None
    listings: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def name(self) -> str:
        """The name of the first kernel, or `empty` if there is none."""
        return next(iter(self.kernels), "empty")

    def __str__(self) -> str:
        lines = [f"{self.problem or self.name} on {self.target}"]
        lines += [f"  config  {self.config}"] if self.config else []
        for launch in self.record.launches:
            grid, workgroup = ("x".join(map(str, extents)) for extents in (launch.grid, launch.workgroup))
            lines.append(f"  kernel  {launch.kernel}: grid {grid}, workgroup {workgroup}")
            lines.append(f"          {self.kernels[launch.kernel]}")
        size = "not assembled" if self.object is None else f"object of {len(self.object)} bytes"
        lines.append(f"  code    {self.asm.count(chr(10))} lines of assembly, {size}")
        return "\n".join(lines)
