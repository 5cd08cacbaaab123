"""Kind, unit, cost and bytes of one decoded instruction, for any CDNA code."""

from __future__ import annotations

import re

from convgen.backends.amdgpu.family import FAMILY
from convgen.backends.amdgpu.isa import SLOT_BYTES
from convgen.backends.amdgpu.sim.archs import ARCHS
from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.hazards import SGEMM_KIND, TABLES
from convgen.backends.amdgpu.sim.mfma_table import F8F6F4_FORMATS, MATRIX_ROWS, SPARSE_ROWS, MatrixRow
from convgen.backends.amdgpu.tables import FACTS, WAVE
from convgen.backends.analysis import Line
from convgen.backends.family import check_rows
from convgen.backends.machine.instruction import Unit

check_rows(
    FAMILY,
    {
        "sim/archs.py: ARCHS": [arch.name for arch in ARCHS.values()],
        "sim/mfma_table.py: MATRIX_ROWS": MATRIX_ROWS,
        "sim/mfma_table.py: SPARSE_ROWS": SPARSE_ROWS,
        "sim/hazards.py: TABLES": TABLES,
        "sim/hazards.py: SGEMM_KIND": SGEMM_KIND,
    },
)
#: 16 clocks a wave (CDNA3 ISA 6); products of 16- and 24-bit numbers take 4.
_QUARTER_RATE = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_|v_mul_(lo|hi)_[iu]32$")

_DS = re.compile(r"ds_(?:(read|load)|(write|store))(2st64|2)?_[a-z]?(\d+)")
_WIDE_READS = (64, 128)  #: bits; reads that use all banks (measured by HipKittens on MI350X)
_VMEM = re.compile(r"(?:buffer|tbuffer|global|flat|scratch)_(load|store|atomic)_(\w+)")
_SMALL = {"ubyte": 1, "sbyte": 1, "byte": 1, "ushort": 2, "sshort": 2, "short": 2, "dword": 4}

_PREFIXES = (  # prefixes of the mnemonic -> kind; the first match counts
    (("s_waitcnt",), "waitcnt"),
    (("s_barrier",), "barrier"),
    (("s_nop",), "nop"),
    (("s_branch", "s_cbranch", "s_call", "s_setpc", "s_swappc"), "branch"),
    (("s_load", "s_store", "s_atomic", "s_buffer_", "s_dcache", "s_mem"), "smem"),
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
        return Line(offset, instruction.text, kind, "matrix", _passes(instruction, arch), flop=flop(instruction, arch))
    if kind == "valu":
        return Line(offset, instruction.text, kind, "valu", 4 if _QUARTER_RATE.match(name) else 1)
    if name.startswith(("s_branch", "s_cbranch")):
        return Line(offset, f"{name} {offset + 4 + 4 * instruction.simm16:+#x}", kind, "", 1)
    issue = (instruction.simm16 & 0xF) + 1 if kind == "nop" else 1
    return Line(offset, instruction.text, kind, "", issue, issue)


def _matrix_row(instruction: Instruction, arch: str) -> MatrixRow | None:
    """Return the row of a matrix instruction; None for any other instruction."""
    return MATRIX_ROWS[arch].get(instruction.name) or SPARSE_ROWS[arch].get(instruction.name)


def _passes(instruction: Instruction, arch: str) -> int:
    """Return how long a matrix instruction occupies its pipe, in passes of 4 clocks; 1 if no table lists it."""
    row = _matrix_row(instruction, arch)
    return 1 if row is None else row.passes // (2 if _all_narrow(instruction) else 1)


def _all_narrow(instruction: Instruction) -> bool:
    """Return whether both inputs have formats of 6 or 4 bits, which take half the passes (CDNA4 ISA, "F8F6F4")."""
    if not instruction.name.endswith("_f8f6f4"):
        return False
    return all(F8F6F4_FORMATS[instruction.number(key)][1] < 8 for key in ("cbsz", "blgp"))


def flop(instruction: Instruction, arch: str) -> int:
    """Return the operations of a matrix instruction, over all blocks; a sparse one counts as its dense product."""
    row = _matrix_row(instruction, arch)
    return 0 if row is None else 2 * row.m * row.n * row.k * row.blocks


def element(instruction: Instruction, arch: str) -> str:
    """Return the input type of a matrix instruction, as in its mnemonic; empty for any other instruction.

    If modifiers select the types it is fp8, or fp4 if both operands are narrow enough for twice the rate.
    """
    row = _matrix_row(instruction, arch)
    if row is None or row.a_type != "f8f6f4":
        return "" if row is None else row.a_type
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
        size = 8 if rest.endswith(("_x2", "_f64")) else 4
    elif rest.startswith("format"):
        size = (2 if "_d16_" in rest else 4) * len(rest.rpartition("_")[2])
    elif words := re.match(r"dwordx(\d)", rest):
        size = 4 * int(words[1])
    else:
        size = next((count for name, count in _SMALL.items() if rest.startswith(name)), 4)
    moved = size * WAVE
    bytes = {f"global {verb}": moved} | ({"lds write": moved} if to_lds else {})
    return Line(offset, instruction.text, f"vmem_{verb}", "global", _slots(Unit.GLOBAL, moved), bytes=bytes)


def _slots(unit: Unit, moved: int) -> int:
    return -(-moved // SLOT_BYTES[unit])
