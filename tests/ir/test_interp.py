"""The interpreter against numpy, and every rule whose breach it must report."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from convgen.ir import interp, stmt
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.error import UserError
from convgen.ir.evaluate import Evaluator, Value
from convgen.ir.expr import (
    Expr,
    Lane,
    Mma,
    Slice,
    Splat,
    Uniform,
    const,
    eq,
    select,
    var,
    zeros,
)
from convgen.ir.interp import InterpError, interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Dim, Global, Overlay, Shared, Swizzle, TensorDim, View
from convgen.ir.layout.mma import BlockAtom, MmaAtom, MmaTile
from convgen.ir.layout.tags import Layout
from convgen.ir.products import BlockMma
from convgen.ir.record import evolve
from convgen.ir.types import bf16, f16, f32, f64, s8, s32, u8, u16, u32, vector

L, R, S = Space.LANE, Space.REGISTER, Space.SUBGROUP
LANE = Lane()

# ---------------------------------------------------------------- matrices


def operand(row: str, rows: int, held: int) -> Fragment:
    return Fragment((row, "k"), (Digit(row, rows, L, 1), Digit("k", held, R, 1), Digit("k", 64 // rows, L, rows)))


def atom(ab: Any = f16, acc: Any = f32, rows: int = 16) -> MmaAtom:
    """An MFMA-like instruction: groups of four consecutive rows of D in the registers of a lane."""
    groups = 64 // rows
    tail = (Digit("n", rows // (4 * groups), R, 4),) if rows > 4 * groups else ()
    d = Fragment(("n", "m"), (Digit("n", 4, R, 1), Digit("n", groups, L, rows), *tail, Digit("m", rows, L, 1)))
    return MmaAtom("mma", rows, rows, 4 * groups, ab, ab, acc, operand("n", rows, 4), operand("m", rows, 4), d, 4)


@pytest.mark.parametrize(
    "tile",
    [
        MmaTile(atom(), 1, 1, 1),
        MmaTile(atom(rows=32), 2, 1, 4, pack=2),
        MmaTile(atom(), 2, 3, 4, pack=2, teams_n=2, teams_m=2),
        MmaTile(atom(bf16), 1, 2, 2, teams_m=2),
        MmaTile(atom(s8, s32), 2, 2, 2),
        MmaTile(atom(), 4, 3, 4, pack=2, teams_n=2, run=8),
        MmaTile(atom(rows=32), 2, 1, 4, pack=2, teams_m=2, run=16),
        MmaTile(atom(), 2, 3, 4, teams_n=2, teams_m=2, rows=4),
    ],
    ids=lambda t: (
        f"{t.atom.n}x{t.tiles_n}x{t.tiles_m}x{t.steps}p{t.pack}w{t.teams_n}{t.teams_m}r{t.run}d{t.rows}{t.atom.a_elem}"
    ),
)
def test_mma_multiplies_through_shared_tiles(tile: MmaTile) -> None:
    """Copy, barrier, fragments, product and store of a whole workgroup against numpy, with a swizzle on the way."""
    (m, kk), (n, _), ab, acc = tile.a.shape, tile.b.shape, tile.atom.a_elem, tile.atom.acc
    chunks = kk * ab.bytes // 16
    k = KernelBuilder("gemm", subgroups=tile.teams_n * tile.teams_m)
    views = [matrix(k.buffer(name, t, r * c), r, c) for name, t, r, c in (("a", ab, m, kk), ("b", ab, n, kk))]
    out = matrix(k.buffer("c", acc, m * n), m, n)
    tiles = [k.shared(f"{v.memory.name}_tile", ab, v.extent(0), kk, swizzle=Swizzle(1, chunks - 1)) for v in views]
    for t, v in zip(tiles, views):
        waves = Digit("row", k.subgroups, S, 1)
        rest = Digit("row", -(-t.rows // (64 * k.subgroups)), R, 1)
        lanes = Digit("row", t.rows // (k.subgroups * rest.size), L, 1)
        k.copy(t, v, (0, 0), Fragment(("row", "col"), (Digit("col", kk, R, rest.size), rest, waves, lanes)))
    k.barrier()
    fa, fb = (k.load_shared(f"f{t.name}", t, layout) for t, layout in zip(tiles, (tile.a, tile.b)))
    k.store_view(out, (0, 0), k.mma("d", tile, k.zeros(tile.acc_type), fa, fb), tile.d)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, (r, kk)).astype(ab.numpy) for r in (m, n))
    memory = {"a": a.view(np.uint8).ravel(), "b": b.view(np.uint8).ravel(), "c": np.zeros(m * n * acc.bytes, np.uint8)}
    interpret(k.done(), memory)
    expected = a.astype(np.int64) @ b.astype(np.int64).T
    assert np.array_equal(memory["c"].view(acc.numpy).reshape(m, n), expected)


def test_a_product_of_each_block_of_lanes() -> None:
    """What other blocks hold takes no part, infinities and poison neither."""
    op = BlockAtom("mma_4x4x2", 4, 2, f16, f32, 8)
    names = "acc", "a", "b"
    acc, a, b = (var(n, vector(t, count)) for n, t, count in zip(names, (f32, f16, f16), (4, 2, 2)))
    rng, ev = np.random.default_rng(1), Evaluator(8)
    held = {v: rng.integers(-8, 9, (8, v.type.lanes)).astype(v.type.elem.numpy) for v in (acc, a, b)}
    held[a][6], poison = np.inf, np.zeros((8, 2), np.bool_)
    poison[1, 0] = True
    ev.env |= {v: Value(data, poison if v is b else None) for v, data in held.items()}
    found = ev(BlockMma(op, acc, a, b))
    left, right = (held[v].astype(np.float64).reshape(2, 4, 2) for v in (a, b))
    with np.errstate(all="ignore"):
        expected = held[acc] + np.einsum("pik,pjk->pji", left, right).reshape(8, 4)
    assert np.array_equal(found.data, expected.astype(np.float32), equal_nan=True)
    assert np.isfinite(found.data[:4]).all()
    assert found.poison is not None
    assert np.flatnonzero(np.asarray(found.poison).any(axis=1)).tolist() == [1]
    with pytest.raises(UserError, match="mma mma_4x4x2: operands"):
        BlockMma(op, acc, acc, b)


@pytest.mark.parametrize(("rounds_to", "sum_"), [("", 16 * (1 + 2.0**-20)), ("xf32", 16.0)])
def test_an_mma_may_cut_its_inputs(rounds_to: str, sum_: float) -> None:
    tile = MmaTile(evolve(atom(f32), rounds_to=rounds_to), 1, 1, 1)
    acc, a, b = (zeros(tile.acc_type), *(var(n, vector(f32, 4)) for n in "ab"))
    ev = Evaluator(64)
    ev.env[a] = Value(np.full((64, 4), 1 + 2.0**-20, np.float32))
    ev.env[b] = Value(np.ones((64, 4), np.float32))
    assert (ev(Mma(tile, acc, a, b, ())).data == np.float32(sum_)).all()


def test_an_mma_rounds_once_per_instruction() -> None:
    tile = MmaTile(atom(), 1, 1, 2)
    k_of = tile.a.coords(0, np.arange(64)[:, None], np.arange(8)[None, :])["k"]
    ev = Evaluator(64)
    acc, a, b = var("acc", tile.acc_type), var("a", tile.a_type), var("b", tile.b_type)
    # 2^24 + 1 + 1: in one sum exact, rounded one by one 2^24; the second instruction adds one 1 to 2^24 + 2.
    ev.env[acc] = Value(np.full((64, 4), 2.0**24, np.float32))
    ev.env[a] = Value(np.isin(k_of, (0, 1, 16)).astype(np.float16))
    ev.env[b] = Value(np.ones((64, 8), np.float16))
    assert (ev(Mma(tile, acc, a, b, ())).data == 2.0**24 + 4).all()  # 2^24 + 3 ties to even


# ---------------------------------------------------------------- views


def run(k: KernelBuilder, **buffers: np.ndarray[Any, Any]) -> None:
    """Interpret on the given arrays, which change in place."""
    memory = {name: data.reshape(-1).view(np.uint8) for name, data in buffers.items()}
    interpret(k.done(), memory)


ROWS = Fragment(("n", "m"), (Digit("m", 8, R, 1), Digit("n", 64, L, 1)))  #: 64 x 8, a row a lane


def test_a_view_is_zero_outside_and_drops_what_is_stored_there() -> None:
    """A 1-D convolution's window matrix: x[o + k - 1] with padding, o in [0, 5) of 64 rows, k in [0, 3) of 4."""
    k = KernelBuilder("im2row")
    src = View(
        k.buffer("x", f32, 5),
        Layout.dense((5,), (0,)),
        ((Dim("o", 5, 64),), (Dim("q", 2, 2), Dim("k", 3, 4))),
        (TensorDim(5, (("o", 1), ("k", 1)), -1, True),),
    )
    dst = matrix(k.buffer("y", f32, 5 * 8), 5, 8)
    k.store_view(dst, (0, 0), k.load_view("t", src, (0, 0), ROWS), ROWS)
    x = np.arange(1, 6, dtype=np.float32)
    y = np.full((5, 8), 99, np.float32)
    run(k, x=x, y=y)
    padded = np.concatenate([[0], x, [0]])
    expected = np.zeros((5, 8))
    for o in range(5):
        for tap in range(3):
            expected[o, [tap, 4 + tap]] = padded[o + tap]
    assert np.array_equal(y, expected)


