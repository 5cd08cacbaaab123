"""Row kernels in the tile language: bytes moved, how wide messages are, and the share of the memory bound.

With FOLDER, beside other compilers' kernels for the same rows on gfx942: NAME.hsaco, such as softmax_1024.hsaco, a
workgroup a row, whose arguments begin with the tensors in the order given here. All kernels are run on the simulator.

The share is that of a model: the clocks in which the device brings what must be moved, by those of whatever is
occupied longest, memory or the units' issue slots (as `convgen analyze` counts them), if all units are busy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import numpy as np
from lib.figures import Figure, main

from convgen import driver, tile
from convgen.backends import target as targets
from convgen.backends.amdgpu.sim import CodeObject
from convgen.backends.analysis import KernelAnalysis, Terms
from convgen.backends.simulation import KernelArg, LaunchRequest, SimReport
from convgen.ir.record import evolve
from convgen.run.execution import execute
from convgen.tile import Tensor
from convgen.tile.tile_kernel import TileKernel

WIDE = 16  #: bytes of a lane in a message that is as wide as any of AMD's
MOST = 1.05  #: bytes moved by those that must be
OTHERS = "gfx942"  #: the target of other compilers' kernels
BLOCKS = 32  #: blocks of rows that a workgroup of layer norm goes through


@tile.kernel(subgroups=(4, 1))
def softmax(x: Tensor, y: Tensor, *, rows: int, cols: int) -> None:
    m, _ = tile.grid(y, (rows, cols))
    inside = tile.less(tile.positions((1, cols), 1), x.shape[1])
    loaded = tile.load_tile(tile.init_tile(x, (m, 0), (rows, cols)))
    values = tile.where(inside, loaded, tile.full((1, 1), -1e30))
    e = tile.exp(values - tile.reduce("max", values, 1))
    tile.store_tile(e * tile.reciprocal(tile.reduce("sum", e, 1)), tile.init_tile(y, (m, 0), (rows, cols)))


@tile.kernel(subgroups=(4, 1))
def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, y: Tensor, *, rows: int, cols: int) -> None:
    """Normalise many rows per workgroup, which loads scale and shift once."""
    m, _ = tile.grid(y, (BLOCKS * rows, cols))
    scale, shift = (tile.load_tile(tile.init_tile(t, (0, 0), (1, cols))) for t in (gamma, beta))
    for row in tile.range(0, BLOCKS * rows, rows):
        values = tile.load_tile(tile.init_tile(x, (m + row, 0), (rows, cols)))
        centred = values - tile.reduce("sum", values, 1) * (1 / cols)
        variance = tile.reduce("sum", centred * centred, 1) * (1 / cols)
        normed = centred * tile.rsqrt(variance + 1e-5) * scale + shift
        tile.store_tile(normed, tile.init_tile(y, (m + row, 0), (rows, cols)))


@attrs.frozen
class Row:
    """A kernel with its tensors' shapes, the output last; subgroups, and `rows` and `cols` of a block, by target."""

    name: str
    kernel: TileKernel
    shapes: tuple[tuple[int, int], ...]
    blocks: Mapping[str, tuple[tuple[int, int], int, int]]

    @property
    def compulsory(self) -> int:
        """Bytes."""
        return sum(4 * prod(shape) for shape in self.shapes)


_WIDE, _LONG, _MANY = (8, 1024), (8, 4099), (4 * BLOCKS, 1024)
ROWS = (
    Row("softmax_1024", softmax, (_WIDE, _WIDE), {"gfx942": ((4, 1), 4, 1024), "xehpc": ((16, 1), 4, 1024)}),
    Row("softmax_4099", softmax, (_LONG, _LONG), {"gfx942": ((4, 1), 1, 5120), "xehpc": ((16, 1), 1, 6144)}),
    Row(
        "layer_norm_1024",
        layer_norm,
        (_MANY, (1, 1024), (1, 1024), _MANY),
        {"gfx942": ((4, 1), 4, 1024), "xehpc": ((16, 1), 4, 1024)},
    ),
)


