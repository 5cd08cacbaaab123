"""Every message-level pass on random kernels of lets, loops, branches and exits: the same memory before and after."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from convgen.backends import target as targets
from convgen.ir.error import Unsupported
from convgen.ir.program import Kernel
from convgen.ir.verify import verify
from convgen.passes.pipeline import PASSES, Pass
from tests.ir.test_simplify_scopes import COMMON, kernels, results

FACTS = targets.get("gfx942").facts
MESSAGE = [p for p in PASSES if p.name != "lower_tiles"]  # tile passes leave a message-level kernel as it is
NUMBERS = (-3, 0, 7)  #: what the kernels' scalar argument is


def applied(p: Pass, kernel: Kernel) -> Kernel | None:
    """The kernel after a pass; None if the pass refuses it (a division that no constant multiplies away)."""
    try:
        return verify(p.run(kernel, FACTS))
    except Unsupported:
        return None


def assert_same(before: Kernel, after: Kernel, name: str) -> None:
    for n in NUMBERS:
        assert np.array_equal(results(before, n), results(after, n)), f"{name} with n = {n}"


def check_each(kernel: Kernel) -> None:
    for p in MESSAGE:
        after = applied(p, kernel)
        if after is not None and after is not kernel:
            assert_same(kernel, after, p.name)


def check_in_order(kernel: Kernel) -> None:
    now = kernel
    for p in MESSAGE:
        now = applied(p, now) or now
    assert_same(kernel, now, "all passes")


@settings(COMMON, max_examples=40)
@given(kernels())
def test_each_pass_alone(kernel: Kernel) -> None:
    check_each(kernel)


@settings(COMMON, max_examples=40)
@given(kernels())
def test_all_passes_in_order(kernel: Kernel) -> None:
    check_in_order(kernel)


@pytest.mark.sweep
@settings(COMMON, max_examples=600)
@given(kernels())
def test_many_kernels(kernel: Kernel) -> None:
    check_each(kernel)
    check_in_order(kernel)
