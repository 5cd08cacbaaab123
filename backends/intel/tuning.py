"""Numbers by which the chooser ranks configs of the Xe targets.

None was measured on hardware. `bench/tuning.py xehpc NAME VALUE ...` shows the effect of another value.
"""

from __future__ import annotations

from convgen.backends.tuning import Tuning
from convgen.ir.record import evolve

#: Powers of two: up to 16 subgroups along a side, up to 64 in a workgroup.
_GRIDS = tuple((m, n, 1) for m in (16, 8, 4, 2, 1) for n in (16, 8, 4, 2, 1) if m * n <= 64)

_XE = Tuning(
    grids=_GRIDS,
    subtiles=(1, 8, 4, 2),  # small parts first: spare registers let messages overlap
    fragment_sets=(1, 1),  # all fragments are read before the products
    mask_registers=0,  # masks are flags
    other_registers=40,  # assumed
    unpadded=5.0,  # 2 to 8 by the simulator's banks, which are assumed
    # Instructions in convgen's loops. `block`: indices of K, barriers, fences. `read`: a read with its address and
    # wait. `transpose`: an addition per transposed register, with zeros where it is masked. `trim_rows`: a message that
    # is trimmed along rows, whose instructions depend on one another.
    block=30,
    read=3,
    transpose=1.5,
    trim_rows=6.0,
    subgroups_overlap=True,  # threads issue in order
    load_latency=400,  # assumed: other threads hide the rest
)

TUNING: dict[str, Tuning] = {
    "xehpg": evolve(_XE, subtiles=(1, 2, 4, 8)),  # large parts first: long chains of products share source 1
    "xehpc": _XE,
    "xe2": _XE,
}
