"""Rows for the instructions that selection uses. The tests check mnemonics against the assembler.

Latencies (issue slots of 4 clocks) only steer the scheduler; correctness rests on the wait and hazard tables.
"""

from __future__ import annotations

from convgen.backends.amdgpu.tables import FACTS, MFMA, WAVE, MfmaRow
from convgen.backends.machine.instruction import Instruction, Opcode, Role, Unit
from convgen.ir.facts import Core
from convgen.ir.record import evolve
from convgen.ir.types import Type, f32, f64, s32, u32

_SCC = ("scc",)

_VALU = (
    "v_mov_b32 v_mul_lo_u32 v_mul_hi_u32 v_mad_u32_u24 v_not_b32 v_lshl_add_u32 v_add_lshl_u32 v_add3_u32 "
    "v_lshl_or_b32 v_and_or_b32 v_or3_b32 v_bfe_u32 v_alignbit_b32 v_perm_b32 v_cndmask_b32 "
    "v_cvt_f16_f32_e64 v_pack_b32_f16 v_cvt_pk_bf16_f32 v_cmp_lt_i32 v_cmp_le_i32 "
    "v_cmp_eq_u32 v_cmp_ne_u32 v_cmp_lt_u32 v_cmp_le_u32 v_cmp_u_f32 "
    "v_add_f32 v_add_f64 v_pk_add_f16 v_sub_f32 v_mul_f32 v_mul_f64 v_pk_mul_f16 "
    "v_bfe_i32 v_med3_i32 v_med3_f32 v_rndne_f32 v_rndne_f64 v_cvt_f32_i32 v_cvt_f32_u32 v_cvt_i32_f32 "
    "v_cvt_u32_f32 v_cvt_f32_f64 v_cvt_f64_f32 v_cvt_f64_i32 v_cvt_f64_u32 v_cvt_i32_f64 v_cvt_u32_f64 "
    "v_cvt_f32_f16_e64 v_cvt_f32_f16_sdwa v_cvt_f32_ubyte0 v_cvt_f32_ubyte1 v_cvt_f32_ubyte2 v_cvt_f32_ubyte3 "
    "v_cvt_pk_f16_f32 v_cvt_pk_f32_fp8 v_cvt_pk_f32_bf8 v_cvt_pk_f32_fp8_sdwa v_cvt_pk_f32_bf8_sdwa "
    "v_cvt_f32_fp8_sdwa v_cvt_f32_bf8_sdwa "
    "v_min_f32 v_max_f32 v_min_f64 v_max_f64 v_pk_min_f16 v_pk_max_f16 v_fma_f32 v_fma_f64 v_pk_fma_f16 v_pk_fma_f32 "
    "v_fma_mix_f32 v_pk_add_f32 v_pk_mul_f32 v_pk_mov_b32 "
    "v_floor_f32 v_ceil_f32 v_floor_f64 v_ceil_f64 v_bfi_b32 "
    "v_pk_add_u16 v_pk_sub_i16 v_pk_mul_lo_u16 v_pk_min_i16 v_pk_min_u16 v_pk_max_i16 v_pk_max_u16 "
    "v_pk_lshlrev_b16 v_pk_lshrrev_b16 v_pk_ashrrev_i16 v_mbcnt_lo_u32_b32 v_mbcnt_hi_u32_b32"
).split()
_VALU += [f"v_{n}_f16_{form}" for n in ("floor", "ceil", "rndne") for form in ("e64", "sdwa")]
_VALU += [f"v_cmp_{n}_{t}" for n in ("lt", "le", "eq", "neq") for t in ("f32", "f64", "f16", "f16_sdwa")]
_VALU += [f"v_cmp_{n}_{t}16{sdwa}" for n in ("lt", "le", "eq", "ne") for t in "iu" for sdwa in ("", "_sdwa")]
_VALU += ["v_cmp_eq_i32", "v_cmp_ne_i32"]
_TRANS = [f"v_{n}_{t}" for n in "exp log rcp sqrt rsq sin cos".split() for t in ("f32", "f16_e64", "f16_sdwa")]
#: VOP2 on integers: besides VOP1, the only forms that take a literal, as src0 next to a VGPR (CDNA3 ISA 6.2).
_VALU_LITERAL = ("v_sub_u32 v_subrev_u32 v_lshlrev_b32 v_lshrrev_b32 v_ashrrev_i32").split()
_VALU_LITERAL_COMMUTES = (
    "v_add_u32 v_mul_u32_u24 v_and_b32 v_or_b32 v_xor_b32 v_min_i32 v_min_u32 v_max_i32 v_max_u32"
).split()
_VALU_MERGES = ("v_cvt_pk_fp8_f32 v_cvt_pk_bf8_f32 v_cvt_f16_f32_sdwa").split()
_SALU_SCC = (
    "s_add_i32 s_add_u32 s_sub_i32 s_and_b32 s_or_b32 s_xor_b32 s_and_b64 s_or_b64 s_not_b32 s_not_b64 "
    "s_lshl_b32 s_lshr_b32 s_ashr_i32 s_min_i32 s_min_u32 s_max_i32 s_max_u32 s_cmp_lt_i32 s_cmp_le_i32 "
    "s_cmp_eq_u32 s_cmp_lg_u32 s_cmp_lt_u32 s_cmp_le_u32 s_cmp_eq_u64 s_cmp_lg_u64 s_xor_b64 "
    "s_lshl1_add_u32 s_lshl2_add_u32 s_lshl3_add_u32 s_lshl4_add_u32"
).split()
_SALU = ("s_mov_b32 s_mov_b64 s_mul_i32 s_mul_hi_u32").split()
_SALU_READS_SCC = ("s_cselect_b32 s_cselect_b64").split()

