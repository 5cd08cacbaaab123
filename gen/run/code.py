"""Compiled code: the assembly, the object, how to launch it and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from convgen.ir.record import frozen
from convgen.problem.matmul import Problem
from convgen.run.launch_record import LaunchRecord


@frozen(eq=False)
class OutputRegion:
    """Elements rows x columns of an output seen as a matrix (see `reference`), all within the output.

    If blocks of the output's layout have padding, `in_blocks` are the rows and columns of the region in the matrix that
    includes the padding (see `reference.index_in_blocks`).
    """

    output: str
    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    in_blocks: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    @property
    def has_padding(self) -> bool:
        """Return whether some elements of the region are padding of blocks, which must be zero."""
        if self.in_blocks is None:
            return False
        rows, columns = self.in_blocks
        return (rows.size, columns.size) != (self.rows.size, self.columns.size)


class OutputTiles(Protocol):
    """The output tiles: the region of each tile, and the workgroups that compute it.

    Tiles come in parts, each a grid: usually one, but a stride phase of backward data, a zero fill or the gradient of
    a bias is a part of its own. Tiles of a part are numbered row by row: tile = m * (N tiles) + n.
    """

    @property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """Return (M tiles, N tiles) of each part."""

    def groups(self, part: int, tile: int) -> tuple[tuple[int, ...], ...]:
        """Return, for each launch, the linear workgroup ids (x fastest) that the tile needs: none, some or all."""

    def regions(self, part: int, tile: int) -> tuple[OutputRegion, ...]:
        """Return the region of each output that a tile holds."""


@frozen
class KernelCost:
    """The resources that one kernel takes: registers by class, in the family's words, and static local memory.

    `registers` is empty for text with virtual registers that nobody has compiled.
    """

    registers: Mapping[str, int]
    shared_bytes: int

    def __str__(self) -> str:
        registers = " ".join(f"{name} {count}" for name, count in self.registers.items())
        return f"{registers or 'virtual registers'}, {self.shared_bytes} bytes of shared memory"


@frozen
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
    remarks: tuple[str, ...] = ()  #: notes for people about the kernels, such as products that lanes compute
    machine: bytes | None = None  #: machine code of an object that is text, if a compiler of it is installed

    @property
    def keeps_padding_out(self) -> bool:
        """Return whether padding adds nothing even beside inf and NaN; with `padding=zeros` it is a zero factor."""
        return "padding=zeros" not in self.config.split()

    @property
    def name(self) -> str:
        """Return the name of the first kernel, or `empty` if there is none."""
        return next(iter(self.kernels), "empty")

    def __str__(self) -> str:
        lines = [f"{self.problem or self.name} on {self.target}"]
        lines += [f"  config  {self.config}"] if self.config else []
        for launch in self.record.launches:
            grid, workgroup = ("x".join(map(str, extents)) for extents in (launch.grid, launch.workgroup))
            lines.append(f"  kernel  {launch.kernel}: grid {grid}, workgroup {workgroup}")
            lines.append(f"          {self.kernels[launch.kernel]}")
        size = "not assembled" if self.object is None else f"object of {len(self.object)} bytes"
        size += "" if self.machine is None else f", machine code of {len(self.machine)} bytes"
        lines.append(f"  code    {self.asm.count(chr(10))} lines of assembly, {size}")
        lines += [f"  remark  {remark}" for remark in self.remarks]
        return "\n".join(lines)
