"""Exchanges between lanes: on the simulator what numpy says, and of every control the lanes that its formula says."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends import target as targets
from convgen.backends.amdgpu.tables import FACTS
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, FromLane, Lane, const
from convgen.ir.interp import interpret
from convgen.ir.types import bf16, f16, f32, f64, s8, s16, s32, s64, u16, u32, vector
from tests import arithmetic as ar
from tests import exchange as ex
from tests.product.changes import described
from tests.product.test_deletion import changes
from tests.strategies import FIXED, SWEEP

ELEMENTS = [f32, s32, f16, bf16, u32, s16, u16, s8, f64]

#: lane expression -> what moves a word so
MOVES: dict[str, tuple[Expr, str]] = {
    "lane ^ 1": (Lane() ^ 1, "quad_perm:[1,0,3,2]"),
    "lane ^ 2": (Lane() ^ 2, "quad_perm:[2,3,0,1]"),
    "lane ^ 4": (Lane() ^ 4, "row_half_mirror"),
    "lane ^ 8": (Lane() ^ 8, "row_ror:8"),
    "lane ^ 15": (Lane() ^ 15, "row_mirror"),
    "the fifth of the row": (Lane() // 16 * 16 + 5, "row_newbcast:5"),
    "lane ^ 16": (Lane() ^ 16, "ds_swizzle_b32"),
    "a row's first in 32": (Lane() // 32 * 32 + Lane() % 16, "ds_swizzle_b32"),
    "lane ^ 32": (Lane() ^ 32, "ds_bpermute_b32"),
    "lane 7": (const(7), "ds_bpermute_b32"),
    "upside down": (63 - Lane(), "ds_bpermute_b32"),
}


@pytest.mark.parametrize("target", FACTS)
def test_what_moves_words(target: str) -> None:
    to = targets.get(target)
    for elem in (s32, vector(f16, 6), vector(s64, 2), f16):
        kernels = []
        for n, (lane, _) in enumerate(MOVES.values()):
            k = KernelBuilder(f"k{n}")
            each = max(1, elem.bits // 8)
            source, out = (k.surface(k.buffer(name, elem.elem, 64 * elem.lanes)) for name in ("a", "out"))
            held = k.global_load("held", elem, source, Lane() * each)
            k.global_store(out, FromLane(held, lane), Lane() * each)
            kernels.append(k.done())
        code, emitted = ar.compile_all(to, kernels)
        for kernel, (name, (_, instruction)) in zip(kernels, MOVES.items()):
            assert instruction in to.module([emitted[kernel.name]]), name
            given_ = np.random.default_rng(1).integers(0, 256, 64 * each, dtype=np.uint8)
            memory = {"a": given_, "out": np.zeros_like(given_)}
            wanted = {n: b.copy() for n, b in memory.items()}
            interpret(kernel, wanted, {})
            ar.clean(to.simulate(code, [ar.launch(kernel, emitted[kernel.name])], memory))
            assert np.array_equal(memory["out"], wanted["out"]), name


@pytest.mark.parametrize("target", FACTS)
@settings(FIXED, max_examples=2)
@given(st.lists(ex.cases(ELEMENTS, 64), min_size=8, max_size=8), st.integers(0, 1 << 16))
def test_random_exchanges(target: str, drawn: list[ex.Case], seed: int) -> None:
    ex.check(targets.get(target), drawn, seed)


@pytest.mark.parametrize("target", FACTS)
def test_parts_of_words_come_together(target: str) -> None:
    ex.check_within_words(targets.get(target))


@pytest.mark.parametrize("target", FACTS)
def test_from_a_product_to_the_next(target: str) -> None:
    ex.check_between_products(targets.get(target))


@pytest.mark.sweep
@settings(SWEEP, max_examples=40)
@given(st.lists(ex.cases(ELEMENTS, 64), min_size=8, max_size=8), st.integers(0, 1 << 16))
def test_many_random_exchanges(drawn: list[ex.Case], seed: int) -> None:
    for target in FACTS:
        ex.check(targets.get(target), drawn, seed)


@pytest.mark.parametrize(
    ("target", "sample"), [("gfx942", 16), *(pytest.param(t, None, marks=pytest.mark.sweep) for t in FACTS)]
)
def test_every_loss_is_noticed(target: str, sample: int | None) -> None:
    kernel = ex.watched(targets.get(target))
    found = list(changes(kernel.text))
    assert {change.what.split()[0] for change in found} == {"s_waitcnt", "s_barrier", "s_nop"}
    found = found if sample is None else random.Random(target).sample(found, sample)
    lost = [change for change in found if not kernel.notices(change.applied(kernel.text))]
    assert not lost, described(lost)
