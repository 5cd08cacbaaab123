"""Programs as text: what is printed is parsed again, prints the same and is the same kernel; errors name the line."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings

import convgen as cg
from convgen import tile
from convgen.backends import target as targets
from convgen.ir.error import UserError
from convgen.tile import Tensor, TileProgram
from tests.strategies import FIXED
from tests.tile import kernels as k
from tests.tile.programs import Program, programs
from tests.tile.test_simulated import instructions

FACTS = targets.get("gfx942").facts
_H, _F = Tensor((96, 96), "f16"), Tensor((96, 96), "f32")
_ROW, _BLOCKS = Tensor((1, 96), "f32"), {"bm": 64, "bn": 64, "bk": 32}

_M, _N, _K = tile.size("m", 4096), tile.size("n", 512, multiple=8), tile.size("k", 4096, least=32, multiple=16)

PROGRAMS: dict[str, TileProgram] = {
    "gemm": k.gemm(_H, Tensor((96, 96), "f16", "ba"), _F, **_BLOCKS),
    "gemm of any size": k.gemm(Tensor((_M, _K), "f16"), Tensor((_K, _N), "f16"), Tensor((_M, _N), "f32"), **_BLOCKS),
    "fused": k.fused(_H, _H, _ROW, _F, **_BLOCKS),
    "saxpy": k.saxpy(_F, _F, bm=8, bn=32),
    "softmax": k.softmax(_F, _F, rows=4, cols=128),
    "layer norm": k.layer_norm(_F, _ROW, _ROW, _F, rows=4, cols=96),
    "attention": k.attention(*[Tensor((100, 64), "f16")] * 4, bm=64, bn=64, causal=True),
    "reductions": k.reductions(_F, Tensor((96, 1), "f32"), _ROW, kind="max"),
    "batched": k.batched(*(Tensor((2, 3, 64, 64), t) for t in ("f16", "f16", "f32")), **_BLOCKS),
    "sliced": k.sliced(_H, _H, _F, slices=2, **_BLOCKS),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_printed_is_the_program(name: str) -> None:
    program = PROGRAMS[name]
    again = tile.parse(str(program))
    assert str(again) == str(program)
    found, wanted = (instructions(cg.compile(p).asm) for p in (again, program))
    assert found == wanted


def unnamed(kernel: object) -> str:
    """Without the numbers that tell apart what has one name."""
    return re.sub(r"\bstate_\w+(\.\d+)?", "state", str(kernel))


@settings(FIXED, max_examples=20)
@given(programs(FACTS))
def test_random_programs(program: Program) -> None:
    traced = program.traced()
    again = tile.parse(str(traced))
    assert str(again) == str(traced)
    assert unnamed(again.kernel(FACTS)) == unnamed(traced.kernel(FACTS))


@tile.kernel()
def walking(x: Tensor, y: Tensor) -> None:
    """Sums of four blocks and of what is behind each of them; the tile goes on in the inner loop."""
    at, total = tile.init_tile(x, (0, 0), (8, 8)), tile.zeros((8, 8))
    for _ in tile.range(0, 2):
        for _ in tile.range(0, 2):
            behind = tile.update_tile_offset(at, (8, 0))
            total = total + tile.load_tile(at) + tile.load_tile(behind)
            at = tile.update_tile_offset(at, (0, 8))
        at = tile.update_tile_offset(at, (8, 0))
    tile.store_tile(total, tile.init_tile(y, (0, 0), (8, 8)))


WALKING = """\
kernel walking(x: memref<32x32xf32>, y: memref<8x8xf32>) subgroups=1x1
  %0 = constant 0 : vector<8x8xf32>
  %1 = init_tile x[0, 0] : tile<8x8xf32>
  for i in [0, 2) carrying total = %0
    for i_2 in [0, 2) carrying total_2 = %total
      %2 = load_tile %1 : vector<8x8xf32>
      %3 = add %total_2, %2 : vector<8x8xf32>
      %4 = update_tile_offset %1, [8, 0]
      %5 = load_tile %4 : vector<8x8xf32>
      %6 = add %3, %5 : vector<8x8xf32>
      %1 = update_tile_offset %1, [0, 8]
      yield %6
    %1 = update_tile_offset %1, [8, 0]
    yield %total_2
  %7 = init_tile y[0, 0] : tile<8x8xf32>
  store_tile %total, %7