def test_an_unmasked_coordinate_outside_its_tensor_is_an_error() -> None:
    k = KernelBuilder("lies")
    src = View(
        k.buffer("x", f32, 64),
        Layout.dense((64,), (0,)),
        ((Dim("o", 64, 64),), (Dim("k", 8, 8),)),
        (TensorDim(64, (("o", 1), ("k", 1))),),
    )
    k.load_view("t", src, (0, 0), ROWS)
    with pytest.raises(InterpError, match="tensor dim 0 of the view of x is not masked, and is 64 of 64") as error:
        run(k, x=np.zeros(64, np.float32))
    assert any("t: f32x8 = load x" in note for note in error.value.__notes__)
    assert any("subgroup 0 of workgroup (0, 0, 0)" in note for note in error.value.__notes__)


def test_a_view_beyond_its_buffer_is_an_error() -> None:
    k = KernelBuilder("short")
    view = matrix(Global("x", f32, 63 * 8 * 4), 64, 8)
    k.params.append(view.memory)
    k.load_view("t", view, (0, 0), ROWS)
    with pytest.raises(InterpError, match="element 504 of buffer x, which has 504"):
        run(k, x=np.zeros(63 * 8, np.float32))


# ---------------------------------------------------------------- additions

#: 64 x 8 in blocks of 4 x 2 a lane, as their registers stand in two orders
BLOCKS, TURNED = (
    Fragment(("n", "m"), (Digit("n", 4, R, down), Digit("m", 2, R, across), Digit("n", 16, L, 1), Digit("m", 4, L, 16)))
    for down, across in ((2, 1), (1, 4))
)


