"""Differences between NVIDIA's generations, as rows: matrix instructions, memory and register capacities.

Layouts of matrix operands: PTX ISA, "Matrix Fragments for mma.m16n8k16" and other shapes. Capacities: CUDA C++
Programming Guide, "Compute Capabilities". Rates: NVIDIA's architecture white papers.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from convgen.backends.nvidia.tuning import TUNING
from convgen.ir.facts import Caches, Core, Roles, SharedPhases, TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type, bf16, f8_e4m3, f8_e5m2, f16, f32, f64, s8, s32, u8

LANES = 32
WARPGROUP = 4  #: warps (PTX ISA, "Warpgroup")
_SHARED_RATE = 128  #: bytes a clock of an SM, out of shared memory or into it (Best Practices Guide, "Shared Memory")
_R, _L = Space.REGISTER, Space.LANE


@frozen
class MmaRow:
    """One `mma.sync` of shape mMn8kK. Its rows are M, its columns N; so the factor `a` is its operand B, `b` its A."""

    k: int
    a: Type  #: type; of the factor along N
    b: Type  #: type; of the factor along M
    acc: Type
    rounds_to: str = ""  #: type to which inputs are truncated, if they are
    m: int = 16

    @property
    def shape(self) -> str:
        return f"m{self.m}n8k{self.k}"

    @property
    def mnemonic(self) -> str:
        """Return the instruction with the types of the manual's D, A, B and C."""
        kinds = self.acc.name, _INPUTS[self.b], _INPUTS[self.a], self.acc.name
        return f"mma.sync.aligned.{self.shape}.row.col.{'.'.join(kinds)}"

    @property
    def name(self) -> str:
        kinds = dict.fromkeys((_INPUTS[self.a], _INPUTS[self.b]))
        return f"mma.{self.shape}.{'.'.join(kinds)}"

    def atom(self, clocks: int) -> MmaAtom:
        """Return the atom; `b` has the fragment of the instruction's operand A, since lanes hold neighbours along N."""
        packed = max(1, 32 // self.a.bits)  # elements of a register
        steps, halves = self.k // (4 * packed), self.m // 8
        inner = (Digit("k", packed, _R, 1), Digit("k", 4, _L, 1))
        a = Fragment(("n", "k"), (Digit("n", 8, _L, 4), *inner, Digit("k", steps, _R, packed)))
        rows = Digit("m", 8, _L, 4), Digit("m", halves, _R, packed)
        b = Fragment(("m", "k"), (*rows, *inner, Digit("k", steps, _R, halves * packed)))
        columns = (Digit("n", 2, _R, 1), Digit("n", 4, _L, 1))
        d = Fragment(("n", "m"), (*columns, Digit("m", 8, _L, 4), Digit("m", halves, _R, 2)))
        types = self.a, self.b, self.acc
        return MmaAtom(self.name, 8, self.m, self.k, *types, a=a, b=b, d=d, clocks=clocks, rounds_to=self.rounds_to)


@frozen
class FmaRow:
    """Products by `fma`: lane (i, j) of 8 x 4 multiplies row i of N with row j of M, `k` elements of each."""

    elem: Type
    k: int

    @property
    def mnemonic(self) -> str:
        return f"fma.rn.{self.elem.name}"

    @property
    def name(self) -> str:
        return f"fma.8x4x{self.k}.{self.elem.name}"

    def atom(self, clocks: int) -> MmaAtom:
        """Return the atom; `clocks` are those of one `fma` of a warp."""
        inner = (Digit("k", self.k, _R, 1),)
        columns, rows = Digit("n", 8, _L, 1), Digit("m", 4, _L, 8)
        a, b = Fragment(("n", "k"), (columns, *inner)), Fragment(("m", "k"), (rows, *inner))
        d = Fragment(("n", "m"), (columns, rows))
        return MmaAtom(self.name, 8, 4, self.k, self.elem, self.elem, self.elem, a=a, b=b, d=d, clocks=clocks * self.k)


@frozen
class WgmmaRow:
    """One `wgmma.mma_async` of shape m64nNkK by a warpgroup; it reads its B, or both factors, from shared memory.

    Each warp holds a quarter of M, as sums of `mma.sync` of m16n8kK side by side along N. The atom's fragments `a` and
    `b` are those of the `mma.sync`. Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
    """

    n: int
    one: MmaRow  #: the `mma.sync` of one warp
    a_in_registers: bool = False  #: whether the manual's A is in registers

    @property
    def shape(self) -> str:
        return f"m{WARPGROUP * 16}n{self.n}k{self.one.k}"

    @property
    def mnemonic(self) -> str:
        """Return the instruction with the types of the manual's D, A and B."""
        kinds = self.one.acc.name, _INPUTS[self.one.b], _INPUTS[self.one.a]
        return f"wgmma.mma_async.sync.aligned.{self.shape}.{'.'.join(kinds)}"

    @property
    def name(self) -> str:
        kinds = dict.fromkeys((_INPUTS[self.one.a], _INPUTS[self.one.b]))
        return f"wgmma.{self.shape}.{'.'.join(kinds)}{'.registers' if self.a_in_registers else ''}"

    @property
    def takes_transposed(self) -> bool:
        """Return whether factors may be contiguous along their rows: 16-bit types only."""
        return self.one.a.bits == 16

    def atom(self, clocks: float) -> MmaAtom:
        """Return the atom; `clocks` are those of 8 columns on an SM."""
        one = self.one.atom(1)
        columns = self.n // one.n
        a, d = (evolve(side, digits=(*side.digits, Digit("n", columns, _R, side.registers))) for side in (one.a, one.d))
        warps = Digit("m", WARPGROUP, Space.SUBGROUP, 1)
        b, d = (evolve(side, digits=(*side.digits, warps)) for side in (one.b, d))
        sizes = self.n, one.m * WARPGROUP, one.k
        types = one.a_elem, one.b_elem, one.acc
        lines = sizes[0] + sizes[1] * (not self.a_in_registers)  # rows of factors that it reads
        read = lines * sizes[2] * one.elem_bytes / _SHARED_RATE  # clocks
        whole = ceil(max(columns * clocks, read))
        rounds_to, sum_bits = self.one.rounds_to, _SUM_BITS.get(one.a_elem, 0)
        return MmaAtom(
            self.name,
            *sizes,
            *types,
            a=a,
            b=b,
            d=d,
            clocks=whole,
            rounds_to=rounds_to,
            in_shared=True,
            b_in_registers=self.a_in_registers,
            sum_bits=sum_bits,
        )


#: Types of inputs as mnemonics have them.
_INPUTS = {
    f16: "f16", bf16: "bf16", f32: "tf32", f64: "f64", s8: "s8", u8: "u8", f8_e4m3: "e4m3", f8_e5m2: "e5m2"
}  # fmt: skip

MMA = (
    MmaRow(16, f16, f16, f32),
    MmaRow(16, bf16, bf16, f32),
    MmaRow(8, f32, f32, f32, rounds_to="xf32"),
    *(MmaRow(32, a, b, s32) for a, b in ((s8, s8), (u8, u8), (s8, u8), (u8, s8))),
)
MMA_F8 = tuple(MmaRow(32, a, b, f32) for a in (f8_e4m3, f8_e5m2) for b in (f8_e4m3, f8_e5m2))
#: m8n8k4 is for sm_80 and up, the others for sm_90 and up.
MMA_F64 = (MmaRow(4, f64, f64, f64, m=8), *(MmaRow(k, f64, f64, f64) for k in (16, 8, 4)))
FMA = (FmaRow(f32, 4), FmaRow(f64, 2))
#: Columns of `wgmma` that plans use; the manual has all multiples of 8 up to 256, for integers fewer.
_WGMMA_COLUMNS = (32, 64, 96, 128, 160, 192, 224, 256)
WGMMA = tuple(WgmmaRow(n, one) for one in (*MMA, *MMA_F8) for n in _WGMMA_COLUMNS)
WGMMA_OF_REGISTERS = tuple(WgmmaRow(n, one, True) for one in MMA if one.a.bits == 16 for n in _WGMMA_COLUMNS)
#: type of factors -> bits of `wgmma`'s sums where these are fewer than those of f32; measured on an H200:
#: 2^13 - 2^13 + 1 is 1, and 2^14 - 2^14 + 1 is 0
_SUM_BITS = {f8_e4m3: 14, f8_e5m2: 14}
_ALL: tuple[MmaRow | WgmmaRow | FmaRow, ...] = (*MMA, *MMA_F8, *MMA_F64, *WGMMA, *WGMMA_OF_REGISTERS, *FMA)
ROWS: dict[str, MmaRow | WgmmaRow | FmaRow] = {row.name: row for row in _ALL}


@frozen
class Rates:
    """Clocks of a sub-core for an instruction, dense."""

    mma: int  #: clocks; of m16n8k16 f16 with sums of f32, and of tf32, s8 and u8 instructions of as many bytes
    f32: int  #: clocks; of `fma.rn.f32`
    f64: int  #: clocks; of `fma.rn.f64`
    f8: int = 0  #: clocks; of m16n8k32 with 8-bit floats; 0 where there is none
    wgmma: float = 0  #: clocks of an SM; of 8 columns of m64nNk16 with f16, or of as many bytes; 0 where there is none
    #: rows of `mma.sync` with f64 -> clocks of that with four columns of K; none where it is no faster than `fma`. On
    #: an H200, 8 rows take as long as 16: products of 2048x2048x2048 547 and 286 us
    mma_f64: tuple[tuple[int, int], ...] = ()


def _phases(width: int) -> SharedPhases:
    """Return the lanes that shared memory serves together if each accesses `width` bytes: in order, 128 bytes a cycle.

    Source: CUDA C++ Best Practices Guide, "Shared Memory".
    """
    together = min(LANES, 128 // width)
    return SharedPhases(32, tuple(tuple(range(lane, lane + together)) for lane in range(0, LANES, together)))


def _atoms(rates: Rates) -> Iterator[MmaAtom]:
    """Yield the matrix instructions that `rates` has clocks for, those that plans prefer first."""
    if rates.wgmma:
        yield from (row.atom(rates.wgmma) for row in (*WGMMA, *WGMMA_OF_REGISTERS))
    yield from (row.atom(rates.mma) for row in MMA)
    if rates.f8:
        yield from (row.atom(rates.f8) for row in MMA_F8)
    for rows, clocks in rates.mma_f64:
        yield from (row.atom(clocks * row.k // 4) for row in MMA_F64 if row.m == rows)
    yield from (row.atom({f32: rates.f32, f64: rates.f64}[row.elem]) for row in FMA)


def _facts(name: str, *, shared: int, units: int, warps: int, caches: Caches, rates: Rates) -> TargetFacts:
    """Return the facts of a target: `shared` bytes of a workgroup, `units` SMs, `warps` resident on a sub-core."""
    return TargetFacts(
        name=name,
        subgroup_size=LANES,
        max_subgroups=32,
        shared_bytes=shared,
        registers=255,
        accumulators=0,
        compute_units=units,
        global_widths=(16, 8, 4, 2, 1),
        shared_widths=(16, 8, 4, 2, 1),
        # Messages have 32-bit immediate offsets, but no pass forms them: constants stay summands of 64-bit addresses,
        # and selection makes them immediates (`Selector._origin`).
        global_imm_max=0,
        shared_imm_max=(1 << 20) - 1,
        surface_max=0x7FFFFFFE,
        shared_read=_phases(16),
        matrix_reads=_phases(16),
        carried_fragments=False,
        computed_slots=True,
        ordered_lanes=False,  # CUDA C++ Programming Guide, "Independent Thread Scheduling"
        shared_half_read=_phases(8),
        shared_write=_phases(16),
        fused=frozenset(),
        atoms=tuple(_atoms(rates)),
        core=Core(
            simds=4,
            simd_registers=512,
            simd_subgroups=warps,
            register_granule=8,
            shared_rate=_SHARED_RATE,
            shared_read_rate=_SHARED_RATE,
            global_rate=64,
            global_granule=64,  # sectors of 32 bytes in pairs; runs of 32 bytes take twice the time of longer ones
        ),
        caches=caches,
        tuning=TUNING[name],
        flat=True,
        tickets=True,  # PTX ISA, "atom": .acq_rel.gpu
        message_alignment=16,
        direct_widths=(16, 8, 4),  # PTX ISA, "cp.async"
        permutes=True,
        # PTX ISA, "setmaxnreg": a warpgroup's warps together, multiples of 8; 24 suffice a lane that starts copies.
        roles=Roles(team=4, copying=24, granule=8, most=240) if rates.wgmma else None,
        conversions=("f8_e4m3", "f8_e5m2") if rates.f8 else (),  # PTX ISA, "cvt": sm_89 and up
    )


def _caches(l2_mib: int, memory: int) -> Caches:
    return Caches(
        l2_bytes=l2_mib << 20, line_bytes=128, store_rate=64, result_rate=64, fill_rate=4 * memory, memory_rate=memory
    )


#: SMs, and bytes a clock of memory, of an A100, an A10, an L40S, an H200 and an RTX 5090 (NVIDIA's data sheets). Clocks
#: of instructions follow from the peak rates of these sheets; those of `mma` on an H200 were measured: 639 TFLOP/s of
#: f16, 748 of e4m3, which ptxas computes by `mma` of f16 there.
FACTS: dict[str, TargetFacts] = {
    facts.name: facts
    for facts in (
        _facts(
            "sm_80",
            shared=163 << 10,
            units=108,
            warps=16,
            caches=_caches(40, 1100),
            rates=Rates(8, 2, 4, mma_f64=((8, 16),)),
        ),
        _facts("sm_86", shared=99 << 10, units=72, warps=12, caches=_caches(6, 350), rates=Rates(16, 1, 64)),
        _facts("sm_89", shared=99 << 10, units=142, warps=12, caches=_caches(96, 350), rates=Rates(16, 1, 64, f8=16)),
        *(
            _facts(name, shared=227 << 10, units=132, warps=16, caches=_caches(50, 2300), rates=rates)
            for name, rates in (
                ("sm_90", Rates(7, 1, 2, f8=12, mma_f64=((16, 16), (8, 16)))),
                ("sm_90a", Rates(7, 1, 2, f8=12, wgmma=4.2, mma_f64=((16, 16), (8, 16)))),
            )
        ),
        _facts("sm_120", shared=99 << 10, units=170, warps=12, caches=_caches(96, 750), rates=Rates(32, 1, 64, f8=32)),
    )
}

#: Least versions of PTX with a target and its rows (PTX ISA, "Release Notes"): 8.4 for `mma` of 8-bit floats, 8.7 for
#: sm_120. A driver takes versions up to its own.
PTX_VERSIONS = {"sm_80": "7.8", "sm_86": "7.8", "sm_89": "8.4", "sm_90": "8.4", "sm_90a": "8.4", "sm_120": "8.7"}

#: Targets that add and multiply bf16 (PTX ISA, "Half Precision Floating Point Instructions": sm_90 and up).
BF16_SUMS = ("sm_90", "sm_90a", "sm_120")

PRODUCTS: dict[str, tuple[str, ...]] = {
    "sm_80": ("a100", "a30"),
    "sm_86": ("a10", "a40", "rtx3090"),
    "sm_89": ("l40s", "l4", "rtx4090"),
    "sm_90": (),
    "sm_90a": ("h100", "h200"),
    "sm_120": ("rtx5090",),
}
