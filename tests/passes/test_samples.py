"""Each pass makes of the sample kernels what it always made, as digests; `cases/` has small kernels to read.

Digests are to be looked into with `convgen ... --dump`. Where a change is meant, `./dev bless` accepts it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from convgen.ir.program import Kernel
from convgen.passes import pipeline
from tests import samples


@pytest.mark.parametrize("target", ["gfx942", "xehpg", "xehpc"])
def test_each_pass(target: str, golden: Callable[[str, str], None]) -> None:
    """One line a kernel: as built, and behind each pass that changes it."""
    rows = []
    for name in samples.names(target):
        built = samples.program(target, name)
        for number, kernel in enumerate(built.ir.kernels):
            steps = [f"{name} {number}: {samples.digest(str(kernel))}"]

            def observe(p: pipeline.Pass, before: Kernel, after: Kernel, seconds: float, to: list[str] = steps) -> None:
                if after is not before:
                    to.append(f"{p.name} {samples.digest(str(after))}")

            samples.run(kernel, built.target.facts, observe=observe)
            rows.append(" ".join(steps))
    golden(f"passes/{target}.txt", "\n".join(rows) + "\n")
