"""Division by constants without division: against Python's floor division at the dividends where it could go wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from convgen.ir.build import KernelBuilder
from convgen.ir.error import Unsupported
from convgen.ir.evaluate import Evaluator, Value
from convgen.ir.expr import Div, Expr, Mod, Var, const
from convgen.ir.mutate import postorder
from convgen.ir.program import Kernel
from convgen.ir.stmt import For, Let
from convgen.ir.types import Type, s32, u32
from convgen.passes.expand_division import expand_division

TOP = (1 << 31) - 1

DIVISORS = [*range(1, 301), 641, 1000, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1, 6700417, (1 << 30) - 1, 1 << 30]


def kernel(low: int, high: int, divisors: Sequence[int], dtype: Type = s32) -> tuple[Kernel, Var]:
    """A loop over [low, high] that computes quotient and remainder by each divisor."""
    k = KernelBuilder("division")
    with k.loop("n", low, high + 1) as loop:
        for d in divisors:
            n = loop.var.to(dtype)
            k.let(f"q{d}".replace("-", "_"), n // const(d, dtype))
            k.let(f"r{d}".replace("-", "_"), n % const(d, dtype))
        loop.yields()
    return k.done(), loop.var


def values(k: Kernel) -> list[Expr]:
    """The values of the lets in the loop, in order."""
    (loop,) = (s for s in postorder(k) if isinstance(s, For))
    return [s.value for s in loop.body.children() if isinstance(s, Let)]


def edges(low: int, high: int, d: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Dividends around both ends, zero, and multiples of d near them and halfway."""
    multiples = [m // d * d for m in (low, 0, high // 3, high // 2, high)]
    near = {n + step for n in (low, 0, high, *multiples) for step in range(-2, 3)}
    return np.array(sorted(n for n in near if low <= n <= high))


def check(low: int, high: int, divisors: Sequence[int], dtype: Type = s32) -> None:
    before, n = kernel(low, high, divisors, dtype)
    after = expand_division(before)
    assert not any(isinstance(x, (Div, Mod)) for x in postorder(after))
    found = values(after)
    assert len(found) == 2 * len(divisors)
    for d, quotient, remainder in zip(divisors, found[::2], found[1::2]):
        dividends = edges(low, high, d)
        evaluate = Evaluator(len(dividends))
        evaluate.env[n] = Value(dividends.astype(np.int32))
        assert np.array_equal(evaluate(quotient).data, dividends // d), f"// {d} in [{low}, {high}]"
        assert np.array_equal(evaluate(remainder).data, dividends % d), f"% {d} in [{low}, {high}]"


@pytest.mark.parametrize(
    ("low", "high"), [(0, TOP - 1), (0, 1000), (5, 70000), (-1000, 1000), (-70000, -3), (-TOP, -TOP + 9)]
)
def test_every_divisor_at_its_edges(low: int, high: int) -> None:
    check(low, high, DIVISORS)


def test_unsigned_dividends() -> None:
    check(0, TOP - 1, DIVISORS, u32)


@pytest.mark.parametrize("d", [3, 7, 11, 13, 100])
def test_every_dividend_of_a_range(d: int) -> None:
    before, n = kernel(-500, 3000, [d])
    quotient, _ = values(expand_division(before))
    dividends = np.arange(-500, 3001)
    evaluate = Evaluator(len(dividends))
    evaluate.env[n] = Value(dividends.astype(np.int32))
    assert np.array_equal(evaluate(quotient).data, dividends // d)


def test_powers_of_two_take_one_instruction() -> None:
    quotient, remainder = values(expand_division(kernel(0, 100, [8])[0]))
    assert len(list(postorder(quotient))) == len(list(postorder(remainder))) == 3


@pytest.mark.parametrize("divisor", [0, -3])
def test_divisors_that_are_not_positive_are_refused(divisor: int) -> None:
    with pytest.raises(Unsupported, match="wanted a positive 32-bit constant divisor"):
        expand_division(kernel(0, 100, [divisor])[0])


def test_divisors_that_are_not_constant_are_refused() -> None:
    k = KernelBuilder("division")
    n = k.scalar("n")
    k.let("q", n // n)
    with pytest.raises(Unsupported, match="wanted a positive 32-bit constant divisor"):
        expand_division(k.done())


def test_dividends_that_may_be_too_large_are_refused() -> None:
    k = KernelBuilder("division")
    k.let("q", k.scalar("n", u32) // const(3, u32))
    with pytest.raises(Unsupported, match=r"wanted a dividend below 2\^31"):
        expand_division(k.done())
    with pytest.raises(Unsupported, match=r"wanted a dividend below 2\^31"):
        expand_division(kernel(-10, TOP - 1, [3])[0])
