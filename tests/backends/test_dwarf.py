"""The bytes of debug information where no assembler makes them: numbers, entries and line tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from convgen.backends.dwarf import (
    ABBREVIATIONS,
    CompilationUnit,
    Sections,
    abbreviation_codes,
    sections,
    signed,
    unsigned,
)
from tests import samples


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(0, "00"), (2, "02"), (127, "7f"), (128, "80 01"), (129, "81 01"), (12857, "b9 64"), (1 << 21, "80 80 80 01")],
)
def test_unsigned_leb128(value: int, wanted: str) -> None:
    """The examples of DWARF 5, table 7.7, and more."""
    assert unsigned(value).hex(" ") == wanted


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        *((2, "02"), (-2, "7e"), (127, "ff 00"), (-127, "81 7f"), (128, "80 01"), (-128, "80 7f"), (129, "81 01")),
        *((-129, "ff 7e"), (63, "3f"), (64, "c0 00"), (-64, "40"), (-65, "bf 7f"), (100000, "a0 8d 06")),
    ],
)
def test_signed_leb128(value: int, wanted: str) -> None:
    """The examples of DWARF 5, table 7.8, and the ends of one byte."""
    assert signed(value).hex(" ") == wanted


def test_abbreviations_end_with_two_zeros() -> None:
    assert [abbreviation_codes(n)[:5] for n in ABBREVIATIONS] == [(1, 0x11, 1, 0x25, 8), (2, 0x2E, 0, 3, 8)]
    assert all(abbreviation_codes(n)[-2:] == (0, 0) for n in ABBREVIATIONS)


def shown(made: Sections) -> str:
    """In lines of sixteen bytes."""
    lines: list[str] = []
    for name in ("abbrev", "info", "line"):
        content = getattr(made, name)
        lines += [f"{name}, {len(content)} bytes"]
        lines += [f"  {content[at : at + 16].hex(' ')}" for at in range(0, len(content), 16)]
    return "\n".join([*lines, f"places {made.info_places} {made.line_places}"]) + "\n"


def test_two_units(golden: Callable[[str, str], None]) -> None:
    """One with rows far apart, up and down the listing, and one without any."""
    rows = [(0, 7), (16, 8), (0x1230, 200), (0x1240, 3)]
    golden(
        "dwarf.txt",
        shown(
            sections([CompilationUnit("first", "first.ir", 0x2000, rows), CompilationUnit("other", "other.ir", 48, [])])
        ),
    )


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
def test_only_who_debugs_gets_a_listing(target: str) -> None:
    to, kernel = samples.program(target, "one_subgroup").target, samples.lowered(target, "one_subgroup")[0]
    plain, debug = to.emit(kernel), to.emit(kernel, debug=1)
    assert plain.listing is None
    assert debug.listing is not None
    assert kernel.name in debug.listing
    assert ".loc" not in plain.text
