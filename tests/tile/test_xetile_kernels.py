"""Kernels after XeTile's integration tests on the strict simulators: what numpy says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen import tile
from convgen.backends import target as targets
from convgen.ir.error import Unsupported, UserError
from convgen.ir.expr import Mma
from convgen.ir.layout.xetile import SgMap, WgMap
from convgen.ir.mutate import postorder, statements
from convgen.ir.record import evolve
from convgen.ir.stmt import LoadView
from convgen.tile import Tensor, Value
from convgen.tile.tile_kernel import TileKernel, TileProgram
from tests.tile import xetile_kernels as kernels
from tests.tile.kernels import gemm

pytestmark = pytest.mark.in_turn(6)

TARGETS = ("gfx942", "gfx950", "xehpc", "xehpg", "sm_90")
Arrays = dict[str, npt.NDArray[Any]]


def run(program: TileProgram, target: str, **given: npt.NDArray[Any]) -> Any:
    return cg.simulate(cg.compile(program, target), **{name: data.ravel() for name, data in given.items()})


def for_target(kernel: TileKernel, target: str) -> TileKernel:
    """With more subgroups where one has eight lanes."""
    options = kernel.options
    subgroups = (4, 2 * options.subgroups[1]) if target == "xehpg" else options.subgroups
    return TileKernel(kernel.function, evolve(options, subgroups=subgroups))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f16", "f32", "s8"])
def test_gather_and_scatter(dtype: str, target: str) -> None:
    """Numbers on either side of the tensor read the other value, and store nothing."""
    rng, rows, size = np.random.default_rng(1), 11, 700
    elem: Any = {"f16": np.float16, "f32": np.float32, "s8": np.int8}[dtype]
    x = rng.integers(-9, 9, size).astype(elem)
    of = rng.integers(-100, size + 100, (rows, 64)).astype(np.int32)
    to = rng.permutation(np.arange(-50, 950))[: rows * 64].astype(np.int32).reshape(rows, 64)
    tensors = Tensor((size,), dtype), Tensor((rows, 64), "s32"), Tensor((rows, 64), "s32"), Tensor((900,), dtype)
    found = run(kernels.gather_scatter(*tensors, block=4), target, x=x, of=of, to=to)
    exists = (of >= 0) & (of < size)
    values = np.where(exists, x[np.where(exists, of, 0)], np.array(-1, elem))
    there = (to >= 0) & (to < 900)
    assert np.array_equal(found[to[there]], values[there])


@pytest.mark.parametrize("target", TARGETS)
def test_histogram(target: str) -> None:
    x = np.random.default_rng(1).integers(-5, 25, (13, 128)).astype(np.int32)
    found = run(
        kernels.histogram(Tensor(x.shape, "s32"), Tensor((20,), "s32"), rows=4),
        target,
        x=x,
        counts=np.zeros(20, np.int32),
    )
    assert np.array_equal(found, np.bincount(x[(x >= 0) & (x < 20)], minlength=20))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["add", "min", "max", "and", "or", "xor"])
def test_atomic_operations(kind: str, target: str) -> None:
    """Workgroups meet in a block, and in a column, which more lanes have than it has elements."""
    rng = np.random.default_rng(1)
    x, y = (rng.integers(-1000, 1000, shape).astype(np.int32) for shape in ((16, 128), (4, 129)))
    program = kernels.combine(Tensor(x.shape, "s32"), Tensor(y.shape, "s32"), kind=kind, rows=4)
    code = cg.compile(program, target)
    found = cg.simulate(code, x=x.ravel(), y=y.ravel()).reshape(y.shape)
    numpy: Any = {"add": np.add, "min": np.minimum, "max": np.maximum,
                  "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[kind]  # fmt: skip
    wanted = y.copy()
    for block in x.reshape(4, 4, 2, 64):
        for n, each in enumerate(block.swapaxes(0, 1)):
            wanted[:, 64 * n : 64 * n + 64] = numpy(wanted[:, 64 * n : 64 * n + 64], each)
            wanted[:, 128] = numpy(wanted[:, 128], each.max(1))
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(("target", "dtype"), [("gfx942", "f32"), ("xehpc", "f64"), ("xehpg", "f64"), ("sm_90", "f32")])
def test_atomic_operations_that_a_target_lacks(target: str, dtype: str) -> None:
    program = kernels.combine(Tensor((16, 128), dtype), Tensor((4, 129), dtype), kind="max", rows=4)
    with pytest.raises(
        Unsupported, match=rf"^given atomic max of {dtype}\S*, wanted one element a message, on {target} of"
    ):
        cg.compile(program, target)


NUMPY: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
                         "s8": np.int8, "s32": np.int32}  # fmt: skip


def integers(seed: int, shape: tuple[int, ...], dtype: str, most: int = 4) -> npt.NDArray[Any]:
    return np.random.default_rng(seed).integers(-most, most + 1, shape).astype(NUMPY[dtype])


#: types of the factors and of c; its rows and columns, and K; blocks of them
LANE_PRODUCTS: list[tuple[str, str, tuple[int, int, int], tuple[int, int, int]]] = [
    ("f32", "f32", (40, 70, 50), (16, 32, 8)),
    ("s32", "s32", (40, 70, 50), (16, 32, 8)),
    ("f16", "f32", (1, 100, 90), (1, 64, 32)),
    ("bf16", "f32", (1, 100, 90), (1, 64, 32)),
    ("s8", "s32", (30, 1, 70), (8, 1, 64)),
    ("f32", "f32", (30, 1, 70), (8, 1, 64)),
    ("f16", "f32", (3, 5, 7), (4, 8, 8)),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "out", "sizes", "blocks"), LANE_PRODUCTS, ids=str)
def test_products_by_lanes(
    dtype: str, out: str, sizes: tuple[int, int, int], blocks: tuple[int, int, int], target: str
) -> None:
    """Of any types, rows and vectors: lanes that the result leaves over share out K."""
    (m, n, k), (bm, bn, bk) = sizes, blocks
    a, b, c = integers(1, (m, k), dtype), integers(2, (k, n), dtype), integers(3, (m, n), out)
    tensors = Tensor((m, k), dtype), Tensor((k, n), dtype), Tensor((m, n), out)
    program = for_target(kernels.by_lanes, target)(*tensors, bm=bm, bn=bn, bk=bk)
    found = run(program, target, a=a, b=b, c=c)
    assert np.array_equal(found.reshape(m, n), c + a.astype(NUMPY[out]) @ b.astype(NUMPY[out]))


@pytest.mark.parametrize(
    ("target", "dtype"), [("gfx942", "f16"), ("gfx950", "f32"), ("xehpc", "bf16"), ("xehpg", "f16")]
)
def test_products_that_no_matrix_instruction_fits(target: str, dtype: str) -> None:
    """Of one row: lanes make them without being asked to."""
    m, n, k = 5, 70, 40
    a, b = integers(1, (m, k), dtype), integers(2, (k, n), dtype)
    program = gemm(Tensor((m, k), dtype), Tensor((k, n), dtype), Tensor((m, n), "f32"), bm=1, bn=64, bk=8)
    assert not any(isinstance(e, Mma) for e in postorder(program.kernel(targets.get(target).facts).body))
    found = run(program, target, a=a, b=b)
    assert np.array_equal(found.reshape(m, n), a.astype(np.float32) @ b.astype(np.float32))


#: blocks of products that all targets have matrix instructions for
BLOCKS = {"bm": 32, "bn": 32, "bk": 32}


@pytest.mark.parametrize("target", TARGETS)
def test_a_function_before_a_product_and_one_behind(target: str) -> None:
    """exp is within 6 ulp of f32 and rounded to f16, of at most e^2."""
    m, n, k = 33, 40, 100
    a, b = integers(1, (m, k), "f16", 2), integers(2, (k, n), "f16")
    program = for_target(kernels.preop_postop, target)(
        Tensor((m, k), "f16"), Tensor((k, n), "f16"), Tensor((m, n), "f32"), **BLOCKS
    )
    found = run(program, target, a=a, b=b).reshape(m, n)
    wanted = np.maximum(np.exp(a.astype(np.float64)) @ b.astype(np.float64), 0) + 1
    assert np.abs(found - wanted).max() < k * 4 * np.exp(2) * 2**-11


@pytest.mark.parametrize("target", TARGETS)
def test_a_factor_made_of_two(target: str) -> None:
    m, n, k = 33, 40, 100
    a, b = integers(1, (m, k), "f16"), integers(2, (k, n), "f16")
    program = for_target(kernels.preop_b, target)(
        Tensor((m, k), "f16"), Tensor((k, n), "f16"), Tensor((m, n), "f32"), **BLOCKS
    )
    found = run(program, target, a=a, b=b).reshape(m, n)
    assert np.array_equal(found, a.astype(np.float32) @ (b * 2 + b[:1]).astype(np.float32))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dim", [0, 1])
def test_a_factor_of_one_row_or_column(dim: int, target: str) -> None:
    m, n, k = 40, 70, 96
    shape = (1, n) if dim == 0 else (k, 1)
    a, b = integers(1, (m, k), "bf16"), integers(2, shape, "bf16")
    tensors = Tensor((m, k), "bf16"), Tensor(shape, "bf16"), Tensor((m, n), "f32")
    found = run(for_target(kernels.broadcast_b, target)(*tensors, **BLOCKS), target, a=a, b=b).reshape(m, n)
    assert np.array_equal(found, a.astype(np.float32) @ np.broadcast_to(b, (k, n)).astype(np.float32))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "s8"])
def test_transposes_through_shared_memory(dtype: str, target: str) -> None:
    x = integers(1, (70, 100), dtype)
    program = for_target(kernels.transposed, target)(
        Tensor((70, 100), dtype), Tensor((100, 70), dtype), rows=32, cols=64
    )
    assert np.array_equal(run(program, target, x=x).reshape(100, 70), 2 * x.T)


def around(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The stencil of five points."""
    p = np.pad(x, 1)
    return np.asarray(p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * x)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "s32"])
