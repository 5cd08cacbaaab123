"""Analyze PTX: counts of instructions by unit, bytes moved, the hot loop, and what ptxas says of registers.

The simulator's reader reads the text; loops come from the control flow, so that text of any compiler can be read.
Registers of PTX are virtual: those of a kernel, and what an SM holds of it, are known where ptxas is found. Machine
code (SASS) is not read.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from convgen.backends import reading
from convgen.backends.analysis import Analysis, KernelAnalysis
from convgen.backends.hot_code import basic_blocks, hottest, reachable
from convgen.backends.nvidia.assemble import compiled
from convgen.backends.nvidia.costs import facts_of, line_of
from convgen.backends.nvidia.family import FAMILY
from convgen.backends.nvidia.sim.launch import named
from convgen.backends.nvidia.sim.ptx_reader import parse
from convgen.backends.nvidia.sim.ptx_text import Instruction, Kernel, Module, Name
from convgen.backends.nvidia.tables import FACTS, LANES
from convgen.ir.error import AssemblerError, Unsupported, UserError
from convgen.ir.facts import TargetFacts
from convgen.ir.record import evolve

_SM_REGISTERS = 1 << 16  #: registers of 32 bits of an SM (CUDA C++ Programming Guide, "Compute Capabilities")
_REGISTER_UNIT = 256  #: registers that a warp gets at a time
RESERVED = 1 << 10  #: bytes of shared memory that the system takes of each workgroup's, and beside the largest one
_MOST_WORKGROUPS = 32  #: of an SM (CUDA C++ Programming Guide, "Compute Capabilities"; 16 and 24 before sm_90)
_MOST_THREADS = 1024  #: threads of a workgroup, where neither .maxntid nor .reqntid gives them
_ENDS = frozenset("ret exit trap".split())
_FILE = re.compile(r'^\s*\.file\s+(?P<number>\d+)\s+"(?P<name>[^"\n]*)"', re.MULTILINE)
_LOC = re.compile(r"^\s*\.loc\s+(?P<file>\d+)\s+(?P<line>\d+)", re.MULTILINE)


def analyze(content: bytes, where: str) -> Analysis:
    """Return the analysis of PTX text. `where` names the file in errors.

    Raises UserError for content that is not PTX, Unsupported for machine code and for a target without facts.
    """
    if content.startswith(b"\x7fELF"):
        given = "a cubin, whose machine code (SASS) is not read"
        raise Unsupported(f"analysis of {where}: given {given}, wanted the .ptx text of it")
    with reading.readable(content, where, parse, lambda text, _: text.encode()) as (module, text):
        if (facts := facts_of(module.target)) is None:
            raise Unsupported(f"analysis of {where}: given .target {module.target}, supported: {', '.join(FACTS)}")
        registers = allocated(text.decode())
        places = list(_places(text.decode()))
        kernels = (
            _kernel(module, kernel, facts, registers.get(kernel.name, {}), places) for kernel in module.kernels.values()
        )
        return Analysis(facts.name, FAMILY.terms, tuple(kernels))


def allocated(text: str) -> Mapping[str, Mapping[str, int]]:
    """Return registers by kernel and class, from ptxas; none where ptxas is missing or rejects the text."""
    try:
        machine = compiled(text)
    except (AssemblerError, UserError):
        return {}
    return {} if machine is None else machine.registers


def _places(text: str) -> Iterator[tuple[int, str]]:
    """Yield the byte offset and the FILE:LINE of each `.loc`, ascending."""
    files = {match["number"]: match["name"] for match in _FILE.finditer(text)}
    for match in _LOC.finditer(text):
        yield match.start(), f"{files.get(match['file'], match['file'])}:{match['line']}"


def _kernel(
    module: Module, kernel: Kernel, facts: TargetFacts, registers: Mapping[str, int], places: Sequence[tuple[int, str]]
) -> KernelAnalysis:
    """Return the analysis of a kernel; `places` are source lines by offset in the text (`_places`)."""
    if not kernel.code:
        raise UserError(f"given kernel {kernel.name} without instructions, wanted some")
    placed = _placed(kernel.code)
    follows = partial(_follows, kernel, placed)
    in_text = {i.address: original.address for i, original in zip(placed, kernel.code, strict=True)}
    code = reachable(placed, 0, follows)
    start = code[0].address
    lines = [line_of(i, i.address - start, facts.name) for i in code]
    loops, hot = hottest(lines, *basic_blocks(code, follows))
    declared = [v for v in (*module.variables.values(), *kernel.variables.values()) if v.space == "shared"]
    shared = sum(v.size for v in declared)
    threads = _threads(kernel)
    begins = [at for at, _ in places]
    numbers = ((i.address - start, bisect_right(begins, in_text[i.address]) - 1) for i in code)
    return KernelAnalysis(
        kernel.name,
        registers=dict(registers),
        shared_bytes=shared,
        code_bytes=0,
        workgroup=threads,
        occupancy=_occupancy(facts, registers, shared, -(-threads // LANES)),
        loops=loops,
        hot=hot,
        lines=tuple(lines),
        sources={offset: places[n][1] for offset, n in numbers if n >= 0},
        shared_at_launch=not named(kernel).isdisjoint(v.name for v in declared if v.dynamic),
    )


def hot_loop(kernel: Kernel, target: str) -> set[int]:
    """Return the addresses of a kernel's hot loop; empty if no loop is hot. `target` is a key of `FACTS`."""
    placed = _placed(kernel.code)
    follows = partial(_follows, kernel, placed)
    in_text = {i.address: original.address for i, original in zip(placed, kernel.code, strict=True)}
    code = reachable(placed, 0, follows)
    start = code[0].address
    _, hot = hottest([line_of(i, i.address - start, target) for i in code], *basic_blocks(code, follows))
    return {in_text[line.offset + start] for line in hot.lines} if hot.is_loop else set()


