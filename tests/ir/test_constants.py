"""The limits and defaults of `ir` are what they were; `./dev bless` accepts others."""

from __future__ import annotations

from collections.abc import Callable

from tests.constants import constants


def test_constants(golden: Callable[[str, str], None]) -> None:
    golden("constants/ir.txt", constants("convgen.ir"))
