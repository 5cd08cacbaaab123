"""Tile kernels on the strict simulators: bit for bit what numpy says."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen import tile
from convgen.tile import Tensor
from convgen.tile.tile_kernel import TileKernel
from tests.strategies import always
from tests.tile.kernels import (
    attention,
    attention_by_parts,
    batched,
    fused,
    gemm,
    layer_norm,
    reductions,
    saxpy,
    sliced,
    softmax,
    stencil,
)

pytestmark = pytest.mark.in_turn(6)

Matrix = npt.NDArray[Any]
TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpc", "xehpg", "sm_90")
NUMPY: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "s8": np.int8, "f32": np.float32}
BLOCKS = {"xehpg": {"bm": 32, "bn": 32, "bk": 32}}
LARGE = {"bm": 64, "bn": 64, "bk": 32}


def for_target(kernel: TileKernel, target: str) -> TileKernel:
    return on(kernel, (4, 2) if target == "xehpg" else (2, 2))


def integers(seed: int, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(NUMPY[dtype])


def stored(array: npt.NDArray[Any], tag: str) -> npt.NDArray[Any]:
    """The elements of a matrix in the order of its tag."""
    return (array.T if tag == "ba" else array).ravel()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("dtype", "tags"),
    always(
        product(["f16", "bf16", "s8"], ["ab ab", "ab ba", "ba ab", "ba ba"]),
        lambda _, row: row[0] != "bf16" or row[1] == "ab ab",  # as wide as f16: its layouts are the same
    ),
)
def test_matrix_products(dtype: str, tags: str, target: str) -> None:
    """Of any layout, with sizes that no block divides."""
    m, n, k = 100, 72, 90
    tag_a, tag_b = tags.split()
    out = "s32" if dtype == "s8" else "f32"
    tensors = Tensor((m, k), dtype, tag_a), Tensor((k, n), dtype, tag_b), Tensor((m, n), out)
    program = for_target(gemm, target)(*tensors, **BLOCKS.get(target, LARGE))
    a, b = integers(1, (m, k), dtype), integers(2, (k, n), dtype)
    found = cg.simulate(cg.compile(program, target), a=stored(a, tag_a), b=stored(b, tag_b))
    assert np.array_equal(found.reshape(m, n), a.astype(found.dtype) @ b.astype(found.dtype))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_an_epilogue(dtype: str, target: str) -> None:
    m, n, k = 70, 136, 96
    tensors = Tensor((m, k), "f16"), Tensor((k, n), "f16"), Tensor((1, n), "f32"), Tensor((m, n), dtype)
    program = for_target(fused, target)(*tensors, **BLOCKS.get(target, LARGE))
    a, b, bias = integers(1, (m, k), "f16"), integers(2, (k, n), "f16"), integers(3, (n,), "f32")
    found = cg.simulate(cg.compile(program, target), a=a.ravel(), b=b.ravel(), bias=bias)
    wanted = ((a.astype(np.float32) @ b.astype(np.float32) + bias) * np.float32(0.5)).astype(NUMPY[dtype])
    assert np.array_equal(found.reshape(m, n), wanted)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(64, 256), (33, 100), (1, 7)])
def test_element_by_element(shape: tuple[int, int], target: str) -> None:
    program = saxpy(Tensor(shape, "f32"), Tensor(shape, "f32"), bm=8, bn=128)
    x, y = integers(1, shape, "f32"), integers(2, shape, "f32")
    found = cg.simulate(cg.compile(program, target), x=x.ravel(), y=y.ravel())
    assert np.array_equal(found.reshape(shape), x * 3 + y)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tag", ["ab", "ba"])
def test_tiles_that_begin_outside(tag: str, target: str) -> None:
    shape = (33, 100)
    x = integers(1, shape, "f32")
    program = stencil(Tensor(shape, "f32", tag), Tensor(shape, "f32"), bm=8, bn=64)
    found = cg.simulate(cg.compile(program, target), x=stored(x, tag)).reshape(shape)
    around = np.pad(x, 1)
    assert np.array_equal(found, around[:-2, 1:-1] + around[2:, 1:-1] + around[1:-1, :-2] + around[1:-1, 2:])


def instructions(asm: str) -> list[str]:
    """Without comments, directives and names."""
    lines = (line.split("//")[0].strip() for line in asm.splitlines())
    named = [line for line in lines if line and not re.match(r"[.\w]*:|\.|-|amdhsa", line)]
    return [re.sub(r"\.Lgemm\w*|\bgemm\w*", "gemm", line) for line in named]


@pytest.mark.parametrize(
    ("target", "mma", "waves"),
    [("gfx942", "32x32x8", (2, 2)), ("gfx950", "32x32x16", (2, 2)), ("xehpc", "16x8x16", (8, 4))],
)
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_the_same_instructions_as_the_built_in_product(
    target: str, mma: str, waves: tuple[int, int], slots: int
) -> None:
    """One path: not only the loop, the whole kernel."""
    m = n = k = 512
    kernel = TileKernel(gemm.function, type(gemm.options)(waves, slots, mma, "v"))
    program = kernel(Tensor((m, k), "f16"), Tensor((k, n), "f16", "ba"), Tensor((m, n), "f32"), bm=128, bn=128, bk=32)
    config = f"tile=128x128x32 waves={waves[0]}x{waves[1]} mma={mma} slots={slots}"
    problem = cg.Matmul.parse(f"{m}x{k}:{k}x{n}", dt="f16:f16:f32")
    built_in = cg.compile(cg.build(problem, target=target, config=f"{config} map=rows"))
    assert instructions(cg.compile(program, target).asm) == instructions(built_in.asm)


#: A subgroup of Xe has fewer lanes, and these fewer registers: more of them share a block.
ROWS = dict.fromkeys(TARGETS, (4, 1)) | {"xehpc": (16, 1), "xehpg": (32, 1)}
HEADS = {"xehpc": ((4, 4), 32, 64), "xehpg": ((4, 8), 32, 64)}
HEAD_CASES = [(256, 64), (250, 64), (256, 128), (250, 128)]  #: positions, size of the head


def on(kernel: TileKernel, subgroups: tuple[int, int]) -> TileKernel:
    return TileKernel(kernel.function, type(kernel.options)(subgroups))


def softmax_of(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("shape", "rows", "cols"), [((10, 1024), 4, 1024), ((3, 4099), 1, 8192), ((70, 40), 64, 64)])
def test_softmax(shape: tuple[int, int], rows: int, cols: int, target: str) -> None:
    """exp is within 6 ulp, the quotient within one, a sum of n within n halves of one."""
    x = (np.random.default_rng(1).standard_normal(shape) * 3).astype(np.float32)
    program = on(softmax, ROWS[target])(Tensor(shape, "f32"), Tensor(shape, "f32"), rows=rows, cols=cols)
    code = cg.compile(program, target)
    found = cg.simulate(code, x=x.ravel()).reshape(shape)
    assert np.abs(found / softmax_of(x) - 1).max() < 3e-6


@pytest.mark.parametrize("target", TARGETS)
def test_layer_norm(target: str) -> None:
    shape = (9, 512)
    random = np.random.default_rng(1)
    x, gamma, beta = (random.standard_normal(s).astype(np.float32) for s in (shape, shape[1:], shape[1:]))
    tensors = Tensor(shape, "f32"), Tensor((1, 512), "f32"), Tensor((1, 512), "f32"), Tensor(shape, "f32")
    code = cg.compile(on(layer_norm, ROWS[target])(*tensors, rows=4, cols=512), target)
    found = cg.simulate(code, x=x.ravel(), gamma=gamma, beta=beta).reshape(shape)
    centred = x.astype(np.float64) - x.mean(1, keepdims=True, dtype=np.float64)
    wanted = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * gamma + beta
    assert np.abs(found - wanted).max() < 4e-6


@pytest.mark.parametrize(
    ("target", "length", "head"),
    always(
        [
            (target, *case)
            for target in ("gfx942", "gfx950", "xehpc", "xehpg", "sm_90")
            for case in HEAD_CASES
            if (target, case[1]) != ("xehpg", 128)  # registers do not suffice there yet
        ],
        lambda _, row: row[1:] == (250, 64),
    ),
)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(length: int, head: int, target: str, *, causal: bool) -> None:
    """The result is rounded to f16, and so are the weights of the sum on the way: half an ulp each, of at most 1."""
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((length, head)).astype(np.float16) for _ in range(3))
    subgroups, bm, bn = HEADS.get(target, ((4, 1), 64, 64))
    program = on(attention, subgroups)(*[Tensor((length, head), "f16")] * 4, bm=bm, bn=bn, causal=causal)
    found = cg.simulate(cg.compile(program, target), q=q.ravel(), k=k.ravel(), v=v.ravel()).reshape(length, head)
    assert_attended(found, q, k, v, causal=causal)


def assert_attended(found: Matrix, q: Matrix, k: Matrix, v: Matrix, *, causal: bool) -> None:
    """Within what the rounding of weights and result to f16 makes: half an ulp each."""
    length, head = q.shape
    scores = q.astype(np.float64) @ k.astype(np.float64).T / np.sqrt(head)
    if causal:
        scores[np.triu_indices(length, 1)] = -np.inf
    wanted = softmax_of(scores) @ v.astype(np.float64)
    assert np.abs(found - wanted).max() < 2**-10 * max(1, np.abs(wanted).max())


@pytest.mark.parametrize(
    ("length", "causal"), always(product([256, 250], [False, True]), lambda _, row: row == (250, True))
)
def test_attention_by_parts(length: int, *, causal: bool) -> None:
    """Heads of 128 on XeHPG, whose registers do not hold a block of queries beside the sums."""
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((length, 128)).astype(np.float16) for _ in range(3))
    program = on(attention_by_parts, (4, 8))(*[Tensor((length, 128), "f16")] * 4, bm=32, bn=64, bh=32, causal=causal)
    found = cg.simulate(cg.compile(program, "xehpg"), q=q.ravel(), k=k.ravel(), v=v.ravel()).reshape(length, 128)
    assert_attended(found, q, k, v, causal=causal)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "s32"])
def test_reductions_along_each_dim(dtype: str, kind: str, target: str) -> None:
    shape = (16, 64)
    x = integers(1, shape, "f32").astype({"f32": np.float32, "s32": np.int32}[dtype])
    tensors = Tensor(shape, dtype), Tensor((16, 1), dtype), Tensor((1, 64), dtype)
    found = cg.simulate(cg.compile(reductions(*tensors, kind=kind), target), x=x)
    operation: Any = {"sum": np.sum, "max": np.max, "min": np.min}[kind]
    assert np.array_equal(found["rows"], operation(x, 1, keepdims=True))
    assert np.array_equal(found["columns"], operation(x, 0, keepdims=True))


@pytest.mark.parametrize("target", TARGETS)
def test_batches(target: str) -> None:
    g, h, m, n, k = 2, 3, 40, 72, 50
    shapes = (g, h, m, k), (g, h, k, n), (g, h, m, n)
    tensors = (Tensor(shape, dtype) for shape, dtype in zip(shapes, ("f16", "f16", "f32")))
    program = for_target(batched, target)(*tensors, **BLOCKS.get(target, LARGE))
    a, b = integers(1, shapes[0], "f16"), integers(2, shapes[1], "f16")
    found = cg.simulate(cg.compile(program, target), a=a.ravel(), b=b.ravel())
    assert np.array_equal(found.reshape(g, h, m, n), a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("target", TARGETS)
def test_slices_of_k_add(target: str) -> None:
    m, n, k = 70, 60, 200
    tensors = Tensor((m, k), "f16"), Tensor((k, n), "f16"), Tensor((m, n), "f32")
    program = for_target(sliced, target)(*tensors, slices=3, **BLOCKS.get(target, LARGE))
    a, b, c = integers(1, (m, k), "f16"), integers(2, (k, n), "f16"), integers(3, (m, n), "f32")
    found = cg.simulate(cg.compile(program, target), a=a.ravel(), b=b.ravel(), c=c.ravel())
    assert np.array_equal(found.reshape(m, n), c + a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950"])
def test_bytes_that_go_between_lanes_are_joined_without_their_neighbours(target: str) -> None:
    """What lanes bring is half a word, above which others stood when it was made."""

    @tile.kernel(subgroups=(2, 1))
    def least(x: Tensor, y: Tensor) -> None:
        maps = {"wg_map": ((2, 1), (2, 128)), "sg_map": ((1, 64), (2, 2))}
        value = tile.load_tile(tile.init_tile(x, (0, 0), (12, 128), **maps))
        row = tile.broadcast(tile.reduce("min", value, 0), (12, 128))
        tile.store_tile(row, tile.init_tile(y, (0, 0), (12, 128)))

    x = np.random.default_rng(3).integers(0, 6, (12, 128)).astype(np.uint8)
    out = cg.simulate(cg.compile(least(*[Tensor((12, 128), "u8")] * 2), target), x=x.ravel())
    assert (out.reshape(12, 128) == x.min(0)).all()


@tile.kernel(subgroups=(2, 1))
def weighted(x: Tensor, y: Tensor) -> None:
    """Sum over the first dim, each matrix times its number."""
    _, m, n = tile.grid(y, (1, 4, 8))
    block = tile.load_tile(tile.init_tile(x, (0, m, n), (2, 4, 8)))
    numbers = tile.convert(tile.positions((2, 1, 1), 0), "f32")
    tile.store_tile(tile.reduce("sum", block * numbers, 0), tile.init_tile(y, (0, m, n), (1, 4, 8)))


@pytest.mark.parametrize("target", TARGETS)
def test_blocks_of_three_dims(target: str) -> None:
    x = np.random.default_rng(0).integers(-4, 5, (2, 7, 13)).astype(np.float32)
    code = cg.compile(weighted(Tensor(x.shape, "f32"), Tensor((1, 7, 13), "f32")), target)
    assert np.array_equal(cg.simulate(code, x=x)[0], x[1])