#: bytes a lane -> mnemonic suffix
LOAD_WIDTH = {16: "dwordx4", 12: "dwordx3", 8: "dwordx2", 4: "dword", 2: "ushort", 1: "ubyte"}
STORE_WIDTH = {16: "dwordx4", 12: "dwordx3", 8: "dwordx2", 4: "dword", 2: "short", 1: "byte"}
DS_READ_WIDTH = {16: "b128", 8: "b64", 4: "b32", 2: "u16", 1: "u8"}
DS_WRITE_WIDTH = {16: "b128", 8: "b64", 4: "b32", 2: "b16", 1: "b8"}

#: (operation, type) -> atomic operation without a result, and its bytes a lane (CDNA3 ISA 12.15, MUBUF)
GLOBAL_ATOMICS: dict[tuple[str, Type], tuple[str, int]] = {
    ("add", f32): ("buffer_atomic_add_f32", 4),
    **{(op, f64): (f"buffer_atomic_{op}_f64", 8) for op in ("add", "min", "max")},
    **{(op, elem): (f"buffer_atomic_{op}", 4) for op in ("add", "and", "or", "xor") for elem in (s32, u32)},
    **{(op, s32): (f"buffer_atomic_s{op}", 4) for op in ("min", "max")},
    **{(op, u32): (f"buffer_atomic_u{op}", 4) for op in ("min", "max")},
}

#: slots from issue to data (assumed: 80, 600 and 200 clocks)
_LATENCY = {Unit.SHARED: 20, Unit.GLOBAL: 150, Unit.SCALAR_MEMORY: 50}

#: bytes a slot that a SIMD moves if all four share the CU's path of 128 and 64 bytes a clock
SLOT_BYTES = {Unit.SHARED: 128, Unit.GLOBAL: 64}


#: the register with the LDS address at which a direct load begins (CDNA3 ISA 9.1.9)
M0 = "m0"

#: Hazard classes besides those of matrix instructions.
READS_LANE, WIDE_STORE, TRANS, DPP = "reads lane", "wide store", "transcendental", "other lanes"
_TRANS_BUSY = 4  #: slots; 16 clocks a wave (CDNA3 ISA 6)

#: address operands of a buffer access
_BUFFER_ADDRESS = (Role("offset", "v", 1), Role("surface", "s", 4), Role("soffset", "s", 1))
_ADDRESS = Role("address", "v", 1)


