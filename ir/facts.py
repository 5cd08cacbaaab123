"""Numbers and capabilities of a target: the only way in which passes and plans know it; they never ask for its name."""

from __future__ import annotations

from itertools import chain
from typing import Any

from convgen.ir.layout.mma import BlockAtom, MmaAtom
from convgen.ir.record import frozen
from convgen.ir.stmt_base import Stmt


@frozen(cache_hash=True)
class SharedPhases:
    """Timing of a shared-memory access of one width: groups of lanes, one group a cycle, over `banks` 4-byte banks."""

    banks: int
    phases: tuple[tuple[int, ...], ...]  #: lanes; the groups of each cycle, in order

    def narrower(self, parts: int) -> SharedPhases:
        """Return the phases of an access `parts` times narrower: `parts` consecutive groups share one cycle."""
        groups = (self.phases[n : n + parts] for n in range(0, len(self.phases), parts))
        return SharedPhases(self.banks, tuple(tuple(chain.from_iterable(group)) for group in groups))


@frozen(cache_hash=True, kw_only=True)
class Core:
    """A compute unit: its registers and the rates of its memories."""

    simds: int
    simd_registers: int  #: registers; vector registers of a lane that all resident subgroups of a SIMD share
    simd_subgroups: int  #: subgroups; most that are resident on a SIMD
    register_granule: int  #: registers; allocation unit of a subgroup
    shared_rate: int  #: bytes a clock; into shared memory
    shared_read_rate: int  #: bytes a clock; from shared memory, by its widest reads
    global_rate: int  #: bytes a clock; global memory
    #: bytes; global memory transfers whole granules of this size for each contiguous run of a load
    global_granule: int = 1
    #: whether the scheduler interleaves instructions with matrix instructions, or keeps statement order
    reorders: bool = True


@frozen(cache_hash=True)
class PlaneLimits:
    """Limits of two-dimensional block messages, which move rectangles of a plane."""

    pitch: int  #: bytes; granule of the pitch
    align: int  #: bytes; alignment of the base
    least: int  #: bytes; least width of a plane
    most: int  #: bytes; exclusive bound of a plane's pitch, and so its width; in rows, of its height
    row: int  #: bytes; longest row of a rectangle
    transposed_row: int  #: bytes; longest row of a rectangle loaded transposed, one row a lane
    loaded_rows: int  #: rows; greatest height of a rectangle to load
    stored_rows: int  #: rows; greatest height of a rectangle to store
    count: int  #: rectangles; greatest number side by side in one load
    registers: int  #: registers; most that one message fills


@frozen(cache_hash=True, kw_only=True)
class Caches:
    """The caches between compute units and memory, as traffic models need them.

    Workgroup w runs on die `w % dies`. The units of a die share an L2; all dies share a memory-side cache, if any.
    """

    dies: int = 1
    unit_bytes: int = 0  #: bytes; a unit's own cache if operands pass through it, 0 if the model ignores it
    l2_bytes: int  #: bytes; of one die
    memory_side_bytes: int = 0
    line_bytes: int  #: bytes; smallest fetch of any of the caches
    channels: int = 1  #: channels of one die's L2
    channel_bytes: int = 256  #: bytes; contiguous bytes that lie in one channel
    store_rate: int  #: bytes a clock; stores into one channel
    result_rate: int  #: bytes a clock; stores of one unit that writes its result
    fill_rate: int  #: bytes a clock; into all L2s together
    memory_rate: int  #: bytes a clock; from memory

    @property
    def camp_bytes(self) -> int:
        """Return the row pitch in bytes at which all rows begin in one channel (channel conflicts)."""
        return self.channels * self.channel_bytes


