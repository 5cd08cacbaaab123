"""Sums of random floats by `wgmma`: whole products whose every bit an H200 has given (tests/data/silicon/sums.npz)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from convgen import driver
from convgen.problem.matmul import parse_problem
from convgen.run.code import Code

Array = npt.NDArray[Any]
RECORDED = Path(__file__).parents[2] / "tests" / "data" / "silicon" / "sums.npz"
TARGET = "sm_90a"
_SHAPE = 64, 256, 64  #: M, K, N of each product

#: name -> (types, tags, config, type of the inputs, greatest exponent of two that scales an element up or down)
CASES: Mapping[str, tuple[str, str, str, Any, int]] = {
    "f16": ("f16:f16:f32", "--wtag=ba", "tile=64x64x64 waves=1x4 mma=64x64x16 slots=4 copy=direct", np.float16, 0),
    "f16, wide range": ("f16:f16:f32", "--wtag=ab", "tile=64x64x32 waves=1x4 mma=64x64x16 slots=2", np.float16, 9),
    "bf16": ("bf16:bf16:f32", "--wtag=ab", "tile=64x64x64 waves=1x4 mma=64x64x16 slots=3", ml_dtypes.bfloat16, 0),
    "bf16, wide range": (
        "bf16:bf16:f32",
        "--stag=ba --wtag=ba",
        "tile=64x32x64 waves=1x4 mma=32x64x16 slots=2 copy=direct",
        ml_dtypes.bfloat16,
        60,
    ),
    "tf32": (
        "f32 --attr-fpmath=tf32",
        "--wtag=ba",
        "tile=64x64x32 waves=1x4 mma=64x64x8 slots=4 copy=direct",
        np.float32,
        20,
    ),
}


def code_of(name: str) -> Code:
    """Return the code of a case."""
    types, tags, config, _, _ = CASES[name]
    m, k, n = _SHAPE
    return driver.compile(driver.build(parse_problem(f"--dt={types} {tags} {m}x{k}:{k}x{n}"), TARGET, config=config))


def inputs(name: str) -> dict[str, Array]:
    """Return the inputs of a case: normal numbers, each scaled by a random power of two."""
    *_, elem, most = CASES[name]
    rng = np.random.default_rng(sorted(CASES).index(name))
    m, k, n = _SHAPE
    shapes = {"src": (m, k), "wei": (k, n)}
    return {
        tensor: np.ldexp(rng.standard_normal(shape), rng.integers(-most, most + 1, shape)).astype(elem)
        for tensor, shape in shapes.items()
    }


def results(run: Callable[[Code, dict[str, Array]], Array]) -> dict[str, Array]:
    """Return the bits of all sums by case; `run` executes code on inputs."""
    return {name: np.ascontiguousarray(run(code_of(name), inputs(name))).view(np.uint32) for name in CASES}


def sums(*, record: bool) -> dict[str, Any]:
    """Return which cases give other bits on this GPU than recorded ones; or `record` them."""
    import convgen as cg

    def run(code: Code, given: dict[str, Array]) -> Array:
        out = np.empty((_SHAPE[0], _SHAPE[2]), np.float32)
        cg.load(code, device="cuda:0")(**given, dst=out)
        return out

    found = results(run)
    if record:
        np.savez_compressed(RECORDED, allow_pickle=False, **found)
    known = np.load(RECORDED)
    return {"cases": len(found), "differ": sorted(name for name in found if (found[name] != known[name]).any())}
