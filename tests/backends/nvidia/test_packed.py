"""Halves are computed and converted in pairs, without an instruction for each element."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from convgen.backends import target as targets
from convgen.ir.expr import Expr
from convgen.ir.floats import fma
from convgen.ir.types import Type, VectorType, bf16, f8_e4m3, f16, f32, vector
from convgen.passes import pipeline
from tests import arithmetic as ar


def mnemonics(operation: ar.Operation, type: VectorType, target: str) -> Counter[str]:
    """The instructions of a kernel, without messages, addresses and what a kernel begins with."""
    to = targets.get(target)
    kernel = ar.addressed(ar.Case(operation, type, 32).kernel("k"), to.facts)
    text = to.emit(pipeline.run(kernel, to.facts)).text
    found = re.findall(r"^    ((?:add|mul|fma|cvt|prmt|bfe|bfi)\.[.\w]+)", text, re.M)
    return Counter(name for name in found if re.search("f16|f32|e4m3|b32", name))


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_halves_go_by_pairs(target: str) -> None:
    assert mnemonics(lambda a, b, c: fma(a, b, c) + a, vector(f16, 8), target) == {"fma.rn.f16x2": 4, "add.rn.f16x2": 4}


def test_bf16_goes_by_pairs_where_the_target_adds_it() -> None:
    def operation(a: Expr, b: Expr, c: Expr) -> Expr:
        return a * b

    assert mnemonics(operation, vector(bf16, 8), "sm_90") == {"mul.rn.bf16x2": 4}
    assert mnemonics(operation, vector(bf16, 8), "sm_89")["mul.rn.f32"] == 8


@pytest.mark.parametrize(
    ("of", "to", "wanted"),
    [
        (f32, f16, {"cvt.rn.f16x2.f32": 4}),
        (f32, bf16, {"cvt.rn.bf16x2.f32": 4}),
        (f16, f32, {"cvt.f32.f16": 8}),
        (f8_e4m3, f16, {"cvt.rn.f16x2.e4m3x2": 4}),
    ],
)
def test_conversions_take_one_instruction_a_pair(of: Type, to: Type, wanted: dict[str, int]) -> None:
    found = mnemonics(lambda a, b, c: a.to(vector(to, 8)), vector(of, 8), "sm_90")
    assert found == wanted


def test_saturating_conversions_to_8_bit_floats_take_one_instruction_a_pair() -> None:
    found = mnemonics(lambda a, b, c: a.to(vector(f8_e4m3, 8), saturate=True), vector(f32, 8), "sm_90")
    assert found == {"cvt.rn.satfinite.e4m3x2.f32": 4}
