"""CDNA chips of the time model, from public measurements or data sheets.

Units and clocks: AMD's data sheets. A die of the MI250 has 104 units, one of the MI250X 110. rocBLAS's table is of the
MI250X: launches of 105 to 110 workgroups take one round in it, launches of 111 two.
"""

from __future__ import annotations

from convgen.backends.family import Chip, Fits

_CDNA2 = {"f16": 1024, "bf16": 1024, "f32": 256, "s8": 1024}  #: CDNA2 white paper, table of peak rates
_CDNA3 = {"f16": 2048, "bf16": 2048, "f32": 256, "s8": 4096, "fp8": 4096}  #: CDNA3 white paper, same table
_CDNA4 = {"f16": 4096, "bf16": 4096, "f32": 256, "s8": 8192, "fp8": 8192, "fp4": 16384}  #: CDNA4 white paper

CHIPS = (
    Chip(name="mi250", target="gfx90a", units=104, partitions=1, clock=1700, rates=_CDNA2, sustained=1.0),
    Chip(name="mi250x", target="gfx90a", units=110, partitions=1, clock=1700, rates=_CDNA2),
    Chip(name="mi300x", target="gfx942", units=304, partitions=8, clock=2100, rates=_CDNA3),
    Chip(name="mi300a", target="gfx942", units=228, partitions=6, clock=2100, rates=_CDNA3),
    Chip(name="mi308x", target="gfx942", units=80, partitions=4, clock=2100, rates=_CDNA3),
    Chip(name="mi355x", target="gfx950", units=256, partitions=8, clock=2400, rates=_CDNA4),
)

#: Target -> the chip whose facts it has.
USUAL = {chip.target: chip for chip in CHIPS if chip.name in ("mi250x", "mi300x", "mi355x")}

FITS = Fits(
    makers=("miopen code", "aiter code", "aiter", "rocblas"),
    in_clocks="rocblas",
    # Entries in clocks time calls: one launch each, which starts later than a kernel does. MIOpen's table times
    # kernels: the shortest, a gradient of weights, takes 5.1 us, and gradients of data have further launches.
    launches={
        "mi250x": ("miopen nhwc/mi250/mlir W", "miopen nhwc/mi250/mlir B"),
        "mi300x": ("miopen code/mi300x/f16", "miopen code/mi300x/f16"),
    },
    types={"i8": "s8", "bf8": "fp8", "xf32": "f32", "f64": "f32", "": "f32"},
)
