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
from tests.ir.test_simplify_scopes import kernels, results
from tests.strategies import FIXED, SWEEP

FACTS = {name: targets.get(name).facts for name in ("gfx942", "xehpc")}
MESSAGE = [p for p in PASSES if p.name != "lower_tiles"]  # tile passes leave a message-level kernel as it is
NUMBERS = (-3, 0, 7)  #: what the kernels' scalar argument is


def applied(p: Pass, kernel: Kernel, target: str) -> Kernel | None:
    """The kernel after a pass; None if the pass refuses it (a division that no constant multiplies away)."""
    try:
        return verify(p.run(kernel, FACTS[target]))
    except Unsupported:
        return None


def assert_same(before: Kernel, after: Kernel, name: str) -> None:
    for n in NUMBERS:
        assert np.array_equal(results(before, n), results(after, n)), f"{name} with n = {n}"


def check_each(kernel: Kernel, target: str) -> None:
    for p in MESSAGE:
        after = applied(p, kernel, target)
        if after is not None and after is not kernel:
            assert_same(kernel, after, p.name)


def check_in_order(kernel: Kernel, target: str) -> None:
    now = kernel
    for p in MESSAGE:
        now = applied(p, now, target) or now
    assert_same(kernel, now, "all passes")


@pytest.mark.parametrize("target", FACTS)
@settings(FIXED, max_examples=10)
@given(kernel=kernels())
def test_each_pass_alone(target: str, kernel: Kernel) -> None:
    check_each(kernel, target)


@pytest.mark.parametrize("target", FACTS)
@settings(FIXED, max_examples=15)
@given(kernel=kernels())
def test_all_passes_in_order(target: str, kernel: Kernel) -> None:
    check_in_order(kernel, target)


@pytest.mark.sweep
@settings(SWEEP, max_examples=600)
@given(kernels())
def test_many_kernels(kernel: Kernel) -> None:
    for target in FACTS:
        check_each(kernel, target)
        check_in_order(kernel, target)
