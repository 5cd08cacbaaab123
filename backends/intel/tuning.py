"""Numbers by which the chooser ranks configs of the Xe targets.

Nothing here was measured on hardware. `bench/tuning.py xehpc NAME VALUE ...` tells what another value would change.
"""

from __future__ import annotations

from convgen.backends.tuning import Tuning
from convgen.ir.record import evolve

#: Powers of two up to 64 threads a workgroup, neither side much longer than the other.
_GRIDS = tuple((m, n, 1) for m in (16, 8, 4, 2, 1) for n in (16, 8, 4, 2, 1) if m * n <= 64)

_XE = Tuning(
    grids=_GRIDS,
    subtiles=(1, 8, 4, 2),  # of small parts: registers that are left let messages go on side by side
    fragment_sets=(1, 1),  # all fragments are read before the products
    mask_registers=0,  # masks are flags
    other_registers=40,  # assumed
    crowded=5.0,  # two to eight by the simulator's banks, which are assumed
    # Instructions of convgen's loops: digits of K, barriers, fences; a read with its address and wait; a sum for each
    # transposed register, with zeros where it is masked; a trimmed message along rows, whose instructions wait for one
    # another.
    block=30,
    read=3,
    turn=1.5,
    trim_rows=6.0,
    others_hide=True,  # threads issue in order
    load_latency=400,  # assumed: other threads hide the rest
)

TUNING: dict[str, Tuning] = {
    "xehpg": evolve(_XE, subtiles=(1, 2, 4, 8)),  # of large parts: chains of products with source 1 in common are long
    "xehpc": _XE,
    "xe2": _XE,
}
