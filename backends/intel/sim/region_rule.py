"""Records of restrictions on register regions, and the documents that state the restrictions."""

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
MOST_REGISTERS = 2  #: registers that a region may touch
MULTIPLIERS = {"mul": 1, "mac": 1, "mad": 2}  #: the source that may not be bf


@frozen
class InstructionRule:
    """A restriction on an instruction as a whole."""

    says: str
    source: str
    is_broken: Callable[[Operation, Area], bool]  #: given the destination
    platforms: Callable[[Platform], bool] = lambda platform: True


@frozen
class SourceRule:
    """A restriction on one source, whose number it is given."""

    says: str
    source: str
    is_broken: Callable[[Operation, Area, int], bool]
    platforms: Callable[[Platform], bool] = lambda platform: True
    kinds: frozenset[str] = frozenset(("reg", "indirect"))  #: kinds of operands that it restricts
