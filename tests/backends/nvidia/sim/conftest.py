"""Fixtures of the PTX simulator's tests: run a kernel on arrays."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.nvidia.sim import signatures, simulate
from convgen.backends.simulation import KernelArg, LaunchRequest, SimReport
from convgen.ir.layout.tensor_map import TensorMap

Array = npt.NDArray[Any]
Triple = tuple[int, int, int]


def run_kernel(
    ptx: str | bytes,
    *values: Any,
    kernel: str | None = None,
    grid: Triple = (1, 1, 1),
    block: Triple = (32, 1, 1),
    shared: int = 0,
    undefined: Collection[int] = (),
    buffers: Mapping[str, Array] | None = None,
    **options: Any,
) -> SimReport:
    """Run a kernel on arrays, changed in place, scalars and tensor maps.

    `undefined` numbers arguments that start undefined; `buffers` are those that only tensor maps name.
    """
    text = ptx.encode() if isinstance(ptx, str) else ptx
    known = signatures(text)
    signature = known[kernel or next(iter(known))]
    arguments = []
    named = {name: buffer.reshape(-1).view(np.uint8) for name, buffer in (buffers or {}).items()}
    for number, (value, parameter) in enumerate(zip(values, signature.parameters, strict=True)):
        given: str | bytes | TensorMap
        if isinstance(value, np.ndarray):
            given = f"p{number}"
            named[given] = value.reshape(-1).view(np.uint8)
        elif isinstance(value, TensorMap):
            given = value
        elif isinstance(value, float):
            given = struct.pack("<f" if parameter.size == 4 else "<d", value)
        else:
            given = int(value).to_bytes(parameter.size, "little", signed=value < 0)
        arguments.append(KernelArg(parameter.offset, parameter.size, given))
    request = LaunchRequest(signature.kernel, grid, block, tuple(arguments), signature.shared_bytes + shared)
    return simulate(text, [request], named, uninitialised=[f"p{number}" for number in undefined], **options)


@pytest.fixture(scope="session")
def run() -> Callable[..., SimReport]:
    """Return the function that runs a kernel of PTX on arrays."""
    return run_kernel


def kernel_text(body: str, parameters: int, directives: str = "", module: str = "") -> str:
    """Return PTX of a kernel `k` with pointers p0, p1, .. as parameters and registers of all types."""
    declared = ", ".join(f".param .u64 p{i}" for i in range(parameters))
    loads = "\n".join(f"ld.param.u64 %a{i}, [p{i}]; cvta.to.global.u64 %a{i}, %a{i};" for i in range(parameters))
    return f"""
.version 8.6
.target sm_90
.address_size 64
{module}
.visible .entry k({declared}) {directives}
{{
    .reg .pred %p<16>; .reg .b16 %h<64>; .reg .b32 %r<96>; .reg .b64 %rd<64>; .reg .b64 %a<8>;
    .reg .f32 %f<64>; .reg .f64 %d<32>;
    {loads}
    mov.u32 %r0, %tid.x;
    {body}
    ret;
}}
"""


@pytest.fixture(scope="session")
def text() -> Callable[..., str]:
    """Return the function that wraps statements into a kernel."""
    return kernel_text
