"""The Xe generations as rows: matrix instructions, register files, arithmetic, memory.

Sources: Intel Graphics Compiler, documentation/visa/instructions/DPAS.md and visa/HWCapsOpen.inc; oneDNN,
src/gpu/intel/jit (nGEN); Programmer's Reference Manuals of Alchemist and Ponte Vecchio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from itertools import product

from convgen.backends.family import check_rows
from convgen.backends.intel.family import FAMILY
from convgen.backends.intel.tuning import TUNING
from convgen.ir.facts import Caches, Core, PlaneLimits, SharedPhases, TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type, bf16, f16, f32, s8, s32, u8

DPAS_ROWS = 8  #: rows of the result: the repeat count that convgen uses
_DEPTH = 8  #: systolic depth: dwords of K


@frozen(kw_only=True)
class DeviceScope:
    """Fence descriptors of the global unit that order threads of different workgroups around an atomic operation.

    They equal those of IGC 1.0.12504 for OpenCL's acq_rel at device scope, except on XeHPC: IGC's stores bypass the
    first-level cache there, so its release needs no flush. Flushed lines are evicted (LSC_FENCE_OP_EVICT).
    """

    release: str
    acquire: str


_EVICT, _INVALIDATE = "0x0210171F", "0x0210271F"  #: at the scope of the GPU
_EVICT_ROUTED = "0x0214171F"  #: to the load and store unit in any mode (IGC, `translateLscFence`)


class Workaround(Enum):
    """Hardware defects, by Intel's numbers; `workarounds.py` describes them."""

    SOURCE_1_KEPT = "Wa_16012061344, Wa_16012292205, Wa_22012856258"
    SOURCE_1_KEPT_BEHIND_ARITHMETIC = "Wa_18023229625"
    HALVES_KEPT = "hasFPU0ReadSuppressionIssue"
    FACTORS_KEPT = "Wa_18035690555"
    END_WITH_LARGE_FILE = "Wa_14016880151"
    END_BEHIND_ATOMICS = "Wa_22013689345"
    BEHIND_THE_END = "Wa_16013338947"


@frozen
class Generation:
    """One generation of the vector engine."""

    lanes: int  #: dwords of a general register
    long_alu: bool  #: 64-bit integer additions in one instruction
    low_product: str  #: mnemonic that completes a 32 x 32-bit product to its lower half
    math_pipe: str  #: pipe of math functions; empty if they execute out of order and set a token
    carry_option: tuple[str, ...]  #: option by which an instruction also writes the accumulator
    flags: int  #: flag registers of 16 bits
    distance_pipes: frozenset[str]  #: pipes whose distance a send may wait for while it sets its token
    carried: frozenset[str]  #: token waits that arithmetic can carry besides a distance in its own pipe (by IGA)
    #: sources of a send may be overwritten only once the whole send is done (errata of Ponte Vecchio)
    waits_for_writes: bool
    #: whether a store to, or fence of, shared local memory may complete before an earlier load of the thread has read;
    #: it then waits for the results of endangered loads (IGC, `hasSLMWARIssue`; oneDNN, `slmFenceWARWA`)
    loads_overtaken: bool
    response_apart: bool  #: a message's response must not overlap its payload (IGC, WaDisableSendSrcDstOverlap)
    dpas_clocks: int  #: clocks of a matrix instruction of 8 rows and depth 8
    dpas_chains: frozenset[int]  #: numbers of the sources; one of them in common makes a chain (IGA, RegDeps)
    plane_pitch: int  #: bytes; the pitch of two-dimensional block messages is a multiple; 0: no such messages
    tf32: bool  #: matrix instructions for f32 inputs rounded to ten mantissa bits
    fences: DeviceScope
    #: whether threads 2k and 2k + 1 of a workgroup share an instruction pointer (EU fusion: IGC,
    #: `BarrierSkipOptimization`, CISABuilder.cpp, `CEncoder::Jump`) and have matrix instructions that share source 2
    #: (IGC, DPASW.md)
    pairs: bool
    workarounds: frozenset[Workaround]  #: defects of steppings that are sold (IGC, skuwa)
    tokens: Mapping[int, int]  #: scoreboard tokens by registers of a thread


