"""Workgroups and tiles: every tile has one workgroup, in numbers as in IR expressions, in every order."""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir.build import KernelBuilder
from convgen.ir.error import UserError
from convgen.ir.evaluate import Evaluator
from convgen.ir.expr import Expr, Var, const, lift
from convgen.ir.layout.digits import Index
from convgen.ir.layout.index import choose, lesser
from convgen.ir.layout.mapping import TILE, WorkgroupMapping
from convgen.ir.layout.order import STEPS, Order
from convgen.ir.layout.turns import Persist, SharedOut, Turns, follow_one_another
from convgen.ir.layout.walks import FreeForm, Grouped
from convgen.ir.mutate import statements
from convgen.ir.simplify.bounds import bounds
from convgen.ir.stmt import If, Let
from tests.strategies import FIXED, ORDERS

COUNTS = st.tuples(*(st.integers(1, most) for most in (2, 9, 9, 3)))  #: batch, M, N, K


@st.composite
def mappings(draw: st.DrawFn) -> WorkgroupMapping:
    return WorkgroupMapping(
        draw(COUNTS), draw(ORDERS | st.just(Order.parse("ragged"))), draw(st.integers(1, 9)), draw(st.integers(1, 3))
    )


def workgroups(mapping: WorkgroupMapping) -> list[tuple[int, int, int]]:
    """All of the grid, x fastest; of workgroups that persist all the numbers that they take."""
    x, y, z = mapping.grid
    if mapping.turns.count > 1:
        return [(number, 0, 0) for number in range(mapping.numbers)]
    return [(i, j, k) for k, j, i in product(range(z), range(y), range(x))]


def held(mapping: WorkgroupMapping, group: tuple[int, int, int]) -> tuple[int, ...] | None:
    """The tile of a workgroup; None if there is none."""
    tile = mapping.tile(group)
    return tuple(int(tile[dim]) for dim in TILE) if all(mapping.exists(tile)) else None


@settings(FIXED, max_examples=80)
@given(mappings())
def test_every_tile_has_one_workgroup(mapping: WorkgroupMapping) -> None:
    tiles = [held(mapping, group) for group in workgroups(mapping)]
    owners: dict[int, set[int]] = {}
    for turn, group in product(range(mapping.turns.count), range(mapping.turns.workgroups)):
        share = mapping.turns.share(turn, group)
        if all(share.exists):
            owners.setdefault(share.number, set()).add(group)
    there = [tile for tile in tiles if tile is not None]
    assert sorted(there) == list(product(*map(range, mapping.counts)))
    assert mapping.is_padded == (None in tiles)
    for number, tile in enumerate(tiles):
        if tile is not None:
            assert mapping.groups({dim: [at] for dim, at in zip(TILE, tile)}) == tuple(sorted(owners[number]))
    taken = set().union(*(owners[n] for n, tile in enumerate(tiles) if tile is not None))
    assert sorted(mapping.groups({})) == sorted(taken)
    rows = [None if row[0] < 0 else tuple(row) for row in mapping.tiles().tolist()]
    assert rows == tiles


@settings(FIXED, max_examples=60)
@given(mappings(), st.data())
def test_expressions_say_what_numbers_say(mapping: WorkgroupMapping, data: st.DataObject) -> None:
    group = data.draw(st.sampled_from(workgroups(mapping)))
    numbers = {**mapping.tile(group), "backward": mapping.is_backward(group)}
    turn, who = (data.draw(st.integers(0, most - 1)) for most in (mapping.turns.count, mapping.turns.workgroups))
    numbers |= dict(zip("12345", mapping.turns.share(turn, who).values))
    written = [const(n) for n in group]
    symbolic = {**mapping.tile(written), "backward": mapping.is_backward(written)}
    symbolic |= dict(zip("12345", mapping.turns.share(const(turn), const(who)).values))
    evaluate = Evaluator(64)
    for what, number in numbers.items():
        found = symbolic[what]
        assert (int(evaluate(found).data.flat[0]) if isinstance(found, Expr) else found) == number


@settings(FIXED, max_examples=200)
@given(
    st.builds(
        Turns,
        st.builds(Persist, st.integers(1, 40), st.sampled_from(SharedOut))
        | st.builds(Persist, st.integers(1, 40), snake=st.booleans()),
        st.integers(1, 60),
        st.integers(1, 20),
        st.integers(1, 4),
    )
)
def test_shares_are_even_and_have_each_block_once(turns: Turns) -> None:
    """One by one; `follow_one_another` says the same of all."""
    assert follow_one_another(turns)
    seen = [[0] * turns.grains for _ in range(turns.tiles)]
    lengths = []
    for group in range(turns.workgroups):
        shares = [share for turn in range(turns.shared_turns) if all((share := turns.share(turn, group)).exists)]
        lengths.append(sum(share.end - share.begin for share in shares))
        for turn in range(turns.count):
            share = turns.share(turn, group)
            if all(share.exists):
                for grain in range(share.begin, share.end):
                    seen[share.number][grain] += 1
                assert group == turns.owners(share.number)[share.rank]
                assert len(turns.owners(share.number)) == share.sharers <= turns.sharers
    assert all(count == 1 for tile in seen for count in tile)
    assert max(lengths) - min(lengths) <= 1
    if turns.persist.shared is SharedOut.LAST and turns.whole_turns:
        assert not turns.shared or min(lengths) >= turns.grains


