"""Numbers by which the chooser ranks configs of NVIDIA's targets. None has been fitted to measurements yet."""

from __future__ import annotations

from convgen.backends.tuning import Tuning

_AMPERE = Tuning(
    grids=((2, 2, 1), (2, 4, 1), (4, 2, 1), (1, 4, 1), (4, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 1)),
    fragment_sets=(0.5, 0.5),
    mask_registers=1,
    other_registers=32,
)

TUNING: dict[str, Tuning] = dict.fromkeys(("sm_80", "sm_86", "sm_89", "sm_90", "sm_120"), _AMPERE)
