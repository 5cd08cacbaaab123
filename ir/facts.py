"""Numbers and capabilities of a target, by which passes and plans know it; they never ask for its name."""

from __future__ import annotations

from itertools import chain
from typing import Any

from convgen.ir.layout.mma import BlockAtom, MmaAtom
from convgen.ir.record import frozen
from convgen.ir.rows import Stmt


@frozen(cache_hash=True)
class SharedPhases:
    """How a shared-memory access of one width is served: lane groups, one a cycle, over `banks` 4-byte banks."""

    banks: int
    phases: tuple[tuple[int, ...], ...]  #: lanes; the groups, in order

    def of_less(self, parts: int) -> SharedPhases:
        """Of accesses that are narrower by so many parts: as many groups go at once, where lanes go in their order."""
        groups = (self.phases[n : n + parts] for n in range(0, len(self.phases), parts))
        return SharedPhases(self.banks, tuple(tuple(chain.from_iterable(group)) for group in groups))


@frozen(cache_hash=True, kw_only=True)
class Core:
    """A compute unit: its registers, and the rates of its memories."""

    simds: int
    simd_registers: int  #: registers; vector registers of a lane for all subgroups that are resident on a SIMD
    simd_subgroups: int  #: subgroups; most that are resident on a SIMD
    register_granule: int  #: registers; allocation unit of a subgroup
    shared_rate: int  #: bytes a clock; into shared memory
    shared_read_rate: int  #: bytes a clock; from shared memory, by its widest reads
    global_rate: int  #: bytes a clock; global memory
    global_granule: int = 1  #: bytes; of which each contiguous run of a load brings whole ones
    reorders: bool = True  #: whether instructions move among matrix instructions, or stay in the order of statements


@frozen(cache_hash=True)
class Planes:
    """Limits of messages that move rectangles of planes."""

    pitch: int  #: bytes; granule of the pitch
    align: int  #: bytes; alignment of the base
    least: int  #: bytes; least width of a plane
    most: int  #: bytes; greatest width of a plane, above its pitch and height
    row: int  #: bytes; longest row of a rectangle
    turned: int  #: bytes; longest row of a rectangle that comes a row a lane
    loaded_rows: int  #: rows; most of a rectangle to load
    stored_rows: int  #: rows; most of a rectangle to store
    count: int  #: rectangles; side by side in one load
    registers: int  #: registers; most that one message fills


@frozen(cache_hash=True, kw_only=True)
class Caches:
    """What lies between compute units and memory, as whoever counts traffic needs it.

    Workgroup w runs on die `w % dies`; the units of a die share an L2, all dies a memory-side cache if there is one.
    """

    dies: int = 1
    unit_bytes: int = 0  #: bytes; of a unit's own cache where operands come through it, 0 where that is not reckoned
    l2_bytes: int  #: bytes; of one die
    memory_side_bytes: int = 0
    line_bytes: int  #: bytes; least that any of them fetches
    channels: int = 1  #: of a die's L2
    channel_bytes: int = 256  #: bytes in a row that lie in one channel
    store_rate: int  #: bytes a clock; into one channel
    result_rate: int  #: bytes a clock; of one unit that stores its result
    fill_rate: int  #: bytes a clock; into all L2s together
    memory_rate: int  #: bytes a clock; from memory

    @property
    def camp_bytes(self) -> int:
        """The pitch of rows that all begin in the same channel."""
        return self.channels * self.channel_bytes


@frozen(cache_hash=True, repr=False)
class TargetFacts:
    """Numbers and capabilities of one target; units in the names, sources in the target's table."""

    name: str
    subgroup_size: int
    max_subgroups: int  #: subgroups; most of a workgroup
    shared_bytes: int  #: bytes; most of a workgroup
    registers: int  #: registers; of a lane, as operands of the vector unit
    accumulators: int  #: registers; of a lane, in the separate file for accumulators
    compute_units: int
    global_widths: tuple[int, ...]  #: bytes; of a lane in one message, descending
    shared_widths: tuple[int, ...]  #: bytes; likewise
    global_imm_max: int  #: bytes; greatest immediate offset of a global message
    shared_imm_max: int  #: bytes; likewise
    surface_max: int  #: bytes; greatest extent of a surface, or span of 32-bit offsets from a flat address
    shared_read: SharedPhases  #: of the widest read
    shared_half_read: SharedPhases  #: of a read of half as much
    shared_write: SharedPhases
    fused: frozenset[str]  #: operations of the vector unit, names of `ir.fused.MEANING`
    atoms: tuple[MmaAtom, ...]
    core: Core
    caches: Caches
    tuning: Any = None  #: a `backends.tuning.Tuning`, by which configs are chosen; passes do not read it
    uniform_fused: frozenset[str] = frozenset()  #: of `fused`, those of the unit for values that all lanes share
    uniform_shifts: int = 0  #: places; that this unit shifts at most what it adds in one operation
    fused_imm_bits: int = 32  #: bits; of a constant operand of theirs, with its sign
    fused_signs: bool = False  #: operands of theirs may be negated: `0 - x`
    #: Types to which (and for 8 bits also from which) one instruction converts f32; f16 and bf16 by their pairs.
    conversions: tuple[str, ...] = ()
    #: Global messages take one 64-bit address a lane and a mask, instead of offsets into a surface with bounds.
    flat: bool = False
    planes: Planes | None = None  #: limits of messages with rectangles, whose bounds the hardware checks
    prefetch: bool = False  #: messages that bring memory nearer ahead of a load
    blocks: tuple[BlockAtom, ...] = ()  #: matrix instructions of which each block of lanes has a product of its own
    tickets: bool = False  #: order among subgroups of different workgroups (`stmt.Ticket`)
    #: bytes; of a lane in one message from global to shared memory that no register takes part in; none if empty
    direct_widths: tuple[int, ...] = ()
    #: of reads after which lanes turn little matrices (`stmt.TurnedRead`), 8 bytes a lane; None if there are none
    turned_reads: SharedPhases | None = None
    #: subgroups, 2k and 2k + 1 for two, that share an instruction pointer: what one branches on has one value in all of
    #: them, and their matrix instructions (`MmaAtom.spans`) may be used for it; 0 where each subgroup has its own
    lockstep: int = 0
    lane_words: bool = False  #: an instruction may read the word of one lane for all
    permutes: bool = False  #: one instruction moves a register between lanes, from any to any
    split_barriers: bool = False  #: arrival at a barrier and wait for the others as two instructions
    #: bytes; greatest block message: a subgroup's registers as they stand, at one address; 0 if there are none
    block_bytes: int = 0
    #: bytes; greatest alignment that messages need, each that of its width if it is narrower
    message_alignment: int = 4
    grid_items: int = 0  #: work-items; most along an axis of a grid, 0 where a launch counts workgroups only
    chunk_bytes: int = 16  #: bytes; of a lane in one write to shared memory, and in one part of a fragment

    def __repr__(self) -> str:
        return f"<facts of {self.name}>"

    @property
    def checks_bounds(self) -> bool:
        """The hardware drops what lies outside a surface, so that copies need no masks at the ends of buffers."""
        return not self.flat

    @property
    def tiles_as_fragments(self) -> bool:
        """Shared tiles stand in the order of fragments: block messages move a subgroup's registers as they are."""
        return self.block_bytes > 0

    def takes(self, kind: type[Stmt]) -> bool:
        """Whether the target has such statements: the field that they need says so."""
        return not kind.needs or bool(getattr(self, kind.needs))
