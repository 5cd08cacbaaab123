"""The simulator's results equal those that an H200 gave (tests/data/silicon, `bench/silicon.py --record`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from lib import cuda_sums, ptx_vectors
from lib.ptx_vectors import Case, Form

from convgen import simulated_calls
from convgen.backends.nvidia.sim import simulate

Words = npt.NDArray[Any]
_RECORDED = Path(__file__).parents[3] / "data" / "silicon" / "instructions.npz"
_FLOATS = {"f32": np.float32, "f64": np.float64, "tf32": np.float32}
CASES = tuple(ptx_vectors.cases())


@pytest.fixture(scope="module")
def recorded() -> dict[Case, Words]:
    """Return each case's results on the GPU, [lanes, bytes]."""
    return dict(ptx_vectors.by_case(np.load(_RECORDED)["results"], CASES))


def numbers(form: Form, results: Words) -> Words | None:
    """Return results as floats; None for integers and packed halves."""
    kind = form.result[0] if form.result[0] in _FLOATS else "tf32" if form.text.startswith("cvt.rna.tf32") else None
    return None if kind is None else np.ascontiguousarray(results).view(_FLOATS[kind])


def differ(form: Form, ours: Words, theirs: Words) -> Words:
    """Return which lanes differ: in bits, except NaNs of any payload, or by more than the stated bound."""
    a, b = numbers(form, ours), numbers(form, theirs)
    if a is None or b is None:
        return np.asarray((ours != theirs).any(axis=1))
    same = (a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")) | (np.isnan(a) & np.isnan(b))
    if form.bound:
        ulp = np.spacing(np.abs(np.where(np.isfinite(a), a, 0)))
        with np.errstate(all="ignore"):
            same |= np.abs(a.astype(np.float64) - b) <= (form.bound + 0.5) * ulp  # ours is rounded correctly
    return np.asarray(~same.all(axis=1))


def by_form() -> Iterator[tuple[Form, list[Case]]]:
    for form in ptx_vectors.FORMS:
        yield form, [case for case in CASES if case.form is form]


def test_random_instructions_give_what_an_h200_gave(recorded: dict[Case, Words]) -> None:
    assert len(CASES) >= 2000
    wrong = []
    for case, ours in ptx_vectors.by_case(ptx_vectors.results(simulate, CASES), CASES):
        if (lanes := differ(case.form, ours, recorded[case])).any():
            wrong.append(f"{case.name}: lanes {np.nonzero(lanes)[0].tolist()}")
    assert not wrong, "\n".join(wrong[:20])


def test_a_result_that_differs_is_noticed(recorded: dict[Case, Words]) -> None:
    for form, cases in by_form():
        for case in cases[:1]:
            theirs = recorded[case].copy()
            theirs[3] ^= 0x55
            assert differ(form, recorded[case], theirs)[3], form.text


def test_products_of_random_floats_have_the_bits_that_an_h200_gave() -> None:
    known = np.load(cuda_sums.RECORDED)
    found = cuda_sums.results(lambda code, given: np.asarray(simulated_calls.simulate(code, **given)))
    assert found.keys() == set(known.files)
    wrong = {name: int((found[name] != known[name]).sum()) for name in found}
    assert not any(wrong.values()), wrong