def test_a_stencil(dtype: str, target: str) -> None:
    """On an image that no block divides; rows and columns before the first are zeros."""
    x = integers(1, (21, 50), dtype)
    found = run(kernels.stencil(Tensor(x.shape, dtype), Tensor(x.shape, dtype), rows=8, cols=32), target, x=x)
    assert np.array_equal(found.reshape(x.shape), around(x))


@pytest.mark.parametrize("target", TARGETS)
def test_loops_within_loops(target: str) -> None:
    x = integers(1, (24, 96), "f32")
    program = kernels.nested(Tensor(x.shape, "f32"), Tensor((16, 32), "f32"), rows=8, cols=32)
    found = run(program, target, x=x).reshape(16, 32)
    assert "    %2 = update_tile_offset %2, [-24, 32]\n" in str(program)
    assert np.array_equal(found[:8], x.reshape(3, 8, 3, 32).sum(0).max(1))
    assert np.array_equal(found[8:], x[16:, 64:])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["s8", "s32"])
def test_operations_on_integers(dtype: str, target: str) -> None:
    x, y = (integers(seed, (21, 70), dtype, 100) for seed in (1, 2))
    program = kernels.integer_operations(*[Tensor(x.shape, dtype)] * 3, rows=8, cols=64)
    found = run(program, target, a=x, b=y).reshape(x.shape)
    z = (x + y) * x - np.maximum(x, y) + np.minimum(x, x.dtype.type(3))
    assert np.array_equal(found, np.where(x < y, z, np.abs(y)))


