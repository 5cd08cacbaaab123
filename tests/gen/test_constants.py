"""The limits, costs and defaults of `gen` are what they were; `./dev bless` accepts others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.constants import constants


@pytest.mark.parametrize(
    "package",
    [
        *(
            f"convgen.{room}"
            for room in ("problem", "plan", "kernels", "run", "device", "profile", "explain", "commands")
        ),
        "convgen",
    ],
)
def test_constants(package: str, golden: Callable[[str, str], None]) -> None:
    golden(f"constants/{package}.txt", constants(package))
