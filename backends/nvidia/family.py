"""NVIDIA's GPUs from Ampere on as a family of targets."""

from __future__ import annotations

import re

from convgen.backends.analysis import Terms
from convgen.backends.family import Family, Runtime
from convgen.backends.nvidia.chips import CHIPS, FITS

_HERE = "convgen.backends.nvidia"

RUNTIME = Runtime(
    kind="cuda",
    title="CUDA",
    module=f"{_HERE}.cuda",
    most_workgroups=((1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1),  # CUDA C++ Programming Guide, "Compute Capabilities"
    alignment=16,  # PTX ISA, "ld": a vector is aligned to its size
    library="libcuda",
    package=_HERE,
    c_header="cuda.h.j2",
    c_source="cuda.c.j2",
    c_load="",
    c_queue="CUstream stream",
    c_load_remark="Load the code into the current context; the driver compiles it.",
    c_launch_remark="Put all launches into a stream.",
    encodes_maps=True,
    survives_faults=False,  # CUDA Driver API, CUDA_ERROR_ILLEGAL_ADDRESS: the process must be terminated
)

FAMILY = Family(
    name="nvidia",
    vendor="NVIDIA",
    title="Ampere and later",
    targets=("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_120"),
    module=f"{_HERE}.targets",
    text_suffix=".ptx",
    object_suffix=".ptx",  # the driver compiles it
    machine_suffix=".cubin",
    machine=190,  # EM_CUDA
    text_object=re.compile(rb"(?:\s|//[^\n]*\n|/\*.*?\*/)*\.version\s", re.S),  # PTX ISA, "Source Format"
    terms=Terms(
        slot_clocks=1,
        slot="have one clock",
        matrix="mma",
        subgroup="warp",
        shared="shared memory",
        partition="die",
        occupancy="warps an SM",
        issue="long instructions",
        registers=("reg",),
        groups={
            "mma": "matrix",
            **dict.fromkeys(("wait", "barrier"), "wait"),
            **dict.fromkeys(("ldmatrix", "stmatrix", "ld_shared", "st_shared"), "shared"),
            **dict.fromkeys(("ld_global", "st_global", "cp_async", "atomic"), "memory"),
            "alu": "vector",
        },
    ),
    load_latency=500.0,  # clocks; assumed
    reader=f"{_HERE}.analyze",
    simulator=f"{_HERE}.sim",
    executor=f"{_HERE}.sim",
    timer=f"{_HERE}.timing.launch",
    runtime=RUNTIME,
    chips=CHIPS,
    fits=FITS,
)
