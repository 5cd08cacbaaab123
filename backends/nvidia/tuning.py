"""Numbers by which the chooser ranks configs of NVIDIA's targets.

Those with a reason were found on an H200 by `bench/silicon.py --config`, with products of 4096 and convolutions of 64
and 256 channels; the others have the defaults.
"""

from __future__ import annotations

from convgen.backends.tuning import Tuning

_AMPERE = Tuning(
    grids=((2, 2, 1), (2, 4, 1), (4, 2, 1), (1, 4, 1), (4, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 1)),
    # Direct copies of blocks of 128 bytes along K take .6 to .9 of the time of copies through registers.
    pipelines=((3, 0), (4, 0), (2, 0), (2, 1), (3, 1), (1, 1)),
    fragment_sets=(0.5, 0.5),
    mask_registers=1,
    other_registers=32,
)

TUNING: dict[str, Tuning] = dict.fromkeys(("sm_80", "sm_86", "sm_89", "sm_90", "sm_120"), _AMPERE)
