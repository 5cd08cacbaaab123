"""What asks for the rule behind each kind of finding; wait states have a source a row (`hazards`)."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.backends.simulation import Source

_WAITS = Source("CDNA3 ISA 4.4, Data Dependency Resolution")
_MEMORY_MODEL = Source("AMDGPUUsage, Memory Model gfx942; CDNA3 ISA 4.4")
_BUFFER = Source("CDNA3 ISA 9.1.5, Buffer Addressing: two readings of it differ here")
#: Of atomic operations, LDS DMA and transposing reads, in any mode.
ALIGNED = Source("CDNA3 ISA 11.1 and 9.1.6, alignment")
#: Of accesses of a workgroup to device memory, by vector instructions: a wave's own, and others' behind a barrier.
OWN_ORDER = Source(
    "CDNA3 ISA 4.4, a wait for stores; LLVM asks for none within a workgroup, whose waves share a queue "
    "(AMDGPUUsage, Memory Model: code sequences without tgsplit)",
    required=False,
)
_STATE = Source("AMDGPUUsage, Initial Kernel Execution State: everything else starts undefined")

SOURCES: Mapping[str, Source] = {
    "buffer-soffset": _BUFFER,
    "buffer-wrap": _BUFFER,
    "control": Source("the code object: nothing is there to execute"),
    "encoding": Source("CDNA3 ISA 7.1, Matrix Arithmetic: modifiers by shape"),
    "global-race": _MEMORY_MODEL,
    "global-visibility": _MEMORY_MODEL,
    "lds-bounds": Source("CDNA3 ISA 11.1: an access beyond LDS_SIZE reads 0 and writes nothing"),
    "lds-race": Source("AMDGPUUsage, Memory Model, Local: s_barrier alone orders waves; CDNA3 ISA 4.3"),
    "lds-size": Source("CDNA3 ISA 11.1: the size of LDS"),
    "matrix-overlap": Source(
        "LLVM VOP3PInstructions.td, earlyclobber, which its comment calls stricter", required=False
    ),
    "misaligned": Source(
        "CDNA3 ISA 11.1 and 9.1.6, alignment; all the same it works where SH_MEM_CONFIG.ALIGNMENT_MODE is UNALIGNED, "
        "as Linux's kfd_device_queue_manager_v9.c sets it and LLVM takes it to be for amdhsa",
        required=False,
    ),
    "no-progress": Source("the launch: what is waited for never comes"),
    "out-of-bounds": Source("the launch: no buffer of it is there"),
    "poison": _STATE,
    "read-only": Source("the launch: the buffer is read-only"),
    "register-alignment": Source("CDNA3 ISA 3.6: tuples start at even registers; scalar ones 5.2"),
    "register-range": Source("CDNA3 ISA 3.6 and 5.2: the registers that the kernel descriptor allocates"),
    "runaway": Source("the simulator's limit of instructions"),
    "scratch-bounds": Source("AMDGPUUsage, Private Segment: the bytes that the kernel descriptor gives a lane"),
    "trap": Source("the kernel: s_trap ends it"),
    "wait-count": _WAITS,
    "work-item-id": Source("AMDGPUUsage, Initial Kernel Execution State: ENABLE_VGPR_WORKITEM_ID"),
}
