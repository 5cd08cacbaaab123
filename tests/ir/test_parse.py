"""Reading the IR's text: every node comes back, hands may write it, and nothing else is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir import expr as x
from convgen.ir import fused, stmt
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.caret import PointedError
from convgen.ir.error import UserError
from convgen.ir.expr import Const, Expr, Lane, Var, const, var
from convgen.ir.floats import Neg, fma
from convgen.ir.interp import interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import (
    Dim,
    Global,
    Plane,
    Rectangle,
    RectangleOrder,
    Shared,
    Swizzle,
    TensorDim,
    View,
    row_major,
)
from convgen.ir.layout.tags import Layout
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.node import CLASSES, node, role
from convgen.ir.program import Kernel, Program
from convgen.ir.sizes import HostValue, Size
from convgen.ir.stmt import Let, Load, Site, Stmt
from convgen.ir.text import parse, show, templates, to_text
from convgen.ir.types import SCALARS, AddressSpace, f16, f32, pointer, s32, s64, u8, u32, u64, vector
from convgen.ir.verify import verify
from tests.gen import mutants
from tests.ir.test_simplify_scopes import kernels
from tests.ir.test_text import sample
from tests.strategies import FIXED

CASES = Path(__file__).parents[1] / "passes" / "cases"
X, Y = Var("x", 1, s32), Var("y", 2, s32)
BUFFER = Global("src", f32, 4096)
ROWS = Fragment(("n", "m"), (Digit("m", 4, Space.REGISTER, 1), Digit("n", 16, Space.LANE, 1)))
ORDERED = Fragment(("n", "m"), (Digit("n", 16, Space.LANE, 1), Digit("m", 4, Space.REGISTER, 1)))


def comes_back(made: Any) -> None:
    assert parse(to_text(made)) is made


# ---------------------------------------------------------------- written by hand

BY_HAND = """\
# Each lane adds up a row of 16 numbers.
kernel rows(src: f32[1024], n: s32, dst: f32[64]):
  grid 1 x 1 x 1 as x, y, z
  1 subgroups of 64 lanes as wave
  window: u32x4 = surface(src, 0, 4096)
  at = lane * 64  # a name for an expression, no statement
  for k in [0, n) carrying (acc: f32 = 0.0) -> acc:
    if k >= 0:
      v: f32 = global src[at, k * 4, 0] in window
    yield acc + v * 2.0
  global dst[lane * 4, 0, 0] in surface(dst, 0, 256) = max(acc, 0.0)  # 1 store: the sums