@attrs.frozen
class Run:
    """A run of a kernel: `rows` is the number that a workgroup does in the code that `analysis` covers."""

    report: SimReport
    analysis: KernelAnalysis
    terms: Terms
    subgroups: int
    rows: int


def data(row: Row) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in row.shapes]


def ours(row: Row, target: str) -> Run:
    subgroups, rows, cols = row.blocks[target]
    kernel = TileKernel(row.kernel.function, evolve(row.kernel.options, subgroups=subgroups))
    program = kernel(*(Tensor(shape, "f32") for shape in row.shapes), rows=rows, cols=cols)
    code = driver.compile(program, target)
    given = {t.name: array for t, array in zip(program.tensors[:-1], data(row))}
    _, report = execute(code.record, code.object, given)
    assert not report.findings, report.findings[0]
    assert code.object is not None
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"k.{'hsaco' if target == OTHERS else 'zebin'}"
        path.write_bytes(code.object)
        return _run(path, report, prod(subgroups), rows)


def theirs(row: Row, path: Path) -> Run:
    """Another compiler's kernel, one row a workgroup."""
    content, to = path.read_bytes(), targets.get(OTHERS)
    (kernel,) = CodeObject.load(content).kernels.values()
    offsets = [int(arg[".offset"]) for arg in kernel.metadata[".args"]]
    names = [f"t{n}" for n in range(len(row.shapes))]
    args = [KernelArg(offset, 8, name) for offset, name in zip(offsets, names)]
    args += [KernelArg(offset, 8, bytes(8)) for offset in offsets[len(names) : len(names) + 2]]
    memory = {name: array.view(np.uint8).ravel() for name, array in zip(names, data(row))}
    threads = int(kernel.metadata[".max_flat_workgroup_size"])
    request = LaunchRequest(kernel.name, (row.shapes[0][0], 1, 1), (threads, 1, 1), tuple(args))
    return _run(path, to.simulate(content, [request], memory), threads // to.facts.subgroup_size, 1)


def _run(path: Path, report: SimReport, subgroups: int, rows: int) -> Run:
    found = targets.analyze(path)
    (kernel,) = found.kernels
    return Run(report, kernel, found.terms, subgroups, rows)


def figures(row: Row, target: str, whose: str, run: Run) -> Iterator[Figure]:
    facts, counters, elements = targets.get(target).facts, run.report.counters, prod(row.shapes[-1])
    name = f"{row.name}, {whose}"
    moved = (counters["global_read_bytes"] + counters["global_write_bytes"]) / row.compulsory
    yield Figure(f"{name}: bytes moved", moved * row.compulsory / 1024, "KiB", "compulsory", moved, MOST)
    widths: Counter[int] = Counter()
    for line in run.analysis.hot.lines:
        for path, size in line.bytes.items():
            widths[size // facts.subgroup_size] += size * path.startswith("global")
    wide = sum(size for width, size in widths.items() if width >= WIDE) / max(1, widths.total())
    yield Figure(f"{name}: in messages of {WIDE} bytes a lane", 100 * wide, "%")
    each = sum(run.report.instructions.values()) * facts.subgroup_size / elements
    yield Figure(f"{name}: instructions an element", each, "")
    slots = run.analysis.hot.slots[run.analysis.hot.bound] * run.terms.slot_clocks
    work = slots * run.subgroups / run.rows / (facts.core.simds * facts.compute_units)
    memory = row.compulsory / row.shapes[0][0] / facts.caches.memory_rate
    share = 100 * memory / max(memory, work)
    yield Figure(f"{name}: share of the memory bound", share, "%", "memory's clocks are issued", work / memory)


def measure(folder: Path | None) -> Iterator[Figure]:
    for row in ROWS:
        for target in row.blocks:
            yield from figures(row, target, target, ours(row, target))
        if folder is not None and (path := folder / f"{row.name}.hsaco").exists():
            yield from figures(row, OTHERS, f"{OTHERS}, {folder.name}", theirs(row, path))


if __name__ == "__main__":
    main("Rows", measure, path=("FOLDER", "kernels of another compiler, NAME.hsaco for each row"))
