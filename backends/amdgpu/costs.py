"""Kind, unit, cost and bytes of one decoded instruction, for any CDNA code.

Passes of matrix instructions that the emitter uses are in its tables; those of all others are listed below.
"""

from __future__ import annotations

import re
from functools import cache

from convgen.backends.amdgpu.family import FAMILY
from convgen.backends.amdgpu.isa import SLOT_BYTES
from convgen.backends.amdgpu.sim.archs import ARCHS
from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.hazards import SGEMM_KIND, TABLES
from convgen.backends.amdgpu.sim.mfma_table import F8F6F4_FORMATS, MATRIX_ROWS, SPARSE_ROWS
from convgen.backends.amdgpu.tables import FACTS, MFMA, WAVE
from convgen.backends.analysis import Line
from convgen.backends.family import check_rows
from convgen.backends.machine.instruction import Unit

#: Passes of the other matrix instructions (AMD matrix instruction calculator, "Execution statistics", and llvm-mca's
#: reciprocal throughput; a pass is 4 clocks): architectures, pattern of the mnemonic, passes. The first match counts.
_PASSES = tuple(
    (archs.split(), re.compile(pattern), passes)
    for archs, pattern, passes in (
        ("gfx950", r"v_mfma_f64_16x16x4_?f64", 16),
        ("gfx90a gfx942 gfx950", r"v_mfma_f64_16x16x4_?f64", 8),
        ("gfx90a gfx942 gfx950", r"v_mfma_f64_4x4x4_?(4b_)?f64", 4),
        ("gfx950", r"v_mfma_(scale_)?f32_32x32x64_f8f6f4", 16),  # fp8; 8 where both formats have 6 or 4 bits
        ("gfx950", r"v_mfma_(scale_)?f32_16x16x128_f8f6f4", 8),  # fp8; 4 where both formats have 6 or 4 bits
        ("gfx90a gfx942 gfx950", r"v_mfma_\w+?_4x4x\w+", 2),
        ("gfx942 gfx950", r"v_mfma_f32_32x32x2_f32", 16),
        ("gfx942 gfx950", r"v_mfma_f32_16x16x4_f32", 8),
        ("gfx942 gfx950", r"v_mfma_\w+?_32x32x\d+_2b_\w+", 16),
        ("gfx942 gfx950", r"v_mfma_\w+?_16x16x\d+_4b_\w+", 8),
        ("gfx942 gfx950", r"v_s?mfm?ac?_\w+?_32x32x\w+", 8),
        ("gfx942 gfx950", r"v_s?mfm?ac?_\w+?_16x16x\w+", 4),
        ("gfx90a", r"v_mfma_\w+?_32x32x\w+", 16),
        ("gfx90a", r"v_mfma_\w+?_16x16x\w+", 8),
    )
)
check_rows(
    FAMILY,
    {
        "costs.py: _PASSES": {arch for archs, *_ in _PASSES for arch in archs},
        "sim/archs.py: ARCHS": [arch.name for arch in ARCHS.values()],
        "sim/mfma_table.py: MATRIX_ROWS": MATRIX_ROWS,
        "sim/mfma_table.py: SPARSE_ROWS": SPARSE_ROWS,
        "sim/hazards.py: TABLES": TABLES,
        "sim/hazards.py: SGEMM_KIND": SGEMM_KIND,
    },
)
_QUARTER_RATE = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_|v_mul_(lo|hi)_")  # CDNA3 ISA 6: 16 clocks a wave

_MFMA = re.compile(r"v_s?mfm(?:a|ac)_(?:scale_)?\w+?_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_?(?:\d+b_)?(?P<type>[a-z]+\d+)")
_ELEMENT_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "xf32": 4, "f64": 8}  # all other types: one byte or less
_DS = re.compile(r"ds_(?:(read|load)|(write|store))(2st64|2)?_[a-z]?(\d+)")
_WIDE_READS = (64, 128)  #: bits; reads that use all banks (measured by HipKittens on MI350X)
_VMEM = re.compile(r"(?:buffer|tbuffer|global|flat|scratch)_(load|store|atomic)_(\w+)")
_SMALL = {"ubyte": 1, "sbyte": 1, "byte": 1, "ushort": 2, "sshort": 2, "short": 2, "dword": 4}

_PREFIXES = (  # prefixes of the mnemonic -> kind; the first match counts
    (("s_waitcnt",), "waitcnt"),
    (("s_barrier",), "barrier"),
    (("s_nop",), "nop"),
    (("s_branch", "s_cbranch", "s_setpc", "s_swappc"), "branch"),
    (("s_load", "s_buffer_load", "s_store", "s_buffer_store", "s_dcache", "s_memtime"), "smem"),
    (("s_endpgm", "s_set", "s_sleep", "s_sched", "s_inst_prefetch", "s_icache", "s_code_end"), "other"),
    (("s_",), "salu"),
    (("v_mfma", "v_smfmac"), "mfma"),
    (("v_",), "valu"),
    (("ds_",), "ds_other"),
)


