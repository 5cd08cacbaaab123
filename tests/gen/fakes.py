"""A driver and a target that compute with numpy: the CLI and verification are tested without a generator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from convgen import reference
from convgen.backends.simulation import Finding, LaunchRequest, SimReport
from convgen.code import Code, KernelCost
from convgen.problem import Conv
from convgen.record import Buffer, Launch, LaunchRecord, Tensor

ROWS, COLUMNS = 16, 4  #: of one output tile

Memory = Mapping[str, np.ndarray[Any, np.dtype[np.uint8]]]


@attrs.frozen
class Tiles:
    """One workgroup a tile, N fastest."""

    rows: int
    columns: int

    @property
    def grid(self) -> tuple[int, int]:
        return -(-self.rows // ROWS), -(-self.columns // COLUMNS)

    def groups(self, tile: int) -> tuple[tuple[int, ...], ...]:
        return ((tile,),)

    def region(self, tile: int) -> tuple[range, range]:
        m, n = divmod(tile, self.grid[1])
        return range(m * ROWS, (m + 1) * ROWS), range(n * COLUMNS, (n + 1) * COLUMNS)


def tiles_of(problem: Conv) -> Tiles:
    return Tiles(int(np.prod(problem.dst_dims)) // problem.oc, problem.oc)


def code_of(problem: Conv, **changes: Any) -> Code:
    """Code whose object is the problem line."""
    m, n = tiles_of(problem).grid
    args = (
        Buffer("src", 0, "read", Tensor.of(problem.src_layout, problem.src_type)),
        Buffer("wei", 8, "read", Tensor.of(problem.wei_layout, problem.wei_type)),
        Buffer("dst", 16, "write", Tensor.of(problem.dst_layout, problem.dst_type)),
    )
    launch = Launch("conv_main", (m * n, 1, 1), (64, 1, 1), args, 24, 512)
    code = Code(
        problem=problem,
        target="gfx942",
        config="m16n4",
        asm="conv_main:\n  s_endpgm\n",
        object=str(problem).encode(),
        record=LaunchRecord("gfx942", None, (launch,), str(problem)),
        kernels={"conv_main": KernelCost({"vgpr": 8, "sgpr": 16}, 512)},
        stages={"build": 0.25, "assemble": 0.5},
        tiles=tiles_of(problem),
    )
    return attrs.evolve(code, **changes)


@attrs.define
class Target:
    """Executes such objects; `spoil` may change the memory afterwards, `findings` are reported."""

    text_suffix: str = ".s"
    object_suffix: str = ".hsaco"
    spoil: Callable[[Memory], None] = lambda memory: None
    findings: tuple[Finding, ...] = ()
    executed: list[LaunchRequest] = attrs.Factory(list)

    def simulate(
        self,
        code_object: bytes,
        launches: Sequence[LaunchRequest],
        buffers: Memory,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> SimReport:
        problem = Conv.parse(code_object.decode())
        tiles = tiles_of(problem)
        src = reference.unpack(problem.src_layout, problem.src_type, buffers["src"])
        wei = reference.unpack(problem.wei_layout, problem.wei_type, buffers["wei"])
        right = np.moveaxis(reference.forward(problem, src, wei), 1, -1).reshape(-1, problem.oc)
        dst = reference.unpack(problem.dst_layout, problem.dst_type, buffers["dst"])
        rows = np.ascontiguousarray(np.moveaxis(dst, 1, -1)).reshape(-1, problem.oc)
        (launch,) = launches
        self.executed.append(launch)
        groups = range(launch.grid[0]) if launch.groups is None else launch.groups
        for group in groups:
            m, n = tiles.region(group)
            rows[m.start : m.stop, n.start : n.stop] = right[m.start : m.stop, n.start : n.stop]
        spatial = problem.dst_dims[2:]
        logical = np.moveaxis(rows.reshape(problem.mb, *spatial, problem.oc), -1, 1)
        buffers["dst"][:] = reference.pack(problem.dst_layout, logical)
        self.spoil(buffers)
        return SimReport(self.findings, {"valu": 10, "mfma": len(groups)}, {}, 0.5)


def finding() -> Finding:
    return Finding("wait-count", "v4 is read before its load has landed", "conv_main", 64, "v_add_f32 v0, v4, v4", 0, 1)
