"""What convgen answers to some mistakes in tile kernels: one line with what was given, what is wanted, and where."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen import tile
from convgen.backends.target import names
from convgen.driver import SlowProduct
from convgen.tile import Tensor

A = np.zeros((64, 64), np.float16)
H, T = Tensor((64, 64), "f16"), Tensor((64, 64), "f32")
P = cg.Matmul.parse("64x64:64x64", dt="f16")


@tile.kernel(subgroups=(2, 2))
def gemm(a: Tensor, b: Tensor, c: Tensor, *, bm: int = 64, bn: int = 64, bk: int = 32) -> None:
    m, n = tile.grid(c, (bm, bn))
    acc = tile.zeros((bm, bn))
    for k in tile.range(0, a.shape[1], bk):
        left = tile.load_tile(tile.init_tile(a, (m, k), (bm, bk)))
        right = tile.load_tile(tile.init_tile(b, (k, n), (bk, bn)))
        acc = tile.tile_mma(left, right, acc)
    tile.store_tile(acc, tile.init_tile(c, (m, n), (bm, bn)))


CODE = cg.compile(gemm(H, H, T), "gfx942")

KERNEL = """
def kernel(x, y):
    m, c = tile.grid(y, (32, 32))
    v = tile.load_tile(tile.init_tile(x, (m, c), (32, 32)))
    {}