"""


def test_tiles_that_go_on_in_inner_loops() -> None:
    x = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
    program = walking(Tensor((32, 32), "f32"), Tensor((8, 8), "f32"))
    assert str(program) == WALKING
    wanted = sum(x[i : i + 8, j : j + 8] + x[i + 8 : i + 16, j : j + 8] for i, j in ((0, 0), (0, 8), (8, 16), (8, 24)))
    for each in (program, tile.parse(WALKING)):
        found = cg.simulate(cg.compile(each), x=x.ravel()).reshape(8, 8)
        assert np.array_equal(found, wanted)


ONE = "  %0 = constant 1 : vector<8x8xf32>\n"
START = "kernel k(x: memref<64x64xf32>) subgroups=2x1\n  m, n = grid 2x2 of <32x32> in rows\n"

WRONG = [
    ("", "line 1: given '', wanted kernel NAME"),
    ("kernel k(x)\n", "line 1: given the tensors 'x', wanted such as a: memref<64x32xf16>"),
    ("kernel k(x: memref<8x8xf17>)\n", "line 1: given the type 'f17'"),
    ("kernel k(x: memref<8x8xf32>) speed=9\n", "line 1: given 'speed=9', wanted some of subgroups, slots, mma, acc"),
    (START.replace("rows", "circles"), "line 2: "),
    (START + "  %0 = init_tile z[m, n] : tile<32x32xf32>", "line 3: given the tensor z, wanted one of x"),
    (START + "  %0 = init_tile x[m, q] : tile<32x32xf32>", "line 3: given 'q', wanted numbers and scalars"),
    (START + "  %0 = init_tile x[m] : tile<32x32xf32>", "line 3: given a tile of 32x32xf32, wanted 1 sizes of f32"),
    (START + "  %0 = load_tile %9 : vector<32x32xf32>", "line 3: given %9, wanted a tile that is defined before"),
    (START + ONE + "  %1 = sqroot %0 : vector<8x8xf32>", "line 4: given the operation"),
    (START + ONE + "  %1 = sqrt %0 : vector<8x4xf32>", "line 4: given the type vector<8x4xf32>"),
    (START + "  %0 = constant x : vector<8x8xf32>", "line 3: given 'x', wanted a number"),
    (START + "  barrier", "line 3: given 'barrier', wanted an operation of the tile language"),
    (START + "      barrier", "line 3: given 'barrier', wanted a line two spaces further in"),
    (START + ONE.replace("f32", "s32") + "  %1 = sqrt %0 : vector<8x8xs32>", "line 4: given s32, wanted f32 or f16"),
    (
        START + ONE + "  for i in [0, 2) carrying a = %0\n    %1 = neg %a : vector<8x8xf32>\n",
        "line 5: given '%1 = neg %a : vector<8x8xf32>', wanted a yield of 1 values at the end of the loop",
    ),
    (START + "  for i in 2:", "line 3: given 'for i in 2:', wanted for I in [0, TRIPS)"),
    (
        START + "  %0 = init_tile x[m, n] along 0,,1 : tile<8x8xf32>",
        "line 3: given the dims '0,,1', wanted ascending numbers below 2, at init_tile",
    ),
    (
        START + "  %0 = init_tile x[m, n] along 1, 0 : tile<8x4xf32>",
        "line 3: given the dims '1, 0', wanted ascending numbers below 2, at init_tile",
    ),
    (START + ONE + "  %1 = convert_layout %0 : vector<8x8xf32>", "line 4: given no wg_map, wanted one"),
    (
        f"{START}{ONE}  %1 = convert_layout %0 {{#xetile.sg_map<wi_layout = [2, 8], wi_data = [1, 1]>}}"
        " : vector<8x8xf32>",
        "line 4: given sg_map alone of 8x8, wanted wg_map",
    ),
    (START + f"  %0 = constant {'9' * 5000} : vector<4xf32>", "line 3: given a number of 5000 digits, wanted at most"),
    (START + f"  %0 = constant 1 : vector<{'9' * 5000}xf32>", "line 3: given a number of 5000 digits, wanted at most"),
    ("kernel k(x: memref<8x8xf32>) slots=1 slots=2\n", "line 1: given 'slots=1 slots=2', wanted each of"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_errors_name_the_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as wrong:
        tile.parse(text)
    assert said in str(wrong.value)
    assert "\n" not in str(wrong.value)


@tile.kernel(subgroups=(1, 1))
def twice_acc_0(y: Tensor) -> None:
    """Carry two values whose names print alike."""
    m, n = tile.grid(y, (16, 16))
    acc, acc_0 = [tile.zeros((16, 16))], tile.full((16, 16), 1.0)
    for _ in tile.range(0, 4):
        acc[0], acc_0 = acc[0] + 1.0, acc_0 + 2.0
    tile.store_tile(acc[0] + acc_0 * 10.0, tile.init_tile(y, (m, n), (16, 16)))


def test_carried_values_have_different_names() -> None:
    program = twice_acc_0(Tensor((16, 16), "f32"))
    assert str(tile.parse(str(program))) == str(program)
    assert (cg.simulate(cg.compile(tile.parse(str(program)), "gfx942")) == 94).all()
