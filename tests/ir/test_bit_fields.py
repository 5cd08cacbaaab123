"""Numbers of 4 and 6 bits in bytes: against one large integer, and against the formats' definitions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convgen.ir import types as t
from convgen.ir.bit_fields import packed, unpacked
from convgen.ir.error import UserError
from convgen.ir.evaluate import Evaluator, Value
from convgen.ir.expr import var
from convgen.ir.narrow import unpacked as as_numbers
from tests.strategies import FIXED

WIDTH = 8


@FIXED
@given(st.sampled_from((4, 6)), st.data())
def test_the_first_number_has_the_low_bits(bits: int, data: st.DataObject) -> None:
    codes = data.draw(
        st.lists(st.integers(0, (1 << bits) - 1), min_size=4, max_size=40).map(lambda c: c[: len(c) & -4])
    )
    stream = sum(code << n * bits for n, code in enumerate(codes)).to_bytes(len(codes) * bits // 8, "little")
    rows = np.tile(np.array(codes, np.uint8), (3, 1))
    assert [bytes(row) for row in packed(rows, bits)] == [stream] * 3
    assert np.array_equal(unpacked(packed(rows, bits), bits), rows)


@pytest.mark.parametrize(
    ("of", "numpy"), [(t.f6_e2m3, ml_dtypes.float6_e2m3fn), (t.f6_e3m2, ml_dtypes.float6_e3m2fn)], ids=str
)
def test_all_numbers_of_six_bits_become_f16(of: t.Type, numpy: type) -> None:
    codes = np.stack([np.roll(np.arange(64, dtype=np.uint8), n) for n in range(WIDTH)])
    a, ev = var("a", t.vector(t.u8, 48)), Evaluator(WIDTH)
    ev.env[a] = Value(packed(codes, 6))
    assert np.array_equal(
        ev(as_numbers(a, of)).data.view(np.uint16), codes.view(numpy).astype(np.float16).view(np.uint16)
    )


def test_the_formats_are_those_of_the_specification() -> None:
    """OCP Microscaling Formats 1.0, section 5.3.2: greatest and least numbers, no infinities, no NaN."""
    for of, largest, least in ((t.f6_e2m3, 7.5, 0.125), (t.f6_e3m2, 28.0, 0.0625)):
        numbers = np.arange(64, dtype=np.uint8).view(of.numpy).astype(np.float64)
        assert np.isfinite(numbers).all()
        assert (numbers[31], numbers[1], numbers[33]) == (largest, least, -least)
        assert of.largest == largest
        assert (of.bits, of.spacing, of.size(5), t.has_nan(of), t.has_infinity(of)) == (6, 6, 4, False, False)
        assert t.f16.holds(of)
        assert t.f8_e4m3.holds(of)
    assert t.has_nan(t.f8_e4m3)
    assert not t.has_nan(t.f4_e2m1)


def test_registers_have_no_vectors_of_six_bits() -> None:
    with pytest.raises(UserError, match="given a vector of f6_e2m3, wanted one of the bytes that pack such elements"):
        t.vector(t.f6_e2m3, 4)
