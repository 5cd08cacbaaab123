"""NVIDIA's chips of the time model: SMs, clocks and rates of the data sheets and white papers that `FACTS` names.

An SM is a unit. A chip is one partition: the two halves of an L2 hold copies of each other's lines.
"""

from __future__ import annotations

from convgen.backends.family import Chip, Fits

#: FLOP per clock and SM, dense, by input type (NVIDIA's architecture white papers, tables of peak rates).
_AMPERE = {"f16": 2048, "bf16": 2048, "f32": 1024, "s8": 4096}
_CONSUMER = {"f16": 512, "bf16": 512, "f32": 256, "s8": 2048, "fp8": 1024}  #: sums of f32
_HOPPER = {"f16": 4096, "bf16": 4096, "f32": 2048, "s8": 8192, "fp8": 8192}

CHIPS = (
    Chip(name="a100", target="sm_80", units=108, partitions=1, clock=1410, rates=_AMPERE),
    Chip(name="a10", target="sm_86", units=72, partitions=1, clock=1695, rates=_CONSUMER),
    Chip(name="l40s", target="sm_89", units=142, partitions=1, clock=2520, rates=_CONSUMER),
    Chip(name="h200", target="sm_90a", others=("sm_90",), units=132, partitions=1, clock=1980, rates=_HOPPER),
    Chip(
        name="h100",
        target="sm_90a",
        others=("sm_90",),
        units=132,
        partitions=1,
        clock=1980,
        rates=_HOPPER,
        memory=3.35e6,
    ),
    Chip(name="rtx5090", target="sm_120", units=170, partitions=1, clock=2407, rates=_CONSUMER),
)

FITS = Fits(
    makers=("convgen code",),
    in_clocks="none",  # all rows are times
    launches={},
    copies_ahead=True,
    types={"tf32": "f32", "u8": "s8", "e4m3": "fp8", "e5m2": "fp8", "": "f32"},
)