_XEHPC = Generation(
    lanes=16,
    long_alu=True,
    low_product="macl",
    math_pipe="M",
    carry_option=(),
    flags=8,
    distance_pipes=frozenset("AFI"),
    carried=frozenset(("dst", "src")),
    waits_for_writes=True,
    loads_overtaken=True,
    response_apart=True,
    dpas_clocks=8,
    dpas_chains=frozenset((1, 2)),
    plane_pitch=8,
    tf32=True,
    fences=DeviceScope(release=_EVICT, acquire=_INVALIDATE),  # assumed for Xe2
    pairs=False,
    workarounds=frozenset((Workaround.BEHIND_THE_END, Workaround.HALVES_KEPT)),
    tokens={128: 16, 256: 32},
)
GENERATIONS: dict[str, Generation] = {
    "xehpg": Generation(
        lanes=8,
        long_alu=False,
        low_product="mach",
        math_pipe="",
        carry_option=("AccWrEn",),
        flags=4,
        distance_pipes=frozenset("A"),
        carried=frozenset(("dst",)),
        waits_for_writes=False,
        loads_overtaken=True,
        response_apart=False,
        dpas_clocks=16,
        dpas_chains=frozenset((1,)),
        plane_pitch=0,
        tf32=False,
        fences=DeviceScope(release=_EVICT_ROUTED, acquire=_EVICT_ROUTED),
        pairs=True,
        workarounds=frozenset(Workaround) - {Workaround.HALVES_KEPT, Workaround.FACTORS_KEPT},
        tokens={128: 16, 256: 16},
    ),
    "xehpc": _XEHPC,
    "xe2": evolve(
        _XEHPC,
        waits_for_writes=False,
        loads_overtaken=False,
        response_apart=False,
        plane_pitch=16,
        workarounds=frozenset((Workaround.FACTORS_KEPT,)),
    ),
}


#: Types of source 1, source 2 and accumulator; floats have one type, signs of integers may differ (IGC, DPAS.md,
#: DP4A.md).
Types = tuple[Type, Type, Type]
_FLOATS: tuple[Types, ...] = tuple((t, t, f32) for t in (f16, bf16))
_INTEGERS: tuple[Types, ...] = tuple((a, b, s32) for a, b in product((s8, u8), repeat=2))


@frozen
class MatrixRow:
    """The spelling of an atom's instructions."""

    mnemonic: str
    systolic: bool = True  #: one instruction of the matrix engine; False: one vector instruction per row of D


_DPAS, _DPASW = MatrixRow(f"dpas.8x{DPAS_ROWS}"), MatrixRow(f"dpasw.8x{DPAS_ROWS}")
_MAD, _DP4A = MatrixRow("mad", systolic=False), MatrixRow("dp4a", systolic=False)


def _atom(row: MatrixRow, types: Types, a: Fragment, b: Fragment, d: Fragment, clocks: int) -> MmaAtom:
    """Return the atom with these types and operands, named like `dpas.8x8.u8_s8`."""
    a_elem, b_elem, acc = types
    suffix = a_elem.name if a_elem is b_elem else f"{a_elem.name}_{b_elem.name}"
    return MmaAtom(
        f"{row.mnemonic}.{suffix}",
        n=d.extent("n"),
        m=d.extent("m"),
        k=a.extent("k"),
        a_elem=a_elem,
        b_elem=b_elem,
        acc=acc,
        a=a,
        b=b,
        d=d,
        clocks=clocks,
    )


