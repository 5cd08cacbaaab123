"""The document behind each kind of finding."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.backends.simulation import Source

_MODEL = Source("PTX ISA, Memory Consistency Model: Causality Order, Data-Race-Free")

SOURCES: Mapping[str, Source] = {
    "barrier": Source("PTX ISA, bar, barrier: operands, and the number of threads that complete a barrier"),
    "bulk-copy": Source("PTX ISA, cp.async.bulk, cp.async.bulk.wait_group, and mbarrier-based completion"),
    "constant-cache": Source("PTX ISA, ld, .nc: the location is read-only for the duration of the kernel"),
    "control": Source("PTX ISA, brx.idx: the index is within the list of targets"),
    "cp-async": Source("PTX ISA, cp.async.wait_group, and Asynchronous Data Copy Instructions: visibility of writes"),
    "divergence": Source("PTX ISA, .aligned and bra.uni: all threads of a warp execute the same instruction"),
    "global-race": _MODEL,
    "global-visibility": _MODEL,
    "lane-race": Source("CUDA Programming Guide, Independent Thread Scheduling; PTX ISA, bar.warp.sync"),
    "mbarrier": Source("PTX ISA, mbarrier: counts, phases, tx-count, and Phase Completion of the mbarrier Object"),
    "member-mask": Source("PTX ISA, shfl.sync, vote.sync, bar.warp.sync: membermask"),
    "misaligned": Source("PTX ISA, Addresses as Operands: an address is a multiple of the access size"),
    "no-progress": Source("the launch: no workgroup is left that could change what the warp waits for"),
    "operand": Source("PTX ISA: values that an operand may have"),
    "out-of-bounds": Source("the launch: neither its buffers nor the kernel's variables contain the address"),
    "poison": Source("PTX ISA, State Spaces: registers, shared, local and global memory without initializer"),
    "proxy": Source("PTX ISA, Async Proxy: fence.proxy.async orders accesses across proxies"),
    "read-only": Source("the launch: the buffer is read-only"),
    "runaway": Source("the simulator's limit of instructions per warp"),
    "setmaxnreg": Source("PTX ISA, setmaxnreg: registers of a warpgroup, and of the per-CTA pool"),
    "shared-race": _MODEL,
    "shared-size": Source("CUDA Programming Guide, Compute Capabilities: shared memory per thread block"),
    "trap": Source("the kernel: trap, which failed assertions become, ends it"),
    "wgmma": Source("PTX ISA, wgmma.fence, wgmma.commit_group, wgmma.wait_group: accesses to registers of a product"),
}
