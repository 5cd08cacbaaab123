"""Problems whose sizes are known at launch only: compiled once, right for all that keep the promise."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen.ir.error import Unsupported, UserError
from convgen.problem.matmul import Problem, parse_problem
from convgen.run import reference
from tests.strategies import always

pytestmark = pytest.mark.in_turn(6)

TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpc", "xehpg", "sm_90")
OF_EACH_VENDOR = ("gfx942", "xehpc")  #: all cases run there always; on the others those that have the most to do
PRODUCTS = (
    ("--dt=f16 --runtime_dims_masks=1:0 96x64:64x80", "--dt=f16 {m}x64:64x80", {"m": (96, 16, 32)}),
    ("--dt=bf16:bf16:f32 --runtime_dims_masks=3:3 100x99:99x70", "--dt=bf16:bf16:f32 {m}x{k}:{k}x{n}",
     {"m": (100, 4), "n": (70, 2), "k": (65, 1)}),
    ("--dt=s8:s8:s32 --stag=ba --wtag=ab --runtime_dims_masks=2:1 64x160:160x48",
     "--dt=s8:s8:s32 --stag=ba --wtag=ab 64x{k}:{k}x48", {"k": (160, 16, 96)}),
    ("--dt=f16 --runtime_dims_masks=3:5 6x33x40:6x40x50", "--dt=f16 {b0}x{m}x40:{b0}x40x{n}",
     {"b0": (6, 1, 4), "m": (33, 3), "n": (50, 48)}),
    ("--dt=f16 --dtag=ba --runtime_dims_masks=0:2 64x64:64x80", "--dt=f16 --dtag=ba 64x64:64x{n}", {"n": (16, 80)}),
    ("--dt=bf16 --runtime_dims_masks=0:2 70x31:31x130", "--dt=bf16 70x31:31x{n}", {"n": (2, 40, 130)}),
    ("--dt=u8:u8:s32 --attr-zero-points=src:common:3+wei:per_oc --runtime_dims_masks=3:3 48x80:80x64",
     "--dt=u8:u8:s32 --attr-zero-points=src:common:3+wei:per_oc {m}x{k}:{k}x{n}",
     {"m": (16, 48), "n": (16, 64), "k": (32, 80, 16)}),
)  # fmt: skip
CONVOLUTIONS = (
    ("FWD_B", "ic32ih9oc48oh9kh3ph1", ""),
    ("FWD_D", "ic3ih12oc32oh6kh7sh2ph3", " --stag=abcd --dtag=abcd"),
    ("FWD_D", "ic16ih9oc32oh9kh1", " --stag=cdba"),
    ("BWD_D", "ic32ih9oc32oh9kh3ph1", ""),
    ("BWD_W", "ic32ih9oc32oh9kh3ph1", ""),
)


def assert_right(code: Any, problem: Problem, sizes: dict[str, int]) -> None:
    inputs = {name: np.asarray(tensor) for name, tensor in reference.fills(problem, 1).items()}
    found = cg.simulate(code, **sizes, **inputs)
    (output,) = problem.outputs
    wanted = reference.output_shape(problem, output.name)
    assert found.shape == output.dims
    assert np.array_equal(found, expected(problem)), (problem, wanted)


@cache
def expected(problem: Problem) -> Any:
    """What the same problem gives whose sizes are numbers, which other tests compare with the reference."""
    inputs = {name: np.asarray(tensor) for name, tensor in reference.fills(problem, 1).items()}
    return cg.simulate(cg.compile(cg.build(problem, "gfx942")), **inputs)


@pytest.mark.parametrize(
    ("line", "smaller", "values", "target"),
    always(
        [(*case, target) for case, target in product(PRODUCTS, TARGETS)],
        lambda _, row: row[-1] in OF_EACH_VENDOR or row[:-1] == PRODUCTS[1],
    ),
)
def test_products(line: str, smaller: str, values: dict[str, tuple[int, ...]], target: str) -> None:
    code = cg.compile(cg.build(parse_problem(line), target))
    for n in range(max(map(len, values.values()))):
        sizes = {name: of[n % len(of)] for name, of in values.items()}
        assert_right(code, parse_problem(smaller.format(**sizes)), sizes)


@pytest.mark.parametrize(
    ("direction", "line", "tags", "target"),
    always(
        [(*case, target) for case, target in product(CONVOLUTIONS, TARGETS)],
        lambda _, row: row[-1] in OF_EACH_VENDOR or row[0] in ("FWD_B", "BWD_W"),
    ),
)
def test_minibatches(direction: str, line: str, tags: str, target: str) -> None:
    head = f"--dir={direction} --dt=f16{tags}"
    code = cg.compile(cg.build(parse_problem(f"{head} --runtime_dims_masks=1 mb5{line}"), target))
    for count in (1, 5):
        assert_right(code, parse_problem(f"{head} mb{count}{line}"), {"mb": count})


def test_the_problem_prints_what_varies() -> None:
    problem = parse_problem("--dt=f16 --runtime_dims_masks=1:02 96x64:64x80")
    assert str(problem) == "--dt=f16 --runtime_dims_masks=1:2 96x64:64x80"
    assert parse_problem(str(problem)) == problem
    assert problem.runtime == ("m", "n")


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ("--dt=f16 --runtime_dims_masks=4:0 8x8:8x8", Unsupported, "given runtime_dims_masks 4, wanted none"),
        ("--dt=f16 --runtime_dims_masks=2 mb2ic8ih4oc8oh4kh1", Unsupported, "given runtime_dims_masks 2"),
        ("--dt=f16 --runtime_dims_masks=1 --dir=BWD_WB mb2ic8ih4oc8oh4kh1", Unsupported, "no gradient of a bias"),
        ("--dt=f16 --runtime_dims_masks=1 --dtag=cdba mb2ic8ih4oc8oh4kh1", Unsupported, "images outermost"),
        ("--dt=f16 --runtime_dims_masks=1 --strides=99x1:: 8x8:8x8", Unsupported, "without blocks or gaps"),
        ("--dt=bf16:f32:f16 --runtime_dims_masks=1:3 --dtag=Ba16b 7x1:1x31", Unsupported, "without blocks or gaps"),
    ],
)
def test_what_is_refused(line: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        cg.build(parse_problem(line), "gfx942")


def test_orders_and_slices_want_numbers() -> None:
    problem = parse_problem("--dt=f16 --runtime_dims_masks=1:0 64x64:64x64")
    for config in ("map=group:2m", "slices=2"):
        with pytest.raises(UserError, match="sizes are known at launch"):
            cg.build(problem, "gfx942", f"tile=32x32x32 waves=1x1 mma=32x32x8 slots=2 {config}")