def _dpas_atom(lanes: int, types: Types, clocks: int) -> MmaAtom:
    """Return `dpas.8x8` for `types` of a, b and accumulator: columns N of the matrix lie across the lanes.

    Source 1 (a): GRF d holds in lane i the elements of dword d of K. Source 2 (b): row j is eight adjacent dwords of K;
    rows follow one another across lanes and GRFs. Result: row j is one GRF (IGC, DPAS.md).
    """
    dword_elements = 4 // types[0].bytes
    per_grf = lanes // _DEPTH
    a = Fragment(("n", "k"), (Digit("n", lanes, Space.LANE, 1), Digit("k", _DEPTH * dword_elements, Space.REGISTER, 1)))
    b = Fragment(
        ("m", "k"),
        (
            Digit("m", per_grf, Space.LANE, _DEPTH),
            Digit("m", DPAS_ROWS // per_grf, Space.REGISTER, dword_elements),
            Digit("k", dword_elements, Space.REGISTER, 1),
            Digit("k", _DEPTH, Space.LANE, 1),
        ),
    )
    d = Fragment(("n", "m"), (Digit("n", lanes, Space.LANE, 1), Digit("m", DPAS_ROWS, Space.REGISTER, 1)))
    return _atom(_DPAS, types, a, b, d, clocks)


def _dpasw_atom(lanes: int, types: Types, clocks: int) -> MmaAtom:
    """Return `dpasw.8x8` of two neighbouring threads: each has its own columns N and half of the rows of source 2.

    The first registers of source 2 come from the even thread, the others from the odd one (IGC, DPASW.md).
    """
    alone, half = _dpas_atom(lanes, types, clocks), DPAS_ROWS // 2
    pair = Digit("n", 2, Space.SUBGROUP, 1)
    a = Fragment(("n", "k"), (*alone.a.digits, pair))
    dword_elements = 4 // types[0].bytes
    rows = (Digit("m", half, Space.REGISTER, dword_elements), Digit("m", 2, Space.SUBGROUP, 1))
    b = Fragment(("m", "k"), (*rows, *(d for d in alone.b.digits if d.dim == "k")))
    d = Fragment(("n", "m"), (*alone.d.digits, pair))
    return _atom(_DPASW, types, a, b, d, clocks)


def _vector_atom(row: MatrixRow, lanes: int, types: Types) -> MmaAtom:
    """Return a product on the vector engine: `lanes` instructions, each of one dword of b with all of a.

    `mad` multiplies and adds, `dp4a` adds the products of the four bytes of two dwords (IGC, MAD.md, DP4A.md).
    """
    k = 4 // types[0].bytes
    inner = (Digit("k", k, Space.REGISTER, 1),) if k > 1 else ()
    a, b = (Fragment((row, "k"), (Digit(row, lanes, Space.LANE, 1), *inner)) for row in "nm")
    d = Fragment(("n", "m"), (Digit("n", lanes, Space.LANE, 1), Digit("m", lanes, Space.REGISTER, 1)))
    return _atom(row, types, a, b, d, clocks=lanes)


def _atoms(g: Generation) -> Iterator[tuple[MatrixRow, MmaAtom]]:
    for types in (*_FLOATS, *_INTEGERS):
        yield _DPAS, _dpas_atom(g.lanes, types, g.dpas_clocks)
        if g.pairs:
            yield _DPASW, _dpasw_atom(g.lanes, types, g.dpas_clocks)
    single = f32, f32, f32
    if g.tf32:
        tf32 = _dpas_atom(g.lanes, single, g.dpas_clocks)
        yield _DPAS, evolve(tf32, name=f"{_DPAS.mnemonic}.tf32", rounds_to="xf32")
    yield _MAD, _vector_atom(_MAD, g.lanes, single)
    for types in _INTEGERS:
        yield _DP4A, _vector_atom(_DP4A, g.lanes, types)


#: Name of an atom -> its row, over all generations.
MATRIX = {atom.name: row for g in GENERATIONS.values() for row, atom in _atoms(g)}


def _planes(pitch: int) -> PlaneLimits:
    """Return the limits of two-dimensional block messages (oneDNN, block_2d_utils.hpp; LLVM's XeGPU documentation).

    Hardware loads up to 32 registers, but the descriptor counts to 31, and IGA's load and store text rejects more; 16
    is the next power of two. Narrow elements allow a count of 4, which is not used, dwords of 2.
    """
    return PlaneLimits(
        pitch,
        align=64,
        least=64,
        most=1 << 24,
        row=64,
        transposed_row=32,
        loaded_rows=32,
        stored_rows=8,
        count=2,
        registers=16,
    )


_A770 = Caches(
    unit_bytes=192 << 10,  # Intel's Arc graphics optimisation guide
    l2_bytes=16 << 20,  # Intel's product page of the Arc A770
    line_bytes=64,  # Programmer's Reference Manuals
    store_rate=2048,  # assumed: never the bottleneck
    result_rate=64,  # assumed
    fill_rate=267,  # equal to memory: no cache in between
    memory_rate=267,  # 560 GB/s at 2.1 GHz: Intel's product page
)
_MAX1550 = evolve(
    _A770,
    unit_bytes=512 << 10,  # Intel's technical overview of the Data Center GPU Max
    # Intel's technical overview of the Data Center GPU Max; both stacks, whose distance is not modelled
    l2_bytes=408 << 20,
    fill_rate=2048,  # equal to memory
    memory_rate=2048,  # 3.28 TB/s at 1.6 GHz: Intel's product page
)
_B580 = evolve(
    _A770,
    unit_bytes=256 << 10,  # public measurements of Xe2
    l2_bytes=18 << 20,  # public measurements of Xe2
    fill_rate=171,  # equal to memory
    memory_rate=171,  # 456 GB/s at 2.67 GHz: Intel's product page
)


_CORE = Core(
    simds=8,  # vector engines of a Xe core: those of a Data Center GPU Max 1550 and an Arc B580
    simd_registers=1024,  # 8 threads of 128 registers or 4 of 256: Programmer's Reference Manuals
    simd_subgroups=8,  # Programmer's Reference Manuals
    register_granule=128,  # the smaller register file of a thread
    shared_rate=128,  # assumed
    shared_read_rate=128,  # assumed
    global_rate=64,  # assumed
    reorders=False,
)
_CORE_A770 = evolve(_CORE, simds=16)

#: Operations with three sources, in all lanes or in one: IGC, ADD3.md and MAD.md. That a factor of `mad` has 16 bits
#: follows from oneDNN's generator.
_FUSED = frozenset(("add3", "mad16"))


def _facts(name: str, *, core: Core, caches: Caches, units: int, slm: int, subgroups: int) -> TargetFacts:
    """Return the facts of a target with `units` Xe cores, and `slm` bytes and `subgroups` threads for a workgroup."""
    g = GENERATIONS[name]
    # shared local memory serves a dword of every lane at once from 32 banks (assumed; no manual says)
    phases = SharedPhases(32, (tuple(range(g.lanes)),))
    return TargetFacts(
        name=name,
        subgroup_size=g.lanes,
        max_subgroups=subgroups,
        shared_bytes=slm,
        registers=256,
        accumulators=0,
        compute_units=units,
        global_widths=(32, 16, 12, 8, 4, 2, 1),
        shared_widths=(32, 16, 12, 8, 4, 2, 1),
        global_imm_max=0,
        # Messages have no immediate offset: selection adds it in the instruction that moves the address to its payload,
        # which is needed anyway. So any offset into a workgroup's memory is free.
        shared_imm_max=(1 << 20) - 1,
        surface_max=0x7FFFFFFE,
        shared_read=phases,
        shared_half_read=phases.narrower(2),
        shared_write=phases,
        fused=_FUSED,
        atoms=tuple(atom for _, atom in _atoms(g)),
        core=core,
        caches=caches,
        uniform_fused=_FUSED,
        fused_imm_bits=16,  # immediates of three-source instructions: IGC, ADD3.md
        fused_signs=True,  # IGC, ADD3.md
        tuning=evolve(TUNING[name], stream_rate=max(1, caches.memory_rate // units)),  # equal to memory
        flat=True,
        planes=_planes(g.plane_pitch) if g.plane_pitch else None,
        prefetch=True,
        lockstep=2 if g.pairs else 0,
        lane_words=True,  # regions of stride 0: Programmer's Reference Manuals
        split_barriers=True,
        tickets=True,
        block_bytes=512,
        chunk_bytes=32,
    )


#: Xe cores of an Arc A770, a Data Center GPU Max 1550 and an Arc B580 (Intel's product pages). Shared local memory and
#: threads of a workgroup: limits of the driver.
_ROWS: dict[str, Callable[[str], TargetFacts]] = {
    "xehpg": partial(_facts, core=_CORE_A770, caches=_A770, units=32, slm=65536, subgroups=64),
    "xehpc": partial(_facts, core=_CORE, caches=_MAX1550, units=128, slm=131072, subgroups=32),
    "xe2": partial(_facts, core=_CORE, caches=_B580, units=20, slm=131072, subgroups=32),
}

check_rows(FAMILY, {"tables.py: GENERATIONS": GENERATIONS, "tuning.py: TUNING": TUNING, "tables.py: FACTS": _ROWS})
FACTS: dict[str, TargetFacts] = {name: row(name) for name, row in _ROWS.items()}
