"""Constants of the time model in files: those that the product reaches, and those that only the bench asks for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from convgen.backends import family as families
from convgen.backends.family import Chip, Fits, chips
from convgen.ir.error import UserError
from convgen.ir.record import as_dict
from convgen.profile import constants, launch_times
from convgen.profile.closed import Terms
from convgen.profile.constants import Entry

REST = Path(__file__).parent / "constants.json"  #: the entries that no chip and type of the product reaches

_FIGURES = 4  #: significant ones of a constant
_UNKNOWN = "unknown"  #: stands for each type that no chip has a rate of


def rounded(terms: Terms) -> Terms:
    """Round constants as files keep them."""
    return Terms(**{name: float(f"{value:.{_FIGURES}g}") for name, value in as_dict(terms).items()})


def read(path: Path) -> dict[str, Entry]:
    """Read the entries of a file, by kind.

    Raises UserError if it is not such a file.
    """
    try:
        return constants.entries(path.read_text())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"given {path} that does not hold constants of the time model: {error}") from None


def write(path: Path, entries: Iterable[Entry]) -> None:
    """Write entries, sorted by kind."""
    listed = [as_dict(entry) for entry in sorted(entries, key=lambda e: e.kind)]
    path.write_text(json.dumps({"entries": listed}, indent=1) + "\n")


@lru_cache(maxsize=1)
def known() -> dict[str, Entry]:
    """Return all entries: those of the product and `REST`."""
    return constants.known() | read(REST)


def fitted() -> list[tuple[Chip, Fits]]:
    """Return the chips whose family has constants, with the family's choice of them."""
    choices = ((chip, families.of_target(chip.target)) for chip in chips().values())
    return [(chip, family.fits) for chip, family in choices if family is not None and family.fits is not None]


def reached(entries: Mapping[str, Entry]) -> set[str]:
    """Return the kinds that the product takes for any chip and type."""
    known_rates = {name for chip in chips().values() for name in chip.rates}
    return {
        kind
        for chip, fits in fitted()
        for element in {_UNKNOWN, *fits.types, *known_rates}
        for kind in launch_times.kinds_for(chip, element, entries)
    }