@pytest.mark.parametrize("elem", [f32, f64], ids=str)
def test_every_workgroup_and_wave_adds(elem: Any) -> None:
    k = KernelBuilder("adds", grid=(3, 1, 1), subgroups=2)
    waves = Fragment(("n", "m"), (*ROWS.digits, Digit("n", 2, S, 1)))
    source, out = (matrix(k.buffer(name, elem, 60 * 8), 60, 8) for name in "xy")
    k.atomic_view("add", out, (0, 0), k.load_view("t", source, (0, 0), waves), waves)
    k.atomic_view("add", out, (0, 4), k.zeros(vector(elem, 8)) + 0.5, waves)  # reaches over the end of rows and columns
    x, y = np.arange(480, dtype=elem.numpy).reshape(60, 8), np.full((60, 8), 7, elem.numpy)
    run(k, x=x, y=y)
    expected = 7 + 3 * x
    expected[:, 4:] += 1.5
    assert np.array_equal(y, expected)


def test_lanes_that_meet_in_one_element_all_add() -> None:
    k = KernelBuilder("meet")
    out = k.surface(k.buffer("y", f32, 4))
    k.global_atomic("add", out, Lane().to(f32), LANE % 3 * 4)
    k.global_atomic("add", k.surface(buffer(k), 4, 8), const(100.0, f32), LANE * 4)  # two elements are in the window
    y = np.ones(4, np.float32)
    run(k, y=y)
    assert y.tolist() == [1 + sum(range(0, 64, 3)), 101 + sum(range(1, 64, 3)), 101 + sum(range(2, 64, 3)), 1]


