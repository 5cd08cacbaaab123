"""Swizzles: no access that the kernels make has a bank conflict, counted here anew."""

from __future__ import annotations

import pytest

from convgen.backends.target import get
from convgen.ir.error import DoesNotFit
from convgen.ir.expr import const
from convgen.ir.facts import SharedPhases
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Shared
from convgen.ir.record import evolve
from convgen.passes.messages.shared import shared_messages
from convgen.passes.messages.swizzle import conflict_cycles
from convgen.plan.config import Config
from convgen.plan.plan import Plan, make_plan
from convgen.problem.conv import Conv

PROBLEMS = {dt: Conv.parse("mb1ic64ih16oc64kh3ph1", dir="FWD_D", dt=dt) for dt in ("f16", "s8")}
CHUNK = 16


def conflicts(tile: Shared, layout: Fragment, phases: SharedPhases, width: int = CHUNK) -> int:
    """Cycles beyond one a phase, over all accesses of the first subgroup, each of `width` bytes."""
    extra = 0
    elems = width // tile.elem.bytes
    for register in range(0, layout.registers, elems):
        at = [layout.coords(0, lane, register) for lane in range(64)]
        row, col = layout.dims
        starts = [tile.address(0, a[row], a[col]) for a in at]
        for lanes in phases.phases:
            words = {starts[lane] // 4 + w for lane in lanes for w in range(width // 4)}
            by_bank = [0] * phases.banks
            for word in words:
                by_bank[word % phases.banks] += 1
            extra += max(by_bank) - 1
    return extra


def plans(target: str, tile_k: int, dt: str = "f16") -> list[Plan]:
    """Plans with all atoms of a target and two tile shapes."""
    facts = get(target).facts
    found = []
    for atom in facts.atoms:
        if atom.a_elem.name == dt:
            for tile, waves in (((64, 64), (2, 2)), ((128, 128), (2, 2)), ((64, 128), (1, 4))):
                config = Config((*tile, tile_k), waves, (atom.n, atom.m, atom.k))
                try:
                    found.append(make_plan(PROBLEMS[dt], config, facts))
                except DoesNotFit:
                    continue
    return found


@pytest.mark.parametrize(("dt", "tile_k"), [("f16", 32), ("f16", 64), ("s8", 64), ("s8", 128)])
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_no_access_has_a_bank_conflict(target: str, dt: str, tile_k: int) -> None:
    made = plans(target, tile_k, dt)
    assert {plan.mma.atom.n for plan in made} == {16, 32}
    for plan in made:
        facts = plan.facts
        (part,) = plan.parts
        for operand, read in ((part.of_n, plan.mma.a), (part.of_m, plan.mma.b)):
            assert operand.tile is not None
            assert operand.copy is not None
            tile, write = operand.tile, operand.copy.stored
            if read.contiguous("k") * tile.elem.bytes >= CHUNK:
                assert conflicts(tile, read, facts.shared_read) == 0, f"{plan.config} reads {tile.name}"
            assert conflicts(tile, write, facts.shared_write) == 0, f"{plan.config} writes {tile.name}"


@pytest.mark.parametrize("target", ["gfx90a", "gfx942"])
def test_words_of_rows_far_apart_are_written_without_conflicts(target: str) -> None:
    """Gradients of weights: a lane has eight rows and a word of K of each, its neighbour the next eight rows."""
    facts, width = get(target).facts, 4
    in_order = SharedPhases(32, tuple(tuple(range(start, start + 32)) for start in (0, 32)))
    k = next(atom.k for atom in facts.atoms if atom.n == 32 and atom.a_elem.name == "f16")
    problem = Conv.parse("mb4ic64ih16oc64kh3ph1", dir="BWD_W", dt="f16", stag="axb", wtag="axb", dtag="axb")
    (part,) = make_plan(problem, Config((64, 64, 64), (2, 2), (32, 32, k), taps="fused"), facts).parts
    for operand in (part.of_n, part.of_m):
        assert operand.tile is not None
        assert operand.copy is not None
        tile, write = operand.tile, operand.copy.stored
        assert (operand.copy.message, write.contiguous("k") * tile.elem.bytes) == (8, width)
        assert conflicts(tile, write, in_order, width) == 0
        unfolded = evolve(tile.swizzle, fold=0)
        plain = Shared(tile.name, tile.elem, tile.rows, tile.cols, tile.digits, tile.slots, unfolded, tile.chunk)
        assert conflicts(plain, write, in_order, width) > 0


#: Target, problem, direction, config, and the bytes that lanes write: of copies whose lanes meet in banks if they are
#: dealt in order, or if rows stay where they are.
COPIES = [
    ("gfx942", "mb4ic64ih56oc64kh3ph1", "BWD_D", "192x64x32 waves=4x1 mma=16x16x16", 4),
    ("gfx942", "mb4ic128ih56oc128oh28kh3sh2ph1", "BWD_D", "192x128x32 waves=2x2 mma=32x32x8", 4),
    ("gfx942", "mb4ic256ih56oc64kh1ph0", "BWD_D", "192x256x32 waves=2x2 mma=32x32x8", 8),
    ("gfx942", "mb4ic3ih224oc64oh112kh7sh2ph3", "BWD_D", "512x16x256 waves=4x1 mma=16x16x16 slots=1 taps=resident", 8),
    ("gfx950", "mb4ic3ih224oc64oh112kh7sh2ph3", "BWD_D", "512x16x512 waves=4x1 mma=16x16x32 slots=1 taps=resident", 16),
    ("gfx950", "mb4ic64ih56oc64kh3ph1", "FWD_D", "512x64x288 waves=4x1 mma=32x32x16 slots=1 taps=resident", 16),
    ("gfx950", "mb4ic3ih224oc64oh112kh7sh2ph3", "FWD_D", "256x64x24 waves=4x1 mma=32x32x8 taps=runs", 4),
]


@pytest.mark.parametrize(("target", "problem", "direction", "config", "width"), COPIES)
def test_lanes_are_dealt_and_rows_placed_so_that_nothing_conflicts(
    target: str, problem: str, direction: str, config: str, width: int
) -> None:
    phases = "" if direction == "FWD_D" or "taps" not in config else " phases=columns"
    made = Conv.parse(problem, dir=direction, dt="f16", stag="axb", wtag="axb", dtag="axb")
    plan = make_plan(made, Config.parse(f"tile={config}{phases}"), get(target).facts)
    facts, written = plan.facts, set()
    for part in plan.parts:
        for operand, read in ((part.of_n, plan.mma.a), (part.of_m, plan.mma.b)):
            assert operand.tile is not None
            assert operand.copy is not None
            tile, stored = operand.tile, operand.copy.stored
            chunk = tile.chunk & -tile.chunk
            each, held = (min(chunk, layout.contiguous("k") * 2) for layout in (stored, read))
            reading = facts.shared_read if held == CHUNK else facts.shared_half_read
            assert conflicts(tile, stored, facts.shared_write.narrower(CHUNK // each), each) == 0
            assert conflicts(tile, read, reading, held) == 0
            assert operand.conflicts == 0
            written.add(each)
    assert width in written


def test_rows_of_half_a_line_of_banks_change_places() -> None:
    """Gradients of data, words of four rows a lane: in order, 16 chunks would begin in four places."""
    target, problem, direction, config, _ = COPIES[0]
    made = Conv.parse(problem, dir=direction, dt="f16", stag="axb", wtag="axb", dtag="axb")
    (part,) = make_plan(made, Config.parse(f"tile={config}"), get(target).facts).parts
    tile, copy = part.of_n.tile, part.of_n.copy
    assert tile is not None
    assert copy is not None
    assert tile.is_dense
    assert tile.swizzle.mask >= tile.chunks == 4
    rows = [copy.loaded.coords(0, lane, 0)["row"] for lane in range(64)]
    assert [lane for lane in range(64) if rows[lane] // 4 in (0, 8)][:3] == [0, 8, 16]  # a line of memory, then along K


def test_half_chunks_are_read_and_written_without_conflicts() -> None:
    """Rows of an odd number of chunks have half a chunk behind them: what reads and writes halves counts as such."""
    facts, half = get("gfx942").facts, CHUNK // 2
    problem = Conv.parse("mb1ic3ih64oc64kh7sh2ph3", dir="FWD_D", dt="f16", stag="axb", wtag="axb", dtag="axb")
    config = Config((192, 64, 24), (3, 1), (32, 32, 8), taps="runs")
    (part,) = make_plan(problem, config, facts).parts
    unit = make_plan(problem, config, facts).mma
    for operand, read in ((part.of_n, unit.a), (part.of_m, unit.b)):
        assert operand.tile is not None
        assert operand.tile.chunk == half
        assert conflicts(operand.tile, read, facts.shared_half_read, half) == 0


def test_lanes_that_write_together_are_near() -> None:
    """128 channels a row of pixels: lanes go down them for a line of memory only, then on along K."""
    facts, width = get("gfx942").facts, 8
    problem = Conv.parse("mb4ic128ih16oc128kh3ph1", dir="BWD_W", dt="f16", stag="axb", wtag="axb", dtag="axb")
    (part,) = make_plan(problem, Config((64, 128, 64), (2, 2), (32, 32, 8), taps="fused"), facts).parts
    tile, copy = part.of_n.tile, part.of_n.copy
    assert tile is not None
    assert copy is not None
    assert (copy.message, copy.stored.contiguous("k") * tile.elem.bytes) == (8, width)
    assert conflicts(tile, copy.stored, facts.shared_write.narrower(CHUNK // width), width) == 0


def gradient(tile: tuple[int, int, int], waves: tuple[int, int], atom: tuple[int, int, int]) -> Plan:
    """Of weights, on xehpg: neighbouring lanes write rows of different blocks."""
    problem = Conv.parse("mb4ic256ih16oc256kh3ph1", dir="BWD_W", dt="f16", stag="axb", wtag="axb", dtag="axb")
    return make_plan(problem, Config(tile, waves, atom, taps="fused"), get("xehpg").facts)


def test_lanes_that_write_blocks_far_apart_meet_no_bank_twice() -> None:
    plan = gradient((128, 256, 32), (2, 16), (16, 8, 16))
    facts, (part,) = plan.facts, plan.parts
    tile, copy = part.of_n.tile, part.of_n.copy
    assert tile is not None
    assert copy is not None
    dense = evolve(tile, digits=plan.mma.a.image(facts.subgroup_size, 2).renamed({"n": "row", "k": "col"}))
    assert conflicts(dense, copy.stored, facts.shared_write, 4) > 0
    assert conflicts(tile, copy.stored, facts.shared_write, 4) == 0
    assert tile.slot_bytes == dense.slot_bytes // 512 * 520
    messages = [
        [(m.start, m.count) for m in shared_messages(each, const(0), plan.mma.a, const(0), plan.subgroups, facts)]
        for each in (tile, dense)
    ]
    assert messages[0] == messages[1]
    other = part.of_m.tile
    assert other is not None
    assert other.is_dense  # whose words come in blocks


def test_there_are_no_gaps_without_room() -> None:
    (part,) = gradient((256, 256, 32), (4, 16), (16, 8, 16)).parts
    assert [o.tile.is_dense for o in (part.of_n, part.of_m) if o.tile] == [True, True]


def test_without_a_swizzle_there_would_be_conflicts() -> None:
    plan = plans("gfx942", 64)[0]
    tile = plan.parts[0].of_n.tile
    assert tile is not None
    plain = Shared(
        tile.name, tile.elem, tile.rows, tile.cols, tile.digits, tile.slots, type(tile.swizzle)(), tile.chunk
    )
    assert conflicts(plain, plan.mma.a, plan.facts.shared_read) > 0


@pytest.mark.parametrize(
    ("chunks", "extra"),
    [
        ((0, 1, 2, 3, 4, 5, 6, 7), 0),
        ((0, 8, 2, 3, 4, 5, 6, 7), 1),
        ((0, 8, 16, 3, 3, 3, 3, 11), 2 + 1),  # the second phase: one chunk that three lanes share, and another
        ((5, 5, 5, 5, 5, 5, 5, 5), 0),
        ((0, 8, 16, 24, 1, 9, 17, 25), 3 + 3),
    ],
)
def test_conflicts_are_counted_by_phase(chunks: tuple[int, ...], extra: int) -> None:
    """Of 32 banks eight groups of a chunk's width; lanes go four by four."""
    phases = SharedPhases(32, ((0, 1, 2, 3), (4, 5, 6, 7)))
    assert conflict_cycles(chunks, phases, 16) == extra
