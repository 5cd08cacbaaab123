"""The CDNA generations as rows: matrix instructions, memory and register capacities.

Sources: CDNA2, CDNA3 and CDNA4 ISA documents. The tests check mnemonics and register widths against the assembler, MFMA
passes against llvm-mca's scheduling model and AMD's matrix instruction calculator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import attrs

from convgen.backends.amdgpu.chips import USUAL
from convgen.backends.amdgpu.family import FAMILY
from convgen.backends.amdgpu.tuning import TUNING
from convgen.backends.family import check_rows
from convgen.ir.facts import Caches, Core, SharedPhases, TargetFacts
from convgen.ir.fused import MEANING
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mma import BlockAtom, MmaAtom
from convgen.ir.record import evolve, frozen
from convgen.ir.types import (
    Type,
    bf16,
    f4_e2m1,
    f6_e2m3,
    f6_e3m2,
    f8_e4m3,
    f8_e4m3fnuz,
    f8_e5m2,
    f8_e5m2fnuz,
    f16,
    f32,
    f64,
    s8,
    s32,
    u8,
)

WAVE = 64
#: Hazard classes of matrix instructions: narrow inputs (including xf32), f32, f64.
XDL, SGEMM, DGEMM = "xdl", "sgemm", "dgemm"
WORD_GROUP = 4  #: consecutive rows of a 32-bit result in one lane


@frozen
class MfmaRow:
    """One dense MFMA, `rows x cols x k`, with one product or several in blocks.

    Integers are signed (CDNA3 ISA 7, "Matrix Arithmetic Instructions": there is no unsigned form). If modifiers select
    the input types, there is a row for each pair of types.
    """

    mnemonic: str
    rows: int
    cols: int
    k: int
    ab: Type  #: type of both inputs, or of the first one; numbers of fewer than 8 bits are packed in bytes
    acc: Type  #: type of accumulators
    passes: int = attrs.field(kw_only=True)  #: passes of 4 clocks; until the next such instruction
    hazard: str = attrs.field(kw_only=True)  #: hazard class in the manuals' tables
    rounds_to: str = attrs.field(default="", kw_only=True)  #: type that inputs are rounded to, if not their own
    second: Type | None = attrs.field(default=None, kw_only=True)  #: type of the second input, if it is another
    #: codes of the input types, for modifiers
    formats: tuple[int, int] | None = attrs.field(default=None, kw_only=True)
    blocks: int = attrs.field(default=1, kw_only=True)  #: independent products
    #: whether it multiplies inputs by scales of type e8m0, one for `SCALED` numbers along K
    scaled: bool = attrs.field(default=False, kw_only=True)

    @property
    def b(self) -> Type:
        """Return the type of the second input."""
        return self.second or self.ab

    @property
    def name(self) -> str:
        """Return the mnemonic, with the input types if modifiers select them."""
        names = (NARROW_NAMES[of] for of in (self.ab, self.b)) if self.formats else ()
        return f"{self.mnemonic}.{'_'.join(names)}" if self.formats else self.mnemonic

    @property
    def modifiers(self) -> tuple[str, ...]:
        """Return the modifiers of the instruction; code 0 is the default and omitted."""
        codes = zip(("cbsz", "blgp"), self.formats or ())
        return tuple(f"{field}:{code}" for field, code in codes if code)

    def depth(self, of: Type) -> int:
        """Return the elements along K of an input of numbers of that type: numbers, or the bytes that pack them."""
        return self.k * min(of.bits, _BYTE) // _BYTE

    def block(self) -> BlockAtom:
        """Return the instruction as an atom of many small products.

        Lane i + side * block has row i of A and column i of B and D; its registers hold K, or the rows of D (CDNA3 ISA
        7.1, "MFMA register layouts").
        """
        return BlockAtom(self.name, self.rows, self.k, self.ab, self.acc, 4 * self.passes)

    def atom(self) -> MmaAtom:
        """Return the instruction with the layouts of its operands.

        The manual's rows, adjacent in a lane of D, are our N. K counts elements of the input that has more of them.
        """
        inputs = self.ab, self.b
        return MmaAtom(
            self.name,
            n=self.rows,
            m=self.cols,
            k=max(map(self.depth, inputs)),
            a_elem=_element(self.ab),
            b_elem=_element(self.b),
            acc=self.acc,
            a=self._operand("n", self.ab),
            b=self._operand("m", self.b),
            d=self._result(),
            clocks=4 * self.passes,
            rounds_to=self.rounds_to,
            scales=(self._scales("n", self.ab), self._scales("m", self.b)) if self.scaled else None,
            packed=(_packed(self.ab), _packed(self.b)),
        )

    def _scales(self, row: str, of: Type) -> Fragment:
        """Return the layout of the scales of A (`row` n) or B (m): lane n + rows * (number along K // 32) has one.

        Source: Triton, LinearLayoutConversions.cpp, chooseScaledMfmaScaleLayout. Its comment says that a lane's scale
        need not be that of the lane's own numbers, since a lane holds parts of two runs of 8-bit numbers.
        """
        digits = Digit(row, self.rows, Space.LANE, 1), Digit("k", SCALED * self.depth(of) // self.k, Space.FIXED, 0)
        return Fragment((row, "k"), (*digits, Digit("k", self.k // SCALED, Space.LANE, self.rows)))

    def _operand(self, row: str, of: Type) -> Fragment:
        """Return the layout of A (`row` n) or B (m), whose numbers have the type `of`.

        Lane = n + rows * (k // kpl), element k % kpl, where kpl = rows * k / 64 elements a lane (CDNA3 ISA 7.1, "MFMA
        register layouts"). With formats of 8 bits a lane holds a part of each half of K (CDNA4 ISA 7.1).
        """
        halves = 2 if self.formats and of.bits == _BYTE else 1
        together = self.rows * self.depth(of) // WAVE // halves
        digits = (
            Digit(row, self.rows, Space.LANE, 1),
            Digit("k", together, Space.REGISTER, 1),
            Digit("k", WAVE // self.rows, Space.LANE, self.rows),
        )
        outer = (Digit("k", halves, Space.REGISTER, together),) if halves > 1 else ()
        return Fragment((row, "k"), digits + outer)

    def _result(self) -> Fragment:
        """Return the layout of C and D.

        Groups of 4 consecutive rows (of 1 for 64-bit elements) lie in the registers of a lane; the next groups go to
        further lanes, then to further registers (CDNA3 ISA 7.1, "MFMA register layouts").
        """
        own, groups = WORD_GROUP if self.acc.bits == 32 else 1, WAVE // self.rows
        return Fragment(
            ("n", "m"),
            (
                Digit("n", own, Space.REGISTER, 1),
                Digit("n", groups, Space.LANE, self.cols),
                Digit("n", self.rows // (own * groups), Space.REGISTER, own),
                Digit("m", self.cols, Space.LANE, 1),
            ),
        )


SCALED = 32  #: numbers along K that share a scale (CDNA4 ISA 7.1)
#: fp8 type -> name in mnemonics; the target decides which of the two forms it means
F8_NAMES = {f8_e4m3: "fp8", f8_e4m3fnuz: "fp8", f8_e5m2: "bf8", f8_e5m2fnuz: "bf8"}
#: type that modifiers select -> name
NARROW_NAMES = {**F8_NAMES, f6_e2m3: "fp6", f6_e3m2: "bf6", f4_e2m1: "fp4"}
#: type -> its code in cbsz, for A, and blgp, for B (CDNA4 ISA 7.1)
_CODES = {f8_e4m3: 0, f8_e5m2: 1, f6_e2m3: 2, f6_e3m2: 3, f4_e2m1: 4}
_BYTE = 8  #: bits


def _element(of: Type) -> Type:
    """Return the type of the elements of an input: bytes, if these pack its numbers."""
    return of if of.bits >= _BYTE else u8


def _packed(of: Type) -> Type | None:
    """Return the type of the numbers that are packed in the elements of an input, if they are."""
    return of if of.bits < _BYTE else None


def _f8_rows(*types: Type) -> tuple[MfmaRow, ...]:
    """Return products of any two of the types whose mnemonics name both."""
    return tuple(
        MfmaRow(
            f"v_mfma_f32_{m}x{m}x{k}_{F8_NAMES[a]}_{F8_NAMES[b]}", m, m, k, a, f32, passes=passes, hazard=XDL, second=b
        )
        for m, k, passes in ((32, 16, 8), (16, 32, 4))
        for a, b in product(types, repeat=2)
    )


def _f8f6f4_rows(*types: Type, scaled: bool = False) -> tuple[MfmaRow, ...]:
    """Return products of any two of the types that modifiers select.

    With an input of 8 bits they take twice the passes of those without (CDNA4 ISA 7.1). A second source that tells the
    formats apart was not found: llvm-mca gives all of them one latency.
    """
    return tuple(
        MfmaRow(
            f"v_mfma_{'scale_' * scaled}f32_{m}x{m}x{k}_f8f6f4",
            *(m, m, k, a, f32),
            passes=passes // (1 if _BYTE in (a.bits, b.bits) else 2),
            hazard=XDL,
            second=b,
            formats=(_CODES[a], _CODES[b]),
            scaled=scaled,
        )
        for m, k, passes in ((32, 64, 16), (16, 128, 8))
        for a, b in product(types, repeat=2)
    )


_CDNA2_MFMA = (
    MfmaRow("v_mfma_f32_32x32x8f16", 32, 32, 8, f16, f32, passes=16, hazard=XDL),
    MfmaRow("v_mfma_f32_16x16x16f16", 16, 16, 16, f16, f32, passes=8, hazard=XDL),
    MfmaRow("v_mfma_f32_32x32x8bf16_1k", 32, 32, 8, bf16, f32, passes=16, hazard=XDL),
    MfmaRow("v_mfma_f32_16x16x16bf16_1k", 16, 16, 16, bf16, f32, passes=8, hazard=XDL),
    MfmaRow("v_mfma_f32_32x32x2f32", 32, 32, 2, f32, f32, passes=16, hazard=SGEMM),
    MfmaRow("v_mfma_f32_16x16x4f32", 16, 16, 4, f32, f32, passes=8, hazard=SGEMM),
    MfmaRow("v_mfma_f64_16x16x4f64", 16, 16, 4, f64, f64, passes=8, hazard=DGEMM),
    MfmaRow("v_mfma_i32_32x32x8i8", 32, 32, 8, s8, s32, passes=16, hazard=XDL),
    MfmaRow("v_mfma_i32_16x16x16i8", 16, 16, 16, s8, s32, passes=8, hazard=XDL),
)
_CDNA3_MFMA = (
    MfmaRow("v_mfma_f32_32x32x8_f16", 32, 32, 8, f16, f32, passes=8, hazard=XDL),
    MfmaRow("v_mfma_f32_16x16x16_f16", 16, 16, 16, f16, f32, passes=4, hazard=XDL),
    MfmaRow("v_mfma_f32_32x32x8_bf16", 32, 32, 8, bf16, f32, passes=8, hazard=XDL),
    MfmaRow("v_mfma_f32_16x16x16_bf16", 16, 16, 16, bf16, f32, passes=4, hazard=XDL),
    MfmaRow("v_mfma_f32_32x32x2_f32", 32, 32, 2, f32, f32, passes=16, hazard=SGEMM),
    MfmaRow("v_mfma_f32_16x16x4_f32", 16, 16, 4, f32, f32, passes=8, hazard=SGEMM),
    MfmaRow("v_mfma_i32_32x32x16_i8", 32, 32, 16, s8, s32, passes=8, hazard=XDL),
    MfmaRow("v_mfma_i32_16x16x32_i8", 16, 16, 32, s8, s32, passes=4, hazard=XDL),
)
_CDNA3_ONLY = (
    MfmaRow("v_mfma_f32_32x32x4_xf32", 32, 32, 4, f32, f32, passes=8, hazard=XDL, rounds_to="xf32"),
    MfmaRow("v_mfma_f32_16x16x8_xf32", 16, 16, 8, f32, f32, passes=4, hazard=XDL, rounds_to="xf32"),
    MfmaRow("v_mfma_f64_16x16x4_f64", 16, 16, 4, f64, f64, passes=8, hazard=DGEMM),
)
_CDNA4_MFMA = (
    MfmaRow("v_mfma_f32_32x32x16_f16", 32, 32, 16, f16, f32, passes=8, hazard=XDL),
    MfmaRow("v_mfma_f32_16x16x32_f16", 16, 16, 32, f16, f32, passes=4, hazard=XDL),
    MfmaRow("v_mfma_f32_32x32x16_bf16", 32, 32, 16, bf16, f32, passes=8, hazard=XDL),
    MfmaRow("v_mfma_f32_16x16x32_bf16", 16, 16, 32, bf16, f32, passes=4, hazard=XDL),
    MfmaRow("v_mfma_f64_16x16x4_f64", 16, 16, 4, f64, f64, passes=16, hazard=DGEMM),
    MfmaRow("v_mfma_i32_32x32x32_i8", 32, 32, 32, s8, s32, passes=8, hazard=XDL),
    MfmaRow("v_mfma_i32_16x16x64_i8", 16, 16, 64, s8, s32, passes=4, hazard=XDL),
)


def _blocks(spelling: str, one_k: str = "") -> tuple[MfmaRow, ...]:
    """Return 4 x 4 products in 16 blocks; `spelling` formats the mnemonic, `one_k` ends that of bf16."""
    kinds = ((f16, f32, ""), (bf16, f32, one_k), (s8, s32, ""))
    return tuple(
        MfmaRow(
            spelling.format(acc=acc.name.replace("s", "i"), ab=ab.name.replace("s8", "i8")) + end,
            *(4, 4, 4, ab, acc),
            passes=2,
            hazard=XDL,
            blocks=16,
        )
        for ab, acc, end in kinds
    )


_CDNA2_BLOCKS = _blocks("v_mfma_{acc}_4x4x4{ab}", "_1k")
_CDNA3_BLOCKS = _blocks("v_mfma_{acc}_4x4x4_16b_{ab}")

_WIDEST_READ = 16  #: bytes a lane


def _both_halves(lanes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    return lanes + tuple(tuple(lane + 32 for lane in phase) for phase in lanes)


#: ds_read_b128 and ds_write_b128 over 32 banks, eight lanes a phase (CK-Tile documentation, "LDS bank conflicts").
_READ_B128_32 = SharedPhases(
    32,
    _both_halves(
        (
            (0, 1, 2, 3, 20, 21, 22, 23),
            (4, 5, 6, 7, 16, 17, 18, 19),
            (8, 9, 10, 11, 28, 29, 30, 31),
            (12, 13, 14, 15, 24, 25, 26, 27),
        )
    ),
)
_WRITE_B128_32 = SharedPhases(32, tuple(tuple(range(p * 8, p * 8 + 8)) for p in range(8)))
#: CDNA4 reads over 64 banks, sixteen lanes a phase (measured by HipKittens on MI350X); writes are those of CDNA3.
_READ_B128_64 = SharedPhases(
    64,
    _both_halves(
        (
            (0, 1, 2, 3, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25, 26, 27),
            (4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 28, 29, 30, 31),
        )
    ),
)


#: ds_read_b64: lanes in order, sixteen a phase (fits MIOpen's kernels on an MI300X).
_READ_B64_32 = _WRITE_B128_32.narrower(2)
#: ds_read_b64 as HipKittens measured it on an MI350X; assumed for ds_read_b64_tr_b16 (CDNA4 ISA 11).
_READ_B64_64 = SharedPhases(banks=64, phases=(tuple(range(32)), tuple(range(32, 64))))

#: fp8 mnemonics mean the FNUZ forms on CDNA3 and the OCP forms on CDNA4 (ISA, "8-bit floating point").
_CDNA3_CONVERSIONS = ("f8_e4m3fnuz", "f8_e5m2fnuz")
_CDNA4_CONVERSIONS = ("f16x2", "bf16x2", "f8_e4m3", "f8_e5m2")


_CORE = Core(
    simds=4,  # LLVM, getEUsPerCU
    simd_registers=512,  # VGPRs and AGPRs together: LLVM, getTotalNumVGPRs of gfx90a and later
    simd_subgroups=8,  # CDNA3 ISA, "Wavefront occupancy"
    register_granule=8,  # LLVM, getVGPRAllocGranule of gfx90a and later
    shared_rate=128,  # CDNA3 ISA 11
    shared_read_rate=128,  # CDNA3 ISA 11; `_facts` replaces it by that of the widest reads
    global_rate=64,  # L1 cache; assumed, MIOpen's kernels on an MI300X have 63
    global_granule=64,  # half a line: docs/time.md
)
# AITER's kernels have 35; among 36 to 64 it ranks best in `bench/chosen.py`
_CORE_MI355X = evolve(_CORE, global_rate=48)

_GCD = Caches(
    l2_bytes=8 << 20,  # CDNA2 white paper
    line_bytes=128,
    channels=32,  # ROCm Compute Profiler documentation, "L2 cache (TCC)"; its address hash is not modelled: assumed
    channel_bytes=256,  # ROCm Compute Profiler documentation, "L2 cache (TCC)"
    store_rate=64,  # CDNA3 white paper; assumed for CDNA2
    result_rate=4,  # fitted to public GEMM times: 3.5 to 5, and 6 for assembly on gfx950
    fill_rate=960,  # equal to memory: no cache in between
    memory_rate=960,  # 1.6 TB/s at 1.7 GHz: AMD's data sheet of the MI250X, one die
)
_MI300X = Caches(
    l2_bytes=4 << 20,  # CDNA3 white paper
    memory_side_bytes=256 << 20,  # CDNA3 white paper, "Infinity Cache"
    line_bytes=128,
    channels=16,  # CDNA3 white paper; selected by the lowest bits: assumed
    channel_bytes=256,  # assumed equal to _GCD
    store_rate=64,  # CDNA3 white paper
    result_rate=4,  # assumed equal to _GCD
    fill_rate=8190,  # 17.2 TB/s at 2.1 GHz: CDNA3 white paper
    memory_rate=2520,  # 5.3 TB/s at 2.1 GHz: AMD's data sheet of the MI300X
)
_MI355X = evolve(
    _MI300X,
    result_rate=6,
    fill_rate=7170,  # 17.2 TB/s at 2.4 GHz: assumed equal to the MI300X
    memory_rate=3330,  # 8 TB/s at 2.4 GHz: AMD's data sheet of the MI355X
)


def _facts(
    name: str,
    *,
    lds: int,
    core: Core = _CORE,
    caches: Caches,
    read: SharedPhases,
    half_read: SharedPhases,
    conversions: tuple[str, ...] = (),
    direct: tuple[int, ...] = (4,),
    transposed: SharedPhases | None = None,
) -> TargetFacts:
    """Return the facts of a target with `lds` bytes of LDS per CU."""
    return TargetFacts(
        name=name,
        subgroup_size=WAVE,
        max_subgroups=16,  # 1024 work-items: LLVM, getMaxFlatWorkGroupSize
        shared_bytes=lds,
        registers=256,
        accumulators=256,
        compute_units=USUAL[name].units,
        global_widths=(16, 12, 8, 4, 2, 1),
        shared_widths=(16, 8, 4, 2, 1),
        global_imm_max=4095,  # CDNA3 ISA, MUBUF: 12 bits
        shared_imm_max=65535,  # CDNA3 ISA, DS: 16 bits
        # A masked lane's offset is 0x80000000, which must lie outside every surface.
        surface_max=0x7FFFFFFE,
        shared_read=read,
        shared_half_read=half_read,
        shared_write=_WRITE_B128_32,
        fused=frozenset(MEANING) - {"mad16"},
        uniform_shifts=4,  # S_LSHL1_ADD_U32 to S_LSHL4_ADD_U32: CDNA3 ISA, SOP2
        atoms=tuple(row.atom() for row in MFMA[name] if row.blocks == 1 and not row.scaled),
        scaled_atoms=tuple(row.atom() for row in MFMA[name] if row.scaled),
        blocks=tuple(row.block() for row in MFMA[name] if row.blocks > 1),
        core=evolve(core, shared_read_rate=_WIDEST_READ * WAVE // len(read.phases)),  # a phase a clock
        caches=evolve(caches, dies=USUAL[name].partitions),
        tuning=TUNING[name],
        conversions=conversions,
        tickets=True,
        grid_items=(1 << 32) - 1,  # an AQL packet counts them in 32 bits: hsa_kernel_dispatch_packet_t, grid_size_x
        direct_widths=direct,
        transposed_reads=transposed,
        permutes=True,
    )


MFMA: dict[str, tuple[MfmaRow, ...]] = {
    "gfx90a": _CDNA2_MFMA + _CDNA2_BLOCKS,
    "gfx942": _CDNA3_ONLY + _CDNA3_MFMA + _CDNA3_BLOCKS + _f8_rows(f8_e4m3fnuz, f8_e5m2fnuz),
    "gfx950": _CDNA4_MFMA
    + _CDNA3_MFMA
    + _CDNA3_BLOCKS
    + _f8f6f4_rows(f8_e4m3, f8_e5m2)
    + _f8_rows(f8_e4m3, f8_e5m2)
    + _f8f6f4_rows(f8_e4m3, f8_e5m2, f6_e2m3, f6_e3m2, f4_e2m1, scaled=True),
}


@frozen(kw_only=True)
class AgentScope:
    """Instructions that order accesses of different workgroups.

    LLVM, AMDGPUUsage, "Memory Model": acq_rel at agent scope.
    """

    release: tuple[str, ...]  #: mnemonic and modifiers; writes caches back after stores; empty if stores suffice
    returns: str  #: modifier of an atomic operation that returns the old value
    acquire: tuple[str, ...]  #: mnemonic and modifiers; invalidates caches before loads


_CDNA3_SCOPE = AgentScope(release=("buffer_wbl2", "sc1"), returns="sc0", acquire=("buffer_inv", "sc1"))
SCOPES: dict[str, AgentScope] = {
    "gfx90a": AgentScope(release=(), returns="glc", acquire=("buffer_wbinvl1_vol",)),
    "gfx942": _CDNA3_SCOPE,
    "gfx950": _CDNA3_SCOPE,
}

#: CUs and XCDs are those of the chip in `USUAL`. LDS: the ISA documents.
_ROWS: dict[str, Callable[[str], TargetFacts]] = {
    "gfx90a": partial(_facts, lds=65536, caches=_GCD, read=_READ_B128_32, half_read=_READ_B64_32),
    "gfx942": partial(
        _facts, lds=65536, caches=_MI300X, read=_READ_B128_32, half_read=_READ_B64_32, conversions=_CDNA3_CONVERSIONS
    ),
    "gfx950": partial(
        _facts,
        lds=163840,
        core=_CORE_MI355X,
        caches=_MI355X,
        read=_READ_B128_64,
        half_read=_READ_B64_64,
        conversions=_CDNA4_CONVERSIONS,
        direct=(16, 12, 4),  # CDNA4 ISA 9.1.9; CDNA2 and CDNA3 load dwords only
        transposed=_READ_B64_64,
    ),
}

#: Processor -> accelerators that have it (ROCm documentation, "Accelerator and GPU hardware specifications").
PRODUCTS: dict[str, tuple[str, ...]] = {
    "gfx90a": ("mi210", "mi250", "mi250x"),
    "gfx942": ("mi300a", "mi300x", "mi308x", "mi325x"),
    "gfx950": ("mi350x", "mi355x"),
}

check_rows(
    FAMILY,
    {
        "family.py: first_llvm": FAMILY.first_llvm,
        "chips.py: USUAL": USUAL,
        "tuning.py: TUNING": TUNING,
        "tables.py: MFMA": MFMA,
        "tables.py: FACTS": _ROWS,
    },
)
FACTS: dict[str, TargetFacts] = {name: row(name) for name, row in _ROWS.items()}
