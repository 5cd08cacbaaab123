"""Differences between XeHPG, XeHPC and Xe2: one row each.

Sources: IGA (platform names, token counts), IGC's visa documentation (DPAS.md, DPASW.md) and SWSB pass (pipes,
distances), IGC's HWCaps.inc and workaround tables (missing operations; the names stand beside the fields), the NEO
runtime (payload), the GPU occupancy calculator (local memory).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from convgen.backends.intel.sim.messages import GPU, TILE
from convgen.backends.sim.errors import SimulatorError, Unsupported
from convgen.ir.record import evolve, frozen


@frozen(eq=False)
class Platform:
    """One platform's numbers and capabilities; there is one object of each."""

    name: str
    iga: str  #: iga64 -p=
    grf: int  #: bytes of a general register
    dpas_width: int  #: columns of a systolic operation = its execution size
    tokens: Mapping[int, int]  #: scoreboard tokens, by registers per thread
    max_slm: int  #: bytes of local memory of a workgroup
    flags: int  #: 32-bit flag registers
    long_integers: bool  #: 64-bit integer arithmetic is native
    long_integer_pipe: str
    doubles: bool
    math_pipe: str  #: "M", or "" where math is out of order and takes a token
    acc_wr_en: bool  #: addc, subb and mach write the accumulator only with {AccWrEn}
    mach_low: bool  #: mach without {AccWrEn} gives the low half (IGC prints such a pair as mul + mach)
    block2d: bool
    tf32: bool
    narrow_accumulators: bool  #: dpas with bf or hf accumulators
    dpasw: bool
    row_pair_alignment: bool  #: src2 of 8 rows starts at a register
    send_war: bool  #: "source read" does not release a send's payload (nGEN: ONEAPI_PVC_SEND_WAR_WA)
    local_id_bytes: int  #: bytes of a thread's local ids along a dimension, up to SIMD16
    distance_pipes: str  #: pipes that may stand beside a token on a send
    distance_beside_wait: bool  #: an ALU instruction may combine A@d with a token wait
    narrow_crossbar: bool  #: words and bytes reach only some places (IGC: native execution size above 8)
    byte_beyond_word: bool  #: bytes may lie in the upper word of a dword channel (supportsByteDestinationSubreg2Or3)
    half_to_integer: bool  #: hf converts to d and w (noHFToInteger)
    half_math_broadcast: bool  #: math takes one hf for all lanes (hasHFMathSrcBroadCast, Wa_22016140776)
    #: sel of dwords may give words from an odd dword on (hasSelWDstDwExecTypeAlignIssue, Wa_18027439769)
    odd_word_select: bool
    #: src1 words from an odd one on can become bytes (hasBDstWSrc1EvenAlignIssue, Wa_14017715663)
    odd_word_source: bool
    word_source_to_bytes: bool  #: src1 words two apart can become bytes (Wa_16012383669)
    float_vectors: bool  #: vf, and integer vectors for floating-point destinations (hasPackedRestrictedFloatVector)
    send_overlap: bool  #: a message's response may take its payload's place (WaDisableSendSrcDstOverlap)
    #: least scope of a fence that all threads of a launch share, as `messages` counts; XeHPC may run one on two tiles
    launch_scope: int
    #: an SLM fence orders the thread's earlier SLM loads, as LSC_FENCE.md says of all accesses; where not, a load is
    #: complete only when its destination was waited for, and a later store may overtake it (hasSLMWARIssue)
    slm_fence_orders_loads: bool
    fused: bool  #: threads 2k and 2k + 1 of a workgroup execute in lockstep (hasFusedEU)
    defects: frozenset[str]  #: kinds of `defects` that production steppings have (skuwa tables)
    plain_fences: bool  #: a fence that flushes nothing keeps its scope; else it is local (Mesa, Wa_14012437816)
    #: src0 addressed through a0 may meet a destination of two registers (Wa_13010473643)
    indirect_crossing: bool = True
    pitch_multiple: int = 8  #: bytes; the pitch of a 2-D block surface is a multiple
    #: pipe -> number of later instructions of the pipe after which an instruction is done (IGA drops such dependences)
    distances: Mapping[str, int] = attrs.field(factory=lambda: {"F": 10, "I": 10, "L": 12, "M": 18})


