"""A family of a third vendor, for tests: plans, IR and text, with neither assembler nor simulator.

Nothing in the product knows it: tests take it in by `convgen.backends.family.adding(FAMILY)`.
"""

from __future__ import annotations

from convgen.backends.analysis import Terms
from convgen.backends.family import Family

_HERE = "tests.backends.sm80"

FAMILY = Family(
    name="sm80",
    vendor="Third",
    title="Ampere",
    targets=("sm80", "sm90"),
    module=f"{_HERE}.targets",
    text_suffix=".listing",
    object_suffix=".listed",
    machine=0xFE00,  # nobody's
    terms=Terms(
        slot_clocks=1,
        slot="have one clock",
        matrix="mma",
        subgroup="warp",
        shared="shared memory",
        partition="die",
        occupancy="warps an SM",
        issue="long instructions",
        registers=("r",),
        groups={"mma": "matrix"},
    ),
    load_latency=400.0,
)
