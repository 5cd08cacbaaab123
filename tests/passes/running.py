"""Kernels on the interpreter, compared with the numpy reference bit for bit."""

from __future__ import annotations

from functools import cache

import numpy as np

from convgen import reference
from convgen.config import Config
from convgen.conv import build_program
from convgen.ir.facts import TargetFacts
from convgen.ir.interp import interpret
from convgen.ir.program import Kernel
from convgen.plan import make_plan
from convgen.problem import Conv
from convgen.reference import Array
from convgen.verify import SENTINEL


def tile_kernel(problem: Conv, config: Config, facts: TargetFacts) -> Kernel:
    """What the pipeline starts from."""
    (kernel,) = build_program(make_plan(problem, config, facts)).kernels
    return kernel


@cache
def _case(problem: Conv) -> tuple[dict[str, Array], Array]:
    inputs = reference.fill(problem)
    return inputs, reference.whole(problem, inputs, "dst")


def assert_right(problem: Conv, kernel: Kernel) -> None:
    """The kernel, at whatever level, writes exactly what the reference says and nothing else."""
    inputs, expected = _case(problem)
    memory = {
        "src": reference.pack(problem.src_layout, inputs["src"]),
        "wei": reference.pack(problem.wei_layout, inputs["wei"]),
        "dst": np.full(expected.nbytes, SENTINEL, np.uint8),
    }
    wanted = memory | {"dst": reference.pack(problem.dst_layout, expected)}
    interpret(kernel, memory)
    for name, data in memory.items():
        assert np.array_equal(data, wanted[name]), f"{name} is wrong"
