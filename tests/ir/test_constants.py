"""The limits and defaults of `ir` are what they were; `./dev bless` accepts others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.constants import constants


@pytest.mark.parametrize("room", ["ir", "ir.layout", "ir.simplify"])
def test_constants(room: str, golden: Callable[[str, str], None]) -> None:
    golden(f"constants/{room}.txt", constants(f"convgen.{room}"))