@pytest.mark.parametrize("tile_level", [True, False])
def test_poison_is_not_added(tile_level: bool) -> None:
    k = KernelBuilder("k")
    out = matrix(k.buffer("x", f32, 64 * 8), 64, 8)
    poison = k.load_shared("p", k.shared("t", f32, 64, 8), ROWS)
    if tile_level:
        k.atomic_view("add", out, (0, 0), poison, ROWS)
    else:
        k.global_atomic("add", k.surface(out.memory), Slice(poison, 0, 1), LANE * 4)
    with pytest.raises(InterpError, match="an added value depends on uninitialized memory"):
        run(k, x=np.zeros(512, np.float32))


@pytest.mark.parametrize("loaded", [BLOCKS, TURNED], ids=["as stored", "turned"])
def test_a_copy_gives_the_same_however_it_is_loaded(loaded: Fragment) -> None:
    k = KernelBuilder("copy")
    source, out = (matrix(k.buffer(name, f32, 64 * 8), 64, 8) for name in "xy")
    tile = k.shared("t", f32, 64, 8)
    k.copy(tile, source, (0, 0), BLOCKS, loaded=loaded)
    k.store_view(out, (0, 0), k.load_shared("v", tile, ROWS), ROWS)
    x, y = np.arange(512, dtype=np.float32), np.zeros(512, np.float32)
    run(k, x=x, y=y)
    assert np.array_equal(x, y)


# ---------------------------------------------------------------- control