@pytest.mark.parametrize("target", TARGETS)
def test_operations_on_bits(target: str) -> None:
    x, y = (integers(seed, (21, 70), "s32", 10**6) for seed in (1, 2))
    found = run(kernels.bit_operations(*[Tensor(x.shape, "s32")] * 3, rows=8, cols=64), target, a=x, b=y)
    assert np.array_equal(found.reshape(x.shape), ((x & y) | (x << 3)) ^ (~y >> 2))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_layouts_that_are_given(dtype: str, target: str) -> None:
    x = integers(1, (70, 100), dtype)
    found = run(kernels.converted(Tensor(x.shape, dtype), Tensor(x.shape, dtype), rows=32, cols=64), target, x=x)
    assert np.array_equal(found.reshape(x.shape), 2 * x + 1)


@pytest.mark.parametrize("target", TARGETS)
def test_products_of_blocks_that_are_mapped(target: str) -> None:
    a, b = integers(1, (50, 90), "f16"), integers(2, (90, 70), "f16")
    program = kernels.mapped(Tensor((50, 90), "f16"), Tensor((90, 70), "f16"), Tensor((50, 70), "f32"), size=16)
    found = run(program, target, a=a, b=b).reshape(50, 70)
    assert np.array_equal(found, a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("target", TARGETS)
def test_blocks_in_rounds(target: str) -> None:
    """What lanes load is what the maps say, and comes back so from a loop."""
    facts = targets.get(target).facts
    x = integers(1, (24, 96), "f32")
    tensors = Tensor(x.shape, "f32"), Tensor((32, 56), "f32")
    program = kernels.in_rounds(*tensors, lanes=facts.subgroup_size)
    found = run(program, target, x=x).reshape(32, 56)
    assert np.array_equal(found[:24, :32], x.reshape(24, 3, 32).sum(1))
    assert np.array_equal(found[:, 32:], x[:, :32].T)
    given = WgMap((1, 2), (8, 16)).fragment((24, 32), SgMap((facts.subgroup_size // 8, 8), (1, 2)))
    loads = [s.layout for s in statements(program.kernel(facts).body) if isinstance(s, LoadView)]
    assert [layout.canonical("lane", "subgroup", "register") for layout in loads].count(
        given.canonical("lane", "subgroup", "register")
    ) == 3


@pytest.mark.parametrize("target", TARGETS)
def test_factors_that_become_narrower(target: str) -> None:
    a, b = integers(1, (33, 90), "f32"), integers(2, (40, 90), "f32")
    tensors = Tensor((33, 90), "f32"), Tensor((40, 90), "f32"), Tensor((33, 40), "f32")
    found = run(for_target(kernels.narrowed, target)(*tensors, **BLOCKS), target, a=a, b=b)
    assert np.array_equal(found.reshape(33, 40), np.abs(a @ b.T * 2))


@pytest.mark.parametrize("target", TARGETS)
def test_functions_before_a_product_on_both_sides(target: str) -> None:
    """K a multiple of the block: what is added beyond it would count."""
    a, b, bias = integers(1, (33, 64), "bf16"), integers(2, (64, 40), "bf16"), integers(3, (1, 64), "bf16")
    tensors = Tensor((33, 64), "bf16"), Tensor((64, 40), "bf16"), Tensor((1, 64), "bf16"), Tensor((33, 40), "f32")
    found = run(for_target(kernels.both_preops, target)(*tensors, **BLOCKS), target, a=a, b=b, bias=bias)
    x, y = (v.astype(np.float32) for v in (a, b))
    assert np.array_equal(found.reshape(33, 40), (x + bias.astype(np.float32)) @ (y - 1))


@pytest.mark.parametrize("target", TARGETS)
def test_rows_and_columns_are_repeated(target: str) -> None:
    row, column = integers(1, (1, 70), "f32"), integers(2, (21, 1), "f32")
    tensors = Tensor((1, 70), "f32"), Tensor((21, 1), "f32"), Tensor((21, 70), "f32")
    found = run(kernels.broadcasts(*tensors, rows=8, cols=64), target, row=row, column=column)
    assert np.array_equal(found.reshape(21, 70), row + column)


@pytest.mark.parametrize("target", TARGETS)
def test_softmax_of_columns(target: str) -> None:
    """exp is within 6 ulp, the quotient within one, a sum of n within n halves of one."""
    x = (np.random.default_rng(1).standard_normal((60, 50)) * 3).astype(np.float32)
    program = for_target(kernels.softmax_of_columns, target)(*[Tensor(x.shape, "f32")] * 2, rows=64, cols=32)
    e = np.exp(x.astype(np.float64) - x.max(0))
    assert np.abs(run(program, target, x=x).reshape(x.shape) / (e / e.sum(0)) - 1).max() < 3e-6


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("shape", "rows", "cols"), [((64, 1), 64, 1), ((64, 2), 64, 2), ((96, 48), 24, 48), ((9, 100), 5, 12)], ids=str
)
def test_blocks_of_any_size(shape: tuple[int, int], rows: int, cols: int, target: str) -> None:
    x = integers(1, shape, "f16")
    program = kernels.doubled(Tensor(shape, "f16"), Tensor(shape, "f16"), rows=rows, cols=cols)
    assert np.array_equal(run(program, target, x=x).reshape(shape), x * 2)


@pytest.mark.parametrize("target", TARGETS)
def test_sizes_that_are_known_at_launch(target: str) -> None:
    """Numbers beyond the tensor at hand are nowhere; rows before the first are zeros."""
    n, h = tile.size("n", 1 << 16), tile.size("h", 100)
    tensors = Tensor((n,), "f32"), Tensor((h, 64), "s32"), Tensor((h, 64), "s32"), Tensor((900,), "f32")
    gather = cg.compile(kernels.gather_scatter(*tensors, block=4), target)
    stencil = cg.compile(kernels.stencil(Tensor((h, 50), "f32"), Tensor((h, 50), "f32"), rows=8, cols=32), target)
    rng = np.random.default_rng(1)
    for size, rows in ((300, 5), (41, 12)):
        x = integers(1, (size,), "f32")
        of = rng.integers(-9, size + 9, (rows, 64)).astype(np.int32)
        to = rng.permutation(900)[: rows * 64].astype(np.int32)
        found = cg.simulate(gather, n=size, h=rows, x=x, of=of.ravel(), to=to)
        assert np.array_equal(found[to], np.where((of >= 0) & (of < size), x[of % size], np.float32(-1)).ravel())
        x = integers(2, (rows, 50), "f32")
        found = cg.simulate(stencil, h=rows, x=x.ravel()).reshape(x.shape)
        assert np.array_equal(found, around(x))


def test_rows_of_no_known_size_have_nothing_before_them() -> None:
    x = Tensor((20, tile.size("w", 100)), "f32")
    with pytest.raises(
        UserError, match=r"^given a tile that may begin before x, whose rows are measured at launch, wanted"
    ):
        cg.compile(kernels.stencil(x, x, rows=8, cols=32), "gfx942")


def test_elements_by_number_of_large_tensors() -> None:
    tensors = Tensor((1 << 29,), "f32"), Tensor((4, 64), "s32"), Tensor((4, 64), "s32"), Tensor((900,), "f32")
    with pytest.raises(Unsupported) as refused:
        cg.compile(kernels.gather_scatter(*tensors, block=4), "xehpc")
    said = "given elements by number of x, which has 2147483648 bytes, wanted less than 2^31"
    assert str(refused.value).splitlines()[0] == said


@pytest.mark.parametrize("target", TARGETS)
def test_products_that_distribute_their_sum_in_two_ways(target: str) -> None:
    a, b = integers(1, (30, 70), "f32"), integers(2, (70, 31), "f32")
    tensors = Tensor((30, 70), "f32"), Tensor((70, 31), "f32"), Tensor((30, 31), "f32")
    program = for_target(kernels.in_two_types, target)(*tensors, size=16 if target == "xehpg" else 32)
    assert np.array_equal(run(program, target, a=a, b=b).reshape(30, 31), a @ b)


X = Tensor((64, 64), "f16")


def _block(x: Tensor) -> Value:
    return tile.load_tile(tile.init_tile(x, (0, 0), (8, 32)))


REFUSED: list[tuple[Callable[[Tensor], object], str]] = [
    (
        lambda x: tile.gather(x, _block(x)),
        "given f16, wanted indices of s32 and a mask of bool, at gather of x",
    ),
    (
        lambda x: tile.gather(x, tile.zeros((8, 32), "s32"), _block(x)),
        "given s32 and f16, wanted indices of s32 and a mask of bool, at gather of x",
    ),
    (
        lambda x: tile.gather(x, tile.zeros((8, 32), "s32"), tile.less(tile.zeros((8, 16)), 1.0)),
        "given blocks of 8x32 and 8x16, wanted the same shape, or 1 along a dim, at gather",
    ),
    (
        lambda x: tile.scatter(x, tile.zeros((8, 32), "s32"), tile.zeros((8, 32))),
        "given values of f32, wanted f16, at scatter to x",
    ),
    (
        lambda x: tile.atomic_rmw("add", _block(x), tile.init_tile(x, (0, 0), (8, 32))),
        "given add of f16, wanted one of f32 f64 s32 u32, at atomic_rmw",
    ),
    (
        lambda x: tile.atomic_rmw("nand", tile.zeros((8, 32)), tile.init_tile(x, (0, 0), (8, 32))),
        "given nand of f32, wanted one of add, min, max, and, or, xor, at atomic_rmw",
    ),
    (
        lambda x: tile.atomic_rmw("add", tile.zeros((8, 32)), x),
        "given neither a tile alone nor a tensor with indices, wanted one of these, at atomic_rmw",
    ),
    (
        lambda x: tile.tile_mma(_block(x), tile.zeros((32, 8), "s8")),
        "given f16 by s8, wanted all of integers or all of floats, at tile_mma",
    ),
    (
        lambda x: tile.init_tile(x, (0, 0), (32, 32), sg_map=((1, 16), (1, 1))),
        "given sg_map alone of 32x32, wanted wg_map, and sg_map where lanes matter, of a block of two dims, "
        "at init_tile of x",
    ),
    (
        lambda x: tile.init_tile(x, (0, 0), (100, 64), wg_map=((2, 2), (32, 32))),
        "given a tile of 100x64 and #xetile.wg_map<sg_layout = [2, 2], sg_data = [32, 32]>, "
        "wanted a multiple of sg_data 32 at dim 0, at init_tile of x",
    ),
    (
        lambda x: tile.init_tile(x, (0, 0), (96, 64), wg_map=((2, 2), (32, 32))),
        "given a tile of 96x64 and #xetile.wg_map<sg_layout = [2, 2], sg_data = [32, 32]>, wanted a tile that "
        "sg_layout * sg_data = 64 divides, or that divides it, at dim 0, at init_tile of x",
    ),
    (
        lambda x: tile.store_tile(_block(x), tile.init_tile(x, (0, 0), (8, 32), wg_map=((2, 2), (4, 32)))),
        "data is not evenly distributed to each subgroup.: given a tile of 8x32 and "
        "#xetile.wg_map<sg_layout = [2, 2], sg_data = [4, 32]>, wanted a multiple of sg_layout * sg_data = 64 "
        "at dim 1, at store_tile to x",
    ),
    (
        lambda x: tile.convert_layout(_block(x), wg_map=((2, 2), (4, 16)), sg_map=((2, 8), (1, 3))),
        "given a block of 4x16 and #xetile.sg_map<wi_layout = [2, 8], wi_data = [1, 3]>, "
        "wanted a multiple of wi_layout * wi_data = 24 at dim 1, at convert_layout",
    ),
    (
        lambda x: tile.load_tile(tile.init_tile(x, (0, 0), (8, 32)), wg_map=((2, 0), (4, 32))),
        "given sg_layout 0, wanted an integer from 1 to 65536, at load_tile of x",
    ),
    (lambda x: tile.broadcast(_block(x), (16, 32)), "given 8x32, wanted 16x32, or 1 along a dim, at broadcast"),
    (lambda x: tile.transpose(tile.zeros((8,))), "given 8, wanted a block of two dims, at transpose"),
]


@pytest.mark.parametrize(("function", "said"), REFUSED, ids=lambda p: p if isinstance(p, str) else "")
def test_what_is_refused(function: Callable[[Tensor], None], said: str) -> None:
    def body(x: Tensor) -> None:
        function(x)

    with pytest.raises(UserError) as refused:
        tile.kernel()(body)(X)
    assert str(refused.value).startswith(said)


MAPPED: list[tuple[Any, Any, str]] = [
    (((3, 1), (8, 32)), None, "given sg_layout of 3 subgroups, wanted the workgroup's 2, at init_tile of x"),
    (
        ((2, 1), (8, 32)),
        ((2, 8), (1, 1)),
        "given a block of 8x32 on 16 lanes, wanted the subgroup's 64, at init_tile of x",
    ),
    (((2, 1), (4, 8)), None, "given a block of 4x8 on 32 lanes, wanted the subgroup's 64, at init_tile of x"),
]


@pytest.mark.parametrize(("wg_map", "sg_map", "said"), MAPPED)
def test_maps_that_do_not_suit_a_workgroup(wg_map: Any, sg_map: Any, said: str) -> None:
    def copied(x: Tensor) -> None:
        at = tile.init_tile(x, (0, 0), (24 if wg_map[0][0] == 3 else 16, 32), wg_map=wg_map, sg_map=sg_map)
        tile.store_tile(tile.load_tile(at), at)

    with pytest.raises(UserError) as refused:
        cg.compile(tile.kernel(subgroups=(2, 1))(copied)(X), "gfx942")
    assert str(refused.value) == said
