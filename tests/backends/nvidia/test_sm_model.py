"""The model of an SM: what each pipe lets through, what waits wait for, and rings of mbarriers that end."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from convgen.backends.nvidia.timing.ops import ALL, Act, Op, Pipe
from convgen.backends.nvidia.timing.shared_clocks import lines_and_sectors, shared_clocks
from convgen.backends.nvidia.timing.unit import Latencies, Unit

LATENCIES = Latencies(memory=500.0, bulk=250.0, shared=23.0, meeting=20.0)
PLAIN = Op()
EVERY = np.ones(32, np.bool_)


def alu(reads: tuple[int, ...] = (), writes: tuple[int, ...] = ()) -> Op:
    return Op(pipe=Pipe.ALU, busy=2.0, latency=4.0, reads=reads, writes=writes)


def product(clocks: float = 128.0, shared: float = 0.0) -> Op:
    return Op(pipe=Pipe.MATRIX, busy=clocks, shared=shared, act=Act.PRODUCT)


def copy(loaded: float = 8.0) -> Op:
    return Op(pipe=Pipe.LSU, busy=2.0, loaded=loaded, act=Act.COPY)


def load(register: int) -> Op:
    return Op(pipe=Pipe.LSU, busy=2.0, loaded=8.0, writes=(register,))


COMMIT, COMMIT_COPIES = Op(act=Act.COMMIT_PRODUCTS), Op(act=Act.COMMIT_COPIES)


def products_wait(groups: int) -> Op:
    return Op(act=Act.AWAIT_PRODUCTS, count=groups)


def copies_wait(groups: int) -> Op:
    return Op(act=Act.AWAIT_COPIES, count=groups)


def meet(number: int = 0, warps: int = ALL) -> Op:
    return Op(act=Act.MEET, count=warps, objects=((number, 0),))


def end(*ops: Op, groups: int = 1, warps: int = 4) -> float:
    return Unit(LATENCIES).run([[ops] * warps] * groups).end


# ---------------------------------------------------------------- pipes


def test_a_sub_core_issues_an_instruction_a_clock() -> None:
    assert end(*[PLAIN] * 100, warps=1) == 100
    assert end(*[PLAIN] * 100, warps=4) == 100
    assert end(*[PLAIN] * 100, warps=8) == pytest.approx(200, abs=2)


def test_integers_take_two_clocks_of_a_sub_core() -> None:
    assert end(*[alu()] * 100, warps=1) == pytest.approx(200, abs=2)
    assert end(*[alu()] * 100, groups=2) == pytest.approx(400, abs=2)


def test_a_result_is_waited_for() -> None:
    chain = [alu(reads=(1,), writes=(1,))] * 50
    assert end(*chain, warps=1) == pytest.approx(50 * 6, abs=6)
    assert end(load(1), alu(reads=(1,)), warps=1) >= 500
    assert end(load(1), alu(reads=(2,)), warps=1) < 20


def test_products_run_beside_their_warp_until_it_waits() -> None:
    assert end(*[product()] * 10, warps=1) < 20
    assert end(*[product()] * 10, COMMIT, products_wait(0)) == pytest.approx(1280, abs=20)
    assert end(*[product()] * 10, COMMIT, product(), COMMIT, products_wait(1)) == pytest.approx(1280, abs=20)
    assert end(*[product()] * 10, COMMIT, products_wait(0), groups=2) == pytest.approx(2560, abs=20)


def test_factors_in_shared_memory_bound_products() -> None:
    """Four warps read 40 clocks each of a port that the unit has once."""
    bound = end(*[product(32.0, shared=40.0)] * 20, COMMIT, products_wait(0))
    assert bound == pytest.approx(20 * 160, rel=0.05)


def test_copies_come_back_at_the_rate_of_l2() -> None:
    few, many = (end(*[copy()] * n, COMMIT_COPIES, copies_wait(0), warps=1) for n in (1, 100))
    assert few == pytest.approx(510, abs=10)
    assert many - few == pytest.approx(99 * 8, rel=0.05)
    assert end(*[copy()] * 100, COMMIT_COPIES, copies_wait(1), warps=1) < 300


def test_warps_meet_at_a_barrier() -> None:
    slow = [PLAIN] * 300
    run = Unit(LATENCIES).run([[[meet(), PLAIN], [*slow, meet(), PLAIN], [PLAIN]]])
    assert [wave.done[-1] for wave in run.waves] == [pytest.approx(322, abs=2), pytest.approx(322, abs=2), 1]


def test_a_barrier_of_some_warps_does_not_wait_for_others() -> None:
    run = Unit(LATENCIES).run([[[meet(1, 2), PLAIN], [meet(1, 2), PLAIN], [PLAIN] * 500]])
    assert run.waves[0].done[-1] < 50


def test_arriving_does_not_wait() -> None:
    arrive = Op(act=Act.PASS, count=2, objects=((1, 0),))
    run = Unit(LATENCIES).run([[[arrive, PLAIN], [*[PLAIN] * 200, meet(1, 2), PLAIN]]])
    assert run.waves[0].done[-1] == 2
    assert run.waves[1].done[-1] == pytest.approx(222, abs=2)


# ---------------------------------------------------------------- rings of mbarriers


def ring(blocks: int, slots: int, products: int = 4) -> list[list[list[Op]]]:
    """Return a workgroup: a warp copies blocks by bulk copies into slots, four others multiply them."""
    full, empty = range(slots), range(100, 100 + slots)
    start = [Op(act=Act.INIT, objects=((n, 1),)) for n in full] + [Op(act=Act.INIT, objects=((n, 4),)) for n in empty]
    copying, multiplying = [*start, meet()], [meet()]
    for block in range(blocks):
        slot, turn = block % slots, block // slots
        arrive = Op(act=Act.ARRIVE, count=16 << 10, objects=((full[slot], 1),))
        bulk = Op(
            pipe=Pipe.TMA, busy=280.0, loaded=256.0, act=Act.LOAD_BULK, count=16 << 10, objects=((full[slot], 0),)
        )
        copying += [Op(act=Act.AWAIT_PHASE, objects=((empty[slot], 1 - turn % 2),)), arrive, bulk]
        multiplying += [Op(act=Act.AWAIT_PHASE, objects=((full[slot], turn % 2),)), *[product()] * products, COMMIT]
        multiplying += [products_wait(0), Op(act=Act.ARRIVE, objects=((empty[slot], 1),))]
    return [[copying, *[multiplying] * 4]]


def test_a_ring_is_as_fast_as_its_slower_role() -> None:
    by_products, by_copies = (Unit(LATENCIES).run(ring(40, 8, n)).end for n in (4, 1))
    assert by_products == pytest.approx(40 * (4 * 128 + 20), rel=0.1)
    assert by_copies == pytest.approx(40 * 280, rel=0.15)


def test_more_slots_take_no_longer_and_more_blocks_do() -> None:
    ends = [Unit(LATENCIES).run(ring(40, slots, 2)).end for slots in (1, 2, 3, 4, 6)]
    assert ends == sorted(ends, reverse=True)
    assert ends[0] > 2 * ends[-1]
    assert Unit(LATENCIES).run(ring(80, 4)).end > 1.8 * Unit(LATENCIES).run(ring(40, 4)).end


@pytest.mark.parametrize("act", [Act.AWAIT_PHASE, Act.ARRIVE, Act.LOAD_BULK, Act.INIT, Act.MEET, Act.COMMIT_PRODUCTS])
def test_a_ring_that_lacks_something_ends(act: Act) -> None:
    ((copying, *multiplying),) = ring(12, 3)
    for missing in (0, 1):
        seen = count()
        cut = [op for op in copying if op.act is not act or next(seen) != missing]
        assert Unit(LATENCIES).run([[cut, *multiplying]]).end > 0
        seen = count()
        cut = [op for op in multiplying[0] if op.act is not act or next(seen) != missing]
        assert Unit(LATENCIES).run([[copying, cut, *multiplying[1:]]]).end > 0


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("offsets", "size", "clocks"),
    [
        (np.arange(32) * 4, 4, 1),
        (np.zeros(32, np.int64), 4, 1),  # one word for all lanes
        (np.arange(32) * 8, 4, 2),
        (np.arange(32) * 128, 4, 32),
        (np.arange(32) * 132, 4, 1),
        (np.arange(32) * 16, 16, 4),
        (np.arange(32) * 128, 16, 32),
        (np.arange(32) * 144, 16, 4),
    ],
)
def test_bank_conflicts(offsets: np.ndarray, size: int, clocks: int) -> None:
    assert shared_clocks(offsets, size, EVERY) == clocks


def test_lanes_without_an_access_take_no_clocks() -> None:
    assert shared_clocks(np.arange(32) * 128, 4, np.arange(32) < 3) == 3
    assert lines_and_sectors(np.arange(32) * 128, 4, np.zeros(32, np.bool_)) == (0, 0)
    assert lines_and_sectors(np.arange(32) * 4, 4, EVERY) == (1, 4)
    assert lines_and_sectors(np.arange(32) * 64, 16, EVERY) == (16, 32)