def _memory(name: str, unit: Unit, lane_bytes: int, *sources: Role, loads: bool = False) -> Opcode:
    """Return the row of an access of `lane_bytes` bytes a lane."""
    return Opcode(
        name,
        unit,
        _LATENCY[unit],
        busy=-(-lane_bytes * WAVE // SLOT_BYTES[unit]),
        results=(_data(lane_bytes, "v"),) if loads else (),
        sources=sources,
        hazard=WIDE_STORE if unit is Unit.GLOBAL and not loads and lane_bytes > 8 else "",
    )


def _data(lane_bytes: int, banks: str = "va") -> Role:
    return Role("data", banks, -(-lane_bytes // 4))


def _scalar_load(name: str, words: int) -> Opcode:
    results, sources = (Role("data", "s", words),), (Role("base", "s", 2), Role("offset", "s", 1))
    return Opcode(name, Unit.SCALAR_MEMORY, _LATENCY[Unit.SCALAR_MEMORY], results=results, sources=sources)


def _vector_rows() -> list[Opcode]:
    rows = [Opcode(n, Unit.VALU, banks="vs") for n in _VALU]
    rows += [Opcode(n, Unit.VALU, busy=_TRANS_BUSY, banks="vs", hazard=TRANS) for n in _TRANS]
    rows += [Opcode(n, Unit.VALU, literal=True, banks="vs") for n in _VALU_LITERAL]
    rows += [Opcode(n, Unit.VALU, literal=True, commutes=True, banks="vs") for n in _VALU_LITERAL_COMMUTES]
    for name, to, of, hazard in (
        ("v_readfirstlane_b32", "s", "v", READS_LANE),
        ("v_accvgpr_read_b32", "v", "a", ""),
        ("v_accvgpr_write_b32", "a", "v", ""),
    ):
        results, sources = (Role("to", to, 1),), (Role("of", of, 1),)
        rows.append(Opcode(name, Unit.VALU, results=results, sources=sources, hazard=hazard))
    rows.append(Opcode("v_mov_b32_dpp", Unit.VALU, banks="v", hazard=DPP))
    return [*rows, *(Opcode(n, Unit.VALU, merges=True, banks="vs") for n in _VALU_MERGES)]


def _scalar_rows() -> list[Opcode]:
    rows = [Opcode(n, Unit.SALU, writes=_SCC, banks="s") for n in _SALU_SCC]
    rows += [Opcode(n, Unit.SALU, banks="s") for n in _SALU]
    rows += [Opcode(n, Unit.SALU, reads=_SCC, banks="s") for n in _SALU_READS_SCC]
    rows.append(Opcode("s_addc_u32", Unit.SALU, reads=_SCC, writes=_SCC, banks="s"))
    rows += [_scalar_load(f"s_load_dwordx{n}", n) for n in (2, 4, 8)]
    return [*rows, _scalar_load("s_load_dword", 1)]


def _shared_rows() -> list[Opcode]:
    rows = [_memory(f"ds_read_{n}", Unit.SHARED, b, _ADDRESS, loads=True) for b, n in DS_READ_WIDTH.items()]
    rows += [_memory(f"ds_write_{n}", Unit.SHARED, b, _ADDRESS, _data(b)) for b, n in DS_WRITE_WIDTH.items()]
    for name, size in (("b32", 4), ("b64", 8)):
        pair = evolve(_memory("", Unit.SHARED, 2 * size), sources=(_ADDRESS, _data(size), _data(size)))
        rows += [evolve(pair, name=f"ds_write2{far}_{name}") for far in ("", "st64")]
    rows.append(_memory("ds_read_b64_tr_b16", Unit.SHARED, 8, _ADDRESS, loads=True))
    rows.append(_memory("ds_swizzle_b32", Unit.SHARED, 4, _data(4, "v"), loads=True))
    return [*rows, _memory("ds_bpermute_b32", Unit.SHARED, 4, _ADDRESS, _data(4, "v"), loads=True)]


def _global_rows() -> list[Opcode]:
    rows = [_memory(f"buffer_load_{n}", Unit.GLOBAL, b, *_BUFFER_ADDRESS, loads=True) for b, n in LOAD_WIDTH.items()]
    rows += [_memory(f"buffer_store_{n}", Unit.GLOBAL, b, _data(b), *_BUFFER_ADDRESS) for b, n in STORE_WIDTH.items()]
    rows += [
        _memory(name, Unit.GLOBAL, b, _data(b), *_BUFFER_ADDRESS) for name, b in dict.fromkeys(GLOBAL_ATOMICS.values())
    ]
    rows.append(
        Opcode(
            "buffer_atomic_inc",
            Unit.GLOBAL,
            _LATENCY[Unit.GLOBAL],
            merges=True,
            fence=True,
            drains=True,
            results=(_data(4, "v"),),
            sources=(*_BUFFER_ADDRESS, _data(4, "v")),
        )
    )
    rows.append(Opcode("buffer_wbl2", Unit.GLOBAL, fence=True))
    return rows


def _control_rows() -> list[Opcode]:
    rows = [Opcode(n, Unit.CONTROL, fence=True, drains=True) for n in ("buffer_inv", "buffer_wbinvl1_vol")]
    rows += [Opcode(n, Unit.CONTROL) for n in ("s_waitcnt", "s_nop")]
    rows.append(Opcode("s_barrier", Unit.CONTROL, barrier=True))
    rows.append(Opcode("s_branch", Unit.CONTROL, jumps=True))
    rows.append(Opcode("s_endpgm", Unit.CONTROL, ends=True))
    return [*rows, *(Opcode(n, Unit.CONTROL, reads=_SCC) for n in ("s_cbranch_scc0", "s_cbranch_scc1"))]


OPCODES: dict[str, Opcode] = {
    row.name: row for rows in (_vector_rows, _scalar_rows, _shared_rows, _global_rows, _control_rows) for row in rows()
}

#: Bytes a lane -> load from a buffer into shared memory, at M0 + offset + lane * bytes (CDNA3 ISA 9.1.9).
DIRECT: dict[int, Opcode] = {
    width: evolve(
        _memory(f"buffer_load_{LOAD_WIDTH[width]}", Unit.GLOBAL, width, *_BUFFER_ADDRESS), reads=(M0,), hazard=""
    )
    for width in sorted({width for facts in FACTS.values() for width in facts.direct_widths})
}


#: Constants and scalar registers would not do: hardware takes their bits 30 to 23 (LLVM pull request 158117).
_SCALES = Role("scales of a", "v", 1), Role("scales of b", "v", 1)


def _mfma(row: MfmaRow) -> Opcode:
    """Return the row of a matrix instruction.

    Its pipe is busy for its passes; other units may read its result 3 slots later (`hazards.py`: 2 to 4).
    """
    sums = row.rows * row.cols * row.blocks * row.acc.bytes // (4 * WAVE)
    sides = (row.rows, row.ab), (row.cols, row.b)
    a, b = (side * row.depth(of) * row.blocks * of.bytes // (4 * WAVE) for side, of in sides)
    return Opcode(
        row.mnemonic,
        Unit.MATRIX,
        latency=row.passes + 3,
        busy=row.passes,
        early_clobber=True,
        results=(Role("d", "va", sums),),
        sources=(Role("a", "va", a), Role("b", "va", b), Role("c", "va", sums), *(_SCALES if row.scaled else ())),
        hazard=row.hazard,
    )


#: Target -> name of an atom -> instruction and modifiers.
MATRIX: dict[str, dict[str, tuple[Opcode, tuple[str, ...]]]] = {
    t: {row.name: (_mfma(row), row.modifiers) for row in rows} for t, rows in MFMA.items()
}


def is_inline(value: int) -> bool:
    """Return whether an integer has an inline encoding, without a literal dword (CDNA3 ISA, "Operands": -16..64)."""
    return -16 <= value <= 64


#: slots of a SIMD's share; least time of a vector memory instruction on the address pipe, which takes 4 lanes a clock
#: (fitted to measured kernels: docs/time.md)
_ADDRESSES = WAVE // 4


def busy(core: Core, issuers: int, i: Instruction) -> int:
    """Return the slots that an instruction keeps its unit busy if `issuers` SIMDs issue it, at a target's rates."""
    slots = i.op.busy
    if i.op.unit not in SLOT_BYTES:
        return slots
    if i.op.unit is Unit.GLOBAL:
        slots = max(slots, _ADDRESSES)
    elif i.access is not None and not i.access.write:
        slots = max(1, slots * core.shared_rate // core.shared_read_rate)
    return -(-slots * issuers // core.simds)