def test_loops_carry_leave_and_give_results() -> None:
    k = KernelBuilder("sum", grid=(2, 3, 1))
    out = k.buffer("out", s32, 6)
    limit = k.scalar("limit")
    zero = const(0)
    with k.loop("i", 0, 10, total=zero, last=zero) as loop:
        k.exit_if(loop["total"] >= limit, loop["total"], const(-7))
        loop.yields(loop["total"] + loop.var, loop.var)
    with k.loop("j", 5, 5, total=loop.result("total")) as never:
        never.yields(never["total"] + 1000)
    value = never.result("total") * 100 + loop.result("last") + k.group[1] * 10000
    number = k.group[0] + k.group[1] * 2
    k.global_store(k.surface(out), value, number * 4)
    kernel = k.done()

    memory = np.full(6, 99, np.int32)
    interpret(kernel, {"out": memory.view(np.uint8)}, {"limit": 11}, groups=[0, 3])
    # 0 1 3 6 10 15: leaves at 15 with -7
    assert memory.tolist() == [1493, 99, 99, 11493, 99, 99]
    interpret(kernel, {"out": memory.view(np.uint8)}, {"limit": 1000})
    assert memory.tolist() == [n // 2 * 10000 + 4509 for n in range(6)]


def test_arguments_are_checked() -> None:
    k = KernelBuilder("k")
    k.buffer("x", f32, 4)
    k.scalar("n")
    k.size("rows", 64, multiple=8)
    kernel = k.done()
    known = {"n": 1, "rows": 8}
    with pytest.raises(UserError, match=r"buffer x: given nothing, wanted uint8\[16\]"):
        interpret(kernel, {}, known)
    with pytest.raises(UserError, match="buffer x: given float32"):
        interpret(kernel, {"x": np.zeros(4, np.float32)}, known)
    with pytest.raises(UserError, match="given rows=4, wanted 1 to 64, a multiple of 8"):
        interpret(kernel, {"x": np.zeros(16, np.uint8)}, known | {"rows": 4})
    with pytest.raises(UserError, match="argument n: given nothing, wanted s32"):
        interpret(kernel, {"x": np.zeros(16, np.uint8)})


# ---------------------------------------------------------------- messages


def test_surfaces_bound_what_messages_touch() -> None:
    """Outside the extent loads give zero and stores are dropped; the shift may be negative."""
    k = KernelBuilder("window", width=4)
    src, dst = k.buffer("x", u32, 4), k.buffer("y", u32, 4)
    got = k.global_load("v", u32, k.surface(src, -4, 16), LANE * 4 + 4, 4, imm=-4)
    k.global_store(k.surface(dst, 4, 8), got, LANE * 4)
    x, y = np.array([10, 11, 12, 13], np.uint32), np.full(4, 9, np.uint32)
    run(k, x=x, y=y)
    assert y.tolist() == [9, 10, 11, 9]  # lanes 2 and 3 are outside the stored window, lane 3 outside the loaded one


def message_error(make: Callable[[KernelBuilder], None], message: str, subgroups: int = 1) -> None:
    k = KernelBuilder("k", subgroups=subgroups)
    k.buffer("x", u32, 64)
    make(k)
    with pytest.raises(InterpError, match=message):
        run(k, x=np.zeros(64, np.uint32))


def buffer(k: KernelBuilder) -> Global:
    (found,) = (p for p in k.params if isinstance(p, Global))
    return found


def on_surface(k: KernelBuilder, surface: Expr) -> stmt.Stmt:
    """A load of a word of the buffer, on whatever is given as its surface."""
    return stmt.GlobalLoad(k.var("v", u32), buffer(k), surface, const(0), const(0), 0, k.site())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda k: k.global_load("v", u32, k.surface(buffer(k), 0, 260), LANE * 4, 4), "byte 256 of buffer x"),
        (lambda k: k.global_load("v", u32, k.surface(buffer(k), -4, 8), LANE * 4), "byte -4 of buffer x"),
        (lambda k: k.global_load("v", u32, k.surface(buffer(k), 0, 6), LANE * 4), "ends inside a word"),
        (lambda k: k.global_load("v", u32, k.surface(buffer(k)), 0, LANE), "a uniform offset differs"),
        (lambda k: k.global_load("v", u32, k.surface(buffer(k), LANE), 0), "a surface's shift differs"),
        (lambda k: k.global_store(k.surface(buffer(k)), LANE, 0), "two lanes store different values"),
        (lambda k: k.add(on_surface(k, var("s", vector(u32, 4)))), "is no surface"),
        (lambda k: k.add(on_surface(k, k.surface(Global("z", u32, 4)))), "a surface of z, of a message that accesses"),
    ],
)
def test_message_errors(make: Callable[[KernelBuilder], None], message: str) -> None:
    message_error(make, message)


# ---------------------------------------------------------------- shared memory, barriers, poison


def exchange(barriers: int = 1, read_other: bool = True) -> KernelBuilder:
    """Two subgroups write their halves of a tile and read the other's."""
    k = KernelBuilder("exchange", subgroups=2)
    out = k.buffer("out", u32, 128)
    tile = k.shared("tile", u32, 128, 1, chunk=4)
    mine = k.subgroup * 256 + LANE * 4
    k.shared_write(tile, LANE.to(u32), mine)
    k.barrier()
    k.shared_write(tile, (k.subgroup * 100 + LANE).to(u32), mine)
    for _ in range(barriers):
        k.barrier()
    got = k.shared_read("got", u32, tile, (256 - k.subgroup * 256 if read_other else k.subgroup * 256) + LANE * 4)
    k.global_store(k.surface(out), got, mine)
    return k


