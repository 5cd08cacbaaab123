"""AMD's CDNA as a family of targets."""

from __future__ import annotations

from convgen.backends.amdgpu.chips import CHIPS, FITS
from convgen.backends.analysis import Terms
from convgen.backends.family import Family, Runtime, Viewer

_HERE = "convgen.backends.amdgpu"

RUNTIME = Runtime(
    kind="hip",
    title="HIP",
    module=f"{_HERE}.hip",
    most_workgroups=((1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1),  # hipDeviceProp_t, maxGridSize
    alignment=4,  # a dword: what buffer and global instructions want of more than two bytes
    library="libamdhip64",
    package=_HERE,
    c_header="hip.h.j2",
    c_source="hip.c.j2",
    c_load="",
    c_queue="hipStream_t stream",
    c_load_remark="Load the code on the current device.",
    c_launch_remark="Put all launches into a stream.",
)

FAMILY = Family(
    name="amdgpu",
    vendor="AMD",
    title="CDNA",
    targets=("gfx90a", "gfx942", "gfx950"),
    module=f"{_HERE}.targets",
    text_suffix=".s",
    object_suffix=".hsaco",
    machine=224,  # EM_AMDGPU
    terms=Terms(
        slot_clocks=4,  # clocks between instructions of one wave
        slot="have 4 clocks, and all SIMDs of a unit run the same code",
        matrix="mfma",
        subgroup="wave",
        shared="LDS",
        partition="XCD",
        occupancy="waves a SIMD",
        issue="waits of s_nop",
        registers=("vgpr",),
        accumulators=("agpr",),
        groups={
            "mfma": "matrix",
            **dict.fromkeys(("wait", "waitcnt", "barrier"), "wait"),
            "ds": "shared",
            **dict.fromkeys(("vmem", "smem"), "memory"),
            "valu": "vector",
        },
    ),
    load_latency=500.0,  # to data that L2 has (MIOpen's rows on gfx942: 300 to 600)
    reader=f"{_HERE}.analyze",
    model=f"{_HERE}.timing.kernel",
    simulator=f"{_HERE}.sim",
    executor=f"{_HERE}.foreign",
    timer=f"{_HERE}.timing.launch",
    runtime=RUNTIME,
    viewer=Viewer(
        option="--att",
        help="write it as rocprofv3 does a thread trace, for ROCprof Compute Viewer",
        module=f"{_HERE}.att",
    ),
    chips=CHIPS,
    fits=FITS,
    first_llvm={"gfx90a": 17, "gfx942": 17, "gfx950": 20},  # release notes of LLVM, "Changes to the AMDGPU Backend"
)
