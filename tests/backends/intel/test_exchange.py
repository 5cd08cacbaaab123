"""Exchanges between lanes on Xe: on the simulator what numpy says, by as few moves as regions allow."""

from __future__ import annotations

import random
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends import target as targets
from convgen.backends.intel.exchange import _moves
from convgen.ir.build import KernelBuilder
from convgen.ir.error import Unsupported
from convgen.ir.expr import FromLane, Lane
from convgen.ir.types import bf16, f16, f32, s8, s16, s32, u16, u32
from convgen.passes import pipeline
from tests import exchange as ex
from tests.product.changes import Change, described
from tests.product.test_deletion_xe import changes
from tests.strategies import FIXED, SWEEP

ELEMENTS = [f32, s32, f16, bf16, u32, s16, u16, s8]
SIMULATED = ("xehpg", "xehpc")
_LANES = {name: targets.get(name).facts.subgroup_size for name in SIMULATED}


@pytest.mark.parametrize("target", SIMULATED)
@settings(FIXED, max_examples=3)
@given(st.data(), st.integers(0, 1 << 16))
def test_random_exchanges(target: str, data: st.DataObject, seed: int) -> None:
    drawn = data.draw(st.lists(ex.cases(ELEMENTS, _LANES[target]), min_size=6, max_size=6))
    ex.check(targets.get(target), drawn, seed)


@pytest.mark.parametrize("target", SIMULATED)
def test_parts_of_words_come_together(target: str) -> None:
    ex.check_within_words(targets.get(target))


@pytest.mark.parametrize("target", SIMULATED)
def test_from_a_product_to_the_next(target: str) -> None:
    ex.check_between_products(targets.get(target))


@pytest.mark.sweep
@settings(SWEEP, max_examples=40)
@given(st.data(), st.integers(0, 1 << 16))
def test_many_random_exchanges(data: st.DataObject, seed: int) -> None:
    for target in SIMULATED:
        drawn = data.draw(st.lists(ex.cases(ELEMENTS, _LANES[target]), min_size=6, max_size=6))
        ex.check(targets.get(target), drawn, seed)


@pytest.mark.parametrize(("flip", "moves"), [(1, 2), (2, 4), (4, 4), (8, 2)])
def test_moves_that_change_lanes_in_pairs(flip: int, moves: int) -> None:
    lanes = tuple((np.arange(16) ^ flip).tolist())
    found = _moves(lanes)
    assert len(found) == moves
    assert sorted(n for m in found for n in m.written) == list(range(16))


@settings(FIXED, max_examples=50)
@given(st.lists(st.integers(0, 15), min_size=16, max_size=16))
def test_moves_do_what_is_asked(lanes: list[int]) -> None:
    got = [-1] * 16
    for m in _moves(tuple(lanes)):
        for n, to in enumerate(m.written):
            assert got[to] == -1
            got[to] = m.of + n * m.stride
    assert got == lanes


def unnoticed(target: str, sample: int | None) -> list[Change]:
    """The changes to waits, fences and barriers of a kernel, or to a sample of them, that nobody notices."""
    kernel = ex.watched(targets.get(target))
    waits = list(changes(kernel.text))
    waits = waits if sample is None else random.Random(target).sample(waits, sample)
    return [c for wait in waits for c in takewhile(lambda c: not kernel.notices(c.applied(kernel.text)), wait)]


@pytest.mark.parametrize(("target", "sample"), [(t, 12) for t in SIMULATED])
def test_a_sample_of_losses_is_noticed(target: str, sample: int) -> None:
    lost = unnoticed(target, sample)
    assert not lost, described(lost)


@pytest.mark.sweep
@pytest.mark.parametrize("target", SIMULATED)
def test_every_loss_is_noticed(target: str) -> None:
    lost = unnoticed(target, None)
    assert not lost, described(lost)


def test_lanes_that_are_not_known_are_refused() -> None:
    to = targets.get("xehpc")
    k = KernelBuilder("k", width=16)
    a = k.surface(k.buffer("a", s32, 16))
    held = k.global_load("held", s32, a, Lane() * 4)
    k.global_store(a, FromLane(held, held & 15), Lane() * 4)
    with pytest.raises(
        Unsupported, match="wanted elements of up to 32 bits from lanes that follow from the lane's own"
    ):
        to.emit(pipeline.run(k.done(), to.facts))
