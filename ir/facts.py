"""What passes and plans may ask of a target: numbers and capabilities, never its name."""

from __future__ import annotations

import attrs

from convgen.ir.mma import MmaAtom
from convgen.ir.rows import Stmt


@attrs.frozen(cache_hash=True)
class SharedPhases:
    """How a shared-memory access of one width is served: lane groups, one a cycle, over `banks` 4-byte banks."""

    banks: int
    phases: tuple[tuple[int, ...], ...]


@attrs.frozen(cache_hash=True)
class Core:
    """A compute unit, as whoever ranks configs counts its clocks."""

    simds: int
    simd_registers: int  #: vector registers of a lane for all subgroups that are resident on a SIMD
    register_granule: int  #: in which a subgroup takes them
    shared_rate: int  #: bytes a clock
    global_rate: int  #: bytes a clock
    grids: tuple[tuple[int, int], ...]  #: how many subgroups along M and N are worth a try
    subtiles: tuple[int, ...] = (1,)  #: into how many parts of M a subgroup's tile is worth being cut
    reserve: tuple[int, int] = (0, 0)  #: registers that copying an operand takes besides, without a halo and with one
    fragment_sets: int = 2  #: live at once where the next fragments are read ahead: two if loads move among products


@attrs.frozen(cache_hash=True)
class Planes:
    """What messages that move rectangles of planes keep to; in bytes but for the rows of a rectangle."""

    pitch: int  #: what the pitch is a multiple of
    align: int  #: of the base
    least: int  #: width
    most: int  #: width; pitch and height are less
    row: int  #: the longest row of a rectangle
    turned: int  #: the same where each lane gets a row
    loaded_rows: int
    stored_rows: int
    count: int  #: rectangles side by side that one message loads
    registers: int  #: that it fills


@attrs.frozen(cache_hash=True)
class TargetFacts:
    """Numbers and capabilities of one target; units in the names, sources in the target's table."""

    name: str
    subgroup_size: int
    max_subgroups: int  #: of one workgroup
    shared_bytes: int  #: shared memory of one workgroup
    registers: int  #: vector registers a lane can address as ALU operands
    accumulators: int  #: further registers for matrix accumulators (AGPRs)
    compute_units: int
    global_widths: tuple[int, ...]  #: bytes a lane may move in one message, descending
    shared_widths: tuple[int, ...]
    global_imm_max: int  #: greatest immediate offset of a global message, bytes
    shared_imm_max: int
    surface_max: int  #: greatest extent of a surface, or span of the 32-bit offsets from a flat address, bytes
    shared_read: SharedPhases  #: of the widest read
    shared_write: SharedPhases
    fused: frozenset[str]  #: names of `ir.fused.MEANING` that the vector unit has
    atoms: tuple[MmaAtom, ...]
    core: Core
    #: Types to which (and for 8 bits also from which) one instruction converts f32; f16 and bf16 by their pairs.
    conversions: tuple[str, ...] = ()
    #: Global messages take one 64-bit address a lane and a mask, instead of offsets into a surface with bounds.
    flat: bool = False
    planes: Planes | None = None  #: messages that move rectangles of planes, whose bounds the hardware checks
    prefetch: bool = False  #: memory can be brought nearer ahead of a load
    split_barriers: bool = False  #: arriving at a barrier and waiting for the others are two instructions
    #: Greatest block message, bytes: a subgroup's registers as they stand, at one address; 0 if there are none.
    block_bytes: int = 0
    #: What a lane brings into shared memory in one write, and reads as one part of a fragment.
    chunk_bytes: int = 16

    @property
    def surfaces(self) -> bool:
        """Global messages take offsets into a surface with bounds."""
        return not self.flat

    def takes(self, kind: type[Stmt]) -> bool:
        """Whether the target has such statements: the field that they need says so."""
        return not kind.needs or bool(getattr(self, kind.needs))
