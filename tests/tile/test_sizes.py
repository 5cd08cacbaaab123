"""Tile kernels whose sizes the host gives at launch: compiled once, right for all that keep the promise."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen import tile
from convgen.backends.target import get
from convgen.ir.error import UserError, VerifyError
from convgen.ir.interp import interpret
from convgen.ir.layout.argument import magic, shift
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.text import parse, to_text
from convgen.ir.verify import verify
from convgen.passes import pipeline
from convgen.tile import Tensor
from tests.strategies import always
from tests.tile.kernels import attention, batched, gemm, layer_norm, saxpy, softmax, triangle
from tests.tile.test_simulated import BLOCKS, HEADS, LARGE, NUMPY, TARGETS, for_target, integers, on, softmax_of, stored

pytestmark = pytest.mark.in_turn(6)

PRODUCTS = (("f16", 1, "ab ab"), ("f16", 1, "ba ba"), ("bf16", 32, "ab ab"), ("bf16", 32, "ba ab"), ("s8", 16, "ab ba"))
OF_EACH_VENDOR = ("gfx942", "xehpc")  #: all cases run there always; others in sweeps


@pytest.mark.parametrize(
    ("dtype", "multiple", "tags", "target"),
    always(
        [(*case, target) for case, target in product(PRODUCTS, TARGETS)],
        lambda _, row: row[-1] in OF_EACH_VENDOR or row[:-1] in (PRODUCTS[0], PRODUCTS[3]),
    ),
)
def test_matrix_products(dtype: str, multiple: int, tags: str, target: str) -> None:
    tag_a, tag_b = tags.split()
    out = "s32" if dtype == "s8" else "f32"
    m, n, k = (tile.size(name, 1 << 15, multiple=multiple) for name in "mnk")
    tensors = Tensor((m, k), dtype, tag_a), Tensor((k, n), dtype, tag_b), Tensor((m, n), out)
    kernel = on(gemm, (4, 2)) if target.startswith("xe") else gemm
    code = cg.compile(kernel(*tensors, **BLOCKS.get(target, LARGE)), target)
    for blocks in ((1, 1, 1), (3, 2, 5)):
        m_, n_, k_ = (b * max(multiple, 21) for b in blocks)
        m_, n_, k_ = (size // multiple * multiple for size in (m_, n_, k_))
        a, b = integers(1, (m_, k_), dtype), integers(2, (k_, n_), dtype)
        found = cg.simulate(code, m=m_, n=n_, k=k_, a=stored(a, tag_a), b=stored(b, tag_b))
        assert np.array_equal(found.reshape(m_, n_), a.astype(found.dtype) @ b.astype(found.dtype))


@pytest.mark.parametrize(
    ("slots", "target"),
    always(product([1, 2, 3], TARGETS), lambda _, row: row[0] == 2 or row[1] in ("gfx950", *OF_EACH_VENDOR)),
)
def test_loops_of_any_length(slots: int, target: str) -> None:
    """Of 1 to 6 blocks of K, in as many slots."""
    kernel = for_target(gemm, target)
    kernel = evolve(kernel, options=evolve(kernel.options, slots=slots))
    k = tile.size("k", 1024)
    tensors = Tensor((30, k), "f16"), Tensor((k, 32), "f16"), Tensor((30, 32), "f32")
    code = cg.compile(kernel(*tensors, bm=32, bn=32, bk=32), target)
    for depth in (1, 64, 65, 160, 192):
        a, b = integers(1, (30, depth), "f16"), integers(2, (depth, 32), "f16")
        found = cg.simulate(code, k=depth, a=a.ravel(), b=b.ravel())
        assert np.array_equal(found.reshape(30, 32), a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("target", TARGETS)
def test_large_tensors_are_reached(target: str) -> None:
    """Sizes of which buffers beyond 4 GiB may be made: offsets have 64 bits where they need them."""
    m, n = tile.size("m", 1 << 20), tile.size("n", 1 << 20)
    code = cg.compile(saxpy(Tensor((m, n), "f32"), Tensor((m, n), "f32"), bm=8, bn=128), target)
    for shape in ((33, 100), (1, 129), (64, 256)):
        x, y = integers(1, shape, "f32"), integers(2, shape, "f32")
        found = cg.simulate(code, m=shape[0], n=shape[1], x=x.ravel(), y=y.ravel())
        assert np.array_equal(found.reshape(shape), x * 3 + y)


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "xehpg"])
def test_softmax_and_layer_norm(target: str) -> None:
    """The block is as wide as the widest row; what lies behind the end is masked."""
    m, n = tile.size("m", 1 << 20), tile.size("n", 256)
    code = cg.compile(softmax(Tensor((m, n), "f32"), Tensor((m, n), "f32"), rows=4, cols=256), target)
    norm = cg.compile(
        layer_norm(Tensor((m, 64), "f32"), *[Tensor((1, 64), "f32")] * 2, Tensor((m, 64), "f32"), rows=4, cols=64),
        target,
    )
    for shape in ((5, 256), (4, 100), (9, 1)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        found = cg.simulate(code, m=shape[0], n=shape[1], x=x.ravel()).reshape(shape)
        assert np.abs(found / softmax_of(x) - 1).max() < 2e-6
        x = np.random.default_rng(0).standard_normal((shape[0], 64)).astype(np.float32)
        ones = np.ones(64, np.float32)
        found = cg.simulate(norm, m=shape[0], x=x.ravel(), gamma=ones, beta=0 * ones).reshape(x.shape)
        wanted = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        assert np.abs(found - wanted).max() < 1e-5


@pytest.mark.parametrize(
    ("causal", "target"), always(product([False, True], OF_EACH_VENDOR), lambda _, row: row == (True, "gfx942"))
)
def test_attention(causal: bool, target: str) -> None:
    length = tile.size("length", 4096)
    tensors = [Tensor((length, 64), "f16")] * 4
    subgroups, bm, bn = HEADS.get(target, ((4, 1), 64, 64))
    code = cg.compile(on(attention, subgroups)(*tensors, bm=bm, bn=bn, causal=causal, order="rows"), target)
    for rows in (96, 130):
        q, k, v = (np.random.default_rng(0).standard_normal((rows, 64)).astype(np.float16) for _ in range(3))
        found = cg.simulate(code, length=rows, q=q.ravel(), k=k.ravel(), v=v.ravel()).reshape(rows, 64)
        scores = q.astype(np.float64) @ k.astype(np.float64).T / 8
        scores = np.where(np.tri(rows) > 0, scores, -np.inf) if causal else scores
        assert np.abs(found - softmax_of(scores) @ v).max() < 2e-3


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "xehpg"])
def test_batches(target: str) -> None:
    g = tile.size("g", 64)
    tensors = Tensor((g, 2, 40, 32), "f16"), Tensor((g, 2, 32, 64), "f16"), Tensor((g, 2, 40, 64), "f32")
    code = cg.compile(for_target(batched, target)(*tensors, bm=32, bn=32, bk=32), target)
    for count in (1, 3):
        a, b = integers(1, (count, 2, 40, 32), "f16"), integers(2, (count, 2, 32, 64), "f16")
        found = cg.simulate(code, g=count, a=a.ravel(), b=b.ravel()).reshape(count, 2, 40, 64)
        assert np.array_equal(found, a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "xehpg"])
def test_trips_that_follow_from_the_place(target: str) -> None:
    """A lower triangle times a matrix: a workgroup goes as far as its rows do."""
    m = tile.size("m", 4096, multiple=8)
    tensors = Tensor((m, m), "f16"), Tensor((m, 64), "f16"), Tensor((m, 64), "f32")
    code = cg.compile(for_target(triangle, target)(*tensors, block=16), target)
    for size in (8, 104):
        a, b = integers(1, (size, size), "f16"), integers(2, (size, 64), "f16")
        found = cg.simulate(code, m=size, a=a.ravel(), b=b.ravel()).reshape(size, 64)
        assert np.array_equal(found, np.tril(a).astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
def test_the_interpreter_agrees(target: str) -> None:
    """The IR as built means what the code does."""
    m, n, k = (tile.size(name, 512) for name in "mnk")
    tensors = Tensor((m, k), "f16"), Tensor((k, n), "f16"), Tensor((m, n), "f32")
    kernel = gemm(*tensors, bm=64, bn=64, bk=32).kernel(get(target).facts)
    a, b = integers(1, (70, 40), "f16"), integers(2, (40, 10), "f16")
    buffers: dict[str, Any] = {name: x.ravel().view(np.uint8).copy() for name, x in (("a", a), ("b", b))}
    buffers["c"] = np.zeros(4 * 700, np.uint8)
    interpret(kernel, buffers, {"m": 70, "n": 10, "k": 40, "row_magic": magic(1), "row_shift": shift(1)})
    assert np.array_equal(buffers["c"].view(np.float32).reshape(70, 10), a.astype(np.float32) @ b.astype(np.float32))


def test_what_is_promised_is_checked() -> None:
    m = tile.size("m", 128, multiple=4)
    code = cg.compile(saxpy(Tensor((m, 64), "f32"), Tensor((m, 64), "f32"), bm=8, bn=64), "gfx942")
    x = np.zeros(6 * 64, np.float32)
    with pytest.raises(UserError, match="given m=6, wanted 1 to 128, a multiple of 4"):
        cg.simulate(code, m=6, x=x, y=x)
    with pytest.raises(UserError, match="given no m, wanted a number for each of m"):
        cg.simulate(code, x=x, y=x)
    with pytest.raises(UserError, match="given m of type str, wanted a number"):
        cg.simulate(code, m="6", x=x, y=x)
    with pytest.raises(UserError, match="given m of type bool, wanted a number"):
        cg.simulate(code, m=True, x=x, y=x)


def test_the_record_says_how_it_is_launched() -> None:
    m, n = tile.size("m", 128, multiple=4), tile.size("n", 64)
    code = cg.compile(saxpy(Tensor((m, n), "f32"), Tensor((m, n), "f32"), bm=8, bn=64), "gfx942")
    record = type(code.record).from_json(code.record.to_json())
    assert record == code.record
    (launch,) = record.with_scalars({"m": 20, "n": 7}).launches
    assert launch.grid == (3, 1, 1)
    assert launch.grid_expr[0] == "(((m + 7) // 8) * ((n + 63) // 64))"
    assert [a.tensor.dims for a in launch.args if hasattr(a, "tensor")] == [(20, 7), (20, 7)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda m: Tensor((m, 32), "f16", "Ab8a"), "given the layout Ab8a of sizes known at launch"),
        (lambda m: Tensor((m, 32), "f16", "64x1"), "given the layout 64x1 of sizes known at launch"),
        (lambda m: tile.size("m", 4, least=5), "least|most"),
        (lambda m: tile.size("m", 4, multiple=5), "divisor of m"),
        (lambda m: saxpy(Tensor((m, 32), "f32"), Tensor((m, 32), "f32"), bm=m, bn=32), "given a block size m, wanted"),
    ],
)
def test_what_cannot_vary_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        wrong(tile.size("m", 64))


def test_types_of_numpy_are_numbers() -> None:
    m = tile.size("m", 64)
    code = cg.compile(saxpy(Tensor((m, 64), "f32"), Tensor((m, 64), "f32"), bm=16, bn=64), "gfx942")
    x = np.ones(5 * 64, NUMPY["f32"])
    assert (cg.simulate(code, m=np.int64(5), x=x, y=x) == 4).all()


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
@pytest.mark.parametrize("rows", [4, 8])
def test_each_element_of_a_block_is_updated_in_place_by_one_subgroup(target: str, rows: int) -> None:
    code = cg.compile(saxpy(Tensor((rows, 64), "f32"), Tensor((rows, 64), "f32"), bm=rows, bn=64), target)
    x = np.ones(rows * 64, NUMPY["f32"])
    assert (cg.simulate(code, x=x, y=x) == 4).all()


def test_a_block_that_several_subgroups_would_update_in_place_is_refused() -> None:
    with pytest.raises(UserError, match="given y, loaded and stored in blocks whose elements 4 subgroups hold, wanted"):
        cg.compile(saxpy(Tensor((1, 64), "f32"), Tensor((1, 64), "f32"), bm=1, bn=64), "gfx942")


@tile.kernel(subgroups=(1, 2))
def in_place(x: Tensor, w: Tensor) -> None:
    tx, tw = (tile.init_tile(t, (0, 0), (32, 32)) for t in (x, w))
    tile.store_tile(tile.convert(tile.tile_mma(tile.load_tile(tx), tile.load_tile(tw)), "f16"), tx)


def test_a_factor_that_several_subgroups_load_is_not_overwritten() -> None:
    with pytest.raises(UserError, match="given x, loaded and stored in blocks whose elements 2 subgroups hold, wanted"):
        cg.compile(in_place(Tensor((32, 32), "f16"), Tensor((32, 32), "f16")), "gfx942")


def _kernel(target: str) -> Kernel:
    m, n, k = (tile.size(name, 512, multiple=32) for name in "mnk")
    tensors = Tensor((m, k), "f16"), Tensor((k, n), "f16"), Tensor((m, n), "f32")
    return gemm(*tensors, bm=64, bn=64, bk=32).kernel(get(target).facts)


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
def test_dumps_are_read_again(target: str) -> None:
    facts = get(target).facts
    kernel = _kernel(target)
    for each in (kernel, pipeline.run(kernel, facts)):
        assert parse(to_text(each)) is verify(each)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("m.0: s32 in [1, 512] by 32", "m.0: s32 in [1, 1024] by 32", "at most"),
        ("k.0: s32 in [1, 512] by 32", "k.0: s32", "made of k, which is no size of the kernel's"),
    ],
)
def test_what_is_no_size_of_the_kernel_is_refused(old: str, new: str, message: str) -> None:
    text = to_text(_kernel("gfx942"))
    assert old in text
    with pytest.raises((VerifyError, UserError), match=message):
        verify(parse(text.replace(old, new)))
