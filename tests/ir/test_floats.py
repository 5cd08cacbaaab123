"""Float operations: their values, which types take them, their text, and what the simplifier makes of constants."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from convgen.ir import floats as fl
from convgen.ir.build import KernelBuilder
from convgen.ir.error import UserError, VerifyError
from convgen.ir.evaluate import Evaluator, Value
from convgen.ir.expr import Eq, Expr, Max, Min, Splat, const, var
from convgen.ir.floats import Abs, Ceil, Cos, Exp2, Floor, Fma, Log2, Neg, Rcp, Round, Rsqrt, Sin, Sqrt, fma
from convgen.ir.mutate import free_vars
from convgen.ir.simplify.simplify import simplify
from convgen.ir.text import parse, to_text
from convgen.ir.types import Type, bf16, f16, f32, f64, s32, u8, vector
from convgen.ir.verify import verify

ALL = (*fl.EXACT, *fl.APPROXIMATE)
TYPES = (f16, bf16, f32, f64)
_EDGES = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-7, 3.0e38, np.inf, -np.inf, np.nan]


def computed(e: Expr, **given: Any) -> Any:
    """The value of an expression of the variables x, y and z, whose elements have the type of `e`."""
    data = {name: np.asarray(numbers) for name, numbers in given.items()}
    ev = Evaluator(len(next(iter(data.values()))))
    with np.errstate(over="ignore"):
        for name, numbers in data.items():
            ev.env[var_of(name, e)] = Value(numbers.astype(e.type.elem.numpy))
    return ev(e).data


def var_of(name: str, e: Expr) -> Any:
    return next(v for v in free_vars(e) if v.name == name)


def bits(data: Any) -> list[int]:
    return data.view(f"u{data.itemsize}").tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_signs_and_rounding_are_exact(type: Type) -> None:
    x = var("x", type)
    with np.errstate(over="ignore"):
        wide = np.array(_EDGES).astype(type.numpy).astype(np.float64)
    for cls, f in ((Abs, np.abs), (Floor, np.floor), (Ceil, np.ceil), (Round, np.rint), (Neg, np.negative)):
        found, wanted = computed(cls(x), x=_EDGES), f(wide).astype(type.numpy)
        number = wide == wide
        assert bits(found[number]) == bits(wanted[number]), cls.__name__
        assert np.isnan(found[~number].astype(np.float64)).all()


def test_of_two_zeros_the_sign_decides() -> None:
    x, y = var("x", f32), var("y", f32)
    a, b = [0.0, -0.0, 0.0, -0.0], [0.0, 0.0, -0.0, -0.0]
    assert np.signbit(computed(Min(x, y), x=a, y=b)).tolist() == [False, True, True, True]
    assert np.signbit(computed(Max(x, y), x=a, y=b)).tolist() == [False, False, False, True]


@pytest.mark.parametrize("type", [f16, f32, f64], ids=str)
def test_fma_rounds_once(type: Type) -> None:
    x, y, z = (var(name, type) for name in "xyz")
    rng = np.random.default_rng(1)
    with np.errstate(over="ignore"):
        a, b = (rng.standard_normal(200).astype(type.numpy) for _ in "ab")
        c = (-(a * b) * rng.choice([0.0, 0.5, 1.0, 2.0**-12, 2.0**-24, 2.0**-54], 200)).astype(type.numpy)
    found = computed(fma(x, y, z), x=a, y=b, z=c)
    for p, q, r, got in zip(a, b, c, found):
        exact = Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r))
        around = (np.nextafter(got, type.numpy.type(side)) for side in (-np.inf, np.inf))
        assert all(abs(Fraction(float(got)) - exact) <= abs(Fraction(float(n)) - exact) for n in around)
    twice = a * b + c
    assert (found != twice).any(), "some of them differ from a product and a sum"


def test_fma_at_the_edges() -> None:
    x, y, z = (var(name, f64) for name in "xyz")
    a, b, c = [1e300, np.inf, 0.0, -1e300], [1e300, 0.0, -1.0, 1e300], [-1e300, 1.0, 0.0, np.nan]
    found = computed(Fma(x, y, z), x=a, y=b, z=c)
    assert found[0] == np.inf
    assert np.isnan(found[[1, 3]]).all()
    assert bits(found[2:3]) == [0]


def test_approximate_operations_are_rounded_once() -> None:
    x = var("x", f32)
    assert computed(Exp2(x), x=[-150.0, -149.0, 0.5, 127.0, 128.0]).tolist() == [
        *(0.0, 2.0**-149, float(np.float32(2**0.5)), 2.0**127, np.inf)
    ]
    assert computed(Log2(x), x=[8.0, 2.0**-149, 0.0]).tolist() == [3.0, -149.0, -np.inf]
    assert computed(Rcp(x), x=[3.0, np.inf, -0.0]).tolist() == [float(np.float32(1 / 3)), 0.0, -np.inf]
    assert computed(Sqrt(x), x=[2.0, 0.0]).tolist() == [float(np.float32(2**0.5)), 0.0]
    assert computed(Rsqrt(x), x=[4.0, 0.0]).tolist() == [0.5, np.inf]
    for cls in (Log2, Sqrt, Rsqrt):
        assert np.isnan(computed(cls(x), x=[-1.0])).all()


def test_sine_and_cosine_count_turns() -> None:
    x = var("x", f32)
    at = [0.0, 0.25, 0.5, 0.75, 1.0, -0.25, 2.0**23 + 1, 1 / 12]
    assert computed(Sin(x), x=at).tolist() == [0, 1, 0, -1, 0, -1, 0, pytest.approx(0.5)]
    assert computed(Cos(x), x=at).tolist() == [1, 0, -1, 0, 1, 0, 1, pytest.approx(0.75**0.5)]
    for cls in (Sin, Cos):
        assert np.isnan(computed(cls(x), x=[np.inf, -np.inf])).all()


def verified(e: Expr) -> None:
    """VerifyError if a kernel must not bind `e`."""
    k = KernelBuilder("k")
    k.let("v", e)
    verify(k.done())


@pytest.mark.parametrize(
    ("e", "wanted"),
    [
        *((cls(const(1, s32)), "wanted f") for cls in ALL),
        *((cls(const(1.0, f64)), "wanted f32 or f16") for cls in fl.APPROXIMATE),
        (Fma(*[const(1.0, bf16)] * 3), "wanted f16, f32 or f64"),
        (fma(const(1, s32), 1, 1), "wanted f16, f32 or f64"),
    ],
    ids=str,
)
def test_types_that_an_operation_does_not_take(e: Expr, wanted: str) -> None:
    with pytest.raises(VerifyError, match=wanted):
        verified(e)


def test_operands_of_an_fma_are_of_one_type() -> None:
    with pytest.raises(UserError, match="fma: operands are f16, f16, f32"):
        Fma(const(1.0, f16), const(1.0, f16), const(1.0, f32))


def test_text() -> None:
    x, n = var("x", f32), var("n", s32)
    shown = {
        -x * 2.0: "-x * 2.0",
        fl.absolute(x): "abs(x)",
        fl.absolute(n): "max(n, 0 - n)",
        Sin(x + 1): "sin(x + 1.0)",
    }
    shown[fma(x, 2.0, -x)] = "fma(x, 2.0, -x)"
    for e, text in shown.items():
        assert str(e) == text
        assert parse(to_text(e)) is e


def simplified(e: Expr) -> Expr:
    return simplify(e)


def test_constants_are_folded_where_that_is_exact() -> None:
    two, third = const(2.0, f32), const(1 / 3, f32)
    assert simplified(fma(two, 0.25, -third)) is const(float(np.float32(0.5) - np.float32(1 / 3)), f32)
    assert simplified(two * 3.0 + 1.0) is const(7.0, f32)
    pair = vector(f16, 2)
    assert simplified(Floor(Splat(pair, const(2.5, f16)))) is Splat(pair, const(2.0, f16))
    assert simplified(Eq(two, two)).value == 1  # type: ignore[attr-defined]
    assert simplified(Exp2(two)) is Exp2(two), "hardware may give something else"


def test_signs_and_rounding_are_not_done_twice() -> None:
    x = var("x", f16)
    assert simplified(Neg(-x)) is x
    assert simplified(Abs(-x)) is Abs(x) is simplified(Abs(Abs(x)))
    assert simplified(Floor(Ceil(x))) is Ceil(x)
    assert simplified((x + 0.0) * 1.0) is (x + 0.0) * 1.0
    assert simplified(-(var("c", u8))).type is u8
