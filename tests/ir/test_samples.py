"""What `simplify` makes of the sample kernels, and how they are printed and dumped, stays what it was: digests.

Where a change is meant, look at it with `convgen ... --dump` before and after, and accept it with `./dev bless`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from convgen.ir.simplify.simplify import simplify
from convgen.ir.verify import verify
from convgen.passes.pipeline import PASSES
from tests import samples

_BEHIND = [p.name for p in PASSES[[p.name for p in PASSES].index("simplify") :]]


@pytest.mark.parametrize("target", ["gfx942", "xehpg", "xehpc"])
def test_simplified(target: str, golden: Callable[[str, str], None]) -> None:
    rows = []
    for name in samples.names(target):
        built = samples.program(target, name)
        for number, kernel in enumerate(built.ir.kernels):
            lowered = samples.run(verify(kernel, "tile"), built.target.facts, _BEHIND)
            rows.append(f"{name} {number}: {samples.digest(str(lowered))}, {samples.digest(str(simplify(lowered)))}")
    golden(f"simplified/{target}.txt", "\n".join(rows) + "\n")
