"""Tensors beyond 2^31 bytes, with workgroups sampled that read or write behind that mark. They take 7 GB of memory."""

from __future__ import annotations

import pytest

from convgen import driver, verify
from convgen.ir.types import scalar
from convgen.problem import Conv

LIMIT = 2**31

#: few outputs far apart where the large tensor is read, one tap where it is written: what is multiplied stays small
PROBLEMS = {
    "FWD_D": ("mb3ic16iw23000003oc8kw3sw999pw1", "src"),
    "BWD_D": ("mb3ic16iw23000003oc2kw1", "diff_src"),
    "BWD_W": ("mb3ic16iw23000003oc8kw3sw999pw1", "src"),
    "FWD_B": ("mb3ic2iw23000003oc16kw1", "dst"),
}


@pytest.mark.sweep
def test_tensors_beyond_two_gigabytes() -> None:
    """One test, so that only one of them is in memory."""
    for direction, (descriptor, large) in PROBLEMS.items():
        problem = Conv.parse(descriptor, dir=direction, dt="f16")
        tensor = problem.tensor(large)
        assert tensor.layout.size_elems * scalar(tensor.dtype).bytes > LIMIT
        outcome = verify.run(driver.compile(driver.build(problem)), groups=8)
        assert outcome.checked, direction
        assert not outcome.findings, f"{direction}: {outcome.findings[0]}"
        assert not outcome.mismatches, f"{direction}: {outcome.first[0]}"