XEHPG = Platform(
    name="xehpg",
    iga="12p71",
    grf=32,
    dpas_width=8,
    tokens={128: 16, 256: 16},
    max_slm=64 << 10,
    flags=2,
    long_integers=False,
    long_integer_pipe="L",
    doubles=False,
    math_pipe="",
    acc_wr_en=True,
    mach_low=True,
    block2d=False,
    tf32=False,
    narrow_accumulators=False,
    dpasw=True,
    row_pair_alignment=False,
    send_war=False,
    local_id_bytes=32,
    distance_pipes="A",
    distance_beside_wait=False,
    narrow_crossbar=False,
    byte_beyond_word=False,
    half_to_integer=True,
    half_math_broadcast=True,
    odd_word_select=True,
    odd_word_source=True,
    word_source_to_bytes=True,
    float_vectors=True,
    send_overlap=True,
    launch_scope=TILE,
    slm_fence_orders_loads=False,
    fused=True,
    defects=frozenset({"code-end", "end-suppression", "send-suppression", "dpas-suppression"}),
    plain_fences=False,
)
XEHPC = Platform(
    name="xehpc",
    iga="12p72",
    grf=64,
    dpas_width=16,
    tokens={128: 16, 256: 32},
    max_slm=128 << 10,
    flags=4,
    long_integers=True,
    long_integer_pipe="I",
    doubles=True,
    math_pipe="M",
    acc_wr_en=False,
    mach_low=False,
    block2d=True,
    tf32=True,
    narrow_accumulators=True,
    dpasw=False,
    row_pair_alignment=True,
    send_war=True,
    local_id_bytes=64,
    distance_pipes="AFI",
    distance_beside_wait=True,
    narrow_crossbar=True,
    byte_beyond_word=True,
    half_to_integer=False,
    half_math_broadcast=False,
    odd_word_select=False,
    odd_word_source=False,
    word_source_to_bytes=True,
    float_vectors=True,
    send_overlap=False,
    launch_scope=GPU,
    slm_fence_orders_loads=False,
    fused=False,
    defects=frozenset({"code-end", "half-suppression"}),
    plain_fences=True,
)
XE2 = evolve(
    XEHPC,
    name="xe2",
    iga="xe2",
    send_war=False,
    half_to_integer=True,
    word_source_to_bytes=False,
    float_vectors=False,
    send_overlap=True,
    launch_scope=TILE,
    slm_fence_orders_loads=True,
    defects=frozenset({"mul-suppression"}),
    indirect_crossing=False,
    pitch_multiple=16,
)

#: By product family of the compatibility note (NEO, igfxfmid.h).
PRODUCTS: Mapping[int, Platform] = {0x4F6: XEHPG, 0x4F7: XEHPC, 0x4FA: XE2, 0x4FB: XE2}
#: By graphics core family, for notes that name no product.
CORES: Mapping[int, Platform] = {0xC07: XEHPG, 0xC08: XEHPC, 0xC09: XE2}


def platform_of(product: int | None, core: int | None) -> Platform:
    """Return the platform that a code object's compatibility note names."""
    if product is not None:
        if product in PRODUCTS:
            return PRODUCTS[product]
        raise Unsupported(f"code object for product family {product:#x}; the simulator knows {_known(PRODUCTS)}")
    if core is not None and core in CORES:
        return CORES[core]
    if core is not None:
        raise Unsupported(f"code object for graphics core {core:#x}; the simulator knows {_known(CORES)}")
    raise SimulatorError("the code object's .note.intelgt.compat names neither product nor graphics core")


def _known(table: Mapping[int, Platform]) -> str:
    return ", ".join(f"{key:#x} ({row.name})" for key, row in table.items())
