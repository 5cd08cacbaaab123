"""Assembling small kernels and running them on the simulator."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.amdgpu.assemble import assemble_module
from convgen.backends.amdgpu.sim import simulate
from convgen.backends.simulation import KernelArg, LaunchRequest, SimReport
from convgen.backends.toolchain import LLVM_OBJDUMP

FOREIGN = Path(__file__).parents[3] / "data" / "foreign"
Array = npt.NDArray[Any]


@attrs.frozen
class Source:
    """A kernel's assembly and its registers: s[0:1] is the kernarg pointer, s2 the workgroup, v0 the thread."""

    body: str
    vgprs: int = 64
    agprs: int = 0
    sgprs: int = 64
    lds: int = 0
    kernarg: int = 64
    user_sgprs: int = 2
    directives: str = ""


def assembly(arch: str, kernels: Mapping[str, Source]) -> str:
    """The whole file for some kernels."""
    parts = [f'.amdgcn_target "amdgcn-amd-amdhsa--{arch}"', ".amdhsa_code_object_version 5", ".text"]
    for name, source in kernels.items():
        parts.append(f".globl {name}\n.p2align 8\n.type {name},@function\n{name}:\n{source.body}\ns_endpgm")
        parts.append(f".L{name}.end:\n.size {name}, .L{name}.end - {name}")
    parts.append('.section .rodata,"a",@progbits')
    for name, source in kernels.items():
        accum = (source.vgprs + 3) // 4 * 4
        parts.append(
            f""".p2align 6
.amdhsa_kernel {name}
  .amdhsa_group_segment_fixed_size {source.lds}
  .amdhsa_kernarg_size {source.kernarg}
  .amdhsa_user_sgpr_count {source.user_sgprs}
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_next_free_vgpr {accum + source.agprs}
  .amdhsa_accum_offset {accum}
  .amdhsa_next_free_sgpr {source.sgprs}
  {source.directives}
.end_amdhsa_kernel"""
        )
    return "\n".join(parts) + "\n"


_ASSEMBLED: dict[str, bytes] = {}


def assemble(arch: str, kernels: Mapping[str, Source]) -> bytes:
    """A linked code object, made in this process if LLVM's library is installed; equal sources are assembled once."""
    if LLVM_OBJDUMP.find() is None:
        pytest.skip(f"{LLVM_OBJDUMP.name} is not installed")
    text = assembly(arch, kernels)
    key = hashlib.sha256((arch + text).encode()).hexdigest()
    if key not in _ASSEMBLED:
        made = assemble_module(text, arch)
        assert made is not None
        _ASSEMBLED[key] = made
    return _ASSEMBLED[key]


_PREPARED: dict[tuple[str, Source], tuple[bytes, str]] = {}


def prepare(arch: str, sources: Iterable[Source]) -> None:
    """Assemble kernels for `run` into one code object: assembling and decoding takes as long for one as for all."""
    kernels = {f"k{n}": source for n, source in enumerate(sources)}
    code = assemble(arch, kernels)
    _PREPARED.update({(arch, source): (code, name) for name, source in kernels.items()})


def launch(
    kernel: str, arguments: Sequence[str | int], grid: int = 1, workgroup: int = 64, lds: int = 0
) -> LaunchRequest:
    """A launch whose arguments are buffers by name (8 bytes) or i32 numbers, in order, naturally aligned."""
    args, offset = [], 0
    for argument in arguments:
        size = 8 if isinstance(argument, str) else 4
        offset = (offset + size - 1) // size * size
        value = argument if isinstance(argument, str) else struct.pack("<i", argument)
        args.append(KernelArg(offset, size, value))
        offset += size
    return LaunchRequest(kernel, (grid, 1, 1), (workgroup, 1, 1), tuple(args), shared_bytes=lds)


def run(
    arch: str, source: Source | str, buffers: Mapping[str, Array], *, grid: int = 1, workgroup: int = 64, **options: Any
) -> SimReport:
    """Assemble one kernel and run it; its arguments are the buffers in order, which are changed in place."""
    made = source if isinstance(source, Source) else Source(source)
    code, name = _PREPARED.get((arch, made)) or (assemble(arch, {"k": made}), "k")
    raw = {buffer: data.view(np.uint8).reshape(-1) for buffer, data in buffers.items()}
    return simulate(code, [launch(name, list(buffers), grid, workgroup)], raw, **options)


class Harness:
    """What tests use, as one fixture: pytest's importlib mode leaves no other way to share functions."""

    Source = Source
    assemble = staticmethod(assemble)
    prepare = staticmethod(prepare)
    launch = staticmethod(launch)
    run = staticmethod(run)
    foreign = FOREIGN

    @staticmethod
    def kinds(report: SimReport) -> list[str]:
        return sorted({finding.kind for finding in report.findings})


@pytest.fixture(scope="session")
def sim() -> type[Harness]:
    return Harness
