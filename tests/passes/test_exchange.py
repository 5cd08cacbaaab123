"""`exchange` takes the way that the layouts allow, and what comes out means the same."""

from __future__ import annotations

import numpy as np
import pytest

from convgen.backends.amdgpu.tables import FACTS
from convgen.backends.target import get
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.expr import Add, FromLane, Max
from convgen.ir.interp import interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.mutate import postorder, statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.types import f16, f32, f64, s8, s32
from convgen.ir.verify import verify
from convgen.passes.exchange import exchange
from convgen.passes.messages.scratch_tiles import replicas, scratch_tile
from convgen.passes.messages.swizzle import conflict_cycles
from tests.exchange import Case

R, L, S = Space.REGISTER, Space.LANE, Space.SUBGROUP
_FACTS = FACTS["gfx942"]


def layout(*digits: tuple[str, int, Space, int]) -> Fragment:
    return Fragment(("n", "m"), tuple(Digit(*d) for d in digits))


DOWN = layout(("n", 16, L, 1), ("m", 4, R, 1), ("m", 4, L, 16), ("m", 2, S, 1))
ALONE = layout(("n", 16, L, 1), ("m", 4, R, 1), ("m", 4, L, 16))


def means_the_same(case: Case, before: Kernel, after: Kernel) -> bool:
    given = np.random.default_rng(1).integers(-99, 99, case.of.shape).astype(case.elem.numpy)
    memories = [case.memory(given.copy()) for _ in range(2)]
    for kernel, memory in zip((before, after), memories):
        interpret(kernel, memory, {})
    return np.array_equal(memories[0]["out"], memories[1]["out"])