def test_a_snake_balances_tiles_whose_work_rises() -> None:
    """Eight blocks of queries of causal attention: in the plain order a workgroup gets up to twice another's keys."""
    totals = {}
    for snake in (False, True):
        turns = Turns(Persist(132, snake=snake), tiles=4096)
        shares = [turns.share(turn, np.arange(132)) for turn in range(turns.count - turns.count % 2)]
        totals[snake] = sum(share.number % 8 + 1 for share in shares[:30])
    assert totals[False].max() == 2 * totals[False].min()
    assert np.ptp(totals[True]) == 0


def test_a_lost_share_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(Persist(7, SharedOut.LAST), 17, 9, 2)
    owner = Turns._owner
    monkeypatch.setattr(Turns, "_owner", lambda self, grain: owner(self, grain + 1))
    assert not follow_one_another(turns)


@settings(FIXED, max_examples=40)
@given(COUNTS)
def test_rows_of_tiles(counts: tuple[int, int, int, int]) -> None:
    """What the kernels of a problem have by default: N fastest along x, slices along y, the batch along z."""
    batch, m, n, k = counts
    mapping = WorkgroupMapping.of(m, n, k=k, batch=batch)
    assert mapping.grid == (m * n, k, batch)
    assert not mapping.is_padded
    numbers = np.arange(m * n * k * batch).reshape(batch, k, m, n)
    for b, i, j, s in product(*map(range, counts)):
        assert mapping.groups({"batch": [b], "m": [i], "n": [j], "k": [s]}) == (numbers[b, s, i, j],)
    assert mapping.groups({"m": [0], "k": [0], "batch": [0]}) == tuple(range(n))


@settings(FIXED, max_examples=100)
@given(ORDERS)
def test_an_order_is_its_text(order: Order) -> None:
    assert Order.parse(str(order)) == order


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "given '', wanted one of rows"),
        ("grup:8m", "given 'grup'"),
        ("group:8", r"given 'group:8', wanted group:COUNTm|n\[:snake\]"),
        ("group:0m", "given 'group:0m'"),
        ("hilbert:3", "given 'hilbert:3', wanted hilbert in the order"),
        ("zorder:3x4", "wanted powers of two"),
        ("rows+cols", "wanted remaps, one walk"),
        ("flip:3+rows", "wanted remaps, one walk"),
        ("rows+xcc:8", "wanted remaps, one walk"),
    ],
)
def test_what_is_no_order_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Order.parse(text)


def test_an_order_of_two_walks_is_refused_in_one_sentence() -> None:
    with pytest.raises(UserError) as refused:
        Order.parse("rows+cols")
    wanted = "remaps, one walk, at most one flip: and one persist: or stream:, in that order"
    assert str(refused.value) == f"given the order 'rows+cols', wanted {wanted}"


def test_each_step_is_drawn_in_these_tests() -> None:
    drawn = {
        "rows",
        "cols",
        "hilbert",
        "ragged",
        "group",
        "wgm",
        "even",
        "rect",
        "zorder",
        "xcc",
        "chunk",
        "flip",
        "persist",
        "stream",
    }
    assert drawn == set(STEPS)


