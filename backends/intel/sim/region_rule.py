"""What a restriction on register regions is, and where the restrictions are written."""

from __future__ import annotations

from collections.abc import Callable

from convgen.backends.intel.sim.areas import Area, Operation
from convgen.backends.intel.sim.platforms import Platform
from convgen.ir.record import frozen

PARAMETERS = "PRM, General Restrictions on Regioning Parameters"
ALIGNMENT = "PRM, Region Alignment Rules"
TYPES = "PRM, General Restrictions Based on Operand Types"
CHANNELS = "PRM, Register Region Restrictions, floating-point and 64-bit data types"
MIXED = "PRM, Special Restrictions for Handling Mixed Mode Float Operations"
BRAIN = "Mesa, special_restrictions_for_mixed_float_mode; IGC, fixBFMixedMode"
HALVES = "IGC, fixUnalignedRegions, moves between f and packed hf"
THIRD = "IGC, isGoodAlign1TernarySrc and isGoodAlign1TernaryDst"
CROSSBAR = "PRM, Register Region Restrictions, Src0 and Src1 Restrictions; IGC, fixByteXBarRestriction"
VECTOR = "PRM, Immediate vectors; IGC, fixDstAlignmentWithVectorImm"

ANY = frozenset(("reg", "indirect", "imm"))
MOST_REGISTERS = 2  #: that a region may touch
MULTIPLIERS = {"mul": 1, "mac": 1, "mad": 2}  #: the source that may not be bf


@frozen
class InstructionRule:
    """What no instruction may do."""

    says: str
    source: str
    broken: Callable[[Operation, Area], bool]  #: given the destination
    platforms: Callable[[Platform], bool] = lambda platform: True


@frozen
class SourceRule:
    """What no source may do, given its number."""

    says: str
    source: str
    broken: Callable[[Operation, Area, int], bool]
    platforms: Callable[[Platform], bool] = lambda platform: True
    kinds: frozenset[str] = frozenset(("reg", "indirect"))  #: of operands that it looks at
