"""The limits and defaults of `passes` are what they were; `./dev bless` accepts others."""

from __future__ import annotations

from collections.abc import Callable

from tests.constants import constants


def test_constants(golden: Callable[[str, str], None]) -> None:
    golden("constants/passes.txt", constants("convgen.passes"))