"""


def test_hands_write_kernels() -> None:
    text = BY_HAND.replace("    if k >= 0:\n", "").replace("      v: f32", "    v: f32")
    kernel = verify(parse(text))
    src = np.arange(1024, dtype=np.float32)
    memory = {"src": src.view(np.uint8).copy(), "dst": np.zeros(256, np.uint8)}
    interpret(kernel, memory, {"n": 16})
    assert np.array_equal(memory["dst"].view(np.float32), 2 * src.reshape(64, 16).sum(axis=1))
    comes_back(kernel)


def test_what_is_not_numbered_is_numbered_behind_all_else() -> None:
    text = "a.7: s32 = lane\nb: s32 = a.7\nbarrier\nbarrier  # 3 fill: why\nbarrier  # not a site"
    first, second, *barriers = parse(text).stmts
    assert (first.var.id, second.var.id) == (7, 8)
    assert [b.site.number for b in barriers] == [4, 3, 5]


def test_a_name_is_what_was_bound_last() -> None:
    first, second, third = parse("i: s32 = 1\ni: s32 = i + 1\nj: s32 = i").stmts
    assert second.value.a is first.var
    assert third.value is second.var


def test_operators_and_numbers_that_only_hands_write() -> None:
    given_f16 = "given h: f16\n"
    assert parse(f"{given_f16}h > 2").children() == (const(2.0, f16), parse(f"{given_f16}h"))
    assert parse("0x10_u8") is const(16, u8)
    assert parse("((3))") is const(3)
    assert parse("given v: f32x4\nfma(v, 2, 0.5)").c is x.Splat(vector(f32, 4), const(0.5, f32))


def test_variables_made_after_reading_are_fresh() -> None:
    parse("given late.1000000: s32")
    assert var("late").id > 1000000


# ---------------------------------------------------------------- what is written comes back


@pytest.mark.parametrize("dtype", [t for t in SCALARS.values() if not t.is_bool], ids=str)
def test_constants_of_all_bits_come_back(dtype: Any) -> None:
    bits = range(1 << dtype.bits) if dtype.bits <= 8 else np.random.default_rng(1).integers(0, 1 << 62, 300).tolist()
    for pattern in bits:
        low = int(pattern) * 5 % (1 << dtype.bits) if dtype.bits > 8 else int(pattern)
        made = Const(dtype, low) if dtype.is_float else const(low + dtype.min, dtype)
        comes_back(made)
        comes_back(Let(Var("v", 1, dtype), made))
        comes_back(x.Add(made, Var("v", 1, dtype)))
        if not dtype.is_by_bytes:  # of such types there are no vectors
            comes_back(x.Splat(vector(dtype, 2), made))


@pytest.mark.parametrize(
    "e",
    [
        Neg(const(1.0, f32)),
        Neg(const(-1.0, f32)),
        Neg(Neg(Var("f", 3, f32))),
        Neg(X),
        ~const(3),
        const(2) + const(3),
        const(2, u8) * const(3, u8),
        x.Splat(vector(f16, 4), const(1.0, f16)) * 2.0,
        x.Splat(vector(f16, 1), Var("h", 3, f16)),
        x.Cast(vector(f16, 1), Var("h", 3, f16)),
        x.Cast(vector(f16, 1), Var("h", 3, vector(f32, 1))),
        x.Cast(u64, const(3)),
        x.select(X < 3, const(1), 2),
        x.select(x.const(True, SCALARS["bool"]), const(1, s64), const(2, s64)),
        fma(const(1.0, f32), 2.0, Var("f", 3, f32)),
        fused.Fused("add3", const(1), const(2), const(3)),
        x.FromLane(Var("f", 3, f32), const(2)),
        x.Surface(BUFFER, const(0, s64), const(4096)),
        x.AddressOf(BUFFER) + 16,
        x.Slice(x.Slice(Var("v", 3, vector(f16, 8)), 2, 4), 1, 2),
        x.Slice(Var("v", 3, vector(f16, 8)) + 1.0, 2, 4),
        x.Shuffle(Var("v", 3, vector(f16, 8)), (7,)),
        x.Pack(u64, (const(3, u32), const(4, u32))),
        Var("load", 3, s32) + Var("lane", 4, s32),
        Var("acc.7", 3, s32) + Var("acc", 7, s32),
        Var("inf", 1, f32) + Var("nan_f32", 2, f32),
        Var("t0", 1, s32) * 3 + Var("t1", 2, s32) // 5,
        Var("p", 1, pointer(f16, AddressSpace.GLOBAL)),
        Size("m", 0, s32, 1, 512, 32) + HostValue("k", 0, s32, -5, 'a "b" // n'),
        x.Lt(x.Lt(X, Y), x.Lt(Y, X)),
    ],
    ids=str,
)
def test_expressions_of_all_forms_come_back(e: Expr) -> None:
    comes_back(e)
    big = e + e if isinstance(e.type, type(s32)) and e.type.is_int else e
    comes_back(big)


@pytest.mark.parametrize(
    "s",
    [
        stmt.empty,
        stmt.Block((stmt.empty,)),
        stmt.Block((Let(X, const(1)),)),
        stmt.Block((stmt.Block((Let(X, const(1)), Let(Y, X))),)),
        stmt.Block((stmt.empty, stmt.Block((stmt.empty,)))),
        stmt.If(x.eq(X, 1), stmt.empty, stmt.empty),
        stmt.If(x.eq(X, 1), stmt.empty, stmt.Block((stmt.empty,))),
        stmt.If(x.eq(X, 1), stmt.Block((stmt.empty, Let(Y, X))), Let(Y, X + 1)),
        stmt.For(X, const(0), const(4), (), (), stmt.empty, (), (), "loop", False),
        stmt.For(
            X, const(0), const(4), (Y,), (const(7),), stmt.empty, (Y + 1,), (Var("z", 3, s32),), "carrying", False
        ),
        stmt.For(Var("x", 1, s64), const(0, s64), const(4, s64), (), (), Let(Y, const(1)), (), (), "x", False),
        stmt.ExitIf(x.eq(X, 1), (X, Y)),
        stmt.Barrier(Site(-3)),
        stmt.Barrier(Site(3, "", "alone: # x", 2, True)),
        stmt.Barrier(Site(3, "private", "", -1, True)),
        stmt.Barrier(Site(3, "fill", " two ", 0)),
    ],
    ids=str,
)
def test_statements_of_all_shapes_come_back(s: Stmt) -> None:
    comes_back(s)


VALUES: dict[str, Any] = {
    "Expr": X,
    "tuple[Expr, ...]": (X, Y + 1),
    "View": View(
        BUFFER,
        Layout.dense((8, 16), (0, 1)),
        ((Dim("at0", 8, 8),), (Dim("k", 3, 4), Dim("c.1", 5, 5))),
        (TensorDim(8, (("at0", 1),)), TensorDim(20, (("k", -2), ("c.1", 1)), 3)),
    ),
    "Shared": Shared("tile", f32, 4, 4, row_major(4, 4), 2, Swizzle(), 16),
    "Global": BUFFER,
    "Plane": Plane(BUFFER, 64, 48, 10, 64),
    "Rectangle": Rectangle(8, 2, RectangleOrder.ROW_A_LANE, 2),
    "Fragment": ROWS,
    "TensorMap": TensorMap("tiled", "f16", BUFFER.name, (64, 8), (128,), box=(16, 4), swizzle=32),
    "int": 4,
    "Site": Site(5, "stage", "comment", 1, True),
}
STRINGS = {"op": "add", "dim": "m"}
FITTING: dict[str, dict[str, Any]] = {
    "Copy": {"loaded": ROWS},
    "Reduce": {"of": ROWS, "value": Var("v", 9, vector(f32, 4)), "var": Var("r", 8, vector(f32, 1))},
    "Redistribute": {
        "of": ROWS, "layout": ORDERED, "value": Var("v", 9, vector(f32, 4)), "var": Var("r", 8, vector(f32, 4))
    },
}  # fmt: skip


def instances() -> Iterator[Stmt]:
    """A statement of each class, its optional fields written and left out."""
    for cls in templates.classes_with_form():
        for is_full in (True, False):
            values = {
                f: Var("bound", 7, f32) if field.annotation == "Var" else VALUES.get(field.annotation, STRINGS.get(f))
                for f, field in cls.declared.items()
            } | FITTING.get(cls.__name__, {})
            for part in templates.parts_of(cls):
                if part.absent is not None and not is_full:
                    values[part.field] = part.default(values.__getitem__)
            yield cls(**values)


@pytest.mark.parametrize("s", list(instances()), ids=lambda s: type(s).__name__)
def test_statements_of_all_classes_come_back(s: Stmt) -> None:
    comes_back(s)


def test_a_new_class_needs_a_form_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    @node
    class Probe(Load):
        form = "{var} = probe {buffer}[{index}]{mask: unless |true}"
        buffer: Global = role(stmt.Effect.READS)
        index: Expr
        mask: Expr
        site: Site

    known = templates.classes_with_form()
    monkeypatch.setattr(templates, "classes_with_form", lambda: (*known, Probe))
    templates.forms.cache_clear()
    try:
        comes_back(Probe(Var("v", 1, f32), BUFFER, X, X < 3, Site(4)))
        comes_back(Probe(Var("v", 1, f32), BUFFER, X, const(True, SCALARS["bool"]), Site(4)))
    finally:
        templates.forms.cache_clear()
        del CLASSES["Probe"]


def test_fields_are_told_apart_by_words_or_names() -> None:
    """At a fork of forms at most one way on takes anything, and the others begin with words or known names."""
    forks = [templates.forms()]
    while forks:
        fork = forks.pop()
        kinds = [part.kind for part, _ in fork.edges if part.field and part.kind != "Var"]
        assert len(kinds) <= 1 or set(kinds) == {"View", "Shared"}, kinds
        assert not (fork.ends and kinds)
        forks += [after for _, after in fork.edges]


def test_kernels_and_programs_come_back() -> None:
    kernel = sample()
    comes_back(kernel)
    program = Program((kernel, kernel), (BUFFER, Global("other", u8, 7)))
    again = parse(to_text(program))
    assert again == program
    assert again.kernels[0] is kernel


@settings(FIXED, max_examples=25)
@given(kernel=kernels())
def test_random_kernels_come_back(kernel: Kernel) -> None:
    comes_back(kernel)
    shown = show(kernel)
    assert show(parse(shown)) == shown


@pytest.mark.sweep
@settings(FIXED, max_examples=1000, derandomize=False)
@given(kernel=kernels())
def test_many_random_kernels_come_back(kernel: Kernel) -> None:
    comes_back(kernel)


def test_names_of_views_are_told_apart() -> None:
    """Of two views of a buffer, and of one of a buffer that is called as the first of these would be."""
    k = KernelBuilder("k", width=16)
    src, other = k.buffer("src", f32, 64), k.buffer("src.1", f32, 64)
    for view in (matrix(src, 16, 4), matrix(src, 4, 16), matrix(other, 16, 4)):
        k.load_view("v", view, (0, 0), ROWS)
    comes_back(k.done())


def test_deep_and_shared_expressions_stay_short() -> None:
    deep: Expr = X
    for i in range(3000):
        deep = deep * 3 + i
    comes_back(deep)
    wide: Expr = X
    for _ in range(200):
        wide = wide + wide
    assert len(to_text(wide)) < 10_000
    comes_back(wide)


def lets(count: int) -> str:
    """A kernel of so many lets, each of the one before, in suites of 50."""
    k = KernelBuilder("k")
    last: Expr = Lane()
    for n in range(count):
        last = k.let("v", (last + n) * 3 + n)
    return to_text(k.done())


def seconds(text: str) -> float:
    best = 1e9
    for _ in range(3):
        start = process_time()
        parse(text)
        best = min(best, process_time() - start)
    return best


def test_long_programs_take_linear_time() -> None:
    short, long = lets(250), lets(2000)
    assert len(long) < 9 * len(short)
    assert seconds(long) < 20 * seconds(short)


# ---------------------------------------------------------------- nothing else is read


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("__import__('os')", "an unknown name __import__", 1),
        ("given x: s32\nx.name", "an unknown name x.name, in line 2", 1),
        ("lane + 3_u8", "Add: operands are s32 and u8", 8),
        ("lane + 300_u8", "constant 300 does not fit u8", 8),
        ("lane + 1.5", "given the number 1.5, wanted one of s32", 8),
        ("lane +", "given nothing more, wanted an expression", 7),
        ("lane lane", "given 'lane', wanted the end of the line", 6),
        ("(lane", "given nothing more, wanted ')'", 6),
        ("lane < 3 < lane", "given comparisons in a row, wanted parentheses", 10),
        ("min(lane)", "given ')', wanted ','", 9),
        ("abs(1.0, 2.0)", "given ',', wanted ')'", 8),
        ("f16(1, 2)", "given f16 of 2 arguments, wanted a conversion of one", 1),
        ("f17(1)", "an unknown name f17", 1),
        ("mma.none(1)", "an unknown name mma.none", 1),
        ("address_of(lane)", "an unknown buffer lane", 12),
        ("1e99", "given the number 1e99, wanted one that f32 can hold", 1),
        ("0x100_u8", "given bits 0x100_u8, wanted at most 8", 1),
        ("x: s32 = nothing", "an unknown name nothing", 10),
        ("x: s32 = 3_u8", "let x: s32 = u8", 10),
        ("x: s33 = 3", "given the type s33", 4),
        ("load: s32 = 3", "given the name load, which is a word of the language, wanted `load`", 1),
        ("given load: s32", "given the name load, which is a word of the language", 7),
        ("kernel k(x: f16[4], load: s32):", "given the name load, which is a word of the language", 21),
        ("import os", "an unknown name import", 1),
        ("x: f32 = load tile[0] as n16l1", "an unknown view or shared tile tile", 15),
        ("given row: s32\nrov + 1", "an unknown name rov (did you mean row?), in line 2", 1),
        ("flor(1.0)", "an unknown name flor (did you mean floor?)", 1),
        ("for i in [0, 4)\n  pass", "given nothing more, wanted ':'", 16),
        ("barrier barrier", "given 'barrier', wanted nothing more", 9),
        ("barrier\n  barrier", "given more lines", 3),
        ("barrier\nlane", "given an expression, wanted a statement", 1),
        ("if lane == 0:\nbarrier", "wanted lines further in behind this one", 1),
        ("if lane:\n  barrier", "if: condition of type s32", 8),
        ("if true:\n    barrier\n  barrier", "given a line that belongs to no suite", 3),
        ("if true:\n  yield lane", "given a yield, wanted one at the end of a loop", 3),
        ("else:\n  barrier", "an unknown name else", 1),
        ("  barrier", "given a first line that is indented", 3),
        ("for i in [0, 4:\n  pass", "given ':', wanted ')'", 15),
        ("for i in [0, 4):\n  yield 3", "carried types", 16),
        ("barrier  # 1 fill [slot x]", "given the mark 'slot x' of a site", 10),
        ("kernel k():", "given a kernel of no lines", 12),
        ("kernel k():\n  grid 1 x 1 as a", "wanted a grid of three numbers", 8),
        ("kernel k(x: f16[4], x: f16[4]):\n  grid 1", "two buffers or shared tiles are called x", 29),
        ("given n: s32\nbuffer b: f16[n x n]", "given a buffer of no known length", 21),
        ("shared t: 1 of f16 4 x 4, pitch 7", "given a pitch of 7 bytes, wanted a multiple of 2", 34),
        ("given n: s32 in [1, 0]", "wanted an integer from 1 to 2147483647", 22),
        ("program:\n  buffer x: f16[4]\nbarrier", "given something else, wanted a kernel", 8),
        ("", "given an empty text", 0),
        ("# nothing but a remark", "given an empty text", 0),
    ],
)
def test_errors_point_at_what_is_wrong(text: str, message: str, column: int) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    if column:
        assert isinstance(caught.value, PointedError)
        assert caught.value.column + 1 == column


@settings(FIXED, max_examples=150)
@given(st.text(alphabet='abx019\u00b2.,:;=()[]<>+-*/`"# \n_\u00e9\u0660', max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(UserError):
        parse(text)


@pytest.mark.parametrize(("count", "seed"), [pytest.param(200, 1), pytest.param(6000, 2, marks=pytest.mark.sweep)])
def test_damaged_text_is_refused_or_comes_back(count: int, seed: int) -> None:
    texts = [to_text(sample()), *(path.read_text() for path in sorted(CASES.glob("*.ir")))]
    for number in range(count):
        text = texts[number % len(texts)].partition("# ---")[0]
        (damaged,) = mutants.dumps(text, 1, seed * 10_000 + number)
        try:
            made = parse(damaged)
        except UserError:
            continue
        comes_back(made)