def test_a_barrier_makes_writes_visible() -> None:
    out = np.zeros(128, np.uint32)
    run(exchange(), out=out)
    assert out.tolist() == [*range(100, 164), *range(64)]


def test_a_missing_barrier_is_a_race() -> None:
    with pytest.raises(InterpError, match="race in shared tile tile: byte 256 was read by subgroup 0"):
        run(exchange(barriers=0), out=np.zeros(128, np.uint32))


@pytest.mark.parametrize("barriers", [0, 1])
def test_what_is_written_to_an_overlay_spoils_the_tile_below(barriers: int) -> None:
    k = KernelBuilder("k", subgroups=2)
    out = k.buffer("out", s32, 128)
    below = k.shared("below", s32, 64, 1, chunk=4)
    over = Overlay(**{name: getattr(below, name) for name in Shared.fields} | {"name": "above"}, over="below")
    k.tiles.append(over)
    with k.when(eq(k.subgroup, 0)):
        k.shared_write(below, LANE, LANE * 4)
    for _ in range(barriers):
        k.barrier()
    with k.when(eq(k.subgroup, 1)):
        k.shared_write(over, LANE + 100, LANE * 4)
    k.barrier()
    k.global_store(k.surface(out), k.shared_read("v", s32, below, LANE * 4), k.subgroup * 256 + LANE * 4)
    found = np.zeros(128, np.int32)
    assert re.search("shared above: 1 of s32 64 x 1, .*, over below\n", str(k.done()))
    if not barriers:
        with pytest.raises(InterpError, match="race in shared tile above: byte 0 was written by subgroup 0"):
            run(k, out=found)
        return
    run(k, out=found)
    assert found.tolist() == [*range(100, 164)] * 2


def test_own_writes_need_no_barrier() -> None:
    out = np.zeros(128, np.uint32)
    run(exchange(barriers=0, read_other=False), out=out)
    assert out.tolist() == [*range(64), *range(100, 164)]


@pytest.mark.parametrize(("first", "second"), [("read", "write"), ("write", "write"), ("write", "read")])
@pytest.mark.parametrize("earlier", [0, 1])
def test_conflicts_are_found_in_either_order(first: str, second: str, earlier: int) -> None:
    """Subgroup `earlier` does `first`, the other `second`, on the same bytes of one epoch."""
    k = KernelBuilder("k", subgroups=2)
    tile = k.shared("tile", s32, 64, 1, chunk=4)
    k.barrier()
    for deed, who in ((first, earlier), (second, 1 - earlier)):
        with k.when(eq(k.subgroup, who)):
            if deed == "read":
                k.shared_read("v", s32, tile, LANE * 4)
            else:
                k.shared_write(tile, LANE, LANE * 4)
    with pytest.raises(InterpError, match="race in shared tile tile"):
        interpret(k.done(), {})


def test_a_barrier_that_not_all_reach_waits_for_ever() -> None:
    k = KernelBuilder("k", subgroups=2)
    with k.when(eq(k.subgroup, 0)):
        k.barrier()
    with pytest.raises(InterpError, match=r"only subgroups \[0\] of 2 arrive"):
        interpret(k.done(), {})


def test_arrivals_count_wherever_the_barrier_stands() -> None:
    k = KernelBuilder("k", subgroups=2)
    for who in (0, 1):
        with k.when(eq(k.subgroup, who)):
            k.barrier()
    interpret(k.done(), {})