def _waves_order(number: Index, m: int, n: int, size: int = 3, dies: int = 8) -> tuple[Index, Index]:
    """Wave's workgroup reordering as its document writes it, the last group's size chosen among constants."""
    total = m * n
    number = number % dies * (total // dies) + lesser(number % dies, total % dies) + number // dies
    first = number // (size * n) * size
    inside = number % (size * n)
    last = m % size or size
    is_last = first + size > m
    return (
        first + choose(is_last, inside % last, inside % size),
        choose(is_last, inside // last, inside // size),
    )


@pytest.mark.parametrize("tiles", [(5, 3), (8, 8), (7, 4), (3, 1)])
def test_an_order_of_ones_own(tiles: tuple[int, int]) -> None:
    mine = WorkgroupMapping.of(*tiles, order=Order(walk=FreeForm("wave", _waves_order)))
    assert (mine.tiles() == WorkgroupMapping.of(*tiles, order=Order.parse("xcc:8+group:3m")).tiles()).all()
    with pytest.raises(UserError, match="given the order free:lost for 1x5x3x1 tiles"):
        WorkgroupMapping.of(5, 3, order=Order(walk=FreeForm("lost", lambda w, m, n: (w % m, w % n // 2))))


class _Lossy(Grouped):
    """An order that leaves the last row out and takes the first one twice."""

    def tile(self, number: int, m: int, n: int) -> tuple[int, int]:
        return number // n % (m - 1), number % n


SIDES, GROUPS, DIES = range(1, 41), range(1, 46), (1, 2, 3, 4, 6, 8)


def _tiles(m: int, n: int, order: str) -> npt.NDArray[np.int64]:
    return WorkgroupMapping.of(m, n, order=Order.parse(order)).tiles()


@pytest.mark.sweep
@pytest.mark.parametrize("m", SIDES)
def test_every_group_and_remap_is_a_bijection(m: int) -> None:
    """Every grid up to 40 x 40; a mapping proves itself when it is made."""
    for n, dies in product(SIDES, DIES):
        for group in GROUPS:
            more = (f"even:{group}m:snake", f"rect:{group}x{n % 7 + 1}n", f"group:{group}m:snake")[(n + group) % 3]
            for order in (f"xcc:{dies}+group:{group}m", f"chunk:{dies}x{group}+group:{group}n", f"xcc:{dies}+{more}"):
                WorkgroupMapping.of(m, n, order=Order.parse(order))
            assert (_tiles(m, n, f"wgm:{group}m") == _tiles(m, n, f"group:{group}m")).all()
        for walk in ("hilbert", f"zorder:{2 ** (m % 4)}x{2 ** (n % 5)}"):
            WorkgroupMapping.of(m, n, order=Order.parse(f"xcc:{dies}+{walk}"))


def test_what_is_no_bijection_is_refused() -> None:
    with pytest.raises(UserError, match="wanted one workgroup for each tile"):
        WorkgroupMapping.of(4, 3, order=Order(walk=_Lossy("n")))


def test_orders_are_proved_up_to_a_size() -> None:
    with pytest.raises(UserError, match="given 36000000 workgroups, wanted at most 16777216"):
        WorkgroupMapping.of(6000, 6000, order=Order.parse("cols"))
    assert WorkgroupMapping.of(1 << 20, 1 << 10).groups({"m": [5], "n": [7]}) == (5 * 1024 + 7,)


def test_workgroups_without_a_tile_do_nothing() -> None:
    padded = WorkgroupMapping.of(3, 1, order=Order.parse("zorder:2x1"))
    k = KernelBuilder("k", padded.grid)
    with k.tile_of(padded) as tile:
        k.let("here", lift(tile["m"], const(0)))
    body = k.done().body
    assert isinstance(body, If)
    k = KernelBuilder("k")
    with k.tile_of(WorkgroupMapping.of(3, 1)) as tile:
        k.let("here", lift(tile["m"], const(0)))
    assert isinstance(k.done().body, Let)


@FIXED
@given(st.integers(1, 40), st.data())
def test_slices_are_dealt_whole_grains(slices: int, data: st.DataObject) -> None:
    """Each grain once, in order; the last slices have one more than the first, in numbers as in expressions."""
    grains = data.draw(st.integers(slices, 200))
    mapping = WorkgroupMapping((1, 1, 1, slices), uneven_grains=grains)
    first, count = (np.broadcast_to(bound, slices) for bound in mapping.share_of_slice(np.arange(slices)))
    assert [0, *(first + count)] == [*first, grains]
    assert {*count} <= {-(-grains // slices), grains // slices}
    assert (np.diff(count) >= 0).all()
    part = data.draw(st.integers(0, slices - 1))
    said = [lift(bound, const(0)) for bound in mapping.share_of_slice(const(part))]
    assert [int(Evaluator(1)(bound).data[0]) for bound in said] == [first[part], count[part]]


def test_the_longest_slice_begins_nowhere_too_late() -> None:
    """By ranges alone: what loads of the last block of K need no mask for."""
    k = KernelBuilder("k", (1, 10, 1))
    slice_ = k.group[1]
    first, count = (
        lift(bound, slice_) for bound in WorkgroupMapping((1, 1, 1, 10), uneven_grains=1568).share_of_slice(slice_)
    )
    ranges = {slice_: (0, 9)}
    assert (bounds(first, ranges), bounds(count, ranges)) == ((0, 1411), (156, 157))


def test_suites_run_with_the_grains_of_their_slice() -> None:
    k = KernelBuilder("k", (1, 3, 1))
    with k.tile_of(WorkgroupMapping((1, 1, 1, 3), grain=2, uneven_grains=5)) as tile:
        ev = Evaluator(k.width)
        assert (tile["rank"], tile["sharers"], tile["begin"]) == (tile["k"], 3, 0)
        first, count = tile["first"], tile["end"]
    condition = next(s for s in statements(k.done().body) if isinstance(s, If)).cond
    lets = {s.var: s.value for s in statements(k.done().body) if isinstance(s, Let)}
    assert str(condition) == "0 < count"
    ev.env[k.group[1]] = ev.full(k.group[1].type, 1)
    assert isinstance(first, Var)
    assert isinstance(count, Var)
    assert [int(ev(lets[bound]).data[0]) for bound in (first, count)] == [1, 2]