def _follows(kernel: Kernel, placed: Sequence[Instruction], instruction: Instruction) -> tuple[bool, Sequence[int]]:
    """Return whether the next instruction may follow an instruction, and the addresses to which it may branch."""
    names = [o.name for o in instruction.operands if isinstance(o, Name)]
    if instruction.name == "brx":
        names = [label for table in names for label in kernel.tables.get(table, ())]
    elif instruction.name != "bra":
        names = []
    stops = instruction.guard is None and instruction.name in {"bra", "brx", *_ENDS}
    numbers = (kernel.labels[name] for name in names if name in kernel.labels)
    return not stops, [placed[n].address for n in numbers if n < len(placed)]


def _placed(code: Sequence[Instruction]) -> Sequence[Instruction]:
    """Return instructions with ascending addresses: their numbers, if inlined bodies of functions break the order."""
    if all(a.address < b.address for a, b in pairwise(code)):
        return code
    return [evolve(instruction, address=number, size=1) for number, instruction in enumerate(code)]


def _threads(kernel: Kernel) -> int:
    """Return the largest number of work-items of a workgroup."""
    limits = kernel.limits.get("reqntid") or kernel.limits.get("maxntid")
    return limits[0] * limits[1] * limits[2] if limits else _MOST_THREADS


def _occupancy(facts: TargetFacts, registers: Mapping[str, int], shared: int, warps: int) -> dict[str, int]:
    """Return the warps that an SM holds, in whole workgroups of `warps`, by limiting resource, as far as it is known.

    `shared` is the shared memory of a workgroup in bytes.
    """
    held = groups_held(facts, registers, shared, warps)
    return {resource: count * warps for resource, count in held.items() if resource != "warps"}


def groups_held(facts: TargetFacts, registers: Mapping[str, int], shared: int, warps: int) -> dict[str, int]:
    """Return the workgroups of `warps` warps that an SM holds, by limiting resource, as far as it is known."""
    most = facts.core.simd_subgroups * facts.core.simds // warps
    by = {"warps": min(most, _MOST_WORKGROUPS)}
    if "reg" in registers:
        registers_of_warp = -(-registers["reg"] * LANES // _REGISTER_UNIT) * _REGISTER_UNIT
        by["registers"] = min(most, _SM_REGISTERS // registers_of_warp // warps)
    if shared:
        by["shared memory"] = min(most, (facts.shared_bytes + RESERVED) // (shared + RESERVED))
    return by
