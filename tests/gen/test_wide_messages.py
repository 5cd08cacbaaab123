"""Lanes exchange elements of a result, and each then stores a longer run of memory."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import convgen as cg
from convgen import driver, tile
from convgen.backends.target import get
from convgen.ir.layout.fragment import Fragment
from convgen.plan.plan import Plan
from convgen.plan.wide_messages import with_longer_runs
from convgen.problem.matmul import parse_problem
from convgen.run import verdict
from convgen.tile import Tensor
from tests.strategies import FIXED

SM_90 = get("sm_90").facts
TILES = ("16x32x32", "32x32x64", "32x64x32", "64x32x32")
ATOMS = {"f16": "8x16x16", "f32": "8x16x8", "s8:s8:s8": "8x16x32"}


def built(line: str, config: str) -> Plan:
    plan = driver.build(parse_problem(line), "sm_90", config).plan
    assert isinstance(plan, Plan)
    return plan


def places(layout: Fragment) -> list[tuple[int, ...]]:
    """Return the coordinates of all lanes' registers, sorted."""
    subgroup, lane, register = np.meshgrid(
        np.arange(layout.subgroups), np.arange(32), np.arange(layout.registers), indexing="ij"
    )
    at = layout.coords(subgroup, lane, register)
    return sorted(zip(*(np.broadcast_to(at[dim], lane.shape).ravel().tolist() for dim in layout.dims)))


@settings(FIXED, max_examples=20)
@given(st.sampled_from(TILES), st.sampled_from(tuple(ATOMS)), st.sampled_from(("ab", "ba")))
def test_a_wide_layout_has_every_element_once_and_long_runs(tile: str, types: str, order: str) -> None:
    line = f"--dt={types} --attr-fpmath=tf32 --wtag=ab --dtag={order} 64x64:64x64"
    plan = built(line, f"tile={tile} waves=1x1 mma={ATOMS[types]} slots=2")
    view = plan.parts[0].product.result
    for piece in plan.mma.d.parts(16):
        wide = with_longer_runs(piece, view, SM_90)
        assert places(wide) == places(piece)
        assert max(wide.contiguous(dim) for dim in wide.dims) * view.memory.elem.bytes >= 8


@pytest.mark.parametrize(
    ("line", "stores"),
    [
        ("--dir=BWD_D --dt=f16 --stag=axb --wtag=axb --dtag=axb mb1ic64ih6oc32kh1", "v4.b32"),
        ("--dir=BWD_D --dt=f16 --stag=axb --wtag=axb --dtag=axb mb1ic60ih6oc32kh1", "v2.b32"),
        ("--dir=FWD_D --dt=f16 --stag=abx --wtag=abx --dtag=abx mb1ic32ih8oc32kh1", "v4.b32"),
        ("--dir=BWD_D --dt=f16 --stag=axb --wtag=axb --dtag=axb mb1ic63ih6oc32kh1", "u16"),
    ],
)
def test_results_are_stored_in_the_widest_messages_that_memory_allows(line: str, stores: str) -> None:
    code = driver.compile(driver.build(parse_problem(line), "sm_90"))
    assert set(re.findall(r"st\.global\.(\S+)", code.asm)) == {stores}
    assert verdict.run(code).passed


@tile.kernel(subgroups=(2, 2))
def with_residual(a: Tensor, b: Tensor, bias: Tensor, residual: Tensor, o: Tensor) -> None:
    """Write a @ b + bias + residual: both summands have the product's layout, in which lanes share a bias."""
    m, n = tile.grid(o, (32, 64))
    left, right = tile.init_tile(a, (m, 0), (32, 32)), tile.init_tile(b, (0, n), (32, 64))
    product = tile.convert(tile.tile_mma(tile.load_tile(left), tile.load_tile(right)), "f16")
    added = tile.load_tile(tile.init_tile(bias, (0, n), (1, 64)))
    added = added + tile.load_tile(tile.init_tile(residual, (m, n), (32, 64)))
    tile.store_tile(product + added, tile.init_tile(o, (m, n), (32, 64)))


@pytest.mark.parametrize(("rows", "columns", "is_wide"), [(50, 104, True), (33, 99, False)])
def test_loads_of_a_products_layout_exchange_elements(rows: int, columns: int, *, is_wide: bool) -> None:
    """Rows that end within a block are masked; rows of an odd length allow no wide messages."""
    shapes = (rows, 32), (32, columns), (1, columns), (rows, columns)
    draw = np.random.default_rng(1)
    a, b, bias, residual = (draw.integers(-2, 3, shape).astype(np.float16) for shape in shapes)
    code = cg.compile(with_residual(*(Tensor(shape, "f16") for shape in (*shapes, shapes[-1]))), "sm_90")
    result = cg.simulate(code, a=a, b=b, bias=bias, residual=residual)
    assert np.array_equal(result, a @ b + bias + residual)
    by_name = re.findall(r"(ld|st)\.global\S*?\.(v4\.b32|u16)[^\n]*// (\w+)", code.asm)
    widths = {(access, tensor): width for access, width, tensor in by_name}
    assert {widths["ld", "bias"], widths["ld", "residual"], widths["st", "o"]} == {"v4.b32" if is_wide else "u16"}
