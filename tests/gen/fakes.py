"""A driver and a target that compute with numpy: the CLI and verification are tested without a generator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np

from convgen.backends.amdgpu.family import FAMILY
from convgen.backends.family import Family
from convgen.backends.simulation import STRICT, Finding, LaunchRequest, Pages, Scrutiny, SimReport
from convgen.ir.record import evolve
from convgen.problem.conv import Conv
from convgen.run import reference
from convgen.run.code import Code, KernelCost, OutputRegion
from convgen.run.launch_record import Buffer, Launch, LaunchRecord, StoredTensor

ROWS, COLUMNS = 16, 4  #: of one output tile

Memory = Mapping[str, np.ndarray[Any, np.dtype[np.uint8]]]


@attrs.frozen
class Tiles:
    """A part and a launch for each output, one workgroup a tile, N fastest."""

    problem: Conv

    @property
    def shapes(self) -> list[tuple[int, int]]:
        return [reference.output_shape(self.problem, spec.name) for spec in self.problem.outputs]

    @property
    def grids(self) -> tuple[tuple[int, int], ...]:
        return tuple((-(-rows // ROWS), -(-columns // COLUMNS)) for rows, columns in self.shapes)

    def groups(self, part: int, tile: int) -> tuple[tuple[int, ...], ...]:
        return tuple((tile,) if launch == part else () for launch in range(len(self.grids)))

    def regions(self, part: int, tile: int) -> tuple[OutputRegion, ...]:
        m, n = divmod(tile, self.grids[part][1])
        rows, columns = map(np.arange, self.shapes[part])
        name = self.problem.outputs[part].name
        own = rows[m * ROWS : (m + 1) * ROWS], columns[n * COLUMNS : (n + 1) * COLUMNS]
        if not reference.has_padding(self.problem.outputs[part].layout):
            return (OutputRegion(name, *own),)
        ends = reference.shape_in_blocks(self.problem, name)  # the last tiles have the padding
        in_blocks = tuple(
            np.arange(some[0], end if some[-1] == axis[-1] else some[-1] + 1)
            for some, axis, end in zip(own, (rows, columns), ends)
        )
        return (OutputRegion(name, *own, (in_blocks[0], in_blocks[1])),)


def code_of(problem: Conv, **changes: Any) -> Code:
    """Code whose object is the problem line."""
    tiles = Tiles(problem)
    launches = []
    for part, (m, n) in enumerate(tiles.grids):
        specs = [*problem.inputs, problem.outputs[part]]
        args = tuple(
            Buffer(s.name, 8 * place, "read" if s in problem.inputs else "write", StoredTensor.of(s.layout, s.dtype))
            for place, s in enumerate(specs)
        )
        name = f"conv_{problem.outputs[part].name}" if part else "conv_main"
        launches.append(Launch(name, (m * n, 1, 1), (64, 1, 1), args, 8 * len(args), 512))
    code = Code(
        problem=problem,
        target="gfx942",
        config="m16n4",
        asm="conv_main:\n  s_endpgm\n",
        object=str(problem).encode(),
        record=LaunchRecord("gfx942", None, tuple(launches), str(problem)),
        kernels={launch.kernel: KernelCost({"vgpr": 8, "sgpr": 16}, 512) for launch in launches},
        stages={"build": 0.25, "assemble": 0.5},
        tiles=tiles,
    )
    return evolve(code, **changes)


@attrs.define
class Target:
    """Executes such objects; `spoil` may change the memory afterwards, `findings` are reported."""

    facts: Any = attrs.Factory(lambda: SimpleNamespace(name="fake", surface_max=2**31 - 2))
    family: Family = FAMILY
    assembler: str = "any will do"
    spoil: Callable[[Memory], None] = lambda memory: None
    findings: tuple[Finding, ...] = ()
    executed: list[LaunchRequest] = attrs.Factory(list)

    def assembled_by(self) -> str:
        return self.assembler

    def simulate(
        self,
        code_object: bytes,
        launches: Sequence[LaunchRequest],
        pages: Mapping[str, Pages],
        *,
        progress: Callable[[int, int], None] | None = None,
        scrutiny: Scrutiny = STRICT,
    ) -> SimReport:
        buffers = {name: each.whole() for name, each in pages.items()}
        problem = Conv.parse(code_object.decode())
        inputs = {s.name: reference.unpack(s.layout, s.dtype, buffers[s.name]) for s in problem.inputs}
        executed = 0
        for launch in launches:
            self.executed.append(launch)
            groups = range(launch.grid[0]) if launch.groups is None else launch.groups
            part = 0 if launch.kernel == "conv_main" else 1
            with np.errstate(invalid="ignore"):  # infinities may be among the inputs
                right = reference.whole(problem, inputs, problem.outputs[part].name)
            for group in groups:
                for region in Tiles(problem).regions(part, group):
                    _write(problem, region, right, buffers)
            executed += len(groups)
        self.spoil(buffers)
        return SimReport(self.findings, {"valu": 10, "mfma": executed}, {}, 0.5)


def _write(problem: Conv, region: OutputRegion, right: reference.Array, buffers: Memory) -> None:
    """Copy a region of the right output to its buffer."""
    spec = problem.tensor(region.output)
    logical = reference.unpack(spec.layout, spec.dtype, buffers[spec.name])
    index = tuple(reference.output_index(problem, spec.name, region.rows, region.columns))
    logical[index] = right[index]
    buffers[spec.name][:] = reference.pack(spec.layout, logical)


def finding() -> Finding:
    return Finding("wait-count", "v4 is read before its load has landed", "conv_main", 64, "v_add_f32 v0, v4, v4", 0, 1)
