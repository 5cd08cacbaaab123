"""What the chooser counts of launches whose workgroups differ (stride phases in one grid), and of resident windows."""

from __future__ import annotations

import pytest

from convgen.backends.target import get
from convgen.backends.tuning import tuning
from convgen.choose import lane_configs
from convgen.choose.choose import candidates, clocks_of
from convgen.choose.clocks import Clocks
from convgen.choose.offers import offers
from convgen.ir.record import evolve
from convgen.plan.atoms import input_atoms
from convgen.plan.config import Config, LanePart, even_group_size, levels
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul, Problem

LINE = "mb64ic256ih19oc512oh10kh3sh2ph1"  #: phases of 4, 2, 2 and 1 taps
TAGS = {"stag": "axb", "wtag": "axb", "dtag": "axb"}
CONFIG = "tile={} waves=2x2 mma=32x32x8 slots=2 stages=2 taps=split acc=a grids=merged"
DEEPEST = 4 * 512 // 32  # blocks of K


def counted(tile: str, units: int) -> Clocks:
    facts = evolve(get("gfx90a").facts, compute_units=units)
    problem = Conv.parse(LINE, dir="BWD_D", dt="f16", **TAGS)
    found = clocks_of(problem, Config.parse(CONFIG.format(tile)), facts)
    assert found is not None
    return found


def test_a_workgroup_a_unit_takes_as_long_as_the_deepest() -> None:
    assert counted("128x128x32", 1000).blocks == DEEPEST


