"""Numbers by which the chooser ranks configs of NVIDIA's targets.

Those with a reason were found on an H200 by `bench/silicon.py --config`, with products of 4096 and convolutions of 64
and 256 channels; the others have the defaults. `exposed`, `staggered` and `stream_rate` were chosen on configs of 40
products and layers: of those measured, the config that the model ranks first takes 1.039 of the best one's time (with
the defaults: 1.058). On 32 others, drawn from tests/data/problems, it takes 1.033 (1.044).
"""

from __future__ import annotations

from convgen.backends.tuning import Tuning

_AMPERE = Tuning(
    grids=((2, 2, 1), (2, 4, 1), (4, 2, 1), (1, 4, 1), (4, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 1)),
    pipelines=((4, 0), (3, 0), (2, 0), (2, 1), (3, 1), (1, 1)),
    fills=3,  # gradients of weights, 512 channels, 7x7, minibatch 128: .75 of the time, three slices of 72 tiles
    at_a_time=(),  # additions by the last arrival take 8 to 30 % longer than atomic ones, gradients of weights
    exchanged_store=16,  # gradients of data of 1x1 layers take .44 to .75 of the time with stores of 4 bytes
    least_row=64,  # 1x1 layers of 64 to 256 channels take 2.2 times as long with rows of 32 bytes as with rows of 128
    # 3x3 layers of 256 channels, tile 192x128x64: a block takes 550 clocks more through registers.
    issue_through_registers=2.7,
    barrier=100,  # 3x3 layers of 256 channels, tile 128x128: blocks of 32 take 80 clocks more for each barrier
    exposed=0.3,
    staggered=True,
    stream_rate=5,
    hidden=0.5,  # a second workgroup on an SM saves up to .4 of the time, tile 128x128x64 with 3 slots in place of 4
    # A product of 4864x4160x8192 takes .92 of the time with even:4n, which has .987 of the clocks of memory.
    order_worth=0.99,
    fragment_sets=(0.5, 0.5),
    mask_registers=1,
    other_registers=32,
    registers_through_copy=3,  # by ptxas 13.0, tile 64x64x64: 62 to 126 more than direct copies, 32 of them elements
)

TUNING: dict[str, Tuning] = dict.fromkeys(("sm_80", "sm_86", "sm_89", "sm_90", "sm_120"), _AMPERE)