@frozen(cache_hash=True)
class Roles:
    """How subgroups of a workgroup take roles: teams of subgroups with registers of their own."""

    team: int  #: subgroups; a role has a multiple of them, whose lanes have equally many registers
    copying: int  #: registers; of a lane that only starts copies
    granule: int  #: registers; a lane's number is a multiple of it
    most: int  #: registers; of a lane

    def at_entry(self, whole: int, teams: int) -> int:
        """Return the registers of a lane before roles change them, if `teams` teams share `whole` registers a lane."""
        return whole // teams // self.granule * self.granule

    def multiplying(self, whole: int, teams: int) -> int:
        """Return the registers of a lane in teams that multiply, once one of the `teams` teams only copies.

        The teams share what the workgroup has at its entry.
        """
        entry = self.at_entry(whole, teams)
        return min(self.most, (entry * teams - self.copying) // (teams - 1)) // self.granule * self.granule


@frozen(cache_hash=True, repr=False)
class TargetFacts:
    """Numbers and capabilities of one target; units in the names, sources in the target's table."""

    name: str
    subgroup_size: int
    max_subgroups: int  #: subgroups; most in a workgroup
    shared_bytes: int  #: bytes; most shared memory of a workgroup
    registers: int  #: registers; of a lane, usable as operands of the vector unit
    accumulators: int  #: registers; of a lane, in the separate file for accumulators
    compute_units: int
    global_widths: tuple[int, ...]  #: bytes; widths a lane may move in one global message, descending
    shared_widths: tuple[int, ...]  #: bytes; widths a lane may move in one shared-memory message, descending
    global_imm_max: int  #: bytes; greatest immediate offset of a global message
    shared_imm_max: int  #: bytes; greatest immediate offset of a shared-memory message
    surface_max: int  #: bytes; greatest extent of a surface, or span of 32-bit offsets from a flat address
    shared_read: SharedPhases  #: timing of the widest read
    shared_half_read: SharedPhases  #: timing of a read half as wide as the widest
    shared_write: SharedPhases
    fused: frozenset[str]  #: fused operations of the vector unit: names in `ir.fused.MEANING`
    atoms: tuple[MmaAtom, ...]
    core: Core
    caches: Caches
    #: matrix instructions that multiply their factors by scales, e8m0 by groups along K
    scaled_atoms: tuple[MmaAtom, ...] = ()
    tuning: Any = None  #: a `backends.tuning.Tuning`, by which configs are chosen; passes do not read it
    uniform_fused: frozenset[str] = frozenset()  #: those of `fused` that the scalar unit has, too
    uniform_shifts: int = 0  #: places; largest shift that the scalar unit combines with an addition
    fused_imm_bits: int = 32  #: bits; width of a signed constant operand of a fused operation
    fused_signs: bool = False  #: operands of fused operations may be negated: `0 - x`
    #: Types to which one instruction converts f32 (two elements at a time for f16 and bf16); for 8-bit types also from.
    conversions: tuple[str, ...] = ()
    #: Global messages take a 64-bit address a lane and a mask, instead of offsets into a bounds-checked surface.
    flat: bool = False
    planes: PlaneLimits | None = None  #: limits of two-dimensional block messages, whose bounds the hardware checks
    prefetch: bool = False  #: the target has prefetch messages
    blocks: tuple[BlockAtom, ...] = ()  #: matrix instructions with an independent product in each block of lanes
    tickets: bool = False  #: the target can order subgroups of different workgroups (`stmt.Ticket`)
    #: bytes; widths a lane may copy from global to shared memory without registers in one message; empty if it cannot
    direct_widths: tuple[int, ...] = ()
    #: How subgroups take roles, one of which starts bulk copies (`stmt.TensorLoad`); None without such copies.
    roles: Roles | None = None
    #: Timing of transposing 8-byte reads (`stmt.TransposedRead`); None if the target has none.
    transposed_reads: SharedPhases | None = None
    #: Loops carry the fragments of their next iteration; False if the assembler schedules reads by itself.
    carried_fragments: bool = True
    #: Loops of direct copies compute the slot of an iteration; False if they repeat their body for each slot, so that
    #: slots are constants.
    computed_slots: bool = False
    #: Timing of reads of four matrices with rows of 16 bytes (`stmt.MatrixRead`); None if the target has none.
    matrix_reads: SharedPhases | None = None
    #: subgroups (2k and 2k + 1 for two) that share an instruction pointer: a branch condition must have one value in
    #: all of them, and matrix instructions may span them (`MmaAtom.spans`); 0 if each subgroup has its own pointer
    lockstep: int = 0
    #: A subgroup's lanes see each other's accesses to shared memory in program order; False if lanes progress
    #: independently, so that a barrier must stand between them.
    ordered_lanes: bool = True
    lane_words: bool = False  #: an instruction may broadcast the word of one lane to all lanes
    permutes: bool = False  #: one instruction moves a register between lanes, each reading any lane (`expr.FromLane`)
    split_barriers: bool = False  #: a barrier is two instructions: arrive and wait
    #: bytes; largest block message (a subgroup's registers, unchanged, at one address); 0 if the target has none
    block_bytes: int = 0
    #: bytes; largest alignment that messages need; a narrower message needs the alignment of its width
    message_alignment: int = 4
    grid_items: int = 0  #: work-items; most along an axis of the grid; 0 if a launch counts only workgroups
    chunk_bytes: int = 16  #: bytes; a lane's part of one write to shared memory and of one part of a fragment

    def __repr__(self) -> str:
        return f"<facts of {self.name}>"

    @property
    def checks_bounds(self) -> bool:
        """Return whether the hardware drops accesses outside a surface, so that copies need no masks at buffer ends."""
        return not self.flat

    @property
    def tiles_as_fragments(self) -> bool:
        """Return whether shared tiles are stored in fragment order: block messages then move registers unchanged."""
        return self.block_bytes > 0

    @property
    def shared_factors(self) -> bool:
        """Return whether matrix instructions read factors from shared memory."""
        return any(atom.in_shared for atom in self.atoms)

    @property
    def surface_direct(self) -> bool:
        """Whether direct copies take surfaces."""
        return self.checks_bounds and bool(self.direct_widths)

    @property
    def flat_direct(self) -> bool:
        """Whether direct copies take flat addresses."""
        return self.flat and bool(self.direct_widths)

    def takes(self, kind: type[Stmt]) -> bool:
        """Return whether the target supports the statement: the field that `kind.needs` names is set."""
        return not kind.needs or bool(getattr(self, kind.needs))
