"""Fills that are computed where they are looked at: one tensor, however one looks; memory only for what is touched."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import convgen as cg
from convgen.backends.simulation import PAGE, Budget, Bytes, Pages, Places
from convgen.commands import cli
from convgen.ir.error import UserError
from convgen.ir.layout.tags import Layout
from convgen.problem.conv import Conv
from convgen.run import footprint, reference, verdict
from convgen.run.fills import Fill

VALUES = np.array([v for v in range(-8, 9) if v]).astype(np.float16)
SHAPE = (3, 8, 5, 7)
AT = np.array([0, 2, 1, 2])

KEYS = [
    (slice(None), AT),
    (AT, slice(None), AT, AT),
    (AT, slice(1, 4), slice(None), AT),
    (2, AT),
    np.ix_(AT, AT, AT[:2], AT),
    (slice(0, 2), slice(None), slice(1, 5, 2)),
    (slice(2, 2),),
    (slice(None, None, -1), slice(1, None)),
]


def fill(*shape: int, seed: int = 0) -> Fill:
    return Fill.of(VALUES, (seed, 1), shape)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_fill_is_indexed_as_the_array_is(key: Any) -> None:
    tensor = fill(*SHAPE)
    whole = np.asarray(tensor)
    assert np.array_equal(np.asarray(tensor[key]), whole[key])
    part = tensor[:, 1:, ::2]
    assert np.array_equal(np.asarray(part[:, AT]), whole[:, 1:, ::2][:, AT])
    assert np.array_equal(np.asarray(tensor.reshape(12, 2, 35)[AT, :]), whole.reshape(12, 2, 35)[AT])


def test_values_are_drawn_evenly_and_by_seed() -> None:
    whole = np.asarray(fill(200_000)).astype(int)
    _, counts = np.unique(whole, return_counts=True)
    assert len(counts) == 16
    assert np.all(np.abs(counts / 12_500 - 1) < 0.05)
    assert np.mean(whole == np.asarray(fill(200_000, seed=1))) < 0.08
    neighbours = np.mean(whole[1:] == whole[:-1])
    assert neighbours < 0.08


def test_numbers_beyond_32_bits_are_no_repetition() -> None:
    tensor = fill(1 << 40)
    at = np.arange(1000)
    parts = [tensor[at + (k << 32)].astype(int) for k in range(3)]
    assert np.array_equal(parts[0], np.asarray(fill(1000)).astype(int))
    assert all(np.mean(a == b) < 0.15 for a, b in pairwise(parts))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    dims = tuple(draw(st.lists(st.integers(1, 6), min_size=4, max_size=4)))
    tag = draw(st.sampled_from(["abcd", "acdb", "aBcd4b", "ABcd2a3b", "dcba", "aBCd2b2c3b", "strides"]))
    if tag != "strides":
        return Layout.from_tag(tag, dims)
    reach, strides = 1, [0, 0, 0, 0]
    for d in draw(st.permutations(range(4))):
        strides[d] = reach + draw(st.integers(0, 3))
        reach += (dims[d] - 1) * strides[d]
    return Layout.strided(dims, strides)


@given(layouts(), st.sampled_from([0, 0xFF]))
@settings(max_examples=150)
def test_each_place_has_what_packing_leaves_there(layout: Layout, gaps: int) -> None:
    tensor = fill(*layout.dims)
    wanted = reference.pack(layout, np.asarray(tensor), gaps).view(np.uint16)
    assert layout.is_apart
    places = np.random.default_rng(0).permutation(len(wanted))[: len(wanted) // 2 * 2].reshape(2, -1)
    assert np.array_equal(reference.packed(layout, tensor, places, gaps).view(np.uint16), wanted[places])


def test_elements_that_meet_are_known() -> None:
    assert not Layout.strided((4, 4), (3, 1)).is_apart
    assert not Layout.strided((2, 3), (0, 1)).is_apart


def test_pages_come_when_they_are_touched_and_stay() -> None:
    made: list[int] = []

    def make(places: Places) -> Bytes:
        made.extend(map(int, places[:, 0]))
        return (places // PAGE).astype(np.uint8)

    budget = Budget(100 * PAGE)
    pages = Pages(40 * PAGE + 8, make, budget, beside=2)
    pages.touch(np.array([PAGE - 2, 9 * PAGE]), 4)
    assert sorted(made) == [0, PAGE, 9 * PAGE]
    pages.data[5] = 99
    pages.touch(np.array([5, 40 * PAGE]), 4)
    assert made[3:] == [40 * PAGE]
    assert list(pages.data[[5, PAGE, 2 * PAGE, 9 * PAGE, 40 * PAGE + 7]]) == [99, 1, 0, 9, 40]
    assert budget.left == (100 - 4 * 3) * PAGE
    with pytest.raises(UserError, match="touches more memory"):
        pages.whole()


HUGE = "mb8192ic64ih56oc64kh3ph1"  # 6 GiB of f16, half of it written


FORWARD, BACKWARD = {"dir": "FWD_B", "dt": "f16"}, {"dir": "BWD_D", "dt": "bf16", "stag": "abcd"}


@pytest.mark.parametrize(("target", "knobs"), [("gfx942", FORWARD), ("gfx942", BACKWARD), ("xehpc", BACKWARD)])
def test_a_sample_of_a_huge_problem_takes_little(
    target: str, knobs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "available", lambda: 96 << 20)
    code = cg.compile(cg.build(Conv.parse(HUGE, **knobs), target))
    told: list[int] = []
    outcome = verdict.run(code, groups=1, report_bytes=told.append)
    assert outcome.passed
    assert outcome.checked
    assert told[0] < 64 << 20


def test_what_does_not_fit_is_refused_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(footprint, "available", lambda: 96 << 20)
    assert cli.main(["conv", HUGE, "--dir", "FWD_D", "--dt", "f16", "--run"]) == 2
    note, line = capsys.readouterr().err.splitlines()
    assert "takes about 15.3 GiB of memory" in note
    assert line.startswith("convgen: given a run that takes 15.3 GiB of memory, wanted at most 96 MiB, or --run-groups")


def test_a_sampled_product_reads_no_more_than_it_needs() -> None:
    problem = cg.Matmul.parse("90000x70000:70000x80000", dt="f16")
    inputs = reference.fills(problem)
    rows, columns = np.array([3, 89_999]), np.array([0, 79_999, 5])
    got = reference.outputs(problem, inputs, "dst", rows, columns)
    expected = inputs["src"][rows, :].astype(float) @ inputs["wei"][:, columns].astype(float)
    assert np.array_equal(got, expected.astype(np.float32).astype(np.float16))
    assert prod(inputs["src"].shape) == 6_300_000_000


def test_memory_is_told_for_people() -> None:
    assert footprint.text(900) == "900 bytes"
    assert footprint.text(3 << 29) == "1.5 GiB"
    assert footprint.available() > 64 << 20
