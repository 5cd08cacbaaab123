"""Analyze a code object: resources of each kernel, its hot code, and the units that limit it.

The simulator's decoder reads the object; loops come from the control flow, so that code of any compiler can be read.
Nothing is executed: trip counts, stalls and bank conflicts are unknown.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from functools import lru_cache

from convgen.backends import reading
from convgen.backends.amdgpu.assemble import assemble, assembler_package
from convgen.backends.amdgpu.costs import line_of
from convgen.backends.amdgpu.family import FAMILY
from convgen.backends.amdgpu.sim import CodeObject, KernelInfo
from convgen.backends.amdgpu.sim.decode import Instruction, follows
from convgen.backends.amdgpu.tables import FACTS, WAVE
from convgen.backends.analysis import Analysis, KernelAnalysis
from convgen.backends.family import check_rows
from convgen.backends.hot_code import basic_blocks, hottest, hottest_blocks, reachable
from convgen.ir.error import AssemblerError, Unsupported, UserError

#: bytes; LDS allocation unit (LLVM, getLdsDwGranularity)
_LDS_GRANULE = {"gfx90a": 512, "gfx942": 512, "gfx950": 1280}
check_rows(FAMILY, {"analyze.py: _LDS_GRANULE": _LDS_GRANULE})
_TARGET = re.compile(r'^\s*\.amdgcn_target\s+"[^"]*?(gfx\w+)[^"]*"', re.MULTILINE)


def analyze(content: bytes, where: str) -> Analysis:
    """Return the analysis of a code object, or of assembly text, which is assembled first.

    `where` names the file in errors. Raises UserError for content that is neither, Unsupported if a tool is missing.
    """
    with readable(content, where) as (loaded, _):
        name = loaded.arch.name
        return Analysis(name, FAMILY.terms, tuple(_kernel(loaded, kernel) for kernel in loaded.kernels.values()))


def readable(content: bytes, where: str) -> AbstractContextManager[tuple[CodeObject, bytes]]:
    """Return a context with a loaded code object that has a kernel, and its bytes.

    Errors in reading it, also inside the context, become UserError.
    """
    return reading.readable(content, where, CodeObject.load, _assembled)


def _assembled(text: str, where: str) -> bytes:
    target = _TARGET.search(text)
    if target is None or target[1] not in FACTS:
        given = "no .amdgcn_target" if target is None else f".amdgcn_target of {target[1]}"
        raise UserError(f"given {given}, wanted one of {', '.join(FACTS)}, in {where}")
    try:
        code = assemble(text, target[1])
    except AssemblerError as error:
        reason = re.sub(r"^.*?\.s:(\d+):(\d+): error: ", r"line \1, column \2: ", str(error))
        raise UserError(f"given {where} that does not assemble: {reason}") from None
    if code is None:
        raise Unsupported(f"analysis of assembly text: no assembler found ({assembler_package(target[1])})")
    return code


@lru_cache(maxsize=16)
def hot_code(kernel: KernelInfo, arch: str) -> tuple[list[Instruction], list[Instruction], bool]:
    """Return a kernel's reachable instructions, its hot code, and whether that is a loop."""
    code = reachable(kernel.instructions, kernel.entry, follows)
    blocks, is_loop = hottest_blocks([line_of(i, 0, arch) for i in code], *basic_blocks(code, follows))
    return code, [code[n] for block in blocks for n in block], is_loop


def _kernel(loaded: CodeObject, kernel: KernelInfo) -> KernelAnalysis:
    arch = loaded.arch.name
    code = reachable(kernel.instructions, kernel.entry, follows)
    start = code[0].address
    lines = [line_of(i, i.address - start, arch) for i in code]
    loops, hot = hottest(lines, *basic_blocks(code, follows))
    sources = ((i.address - start, loaded.line(i.address)) for i in code)
    return KernelAnalysis(
        kernel.name,
        _registers(kernel),
        shared_bytes(kernel),
        code[-1].address + code[-1].size - start,
        most_threads(kernel),
        waves_held(kernel, arch),
        loops,
        hot,
        tuple(lines),
        sources={offset: source for offset, source in sources if source},
    )


def _registers(kernel: KernelInfo) -> dict[str, int]:
    """Return the registers by class, from the metadata if there is some, else from the descriptor."""
    total = int(kernel.metadata.get(".vgpr_count", kernel.descriptor.vgprs))
    agpr = int(kernel.metadata.get(".agpr_count", 0))
    vgpr = min(kernel.descriptor.accum_offset, total) if agpr else total
    return {"vgpr": vgpr, "agpr": agpr, "sgpr": int(kernel.metadata.get(".sgpr_count", kernel.descriptor.sgprs))}


def shared_bytes(kernel: KernelInfo) -> int:
    """Return the LDS bytes of a workgroup."""
    return int(kernel.metadata.get(".group_segment_fixed_size", kernel.descriptor.group_segment))


def most_threads(kernel: KernelInfo) -> int:
    """Return the largest number of work-items of a workgroup."""
    return int(kernel.metadata.get(".max_flat_workgroup_size", 1024))


def waves_held(kernel: KernelInfo, arch: str) -> dict[str, int]:
    """Return the waves that a SIMD holds, by limiting resource; whole workgroups share a CU's LDS."""
    waves, core = -(-most_threads(kernel) // WAVE), FACTS[arch].core
    groups = groups_held(kernel, arch, waves, shared_bytes(kernel))
    return {
        "registers": _by_registers(kernel, arch),
        "lds": min(core.simd_subgroups, groups["lds"] * waves // core.simds),
    }


def groups_held(kernel: KernelInfo, arch: str, waves: int, lds: int) -> dict[str, int]:
    """Return the workgroups of `waves` waves and `lds` bytes that a CU holds, by limiting resource."""
    most = FACTS[arch].core.simd_subgroups * FACTS[arch].core.simds // waves
    granule = _LDS_GRANULE[arch]
    taken = -(-lds // granule) * granule
    by_lds = min(most, FACTS[arch].shared_bytes // taken) if taken else most
    return {"registers": _by_registers(kernel, arch) * FACTS[arch].core.simds // waves, "lds": by_lds}


def _by_registers(kernel: KernelInfo, arch: str) -> int:
    """Return the waves that the registers of a SIMD hold."""
    core = FACTS[arch].core
    each = -(-kernel.descriptor.vgprs // core.register_granule) * core.register_granule
    return min(core.simd_subgroups, core.simd_registers // each)
