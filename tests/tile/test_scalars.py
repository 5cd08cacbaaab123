"""Scalars that a kernel loads: as bounds, as places of blocks that are copied ahead, and as ends of stores."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen import tile
from convgen.tile import Tensor

pytestmark = pytest.mark.in_turn(6)

TARGETS = "gfx942", "gfx950", "xehpc", "sm_80", "sm_90a"
#: sequences, pages, rows of a page, most terms of a sequence, columns
SEQUENCES, PAGES, PAGE, TERMS, COLUMNS = 3, 9, 64, 256, 64


@tile.kernel(subgroups=(4, 1))
def sums_of_pages(a: Tensor, b: Tensor, pages: Tensor, lengths: Tensor, c: Tensor, *, bk: int) -> None:
    """Multiply rows of each sequence by as many rows of b as it has, which lie in pages."""
    (_, rows, _), (count, page, columns) = a.shape, b.shape
    s, m = tile.grid((a.shape[0], rows), (1, 64))
    length = tile.load_scalar(lengths, (s,), a.shape[2])
    acc = tile.zeros((64, columns))
    for k in tile.range(0, length, bk):
        at = tile.load_scalar(pages, (s, k // page), count - 1)
        right = tile.load_tile(tile.init_tile(b, (at, k % page, 0), (None, bk, columns)))
        left = tile.load_tile(tile.init_tile(a, (s, m, k), (None, 64, bk)))
        inside = tile.less(tile.positions((1, bk), 1) + k, length)
        left = tile.where(inside, left, tile.full((1, 1), 0, "f16"))
        acc = tile.tile_mma(left, right, acc)
    tile.store_tile(acc, tile.init_tile(c, (s, m, 0), (None, 64, columns)))


@tile.kernel(subgroups=(2, 1))
def doubled_until(x: Tensor, ends: Tensor, y: Tensor, *, rows: int, cols: int) -> None:
    """Double the elements of x before two ends."""
    m, n = tile.grid(y, (rows, cols))
    down, across = (tile.load_scalar(ends, (dim,), y.shape[dim]) for dim in range(2))
    block = tile.load_tile(tile.init_tile(x, (m, n), (rows, cols)))
    tile.store_tile(block * 2.0, tile.init_tile(y, (m, n), (rows, cols)), ends=(down, across))


@tile.kernel(subgroups=(2, 1))
def loaded_until(x: Tensor, ends: Tensor, y: Tensor, *, rows: int, cols: int, transpose: bool = False) -> None:
    """Copy the elements of x before two ends, and zeros in place of the others."""
    m, n = tile.grid(y, (rows, cols))
    at, shape = ((n, m), (cols, rows)) if transpose else ((m, n), (rows, cols))
    limits = [tile.load_scalar(ends, (dim,), x.shape[dim]) for dim in range(2)]
    block = tile.load_tile(tile.init_tile(x, at, shape), transpose=transpose, ends=limits)
    tile.store_tile(block, tile.init_tile(y, (m, n), (rows, cols)))


@tile.kernel(subgroups=(4, 1))
def masked_sums_of_pages(a: Tensor, b: Tensor, pages: Tensor, lengths: Tensor, c: Tensor, *, bk: int) -> None:
    """As `sums_of_pages`, without the rows of b behind the last one."""
    (count, page, columns), most = b.shape, a.shape[2]
    s, m = tile.grid((c.shape[0], c.shape[1]), (1, 64))
    length = tile.load_scalar(lengths, (s,), most)
    acc = tile.zeros((64, columns))
    for k in tile.range(0, length, bk):
        at = tile.load_scalar(pages, (s, k // page), count - 1)
        behind = (None, k % page + (length - k), None)
        right = tile.load_tile(tile.init_tile(b, (at, k % page, 0), (None, bk, columns)), ends=behind)
        left = tile.load_tile(tile.init_tile(a, (s, m, k), (None, 64, bk)), ends=(None, None, length))
        acc = tile.tile_mma(left, right, acc)
    tile.store_tile(acc, tile.init_tile(c, (s, m, 0), (None, 64, columns)))


def of_pages(lengths: tuple[int, ...]) -> tuple[dict[str, Any], npt.NDArray[np.float32]]:
    """Return inputs of `sums_of_pages`, and its result by indexing."""
    rng = np.random.default_rng(0)
    a = rng.integers(-3, 4, (SEQUENCES, 64, TERMS)).astype(np.float16)
    b = rng.integers(-3, 4, (PAGES, PAGE, COLUMNS)).astype(np.float16)
    pages = rng.integers(0, PAGES, (SEQUENCES, TERMS // PAGE)).astype(np.int32)
    wanted = np.stack(
        [
            a[s, :, :length].astype(np.float32) @ np.concatenate(b[pages[s]])[:length].astype(np.float32)
            for s, length in enumerate(lengths)
        ]
    )
    return {"a": a, "b": b, "pages": pages, "lengths": np.array(lengths, np.int32)}, wanted


def program(slots: int | None = None, of: Any = sums_of_pages, copy: str = "") -> tile.TileProgram:
    """Return `sums_of_pages`, or another kernel, for the inputs of `of_pages`."""
    kernel = tile.kernel(subgroups=(4, 1), slots=slots, copy=copy)(of.function)
    a, b, c = (SEQUENCES, 64, TERMS), (PAGES, PAGE, COLUMNS), (SEQUENCES, 64, COLUMNS)
    pages, lengths = Tensor((SEQUENCES, TERMS // PAGE), "s32"), Tensor((SEQUENCES,), "s32")
    return kernel(Tensor(a, "f16"), Tensor(b, "f16"), pages, lengths, Tensor(c, "f32"), bk=32)


@pytest.mark.parametrize("slots", [0, 1, 2, 3])
@pytest.mark.parametrize("target", TARGETS)
def test_blocks_are_copied_from_pages_ahead_of_the_product(target: str, slots: int) -> None:
    code = cg.compile(program(slots), target)
    for lengths in ((256, 0, 97), (1, 64, 65), (31, 200, 130)):
        inputs, wanted = of_pages(lengths)
        assert np.array_equal(cg.simulate(code, **inputs), wanted)


@pytest.mark.parametrize("slots", [0, 2, 3])
@pytest.mark.parametrize("target", TARGETS)
def test_factors_end_where_a_launch_says(target: str, slots: int) -> None:
    """A NaN behind the end reaches no sum: copies leave it out, ahead of the product, too."""
    code = cg.compile(program(slots, masked_sums_of_pages), target)
    for lengths in ((256, 0, 97), (1, 64, 65), (31, 200, 130)):
        inputs, _ = of_pages(lengths)
        for s, length in enumerate(lengths):
            inputs["a"][s, :, length:] = np.nan
        alone = np.array([[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]])
        for s in range(2):  # of one sequence each
            pages, others = np.concatenate(inputs["b"][alone[s]]), inputs | {"pages": alone.astype(np.int32)}
            pages[lengths[s] :] = np.nan
            b = inputs["b"].copy()
            b[alone[s]] = pages.reshape(4, PAGE, COLUMNS)
            found = cg.simulate(code, **others | {"b": b})[s]
            left = inputs["a"][s, :, : lengths[s]].astype(np.float32)
            assert np.array_equal(found, left @ pages[: lengths[s]].astype(np.float32))


def test_bulk_copies_know_no_ends() -> None:
    with pytest.raises(cg.UserError, match="ends of b, which bulk copies do not know, wanted none"):
        cg.compile(program(2, masked_sums_of_pages, "tensor"), "sm_90a")


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_a_load_ends_where_a_launch_says(target: str, transpose: bool) -> None:
    x = np.arange(1, 100 * 72 + 1, dtype=np.float32).reshape(100, 72)
    y = Tensor(x.T.shape if transpose else x.shape, "f32")
    code = cg.compile(
        loaded_until(Tensor(x.shape, "f32"), Tensor((2,), "s32"), y, rows=32, cols=32, transpose=transpose), target
    )
    for down, across in ((50, 33), (100, 72), (0, 5), (1, 72), (200, -3)):
        wanted = np.zeros_like(x)
        inside = slice(0, max(down, 0)), slice(0, max(across, 0))
        wanted[inside] = x[inside]
        found = cg.simulate(code, x=x, ends=np.array([down, across], np.int32))
        assert np.array_equal(found, wanted.T if transpose else wanted)


def test_a_page_that_does_not_exist_is_the_nearest_one() -> None:
    """As is a length of more than all terms."""
    inputs, _ = of_pages((256, 256, 256))
    pages = np.array([[-5, 100, 0, 8], [2**31 - 1, -(2**31), 3, 4], [1, 2, 3, 9]], np.int32)
    beyond = np.array([1000, 256, 2**31 - 1], np.int32)
    code = cg.compile(program(), "gfx942")
    found = cg.simulate(code, **inputs | {"pages": pages, "lengths": beyond})
    nearest = np.clip(pages, 0, PAGES - 1)
    assert np.array_equal(found, cg.simulate(code, **inputs | {"pages": nearest}))


@pytest.mark.parametrize("target", TARGETS)
def test_a_store_ends_where_a_launch_says(target: str) -> None:
    x = np.arange(100 * 72, dtype=np.float32).reshape(100, 72)
    code = cg.compile(
        doubled_until(Tensor(x.shape, "f32"), Tensor((2,), "s32"), Tensor(x.shape, "f32"), rows=32, cols=32), target
    )
    (unwritten,) = np.unique(cg.simulate(code, x=x, ends=np.zeros(2, np.int32)))
    for down, across in ((50, 33), (100, 72), (0, 5), (1, 72), (200, -3)):
        wanted = np.full_like(x, unwritten)
        inside = slice(0, max(down, 0)), slice(0, max(across, 0))
        wanted[inside] = 2 * x[inside]
        assert np.array_equal(cg.simulate(code, x=x, ends=np.array([down, across], np.int32)), wanted)


def test_scalars_and_ends_are_read_as_they_are_printed() -> None:
    shape = (100, 72)
    until = doubled_until(Tensor(shape, "f32"), Tensor((2,), "s32"), Tensor(shape, "f32"), rows=32, cols=32)
    assert "loaded = load_scalar ends[0] up to 100\n" in str(until)
    assert re.search(r"store_tile %2, %3 until \[loaded, loaded_\d+\]", str(until))
    loaded = loaded_until(Tensor(shape, "f32"), Tensor((2,), "s32"), Tensor(shape[::-1], "f32"), rows=8, cols=8,
                          transpose=True)  # fmt: skip
    assert re.search(r"load_tile %\d+ until \[loaded, loaded_\d+\] {transpose}", str(loaded))
    for printed in (str(until), str(loaded), str(program()), str(program(of=masked_sums_of_pages))):
        assert str(tile.parse(printed)) == printed


def refusal(tensor: Tensor, at: Any, most: Any, ends: Any = ()) -> str:
    """Return the refusal of a kernel that loads a scalar and stores a block."""

    @tile.kernel(subgroups=(1, 1))
    def kernel(x: Tensor, y: Tensor) -> None:
        m, n = tile.grid(y, (8, 8))
        tile.load_scalar(x, at, most)
        tile.store_tile(tile.zeros((8, 8)), tile.init_tile(y, (m, n), (8, 8)), ends=ends)

    with pytest.raises(cg.UserError) as refused:
        kernel(tensor, Tensor((16, 16), "f32"))
    return str(refused.value)


def test_refused_scalars_and_ends() -> None:
    numbers = Tensor((4,), "s32")
    assert "given f32, wanted s32, at load_scalar of x" in refusal(Tensor((4,), "f32"), (0,), 3)
    assert "given 2 offsets and a block of 1, wanted 1 of each" in refusal(numbers, (0, 0), 3)
    assert "wanted an offset below 4" in refusal(numbers, (4,), 3)
    for most in (-1, 2**31, 2.5):
        assert f"given most={most}, wanted a number from 0 below 2147483648" in refusal(numbers, (0,), most)
    assert "given 1 ends, wanted one for each of 2 dims" in refusal(numbers, (0,), 3, (5,))
    for ends in (5, "ab"):
        assert f"given ends={ends!r}, wanted a tuple of them, at store_tile" in refusal(numbers, (0,), 3, ends)
    assert "given the offset 2.5, wanted an integer or a scalar" in refusal(numbers, (0,), 3, (2.5, None))


@pytest.mark.parametrize("scatters", [False, True])
def test_a_tensor_that_the_kernel_stores_to_has_no_scalars(scatters: bool) -> None:
    @tile.kernel(subgroups=(1, 1))
    def kernel(n: Tensor, y: Tensor) -> None:
        m, k = tile.grid(y, (8, 8))
        end = tile.load_scalar(n, (0,), 8)
        tile.store_tile(tile.zeros((8, 8)), tile.init_tile(y, (m, k), (8, 8)), ends=(end, None))
        block = tile.full((8,), 1, "s32")
        if scatters:
            tile.scatter(n, tile.positions((8,), 0), block)
        else:
            tile.store_tile(block, tile.init_tile(n, (0,), (8,)))

    with pytest.raises(cg.UserError, match="given a scalar of n, which the kernel stores to, wanted a tensor it only"):
        cg.compile(kernel(Tensor((8,), "s32"), Tensor((8, 8), "f32")), "gfx942")


def refusal_of_a_loop(step: str, after: bool) -> str:
    """Return the refusal of a loop that moves a tile by one of its scalars, or of one that is used after the loop."""

    @tile.kernel(subgroups=(4, 1))
    def kernel(a: Tensor, b: Tensor, places: Tensor, c: Tensor) -> None:
        m, n = tile.grid(c, (64, 64))
        acc, right = tile.zeros((64, 64)), tile.init_tile(b, (0, n), (32, 64))
        for k in tile.range(0, 128, 32):
            scalars = {"counter": k, "loaded": tile.load_scalar(places, (k // 32,), 96)}
            left = tile.load_tile(tile.init_tile(a, (m, k), (64, 32)))
            acc = tile.tile_mma(left, tile.load_tile(right), acc)
            right = tile.update_tile_offset(right, (32 if after else scalars[step], 0))
        tile.store_tile(acc, tile.init_tile(c, (m, n), (64, 64)), ends=(scalars[step] if after else None, None))

    tensors = Tensor((64, 128), "f16"), Tensor((128, 64), "f16"), Tensor((4,), "s32"), Tensor((64, 64), "f32")
    with pytest.raises(cg.UserError) as refused:
        cg.compile(kernel(*tensors), "gfx942")
    return str(refused.value)


@pytest.mark.parametrize("scalar", ["counter", "loaded"])
def test_scalars_of_a_loop_stay_in_it(scalar: str) -> None:
    assert "given a tile of b that each iteration moves by another distance" in refusal_of_a_loop(scalar, after=False)
    assert re.search("given the scalar .* of a loop's body after the loop", refusal_of_a_loop(scalar, after=True))


def test_ends_near_the_greatest_number_drop_nothing() -> None:
    """The tile may begin 8 rows before the tensor, which the end is counted with."""

    @tile.kernel(subgroups=(1, 1))
    def kernel(n: Tensor, y: Tensor) -> None:
        m, k = tile.grid((24, 16), (8, 16))
        end = tile.load_scalar(n, (0,), 2**31 - 1)
        tile.store_tile(tile.full((8, 16), 1.0), tile.init_tile(y, (m - 8, k), (8, 16)), ends=(end, None))

    code = cg.compile(kernel(Tensor((1,), "s32"), Tensor((16, 16), "f32")), "gfx942")
    for end, rows in ((2**31 - 1, 16), (2**31 - 4, 16), (5, 5), (0, 0), (-3, 0)):
        stored = cg.simulate(code, n=np.array([end], np.int32)) == 1
        assert np.array_equal(stored.all(axis=1), np.arange(16) < rows)
