"""Reading a code object: what each kernel takes, where it spends its time, and what holds it up there.

The object is decoded as the simulator decodes it; loops are found in its control flow, so that code of any compiler can
be read. Nothing is executed: trip counts, stalls and bank conflicts are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from convgen.backends.amdgpu.assemble import WANTED, assemble
from convgen.backends.amdgpu.costs import line_of
from convgen.backends.amdgpu.sim import CodeObject, KernelInfo, SimulatorError
from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.tables import FACTS
from convgen.backends.analysis import Analysis, KernelAnalysis, Stretch
from convgen.backends.loops import innermost, natural_loops
from convgen.ir.error import AssemblerError, Unsupported, UserError

_SIMDS = 4
_MOST_WAVES = 8  #: a SIMD holds (CDNA3 ISA, "Wavefront occupancy")
_REGISTERS = 512  #: of both kinds a lane and SIMD, given out in eights
_LDS_GRANULE = {"gfx950": 1280}  #: bytes; 512 elsewhere (LLVM, getLdsDwGranularity)
_TARGET = re.compile(r'^\s*\.amdgcn_target\s+"[^"]*?(gfx\w+)[^"]*"', re.MULTILINE)


def analyze(content: bytes, where: str) -> Analysis:
    """The analysis of a code object, or of assembly text, which is assembled first. `where` names the file in errors.

    Raises UserError for what is neither, Unsupported where a tool is missing.
    """
    code = content if content[:4] == b"\x7fELF" else _assembled(content, where)
    try:
        loaded = CodeObject.load(code)
    except SimulatorError as error:
        raise UserError(f"given {where} that cannot be read: {error}") from None
    if not loaded.kernels:
        raise UserError(f"given {where} without a kernel, wanted at least one")
    name = loaded.arch.name
    return Analysis(name, tuple(_kernel(kernel, name) for kernel in loaded.kernels.values()))


def _assembled(content: bytes, where: str) -> bytes:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise UserError(f"given {where} that is neither a code object nor text") from None
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
        raise Unsupported(f"analysis of assembly text: no assembler found ({WANTED})")
    return code


def _kernel(kernel: KernelInfo, arch: str) -> KernelAnalysis:
    code = _reachable(kernel)
    start = code[0].address
    lines = [line_of(i, i.address - start, arch) for i in code]
    blocks, graph = _blocks(code)
    loops = natural_loops(graph)

    def stretch(body: Sequence[int], is_loop: bool) -> Stretch:
        return Stretch(tuple(lines[i] for block in body for i in blocks[block]), is_loop)

    inner = [stretch(body, True) for body in innermost(loops).values()]
    hot = max(inner, key=lambda s: (s.flop, len(s.lines)), default=stretch(range(len(blocks)), False))
    lds = int(kernel.metadata.get(".group_segment_fixed_size", kernel.descriptor.group_segment))
    threads = int(kernel.metadata.get(".max_flat_workgroup_size", 1024))
    return KernelAnalysis(
        kernel.name,
        _registers(kernel),
        lds,
        code[-1].address + code[-1].size - start,
        threads,
        _waves(kernel.descriptor.vgprs, lds, -(-threads // 64), arch),
        len(loops),
        hot,
    )


def _registers(kernel: KernelInfo) -> dict[str, int]:
    """By class, from the metadata where there is some, else as allocated."""
    total = int(kernel.metadata.get(".vgpr_count", kernel.descriptor.vgprs))
    agpr = int(kernel.metadata.get(".agpr_count", 0))
    vgpr = min(kernel.descriptor.accum_offset, total) if agpr else total
    return {"vgpr": vgpr, "agpr": agpr, "sgpr": int(kernel.metadata.get(".sgpr_count", kernel.descriptor.sgprs))}


def _waves(vgprs: int, lds: int, group_waves: int, arch: str) -> dict[str, int]:
    """Waves that a SIMD holds as each resource allows; whole workgroups share a unit's local memory."""
    granule = _LDS_GRANULE.get(arch, 512)
    taken = -(-lds // granule) * granule
    by_lds = _MOST_WAVES
    if taken:
        by_lds = min(_MOST_WAVES, FACTS[arch].shared_bytes // taken * group_waves // _SIMDS)
    return {"registers": min(_MOST_WAVES, _REGISTERS // (-(-vgprs // 8) * 8)), "lds": by_lds}


# ---------------------------------------------------------------- control flow


def _follows(i: Instruction) -> tuple[bool, int | None]:
    """Whether the next instruction may follow, and the address of a branch's target."""
    if i.name == "s_branch":
        return False, i.address + 4 + 4 * i.simm16
    if i.name.startswith("s_cbranch"):
        return True, i.address + 4 + 4 * i.simm16
    return i.name not in ("s_endpgm", "s_setpc_b64"), None


def _reachable(kernel: KernelInfo) -> list[Instruction]:
    """The instructions that the kernel's entry reaches, by address."""
    at = {i.address: n for n, i in enumerate(kernel.instructions)}
    seen: set[int] = set()
    pending = [kernel.entry]
    while pending:
        n = pending.pop()
        if n in seen or n >= len(kernel.instructions):
            continue
        seen.add(n)
        falls, target = _follows(kernel.instructions[n])
        pending += [n + 1] if falls else []
        pending += [at[target]] if target in at else []
    return [kernel.instructions[n] for n in sorted(seen)]


def _blocks(code: Sequence[Instruction]) -> tuple[list[range], list[list[int]]]:
    """Basic blocks as ranges of indices, and the blocks that may follow each."""
    index = {i.address: n for n, i in enumerate(code)}
    leaders = {0}
    for n, i in enumerate(code):
        falls, target = _follows(i)
        leaders |= {index[target]} if target in index else set()
        gap = n + 1 < len(code) and code[n + 1].address != i.address + i.size
        leaders |= {n + 1} if n + 1 < len(code) and (not falls or target is not None or gap) else set()
    starts = sorted(leaders)
    blocks = [range(a, b) for a, b in zip(starts, [*starts[1:], len(code)])]
    number = {block[0]: n for n, block in enumerate(blocks)}
    graph = []
    for n, block in enumerate(blocks):
        falls, target = _follows(code[block[-1]])
        following = [n + 1] if falls and n + 1 < len(blocks) else []
        graph.append(following + ([number[index[target]]] if target in index else []))
    return blocks, graph
