"""Intel's Xe as a family of targets."""

from __future__ import annotations

from convgen.backends.analysis import Terms
from convgen.backends.family import Family, Runtime

_HERE = "convgen.backends.intel"

RUNTIME = Runtime(
    kind="level_zero",
    title="Level Zero",
    module=f"{_HERE}.level_zero",
    # along x, y, z; y and z are assumed (a device reports its own limits in zeDeviceGetComputeProperties)
    most_workgroups=((1 << 32) - 1, (1 << 16) - 1, (1 << 16) - 1),
    alignment=64,  # bytes; 2-D block messages need it of a matrix
    library="libze_loader",
    package=_HERE,
    c_header="level_zero.h.j2",
    c_source="level_zero.c.j2",
    c_load="ze_context_handle_t context, ze_device_handle_t device, ",
    c_queue="ze_command_list_handle_t list",
    c_load_remark="Load the code on a device. A kernel is used by one thread at a time.",
    c_launch_remark="Append all launches to a command list, each behind the one before.",
)

FAMILY = Family(
    name="intel",
    vendor="Intel",
    title="Xe",
    targets=("xehpg", "xehpc", "xe2"),
    module=f"{_HERE}.targets",
    text_suffix=".asm",
    object_suffix=".zebin",
    machine=205,  # EM_INTELGT
    terms=Terms(
        slot_clocks=1,
        slot="have one clock",
        matrix="dpas",
        subgroup="thread",
        shared="SLM",
        partition="stack",
        occupancy="threads an EU",
        issue="wide results",
        registers=("grf",),
        groups={
            "dpas": "matrix",
            **dict.fromkeys(("wait", "sync", "barrier"), "wait"),
            "slm": "shared",
            **dict.fromkeys(("ugm", "tgm"), "memory"),
            **dict.fromkeys(("alu", "mov", "math"), "vector"),
        },
    ),
    load_latency=200.0,  # clocks; of loads that hit L3 (IGC's table of latencies)
    reader=f"{_HERE}.analyze",
    model=f"{_HERE}.timing.kernel",
    simulator=f"{_HERE}.sim",
    executor=f"{_HERE}.foreign",
    runtime=RUNTIME,
)