"""

#: A line in a kernel, and the answer, which ends with the file and the number of the line.
IN_KERNELS = (
    ("v / 2", "given v / ..., wanted tile.divide(v, ...), or v * (1 / number)"),
    ("1 / v", "given ... / v, wanted tile.divide(tile.full(v.shape, ...), v) or tile.reciprocal(v)"),
    (
        "tile.load_tile(tile.init_tile(x, (np.int64(64), 0), (16, 16)))",
        "given a block of 16 at 64 along dim 0 of x, wanted an offset below 64, at load_tile",
    ),
    ("tile.init_tile(x, (m, c), 5)", "given the shape 5, wanted a tuple of sizes, at init_tile"),
    ("tile.full(v, 0)", "given the shape a block (v), wanted a tuple of sizes, at full"),
    (
        "tile.full(np.zeros((99, 9)), 0)",
        "given the shape array([[0., 0., 0., 0., 0., 0., 0., 0., 0.], [0., 0., 0.,..., wanted a tuple of sizes, at full",  # noqa: E501
    ),
    ("tile.full((v, 8), 0)", "given a block size a block (v), wanted a number, at full"),
    (
        "tile.load_scalar(0, (0,), 5)",
        "given an argument of type int, wanted a tensor, as in load_scalar(tensor, at, most), at load_scalar",
    ),
    ("tile.positions((8, 8), v)", "given the axis a block (v), wanted one of 8x8, at positions"),
    ("v // 2", "given v // ..., wanted v >> bits for a power of two: integers are not divided"),
    ("v % 2", "given v % ..., wanted v & (2**bits - 1) for a power of two: integers are not divided"),
    ("v ** 2", "given v ** ..., wanted v * v, tile.sqrt(v) or tile.exp2(tile.log2(v) * ...)"),
    ("v @ v", "given v @ ..., wanted tile.tile_mma(v, ...)"),
    ("v < 1", "given v < ..., wanted tile.less(v, ...)"),
    ("v > 1", "given v > ..., wanted tile.less(..., v), the operands in the other order"),
    ("v <= 1", "given v <= ..., wanted ~tile.less(..., v), the operands in the other order"),
    ("v >= v", "given v >= ..., wanted ~tile.less(v, ...)"),
    ("v[0]", "given v[...], wanted a tile of the part, by tile.init_tile, and tile.load_tile of it"),
    ("v[0] = 1", "given v[...] = ..., wanted v = tile.where(condition, ..., v)"),
    ("len(v)", "given len(v), wanted v.shape[0]"),
    ("list(v)", "given a loop over v, wanted operations on the whole block, such as tile.reduce"),
    ("v and v", "given v as a Python condition, wanted tile.where(v, a, b): elements are known on the GPU only"),
    (
        "m > 32 and v",
        "given a GPU value where Python needs a bool, wanted tile.where() in a tile kernel, select() in IR, & and | between conditions, or Python numbers",  # noqa: E501
    ),
    ("float(v)", "given v as a Python number, wanted blocks throughout: elements are known on the GPU only"),
    ("range(v)", "given v as a Python number, wanted blocks throughout: elements are known on the GPU only"),
    ("np.exp(v)", "given numpy's exp of v, wanted tile.exp(v)"),
    ("np.maximum(v, 0)", "given numpy's maximum of v, wanted tile.max(v, ...)"),
    (
        "np.asarray(v)",
        "given v as an array of numpy, wanted functions of convgen.tile: elements are known on the GPU only",
    ),
    ("np.sum(v)", "given numpy's add of v, wanted functions of convgen.tile, and + - * on blocks"),
    (
        "np.where(v, v, v)",
        "given v as an array of numpy, wanted functions of convgen.tile: elements are known on the GPU only",
    ),
    (
        "np.dot(v, v)",
        "given v as an array of numpy, wanted functions of convgen.tile: elements are known on the GPU only",
    ),
    ("np.logaddexp(v, v)", "given numpy's logaddexp of v, wanted functions of convgen.tile, and + - * on blocks"),
    (
        "acc = v + 1.0\n    for k in tile.range(0, 64, 32):\n        acc = tile.convert(acc, 'f16')",
        "given acc as 32x32 of f16 after the loop's body (kernel.py:7), wanted 32x32 of f32 as before it: acc = tile.convert(acc, 'f32'), or another name, at tile.range",  # noqa: E501
    ),
    (
        "acc = v + 1.0\n    for k in tile.range(0, 64, 32):\n        acc = tile.reduce('sum', acc, 0)",
        "given acc as 1x32 of f32 after the loop's body (kernel.py:7), wanted 32x32 of f32 as before it, at tile.range",
    ),
    (
        "acc = v\n    for k in tile.range(0, 64, 32):\n        acc = acc + 1.0",
        "given v and acc, the same when the loop begins, wanted one of their own for each",
    ),
    ("v + tile.convert(v, 'f16')", "given f32 and f16, wanted values of one type, at add"),
    ("v + tile.zeros((16, 16))", "given blocks of 32x32 and 16x16, wanted the same shape, or 1 along a dim, at add"),
    ("v + 'a'", "given an operand of type str, wanted blocks, numbers and scalars of the kernel, at add"),
    ("v + None", "given an operand of type NoneType, wanted blocks, numbers and scalars of the kernel, at add"),
    (
        "v + np.ones((32, 32))",
        "given an operand of type ndarray, wanted blocks, numbers and scalars of the kernel, at add",
    ),
    ("np.ones((32, 32)) + v", "given numpy's add of v, wanted functions of convgen.tile, and + - * on blocks"),
    ("tile.where(v, v, v)", "given f32, f32 and f32, wanted bool and twice the same type, at where"),
    (
        "tile.where(tile.less(v, 1), v, 0.0)",
        "given an argument of type float, wanted a block, as in where(condition, a, tile.full((1, 1), number)), at where",  # noqa: E501
    ),
    ("tile.less(1, 2)", "given numbers, wanted values of one type, at less"),
    ("tile.exp(2.0)", "given numbers, wanted values of one type, at exp"),
    ("tile.exp(tile.positions((32, 32), 0))", "given exp of s32x2, wanted elements of f32, f16 or bf16, at exp"),
    (
        "tile.divide(v, 'x')",
        "given an operand of type str, wanted blocks, numbers and scalars of the kernel, at divide",
    ),
    (
        "tile.load_tile(tile.init_tile(x, (100, 0), (32, 32)))",
        "given a block of 32 at 100 along dim 0 of x, wanted an offset below 64, at load_tile",
    ),
    (
        "tile.load_tile(tile.init_tile(x, (-40, 0), (32, 32)))",
        "given a block of 32 at -40 along dim 0 of x, wanted some of it in the tensor, at load_tile",
    ),
    (
        "tile.store_tile(v, tile.init_tile(y, (0, 64), (32, 32)))",
        "given a block of 32 at 64 along dim 1 of y, wanted an offset below 64, at store_tile",
    ),
    (
        "tile.init_tile(x, (0,), (32, 32))",
        "given 1 offsets and a block of 32x32, wanted 2 of each, at init_tile of x 64x64",
    ),
    (
        "tile.init_tile(x, (0, 0), (0, 32))",
        "given a block size 0, wanted at least 1, at init_tile",
    ),
    ("tile.init_tile(x, (0, 0), (32.0, 32))", "given a block size 32.0, wanted a number, at init_tile"),
    (
        "tile.init_tile(v, (0, 0), (32, 32))",
        "given a block (v), wanted a tensor, as in init_tile(tensor, offsets, shape), at init_tile",
    ),
    (
        "tile.load_tile(x)",
        "given a tensor (x), wanted a tile, as in load_tile(init_tile(tensor, offsets, shape)), at load_tile",
    ),
    (
        "tile.load_tile(v)",
        "given a block (v), wanted a tile, as in load_tile(init_tile(tensor, offsets, shape)), at load_tile",
    ),
    (
        "tile.store_tile(tile.init_tile(y, (m, c), (32, 32)), v)",
        "given a block (v), wanted a tile, as in store_tile(block, tile), at store_tile",
    ),
    (
        "tile.store_tile(tile.convert(v, 'f16'), tile.init_tile(y, (m, c), (32, 32)))",
        "given 32x32 of f16, wanted 32x32 of f32, at store_tile to y",
    ),
    (
        "tile.store_tile(v, tile.init_tile(y, (m, c), (16, 32)))",
        "given 32x32 of f32, wanted 16x32 of f32, at store_tile to y",
    ),
    ("tile.grid(x, (32, 32))", "given a second grid, wanted one a kernel"),
    ("list(tile.range(0, 4, 0))", "given range(0, 4, 0), wanted a step from 1 and an end not before the beginning"),
    ("list(tile.range(0, 4.5))", "given the bound 4.5, wanted integers, or scalars of the kernel, at tile.range"),
    (
        "tile.reduce('avg', v, 0)",
        "given reduce 'avg' along 0, wanted one of sum, prod, max, min, and, or along an axis of 32x32",
    ),
    (
        "tile.reduce('sum', v, 2)",
        "given reduce 'sum' along 2, wanted one of sum, prod, max, min, and, or along an axis of 32x32",
    ),
    (
        "tile.reduce('sum', 1.0, 0)",
        'given an argument of type float, wanted a block, as in reduce("sum", block, axis), at reduce',
    ),
    ("tile.tile_mma(v, tile.zeros((16, 32)))", "given a 32x32 and b 16x32, wanted MxK and KxN, at tile_mma"),
    (
        "tile.tile_mma(v, tile.convert(v, 's8'))",
        "given f32 by s8, wanted all of integers or all of floats, at tile_mma",
    ),
    (
        "tile.tile_mma(v, 2.0)",
        "given an argument of type float, wanted a block, as in tile_mma(a, b, acc), at tile_mma",
    ),
    ("tile.convert(v, 'f17')", "given the type 'f17', wanted one such as f16 or s8, at convert"),
    ("tile.convert(v, np.float16)", "given the type <class 'numpy.float16'>, wanted one such as f16 or s8, at convert"),
    ("tile.convert(x, 'f16')", 'given a tensor (x), wanted a block, as in convert(block, "f16"), at convert'),
    ("tile.transpose(tile.zeros((4,)))", "given 4, wanted a block of two dims, at transpose"),
    ("tile.full((4.5, 2), 0)", "given a block size 4.5, wanted a number, at full"),
    ("tile.positions((4, 4), 2)", "given the axis 2, wanted one of 4x4, at positions"),
    ("tile.broadcast(v, (64, 64))", "given 32x32, wanted 64x64, or 1 along a dim, at broadcast"),
    ("tile.full((4, 4), 'x')", "given the value 'x', wanted a number, at full"),
    ("tile.full((4, -1), 0)", "given a block size -1, wanted at least 1, at full"),
    ("tile.full(4, 0)", "given the shape 4, wanted a tuple of sizes, at full"),
    ("tile.broadcast(v, 32)", "given the shape 32, wanted a tuple of sizes, at broadcast"),
    (
        "tile.broadcast(1, (4, 4))",
        "given an argument of type int, wanted a block, as in broadcast(block, shape), at broadcast",
    ),
    ("tile.transpose(x)", "given a tensor (x), wanted a block, as in transpose(block), at transpose"),
    (
        "tile.convert_layout(1, wg_map=((1, 1), (4, 4)))",
        "given an argument of type int, wanted a block, as in convert_layout(block, wg_map=...), at convert_layout",
    ),
    (
        "tile.convert_layout(tile.zeros((8, 8)), wg_map=None)",
        "given no wg_map, wanted one, as in convert_layout(block, wg_map=...), at convert_layout",
    ),
    (
        "tile.load_tile(tile.init_tile(x, (0, 0), (8, 8), wg_map=3))",
        "given wg_map=3, wanted two pairs of numbers, (layout, data), at init_tile of x",
    ),
    (
        "tile.update_tile_offset(v, (0, 1))",
        "given a block (v), wanted a tile, as in update_tile_offset(tile, steps), at update_tile_offset",
    ),
    (
        "tile.update_tile_offset(tile.init_tile(x, (0, 0), (8, 8)), (0, 'a'))",
        "given the offset 'a', wanted an integer or a scalar of the kernel, at update_tile_offset",
    ),
    (
        "tile.init_tile(x, (0.5, 0), (8, 8))",
        "given the offset 0.5, wanted an integer or a scalar of the kernel, at init_tile",
    ),
    (
        "tile.init_tile(x, (v, 0), (8, 8))",
        "given the offset v, wanted an integer or a scalar of the kernel, at init_tile",
    ),
    ("tile.init_tile(x, 0, (8, 8))", "given the offsets 0, wanted a tuple of them, at init_tile"),
    (
        "tile.prefetch_tile(3)",
        "given an argument of type int, wanted a tile, as in prefetch_tile(tile), at prefetch_tile",
    ),
    ("tile.gather(v, v)", "given a block (v), wanted a tensor, as in gather(tensor, indices), at gather"),
    ("tile.gather(x, 3)", "given an argument of type int, wanted a block, as in gather(tensor, indices), at gather"),
    (
        "tile.scatter(x, tile.positions((32, 32), 0), 1.0)",
        "given an argument of type float, wanted a block, as in scatter(tensor, indices, values), at scatter",
    ),
    (
        "tile.atomic_rmw('add', 3, x)",
        "given an argument of type int, wanted a block, as in atomic_rmw(kind, block, to), at atomic_rmw",
    ),
    (
        "tile.reduce('sum', v, 'a')",
        "given reduce 'sum' along 'a', wanted one of sum, prod, max, min, and, or along an axis of 32x32",
    ),
    ("tile.positions((4, 4), 'a')", "given the axis 'a', wanted one of 4x4, at positions"),
    ("list(tile.range(0, 4, m))", "given the step at0, wanted an integer, at tile.range"),
)

#: An expression elsewhere, and the answer.
ELSEWHERE = (
    ("tile.load_tile(1)", "given load_tile outside of a kernel, wanted it in a function with @tile.kernel"),
    (
        "tile.kernel()(lambda x: None)",
        "given a lambda, wanted a function with a name, def NAME(a, b, c): ..., at tile.kernel",
    ),
    (
        "gemm(A, A, A)",
        "given arrays for a, b, c, wanted their descriptions, gemm(Tensor(shape, dtype), Tensor(shape, dtype), Tensor(shape, dtype)); arrays go to cg.simulate or cg.load, at gemm",  # noqa: E501
    ),
    (
        "gemm(H, H, A)",
        "given arrays for c, wanted their descriptions, gemm(Tensor(shape, dtype), Tensor(shape, dtype), Tensor(shape, dtype)); arrays go to cg.simulate or cg.load, at gemm",  # noqa: E501
    ),
    ("gemm(H)", "given 1 arguments, wanted the tensors a, b, c, at gemm"),
    ("gemm(H, H, T, 64, 64, 32)", "given 6 arguments, wanted the tensors a, b, c; numbers go by keyword, at gemm"),
    ("gemm(H, H, T, bq=3)", "given 'bq', wanted bm=, bn=, bk=, at gemm"),
    (
        "gemm((64, 64), H, T)",
        "given a of type tuple, wanted a Tensor, gemm(Tensor(shape, dtype), Tensor(shape, dtype), Tensor(shape, dtype)), at gemm",  # noqa: E501
    ),
    (
        "tile.kernel(subgroups=(0, 1))",
        "given subgroups=(0, 1) slots=None acc='', wanted subgroups from 1, slots of 0 to 4 and acc of v or a, at tile.kernel",  # noqa: E501
    ),
    ("tile.kernel(subgroups=4)", "given subgroups=4, wanted their numbers along M and N, (2, 2), at tile.kernel"),
    (
        "tile.kernel(gemm.function)",
        "given tile.kernel without parentheses, wanted @tile.kernel(), or with subgroups=(2, 2)",
    ),
    ("Tensor((32, -64), 'f16')", "given the size -64 of (32, -64), wanted integers from 1, at a tensor"),
    ("Tensor((0, 64), 'f16')", "given the size 0 of (0, 64), wanted integers from 1, at a tensor"),
    ("Tensor(64, 'f16')", "given the shape 64, wanted a tuple of sizes, at a tensor"),
    ("Tensor((64.0, 64), 'f16')", "given the size 64.0 of (64.0, 64), wanted integers from 1, at a tensor"),
    (
        "Tensor((64, 64), np.float16)",
        "given the type <class 'numpy.float16'>, wanted the name of one such as 'f16', at a tensor",
    ),
    ("Tensor((64, 64), 'float16')", "given the type 'float16', wanted one such as f16 or s8, at a tensor"),
    ("Tensor((64, 64), 's4')", "given the type 's4', wanted one of whole bytes, at a tensor"),
    ("cg.Matmul(-1, 64, 64)", "given m=-1, wanted a size, at Matmul(m, k, n)"),
    ("cg.Matmul(1.5, 64, 64)", "given m=1.5, wanted a size, at Matmul(m, k, n)"),
    (
        "cg.build(cg.Matmul(64, 0, 64))",
        "given K of 0, wanted at least 1: sums of nothing are not generated yet",
    ),
    (
        "cg.build(P, config={'tile': '64x64x32'})",
        "given config of type dict, wanted a line such as 'tile=128x128x32 waves=2x2 mma=32x32x8', see docs/config.md",
    ),
    (
        "cg.build(P, config=3)",
        "given config of type int, wanted a line such as 'tile=128x128x32 waves=2x2 mma=32x32x8', see docs/config.md",
    ),
    ("cg.build(gemm(H, H, T))", "given problem of type TileProgram, wanted Conv or Matmul"),
    ("cg.compile(gemm)", "given program of type TileKernel, wanted Build or Kernel or KernelBuilder or TileProgram"),
    (
        "cg.compile(gemm(H, H, T), 'gfx94')",
        f"given target 'gfx94' (did you mean gfx942?), wanted one of {', '.join(names())}",
    ),
    (
        "cg.compile(gemm(H, H, T, bm=512, bn=512), 'gfx942')",
        "given kernel gemm, wanted one whose blocks fit the registers: smaller blocks, or more subgroups; the block of 512x512 f32 at LINE takes 1024 registers of a lane",  # noqa: E501
    ),
    (
        "cg.compile(gemm(H, H, T, bm=256, bn=256, bk=20), 'gfx942')",
        "given kernel gemm, wanted one whose blocks fit the registers: smaller blocks, or more subgroups; the block of 256x256 f32 at LINE takes 256 registers of a lane: tile_mma of 256x20 f16 by 20x256 f16 into f32: no matrix instruction of gfx942 fits, so lanes multiply and add, at LINE",  # noqa: E501
    ),
    ("cg.simulate(CODE, a=A.ravel())", "given arrays a 4096, wanted a 64x64, b 64x64"),
    ("cg.simulate(CODE, a=A.ravel()[:5], b=A.ravel())", "given arrays a 5, b 4096, wanted a 64x64, b 64x64"),
    ("cg.simulate(gemm(H, H, T), a=A)", "given code of type TileProgram, wanted Code"),
)


def answer(code: str) -> str:
    """What is said of a line in a kernel."""
    names: dict[str, Any] = dict(globals())
    exec(compile(KERNEL.format(code), "kernel.py", "exec"), names)
    with pytest.raises(cg.ConvgenError) as refused:
        tile.kernel()(names["kernel"])(T, T)
    return str(refused.value)


@pytest.mark.parametrize(("code", "wanted"), IN_KERNELS)
def test_a_mistake_in_a_kernel_is_told_with_its_line(code: str, wanted: str) -> None:
    said, _, place = answer(code).rpartition(", in kernel.py:")
    assert said == wanted
    assert 5 <= int(place) <= 4 + len(code.splitlines())
    assert "\n" not in said


@pytest.mark.parametrize(("code", "wanted"), ELSEWHERE)
@pytest.mark.filterwarnings("ignore::convgen.driver.SlowProduct")
def test_a_mistake_elsewhere_is_told_in_one_line(code: str, wanted: str) -> None:
    with pytest.raises(cg.ConvgenError) as refused:
        eval(code, globals())
    parts = wanted.split("LINE")
    assert str(refused.value).startswith(parts[0])
    assert all(part in str(refused.value) for part in parts)
    assert "\n" not in str(refused.value)


def test_a_product_by_lanes_is_told_once_at_its_line() -> None:
    """Of K of 20 no matrix instruction of gfx942 is a divisor."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            code = cg.compile(gemm(H, H, T, bm=32, bn=32, bk=20), "gfx942")
    (warning,) = [each for each in caught if each.category is SlowProduct]
    assert warning.filename == __file__
    assert "no matrix instruction of gfx942 fits, so lanes multiply and add" in str(warning.message)
    assert "remark  tile_mma of 32x20 f16 by 20x32 f16 into f32: no matrix instruction" in str(code)
    assert "v_mfma" not in code.asm


def test_a_product_by_lanes_that_is_asked_for_is_not_told() -> None:
    asked = tile.kernel(subgroups=(2, 2), mma="fma")(gemm.function)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code = cg.compile(asked(H, H, T, bm=32, bn=32), "gfx942")
    assert "remark" not in str(code)


def test_a_block_has_the_name_of_its_type() -> None:
    seen = []

    @tile.kernel()
    def look(x: Tensor) -> None:
        seen.append(tile.load_tile(tile.init_tile(x, (0, 0), (32, 32))).dtype)

    look(H)
    assert seen == ["f16"]
