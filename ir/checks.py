"""Checks of names and numbers when nodes and records are constructed: they reach assembly, file names and loops."""

from __future__ import annotations

import re
from functools import lru_cache

from convgen.ir.error import UserError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}")


@lru_cache(maxsize=1 << 14)
def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_name(name: str, what: str) -> None:
    """Raise UserError unless `name` may stand in assembly and as a file name."""
    if not isinstance(name, str) or not _is_name(name):
        shown = ascii(name)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise UserError(f"given {what} {shown}, wanted a letter or _ and up to 199 letters, digits, _ and .")


def check_range(value: int, least: int, most: int, what: str) -> None:
    """Raise UserError unless `value` is an integer in [least, most]."""
    if type(value) is not int or not least <= value <= most:
        shown = ascii(value) if not isinstance(value, int) or abs(value) < 1 << 64 else "a number beyond 64 bits"
        raise UserError(f"given {what} {shown[:60]}, wanted an integer from {least} to {most}")
