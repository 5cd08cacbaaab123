"""What differs between the platforms: one row each. Numbers and rules come from Intel's tools and documentation:
IGA (platform names, token counts), IGC's visa documentation (DPAS.md, DPASW.md) and SWSB pass (pipes, distances), the
NEO runtime (payload), the GPU occupancy calculator (local memory)."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from convgen.backends.sim.errors import SimulatorError, Unsupported


@attrs.frozen
class Platform:
    """One platform's numbers and capabilities."""

    name: str
    iga: str  #: iga64 -p=
    grf: int  #: bytes of a general register
    dpas_width: int  #: columns of a systolic operation = its execution size
    tokens: Mapping[int, int]  #: scoreboard tokens, by registers per thread
    max_slm: int  #: local memory of a workgroup
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
    local_id_bytes: int  #: per dimension, up to SIMD16
    distance_pipes: str  #: pipes that may stand beside a token on a send
    distance_beside_wait: bool  #: an ALU instruction may combine A@d with a token wait
    pitch_multiple: int = 8  #: of a 2-D block surface, in bytes
    distances: Mapping[str, int] = attrs.field(factory=lambda: {"F": 10, "I": 10, "L": 12, "M": 18})
    #: ^ an in-order instruction is done when so many later ones of its pipe have issued (IGA drops such dependencies)


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
)
XE2 = attrs.evolve(XEHPC, name="xe2", iga="xe2", send_war=False, pitch_multiple=16)

#: By product family of the compatibility note (NEO, igfxfmid.h).
PRODUCTS: Mapping[int, Platform] = {0x4F6: XEHPG, 0x4F7: XEHPC, 0x4FA: XE2, 0x4FB: XE2}
#: By graphics core family, for notes that name no product.
CORES: Mapping[int, Platform] = {0xC07: XEHPG, 0xC08: XEHPC, 0xC09: XE2}


def platform_of(product: int | None, core: int | None) -> Platform:
    """The platform that a code object's compatibility note names."""
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
