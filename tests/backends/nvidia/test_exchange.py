"""Exchanges between lanes by `shfl.sync` and through shared memory: on the simulator what numpy says."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends import target as targets
from convgen.ir.types import bf16, f16, f32, f64, s8, s16, s32, u16, u32
from tests import exchange as ex
from tests.strategies import FIXED

ELEMENTS = [f32, s32, f16, bf16, u32, s16, u16, s8, f64]
TARGET = targets.get("sm_90")


@settings(FIXED, max_examples=4)
@given(st.lists(ex.cases(ELEMENTS, 32), min_size=8, max_size=8), st.integers(0, 1 << 16))
def test_random_exchanges(drawn: list[ex.Case], seed: int) -> None:
    ex.check(TARGET, drawn, seed)


def test_parts_of_words_come_together() -> None:
    ex.check_within_words(TARGET)


def test_from_a_product_to_the_next() -> None:
    ex.check_between_products(TARGET)
