"""Numbers by which the chooser ranks configs of the CDNA targets.

`bench/tuning.py gfx942 NAME VALUE ...` repeats the finding behind a number: how many drawn problems get another config,
and how long the chosen configs take by the time model (docs/time.md), relative to the present value.
"""

from __future__ import annotations

from convgen.backends.tuning import Tuning
from convgen.ir.record import evolve

#: Workgroups of up to four waves, one a SIMD. Those with waves along K, for LDS-bound problems, come last, so that
#: others win ties.
_GRIDS = ((4, 1, 1), (2, 2, 1), (1, 4, 1), (2, 1, 1), (1, 2, 1), (1, 1, 1), (2, 1, 2), (1, 2, 2), (1, 1, 4))

_CDNA2 = Tuning(
    grids=_GRIDS,
    # Loads two blocks ahead of the write to shared memory save 4 to 14 % of 3x3 layers by `convgen profile`.
    pipelines=((3, 2), (2, 2), (2, 1), (1, 1)),
    # Slices reduced by the last workgroup to arrive take 2 to 5 us less than by a second launch (BWD_W of ResNet's
    # layers).
    at_a_time=(4, 8),
    # 1x1 gradients of weights with channels first take .7 of the time: runs of 196 pixels in place of rows of 14.
    runs_of_pixels=True,
    # Small tiles have twice the matrix instructions between barriers, and lanes that transpose write 8 bytes at a time,
    # not 4. 33 of 120 drawn problems get rows of 256 bytes, of 16-bit elements, which take .956 of the time; on gfx942
    # 82 of 250 take .949, on gfx950 53 of 120 take .943.
    deep_rows=(256,),
    # 10 of 100 drawn problems get more slices, or others, than with 16, and take .94 of the time; on gfx942 20 of 150
    # take .938, on gfx950 18 of 100 take .812. With 2, 9 of 150 take 1.05 on gfx942.
    slice_blocks=4,
    # `bench/registers.py`: over 1,299 drawn kernels the estimate is off by 19 in the mean, 12 in the median.
    fragment_sets=(0.5, 1.5),
    mask_registers=2,
    other_registers=28,
    tap_registers=24,  # over 58 kernels with two slots the estimate of loops is off by 18 in the mean
    address_clocks=16,  # docs/time.md
    # Transposed operands take 2 to 5 times the clocks of LDS with rows of 64 bytes, 9 to 15 times with rows of 32.
    conflict_free_row=128,
    # Among the rates 4 to 20 in gen/profile/constants.json, 16 and 8 rank configs with few K blocks best.
    result_rate=16,
    tail=0.05,  # bench/chosen.py --part fit, 16 problems: best from 0 to 0.1
    launch=5126,  # gen/profile/constants.json: MIOpen's launches on an MI250X
    dirty=5_375_000,  # gen/profile/constants.json: rocBLAS's products on an MI250X
    drain=2504,
)

_CDNA3 = evolve(
    _CDNA2,
    # 42 of 600 drawn problems get another config, which takes .93 of the time; on gfx90a 10 of 150 take 1.05. Charging
    # wider loads as much ranks configs worse: LDS is the bottleneck as often.
    narrow_clocks=16,
    # Three slots with loads five blocks ahead save up to 3 %, on layers of bench/whole.py.
    pipelines=((3, 3), (2, 4), (2, 2), (2, 1), (1, 1)),
    load_latency=1000,  # 300 drawn problems take .998 of the time with 800, the value elsewhere; on gfx90a 1.003
    # 17 of 450 drawn problems get another config than with .5, which takes .942 of the time. With .2, layers of 64 and
    # 512 channels take up to 1.05; on gfx90a, 6 of 150 take 1.07.
    shared_exposed=0.3,
    # 12 of 600 drawn problems get another config than with 0, which takes .954 of the time; on gfx950 7 of 300 take
    # 1.05, on gfx90a 15 of 150 take 1.01.
    hidden=0.5,
    hidden_by_issue=0.5,
    launch=9265,  # gen/profile/constants.json: launches of MIOpen and AITER on an MI300X
    dirty=4_200_000,
    drain=284,
)

_CDNA4 = evolve(
    _CDNA3,
    load_clocks=16,  # docs/time.md
    # Two slots with loads five blocks ahead save up to 11 % of weight gradients, on layers of bench/whole.py.
    pipelines=((2, 4), (3, 3), (4, 0), (2, 2), (3, 0), (2, 1), (1, 1)),
    shared_exposed=0.05,  # three loops with resident input patches: .07, .2 and .6 by `convgen profile`
    hidden=0.0,
    # With 18 a forward first layer is 6 % faster than with 16 by `convgen profile`; with 24 two others are 4 % slower.
    message=18,
    launch=7200,  # gen/profile/constants.json: launches of MIOpen and AITER on an MI355X
    dirty=59_600_000,
    drain=1953,
)

TUNING: dict[str, Tuning] = {"gfx90a": _CDNA2, "gfx942": _CDNA3, "gfx950": _CDNA4}
