"""The instruction tables against LLVM's assembler and scheduling model, and against the simulator's own tables."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable

import numpy as np
import pytest

from convgen.backends.amdgpu.isa import (
    DS_READ_WIDTH,
    DS_WRITE_WIDTH,
    GLOBAL_ATOMICS,
    LOAD_WIDTH,
    MATRIX,
    OPCODES,
    STORE_WIDTH,
)
from convgen.backends.amdgpu.sim.archs import ARCHS
from convgen.backends.amdgpu.sim.mfma import ResultLayout, operand_rows
from convgen.backends.amdgpu.sim.mfma_table import F8F6F4_FORMATS, MATRIX_ROWS
from convgen.backends.amdgpu.tables import FACTS
from convgen.backends.toolchain import LLVM_MC
from convgen.ir.layout.mma import MmaAtom
from tests.conftest import found_tool

_TRIPLE = "-triple=amdgcn-amd-amdhsa"
#: What the simulator calls a type otherwise.
_THEIRS = {
    "s8": "i8",
    "s32": "i32",
    "f6_e2m3": "fp6",
    "f6_e3m2": "bf6",
    "f4_e2m1": "fp4",
    **{f"f8_{form}{kind}": name for form, name in (("e4m3", "fp8"), ("e5m2", "bf8")) for kind in ("", "fnuz")},
}

_CURVES = ("exp", "log", "rcp", "sqrt", "rsq", "sin", "cos")

#: operands -> the instructions that take them; %d stands for a tuple of as many registers as the name says
FORMS = {
    "v1, v2 ": "v_floor_f32 v_ceil_f32 v_floor_f16_e64 v_ceil_f16_e64 v_rndne_f16_e64 "
    + " ".join(f"v_{n}_{t}" for n in _CURVES for t in ("f32", "f16_e64")),
    "v1, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 ": "v_floor_f16_sdwa v_ceil_f16_sdwa v_rndne_f16_sdwa "
    + " ".join(f"v_{n}_f16_sdwa" for n in _CURVES),
    "v[2:3], v[4:5] ": "v_floor_f64 v_ceil_f64",
    "v1, s2, v3 ": "v_min_f32 v_max_f32 v_pk_min_f16 v_pk_max_f16 v_pk_add_u16 v_pk_sub_i16 v_pk_mul_lo_u16 "
    "v_pk_min_i16 v_pk_min_u16 v_pk_max_i16 v_pk_max_u16 v_pk_lshlrev_b16 v_pk_lshrrev_b16 v_pk_ashrrev_i16",
    "v[2:3], v[4:5], v[6:7] ": "v_min_f64 v_max_f64 v_pk_add_f32 v_pk_mul_f32",
    "v1, v2, s3, v4 ": "v_fma_f32 v_pk_fma_f16 v_bfi_b32",
    "v[2:3], 0, 0": "v_pk_mov_b32",
    "v[2:3], v[4:5], v[6:7], v[8:9]": "v_fma_f64 v_pk_fma_f32",
    "s[2:3], s1, v2 ": " ".join(f"v_cmp_{n}_{t}" for n in ("lt", "le", "eq") for t in ("f32", "f16", "i16", "u16"))
    + " v_cmp_neq_f32 v_cmp_neq_f16 v_cmp_ne_i16 v_cmp_ne_u16 v_cmp_eq_i32 v_cmp_ne_i32",
    "s[2:3], v[4:5], v[6:7]": "v_cmp_lt_f64 v_cmp_le_f64 v_cmp_eq_f64 v_cmp_neq_f64",
    "s[2:3], v1, v2 src0_sel:WORD_1 src1_sel:WORD_1": " ".join(
        f"v_cmp_{n}_{t}_sdwa" for n in ("lt", "le", "eq") for t in ("f16", "i16", "u16")
    )
    + " v_cmp_neq_f16_sdwa v_cmp_ne_i16_sdwa v_cmp_ne_u16_sdwa",
    "s[2:3], 0": "s_cmp_lg_u64",
    "s[2:3], -1": "s_cmp_eq_u64",
    "v1, -1, 0": "v_mbcnt_lo_u32_b32",
    "v1, -1, v2": "v_mbcnt_hi_u32_b32",
    "v1, v2": "v_mov_b32 v_not_b32 v_cvt_f16_f32_e64 v_cvt_f32_f16_e64 v_rndne_f32 v_cvt_f32_i32 v_cvt_f32_u32 "
    "v_cvt_i32_f32 v_cvt_u32_f32 v_cvt_f32_ubyte0 v_cvt_f32_ubyte1 v_cvt_f32_ubyte2 v_cvt_f32_ubyte3",
    "v1, v[2:3]": "v_cvt_f32_f64 v_cvt_i32_f64 v_cvt_u32_f64",
    "v[2:3], v1": "v_cvt_f64_f32 v_cvt_f64_i32 v_cvt_f64_u32 v_cvt_pk_f32_fp8 v_cvt_pk_f32_bf8",
    "v[2:3], v[4:5]": "v_rndne_f64",
    "v1, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1": "v_cvt_f32_f16_sdwa",
    "v[2:3], v1 src0_sel:WORD_1": "v_cvt_pk_f32_fp8_sdwa v_cvt_pk_f32_bf8_sdwa",
    "v1, v2 src0_sel:BYTE_2": "v_cvt_f32_fp8_sdwa v_cvt_f32_bf8_sdwa",
    "v1, v2, v3 op_sel:[0,0,1]": "v_cvt_pk_fp8_f32 v_cvt_pk_bf8_f32",
    "v1, v2 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD": "v_cvt_f16_f32_sdwa",
    "v1, v2, s3, v4": "v_med3_i32 v_med3_f32 v_alignbit_b32",
    "v1, v2, s3, v4 op_sel:[1,0,0] op_sel_hi:[1,0,0]": "v_fma_mix_f32",
    "s1, v2": "v_readfirstlane_b32",
    "v1, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf": "v_mov_b32_dpp",
    "v1, v2 row_newbcast:15 row_mask:0xf bank_mask:0xf": "v_mov_b32_dpp",
    "v1, v2 row_half_mirror row_mask:0xf bank_mask:0xf": "v_mov_b32_dpp",
    "v1, v2 offset:32767": "ds_swizzle_b32",
    "v1, v2, v3 ": "ds_bpermute_b32",
    "v1, a2": "v_accvgpr_read_b32",
    "a1, v2": "v_accvgpr_write_b32",
    "a1, 0": "v_accvgpr_write_b32",
    "v1, s2, v3": "v_add_u32 v_sub_u32 v_subrev_u32 v_mul_lo_u32 v_mul_hi_u32 v_mul_u32_u24 v_lshlrev_b32 "
    "v_lshrrev_b32 v_ashrrev_i32 v_and_b32 v_or_b32 v_xor_b32 v_min_i32 v_min_u32 v_max_i32 v_max_u32 v_pack_b32_f16",
    "v1, 0x12345, v3": "v_add_u32 v_sub_u32 v_subrev_u32 v_mul_u32_u24 v_lshlrev_b32 v_lshrrev_b32 v_ashrrev_i32 "
    "v_and_b32 v_or_b32 v_xor_b32 v_min_i32 v_min_u32 v_max_i32 v_max_u32",
    "v1, v2, v3": "v_cvt_pk_bf16_f32 v_cvt_pk_f16_f32 v_add_f32 v_sub_f32 v_mul_f32 v_pk_add_f16 v_pk_mul_f16",
    "v[2:3], v[4:5], v[6:7]": "v_add_f64 v_mul_f64",
    "v1, v2, s3, 64": "v_mad_u32_u24 v_lshl_add_u32 v_add_lshl_u32 v_add3_u32 v_lshl_or_b32 v_and_or_b32 v_or3_b32 "
    "v_bfe_u32 v_bfe_i32 v_perm_b32",
    "v1, v2, -16, s[4:5]": "v_cndmask_b32",
    "s[2:3], s1, v2": "v_cmp_lt_i32 v_cmp_le_i32 v_cmp_eq_u32 v_cmp_ne_u32 v_cmp_lt_u32 v_cmp_le_u32 v_cmp_u_f32",
    "s1, s2, 0x12345": "s_add_i32 s_add_u32 s_addc_u32 s_sub_i32 s_and_b32 s_or_b32 s_xor_b32 s_lshl_b32 s_lshr_b32 "
    "s_ashr_i32 s_min_i32 s_min_u32 s_max_i32 s_max_u32 s_mul_i32 s_mul_hi_u32 s_cselect_b32 "
    "s_lshl1_add_u32 s_lshl2_add_u32 s_lshl3_add_u32 s_lshl4_add_u32",
    "s[2:3], s[4:5], s[6:7]": "s_and_b64 s_or_b64 s_xor_b64",
    "s[2:3], -1, 0": "s_cselect_b64",
    "s1, s2": "s_not_b32 s_mov_b32",
    "s1, 0x12345": "s_mov_b32",
    "s[2:3], s[4:5]": "s_not_b64 s_mov_b64",
    "s1, 0x1234": "s_cmp_lt_i32 s_cmp_le_i32 s_cmp_eq_u32 s_cmp_lg_u32 s_cmp_lt_u32 s_cmp_le_u32",
    "s2, s[0:1], 8": "s_load_dword",
    "s[2:3], s[0:1], 8": "s_load_dwordx2",
    "s[4:7], s[0:1], 8": "s_load_dwordx4",
    "s[8:15], s[0:1], 8": "s_load_dwordx8",
    "v[2:5], v1 offset:65535": "ds_read_b128",
    "v[2:3], v1 offset:65535": "ds_read_b64 ds_read_b64_tr_b16",
    "v2, v1 offset:65535": "ds_read_b32 ds_read_u16 ds_read_u8 ds_write_b32 ds_write_b16 ds_write_b8",
    "v2, v1, v3 offset0:255 offset1:254": "ds_write2_b32 ds_write2st64_b32",
    "v1, v[2:3], v[4:5] offset0:255 offset1:254": "ds_write2_b64 ds_write2st64_b64",
    "v1, v[2:5] offset:65535": "ds_write_b128",
    "v1, v[2:3] offset:65535": "ds_write_b64",
    "v[4:7], v1, s[4:7], s2 offen offset:4095": "buffer_load_dwordx4 buffer_store_dwordx4",
    "v[4:6], v1, s[4:7], 0 offen offset:4095": "buffer_load_dwordx3 buffer_store_dwordx3",
    "v[4:5], v1, s[4:7], s2 offen": "buffer_load_dwordx2 buffer_store_dwordx2 buffer_atomic_add_f64 "
    "buffer_atomic_min_f64 buffer_atomic_max_f64",
    "v4, v1, s[4:7], s2 offen": "buffer_load_dword buffer_store_dword buffer_load_ushort buffer_load_ubyte "
    "buffer_store_short buffer_store_byte buffer_atomic_add_f32 buffer_atomic_add "
    "buffer_atomic_smin buffer_atomic_smax buffer_atomic_umin buffer_atomic_umax buffer_atomic_and buffer_atomic_or "
    "buffer_atomic_xor",
    "vmcnt(63) lgkmcnt(15)": "s_waitcnt",
    "15": "s_nop",
    "v4, v1, s[4:7], 0 offen": "buffer_atomic_inc",
    "": "s_barrier s_endpgm buffer_wbl2 buffer_inv buffer_wbinvl1_vol",
    "somewhere": "s_branch s_cbranch_scc0 s_cbranch_scc1",
}
#: instructions that not all targets have
ONLY = {
    **dict.fromkeys(("v_cvt_pk_bf16_f32", "v_cvt_pk_f16_f32"), ("gfx950",)),
    **{name: ("gfx942", "gfx950") for name in OPCODES if "fp8" in name or "bf8" in name},
    "buffer_inv": ("gfx942", "gfx950"),
    "ds_read_b64_tr_b16": ("gfx950",),
    "buffer_wbinvl1_vol": ("gfx90a",),
}


def complaints(target: str, lines: Iterable[str]) -> dict[int, str]:
    """What the assembler says of which line (from 0)."""
    command = [found_tool(LLVM_MC), _TRIPLE, f"-mcpu={target}", "-filetype=obj", "-o", "/dev/null"]
    done = subprocess.run(command, input="\n".join([*lines, "somewhere:"]), capture_output=True, text=True, check=False)
    found = re.findall(r"<stdin>:(\d+):\d+: error: (.*)", done.stderr)
    return {int(line) - 1: message for line, message in reversed(found)}


@pytest.mark.parametrize("target", FACTS)
def test_every_opcode_assembles(target: str) -> None:
    lines = [f"{name} {operands}" for operands, names in FORMS.items() for name in names.split()]
    assert {line.split()[0] for line in lines} == set(OPCODES)
    wrong = {lines[n].split()[0]: message for n, message in complaints(target, lines).items()}
    missing = [name for name, targets in ONLY.items() if target not in targets]
    assert sorted(wrong) == sorted(missing), wrong


def test_widths_name_opcodes_that_are_there() -> None:
    names = [f"buffer_load_{w}" for w in LOAD_WIDTH.values()] + [f"buffer_store_{w}" for w in STORE_WIDTH.values()]
    names += [f"ds_read_{w}" for w in DS_READ_WIDTH.values()] + [f"ds_write_{w}" for w in DS_WRITE_WIDTH.values()]
    names += [name for name, _ in GLOBAL_ATOMICS.values()]
    assert [name for name in names if name not in OPCODES] == []
    for facts in FACTS.values():
        assert set(facts.global_widths) == set(LOAD_WIDTH) == set(STORE_WIDTH)
        assert set(facts.shared_widths) == set(DS_READ_WIDTH) == set(DS_WRITE_WIDTH)


# ---------------------------------------------------------------- matrix instructions

ATOMS = [(target, atom) for target, facts in FACTS.items() for atom in (*facts.atoms, *facts.scaled_atoms)]
SCALED = [(target, atom) for target, atom in ATOMS if atom.scales]
IDS = [f"{target}-{atom.name}" for target, atom in ATOMS]


MODIFIERS = {name: modifiers for rows in MATRIX.values() for name, (_, modifiers) in rows.items()}


def words(atom: MmaAtom) -> tuple[int, int, int]:
    """Registers of both operands and of the result."""
    a, b = (side.registers * atom.elem_bytes // 4 for side in (atom.a, atom.b))
    return a, b, atom.d.registers * atom.acc.bytes // 4


def line(atom: MmaAtom, a: int, b: int, d: int, bank: str = "a", addend: str = "") -> str:
    result, formats = f"{bank}[0:{d - 1}]", " ".join(MODIFIERS.get(atom.name, ()))
    scales = ", v60, v61" if atom.scales else ""
    return f"{mnemonic(atom)} {result}, v[0:{a - 1}], v[32:{31 + b}], {addend or result}{scales} {formats}".rstrip()


def mnemonic(atom: MmaAtom) -> str:
    return atom.name.partition(".")[0]


@pytest.mark.parametrize("target", FACTS)
def test_matrix_rows_assemble_with_these_tuples_only(target: str) -> None:
    right, wrong = [], []
    for atom in (atom for name, atom in ATOMS if name == target):
        a, b, d = words(atom)
        right += [line(atom, a, b, d), line(atom, a, b, d, "v"), line(atom, a, b, d, "a", "0")]
        wrong += [line(atom, other, b, d) for other in (1, 2, 4, 6, 8) if other != a]
        wrong += [line(atom, a, other, d) for other in (1, 2, 4, 6, 8) if other != b]
        wrong += [line(atom, a, b, other) for other in (4, 16, 32) if other != d]
    assert complaints(target, right) == {}
    assert sorted(complaints(target, wrong)) == list(range(len(wrong)))


@pytest.mark.parametrize("target", FACTS)
def test_passes_are_those_of_the_scheduling_model(target: str) -> None:
    """The pressure on the matrix unit, in issue slots of 4 clocks; LLVM counts those on f64 as the vector unit's.

    Where modifiers say the types, llvm-mca counts as for types of 6 bits, twice as fast as 8 (CDNA4 ISA 7.1).
    """
    atoms = [atom for name, atom in ATOMS if name == target]
    text = "\n".join(line(atom, *words(atom)) for atom in atoms)
    command = [
        found_tool(LLVM_MC).replace("llvm-mc", "llvm-mca"),
        "-mtriple=amdgcn-amd-amdhsa",
        f"-mcpu={target}",
        "-iterations=1",
    ]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    rows = done.stdout.rpartition("Resource pressure by instruction:")[2].strip().splitlines()
    units = re.findall(r"\[(\d+)\]\s+- (\w+)", done.stdout)
    column = {unit: int(number) for number, unit in units}
    pressure = {}
    for row in rows[1:]:
        fields = row.split()
        name = fields[len(units)]
        pressure[name] = float(fields[column["HWVALU" if name.endswith("f64") else "HWXDL"]])
    assert pressure == {
        mnemonic(atom): atom.clocks / (8 if "f8f6f4" in atom.name and not all(atom.packed) else 4) for atom in atoms
    }


@pytest.mark.parametrize(("target", "atom"), ATOMS, ids=IDS)
def test_matrix_rows_are_those_of_the_simulator(target: str, atom: MmaAtom) -> None:
    row, (a, b) = MATRIX_ROWS[target][mnemonic(atom)], atom.factor_types
    halved = 2 if all(atom.packed) else 1
    assert (row.m, row.n, row.blocks) == (atom.n, atom.m, 1)
    depths = tuple(row.k * of.bits // (8 * elem.bytes) for of, elem in ((a, atom.a_elem), (b, atom.b_elem)))
    assert (atom.a.extent("k"), atom.b.extent("k"), atom.k) == (*depths, max(depths))
    assert row.passes // halved * 4 == atom.clocks
    names = (atom.rounds_to or a.name, atom.rounds_to or b.name, atom.acc.name)
    *taken, sums = (_THEIRS.get(name, name) for name in names)
    if row.a_type == "f8f6f4":
        codes = [int(dict(m.split(":") for m in MODIFIERS[atom.name]).get(field, 0)) for field in ("cbsz", "blgp")]
        wanted = [(f"{name}_ocp" if bits == 8 else name, bits) for name, bits in zip(taken, (a.bits, b.bits))]
        assert [F8F6F4_FORMATS[code] for code in codes] == wanted
        taken = [row.a_type, row.b_type]  # modifiers say of what types they are
    assert (row.a_type, row.b_type, row.result) == (*taken, sums)
    assert words(atom) == (*(row.m * row.k // 64 * of.bits // 32 for of in (a, b)), row.result_registers)
    ours, _ = MATRIX[target][atom.name]
    assert (ours.busy, ours.hazard) == (row.passes // halved, row.hazard_class.removesuffix("16"))


@pytest.mark.parametrize(("target", "atom"), SCALED, ids=[f"{target}-{atom.name}" for target, atom in SCALED])
def test_scales_have_the_layout_of_the_simulator(target: str, atom: MmaAtom) -> None:
    """Lane row + side * block has the scale of 32 numbers, where `test_scaled_f8f6f4` of the simulator has it."""
    assert atom.scales is not None
    for n, (fragment, dim, of) in enumerate(zip(atom.scales, ("n", "m"), atom.factor_types)):
        assert fragment.registers == 1
        side, depth = (atom.a, atom.b)[n].shape
        theirs = np.arange(64).reshape(64 // side, side).T.repeat(atom.scaled_k[n], axis=1)
        assert atom.scaled_k[n] * 8 == 32 * of.bits
        row, k = np.indices((side, depth))
        _, lane, _ = fragment.owner({dim: row, "k": k // atom.scaled_k[n] * atom.scaled_k[n]})
        assert np.array_equal(lane, theirs)


@pytest.mark.parametrize(("target", "atom"), ATOMS, ids=IDS)
def test_operand_layouts_are_those_of_the_simulator(target: str, atom: MmaAtom) -> None:
    """The simulator's view of operands that hold their own place: lane * elements a lane + element, a byte a time."""
    elem = np.dtype(f"u{atom.elem_bytes}")
    for fragment, dim, packed in zip((atom.a, atom.b), ("n", "m"), atom.packed):
        held, (side, depth) = fragment.registers, fragment.shape
        places = np.arange(64)[:, None] * held + np.arange(held)
        digits = [np.ascontiguousarray((places >> n & 0xFF).astype(elem).view(np.uint32).T)[:, None, :] for n in (0, 8)]
        split = "f8f6f4" in atom.name and not packed
        low, high = (operand_rows(d, side, 1, split=split)[0, 0].view(elem).astype(int) for d in digits)
        theirs = low + 256 * high
        row, k = np.indices((side, depth))
        _, lane, register = fragment.owner({dim: row, "k": k})
        assert np.array_equal(theirs, lane * held + register)


@pytest.mark.parametrize(("target", "atom"), ATOMS, ids=IDS)
def test_result_layouts_are_those_of_the_simulator(target: str, atom: MmaAtom) -> None:
    numbers = np.arange(atom.n * atom.m).reshape(1, 1, atom.n, atom.m)
    theirs = ResultLayout(MATRIX_ROWS[target][mnemonic(atom)]).to_registers(numbers)[:, 0, :]
    register, lane = np.indices(theirs.shape)
    at = atom.d.coords(0, lane, register)
    assert np.array_equal(theirs, at["n"] * atom.m + at["m"])


@pytest.mark.parametrize("target", FACTS)
def test_shared_memory_is_that_of_the_simulator(target: str) -> None:
    facts = FACTS[target]
    arch = next(a for a in ARCHS.values() if a.name == target)
    assert facts.shared_bytes == arch.lds_bytes
    for ours, deed in ((facts.shared_read, "read"), (facts.shared_write, "write")):
        theirs = arch.banks[deed, max(facts.shared_widths)]
        assert (ours.banks, ours.phases) == (theirs.banks, theirs.phases)
