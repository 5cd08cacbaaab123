"""Pairs of operations that become one, what stays, and that the meaning does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import convgen as cg
from convgen.backends.target import get
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Cast, Const, Expr, Lane, const
from convgen.ir.interp import interpret
from convgen.ir.mutate import postorder, statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.variable_ranges import var_ranges
from convgen.ir.stmt import Let
from convgen.ir.types import f32, s32, s64, u32, u64
from convgen.passes.peephole import peephole
from tests.strategies import FIXED

AMD, XE = get("gfx942").facts, get("xehpc").facts


def storing(make: object, width: int = 64) -> Kernel:
    """A kernel that stores what `make(lane, uniform)` gives, for a lane and a uniform operand of u32."""
    k = KernelBuilder("k", width=width)
    out = k.surface(k.buffer("out", u32, width))
    n = k.scalar("n", u32)
    k.global_store(out, make(Lane().to(u32), n), Lane() * 4)  # type: ignore[operator]
    return k.done()


def text(k: Kernel) -> str:
    return str(k).splitlines()[-1].partition(" = ")[2].partition("  #")[0]


@pytest.mark.parametrize(
    ("make", "amd"),
    [
        (lambda lane, n: (lane << 3) + n, "lshl_add(u32(lane), 3, n)"),
        (lambda lane, n: n + (lane << 3), "lshl_add(u32(lane), 3, n)"),
        (lambda lane, n: (lane & 7) | n, "and_or(u32(lane), 7, n)"),
        (lambda lane, n: (lane << n) | lane, "lshl_or(u32(lane), n, u32(lane))"),
        (lambda lane, n: lane * 3 + n, "mad24(u32(lane), 3, n)"),
        (lambda lane, n: lane + n + lane, "add3(u32(lane), n, u32(lane))"),
        (lambda lane, n: lane * 8, "u32(lane) << 3"),
        (lambda lane, n: lane * 2, "u32(lane) << 1"),
        (lambda lane, n: ((lane << 3).to(s32) + n.to(s32)).to(u32), "u32(lshl_add(s32(u32(lane)), 3, s32(n)))"),
        (lambda lane, n: (lane.to(f32) + n.to(f32)).to(u32), "u32(f32(u32(lane)) + f32(n))"),  # no free conversion
        (lambda lane, n: ((lane.to(s64) << 3) + 5).to(u32), "u32((s64(u32(lane)) << 3) + 5)"),
        (lambda lane, n: (lane.to(s64) * 8).to(u32), "u32(s64(u32(lane)) * 8)"),
        (lambda lane, n: (n << 3) + lane, "lshl_add(n, 3, u32(lane))"),
        (lambda lane, n: n * 8 + lane, "lshl_add(n, 3, u32(lane))"),
        (lambda lane, n: n * 5 + lane, "n * 5 + u32(lane)"),  # the scalar unit multiplies
        (lambda lane, n: (n << n) + lane, "(n << n) + u32(lane)"),  # two words that all lanes share
        (lambda lane, n: (n << 4) + n, "lshl_add(n, 4, n)"),  # all by the scalar unit
        (lambda lane, n: n * 2 + n, "lshl_add(n, 1, n)"),
        (lambda lane, n: n * 32 + n, "n * 32 + n"),  # which shifts by four places at most
        (lambda lane, n: (n << n) + n, "(n << n) + n"),
        (lambda lane, n: lane * 0x1000001 + n, "u32(lane) * 16777217 + n"),  # more than 24 bits
    ],
)
def test_before_and_after(make: object, amd: str) -> None:
    assert text(peephole(storing(make), AMD)) == amd


@pytest.mark.parametrize(
    ("make", "xe"),
    [
        (lambda lane, n: (lane << 3) + n, "mad16(u32(lane), 8, n)"),
        (lambda lane, n: lane + n * 8, "mad16(n, 8, u32(lane))"),  # in one lane or in all
        (lambda lane, n: n * lane + n, "mad16(n, u32(lane), n)"),  # lanes are few
        (lambda lane, n: lane * 0x10000 + n, "(u32(lane) << 16) + n"),  # a factor of 17 bits
        (lambda lane, n: n * n + lane, "n * n + u32(lane)"),  # of 32 bits both
        (lambda lane, n: (lane << n) + n, "(u32(lane) << n) + n"),
        (lambda lane, n: lane + n + 0x7FFF, "add3(u32(lane), n, 32767)"),
        (lambda lane, n: lane + n + 0x8000, "u32(lane) + n + 32768"),  # more than an immediate holds
        (lambda lane, n: lane * 3 + 0x8000, "u32(lane) * 3 + 32768"),
        (lambda lane, n: lane + 5 + 7, "u32(lane) + 5 + 7"),  # two constants
        (lambda lane, n: lane * 3 + 0xFFFF8000, "mad16(u32(lane), 3, 4294934528)"),
        (lambda lane, n: lane - n + 5, "add3(u32(lane), 0 - n, 5)"),
        (lambda lane, n: lane - n * 5, "mad16(0 - n, 5, u32(lane))"),
        (lambda lane, n: lane * 5 - n, "mad16(u32(lane), 5, 0 - n)"),
        (lambda lane, n: lane - n, "u32(lane) - n"),
        (lambda lane, n: lane & 7 | n, "u32(lane) & 7 | n"),
    ],
)
def test_operands_that_an_instruction_takes(make: object, xe: str) -> None:
    assert text(peephole(storing(make, 16), XE)) == xe


def names(k: Kernel) -> list[str]:
    return [s.var.name for s in statements(k.body) if isinstance(s, Let)]


@pytest.mark.parametrize(
    ("uses", "left"),
    [
        ([lambda sum, n: sum + n, lambda sum, n: n - sum], []),
        ([lambda sum, n: sum + n, lambda sum, n: sum], []),  # adds again, in place of the name's addition
        ([lambda sum, n: sum + n, lambda sum, n: sum, lambda sum, n: sum * 3], ["sum"]),
        ([lambda sum, n: sum + n * 3, lambda sum, n: sum + n * 5], ["sum"]),  # one operation as it is
        ([lambda sum, n: sum + n + 1, lambda sum, n: sum], ["sum"]),  # of four
        ([lambda sum, n: ((sum + n).to(u32) + 1).to(s32), lambda sum, n: sum], ["sum"]),
        ([lambda sum, n: sum + 2, lambda sum, n: sum + 3], ["sum"]),  # two constants
    ],
)
def test_sums_that_others_take_in_have_no_name(uses: list[Callable[[Expr, Expr], Expr]], left: list[str]) -> None:
    k = KernelBuilder("k", width=16)
    n, out = k.scalar("n"), k.surface(k.buffer("out", s32, 64))
    total = k.let("sum", k.scalar("m") + 1)
    for at, use in enumerate(uses):
        k.global_store(out, k.let("use", use(total, n)), const(64 * at) + Lane() * 4)
    assert [name for name in names(peephole(k.done(), XE)) if name != "use"] == left


OPERATIONS = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a << (b & 7),
    lambda a, b: a * b,
    lambda a, b: a & b,
    lambda a, b: a | b,
)


@settings(FIXED, max_examples=60)
@given(data=st.data())
def test_the_meaning_stays(data: st.DataObject) -> None:
    def random(lane: Expr, n: Expr, depth: int = 3) -> Expr:
        if depth == 0:
            return data.draw(st.sampled_from((lane, n, Const(u32, data.draw(st.integers(0, 40))))))
        operation = data.draw(st.sampled_from(OPERATIONS))
        result: Expr = operation(random(lane, n, depth - 1), random(lane, n, depth - 1))
        return result

    k = storing(random)
    results = []
    for kernel in (k, peephole(k, AMD), peephole(k, evolve(XE, subgroup_size=64))):
        memory = {"out": np.zeros(256, np.uint8)}
        interpret(kernel, memory, {"n": 0x12345})
        results.append(memory["out"])
    assert all(np.array_equal(results[0], r) for r in results[1:])


def test_ranges_are_those_of_the_kernel_before() -> None:
    """As if all that is bound were looked at again."""
    k = KernelBuilder("k", grid=(9, 1, 1), width=64)
    low = k.let("low", (Lane() & 7) | (k.group[0] & 8))
    k.let("sum", low * 3 + (Lane() << 2))
    new = peephole(k.done(), AMD)
    kept = dict(var_ranges(new))
    var_ranges(storing(lambda lane, n: lane))  # something else is asked for, and nothing of `new` is known any more
    assert var_ranges(new) == kept
    assert (0, 15) in kept.values()


def test_conversions_of_constants_are_constants() -> None:
    """So that selection finds the factor of a 64-bit product."""
    k = KernelBuilder("k", width=16)
    k.let("address", (k.scalar("rows").to(s64) * Const(s64, 40)).to(u64))
    assert not any(isinstance(n, Cast) and isinstance(n.a, Const) for n in postorder(peephole(k.done(), XE)))


@pytest.mark.parametrize("target", ["xehpg", "xehpc"])
def test_a_matrix_of_more_than_two_gigabytes(target: str) -> None:
    """Its surface begins at the row where the tile does: a 64-bit product."""
    code = cg.compile(cg.build(cg.Matmul.parse("90044944x10:10x47", dt="f32"), target=target))
    assert code.object
