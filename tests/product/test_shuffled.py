"""Weights in AITER's shuffled order, with each form of scale that its tables have, against plain indexing."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen.problem import aiter
from convgen.problem.matmul import Matmul
from convgen.run import reference
from tests.strategies import always

pytestmark = pytest.mark.in_turn(2)

TARGETS = ("gfx942", "gfx950", "xehpc", "sm_80", "sm_90a")
HEAD = "gfx,M,N,K,q_dtype_w"
#: name of a table -> rows of x and of K, and of w and of K, that share a scale; 0: all of K
TABLES = {
    "a8w8_bpreshuffle_tuned_gemm.csv": ((1, 0), (1, 0)),
    "a8w8_blockscale_bpreshuffle_tuned_gemm.csv": ((1, 128), (128, 128)),
    "a8w8_blockscale_tuned_gemm.csv": ((1, 128), (128, 128)),
    "a8w8_tuned_gemm.csv": ((1, 0), (1, 0)),
}
TYPES = ("torch.float8_e4m3fn", "torch.float8_e4m3fnuz", "torch.int8")

Floats = npt.NDArray[np.float64]


def requested(name: str, dtype: str, m: int, n: int, k: int) -> Matmul:
    """Return the product of a row of a table."""
    (row,) = aiter.rows(f"{HEAD}\ngfx942,{m},{n},{k},{dtype}\n", name)
    return Matmul.of(row.descriptor, row.knobs)


def drawn(problem: Matmul, seed: int) -> dict[str, Any]:
    """Integers, and powers of two for scales, so that every sum is exact, and every result in bf16, too."""
    rng = np.random.default_rng(seed)
    return {
        spec.name: rng.choice((0.5, 1.0, 2.0) if "scales" in spec.name else (-1, 0, 0, 1), spec.dims).astype(
            reference.numpy_type(spec.dtype)
        )
        for spec in problem.inputs
    }


def spread(scales: Any, shape: tuple[int, ...], rows: int, columns: int) -> Floats:
    """Return element [i // rows, j // columns] for each i, j of a matrix."""
    i, j = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    spread: Floats = scales.astype(np.float64)[i // (rows or shape[0]), j // (columns or shape[1])]
    return spread


def expected(name: str, arrays: dict[str, Any]) -> Floats:
    """Return the product of the scaled factors by plain indexing."""
    (x_rows, x_depth), (w_rows, w_depth) = TABLES[name]
    x, w = arrays["src"].astype(np.float64), arrays["wei"].astype(np.float64)
    x = x * spread(arrays["src_scales"], x.shape, x_rows, x_depth)
    right: Floats = x @ (w * spread(arrays["wei_scales"], w.shape, w_depth, w_rows))
    return right


@pytest.mark.parametrize(("target", "seed"), always(
    [(target, seed) for seed in range(40) for target in TARGETS], lambda n, _: n % 17 == 0
))  # fmt: skip
def test_random_rows_of_tables(target: str, seed: int) -> None:
    rng = random.Random(seed)
    name, dtype = rng.choice(list(TABLES)), rng.choice(TYPES)
    m, n, k = rng.choice((1, 3, 16, 33, 70)), 16 * rng.randint(1, 14), 32 * rng.randint(1, 14)
    problem = requested(name, dtype, m, n, k)
    assert ("BA16b16a" in problem.wtag) is ("bpreshuffle" in name)
    arrays = drawn(problem, seed)
    got = cg.simulate(cg.compile(cg.build(problem, target)), **arrays).astype(np.float64)
    right = expected(name, arrays)
    assert np.array_equal(got, right.astype(reference.numpy_type("bf16")).astype(np.float64))
    assert np.abs(right).max() > 0


@pytest.mark.parametrize("target", TARGETS)
def test_infinite_scales_and_nans_stay_in_their_rows_and_blocks(target: str) -> None:
    name = "a8w8_blockscale_bpreshuffle_tuned_gemm.csv"
    problem = requested(name, TYPES[0], 20, 144, 160)
    arrays = drawn(problem, 1)
    arrays["src"][3, 5] = np.nan
    arrays["src_scales"][7, 1] = np.inf
    arrays["wei_scales"][1, 1] = np.inf
    with np.errstate(invalid="ignore"):
        right = expected(name, arrays).astype(reference.numpy_type("bf16")).astype(np.float64)
    got = cg.simulate(cg.compile(cg.build(problem, target)), **arrays).astype(np.float64)
    # Where an infinite scale meets the sum of a block, not its zeros, the sum is infinite instead of NaN.
    assert np.array_equal(np.isfinite(got), np.isfinite(right))
    assert np.array_equal(got[np.isfinite(right)], right[np.isfinite(right)])
    assert np.isnan(got[3]).all()
    assert np.isfinite(right).sum() > 1000
