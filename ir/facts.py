"""Numbers and capabilities of a target, by which passes and plans know it; they never ask for its name."""

from __future__ import annotations

from itertools import chain
from math import inf

import attrs

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
    """A compute unit, as whoever ranks configs counts its clocks."""

    simds: int
    simd_registers: int  #: registers; vector registers of a lane for all subgroups that are resident on a SIMD
    register_granule: int  #: registers; allocation unit of a subgroup
    shared_rate: int  #: bytes a clock; into shared memory
    shared_read_rate: int  #: bytes a clock; from shared memory, by its widest reads
    global_rate: int  #: bytes a clock; global memory
    load_clocks: int = 0  #: clocks; of a core's path to global memory, that a load of a subgroup takes at least
    element_clocks: int = 0  #: clocks; the same of one that brings a lane one element, wider ones are not to be had
    address_clocks: int = 1  #: clocks; the same, where lanes multiply what they load themselves
    global_granule: int = 1  #: bytes; of which each contiguous run of a load brings whole ones
    grids: tuple[tuple[int, int, int], ...]  #: subgroups; along M, N and K of workgroups worth a try
    #: slots of shared memory and stages of registers before them, 0 where whole chunks come without registers, that are
    #: worth a try; the first wins ties
    pipelines: tuple[tuple[int, int], ...] = ((2, 1), (3, 1), (1, 1))
    meetings: tuple[int, ...] = ()  #: slices worth a try to meet at a time, where the last to arrive adds them up
    turned_rows: tuple[int, ...] = ()  #: bytes; K of tiles worth a try where lanes turn both operands, likewise
    byte_rows: tuple[int, ...] = ()  #: bytes; K of tiles of 8-bit elements worth a try beside what every target tries
    subtiles: tuple[int, ...] = (1,)  #: parts; cuts along M of a subgroup's tile worth a try
    #: bytes; rows of shared memory of which what is turned on its way is written without conflicts of banks; shorter
    #: ones take as many times longer. 0 where that is not reckoned
    turned_row: int = 0
    #: times that writes take where slots leave no room for gaps between their blocks, which keep them free of conflicts
    crowded: float = 1.0
    reorders: bool = True  #: whether instructions move among matrix instructions, or stay in the order of statements
    #: sets of a block's fragments; that a lane holds on average where they are read when they are needed, and where a
    #: loop reads the next ones meanwhile
    fragment_sets: tuple[float, float]
    mask_registers: float  #: registers; that each masked load of a block takes
    other_registers: int  #: registers; addresses and temporaries of a lane
    tap_registers: int = 0  #: registers; of fragments of taps that are read ahead where one slot is written meanwhile


@frozen(cache_hash=True, kw_only=True)
class Costs:
    """Costs in the chooser's model of a launch, beside the rates of `Core`.

    All values are assumed: chosen so that rankings come out well, measured nowhere. A target may have others.
    """

    tile: int = 4000  #: clocks; prologue, first loads and epilogue of a tile
    #: bytes a clock; at which a unit writes the results of its workgroups one after the other, if that is reckoned
    result_rate: float = inf
    message: int = 16  #: clocks; issue of a load with its mask and its share of the write to shared memory
    #: times that issue, of a message along K that is trimmed: these bind, and all SIMDs' waves share the path
    trim: float = 4.0
    trim_rows: float = 4.0  #: the same of one along rows, whose cuts differ from lane to lane
    barrier: int = 40  #: clocks; a barrier beyond the instructions around it
    block: int = 0  #: clocks; issue of a subgroup for a block of K beside its loads
    read: int = 0  #: clocks; issue of a read of fragments from shared memory, if that is reckoned
    turn: float = 0.0  #: clocks; issue for a register of what is turned on its way to shared memory, likewise
    load_latency: int = 800  #: clocks; from a global load to its data
    shared_latency: int = 128  #: clocks; from a write to shared memory to what is read, where only one buffer is
    shared_exposed: float = 0.5  #: share of the clocks of shared memory that nothing hides, where only one buffer is
    exposed: float = 0.1  #: share of the clocks of all units that overlap does not hide
    others_hide: bool = False  #: whether two subgroups of a SIMD hide half of that of each other, whatever they load
    hidden: float = 0.0  #: share of what nothing hides of a workgroup that each further one of its unit does
    launch: int = 10000  #: clocks; a further launch
    unit_rate: int = (
        27  #: bytes a clock; to one unit from beyond its own cache (MIOpen's kernels on an MI300X: 24 to 31)
    )
    stream_rate: int = 8  #: bytes a clock; one unit, from and to memory
    tail: float = 1.0  #: share of the clocks of all workgroups, were they spread evenly, that counts beside the rounds
    dirty: int = 0  #: bytes; most of what a launch has written that the caches give back when it ends
    drain: int = 1  #: bytes a clock; at which they do


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

    Workgroup w runs on XCD `w % xcds`; the units of an XCD share an L2, all XCDs a memory-side cache if there is one.
    """

    xcds: int = 1
    unit_bytes: int = 0  #: bytes; of a unit's own cache where operands come through it, 0 where that is not reckoned
    l2_bytes: int  #: bytes; of one XCD
    memory_side_bytes: int = 0
    line_bytes: int  #: bytes; least that any of them fetches
    channels: int = 1  #: of an XCD's L2
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
    costs: Costs = attrs.Factory(Costs)
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
