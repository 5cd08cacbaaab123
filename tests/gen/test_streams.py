"""The kernels that only stream: how they spread a tile, and that each sum has all of its terms."""

from __future__ import annotations

import numpy as np
import pytest

from convgen.backends import target
from convgen.epilogue.epilogue import Epilogue
from convgen.epilogue.steps import Convert
from convgen.ir.interp import interpret
from convgen.ir.layout.digits import Space
from convgen.ir.layout.memory import Dim, Global, TensorDim, View
from convgen.ir.layout.tags import Layout
from convgen.ir.types import f32
from convgen.kernels.streams import Stream, fill, sum_slices, sums_of_channels
from convgen.problem.tensors import TensorSpec

FACTS = {name: target.get(name).facts for name in ("gfx942", "xehpg")}
CONVERT = Epilogue((Convert(f32),))


def cube(name: str, n: int, m: int, r: int) -> View:
    """N fastest, then M, then R."""
    sizes = {"r": r, "m": m, "n": n}  # outermost first
    axes = tuple((Dim(dim, sizes[dim], sizes[dim]),) for dim in "nmr")
    index = tuple(TensorDim(size, ((dim, 1),)) for dim, size in sizes.items())
    layout = Layout.dense(sizes.values(), (0, 1, 2))
    return View(Global(name, f32, layout.size_elems * 4), layout, axes, index)


def plane(name: str, n: int, m: int) -> View:
    axes = (Dim("n", n, n),), (Dim("m", m, m),)
    index = TensorDim(m, (("m", 1),)), TensorDim(n, (("n", 1),))
    return View(Global(name, f32, m * n * 4), Layout.dense((m, n), (0, 1)), axes, index)


@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize("tile", [(16, 16), (64, 64), (128, 32), (8, 256), (256, 24)])
def test_every_lane_has_its_own_part_of_a_tile(name: str, tile: tuple[int, int]) -> None:
    """No lane is idle where a tile is large enough, and none repeats what another does."""
    facts = FACTS[name]
    stream = fill(plane("dst", 512, 512), CONVERT, f32, tile, facts, "fill")
    layout = stream.layout
    m, n = stream.tile
    assert tile[0] % m == 0
    assert tile[1] % n == 0
    assert layout.count(Space.LANE) == facts.subgroup_size
    held = layout.registers * facts.subgroup_size * layout.subgroups
    assert held == m * n
    at = layout.coords(*np.indices((layout.subgroups, facts.subgroup_size, layout.registers)))
    assert len(np.unique(at["m"] * n + at["n"])) == held


def run(stream: Stream, name: str, **buffers: np.ndarray) -> np.ndarray:
    memory = {key: a.ravel().view(np.uint8).copy() for key, a in buffers.items()}
    interpret(stream.kernel("k", FACTS[name]), memory)
    return memory[stream.result.memory.name].view(np.float32)


@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize(("terms", "most"), [(1, 256), (2, 256), (3, 256), (8, 256), (5, 2), (300, 1)])
def test_slices_are_summed(name: str, terms: int, most: int) -> None:
    """By one lane, or where they are more than it may have, by several that meet."""
    given = np.arange(terms * 9 * 20, dtype=np.float32).reshape(terms, 9, 20)
    source, result = cube("src", 20, 9, terms), plane("dst", 20, 9)
    stream = sum_slices(source, result, CONVERT, f32, (16, 16), FACTS[name], "sum", most)
    found = run(stream, name, src=given, dst=np.full(180, 7, np.float32))
    assert np.array_equal(found.reshape(9, 20), given.sum(0))
    assert stream.rounds * stream.layout.extent("r") >= terms
    assert stream.reduces == (terms > most)


@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize(("n", "terms"), [(5, 1), (8, 300), (40, 2000), (3, 0), (130, 257)])
def test_channels_are_summed_in_as_many_kernels_as_it_takes(name: str, n: int, terms: int) -> None:
    gradient = View(
        Global("src", f32, max(1, n * terms) * 4),
        Layout.dense((terms, n), (0, 1)),
        ((Dim("n", n, n),), (Dim("r", terms, terms),)),
        (TensorDim(terms, (("r", 1),)), TensorDim(n, (("n", 1),))),
    )
    target_spec = TensorSpec("dst", Layout.dense((n,), (0,)), "f32")
    given = np.arange(n * terms, dtype=np.float32).reshape(terms, n) % 8
    memory = {"src": given.ravel().view(np.uint8).copy(), "dst": np.full(n, 7, np.float32).view(np.uint8)}
    chain = sums_of_channels(gradient, target_spec, f32, FACTS[name], "bias")
    for stream in chain:
        memory.setdefault(stream.result.memory.name, np.zeros(stream.result.memory.bytes, np.uint8))
        if stream.source is not None:
            assert stream.rounds * stream.layout.registers // 4 <= 256
        interpret(stream.kernel("k", FACTS[name]), memory)
    assert np.array_equal(memory["dst"].view(np.float32), given.sum(0))
    assert (len(chain) > 1) == (terms > 256)
