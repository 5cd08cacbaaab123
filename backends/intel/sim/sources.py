"""The document behind each kind of finding. A finding on the encoding names its rule's document in its message, too."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.backends.simulation import Source

_SCOREBOARD = Source("PRM of Alchemist and Ponte Vecchio, Software Scoreboard; IGA documentation, SWSB")
_MESSAGES = Source("PRM, Load/Store Cache data port messages; nGEN, message descriptors")
_BARRIER = Source("PRM, Message Gateway: barrier messages; IGC, generateBarrier")
_DPAS = Source("IGC documentation/visa DPAS.md and DPASW.md; Mesa, brw_eu_validate.c")
_SKUWA = "IGC, visa/SWWA.cpp, for the steppings of skuwa/iacm_g1*_hw_wa.c and ipvc_hw_wa.c"
_ORDER = Source("OpenCL memory model; PRM, LSC fences: what orders threads and workgroups")

SOURCES: Mapping[str, Source] = {
    "acc-wr-en": Source("PRM, AccWrEn: addc, subb and mach write the accumulator only with it"),
    "barrier": _BARRIER,
    "block2d": _MESSAGES,
    "code-end": Source(f"{_SKUWA}: Wa_16013338947, a legal instruction behind the end of a thread"),
    "control": Source("the zebin: no instruction starts at that place"),
    "distance": _SCOREBOARD,
    "dpas": _DPAS,
    "dpasw": _DPAS,
    "dpas-suppression": Source(f"{_SKUWA}: Wa_18023229625, prepareDPASFuseRSWA"),
    "dst-src-overlap": Source("IGC, avoidInstDstSrcOverlap; Mesa, has_source_and_destination_hazard"),
    "end-of-thread": Source("PRM, End of Thread: its payload, and which operations may still be in flight"),
    "end-suppression": Source(f"{_SKUWA}: Wa_14016880151, a csel in front of the end of a thread"),
    "fused-branch": Source(
        "IGC, FlowGraph.cpp (no jmpi under EU fusion) and CISABuilder.cpp, Jump; HWCaps.inc hasFusedEU"
    ),
    "global-race": _ORDER,
    "global-visibility": _ORDER,
    "half-suppression": Source(f"{_SKUWA}: HWCaps.inc hasFPU0ReadSuppressionIssue, fixReadSuppressioninFPU0"),
    "message": _MESSAGES,
    "message-length": _MESSAGES,
    "misaligned": _MESSAGES,
    "mul-suppression": Source("IGC, visa/SWWA.cpp, for skuwa/igt_20_0*_hw_wa.c: Wa_18035690555, mulMacRSWA"),
    "no-progress": Source("the launch: no workgroup is left that could change what the thread waits for"),
    "operation": Source("PRM, Instruction Set Reference, by Mesa, instruction_restrictions; IGC, HWConformity.cpp"),
    "out-of-bounds": Source("the launch: none of its buffers contains the address"),
    "poison": Source("PRM, Thread Payload: registers and memory not listed there start undefined"),
    "read-only": Source("the launch: the buffer is read-only"),
    "region": Source("PRM, Register Region Restrictions; Mesa, brw_eu_validate.c"),
    "register-range": Source("the zebin: the registers that grf_count gives a thread"),
    "runaway": Source("the simulator's limit of instructions per thread"),
    "send-suppression": Source(f"{_SKUWA}: Wa_16012061344, Wa_16012292205 and Wa_22012856258, insertDummyMovForHWRSWA"),
    "send-war": Source("nGEN, ONEAPI_PVC_SEND_WAR_WA; IGC, Wa for Ponte Vecchio"),
    "slm-race": Source(
        "OpenCL memory model; IGC, LSC_FENCE.md, and SWSB_G4IR.cpp with HWCaps.inc hasSLMWARIssue: an SLM store or "
        "fence waits for the destinations of SLM loads"
    ),
    "slm-size": Source("the zebin: slm_size"),
    "swsb": Source("IGA, checks of SWSB annotations by platform"),
    "token": _SCOREBOARD,
    "token-wait": _SCOREBOARD,
    "type": Source("IGC, HWCaps.inc noInt64 and noFP64; Mesa, special_restrictions_for_mixed_float_mode"),
    "unsupported-message": _MESSAGES,
}
