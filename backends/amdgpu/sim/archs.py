"""Differences between gfx90a, gfx942 and gfx950, except hazards (`hazards`) and matrix shapes (`mfma_table`)."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.backends.sim.errors import SimulatorError
from convgen.ir.record import frozen

Phases = tuple[tuple[int, ...], ...]


def _spread(first_half: Phases) -> Phases:
    """Return the phases of lanes 0 to 31, followed by those of lanes 32 to 63 in equal order."""
    return first_half + tuple(tuple(lane + 32 for lane in phase) for phase in first_half)


def _consecutive(lanes: int) -> Phases:
    return tuple(tuple(range(start, start + lanes)) for start in range(0, 64, lanes))


@frozen
class BankPhases:
    """LDS service of one access width: the lanes served in each phase, and the number of 4-byte banks."""

    banks: int
    phases: Phases


#: CDNA2/CDNA3: 32 banks, 128 bytes a clock; the lanes of a b128 read phase are not consecutive.
_READ_128_32 = _spread(
    (
        (0, 1, 2, 3, 20, 21, 22, 23),
        (4, 5, 6, 7, 16, 17, 18, 19),
        (8, 9, 10, 11, 28, 29, 30, 31),
        (12, 13, 14, 15, 24, 25, 26, 27),
    )
)
#: CDNA4 (measured on MI350X): reads see 64 banks, b128 in four phases.
_READ_128_64 = _spread(
    (
        (0, 1, 2, 3, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25, 26, 27),
        (4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 28, 29, 30, 31),
    )
)

#: ROCm, MIOpen, "MI200 matrix fused multiply-add (MFMA) behavior specifics": MFMA_F16, MFMA_BF16 and MFMA_BF16_1K flush
#: subnormal input and output data to zero. Which sign that has was measured by MMA-Sim (arXiv 2511.10909).
_FLUSHED_BY_CDNA2 = frozenset(("f16", "bf16"))

_BANKS_32: Mapping[tuple[str, int], BankPhases] = {
    ("read", 4): BankPhases(32, _consecutive(32)),
    ("read", 8): BankPhases(32, _consecutive(16)),
    ("read", 12): BankPhases(32, _READ_128_32),
    ("read", 16): BankPhases(32, _READ_128_32),
    ("write", 4): BankPhases(32, _consecutive(32)),
    ("write", 8): BankPhases(32, _consecutive(16)),
    ("write", 12): BankPhases(32, _consecutive(8)),
    ("write", 16): BankPhases(32, _consecutive(8)),
}
_BANKS_64: Mapping[tuple[str, int], BankPhases] = {
    **_BANKS_32,  # stores; also reads of 12 bytes, of which nothing else is known
    ("read", 4): BankPhases(64, _consecutive(64)),
    ("read", 8): BankPhases(64, _consecutive(32)),
    ("read", 16): BankPhases(64, _READ_128_64),
}


@frozen
class AgentScope:
    """Instructions that order waves of different workgroups (AMDGPUUsage, "Memory Model", as LLVM 22 emits it).

    `release` writes caches back and counts in vmcnt; it is "" if a completed store needs no write-back. `acquire`
    invalidates caches. Loads with modifier `load` and stores with modifier `store` ("": all stores) are atomic.
    """

    release: str
    acquire: str
    load: str
    store: str


_SINCE_CDNA3 = AgentScope("buffer_wbl2 sc1", "buffer_inv sc1", "sc1", "sc1")


@frozen
class Arch:
    """One architecture's numbers and capabilities."""

    name: str
    lds_bytes: int
    flat_scratch_set: bool  #: hardware sets FLAT_SCRATCH (AMDGPUUsage, "Architected Flat Scratch")
    transposed_reads: bool  #: ds_read_b64_tr_*
    permutes_single_blocks: bool  #: blgp also works on matrix instructions of one block
    #: Input types whose matrix instructions flush denormals of A, B, C and D to 0, keeping the sign of D
    flushes_matrices: frozenset[str]
    fp8_finite_nuz: bool  #: fp8 is E4M3FNUZ/E5M2FNUZ (CDNA3), not OCP E4M3FN/E5M2
    scope: AgentScope
    banks: Mapping[tuple[str, int], BankPhases]


ARCHS: Mapping[int, Arch] = {
    0x3F: Arch(
        "gfx90a",
        64 << 10,
        flat_scratch_set=False,
        transposed_reads=False,
        permutes_single_blocks=True,
        flushes_matrices=_FLUSHED_BY_CDNA2,
        fp8_finite_nuz=True,
        scope=AgentScope("", "buffer_wbinvl1_vol", "glc", ""),
        banks=_BANKS_32,
    ),
    0x4C: Arch(
        "gfx942",
        64 << 10,
        flat_scratch_set=True,
        transposed_reads=False,
        permutes_single_blocks=False,
        flushes_matrices=frozenset(),
        fp8_finite_nuz=True,
        scope=_SINCE_CDNA3,
        banks=_BANKS_32,
    ),
    0x4F: Arch(
        "gfx950",
        160 << 10,
        flat_scratch_set=True,
        transposed_reads=True,
        permutes_single_blocks=False,
        flushes_matrices=frozenset(),
        fp8_finite_nuz=False,
        scope=_SINCE_CDNA3,
        banks=_BANKS_64,
    ),
}


def arch_of_flags(e_flags: int) -> Arch:
    """Return the architecture of an ELF header (EF_AMDGPU_MACH, low byte of e_flags). Raises SimulatorError."""
    arch = ARCHS.get(e_flags & 0xFF)
    if arch is None:
        known = ", ".join(f"{a.name} ({mach:#x})" for mach, a in ARCHS.items())
        raise SimulatorError(f"code object is for machine {e_flags & 0xFF:#x}; the simulator knows {known}")
    return arch


def arch_named(name: str) -> Arch:
    """Return the architecture called `name`."""
    return next(arch for arch in ARCHS.values() if arch.name == name)
