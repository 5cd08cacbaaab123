"""Kernels on the interpreter, compared with the numpy reference bit for bit."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
import numpy.typing as npt

from convgen.ir.facts import TargetFacts
from convgen.ir.interp import interpret
from convgen.ir.layout.memory import Global
from convgen.ir.program import Kernel
from convgen.kernels import launches
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.conv import Conv
from convgen.run import reference
from convgen.run.abi import zeroed_buffers
from convgen.run.reference import Array
from convgen.run.verdict import FOREIGN, SENTINEL


def tile_kernels(problem: Conv, config: Config, facts: TargetFacts) -> tuple[Kernel, ...]:
    """What the pipeline starts from, in the order of the launches."""
    program, tiles = launches.build(make_plan(problem, config, facts))
    for launch in tiles.launches:
        _SCALARS[launch.kernel.name] = {a.name: a.value for a in launch.mapping.arguments}
    return program.kernels


_SCALARS: dict[str, dict[str, int]] = {}  #: by kernel, the values of its scalar arguments


def tile_kernel(problem: Conv, config: Config, facts: TargetFacts) -> Kernel:
    """The one kernel of a problem that takes one."""
    (kernel,) = tile_kernels(problem, config, facts)
    return kernel


@cache
def _case(problem: Conv) -> tuple[dict[str, Array], dict[str, Array]]:
    inputs = reference.fill(problem)
    return inputs, {t.name: reference.whole(problem, inputs, t.name) for t in problem.outputs}


def _memory(problem: Conv, kernels: Iterable[Kernel], values: dict[str, Array]) -> dict[str, npt.NDArray[np.uint8]]:
    """Every buffer of the kernels: those of known values packed, gaps not a number; sentinels in the others."""
    buffers = {p.name: p.bytes for k in kernels for p in k.params if isinstance(p, Global)}
    memory = {name: np.full(size, SENTINEL, np.uint8) for name, size in buffers.items()}
    memory |= {p.name: np.zeros(p.bytes, np.uint8) for k in kernels for p in zeroed_buffers(k)}
    layouts = {t.name: t.layout for t in problem.tensors}
    return memory | {name: reference.pack(layouts[name], value, FOREIGN) for name, value in values.items()}


def assert_right(problem: Conv, *kernels: Kernel) -> None:
    """The kernels, at whatever level, write exactly what the reference says and nothing else."""
    inputs, expected = _case(problem)
    memory = _memory(problem, kernels, inputs)
    for kernel in kernels:
        interpret(kernel, memory, _SCALARS.get(kernel.name))
    for t in problem.inputs:
        assert np.array_equal(memory[t.name], reference.pack(t.layout, inputs[t.name], FOREIGN)), f"{t.name} changed"
    for t in problem.outputs:
        assert np.array_equal(memory[t.name], reference.pack(t.layout, expected[t.name], SENTINEL)), (
            f"{t.name} is wrong"
        )
