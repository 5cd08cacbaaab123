"""Element-wise chains in parts: what is alive at a time, in which order, and that it means what it did."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen import driver, tile
from convgen.backends.machine.allocate import Liveness
from convgen.backends.target import get
from convgen.ir.expr import Pack, Var
from convgen.ir.mutate import postorder, statements
from convgen.ir.stmt import GlobalStore, Let, Stmt
from convgen.ir.types import VectorType
from convgen.passes import pipeline
from convgen.tile import Tensor, Value

FUNCTIONS = ("exp", "gelu", "sigmoid", "tanh", "erf", "swish", "softplus", "divide")
X = Tensor((256, 256), "f32")


def of(name: str, a: Value) -> Value:
    made: Value = tile.divide(a, a + 1.5) if name == "divide" else getattr(tile, name)(a)
    return made


@tile.kernel(subgroups=(2, 2))
def mapped(x: Tensor, y: Tensor, *, cols: int, name: str) -> None:
    at = tile.grid(y, (128, cols))
    tile.store_tile(of(name, tile.load_tile(tile.init_tile(x, at, (128, cols)))), tile.init_tile(y, at, (128, cols)))


def after(program: tile.TileProgram, name: str) -> list[Stmt]:
    """The statements of a kernel behind a pass."""
    seen = {}
    facts = get("gfx942").facts
    pipeline.run(program.kernel(facts), facts, observe=lambda p, _, kernel, __: seen.update({p.name: kernel}))
    return statements(seen[name].body)


def most_alive(program: tile.TileProgram, target: str) -> int:
    """Vector registers that are alive at a time as selection writes the code."""
    seen: dict[str, Any] = {}
    options = driver.Options(observe=lambda step, _, made, __: seen.update({step.name: made}))
    driver.compile(driver.wrap(program, target, options=options))
    ranges = Liveness(seen["select"].code).ranges().items()
    changes = Counter[int]()
    for v, positions in ranges:
        if v.bank == "v":
            edges = positions ^ positions << 1
            ends = [n for n in range(edges.bit_length()) if edges >> n & 1]
            changes.update(dict.fromkeys(ends[::2], v.size))
            changes.subtract(dict.fromkeys(ends[1::2], v.size))
    return max(accumulate(changes[n] for n in sorted(changes)))


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950", "xehpg", "xehpc"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_64_elements_a_lane_takes_their_registers_and_16_more_at_most(name: str, target: str) -> None:
    """On Xe four more hold the payload and the upper halves of addresses; allocation takes what there is for holds."""
    program = mapped(X, X, cols=2 * cg.facts(target).subgroup_size, name=name)
    (cost,) = cg.compile(program, target).kernels.values()
    if "vgpr" in cost.registers:
        assert cost.registers["vgpr"] <= 64 + 16
    else:
        assert most_alive(program, target) <= 64 + 16 + 4


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
def test_parts_are_what_the_whole_was(target: str) -> None:
    x = np.random.default_rng(0).standard_normal(X.shape).astype(np.float32)
    code = cg.compile(mapped(X, X, cols=2 * cg.facts(target).subgroup_size, name="swish"), target)
    wide = x.astype(np.float64)
    assert np.allclose(cg.simulate(code, x=x.ravel()).reshape(x.shape), wide / (1 + np.exp(-wide)), rtol=2e-6)


def test_a_store_has_its_parts_computed_just_before_it() -> None:
    made = after(mapped(X, X, cols=128, name="exp"), "split_chains")
    stores = [n for n, s in enumerate(made) if isinstance(s, GlobalStore)]
    assert len(stores) == 16
    assert all(later - store == 3 for store, later in pairwise(stores))  # two parts of two elements between
    lets = [s for s in made if isinstance(s, Let) and s.var.name == "exp"]
    assert {s.var.type.lanes for s in lets if not isinstance(s.value, Pack)} == {2}


def test_operations_that_a_kernel_names_one_by_one_are_one_chain() -> None:
    """No value of the chain is ever whole."""

    @tile.kernel(subgroups=(2, 2))
    def polynomial(x: Tensor, y: Tensor) -> None:
        at = tile.grid(y, (128, 128))
        a = tile.load_tile(tile.init_tile(x, at, (128, 128)))
        b = tile.exp2(a)
        c = tile.exp2(b) + a
        d = tile.exp2(c) * b
        tile.store_tile(d + c, tile.init_tile(y, at, (128, 128)))

    made = after(polynomial(X, X), "resolve_packs")
    wide = [s for s in made if isinstance(s, Let) and isinstance(s.var.type, VectorType) and s.var.type.lanes > 8]
    assert all(s.var.name == "x_tile" for s in wide)
    (cost,) = cg.compile(polynomial(X, X), "gfx942").kernels.values()
    assert cost.registers["vgpr"] <= 64 + 20


def test_a_reduction_takes_parts_of_what_it_reduces() -> None:
    """The squares are never all there."""

    @tile.kernel(subgroups=(4, 1))
    def norms(x: Tensor, y: Tensor) -> None:
        (m, _) = tile.grid(x, (4, 8192))
        a = tile.load_tile(tile.init_tile(x, (m, 0), (4, 8192)))
        tile.store_tile(tile.reduce("sum", a * a, 1), tile.init_tile(y, (m, 0), (4, 1)))

    code = cg.compile(norms(Tensor((4, 8192), "f32"), Tensor((4, 1), "f32")), "gfx942")
    (cost,) = code.kernels.values()
    assert cost.registers["vgpr"] <= 128 + 64
    x = np.ones((4, 8192), np.float32)
    assert cg.simulate(code, x=x).tolist() == [[8192.0]] * 4


def test_small_fragments_stay_whole() -> None:
    made = after(mapped(X, X, cols=8, name="softplus"), "split_chains")
    names = [v for s in made for v in postorder(s) if isinstance(v, Var) and v.name == "softplus"]
    assert {v.type.lanes for v in names} == {4}


@pytest.mark.parametrize("target", [pytest.param("sm_80", marks=pytest.mark.sweep), "sm_90a"])  # ptxas takes 8 s
def test_many_chains_that_wait_for_one_another(target: str) -> None:
    """Each product of a lane adds to the one before, and the conversion behind them waits for all 200."""

    @tile.kernel(mma="fma")
    def multiplied(a: Tensor, b: Tensor, c: Tensor) -> None:
        left, right = (tile.load_tile(tile.init_tile(t, (0, 0), t.shape)) for t in (a, b))
        tile.store_tile(tile.convert(tile.tile_mma(left, right), "f16") * 2, tile.init_tile(c, (0, 0), (64, 16)))

    a, b = (np.random.default_rng(0).integers(-1, 2, shape).astype(np.float32) for shape in ((64, 200), (200, 16)))
    code = cg.compile(multiplied(*(Tensor(x.shape, "f32") for x in (a, b)), Tensor((64, 16), "f16")), target)
    assert np.array_equal(cg.simulate(code, a=a, b=b), 2 * (a @ b))
