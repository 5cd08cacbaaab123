"""Values are kept on every assignment, a second application changes nothing, and what must fold, folds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from convgen.ir import stmt
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import AddressOf, Div, Expr, Lane, Max, Min, Shuffle, Splat, Uniform, const, eq, ne, select, var
from convgen.ir.interp import interpret
from convgen.ir.mutate import postorder
from convgen.ir.node import table_size
from convgen.ir.simplify.bounds import bounds
from convgen.ir.simplify.simplify import simplify
from convgen.ir.types import AnyType, bool_, f16, f32, s8, s16, s32, s64, u8, u32, u64, vector
from convgen.ir.verify import verify
from tests.ir.expressions import CASES, Case
from tests.strategies import FIXED, SWEEP


def operations(e: Expr) -> int:
    """How many operators an expression has, each shared one counted once."""
    return sum(bool(n.children()) for n in postorder(e))


def written(e: Expr) -> int:
    """How many operators an expression has, each counted wherever it stands."""
    return bool(e.children()) + sum(written(n) for n in e.children() if isinstance(n, Expr))


def check(case: Case) -> None:
    new = simplify(case.expr, case.domains)
    # Sharing may come or go: (4*a - 1) // 6 is (2*a - 1) // 3, which shares nothing with a 4*a - 1 beside it.
    assert operations(new) <= written(case.expr) + 1
    assert new.type is case.expr.type
    assert np.array_equal(case.values(new), case.values())
    before = table_size()
    assert simplify(new, case.domains) is new
    assert table_size() == before, "made nodes though nothing changed"


@settings(FIXED, max_examples=500)
@given(CASES)
def test_value_idempotence_identity(case: Case) -> None:
    check(case)


@pytest.mark.sweep
@settings(SWEEP, max_examples=10_000)
@given(CASES)
def test_value_idempotence_identity_of_many(case: Case) -> None:
    check(case)


X, Y, Z = var("x"), var("y"), var("z")
B = var("b")  # [0, 4)
F = var("f")  # [0, 4]
Q = var("q", s8)  # [-30, -10]
V = var("v")  # [0, 1000]
U = var("u", u8)
S = var("s", s8)
ENV = {B: (0, 3), F: (0, 4), Q: (-30, -10), V: (0, 1000), Z: (0, 9)}

MUST_FOLD: list[tuple[Expr, Expr | int]] = [
    (X + 0, X),
    (0 + X, X),
    (X * 1, X),
    (X * 0, 0),
    (X - X, 0),
    ((X + Y) - X, Y),
    (X * 2 + X * 3, X * 5),
    ((X + Y) * 3 + (X + Y) * 5, (X + Y) * 8),
    (((X + Y) * 4 + Z) - X * 4, Y * 4 + Z),
    (0 - X + 5, 5 - X),
    (3 + X, X + 3),
    ((X + 3) + 4, X + 7),
    ((X - 3) + 4, X + 1),
    ((X * 3) * 4, X * 12),
    (2 - (X + 3), -1 - X),
    (X + (Y + 3), (X + Y) + 3),
    (X // 1, X),
    (X % 1, 0),
    (B // 4, 0),
    (B % 4, B),
    ((B + 4) % 4, B),
    ((V * 4 + B) // 4, V),
    ((V * 4 + B) % 4, B),
    ((V * 12 + B) // 4, V * 3),
    ((V * 8 + Z * 4 + B) // 4, V * 2 + Z),
    ((V * 8 + B * 2 + 1) // 8, V),
    ((V * 4 + B) // 8, V // 2),
    ((V * 4 + B) % 8, V % 2 * 4 + B),
    ((V + 9) % 8, (V + 1) % 8),
    ((V // 3) // 4, V // 12),
    ((V % 12) % 4, V % 4),
    (V // 8 * 8 + V % 8, V),
    (B < 4, 1),
    (V < -1, 0),
    (V + 1 < V, 0),
    (V + 3 < 10, V < 7),
    (Min(B, 4 + V), B),
    (Max(B, V + 4), V + 4),
    (Min(Min(V, const(9)), const(5)), Min(V, const(5))),
    (select(B < 4, X, Y), X),
    (select(X < Y, Z, Z), Z),
    (~(X < Y), Y <= X),
    (~~X, X),
    (X & 0, 0),
    (X & X, X),
    (X | 0, X),
    (X ^ X, 0),
    ((X ^ 5) ^ Y, (X ^ Y) ^ 5),
    ((X ^ 5) ^ (Y ^ 3), (X ^ Y) ^ 6),
    (((X * 8 + Y) ^ Z) & 3, (Y ^ Z) & 3),
    (((X * 8 + Y) | (Z - X * 16)) % 4, (Y | Z) % 4),
    (B & 3, B),
    (X << 0, X),
    (X.to(s64).to(s32), X),
    (B.to(u8).to(s32), B),
    (Uniform(Uniform(X)), Uniform(X)),
    (const(127, s8) + 1, const(-128, s8)),
]


@pytest.mark.parametrize(("e", "expected"), MUST_FOLD, ids=[str(e) for e, _ in MUST_FOLD])
def test_folds(e: Expr, expected: Expr | int) -> None:
    new = simplify(e, ENV)
    if isinstance(expected, int):
        assert bounds(new, {}) == (expected, expected)
    else:
        assert new is simplify(expected, ENV)
        assert str(new) == str(expected)


MUST_STAY: list[Expr] = [
    eq(X % 8, 3),  # the reference decides it from its end points 0 and 7
    ne(X % 8, 3),
    Min(X, Y),  # the reference's range looks at one operand
    Max(V, Z),
    (X * 4 + B) // 4,  # x * 4 may wrap
    (X + 1) // 2,
    X + 1 < X,  # true for the largest x
    (U * 2) // 2,
    (S + 100) % 10,
    S + 100 < 50,
    (S // 16) // 16,
    (V * 4 + Z) // 8,  # z may reach beyond a multiple of 4
    (V * 4 + Z) % 8,
    Div(const(3), const(0)),  # an error that stays one
    (V * 4 + F) // 8,  # f may be a whole 4
    (V * 4 + F) % 8,
    V % 4 + V // 4 * 3,
    V % 8 + V // 4 * 4,
    (Q + 20) * 10,  # q * 10 may wrap, this does not
    V.to(s8).to(s16),  # loses what 8 bits do not hold
    X.to(s8).to(s32),
    select(X < Y, X, Y),
]


@pytest.mark.parametrize("e", MUST_STAY, ids=map(str, MUST_STAY))
def test_stays_the_same_object(e: Expr) -> None:
    assert simplify(e, ENV) is e


def test_a_remainder_below_zero_does_not_fit_unsigned_types() -> None:
    u, w = var("u", u8), var("w", u8)
    case = Case((u * 8 - w) // 8, {u: (8, 20), w: (0, 7)})
    assert np.array_equal(case.values(simplify(case.expr, case.domains)), case.values())


def test_floats_are_left_as_written() -> None:
    f = var("f", f32)
    for e in (f + 0.0, f - f, f * 0.0, ~(f < f)):
        assert simplify(e) is e


def test_unsigned_differences_keep_their_range() -> None:
    u = var("u", u32)
    assert bounds(simplify((u + 1) - 4, {u: (3, 9)}), {u: (3, 9)}) == (0, 6)


def test_lane_is_known_to_be_small() -> None:
    assert simplify(Lane() // 64) is const(0)
    assert simplify(Lane() // 32) is Lane() // 32


def test_vectors_fold_like_scalars() -> None:
    v = var("v", vector(s32, 4))
    assert simplify((v + 3) - 3) is v
    assert simplify(v * 0) is Splat(v.type, const(0))  # type: ignore[arg-type]


# ---------------------------------------------------------------- statements


def body(k: KernelBuilder) -> str:
    """The simplified kernel's statements, after checking that a second application changes nothing."""
    kernel = verify(simplify(verify(k.done())))
    assert simplify(kernel) is kernel
    return "\n".join(line[2:] for line in str(kernel).splitlines()[3:])