#: what -> the exchange, and how many moves between lanes, barriers and shared tiles it needs
WAYS = {
    "a sum along registers": (Case(s32, layout(("n", 64, L, 1), ("m", 8, R, 1)), None, "m", Add, 64, 1), (0, 0, 0)),
    "a sum along registers and lanes": (Case(s32, ALONE, None, "m", Add, 64, 1), (2, 0, 0)),
    "a maximum along all lanes": (Case(f32, layout(("n", 64, L, 1)), None, "n", Max, 64, 1), (6, 0, 0)),
    "a sum along three lanes": (Case(s32, layout(("n", 3, L, 1), ("n", 2, L, 3)), None, "n", Add, 64, 1), (5, 0, 0)),
    "a sum where subgroups meet": (Case(s32, DOWN, None, "m", Add, 64, 2), (2, 2, 1)),
    "a sum along the subgroups' other dim": (Case(s32, DOWN, None, "n", Add, 64, 2), (4, 0, 0)),
    "another order of registers": (
        Case(s32, ALONE, layout(("n", 16, L, 1), ("m", 2, R, 2), ("m", 2, R, 1), ("m", 4, L, 16)), "", None, 64, 1),
        (0, 0, 0),
    ),
    "fewer registers of replicas": (
        Case(s32, layout(("n", 4, R, 1)), layout(("n", 4, L, 1)), "", None, 64, 1),
        (0, 0, 1),
    ),
    "more registers of replicas": (
        Case(s32, layout(("n", 4, L, 1)), layout(("n", 4, R, 1)), "", None, 64, 1),
        (4, 0, 0),
    ),
    "other lanes": (
        Case(s32, ALONE, layout(("n", 16, L, 4), ("m", 4, R, 1), ("m", 4, L, 1)), "", None, 64, 1),
        (1, 0, 0),
    ),
    "lanes change places with registers": (
        Case(s32, ALONE, layout(("n", 16, L, 1), ("m", 4, L, 16), ("m", 4, R, 1)), "", None, 64, 1),
        (0, 0, 1),
    ),
    "subgroups change places": (
        Case(s32, layout(("n", 2, S, 1), ("m", 2, S, 2)), layout(("n", 2, S, 2), ("m", 2, S, 1)), "", None, 64, 4),
        (0, 2, 1),
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_the_way_that_is_taken(name: str) -> None:
    case, counts = WAYS[name]
    before = case.kernel("k")
    after = exchange(before, _FACTS)
    moves = sum(isinstance(n, FromLane) for n in postorder(after.body))
    barriers = sum(isinstance(n, s.Barrier) for n in statements(after.body))
    assert (moves, barriers, len(after.shared)) == counts, str(after)
    assert not any(isinstance(n, s.Exchange) for n in statements(after.body))
    assert means_the_same(case, before, after)


def test_without_moves_between_any_lanes_memory_is_the_way() -> None:
    case, _ = WAYS["other lanes"]
    before = case.kernel("k")
    after = exchange(before, evolve(_FACTS, permutes=False))
    assert len(after.shared) == 1
    assert means_the_same(case, before, after)


def test_what_exchanges_nothing_stays() -> None:
    k = KernelBuilder("k")
    k.barrier()
    kernel = k.done()
    assert exchange(kernel, _FACTS) is kernel


def test_alike_exchanges_share_a_tile_between_barriers() -> None:
    k = KernelBuilder("k", subgroups=2)
    held = k.load_view("held", matrix(k.buffer("a", s32, 512), 16, 32), (0, 0), DOWN)
    for name in ("first", "second"):
        k.reduce(name, held, DOWN, "m", Add)
    k.reduce("third", held, layout(("n", 16, L, 1), ("m", 4, R, 1), ("m", 4, L, 16), ("m", 2, S, 1)), "m", Max)
    after = exchange(k.done(), _FACTS)
    assert len(after.shared) == 1
    order = [type(n) for n in statements(after.body) if isinstance(n, (s.Barrier, s.StoreShared, s.LoadShared))]
    assert order == [s.Barrier, s.StoreShared, s.Barrier, s.LoadShared] * 3


def test_who_does_not_meet_has_a_part_to_itself() -> None:
    """No barrier waits for the others, and tiles whose parts are cut otherwise are others."""
    k = KernelBuilder("k", subgroups=2, width=4)
    a, out = (matrix(k.buffer(name, s32, 16), 4, 4) for name in ("a", "out"))
    layouts = [
        (layout((x, 4, L, 1), (y, 2, R, 1), (y, 2, S, 1)), layout((x, 4, R, 1), (y, 2, L, 1), (y, 2, S, 1)))
        for x, y in ("nm", "mn")
    ]
    with k.when(k.subgroup < 1):
        for of, to in [*layouts, *layouts]:
            held = k.load_view("held", a, (0, 0), of)
            k.store_view(out, (0, 0), k.redistribute("moved", held, of, to), to)
    before = k.done()
    after = exchange(before, evolve(_FACTS, permutes=False))
    assert not any(isinstance(n, s.Barrier) for n in statements(after.body))
    assert len(after.shared) == 2
    memories = [{"a": np.arange(64, dtype=np.uint8), "out": np.zeros(64, np.uint8)} for _ in range(2)]
    for kernel, memory in zip((before, after), memories):
        interpret(verify(kernel), memory)
    assert np.array_equal(memories[0]["out"], memories[1]["out"])


def test_replicas_are_what_digits_leave_out() -> None:
    found = replicas(layout(("n", 2, S, 2), ("m", 3, S, 8)), 48)
    assert [(d.size, d.stride) for d in found] == [(2, 1), (2, 4), (2, 24)]
    assert not replicas(layout(("n", 2, S, 1), ("m", 2, S, 2)), 4)
    assert [(d.size, d.stride) for d in replicas(layout(("n", 2, S, 1)), 3)] == [(3, 1)]


def test_lanes_meet_no_bank_twice_in_a_scratch_tile() -> None:
    """Rows of as many banks as there are: written along and read across, or both along, by the widest messages."""
    along = Fragment(("row", "col"), (Digit("col", 64, R, 1), Digit("row", 64, L, 1)))
    across = Fragment(("row", "col"), (Digit("col", 64, L, 1), Digit("row", 64, R, 1)))
    row, col = np.arange(64), np.zeros(64, np.int64)
    for tile in (scratch_tile("t", f32, along, loaded, _FACTS) for loaded in (across, along)):
        assert tile.chunk == 16
        assert conflict_cycles(tile.address(0, row, col) // 16, _FACTS.shared_read, 16) == 0
        assert conflict_cycles(row * 256 // 16, _FACTS.shared_read, 16) > 0
        assert conflict_cycles(tile.address(0, 0, row) // 4, _FACTS.shared_half_read.narrower(2), 4) == 0


@pytest.mark.parametrize("target", FACTS)
@pytest.mark.parametrize("run", [3, 5, 6, 12, 24])
def test_runs_go_by_messages_of_powers_of_two(run: int, target: str) -> None:
    """Also those of which no messages of one width are a run; each element has a place of its own."""
    stored = Fragment(("row", "col"), (Digit("col", run, R, 1), Digit("col", 4, L, 1), Digit("row", 16, L, 4)))
    loaded = Fragment(("row", "col"), (Digit("col", 4 * run, R, 1), Digit("row", 16, L, 1)))
    for elem in (s8, f16, f32, f64):
        tile = scratch_tile("t", elem, stored, loaded, FACTS[target])
        row, col = np.divmod(np.arange(64 * run), 4 * run)
        assert len({*tile.address(0, row, col).tolist()}) == 64 * run


def test_parts_of_subgroups_are_reduced_without_conflicts() -> None:
    """Rows of lanes four by four, of which a phase has two fours, with eight columns each."""
    held = (Digit("col", 8, R, 1), Digit("col", 4, L, 16), Digit("row", 16, L, 1))
    layout = Fragment(("row", "col"), (*held, Digit("row", 2, R, 8)))
    tile = scratch_tile("t", f32, layout, layout, _FACTS)
    lane = np.arange(64)
    for register in (0, 4, 8, 12):
        at = layout.coords(0, lane, register)
        places = tile.address(0, at["row"], at["col"]) // 16
        assert conflict_cycles(places, _FACTS.shared_read, 16) == 0
        assert conflict_cycles(places, _FACTS.shared_write, 16) == 0
    assert tile.bytes <= 32 * 36 * 4


@pytest.mark.parametrize("target", ["xehpg", "xehpc"])
def test_rows_of_a_scratch_tile_of_blocks_begin_in_different_banks(target: str) -> None:
    facts = get(target).facts
    lanes = Digit("row", facts.subgroup_size, L, 1)
    across = Fragment(("row", "col"), (Digit("col", 64, R, 1), lanes))
    tile = scratch_tile("t", f32, across, across, facts)
    assert (tile.pitch, tile.chunk) == (256 + facts.chunk_bytes, facts.chunk_bytes)
