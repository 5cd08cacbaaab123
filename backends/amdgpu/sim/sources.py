"""The document behind each kind of finding; each row of wait states has its own (`hazards`).

A finding that fails no run (`required=False`) names two documents: one that asks for the rule and, after "all the same
it works", one that permits to break it.
"""

from __future__ import annotations

from collections.abc import Mapping

from convgen.backends.simulation import Source

_WAITS = Source("CDNA3 ISA 4.4, Data Dependency Resolution")
_MEMORY_MODEL = Source("AMDGPUUsage, Memory Model gfx942; CDNA3 ISA 4.4")
_BUFFER = Source("CDNA3 ISA 9.1.5, Buffer Addressing: two readings of this section give different results")
#: For atomic operations, LDS DMA and transposing reads, in any alignment mode.
ALIGNED = Source("CDNA3 ISA 3.11, Memory Violations: alignment errors of LDS and memory")
#: For vector accesses of a workgroup to device memory: a wave's own stores, and other waves' stores after a barrier.
OWN_ORDER = Source(
    "CDNA3 ISA 4.4, Data Dependency Resolution; all the same it works: VM_CNT says that reads and writes return in the "
    "order of issue, and AMDGPUUsage, Memory Model gfx942, asks for vmcnt(0) within a workgroup in tgsplit mode only",
    required=False,
)
_STATE = Source("AMDGPUUsage, Initial Kernel Execution State: registers and memory not listed there start undefined")

SOURCES: Mapping[str, Source] = {
    "buffer-soffset": _BUFFER,
    "buffer-wrap": _BUFFER,
    "control": Source("the code object: no instruction starts at that place"),
    "encoding": Source("CDNA3 ISA 7.1, Matrix Arithmetic: modifiers by shape"),
    "global-race": _MEMORY_MODEL,
    "global-visibility": _MEMORY_MODEL,
    "lds-bounds": Source("CDNA3 ISA 3.6.1, Out-of-Range Behavior: reads of LDS return 0, writes are discarded"),
    "lds-race": Source("AMDGPUUsage, Memory Model, Local: s_barrier alone orders waves; CDNA3 ISA 4.3"),
    "lds-size": Source("CDNA3 ISA 3.6.5, LDS Allocation and Clamping"),
    "matrix-overlap": Source(
        "LLVM VOP3PInstructions.td, VOPProfileMAI: earlyclobber; all the same it works, for its comment says that the "
        "hardware asks it of src2 alone",
        required=False,
    ),
    "misaligned": Source(
        "CDNA3 ISA 3.11, Memory Violations, and 9.1.7, Alignment; all the same it works where "
        "SH_MEM_CONFIG.ALIGNMENT_MODE is UNALIGNED, as Linux's kfd_device_queue_manager_v9.c sets it and LLVM takes it "
        "to be for amdhsa",
        required=False,
    ),
    "no-progress": Source("the launch: no workgroup is left that could change what the wave waits for"),
    "out-of-bounds": Source("the launch: none of its buffers contains the address"),
    "poison": _STATE,
    "read-only": Source("the launch: the buffer is read-only"),
    "register-alignment": Source("CDNA3 ISA 3.6.4, VGPR Alignment; 3.6.3, SGPR Alignment"),
    "register-range": Source("CDNA3 ISA 3.6.1, Out-of-Range Behavior: registers that the kernel descriptor allocates"),
    "runaway": Source("the simulator's limit of instructions per wave"),
    "scratch-bounds": Source("AMDGPUUsage, Private Segment: the bytes that the kernel descriptor gives a lane"),
    "trap": Source("the kernel: s_trap, which llvm.trap and failed assertions become, ends it"),
    "wait-count": _WAITS,
    "work-item-id": Source("AMDGPUUsage, Initial Kernel Execution State: ENABLE_VGPR_WORKITEM_ID"),
}
