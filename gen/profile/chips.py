"""The chips whose run times were published, as the time model knows them."""

from __future__ import annotations

from convgen.ir.error import UserError
from convgen.ir.record import frozen


@frozen(eq=False)
class Chip:
    """One GPU, or one die of it where programs see dies."""

    name: str
    target: str  #: whose code it runs
    units: int  #: compute units
    partitions: int  #: XCDs; workgroups go to them in turn, each has an L2 of its own
    clock: float  #: clocks per us at most
    rates: dict[str, int]  #: by type, FLOP of matrix instructions per clock of a unit, dense
    kept: float = 0.85  #: most of the clock that it keeps while all matrix units work


_CDNA2 = {"f16": 1024, "bf16": 1024, "f32": 256, "s8": 1024}  #: CDNA2 white paper, table of peak rates
_CDNA3 = {"f16": 2048, "bf16": 2048, "f32": 256, "s8": 4096, "fp8": 4096}  #: CDNA3 white paper, same table
_CDNA4 = {"f16": 4096, "bf16": 4096, "f32": 256, "s8": 8192, "fp8": 8192, "fp4": 16384}  #: CDNA4 white paper

#: Name -> chip. Units and clocks: AMD's data sheets. A die of the MI250 has 104 units, of the MI250X 110; which of them
#: rocBLAS's table comes from is told by its rows: tiles of 105 to 110 workgroups take one round, of 111 two.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("mi250", "gfx90a", 104, 1, 1700, _CDNA2, kept=1.0),
        Chip("mi250x", "gfx90a", 110, 1, 1700, _CDNA2),
        Chip("mi300x", "gfx942", 304, 8, 2100, _CDNA3),
        Chip("mi300a", "gfx942", 228, 6, 2100, _CDNA3),
        Chip("mi308x", "gfx942", 80, 4, 2100, _CDNA3),
        Chip("mi355x", "gfx950", 256, 8, 2400, _CDNA4),
    )
}


def chip_of(target: str, units: int) -> Chip:
    """The chip with that many units.

    Raises UserError if none is known.
    """
    for chip in CHIPS.values():
        if (chip.target, chip.units) == (target, units):
            return chip
    known = ", ".join(f"{c.target} with {c.units}" for c in CHIPS.values())
    raise UserError(f"given {target} with {units} units, wanted one of {known}")
