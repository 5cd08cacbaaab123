"""Each rule of the verifier, broken once; and well-formed kernels that it accepts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from convgen.ir import stmt
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.error import UserError, VerifyError
from convgen.ir.expr import (
    Cast,
    Expr,
    Lane,
    Mma,
    MulHi,
    Pack,
    Select,
    Shuffle,
    Slice,
    Splat,
    Surface,
    Uniform,
    Var,
    const,
    var,
)
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Dim, Global, Shared, Swizzle, TensorDim, View, row_major
from convgen.ir.layout.mma import MmaAtom, MmaTile
from convgen.ir.layout.tags import Layout
from convgen.ir.record import evolve
from convgen.ir.stmt import Site
from convgen.ir.types import bool_, f16, f32, s32, s64, scalar, u8, u32, vector
from convgen.ir.verify import verify

LANE = Lane()
ROWS = Fragment(("n", "m"), (Digit("m", 8, Space.REGISTER, 1), Digit("n", 64, Space.LANE, 1)))
COLS = Fragment(
    ("n", "m"), (Digit("m", 8, Space.LANE, 1), Digit("n", 8, Space.LANE, 8), Digit("n", 8, Space.REGISTER, 1))
)
#: Blocks of 4 rows by 2, as the registers stand when stored and when loaded.
EIGHTS, TURNED = (
    Fragment(
        ("n", "m"),
        (
            Digit("n", 4, Space.REGISTER, down),
            Digit("n", 16, Space.LANE, 1),
            Digit("m", 2, Space.REGISTER, across),
            Digit("m", 4, Space.LANE, 16),
        ),
    )
    for down, across in ((2, 1), (1, 4))
)
WAVES = Fragment(("n", "m"), (*ROWS.digits, Digit("n", 2, Space.SUBGROUP, 1)))


def operand(row: str) -> Fragment:
    digits = Digit(row, 16, Space.LANE, 1), Digit("k", 4, Space.REGISTER, 1), Digit("k", 4, Space.LANE, 16)
    return Fragment((row, "k"), digits)


D = Fragment(
    ("n", "m"), (Digit("n", 4, Space.REGISTER, 1), Digit("n", 4, Space.LANE, 16), Digit("m", 16, Space.LANE, 1))
)
TILE = MmaTile(MmaAtom("mma", 16, 16, 16, f16, f16, f32, operand("n"), operand("m"), D, 4), 1, 1, 1)
FLOATS = vector(f32, 8)
OTHER_TILE = Shared("other", f32, 64, 8, row_major(64, 8), 1, Swizzle(), 16)


def on_surface(k: Room, surface: Expr) -> stmt.Stmt:
    """A load of a word of `x`, on whatever is given as its surface."""
    return stmt.GlobalLoad(k.var("v", u32), k.x, surface, const(0), const(0), 0, k.site())


class Room(KernelBuilder):
    """A kernel with one of everything to make mistakes with."""

    def __init__(self) -> None:
        super().__init__("k")
        self.x = self.buffer("x", f32, 64 * 8)
        self.view = matrix(self.x, 64, 8)
        self.half = matrix(self.buffer("h", f16, 16 * 16), 16, 16)
        self.tile = self.shared("tile", f32, 64, 8)
        self.all = self.surface(self.x)
        self.n = self.scalar("n")

    def load(self) -> Var:
        return self.load_view("t", self.view, (0, 0), ROWS)


def good(k: Room) -> None:
    """Everything at once, as it should be."""
    t = k.load()
    k.store_shared(k.tile, t + 1.0, ROWS)
    k.barrier()
    k.copy(k.tile, k.view, (k.n, 0), ROWS)
    k.barrier()
    k.copy(k.tile, k.view, (k.n, 0), EIGHTS, loaded=TURNED)
    k.barrier()
    k.store_view(k.view, (0, 0), k.load_shared("u", k.tile, ROWS), ROWS)
    k.atomic_view("add", k.view, (0, 0), k.let("again", Shuffle(t, tuple(range(8)))), ROWS)
    a, b = (k.load_view(n, k.half, (0, 0), f) for n, f in (("a", TILE.a), ("b", TILE.b)))
    with k.loop("i", 0, k.n, acc=k.zeros(TILE.acc_type), a=a) as loop:
        k.exit_if(loop.var > 5, loop["acc"], a)
        loop.yields(k.mma("d", TILE, loop["acc"], loop["a"], b), a)
    with k.when(k.n < 3):
        k.let("inner", k.n + 1)
    with k.when(k.n < 4):
        k.let("other", loop.result("acc"))


def test_a_well_formed_kernel_is_returned() -> None:
    k = Room()
    good(k)
    kernel = k.done()
    assert verify(kernel, "tile") is kernel
    assert verify(kernel) is kernel
    with pytest.raises(VerifyError, match="LoadView does not belong to the message level"):
        verify(kernel, "message")


def test_what_is_shared_is_looked_at_once() -> None:
    """A value whose tree has 2^60 leaves."""
    k = KernelBuilder("k")
    value: Expr = k.group[0]
    for _ in range(60):
        value = value + value
    k.let("large", value)
    verify(k.done())


def test_both_arms_may_bind_the_same_variable() -> None:
    k = Room()
    v = k.var("v")
    k.add(stmt.If(k.n < 3, stmt.Let(v, k.n + 1), stmt.Let(v, k.n + 2)))
    verify(k.done())


def loop_of(k: Room, body: stmt.Stmt, begin: object = None) -> stmt.Stmt:
    return stmt.For(var("i"), const(0), const(4), (), (), body, (), (), "loop", False)


def view_of(k: Room, axes: int = 2, dim: str = "j", size: int = 8, index: int = 8) -> View:
    dims = ((Dim("i", 64, 64),), (Dim(dim, size, size),))[:axes]
    tensor = TensorDim(64, (("i", 1),)), TensorDim(index, (("j", 1),))
    return View(k.x, Layout.dense((64, 8), (0, 1)), dims, tensor)


def with_axis(view: View) -> View:
    """The view with a further axis, on which no coordinate depends."""
    return evolve(view, axes=(*view.axes, (Dim("z", 4, 4),)))


def out_of_suite(k: Room) -> None:
    with k.when(k.n < 3):
        v = k.let("v", k.n + 1)
    k.let("w", v + 1)


def twice(k: Room) -> None:
    v = k.let("v", k.n + 1)
    k.add(stmt.Let(v, k.n + 2))


def twice_on_a_path(k: Room) -> None:
    v = k.var("v")
    with k.when(k.n < 3):
        k.add(stmt.Let(v, k.n))
    k.add(stmt.Let(v, k.n))


def varying_carried(k: Room) -> None:
    with k.loop("i", 0, 4, v=const(0)) as loop:
        with k.when(loop["v"] < 3):
            k.barrier()
        loop.yields(LANE)


def bad_exit(k: Room) -> None:
    with k.loop("i", 0, 4, v=k.n) as loop:
        k.exit_if(k.n < 3, k.n.to(s64))
        loop.yields(k.n)


def wrong_operand(k: Room) -> None:
    a = k.load_view("a", k.half, (0, 0), TILE.a)
    k.mma("d", TILE, k.zeros(TILE.acc_type), a, a)


def wrong_result(k: Room) -> None:
    a, b = (k.load_view(n, k.half, (0, 0), f) for n, f in (("a", TILE.a), ("b", TILE.b)))
    product = k.mma("d", TILE, k.zeros(TILE.acc_type), a, b)
    k.store_view(matrix(k.buffer("c", f32, 256), 16, 16), (0, 0), product.to(vector(f32, 4)), TILE.a)


def unknown_operand(k: Room) -> None:
    words = vector(u32, 2)
    a = k.let("a", Pack(TILE.a_type, (Splat(words, k.n.to(u32)),)))
    k.mma("d", TILE, k.zeros(TILE.acc_type), a, k.load_view("b", k.half, (0, 0), TILE.b))


BREACHES: list[tuple[Callable[[Room], object], str]] = [
    # scope
    (lambda k: k.let("v", k.var("u") + 1), r"u.\d+ is not bound"),
    (out_of_suite, r"v.\d+ is out of scope"),
    (twice, r"v.\d+ is bound twice"),
    (twice_on_a_path, r"v.\d+ is bound twice"),
    (lambda k: k.add(stmt.Let(k.n, const(1))), r"n.\d+ is bound twice"),
    # control
    (lambda k: k.add(stmt.If(LANE < 3, stmt.empty, stmt.empty)), "cond lane < 3 differs between lanes"),
    (varying_carried, r"cond v.* < 3 differs between lanes"),
    (lambda k: k.add(stmt.For(k.var("i"), const(0), LANE, (), (), stmt.empty, (), (), "l", False)), "end lane differs"),
    (
        lambda k: k.add(stmt.For(k.var("i"), const(0, s64), const(4, s64), (), (), stmt.empty, (), (), "l", False)),
        "of types s32, s64, s64",
    ),
    (lambda k: k.exit_if(k.n < 3), "exit_if outside a loop"),
    (bad_exit, r"given values of types \[s64\], wanted \[s32\]"),
    (lambda k: k.add(loop_of(k, stmt.ExitIf(LANE < 3, ()))), "cond lane < 3 differs"),
    # sites
    (lambda k: k.add(stmt.block(*[stmt.Barrier(Site(1))] * 2)), "two statements have site 1"),
    (lambda k: k.add(stmt.block(stmt.Barrier(Site(1)), stmt.Barrier(k.site("x")))), "two statements have site 1"),
    # views and tiles
    (lambda k: k.load_view("v", matrix(Global("y", f32, 2048), 64, 8), (0, 0), ROWS), "buffer y is not an argument"),
    (lambda k: k.load_view("v", view_of(k, dim="i"), (0, 0), ROWS), "two dims of one name: i, i"),
    (
        lambda k: k.load_view("v", evolve(k.view, axes=(sum(k.view.axes, ()), ())), (0, 0), ROWS),
        "an axis without dims",
    ),
    (lambda k: k.load_view("v", view_of(k, dim="k"), (0, 0), ROWS), "has no dim j"),
    (lambda k: k.load_view("v", view_of(k, index=9), (0, 0), ROWS), r"indexes \[64, 9\], its layout \(64, 8\)"),
    (lambda k: k.load_view("v", k.view, (0,), ROWS), "1 coordinates and 2 fragment dims for 2 axes"),
    (lambda k: k.load_view("v", k.view, (LANE, 0), ROWS), "coords lane differs between lanes"),
    (
        lambda k: k.load_view("v", k.view, (k.zeros(vector(s32, 8)), 0), ROWS),
        "differs between elements along axis 0, a dim of the fragment",
    ),
    (
        lambda k: k.load_view("v", with_axis(k.view), (0, 0, k.zeros(vector(s32, 3))), ROWS),
        r"coords s32x3\(0\) is s32x3, wanted s32x8",
    ),
    (lambda k: k.load_view("v", k.view, (const(0.0, f32), 0), ROWS), "is f32, not an integer"),
    (lambda k: k.load_view("v", k.view, (0, 0), WAVES), "needs 2 subgroups, the kernel has 1"),
    (
        lambda k: k.copy(Shared("other", f32, 64, 8, row_major(64, 8), 1, Swizzle(), 16), k.view, (0, 0), ROWS),
        "is not one of the",
    ),
    (lambda k: k.copy(k.tile, k.view, (0, 0), ROWS, slot=LANE), "slot lane differs"),
    (
        lambda k: k.copy(k.shared("low", f32, 32, 8), k.view, (0, 0), ROWS),
        r"a fragment of \(64, 8\) does not fit shared tile low",
    ),
    (
        lambda k: k.copy(k.shared("bytes", scalar("f8_e4m3"), 64, 8), k.view, (0, 0), ROWS),
        "copy of f32 into a shared tile of f8_e4m3",
    ),
    (lambda k: k.store_view(k.view, (0, 0), k.zeros(vector(f32, 4)), ROWS), "a fragment of type f32x4, wanted f32x8"),
    (lambda k: k.store_view(k.view, (0, 0), k.load(), COLS), "distributed as m8r1 n64l1 is stored as m8l1 n8l8 n8r1"),
    (lambda k: k.store_shared(k.tile, Cast(FLOATS, k.load()), COLS), "is stored as"),
    (
        lambda k: k.atomic_view("add", k.view, (0, 0), k.zeros(vector(f32, 4)), ROWS),
        "a fragment of type f32x4, wanted f32x8",
    ),
    (
        lambda k: k.atomic_view("add", k.view, (0, 0), k.load(), COLS),
        "distributed as m8r1 n64l1 is stored as m8l1 n8l8 n8r1",
    ),
    (lambda k: k.atomic_view("add", k.view, (LANE, 0), k.load(), ROWS), "coords lane differs between lanes"),
    (
        lambda k: k.atomic_view("add", k.half, (0, 0), k.zeros(TILE.a_type), TILE.a),
        "atomic add of f16, wanted f32, f64, s32, u32",
    ),
    # messages
    (lambda k: k.global_atomic("add", k.all, const(1, u8), 0), "atomic add of u8, wanted f32, f64, s32, u32"),
    (lambda k: k.global_atomic("add", k.all, k.zeros(vector(f32, 16)), 0), "a message of f32x16, 512 bits"),
    (lambda k: k.global_atomic("add", k.all, const(1.0, f32), 0, LANE), "uniform lane differs"),
    (lambda k: k.add(on_surface(k, k.n)), "n is not a surface"),
    (lambda k: k.add(on_surface(k, k.surface(k.half.memory))), "a surface of h, of a message that accesses x"),
    (lambda k: k.global_load("v", vector(u8, 3), k.all, 0), "a message of u8x3, 24 bits a lane"),
    (lambda k: k.global_load("v", vector(bool_, 8), k.all, 0), "a message of boolx8"),
    (lambda k: k.global_store(k.all, k.zeros(vector(f32, 16)), 0), "a message of f32x16, 512 bits"),
    (lambda k: k.shared_read("v", vector(f32, 5), k.tile, 0), "a message of f32x5"),
    (lambda k: k.global_load("v", u32, k.all, 0, 0, imm=-4), "a negative immediate -4"),
    (lambda k: k.global_load("v", u32, k.all, 0, LANE), "uniform lane differs"),
    (lambda k: k.global_load("v", u32, Surface(k.x, LANE, const(4)), 0), "shift lane differs"),
    (lambda k: k.global_load("v", u32, Surface(Global("y", f32, 4), const(0), const(4)), 0), "no buffer argument"),
    (lambda k: k.global_load("v", u32, k.all, const(0.0, f32)), "varying 0.0 is f32"),
    (lambda k: k.shared_write(k.tile, k.n, const(0.0, f32)), "address 0.0 is f32"),
    # expressions
    (lambda k: k.let("v", const(1.0, f32) // 2.0), "operands of f32, wanted integers"),
    (lambda k: k.let("v", (k.n < 1) + (k.n < 2)), "operands of bool, wanted numbers"),
    (lambda k: k.let("v", const(1.0, f32) & const(2.0, f32)), "operands of f32, wanted integers or bools"),
    (lambda k: k.let("v", MulHi(k.n.to(s64), k.n.to(s64))), "wanted 32-bit integers"),
    (lambda k: k.let("v", Slice(k.n, 0, 1)), "a slice of s32"),
    (lambda k: k.let("v", Shuffle(k.n, (0, 0))), "a shuffle of s32"),
    (
        lambda k: k.let("v", Pack(u8, (Cast(vector(bool_, 8), Splat(vector(u8, 8), const(1, u8))),))),
        "bools have no bits",
    ),
    (
        lambda k: k.let("v", Select(Splat(vector(bool_, 2), k.n < 1), k.zeros(FLOATS), k.zeros(FLOATS))),
        "a condition of boolx2 for f32x8",
    ),
    # products
    (wrong_operand, "mma operand b is distributed as n16l1"),
    (wrong_result, "is stored as n16l1"),
    (unknown_operand, "mma operand a is distributed as an unknown layout"),
    # kernels
    (lambda k: k.shared("tile", f32, 64, 8), "two arguments or shared tiles are called tile"),
]


@pytest.mark.parametrize(("breach", "message"), BREACHES, ids=[m for _, m in BREACHES])
def test_breaches(breach: Callable[[Room], object], message: str) -> None:
    k = Room()
    breach(k)
    kernel = k.done()
    with pytest.raises(VerifyError, match=message):
        verify(kernel, "tile" if breach is unknown_operand else None)


def test_a_copys_lanes_store_what_they_loaded() -> None:
    k = Room()
    with pytest.raises(UserError, match="lanes hold different elements"):
        k.copy(k.tile, k.view, (0, 0), ROWS, loaded=COLS)


@pytest.mark.parametrize("level", ["tile", "message"])
def test_additions_belong_to_their_level(level: str) -> None:
    k = Room()
    if level == "tile":
        k.global_atomic("add", k.all, const(1.0, f32), 0)
    else:
        k.atomic_view("add", k.view, (0, 0), k.zeros(FLOATS), ROWS)
    with pytest.raises(VerifyError, match=f"does not belong to the {level} level"):
        verify(k.done(), level)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", ["tile", "message"])
def test_levels_do_not_mix(level: str) -> None:
    k = Room()
    if level == "tile":
        k.global_load("v", u32, k.all, 0)
    else:
        k.load()
    with pytest.raises(VerifyError, match=f"does not belong to the {level} level"):
        verify(k.done(), level)  # type: ignore[arg-type]


def test_the_note_points_at_the_offending_line() -> None:
    k = Room()
    k.let("before", k.n + 1)
    with k.when(k.n < 3):
        k.barrier("one")
        k.add(stmt.Let(k.n, const(1)))
    k.let("after", k.n + 1)
    with pytest.raises(VerifyError) as error:
        verify(k.done())
    (note,) = error.value.__notes__
    lines = note.splitlines()
    at = lines.index("    n: s32 = 1")
    assert lines[at + 1] == "    ^ n.5 is bound twice"
    assert lines[at - 1] == "    barrier  # 1 one"
    assert lines[-1] == "  after: s32 = n + 1"


def test_the_marker_finds_the_second_place_of_a_statement() -> None:
    k = Room()
    shared = stmt.Let(k.var("v"), k.n + 1)
    k.add(shared)
    k.barrier()
    k.add(shared)
    with pytest.raises(VerifyError) as error:
        verify(k.done())
    assert error.value.__notes__[0].splitlines()[-3:] == [
        "  barrier  # 1",
        "  v: s32 = n + 1",
        "  ^ v.6 is bound twice",
    ]


def test_uniform_by_contract_is_uniform() -> None:
    k = Room()
    with k.when(Uniform(LANE) < 3):
        k.let("v", Mma(TILE, k.zeros(TILE.acc_type), k.zeros(TILE.a_type), k.zeros(TILE.b_type), ()))
    verify(k.done(), "tile")