def test_subgroups_that_part_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they did together before is undone, so that each addition counts once."""
    alone: list[tuple[int, ...]] = []
    run_group = interp._run_group

    def told(*arguments: Any) -> None:
        alone.append(arguments[-1])
        run_group(*arguments)

    monkeypatch.setattr(interp, "_run_group", told)
    run(exchange(), out=np.zeros(128, np.uint32))
    assert alone == []
    k = KernelBuilder("part", grid=(3, 1, 1), subgroups=2)
    y = k.surface(k.buffer("y", f32, 64))
    k.global_atomic("add", y, const(1.0, f32), LANE * 4)
    with k.when(eq(k.subgroup, 1)):
        k.global_atomic("add", y, const(10.0, f32), LANE * 4)
    sums = np.zeros(64, np.float32)
    run(k, y=sums)
    assert (sums == 3 * (2 * 1 + 10)).all()
    assert alone == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]


def test_workgroups_that_go_together_have_shared_memory_of_their_own() -> None:
    """Each writes its number, and finds it again."""
    k = KernelBuilder("numbers", grid=(5, 1, 1), subgroups=2)
    out = k.surface(k.buffer("out", s32, 5 * 128))
    tile = k.shared("tile", s32, 128, 1, chunk=4)
    thread = k.subgroup * 64 + LANE
    k.shared_write(tile, k.group[0] * 1000 + thread, thread * 4)
    k.barrier()
    k.global_store(out, k.shared_read("got", s32, tile, 508 - thread * 4), (k.group[0] * 128 + thread) * 4)
    found = np.zeros((5, 128), np.int32)
    run(k, out=found)
    assert np.array_equal(found, np.arange(5)[:, None] * 1000 + np.arange(127, -1, -1))


def unwritten(k: KernelBuilder, type: Any = s32) -> Expr:
    return k.shared_read("unwritten", type, k.shared("tile", s32, 64, 4), LANE * 16)


def poisoned(use: Callable[[KernelBuilder, Expr], None]) -> KernelBuilder:
    k = KernelBuilder("k")
    k.buffer("x", u32, 64)
    use(k, unwritten(k))
    return k


@pytest.mark.parametrize(
    "use",
    [
        lambda k, p: k.global_store(k.surface(buffer(k)), p, LANE * 4),
        lambda k, p: k.global_load("v", u32, k.surface(buffer(k)), p),
        lambda k, p: k.global_load("v", u32, k.surface(buffer(k)), 0, p * 0),
        lambda k, p: k.let("v", Uniform(p)),
        lambda k, p: k.add(stmt.If(p < 3, stmt.empty, stmt.empty)),
        lambda k, p: k.add(stmt.For(var("i"), const(0), p, (), (), stmt.empty, (), (), "l", False)),
        lambda k, p: k.shared_write(k.tiles[0], LANE, p),
        lambda k, p: (
            k.shared_write(k.tiles[0], p + 1, LANE * 16),  # what is stored there stays poison
            k.global_store(k.surface(buffer(k)), k.shared_read("again", s32, k.tiles[0], LANE * 16), LANE * 4),
        ),
        lambda k, p: k.global_store(k.surface(buffer(k)), select(p < 0, LANE, LANE), LANE * 4),
    ],
)
def test_poison_is_an_error_where_it_decides(use: Callable[[KernelBuilder, Expr], None]) -> None:
    with pytest.raises(InterpError, match="depends on uninitialized memory, in lanes 0, 1, 2"):
        run(poisoned(use), x=np.zeros(64, np.uint32))


@pytest.mark.parametrize(
    "use",
    [
        lambda k, p: k.let("v", p + 1),
        lambda k, p: k.let("v", p // p),
        lambda k, p: k.shared_write(k.tiles[0], p, LANE * 16),
        lambda k, p: k.global_store(k.surface(buffer(k), 0, 0), p, LANE * 4),
        lambda k, p: k.global_store(k.surface(buffer(k)), select(LANE < 64, LANE, p), LANE * 4),
    ],
)
def test_poison_that_decides_nothing_is_none(use: Callable[[KernelBuilder, Expr], None]) -> None:
    run(poisoned(use), x=np.zeros(64, np.uint32))


def test_poison_spreads_by_row_and_column_of_a_product() -> None:
    tile = MmaTile(atom(), 1, 2, 2)
    ev = Evaluator(64)
    acc, a, b = var("acc", tile.acc_type), var("a", tile.a_type), var("b", tile.b_type)
    at = {name: f.coords(0, np.arange(64)[:, None], np.arange(f.registers)[None, :]) for name, f in
          (("a", tile.a), ("b", tile.b), ("d", tile.d))}  # fmt: skip
    ev.env[acc] = Value(np.zeros((64, 8), np.float32))
    ev.env[a] = Value(np.ones((64, 8), np.float16), (at["a"]["n"] == 3) & (at["a"]["k"] == 20))
    ev.env[b] = Value(np.ones((64, 16), np.float16), (at["b"]["m"] == 17) & (at["b"]["k"] == 1))
    poison = ev(Mma(tile, acc, a, b, ())).poison
    assert poison is not None
    assert np.array_equal(poison, (at["d"]["n"] == 3) | (at["d"]["m"] == 17))


def test_one_poisoned_byte_poisons_the_element() -> None:
    k = KernelBuilder("k")
    k.buffer("x", u32, 64)
    tile = k.shared("tile", u8, 64, 16)
    k.shared_write(tile, LANE.to(u8), LANE * 16)
    with_hole = k.shared_read("v", vector(u16, 2), tile, LANE * 16)
    k.global_store(k.surface(buffer(k)), Slice(with_hole, 0, 1), LANE * 4)
    with pytest.raises(InterpError, match="uninitialized memory"):
        run(k, x=np.zeros(64, np.uint32))


def test_a_shared_access_outside_its_tile_is_an_error() -> None:
    k = KernelBuilder("k")
    k.shared_write(k.shared("tile", s32, 63, 1, chunk=4), LANE, LANE * 4)
    with pytest.raises(InterpError, match="byte 252 of shared tile tile, which has 252"):
        interpret(k.done(), {})


def test_slots_are_separate_and_bounded() -> None:
    k = KernelBuilder("k")
    tile = k.shared("tile", f32, 64, 8, slots=2)
    out = matrix(k.buffer("x", f32, 64 * 8), 64, 8)
    for slot in (0, 1):
        k.store_shared(tile, Splat(vector(f32, 8), const(float(slot), f32)), ROWS, slot)
    k.store_view(out, (0, 0), k.load_shared("v", tile, ROWS, 0), ROWS)
    k.load_shared("w", tile, ROWS, 2)
    x = np.ones((64, 8), np.float32)
    with pytest.raises(InterpError, match="slot 2 of shared tile tile, which has 2"):
        run(k, x=x)
    assert not x.any()


def test_bfloat16_moves_through_views() -> None:
    k = KernelBuilder("k")
    src, dst = (matrix(k.buffer(n, bf16, 64 * 8), 64, 8) for n in "xy")
    k.store_view(dst, (0, 0), k.load_view("v", src, (0, 0), ROWS) * 2.0, ROWS)
    x = np.arange(512).astype(ml_dtypes.bfloat16)
    y = np.zeros(512, ml_dtypes.bfloat16)
    run(k, x=x, y=y)
    assert np.array_equal(y.astype(np.float32), x.astype(np.float32) * 2)


def test_nothing_is_read_from_a_buffer_without_elements() -> None:
    """A launch may give a tensor no elements; a read beyond the end is zero, as with any other length."""
    k = KernelBuilder("empty")
    source, out = k.surface(k.buffer("x", f32, 0)), k.surface(k.buffer("y", f32, 64))
    k.global_store(out, k.global_load("v", f32, source, LANE * 4), LANE * 4)
    y = np.ones(64, np.float32)
    run(k, x=np.zeros(0, np.float32), y=y)
    assert not y.any()
