from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from convgen.ir import stmt
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.expr import (
    Expr,
    Lane,
    MulHi,
    Pack,
    Shuffle,
    Slice,
    Splat,
    Uniform,
    Var,
    const,
    eq,
    maximum,
    minimum,
    select,
    var,
)
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Dim, RunView, SizedGlobal, SizedView, Swizzle, TensorDim, View
from convgen.ir.layout.mma import MmaAtom, MmaTile
from convgen.ir.layout.tags import Layout
from convgen.ir.program import Kernel, Program
from convgen.ir.sizes import Size
from convgen.ir.text import parse, show, to_text
from convgen.ir.types import bool_, f16, f32, s32, s64, u8, u16, u32, vector
from tests.ir.expressions import CASES, Case

X, Y, Z = var("x"), var("y"), var("z")
HALVES = vector(f16, 4)
ONES = Splat(HALVES, const(1.0, f16))


@pytest.mark.parametrize(
    ("e", "text"),
    [
        ((X + Y) * Z, "(x + y) * z"),
        (X + Y * Z, "x + y * z"),
        (X - (Y - Z), "x - (y - z)"),
        ((X - Y) - Z, "x - y - z"),
        (X // 4 * 4 % 8, "x // 4 * 4 % 8"),
        (X * (Y // 4), "x * (y // 4)"),
        ((X < Y) & eq(Z, 3), "(x < y) & (z == 3)"),
        (eq(X < Y, Y < Z), "(x < y) == (y < z)"),
        (X & Y | Z ^ 1, "x & y | z ^ 1"),
        (X << 2 + Y, "x << 2 + y"),
        ((X << 2) + Y, "(x << 2) + y"),
        (~(X < Y), "~(x < y)"),
        (X + -3, "x + -3"),
        (X.to(s64) * 2, "s64(x) * 2"),
        (minimum(X, maximum(Y, 1)), "min(x, max(y, 1))"),
        (MulHi(X, Y), "mulhi(x, y)"),
        (select(X < 3, X, -1) + Uniform(Lane()), "select(x < 3, x, -1) + uniform(lane)"),
        (const(True, bool_), "true"),
        (const(0.1, f16), "0.1_f16"),
        (const(3, u8), "3_u8"),
        (X.to(u8) * 3, "u8(x) * 3"),
        (-(const(2.0, f32)), "-(2.0)"),
        (ONES * 2.0, "f16x4(1.0) * 2.0"),
        (const(-1.5, f32) * 2.0, "-1.5 * 2.0"),
        (Slice(Splat(HALVES, const(0.0, f16)), 0, 2), "f16x4(0.0)[0:2]"),
        (Shuffle(Splat(HALVES, const(0.0, f16)), (3, 0)), "f16x4(0.0)[3, 0]"),
        (Pack(u32, (X.to(u16), Y.to(u16))), "u32.pack(u16(x), u16(y))"),
        (X + var("x"), None),
    ],
)
def test_expressions(e: Any, text: str | None) -> None:
    if text is None:  # equal names are told apart by their ids
        text = f"x.{e.a.id} + x.{e.b.id}"
    assert str(e) == repr(e) == text


@pytest.mark.parametrize(
    "text",
    ["a - (b - c)", "a // b * c", "(a + b) % c", "a << (b >> c)", "~a & b ^ c | a", "a * -1 - b", "(a < b) ^ (b <= c)"],
)
def test_no_parentheses_but_those_that_python_needs(text: str) -> None:
    names = {n: var(n) for n in "abc"}
    assert str(eval(text, {}, names)) == text


def test_repeated_subtrees_are_bound() -> None:
    e: Expr = X
    for _ in range(40):
        e = e + e * (e // 3)
    lines = str(e).splitlines()
    assert lines[:2] == ["t0 = x + x * (x // 3)", "t1 = t0 + t0 * (t0 // 3)"]
    assert len(lines) == 40


def test_temporaries_avoid_the_names_of_variables() -> None:
    big = var("t0") * 3 + var("t1") // 5
    assert str(big * big) == "t2 = t0 * 3 + t1 // 5\nt2 * t2"


def sample() -> Kernel:
    """A kernel with every statement and a repeated address."""
    k = KernelBuilder("sample", grid=(4, 2, 1), subgroups=2)
    src = k.buffer("src", f16, 64 * 64)
    n = k.scalar("n")
    view = View(
        src,
        Layout.dense((64, 64), (0, 1)),
        ((Dim("o", 62, 64),), (Dim("k", 3, 3), Dim("c", 20, 32))),
        (TensorDim(64, (("o", 2), ("k", 1)), -1, True), TensorDim(64, (("c", 1),))),
    )
    out = matrix(k.buffer("dst", f16, 64 * 8), 64, 8)
    other = matrix(src, 64, 64)
    tile = k.shared("tile", f16, 64, 8, slots=2, pitch=32, swizzle=Swizzle(2, 0))
    swizzled = k.shared("swizzled", f16, 64, 64, swizzle=Swizzle(1, 7))
    rows = Fragment(("n", "m"), (Digit("m", 8, Space.REGISTER, 1), Digit("n", 64, Space.LANE, 1)))
    type = vector(f16, 8)
    with k.loop("kb", 0, n, acc=k.zeros(type), slot=const(0)) as loop:
        k.copy(tile, view, (k.group[0] * 64, loop.var * 8), rows, loop["slot"], stage="fill")
        k.add(stmt.Barrier(k.site("fill", "before use")))
        a = k.load_shared("a", tile, rows, loop["slot"])
        b = k.load_view("b", other, (0, 0), rows)
        k.exit_if(loop.var > 7, loop["acc"], loop["slot"])
        loop.yields(loop["acc"] + a * b, (loop["slot"] + 1) % 2)
    k.store_shared(tile, loop.result("acc"), rows)
    address = (Lane() * 16 + k.group[1] * 1024) % 4096
    window = k.let("window", k.surface(src, -16, 8192))
    k.add(stmt.If(eq(n, 3), stmt.Let(k.var("v"), n), stmt.Let(k.var("w"), n + 1)))
    got = k.global_load("got", vector(u32, 4), window, address, k.subgroup * 64, 16)
    k.shared_write(swizzled, got, address, 32)
    again = k.shared_read("again", type, swizzled, address)
    k.global_store(window, again, address)
    k.store_view(out, (0, 0), again, rows)
    k.copy(tile, other, (0, 0), blocks((2, 1)), stage="turn", loaded=blocks((1, 4)))
    sums = k.buffer("sums", f32, 64 * 8)
    k.atomic_view("add", matrix(sums, 64, 8), (0, 0), Shuffle(again, (7, *range(7))).to(vector(f32, 8)), rows)
    k.global_atomic("add", k.surface(sums), const(1.0, f32), address, 0, 4)
    return k.done()


def blocks(strides: tuple[int, int]) -> Fragment:
    """4 x 2 elements a lane, in either order."""
    down, across = strides
    registers = Digit("n", 4, Space.REGISTER, down), Digit("m", 2, Space.REGISTER, across)
    return Fragment(("n", "m"), (*registers, Digit("n", 16, Space.LANE, 1), Digit("m", 4, Space.LANE, 16)))


SAMPLE = """\
kernel sample(src: f16[4096], n: s32, dst: f16[512], sums: f32[512]):
  grid 4 x 2 x 1 as group_x, group_y, group_z
  2 subgroups of 64 lanes as subgroup
  shared tile: 2 of f16 64 x 8, pitch 32, 16-byte chunks ^ (row >> 2 & 0)
  shared swizzled: 1 of f16 64 x 64, pitch 128, 16-byte chunks ^ (row >> 1 & 7)
  view src.1 = [o62<64, k3.c20<32] -> src[0 <= 2*o + k - 1 < 64, c] as 64x64:ab
  view src.2 = [row64, col64] -> src[row, col] as 64x64:ab
  view dst = [row64, col8] -> dst[row, col] as 64x8:ab
  view sums = [row64, col8] -> sums[row, col] as 64x8:ab
  for kb in [0, n) carrying (acc.7: f16x8 = 0.0, slot.8: s32 = 0) -> acc.9, slot.10:
    copy tile[slot.8] = src.1[group_x * 64, kb * 8] as (n, m) m8r1 n64l1, stages 1  # 1 fill
    barrier  # 2 fill: before use
    a: f16x8 = load tile[slot.8] as (n, m) m8r1 n64l1  # 3
    b: f16x8 = load src.2[0, 0] as (n, m) m8r1 n64l1  # 4
    exit_if 7 < kb with acc.7, slot.8
    yield acc.7 + a * b, (slot.8 + 1) % 2
  store tile[0] = acc.9 as (n, m) m8r1 n64l1  # 5
  window: u32x4 = surface(src, -16, 8192)
  if n == 3:
    v: s32 = n
  else:
    w: s32 = n + 1
  t0 = (lane * 16 + group_y * 1024) % 4096
  got: u32x4 = global src[t0, subgroup * 64, 16] in window  # 6
  shared swizzled[t0, 32] = got  # 7
  again: f16x8 = shared swizzled[t0, 0]  # 8
  global src[t0, 0, 0] in window = again  # 9
  store dst[0, 0] = again as (n, m) m8r1 n64l1  # 10
  copy tile[0] = src.2[0, 0] as n4r2 m2r1 n16l1 m4l16, loaded as n4r1 m2r4 n16l1 m4l16, stages 1  # 11 turn
  atomic add sums[0, 0], f32x8(again[7, 0, 1, 2, 3, 4, 5, 6]) as (n, m) m8r1 n64l1  # 12
  global atomic add sums[t0, 0, 4] in surface(sums, 0, 2048), 1.0  # 13"""


def test_a_kernel_with_every_statement() -> None:
    assert str(sample()) == SAMPLE


def test_temporaries_end_with_their_suite() -> None:
    k = KernelBuilder("k")
    big = k.group[0] * 64 + k.group[1] * 4 + 3
    with k.when(k.group[0] < 3):
        k.let("v", big // 2)
    k.let("w", big // 3)
    lines = [line for line in str(k.done()).splitlines() if "64" in line and "lanes" not in line]
    assert lines == ["    t0 = group_x * 64 + group_y * 4 + 3", "  t0 = group_x * 64 + group_y * 4 + 3"]


@pytest.mark.parametrize(("kind", "behind"), [(RunView, " in runs"), (SizedView, " by 8 x 1")])
def test_views_of_a_kernel_tell_their_kind(kind: type[View], behind: str) -> None:
    k = KernelBuilder("k")
    plain = matrix(k.buffer("src", f16, 64 * 8), 64, 8)
    apart = {"apart": (8, 1)} if kind is SizedView else {}
    view = kind(plain.memory, plain.layout, plain.axes, plain.index, **apart)
    k.load_view(
        "a", view, (0, 0), Fragment(("n", "m"), (Digit("m", 8, Space.REGISTER, 1), Digit("n", 64, Space.LANE, 1)))
    )
    (line,) = [line.strip() for line in str(k.done()).splitlines() if "view" in line]
    assert line == f"view src = [row64, col8] -> src[row, col] as 64x8:ab{behind}"


def test_declarations_show_on_their_own() -> None:
    kernel = sample()
    assert [show(t) for t in kernel.shared] == [line.strip() for line in SAMPLE.splitlines()[3:5]]
    assert show(kernel.params[0]) == "src: f16[4096]"
    sized = SizedGlobal("src", f16, 1024, (Size("rows", 0, s32, 1, 64, 1), 8))
    assert show(sized) == "src: f16[rows x 8, at most 1024 bytes]"


# ---------------------------------------------------------------- and back


@settings(max_examples=300)
@given(CASES)
def test_expressions_come_back(case: Case) -> None:
    assert parse(to_text(case.expr)) is case.expr


def test_kernels_and_programs_come_back() -> None:
    kernel = sample()
    assert parse(to_text(kernel)) is kernel
    program = Program((kernel,), (kernel.params[0],))
    again = parse(to_text(program))
    assert again == program
    assert again.kernels[0] is kernel


def test_products_come_back() -> None:
    f = Fragment(("n", "k"), (Digit("n", 16, Space.LANE, 1), Digit("k", 4, Space.REGISTER, 1)))
    tile = MmaTile(MmaAtom("mma", 16, 16, 16, f16, f16, f32, f, f, f, 4), 2, 2, 4, 2)
    node = stmt.LoadShared(var("a", tile.a_type), sample().shared[0], const(0), tile.a, stmt.Site(3, "x", "it's", 1))
    assert parse(to_text(node)) is node


def test_deep_and_shared_expressions_stay_short() -> None:
    deep: Expr = X
    for i in range(300):
        deep = deep * 3 + i
    assert parse(to_text(deep)) is deep
    wide: Expr = X
    for _ in range(200):
        wide = wide + wide
    assert len(to_text(wide)) < 10_000
    assert parse(to_text(wide)) is wide


def test_variables_with_one_name_and_id_but_two_types_are_told_apart() -> None:
    a, b = Var("q", 7, u8), Var("q", 7, s64)
    e = (a + a).to(s64) + b * b
    assert parse(to_text(e)) is e
