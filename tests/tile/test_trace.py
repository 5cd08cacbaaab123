"""What tile kernels say, as text, and what they may not say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import convgen as cg
from convgen import tile
from convgen.ir.error import ConvgenError, UserError
from convgen.tile import Tensor, TileProgram, Value
from tests.tile.kernels import gemm

X = Tensor((64, 64), "f16")

GEMM = """\
kernel gemm(a: memref<200x100xf16>, b: memref<100x136xf16>, c: memref<200x136xf32>) subgroups=2x2
  at0, at1 = grid 4x3 of <64x64> in rows
  %0 = constant 0 : vector<64x64xf32>
  %1 = init_tile a[at0, 0] : tile<64x32xf16>
  %2 = init_tile b[0, at1] : tile<32x64xf16>
  for i in [0, 4) carrying acc = %0
    %3 = load_tile %1 : vector<64x32xf16>
    %4 = load_tile %2 : vector<32x64xf16>
    %5 = tile_mma %3, %4, %acc : vector<64x64xf32>
    %1 = update_tile_offset %1, [0, 32]
    %2 = update_tile_offset %2, [32, 0]
    yield %5
  %6 = init_tile c[at0, at1] : tile<64x64xf32>
  store_tile %acc, %6
"""


def test_a_program_is_its_text() -> None:
    tensors = Tensor((200, 100), "f16"), Tensor((100, 136), "f16"), Tensor((200, 136), "f32")
    assert str(gemm(*tensors, bm=64, bn=64, bk=32)) == GEMM


def _loads(x: Tensor) -> Value:
    tile.grid(x, (32, 32))
    return tile.load_tile(tile.init_tile(x, (0, 0), (32, 32)))


def two_grids(x: Tensor) -> None:
    tile.grid(x, (32, 32))
    tile.grid(x, (32, 32))


def over_a_number(x: Tensor) -> None:
    tile.grid(64, (32, 32))  # type: ignore[arg-type]


def wrong_rank(x: Tensor) -> None:
    tile.grid(x, (32,))


def wrong_tile(x: Tensor) -> None:
    tile.init_tile(x, (0, 0, 0), (32, 32))


def wrong_store(x: Tensor) -> None:
    tile.store_tile(tile.zeros((32, 32)), tile.init_tile(x, (0, 0), (32, 32)))


def wrong_shapes(x: Tensor) -> None:
    _ = _loads(x) + tile.zeros((32, 16), "f16")


def wrong_types(x: Tensor) -> None:
    _ = _loads(x) + tile.zeros((32, 32))


def wrong_product(x: Tensor) -> None:
    tile.tile_mma(_loads(x), tile.zeros((16, 32), "f16"))


def wrong_axis(x: Tensor) -> None:
    tile.reduce("sum", _loads(x), 2)


def wrong_reduction(x: Tensor) -> None:
    tile.reduce("median", _loads(x), 0)


def early_end(x: Tensor) -> None:
    for _ in tile.range(0, 4):
        break


def wrong_range(x: Tensor) -> None:
    for _ in tile.range(4, 0):
        pass


def two_names(x: Tensor) -> None:
    a = b = _loads(x)
    for _ in tile.range(0, 4):
        a, b = a + 1.0, b + 2.0


def another_tile(x: Tensor) -> None:
    at = tile.init_tile(x, (0, 0), (32, 32))
    for k in tile.range(0, 64, 32):
        tile.store_tile(tile.load_tile(at), at)
        at = tile.init_tile(x, (k, 0), (32, 32))


def behind_the_loop(x: Tensor) -> None:
    for k in tile.range(0, 64, 32):
        late = tile.load_tile(tile.init_tile(x, (k, 0), (32, 32)))
    tile.store_tile(late, tile.init_tile(x, (0, 0), (32, 32)))


def large_blocks(x: Tensor) -> None:
    v = tile.load_tile(tile.init_tile(x, (0, 0), (32, 32)))
    tile.store_tile(tile.convert(tile.tile_mma(v, v), "f16"), tile.init_tile(x, (0, 0), (32, 32)))


def wrong_function(x: Tensor) -> None:
    tile.sqrt(tile.convert(_loads(x), "s32"))


def wrong_library(x: Tensor) -> None:
    tile.exp(tile.convert(_loads(x), "s32"))


def wrong_fma(x: Tensor) -> None:
    v = tile.convert(_loads(x), "bf16")
    tile.fma(v, v, v)


def wrong_bits(x: Tensor) -> None:
    tile.reduce("and", _loads(x), 0)


def wrong_reduced(x: Tensor) -> None:
    tile.reduce("max", tile.convert(_loads(x), "f8_e4m3"), 0)


def wrong_name(x: Tensor) -> None:
    tile.convert(_loads(x), "f17")


def wrong_constant(x: Tensor) -> None:
    _ = tile.convert(_loads(x), "s8") * 300


REFUSED: list[tuple[Callable[[Tensor], None], str]] = [
    (two_grids, "given a second grid, wanted one a kernel"),
    (over_a_number, "given 64, wanted a tensor or a tuple of sizes, at grid"),
    (wrong_rank, "given a grid of 32 blocks, wanted 2 sizes from 1, for 64x64"),
    (wrong_tile, "given 3 offsets and a block of 32x32, wanted 2 of each, at init_tile of x 64x64"),
    (wrong_store, "given 32x32 of f32, wanted 32x32 of f16, at store_tile to x"),
    (wrong_shapes, "given blocks of 32x32 and 32x16, wanted the same shape, or 1 along a dim, at add"),
    (wrong_types, "given f16 and f32, wanted values of one type, at add"),
    (wrong_product, "given a 32x32 and b 16x32, wanted MxK and KxN, at tile_mma"),
    (wrong_axis, "given reduce 'sum' along 2, wanted one of sum, prod, max, min, and, or along an axis of 32x32"),
    (wrong_reduction, "given reduce 'median' along 0"),
    (wrong_function, "given s32, wanted f32 or f16, at sqrt"),
    (wrong_library, "given exp of s32x2, wanted elements of f32, f16 or bf16, at exp"),
    (wrong_fma, "given bf16, wanted f16, f32 or f64, at fma"),
    (wrong_bits, "given f16, wanted numbers, and integers for and and or, at reduce and"),
    (wrong_reduced, "given f8_e4m3, wanted numbers, and integers for and and or, at reduce max"),
    (wrong_name, "given the type 'f17', wanted one such as f16 or s8, at convert"),
    (wrong_constant, "constant 300 does not fit s8, at mul"),
    (early_end, "given a break or return out of tile.range, wanted loops that run to their end, at early_end"),
    (wrong_range, "given range(4, 0, 1), wanted a step from 1 and an end not before the beginning"),
    (two_names, "given a and b, the same when the loop begins, wanted one of their own for each"),
    (another_tile, "given a tile of x that is another one in the next iteration"),
    (
        behind_the_loop,
        "given a block of a loop's body after the loop, wanted a name bound before it",
    ),
]


@pytest.mark.parametrize(("function", "said"), REFUSED, ids=lambda p: getattr(p, "__name__", ""))
def test_what_is_refused(function: Callable[[Tensor], None], said: str) -> None:
    with pytest.raises(UserError) as refused:
        cg.compile(tile.kernel()(function)(X))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_operations_belong_in_kernels() -> None:
    with pytest.raises(UserError, match=r"given load_tile outside of a kernel, wanted it in a function"):
        tile.load_tile(tile.Tile(X, (8, 8), (0, 0), (0, 1)))


def test_tensors_are_checked() -> None:
    with pytest.raises(UserError, match="given the type 'f17'"):
        Tensor((8,), "f17")
    with pytest.raises(UserError, match="given the type 's4', wanted one of whole bytes"):
        Tensor((8,), "s4")
    with pytest.raises(UserError, match="given 1 arguments, wanted the tensors a, b, c, at gemm"):
        gemm(X)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subgroups": (0, 1)}, "given subgroups=(0, 1) slots=None acc=''"),
        ({"slots": 5}, "wanted subgroups from 1, slots of 0 to 4 and acc of v or a"),
    ],
)
def test_options_are_checked(options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as refused:
        tile.kernel(**options)  # type: ignore[arg-type]
    assert said in str(refused.value)


def test_what_a_target_cannot_do() -> None:
    program = tile.kernel(mma="7x7x7")(large_blocks)(X)
    with pytest.raises(ConvgenError, match="wanted one that gfx942 has instructions for: no matrix instruction 7x7x7"):
        cg.compile(program)


def test_sums_in_registers_that_a_target_has_not() -> None:
    program = tile.kernel(acc="a")(large_blocks)(X)
    cg.compile(program, "gfx942")
    with pytest.raises(UserError, match="given acc='a' on xehpc, wanted v: it has no accumulation registers"):
        cg.compile(program, "xehpc")


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
def test_blocks_that_take_too_many_registers(target: str) -> None:
    program = gemm(*[Tensor((256, 256), t) for t in ("f16", "f16", "f32")], bm=256, bn=256, bk=32)
    one = TileProgram(program.name, program.tensors, program.trace, type(program.options)((1, 1)))
    with pytest.raises(UserError, match="blocks fit the registers: smaller blocks, or more subgroups") as refused:
        cg.compile(one, target)
    assert "\n" not in str(refused.value)


def test_too_many_subgroups() -> None:
    with pytest.raises(UserError, match="given 64 subgroups of 64 lanes on gfx942, wanted at most 1024 lanes"):
        cg.compile(tile.kernel(subgroups=(8, 8))(large_blocks)(X))


def test_a_tile_of_a_blocked_tensor_is_refused_when_it_is_described() -> None:
    def blocked(x: Tensor) -> None:
        tile.load_tile(tile.init_tile(x, (0, 0), (32, 32), wg_map=((1, 1), (32, 32))))

    with pytest.raises(UserError, match=r"^given the blocked layout Ba16b, wanted a plain one, at init_tile of x, in "):
        tile.kernel()(blocked)(Tensor((32, 32), "f16", "Ba16b"))