def line_of(instruction: Instruction, offset: int, arch: str) -> Line:
    """Return the instruction as a line of an analysis."""
    name = instruction.name
    if name.startswith("ds_"):
        return _shared(instruction, offset, arch)
    if vmem := _VMEM.match(name):
        return _global(instruction, offset, vmem)
    kind = next((kind for prefixes, kind in _PREFIXES if name.startswith(prefixes)), "other")
    if kind == "mfma":
        taken = passes(name, arch) // (2 if _all_narrow(instruction) else 1)
        return Line(offset, instruction.text, kind, "matrix", taken, flop=flop(instruction))
    if kind == "valu":
        return Line(offset, instruction.text, kind, "valu", 4 if _QUARTER_RATE.match(name) else 1)
    if name.startswith(("s_branch", "s_cbranch")):
        return Line(offset, f"{name} {offset + 4 + 4 * instruction.simm16:+#x}", kind, "", 1)
    issue = (instruction.simm16 & 0xF) + 1 if kind == "nop" else 1
    return Line(offset, instruction.text, kind, "", issue, issue)


@cache
def passes(name: str, arch: str) -> int:
    """Return how long a matrix instruction occupies its pipe, in passes of 4 clocks; 1 if no table lists it."""
    ours = next((row.passes for row in MFMA[arch] if row.mnemonic == name), None)
    if ours is not None:
        return ours
    return next((count for archs, pattern, count in _PASSES if arch in archs and pattern.match(name)), 1)


def _all_narrow(instruction: Instruction) -> bool:
    """Return whether both inputs have formats of 6 or 4 bits, which take half the passes (CDNA4 ISA, "F8F6F4")."""
    if not instruction.name.endswith("_f8f6f4"):
        return False
    return all(F8F6F4_FORMATS[instruction.number(key)][1] < 8 for key in ("cbsz", "blgp"))


def flop(instruction: Instruction) -> int:
    """Return the operations of a matrix instruction, over all blocks; a sparse one counts as its dense product.

    A dense instruction has as many blocks as fill the registers of its operand A.
    """
    shape = _MFMA.match(instruction.name)
    if shape is None:
        return 0
    m, n, k = (int(shape[axis]) for axis in "mnk")
    size = _ELEMENT_BYTES.get(shape["type"], 1)
    blocks = 1
    if "smfmac" not in instruction.name and len(instruction.operands) > 1:
        blocks = max(1, instruction.operands[1].count * 4 * WAVE // (m * k * size))
    return 2 * m * n * k * blocks


def element(instruction: Instruction) -> str:
    """Return the input type of a matrix instruction, as in its mnemonic; empty for any other instruction.

    If modifiers select the types it is fp8, or fp4 if both operands are narrow enough for twice the rate.
    """
    shape = _MFMA.match(instruction.name)
    if shape is None:
        return ""
    if not instruction.name.endswith("_f8f6f4"):
        return shape["type"]
    return "fp4" if _all_narrow(instruction) else "fp8"


def _shared(instruction: Instruction, offset: int, arch: str) -> Line:
    access = _DS.match(instruction.name)
    if access is None:  # permutations use the crossbar, atomics move a word
        return Line(offset, instruction.text, "ds_other", "lds", _slots(Unit.SHARED, 4 * WAVE))
    reads, _, twice, bits = access.groups()
    moved = int(bits) // 8 * (2 if twice else 1) * WAVE
    if not reads:
        return Line(offset, instruction.text, "ds_write", "lds", _slots(Unit.SHARED, moved), bytes={"lds write": moved})
    rate = FACTS[arch].core.shared_read_rate if int(bits) in _WIDE_READS else SLOT_BYTES[Unit.SHARED]
    return Line(offset, instruction.text, "ds_read", "lds", -(-moved // rate), bytes={"lds read": moved})


def _global(instruction: Instruction, offset: int, access: re.Match[str]) -> Line:
    verb, rest = access.groups()
    to_lds = "lds" in instruction.modifiers or rest.startswith("lds_")
    rest = rest.removeprefix("lds_")
    if verb == "atomic":
        size = 8 if rest.endswith("_x2") else 4
    elif rest.startswith("format"):
        size = 4 * len(rest.rpartition("_")[2])
    elif words := re.match(r"dwordx(\d)", rest):
        size = 4 * int(words[1])
    else:
        size = next((count for name, count in _SMALL.items() if rest.startswith(name)), 4)
    moved = size * WAVE
    bytes = {f"global {verb}": moved} | ({"lds write": moved} if to_lds else {})
    return Line(offset, instruction.text, f"vmem_{verb}", "global", _slots(Unit.GLOBAL, moved), bytes=bytes)


def _slots(unit: Unit, moved: int) -> int:
    return -(-moved // SLOT_BYTES[unit])