def test_a_kernels_variables_have_ranges() -> None:
    k = KernelBuilder("k", grid=(8, 1, 1), subgroups=2, width=16)
    row = k.group[0] * 32 + k.subgroup * 16 + Lane()
    for name, value in (("a", row // 32), ("b", row % 32), ("c", row % 16 + k.group[1])):
        k.let(name, value * 2)
    assert body(k).splitlines() == [
        "a: s32 = group_x * 2",
        "b: s32 = (subgroup * 16 + lane) * 2",
        "c: s32 = lane * 2",
    ]


def test_lets_of_constants_and_variables_are_put_in() -> None:
    k = KernelBuilder("k", grid=(4, 1, 1))
    x = k.surface(k.buffer("x", s32, 64))
    three, same = k.let("three", const(1) + 2), k.let("same", k.group[0] + 0)
    k.global_store(x, three + same, same * 4)
    assert body(k) == "global x[group_x * 4, 0, 0] in surface(x, 0, 256) = group_x + 3  # 1"


def test_loops_of_one_trip_are_inlined_and_of_none_vanish() -> None:
    k = KernelBuilder("k", grid=(9, 1, 1))
    x = k.surface(k.buffer("x", s32, 64))
    n = k.group[0]
    with k.loop("once", n + 2, n + 3, total=n) as once:
        k.global_store(x, once.var, 0)
        loop_value = k.let("twice", once["total"] * 2)
        once.yields(loop_value)
    with k.loop("never", n, n - 1, total=once.result("total")) as never:
        k.global_store(x, never.var, 4)
        never.yields(never["total"] * 7)
    with k.loop("empty", n, n, total=never.result("total")) as empty:
        empty.yields(empty["total"] + 1)
    k.global_store(x, empty.result("total"), 8)
    assert body(k).splitlines() == [
        "once: s32 = group_x + 2",
        "global x[0, 0, 0] in surface(x, 0, 256) = once  # 1",
        "twice: s32 = group_x * 2",
        "global x[8, 0, 0] in surface(x, 0, 256) = twice  # 3",
    ]


def test_a_loop_that_may_be_left_early_stays() -> None:
    k = KernelBuilder("k", grid=(9, 1, 1))
    x = k.surface(k.buffer("x", s32, 64))
    with k.loop("once", 0, 1, total=k.group[0]) as once:
        k.exit_if(k.group[0] < 3, const(5))
        once.yields(once["total"] + 1)
    k.global_store(x, once.result("total"), 8)
    assert "exit_if group_x < 3 with 5" in body(k)


def test_branches_with_known_conditions_fold() -> None:
    k = KernelBuilder("k", grid=(4, 1, 1), subgroups=2)
    with k.when(k.group[0] < 4):
        k.barrier("kept")
    with k.when(k.group[0] > 3):
        k.barrier("dropped")
    with k.when(k.group[0] < 2):
        k.let("unused", const(3))
    assert body(k) == "barrier  # 1 kept"


@pytest.mark.parametrize("type", [f32, vector(f16, 8)])
def test_a_load_of_no_lane_is_zeros(type: AnyType) -> None:
    k = KernelBuilder("k", width=16)
    source, result = (k.buffer(name, type.elem, 256) for name in ("source", "result"))
    v, place = k.var("v", type), Lane().to(u64) * (type.bits // 8)
    k.add(stmt.FlatLoad(v, source, AddressOf(source) + place, (Lane() < 0) & (Lane() < 3), k.site()))
    k.add(stmt.FlatStore(result, AddressOf(result) + place, const(True, bool_), v, k.site()))
    after = verify(simplify(k.done()), "message")
    assert not any(isinstance(n, stmt.FlatLoad) for n in postorder(after))
    memory = {name: np.full(256 * type.elem.bytes, 7, np.uint8) for name in ("source", "result")}
    interpret(after, memory, {})
    assert not memory["result"][: 16 * type.bits // 8].any()


def test_arms_that_bind_the_same_variable_differently() -> None:
    k = KernelBuilder("k", grid=(5, 1, 1))
    x = k.surface(k.buffer("x", s32, 64))
    v, zero = k.var("v"), const(0)
    values = const(1), const(2), k.group[0] * 2
    arms = [stmt.block(stmt.Let(v, e), stmt.GlobalStore(x.buffer, x, v * 4, zero, 0, v + 1, k.site())) for e in values]
    k.add(stmt.If(k.group[0] < 2, arms[0], stmt.If(k.group[0] < 3, arms[1], arms[2])))
    assert [line.strip() for line in body(k).splitlines() if "global" in line] == [
        "global x[4, 0, 0] in surface(x, 0, 256) = 2  # 1",
        "global x[8, 0, 0] in surface(x, 0, 256) = 3  # 2",
        "global x[v * 4, 0, 0] in surface(x, 0, 256) = v + 1  # 3",
    ]


def test_what_a_condition_says_ends_with_its_arm() -> None:
    k = KernelBuilder("k", grid=(8, 1, 1))
    x = k.surface(k.buffer("x", s32, 64))
    g = k.group[0]
    values = g % 4, (g < 4).to(s32), Min(g, const(3))

    def store() -> None:
        for i, value in enumerate(values):
            k.global_store(x, value, i * 4)

    store()
    with k.when(g < 4):
        store()
    with k.when(~(g < 4)):
        store()
    store()
    lines = [line.split("= ")[1].split(" ")[0:3] for line in body(k).splitlines() if "global" in line]
    assert [" ".join(words).split("  ")[0].strip() for words in lines] == [
        *("group_x % 4", "s32(group_x < 4)", "min(group_x, 3)"),
        *("group_x", "1", "group_x"),
        *("group_x + -4", "0", "3"),
        *("group_x % 4", "s32(group_x < 4)", "min(group_x, 3)"),
    ]


def test_what_follows_an_exit_knows_its_condition() -> None:
    k = KernelBuilder("k", grid=(8, 1, 1))
    x = k.surface(k.buffer("x", s32, 64))
    with k.loop("i", 0, 20) as loop:
        k.global_store(x, (loop.var < 4).to(s32), 0)
        k.exit_if((loop.var >= 4) | (k.group[0] > 2))
        k.global_store(x, (loop.var < 4).to(s32) + loop.var % 4 + k.group[0] // 3, 4)
    lines = [line.strip() for line in body(k).splitlines() if "global" in line]
    assert lines[0].startswith("global x[0, 0, 0] in surface(x, 0, 256) = s32(i < 4) ")
    assert lines[1].startswith("global x[4, 0, 0] in surface(x, 0, 256) = i + 1 ")


def test_rotating_slots_are_known_to_be_small() -> None:
    k = KernelBuilder("k")
    x = k.surface(k.buffer("x", s32, 64))
    with k.loop("i", 0, 8, slot=const(0)) as loop:
        k.global_store(x, loop["slot"] % 3 + loop.var // 8, 0)
        loop.yields((loop["slot"] + 1) % 3)
    assert "= slot.6  # 1" in body(k)


def test_kernels_mean_the_same_before_and_after() -> None:
    k = KernelBuilder("k", grid=(3, 2, 1), subgroups=2)
    x = k.surface(k.buffer("x", s32, 4096))
    n = k.scalar("n")
    row = k.let("row", k.group[0] * 128 + k.subgroup * 64 + Lane())
    with k.loop("i", 0, 5, a=const(1), slot=const(0)) as loop:
        t = k.let("t", (loop.var * 8 + row % 8) // 4 + loop["slot"] * 100)
        with k.when(eq(loop.var % 3, 1)):
            k.global_store(x, t + loop["a"], (k.group[1] * 1024 + row * 2 + loop.var // 5) * 4)
        k.exit_if((loop["a"] > n) & (loop.var >= 0), loop["a"], loop["slot"])
        loop.yields(loop["a"] * 3, (loop["slot"] + 1) % 2)
    k.global_store(x, loop.result("a") + loop.result("slot"), (row * 2 + k.group[1] * 1024 + 1) * 4)
    kernel = k.done()
    memory = [np.zeros(4096 * 4, np.uint8) for _ in range(2)]
    for m, version in zip(memory, (kernel, simplify(kernel))):
        interpret(version, {"x": m}, {"n": 20})
    assert memory[0].any()
    assert np.array_equal(memory[0], memory[1])


def test_a_shuffle_that_moves_nothing_is_its_vector() -> None:
    v = var("v", vector(s32, 4))
    whole: Expr = Shuffle(v, (0, 1, 2, 3))
    assert simplify(whole) is v
    for order in ((0, 1, 2), (1, 0, 2, 3), (0, 1, 2, 3, 0), (0, 0, 0, 0)):
        e = Shuffle(v, order)
        assert simplify(e) is e
    inside = Shuffle(v + 0, (1, 0))
    assert simplify(inside) is Shuffle(v, (1, 0))


def test_a_shuffle_has_the_range_of_its_vector() -> None:
    v = var("v", vector(s32, 4))
    assert bounds(Shuffle(v, (3, 0)), {v: (-2, 9)}) == (-2, 9)
    assert simplify(Shuffle(v, (3, 0)) % 16, {v: (0, 9)}) is Shuffle(v, (3, 0))


def test_what_is_settled_elsewhere_is_looked_at_where_more_is_known() -> None:
    """Nothing is asked of `p | q`, which stays as it is, but that it holds is said inside."""
    p, q, x, y = var("p", bool_), var("q", bool_), var("x", s32), var("y", s32)
    before, inside = var("a", s32), var("b", s32)
    either = select(p | q, x, y)
    new = simplify(stmt.block(stmt.Let(before, either), stmt.If(p | q, stmt.Let(inside, either + 1), stmt.empty)))
    assert new is stmt.block(stmt.Let(before, either), stmt.If(p | q, stmt.Let(inside, x + 1), stmt.empty))
