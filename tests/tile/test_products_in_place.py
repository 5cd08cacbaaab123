"""Products of warpgroups in tile kernels: factors that instructions read in shared memory, and one in registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import convgen as cg
from convgen import tile
from convgen.backends.nvidia import assemble
from convgen.backends.nvidia.select import Selector
from convgen.ir import types
from convgen.ir.error import UserError
from convgen.run.code import Code
from convgen.tile import Tensor, Value
from convgen.tile.tile_kernel import TileProgram

M, N = 200, 136
_BLOCKS = {"bm": 128, "bn": 64, "bk": 64}


def product(
    a_type: str = "f16",
    *,
    subgroups: tuple[int, int] = (4, 1),
    slots: int | None = None,
    mma: str = "",
    copy: str = "",
    tag: str = "ab",
    depth: int = 200,
    begin: int = 0,
) -> TileProgram:
    """The product of a, converted to f16 if it is of another type, and b."""

    @tile.kernel(subgroups=subgroups, slots=slots, mma=mma, copy=copy)
    def product(a: Tensor, b: Tensor, c: Tensor, *, bm: int, bn: int, bk: int) -> None:
        m, n = tile.grid(c, (bm, bn))
        acc = tile.zeros((bm, bn))
        for k in tile.range(begin, a.shape[1], bk):
            left: Value = tile.load_tile(tile.init_tile(a, (m, k), (bm, bk)))
            left = left if a.dtype == "f16" else tile.convert(left, "f16")
            acc = tile.tile_mma(left, tile.load_tile(tile.init_tile(b, (k, n), (bk, bn))), acc)
        tile.store_tile(acc, tile.init_tile(c, (m, n), (bm, bn)))

    return product(Tensor((M, depth), a_type), Tensor((depth, N), "f16", tag), Tensor((M, N), "f32"), **_BLOCKS)


def compiled(program: TileProgram) -> Code:
    return cg.compile(program, "sm_90a")


def is_right(code: Code, a_type: str = "f16", depth: int = 200, begin: int = 0) -> bool:
    random = np.random.default_rng(0)
    a, b = (
        random.integers(-4, 5, (M, depth)).astype(types.scalar(a_type).numpy),
        random.integers(-4, 5, (depth, N)).astype(np.float16),
    )
    wanted = a[:, begin:].astype(np.float32) @ b[begin:].astype(np.float32)
    return np.array_equal(cg.simulate(code, a=a, b=b), wanted)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("subgroups", [(4, 1), (1, 4), (8, 1), (2, 4)], ids=str)
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_both_factors_are_read_in_shared_memory(subgroups: tuple[int, int], slots: int) -> None:
    """A warpgroup is four subgroups along M or N; copies are direct."""
    code = compiled(product(subgroups=subgroups, slots=slots))
    assert "wgmma.mma_async" in code.asm
    assert "ldmatrix" not in code.asm
    assert "cp.async" in code.asm
    assert is_right(code)


def test_the_widest_instruction_is_taken_unless_one_is_named() -> None:
    assert "m64n64k16" in compiled(product()).asm
    code = compiled(product(mma="32x64x16"))
    assert "m64n32k16" in code.asm
    assert is_right(code)


def test_a_converted_factor_stays_in_registers() -> None:
    code = compiled(product("s8", slots=3, depth=1000))
    assert "wgmma.mma_async" in code.asm
    assert is_right(code, "s8", 1000)


def test_the_simulator_notices_registers_that_are_written_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_await_readers", "_await_around_loop"):
        monkeypatch.setattr(Selector, name, lambda *_: None)
    monkeypatch.setattr(assemble, "_check", lambda done, text: None)
    with pytest.raises(cg.SimulationError, match=r"in flight|has not waited for"):
        is_right(compiled(product("s8", slots=3, depth=1000)), "s8", 1000)


@pytest.mark.parametrize(
    "program",
    [
        lambda: product(slots=0),
        lambda: product(subgroups=(2, 2)),  # no subgroups for a warpgroup along M or N
        lambda: product(mma="8x16x16"),
    ],
    ids=["no shared memory", "no warpgroup", "another instruction"],
)
def test_other_products_are_those_of_one_subgroup(program: Callable[[], TileProgram]) -> None:
    code = compiled(program())
    assert "wgmma" not in code.asm
    assert "mma.sync" in code.asm
    assert is_right(code)


def test_an_instruction_whose_factor_no_copy_brings_is_not_taken() -> None:
    """Rows of 12 f16 are no panel: the product is another, or refused where the instruction is named."""

    @tile.kernel(subgroups=(4, 1))
    def thin(a: Tensor, b: Tensor, c: Tensor) -> None:
        m, n = tile.grid(c, (64, 32))
        acc = tile.zeros((64, 32))
        for k in tile.range(0, 64, 16):
            right = tile.load_tile(tile.init_tile(b, (n, k), (32, 16)), transpose=True)
            acc = tile.tile_mma(tile.load_tile(tile.init_tile(a, (m, k), (64, 16))), right, acc)
        tile.store_tile(acc, tile.init_tile(c, (m, n), (64, 32)))

    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, (rows, 64)).astype(np.float16) for rows in (64, 32))
    code = compiled(thin(Tensor((64, 64), "f16"), Tensor((32, 64), "f16"), Tensor((64, 32), "f32")))
    assert np.array_equal(cg.simulate(code, a=a, b=b), a.astype(np.float32) @ b.T.astype(np.float32))


def test_a_value_with_another_use_is_loaded_to_registers() -> None:
    """Its sum along K needs the elements of b that the product reads."""

    @tile.kernel(subgroups=(4, 1))
    def both(a: Tensor, b: Tensor, c: Tensor, sums: Tensor) -> None:
        acc, total = tile.zeros((64, 64)), tile.zeros((1, 64))
        for k in tile.range(0, 128, 32):
            right = tile.load_tile(tile.init_tile(b, (k, 0), (32, 64)))
            acc = tile.tile_mma(tile.load_tile(tile.init_tile(a, (0, k), (64, 32))), right, acc)
            total = total + tile.reduce("sum", tile.convert(right, "f32"), 0)
        tile.store_tile(acc, tile.init_tile(c, (0, 0), (64, 64)))
        tile.store_tile(total, tile.init_tile(sums, (0, 0), (1, 64)))

    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, shape).astype(np.float16) for shape in ((64, 128), (128, 64)))
    tensors = Tensor((64, 128), "f16"), Tensor((128, 64), "f16"), Tensor((64, 64), "f32"), Tensor((1, 64), "f32")
    found = cg.simulate(compiled(both(*tensors)), a=a, b=b)
    assert np.array_equal(found["c"], a.astype(np.float32) @ b.astype(np.float32))
    assert np.array_equal(found["sums"], b.sum(0, dtype=np.float32)[None])


def test_a_named_instruction_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="wanted one that sm_90a has"):
        compiled(product(mma="128x64x16"))


@pytest.mark.parametrize("tag", ["ab", "ba"])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_bulk_copies_bring_factors_into_a_ring(slots: int, tag: str) -> None:
    code = compiled(product(subgroups=(8, 1), slots=slots, copy="tensor", tag=tag))
    assert "cp.async.bulk.tensor" in code.asm
    assert "bar.sync 0" not in code.asm.partition("started")[2]
    assert is_right(code)


def test_a_converted_factor_beside_a_ring_comes_to_registers() -> None:
    """Lanes load it themselves: no barrier would order its copy to shared memory."""
    with pytest.raises(UserError, match="given copy='tensor', wanted factors that bulk copies bring"):
        compiled(product("s8", copy="tensor"))


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90"])
def test_targets_without_bulk_copies_refuse_them(target: str) -> None:
    with pytest.raises(UserError, match=f"wanted a target with bulk copies of tensors, not {target}"):
        cg.compile(product(copy="tensor"), target)


def test_bulk_copies_that_no_product_asks_for_are_refused() -> None:
    with pytest.raises(UserError, match="product has no factor in shared memory, with slots=0"):
        compiled(product(copy="tensor", slots=0))


def test_other_copies_are_refused() -> None:
    with pytest.raises(UserError, match="given copy='direct', wanted 'tensor', or none"):
        product(copy="direct")


def test_the_copy_is_part_of_the_text() -> None:
    program = product(copy="tensor", slots=2)
    assert " copy=tensor" in str(program)
    assert tile.parse(str(program)).options.copy == "tensor"


def test_tiles_that_start_within_a_chunk_come_through_registers() -> None:
    """Copies without registers move whole chunks of memory; bulk copies die elsewhere (measured on an H200)."""
    code = compiled(product(begin=3))
    assert "wgmma.mma_async" in code.asm
    assert is_right(code, begin=3)
    with pytest.raises(UserError, match="a tile of a that may start anywhere along its contiguous dim"):
        compiled(product(begin=3, copy="tensor"))
    assert is_right(compiled(product(begin=8, copy="tensor")), begin=8)


@pytest.mark.parametrize("tags", [("abc", "abc"), ("acb", "acb")], ids=str)
def test_bulk_copies_bring_matrices_of_a_batch(tags: tuple[str, str]) -> None:
    @tile.kernel(subgroups=(4, 1), copy="tensor")
    def batched(a: Tensor, b: Tensor, c: Tensor) -> None:
        g, m, n = tile.grid(c, (1, 64, 64))
        acc = tile.zeros((64, 64))
        for k in tile.range(0, a.shape[2], 64):
            left = tile.load_tile(tile.init_tile(a, (g, m, k), (None, 64, 64)))
            acc = tile.tile_mma(left, tile.load_tile(tile.init_tile(b, (g, k, n), (None, 64, 64))), acc)
        tile.store_tile(acc, tile.init_tile(c, (g, m, n), (None, 64, 64)))

    shapes = (3, 72, 136), (3, 136, 104), (3, 72, 104)
    a, b = (np.random.default_rng(0).integers(-4, 5, shape).astype(np.float16) for shape in shapes[:2])
    code = compiled(batched(*(Tensor(s, t, tag) for s, t, tag in zip(shapes, ("f16", "f16", "f32"), (*tags, "abc")))))
    assert "cp.async.bulk.tensor" in code.asm
    assert np.array_equal(cg.simulate(code, a=a, b=b), a.astype(np.float32) @ b.astype(np.float32))


def test_registers_that_a_product_reads_are_read_after_it() -> None:
    """PTX lets no instruction access them while the product runs: the sum of a along K awaits it."""

    @tile.kernel(subgroups=(4, 1), slots=3)
    def both(a: Tensor, b: Tensor, c: Tensor) -> None:
        acc, total = tile.zeros((64, 64)), tile.zeros((64, 1))
        for k in tile.range(0, 256, 32):
            left = tile.load_tile(tile.init_tile(a, (0, k), (64, 32))) + 1
            acc = tile.tile_mma(left, tile.load_tile(tile.init_tile(b, (k, 0), (32, 64))), acc)
            total = total + tile.reduce("sum", tile.convert(left, "f32"), 1)
        tile.store_tile(acc + total, tile.init_tile(c, (0, 0), (64, 64)))

    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, shape).astype(np.float16) for shape in ((64, 256), (256, 64)))
    code = compiled(both(Tensor((64, 256), "f16"), Tensor((256, 64), "f16"), Tensor((64, 64), "f32")))
    assert "wgmma" in code.asm
    left = a.astype(np.float32) + 1
    assert np.array_equal(cg.simulate(code, a=a, b=b), left @ b.astype(np.float32) + left.sum(1, keepdims=True))


@pytest.mark.parametrize("ahead", [False, True])
def test_sums_of_a_product_are_a_factor_as_they_are(ahead: bool) -> None:
    """Without arithmetic between, the factor is the result of the other product in its own layout, M x N."""

    @tile.kernel(subgroups=(4, 1))
    def chained(a: Tensor, b: Tensor, v: Tensor, c: Tensor) -> None:
        left = tile.load_tile(tile.init_tile(a, (0, 0), (64, 32)))
        acc, before = tile.zeros((64, 64)), tile.zeros((64, 32))
        for n in tile.range(0, 128 + 32 * ahead, 32):
            products = tile.tile_mma(left, tile.load_tile(tile.init_tile(b, (0, n), (32, 32))))
            right = tile.load_tile(tile.init_tile(v, (n - 32 * ahead, 0), (32, 64)))
            acc = tile.tile_mma(tile.convert(before if ahead else products, "f16"), right, acc)
            before = products if ahead else before
        tile.store_tile(acc, tile.init_tile(c, (0, 0), (64, 64)))

    random = np.random.default_rng(0)
    a, b, v = (random.integers(-2, 3, shape).astype(np.float16) for shape in ((64, 32), (32, 128), (128, 64)))
    shapes = (Tensor((64, 32), "f16"), Tensor((32, 128), "f16"), Tensor((128, 64), "f16"), Tensor((64, 64), "f32"))
    code = compiled(chained(*shapes))
    assert "wgmma" in code.asm
    assert np.array_equal(
        cg.simulate(code, a=a, b=b, v=v), a.astype(np.float32) @ b.astype(np.float32) @ v.astype(np.float32)
    )


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_slot_is_overwritten_behind_the_product_that_reads_it(slots: int) -> None:
    """The barriers of an exchange between subgroups lie ahead of the second product, and do not end its reads."""

    @tile.kernel(subgroups=(1, 8), slots=slots)
    def chained(a: Tensor, b: Tensor, v: Tensor, c: Tensor) -> None:
        left = tile.load_tile(tile.init_tile(a, (0, 0), (64, 32)))
        acc = tile.zeros((64, 128))
        for n in tile.range(0, b.shape[1], 128):
            products = tile.tile_mma(left, tile.load_tile(tile.init_tile(b, (0, n), (32, 128))))
            right = tile.load_tile(tile.init_tile(v, (n, 0), (128, 128)))
            acc = tile.tile_mma(tile.convert(products, "f16"), right, acc)
        tile.store_tile(acc, tile.init_tile(c, (0, 0), (64, 128)))

    random = np.random.default_rng(0)
    a, b, v = (random.integers(-2, 3, shape).astype(np.float16) for shape in ((64, 32), (32, 512), (512, 128)))
    tensors = (Tensor(x.shape, "f16") for x in (a, b, v))
    code = compiled(chained(*tensors, Tensor((64, 128), "f32")))
    assert "wgmma" in code.asm
    wanted = a.astype(np.float32) @ b.astype(np.float32) @ v.astype(np.float32)
    assert np.array_equal(cg.simulate(code, a=a, b=b, v=v), wanted)


@pytest.mark.parametrize("trips", [3, 8])
@pytest.mark.parametrize("slots", [1, 2])
def test_sums_that_change_between_products_are_awaited_ahead_of_a_loop(slots: int, trips: int) -> None:
    """ptxas serialises products in flight where a loop begins in which moves write their sums (C7515)."""

    @tile.kernel(subgroups=(4, 1), slots=slots)
    def changed(a: Tensor, b: Tensor, c: Tensor) -> None:
        acc = tile.zeros((64, 64))
        for k in tile.range(0, a.shape[1], 32):
            left = tile.load_tile(tile.init_tile(a, (0, k), (64, 32)))
            acc = tile.tile_mma(left, tile.load_tile(tile.init_tile(b, (k, 0), (32, 64))), acc + 1)
        tile.store_tile(acc, tile.init_tile(c, (0, 0), (64, 64)))

    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, shape).astype(np.float16) for shape in ((64, 32 * trips), (32 * trips, 64)))
    code = compiled(changed(Tensor(a.shape, "f16"), Tensor(b.shape, "f16"), Tensor((64, 64), "f32")))
    assert "wgmma" in code.asm
    assert np.array_equal(cg.simulate(code, a=a, b=b), a.astype(np.float32) @ b.astype(np.float32) + trips)