def test_many_workgroups_a_unit_take_as_long_as_the_average() -> None:
    """Of 82, 90, 90 and 100 tiles: 9 x 9, 9 x 10, 10 x 9 and 10 x 10 pixels an image, two over 256 channels."""
    mean = (82 * 4 + 90 * 2 + 90 * 2 + 100) / 362 / 4 * DEEPEST
    found = counted("128x128x32", 3)
    assert found.blocks == pytest.approx(mean, rel=0.02)
    assert found.rounds * found.together + found.remaining == -(-362 // 3)


def test_a_unit_that_gets_two_has_the_first_and_one_that_follows() -> None:
    """121 tiles on 110 units: the first 27 are the deepest, and who ends first takes one more."""
    found = counted("192x256x32", 110)
    assert (found.rounds, found.together, found.remaining) == (2, 1, 0)
    assert found.blocks == DEEPEST / 2


WAYS = "waves=2x1 mma=16x16x32 slots=2 stages=4 taps=split acc=v"
WINDOWS = "tile=256x{} waves=4x1 mma=32x32x16 slots={} taps=resident acc=a"


def of_windows(tile: str, slots: int, channels: int = 256, direction: str = "FWD_D") -> Clocks:
    problem = Conv.parse(f"mb32ic{channels}ih14oc256oh14kh3ph1", dir=direction, dt="f16", **TAGS)
    found = clocks_of(problem, Config.parse(WINDOWS.format(tile, slots)), get("gfx950").facts)
    assert found is not None
    return found


def test_runs_shorter_than_a_granule_take_as_long_as_a_whole_one() -> None:
    """Of 16 channels, 32 bytes: those of twice as many take no longer, but for the rows that make copies even."""
    assert of_windows("32x144", 1).loading == pytest.approx(of_windows("32x288", 1).loading, rel=0.1)
    assert of_windows("32x576", 1).loading > 1.7 * of_windows("32x288", 1).loading


def test_what_lanes_do_not_share_out_in_chunks_is_loaded_by_words() -> None:
    """Of 32 x 288 elements of weights that lie along N, 36 a lane, each load brings two; of 64 x 288 eight."""
    by_words, whole = (of_windows(tile, 2, direction="BWD_D") for tile in ("32x288", "64x288"))
    assert by_words.loading == (18 + 5) * 4 * 16
    assert whole.issue < by_words.issue


def test_what_is_turned_when_it_is_read_comes_in_granules_of_rows() -> None:
    """On gfx950, weights of gradients of data: of 16 rows, 32 bytes, as long as 32."""
    problem = Conv.parse("mb32ic256ih14oc256oh14kh3ph1", dir="BWD_D", dt="f16", **TAGS)
    narrow, wide = (
        clocks_of(problem, Config.parse(f"tile={tile} {WAYS}"), get("gfx950").facts)
        for tile in ("64x16x64", "64x32x64")
    )
    assert narrow is not None
    assert wide is not None
    assert narrow.loading == wide.loading == (64 * 128 + 64 * 64) / 48


@pytest.mark.parametrize(("target", "clocks"), [("gfx90a", 128), ("gfx942", 8 * 4 * 16)])
def test_loads_of_single_elements_take_the_address_pipe(target: str, clocks: int) -> None:
    """Of three channels of the source four waves have 8 loads each, where not only bytes count."""
    problem = Conv.parse("mb1ic3ih224oc32oh112kh3sh2ph1", dir="BWD_W", dt="f16", **TAGS)
    config = Config.parse("tile=32x32x64 waves=2x2 mma=16x16x16 slots=2 stages=2 taps=split acc=v slices=14 sum=last:7")
    found = clocks_of(problem, config, get(target).facts)
    assert found is not None
    assert found.loading == clocks


def test_a_second_slot_hides_what_is_written_where_blocks_are_a_loop() -> None:
    """Of 64 channels two blocks are none: then windows are written by turns with the products."""
    loop, straight = of_windows("32x288", 2), of_windows("32x288", 2, channels=64)
    assert loop.serial < of_windows("32x288", 1).serial
    assert straight.serial == of_windows("32x288", 1, channels=64).serial


def test_windows_of_whole_granules_are_offered_a_second_slot() -> None:
    problem = Conv.parse("mb128ic512ih7oc512oh7kh3ph1", dir="FWD_D", dt="f16", **TAGS)
    ranked = candidates(problem, get("gfx950").facts)
    assert ranked[0].config.taps == "resident"
    assert ranked[0].config.slots == 2
    depths = {c.config.slots: set[int]() for c in ranked[:500]}
    for c in ranked[:500]:
        if c.config.taps == "resident":
            depths[c.config.slots].add(c.config.tile[2] // 9)
    assert min(depths[1]) == 16
    assert min(depths[2]) == 32


def test_short_rows_with_gaps_are_written_twice() -> None:
    """Of two blocks of 288 instead of one of 576, rows of the source: 320 that make copies even in place of 288."""
    short, whole = of_windows("32x288", 1), of_windows("32x576", 1)
    once, more = 2 * 320 * 64 / 128, 2 * (320 - 288) * 64 / 128
    assert 2 * short.shared - whole.shared == once + more


def on_xe(config: str, line: str = "mb32ic64ih56oc64oh56kh3ph1") -> Clocks:
    found = clocks_of(Conv.parse(line, dir="FWD_D", dt="f16", **TAGS), Config.parse(config), get("xehpc").facts)
    assert found is not None
    return found


def test_what_one_subgroup_of_a_simd_issues_nobody_hides() -> None:
    """Xe's threads issue in order, eight engines have one each or two: of a barrier's clocks and of these."""
    alone, two = (on_xe(f"tile=128x64x32 waves={waves} mma=16x8x16 slots=2") for waves in ("4x2", "8x2"))
    assert alone.serial == pytest.approx(40 + alone.issue / alone.together)
    assert two.serial == pytest.approx(40 + two.issue / (2 * two.together))


def test_rows_in_the_order_of_blocks_have_no_gaps() -> None:
    """Bytes written and read of a block: 512 + 128 rows of the source, 64 of weights for each of 9 taps."""
    found = on_xe("tile=512x64x144 waves=16x1 mma=16x8x16 slots=1 taps=resident")
    written, read = (640 * 32 + 64 * 288) / 128, (512 * 288 + 16 * 64 * 288) / 128
    assert found.shared == pytest.approx(written + read, rel=0.06)


def test_loops_go_round_in_whole_runs() -> None:
    """A run of 21 is two blocks of 16: with three slots it would begin anywhere in the loop."""
    problem = Conv.parse("mb32ic3ih224oc64oh112kh7sh2ph3", dir="FWD_D", dt="f16", **TAGS)
    configs = [c.config for c in candidates(problem, get("xehpc").facts) if c.config.taps == "runs"]
    rounds = {depth: {c.staging.round for c in configs if c.tile[2] == depth} for depth in (16, 32)}
    assert all(n % 2 == 0 for n in rounds[16])
    assert 3 in rounds[32]


def test_slices_are_dealt_evenly_to_as_many_groups() -> None:
    """33 by eight are four groups and one left alone; by seven as many groups, of which the last has five."""
    assert even_group_size(33, 8) == 7
    assert even_group_size(5, 8) == 8, "one group is as good with any number"
    for most in range(2, 9):
        for sharers in range(2, 300):
            found = even_group_size(sharers, most)
            assert found <= most
            assert levels(sharers, found) == levels(sharers, most)


GRADIENT = "mb32ic{0}ih{1}oc{0}oh{1}kh3ph1"


def chosen(target: str, direction: str, channels: int = 64, side: int = 56) -> list[Config]:
    problem = Conv.parse(GRADIENT.format(channels, side), dir=direction, dt="f16", **TAGS)
    return [candidate.config for candidate in candidates(problem, get(target).facts)[:400]]


def test_the_chooser_deals_slices_evenly() -> None:
    best = chosen("gfx942", "BWD_W")[0]
    assert (best.slices, best.at_a_time) == (33, 7)


@pytest.mark.parametrize(
    ("target", "direction", "layer"),
    [
        ("gfx942", "FWD_D", "mb32ic2048ih7oc512oh7kh1"),
        ("gfx942", "BWD_D", "mb1ic512ih14oc512oh7kh3sh2ph1"),
        ("gfx942", "BWD_W", GRADIENT.format(256, 14)),
        ("gfx950", "FWD_D", "mb1ic128ih56oc128oh28kh3sh2ph1"),
        ("gfx950", "BWD_D", "mb1ic512ih14oc512oh7kh3sh2ph1"),
    ],
)
def test_thin_grids_take_rows_of_256_bytes(target: str, direction: str, layer: str) -> None:
    """They have half as many barriers."""
    thin = Conv.parse(layer, dir=direction, dt="f16", **TAGS)
    assert candidates(thin, get(target).facts)[0].config.tile[2] == 128


def test_transposing_reads_have_no_rows_of_256_bytes() -> None:
    """Reads of shared memory transpose both factors of gradients of weights (gfx950)."""
    assert all(config.tile[2] != 128 for config in chosen("gfx950", "BWD_W"))


def test_workgroups_of_a_unit_hide_a_part_of_what_each_exposes() -> None:
    """Of two workgroups on each unit of gfx942 the second adds half of what it waits."""
    problem = Matmul.parse("2560x3648:3648x4096", dt="f16", wtag="ba")
    config = Config.parse("tile=128x128x32 waves=2x2 mma=32x32x8 slots=2 stages=2 taps=split acc=v")
    found = clocks_of(problem, config, get("gfx942").facts)
    assert found is not None
    assert found.together == 2
    busiest = max(found.matrix, found.shared, found.loading, found.issue)
    assert found.pace == pytest.approx(busiest + found.block + (found.block - busiest) / 2)
    assert found.hidden == pytest.approx((found.block - busiest) / 2)


def pipelines(problem: Problem, target: str, depth: int) -> list[tuple[int, int]]:
    """Slots and stages of the best tile of that depth at equal clocks, first the one that is ranked first."""
    best, *others = (c for c in candidates(problem, get(target).facts)[:400] if c.config.tile[2] == depth)
    equal = [best, *(c for c in others if c.score == best.score and c.config.tile == best.config.tile)]
    return [(c.config.slots, c.config.stages) for c in equal]


def test_of_equal_pipelines_the_shallowest_wins_whose_loads_come_back_in_time() -> None:
    """Blocks of 256 x 256 x 32 take more than loads do, those of 64 x 64 x 64 a third."""
    assert pipelines(Matmul.parse("4096x4096:4096x4096", dt="f16", wtag="ba"), "gfx942", 32)[0] == (2, 1)
    images = Conv.parse(GRADIENT.format(512, 7), dir="FWD_D", dt="f16", **TAGS)
    assert pipelines(images, "gfx942", 64)[0] == (3, 3)


def test_loads_that_memory_binds_come_back_behind_others() -> None:
    """As many blocks as hide the latency of one alone do not: two stages fewer take 9 % more, by `convgen profile`."""
    problem = Conv.parse("mb64ic384ih8oc384oh8kh1ph0iw8ow8kw3pw1", dir="BWD_W", dt="bf16", **TAGS)
    first, *others = pipelines(problem, "gfx950", 64)
    assert first == (2, 4)
    assert (2, 2) in others


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_lanes_that_load_weights_element_by_element_leave_larger_groups_to_matrix_instructions(target: str) -> None:
    """Lanes take weights of K; memory runs along the output's channels (`axb` of grouped weights) or along K."""
    groups = {n: f"g{64 // n}mb32ic64ih28oc64oh28kh3ph1" for n in (4, 16)}

    facts = get(target).facts

    def layer(of_group: int, wtag: str) -> Conv:
        return Conv.parse(groups[of_group], dir="FWD_D", dt="f16", **(TAGS | {"wtag": wtag}))

    def best(wtag: str) -> float:
        return min(clocks for clocks, _ in lane_configs.configs(layer(16, wtag), facts, ()))

    assert isinstance(candidates(layer(4, "axb"), facts)[0].config.mma, LanePart)
    assert not isinstance(candidates(layer(16, "axb"), facts)[0].config.mma, LanePart)
    assert best("axb") > 2 * best("any")


SM_90 = get("sm_90").facts
FIRST_LAYER = Conv.parse("mb32ic3ih224oc64oh112kh7sh2ph3", dir="FWD_D", dt="f16", **TAGS)


@pytest.mark.parametrize("target", ["gfx942", "sm_90"])
def test_packed_rows_of_k_are_loaded_in_whole_chunks(target: str) -> None:
    """K of 147 elements is packed in rows of 152, which begin at whole chunks, as tiles along K end at them."""
    facts = get(target).facts
    atom = input_atoms(FIRST_LAYER, facts)[0]
    packed = [offer for offer in offers(FIRST_LAYER, facts, ()) if offer.packed == ("wei",)]
    assert {offer.loads(atom, facts)[1].widest for offer in packed} == {8}


def test_weights_in_whole_chunks_are_issued_faster_than_single_elements() -> None:
    single, chunks = (
        clocks_of(FIRST_LAYER, Config.parse(f"tile=128x64x32 waves=2x2 mma=8x16x16 slots=1 taps=fused{word}"), SM_90)
        for word in ("", " packed=wei")
    )
    assert single
    assert chunks
    assert chunks.issue < single.issue


def test_images_are_packed_where_that_pays() -> None:
    packing = evolve(SM_90, tuning=evolve(tuning(SM_90), packs_images=True))
    offered = [{name for o in offers(FIRST_LAYER, facts, ()) for name in o.packed} for facts in (packing, SM_90)]
    assert offered == [{"src", "wei"}, {"wei"}]


def test_workgroups_hide_all_exposed_clocks_where_issue_is_busiest() -> None:
    found = clocks_of(FIRST_LAYER, Config.parse("tile=96x64x32 waves=2x2 mma=8x16x16 slots=1 taps=fused"), SM_90)
    assert found
    assert found.together > 1
    assert found.issue > max(found.matrix, found.shared, found.loading)
    assert found.pace == pytest.approx(found.block + (found.together - 1) * found.issue)


def test_straight_line_blocks_wait_for_loads_that_the_assembler_does_not_hoist() -> None:
    line = "tile=96x64x32 waves=2x2 mma=8x16x16 slots=3 taps=fused"  # five blocks of K are no loop
    hoisting = evolve(SM_90, tuning=evolve(tuning(SM_90), hoists_loads=True))
    waiting, hoisted = (clocks_of(FIRST_LAYER, Config.parse(line), facts) for facts in (SM_90, hoisting))
    assert waiting
    assert hoisted
    assert waiting.slowest > tuning(SM_90).busy_latency > hoisted.slowest == 0


def test_copies_through_registers_leave_room_for_more_workgroups_with_a_single_slot() -> None:
    lines = (f"tile=128x64x32 waves=2x2 mma=8x16x16 slots={slots} taps=fused packed=wei" for slots in (1, 2))
    single, double = (clocks_of(FIRST_LAYER, Config.parse(line), SM_90) for line in lines)
    assert single
    assert double
    assert single.together > double.together


SM_90A = get("sm_90a").facts
SQUARE = Matmul.parse("4096x4096:4096x4096", dt="f16", wtag="ba")


def in_place(config: str, problem: Problem = SQUARE) -> Clocks:
    found = clocks_of(problem, Config.parse(config), SM_90A)
    assert found
    return found


def test_each_instruction_reads_both_factors_in_place() -> None:
    """Reads of 4 and of 2 x 2 products of K = 16, in bytes, by 128 bytes a clock; writes are the same."""
    wide, narrow = (
        in_place(f"tile=128x256x16 waves={grid} mma={n}x64x16 slots=4 copy=direct")
        for grid, n in (("2x4", 256), ("1x8", 128))
    )
    read = [products * (64 + n) * 16 * 2 for products, n in ((2, 256), (4, 128))]
    share = tuning(SM_90A).in_place_reads
    assert narrow.shared - wide.shared == pytest.approx(share * (read[1] - read[0]) / 128)


def test_long_rows_in_place_need_products_in_flight_over_a_barrier() -> None:
    configs = (candidate.config for candidate in candidates(SQUARE, SM_90A))
    in_long_rows = {c.slots for c in configs if c.tile[2] == 128 and not isinstance(c.mma, LanePart) and c.mma[1] == 64}
    assert min(in_long_rows) == 3


def test_messages_along_rows_compute_one_tap() -> None:
    """Gradients of weights of channels last: images of 7 x 7 pixels as one run of K, or padded to whole chunks."""
    problem = Conv.parse("mb128ic512ih7oc512oh7kh3ph1", dir="BWD_W", dt="f16", **TAGS)
    fused, chunk = (
        in_place(f"tile=128x256x64 waves=1x8 mma=128x64x16 slots=4 taps={taps} slices=3 copy=direct", problem)
        for taps in ("fused", "chunk")
    )
    assert fused.issue == chunk.issue
    assert fused.blocks < chunk.blocks


def test_messages_end_where_padded_runs_do() -> None:
    """Rows of 28 pixels, padded to 32, come by messages of 4; images of 784 pixels without padding by messages of 8."""
    tags = dict.fromkeys(("stag", "wtag", "dtag"), "abx")
    problem = Conv.parse("mb16ic256ih28oc512kh3ph1", dir="BWD_W", dt="f16", **tags)
    line = "tile=256x64x32 waves=4x1 mma=32x32x8 slots=3 stages=3 slices=4 sum=last:4"
    split, fused = (
        clocks_of(problem, Config.parse(f"{line} taps={taps}"), get("gfx942").facts) for taps in ("split", "fused")
    )
    assert split is not None
    assert fused is not None
    assert split.loading == 2 * fused.loading
    assert split.loading > split.matrix
