"""Numbers by which the chooser ranks configs of NVIDIA's targets.

All were found on an H200 by `bench/silicon.py --config`, on products and layers of `bench/lib/cuda_times.py`. Those
with a reason follow from single measurements. The others were fitted together, for `sm_90a` and for all other
targets. Of the measured configs, the one that is ranked first takes so much of the best one's time:

- all others: 1.038 on 46 products and layers, 1.068 on 40 problems drawn from tests/data/problems (1,900 configs);
- `sm_90a`: 1.044 on 259 products and layers, at worst 1.48 (6,186 configs), 1.10 on 46 layers that lanes compute:
  products 1.04, layers of `bench/lib/cuda_times.py` 1.03, of `bench/lib/model_layers.py` 1.05, with TF32 1.05, and
  layers drawn at random 1.065. `bench/fit_chooser.py tests/data/silicon/configs.txt` repeats this. Fitted to every
  other problem alone, the numbers had 1.051 on the other ones, where those of before had 1.062. A fit minimises regret
  and a tenth of the error of the times themselves, of configs within 1.5 of the best: clocks at 1755 MHz are right
  within 3 % in the median for rings, 10 to 15 % too many for copies by lanes, and 35 % for those through registers.
  Of 32 problems drawn afterwards (tests/data/silicon/drawn_later.txt) it was 1.100, and 1.074 with the numbers of
  before, and is 1.083; 42 problems whose config changed on 1 December take .965 of the time, at worst 1.03.
  On one day two runs of a config differ by up to 5 %. Not all configs that are ranked first have been measured.
"""

from __future__ import annotations

from convgen.backends.tuning import Tuning
from convgen.ir.record import evolve

_AMPERE = Tuning(
    grids=((2, 2, 1), (2, 4, 1), (4, 2, 1), (1, 4, 1), (4, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 1)),
    pipelines=((4, 0), (3, 0), (2, 0), (2, 1), (3, 1), (1, 1)),
    fills=3,  # gradients of weights, 512 channels, 7x7, minibatch 128: .75 of the time, three slices of 72 tiles
    at_a_time=(),  # additions by the last arrival take 8 to 30 % longer than atomic ones, gradients of weights
    exchanged_message=16,  # gradients of data of 1x1 layers take .44 to .75 of the time with stores of 4 bytes
    least_row=64,  # 1x1 layers of 64 to 256 channels take 2.2 times as long with rows of 32 bytes as with rows of 128
    packs_images=False,  # first layers take 1.2 to 2.9 times as long with a packed image: L1 serves single elements
    # Depthwise layers and small groups, 45 problems, 530 configs of `bench/configs.py`: the one that is ranked first
    # takes 1.11 of the best one's time (1.16 with the numbers that are assumed elsewhere).
    vector_operation=2,
    cache_segment=128,
    issue_through_registers=4,
    # First layers: 20 to 32 clocks for each element of a copy, address and mask included.
    issue_of_elements=0.25,
    barrier=100,
    exposed=0.3,
    hidden=0.25,
    hidden_by_issue=1.0,  # first layers, 96x64x32: three workgroups on an SM take no longer than their issue
    hoists_loads=False,  # straight-line first layers wait for the loads of each block
    busy_latency=2000,
    tile=5000,
    result_rate=48,
    staggered=True,
    launch=1500,
    stream_rate=10,
    tail=0.25,
    # A product of 4864x4160x8192 takes .92 of the time with even:4n, which has .987 of the clocks of memory.
    order_worth=0.99,
    fragment_sets=(0.5, 0.5),
    mask_registers=0.5,
    other_registers=32,
    # By ptxas 13.0, tile 64x64x64: 62 to 126 registers more than direct copies, 32 of them elements. First layers,
    # 256x64x32: 255 with two slots, 128 with one.
    registers_through_copy=3,
)

_HOPPER = evolve(
    _AMPERE,
    grids=((2, 4, 1), (1, 4, 1), (1, 8, 1), (2, 2, 1), (4, 2, 1), (4, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 1)),
    # Weights of 8192x8192, products of 1 to 32 rows: .92 to .95 of the time of four slots, tile 64x64x128.
    pipelines=((4, 0), (3, 0), (2, 0), (2, 1), (3, 1), (1, 1), (6, 0)),
    columns=(160, 224),  # 64x64 images of 320 channels
    # Gradients of weights of 1x1 layers, minibatch 128: .87 of the time. With two slots, products of 8192x8192x8192
    # take 1.3 times as long.
    long_rows=(256,),
    # Products of 128 rows, weights of 4096x4096, 14336x4096 and 8192x8192: .72, .68 and .65 of the time in columns.
    much_larger=8.0,
    rings=(4, 3, 5, 6),
    resident_rings=(2, 3),
    ring_block=23,
    ring_exposed=0.45,
    line_clocks=2,
    # Products of 1, 16, 32 and 64 rows, tile 64x32x128, weights of 4096x4096: 21.6, 20.3, 18.0 and 12.5 us. A 1x1 layer
    # of 24 to 144 channels, 56x56: 33.6 us with 32 columns of K, 40.2 us with 64.
    line_outside=20,
    ring_tile=180,
    # A 1x1 layer of 64 to 256 channels with a sum, 192x256x32: 58.5 us, and 23.8 us without; 48 loads in turn.
    operand_latency=850,
    registers_through_copy=3.544,
    vector_operation=1.6,
    message=14,
    issue_through_registers=2.6,
    issue_of_elements=2.2,
    barrier=14,
    # Gradients with TF32, which lanes transpose, 14 layers: 1.05 of the best config's time, 1.10 with 0.
    transpose=11,
    block=400,
    fragment_products=1.39,
    load_latency=900,
    busy_latency=2600,
    shared_latency=94,
    shared_exposed=0.363,
    exposed=0.192,
    hidden=0.57,
    hidden_by_issue=0.51,
    tile=1770,
    launch=2800,
    result_rate=160,
    stream_rate=9,
    unit_rate=53,
    # Gradients of weights, 128 images of 56x56, 64 and 256 channels: a tile of 64x256 in 132 slices took 1.22
    # of the best time, and was ranked first.
    memory_share=1.0,
    tail=0.0225,
    in_place_reads=0.8,
    masked=0.75,
)

TUNING: dict[str, Tuning] = {
    **dict.fromkeys(("sm_80", "sm_86", "sm_89", "sm_90", "sm_120"), _AMPERE),
    "sm_90a": _HOPPER,
}
