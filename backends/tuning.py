"""Numbers by which the chooser ranks configs of a target. Each family's `tuning.py` says how its numbers were found.

`bench/tuning.py TARGET NAME VALUE ...` draws problems, chooses a config with each value, and reports how many problems
get another config and, for a family with a model of launches, how long the chosen configs take by it.
"""

from __future__ import annotations

from math import inf

from convgen.ir.facts import TargetFacts
from convgen.ir.record import frozen


@frozen(cache_hash=True, kw_only=True)
class Tuning:
    """The search space of a target's chooser, and the costs that it assumes."""

    # ------------------------------------------------------------ search space

    grids: tuple[tuple[int, int, int], ...]  #: subgroups of a workgroup along M, N and K
    #: slots of shared memory, and register stages before them (0 where whole K blocks come without registers); the
    #: first entry wins ties
    pipelines: tuple[tuple[int, int], ...] = ((2, 1), (3, 1), (1, 1))
    #: slots of shared memory that a role fills by bulk copies: of blocks of K, and of blocks with resident windows
    rings: tuple[int, ...] = ()
    resident_rings: tuple[int, ...] = ()
    #: values of `Config.at_a_time`: split-K slices that the last workgroup to arrive reduces together
    at_a_time: tuple[int, ...] = ()
    fills: int = 1  #: workgroups; most that slices of K give a CU or core
    slice_blocks: int = 16  #: blocks of K; fewest of a slice
    deep_rows: tuple[int, ...] = ()  #: bytes; further K extents of tiles
    columns: tuple[int, ...] = ()  #: elements; further N extents of tiles
    #: bytes; further K extents of tiles that matrix instructions read in place, with products in flight over a barrier
    long_rows: tuple[int, ...] = ()
    least_row: int = 0  #: bytes; least K extent of tiles worth trying
    subtiles: tuple[int, ...] = (1,)  #: parts into which a subgroup's tile is cut along M

    runs_of_pixels: bool = False  #: whether K is offered as long runs of pixels: `pixels=joined`, `taps=shifted`
    packs_images: bool = True  #: whether images are offered packed, for variants that read a row of pixels as one run
    #: bytes; widest part of a lane in loads and stores for which lanes exchange elements; 0: they exchange none
    exchanged_message: int = 0

    # ------------------------------------------------------------ registers of a lane, estimated

    #: sets of a K block's fragments, on average: where a loop reads them just in time, and where it reads the next ones
    #: ahead
    fragment_sets: tuple[float, float]
    mask_registers: float  #: registers; for each masked load of a K block
    other_registers: int  #: registers; addresses and temporaries
    #: factor on the registers of elements that a copy through registers has in flight: addresses and masks come on top.
    #: Only the ranking counts them: a given config is tried, since assemblers may spill
    registers_through_copy: float = 1.0
    tap_registers: int = 0  #: registers; fragments of taps that are read ahead while the only slot is written

    # ------------------------------------------------------------ clocks of a block of K

    load_clocks: int = 0  #: clocks; least time of a subgroup's load on a core's path to global memory
    narrow_clocks: int = 0  #: clocks; least time of a load of less than a chunk, if wider loads are impossible
    address_clocks: int = 1  #: clocks; least time of a load if lanes multiply what they load themselves
    #: bytes; shortest row of shared memory that transposing writes fill without bank conflicts; shorter rows take
    #: proportionally longer. 0: rows of any length are free of conflicts
    conflict_free_row: int = 0
    #: factor on the time of writes if there is no space for the padding that avoids bank conflicts
    unpadded: float = 1.0
    message: int = 16  #: clocks; issue of a load with its mask and its share of the write to shared memory
    masked: float = 0.0  #: times `message`; further issue of a message for each mask
    #: times `message`; issue of a message of a copy through registers (`registers_through_copy` counts its registers)
    issue_through_registers: float = 1.0
    #: times `message`; as `issue_through_registers`, for loads of one element, whose share of a write is smaller
    issue_of_elements: float = 1.0
    trim: float = 4.0  #: times `message`; a message that is trimmed along K, since all SIMDs share the path
    trim_rows: float = 4.0  #: times `message`; a message that is trimmed along rows, whose cuts differ between lanes
    barrier: int = 40  #: clocks; a barrier, without the instructions around it
    block: int = 0  #: clocks; issue of a subgroup for a K block, without its loads
    read: int = 0  #: clocks; issue of a read of fragments from shared memory
    #: clocks; issue for each register of an operand that is transposed before it is stored to shared memory
    transpose: float = 0.0
    #: factor on the clocks of matrix instructions that take fragments, on targets where others read shared memory
    fragment_products: float = 1.0
    vector_operation: float = 4.0  #: clocks; an operation of a subgroup on the vector unit; by default assumed
    cache_segment: int = 64  #: bytes; contiguous segment that the nearest cache returns at once; by default assumed
    load_latency: int = 800  #: clocks; from a global load to its data
    #: clocks; as `load_latency`, while all units load blocks of K; 0: as long
    busy_latency: int = 0
    shared_latency: int = 128  #: clocks; from a write to shared memory to a read of it, with a single buffer
    shared_exposed: float = 0.5  #: share of shared memory's clocks that nothing hides, with a single buffer
    exposed: float = 0.1  #: share of the clocks of all units that does not overlap
    #: whether two subgroups of a SIMD hide half of each other's exposed clocks, for every variant
    subgroups_overlap: bool = False
    hidden: float = 0.0  #: share of a workgroup's exposed clocks that each further workgroup of its CU or core hides
    hidden_by_issue: float = 0.0  #: as `hidden`, where the issue of instructions is the busiest unit
    #: whether the scheduler issues the loads of all blocks of straight-line code ahead
    hoists_loads: bool = True

    #: share of the bytes that matrix instructions read in place that counts against shared memory's rate
    in_place_reads: float = 1.0
    ring_block: int = 0  #: clocks; of a K block whose copies another role starts, in which no unit works
    ring_exposed: float = 0.0  #: as `exposed`, of a block whose copies another role starts, times the slots of the ring
    line_clocks: float = 0.0  #: clocks; a line of a bulk copy, of up to 128 bytes
    line_outside: float = 0.0  #: clocks; further ones of a line whose elements all lie outside of the tensor

    # ------------------------------------------------------------ clocks of a launch

    tile: int = 4000  #: clocks; prologue, first loads and epilogue of a tile
    operand_latency: int = 0  #: clocks; from loads of an epilogue's inputs to their data; 0: other workgroups hide it
    ring_tile: int = 0  #: clocks; a tile of a workgroup that takes several, whose copies another role starts
    #: bytes a clock; rate at which a CU or core writes the results of its workgroups in sequence
    result_rate: float = inf
    #: whether workgroups of a CU or core get out of step, so that one multiplies while another loads or writes
    staggered: bool = False
    launch: int = 10000  #: clocks; each launch after the first
    #: bytes a clock; to one CU or core from beyond its cache (MIOpen's kernels on an MI300X: 24 to 31)
    unit_rate: int = 27
    stream_rate: int = 8  #: bytes a clock; one CU or core, from and to memory
    #: share of the memory's rate that launches reach; 0: memory bounds no product, and lanes read it at `stream_rate`
    memory_share: float = 0.0
    #: share of all workgroups' clocks, spread evenly over the chip, that is added to whole rounds: less work wins ties
    tail: float = 1.0
    #: share of the clocks of memory in rows; an order of workgroups must be below it to pay for its address arithmetic
    order_worth: float = 0.98
    #: times as large as M's input; N's input from which on workgroups that share its columns follow each other, where
    #: all workgroups run at once
    much_larger: float = inf
    dirty: int = 0  #: bytes; upper limit of written data that caches write back when a launch ends
    drain: int = 1  #: bytes a clock; rate of that write-back

    @property
    def latency_of_blocks(self) -> int:
        """Return the clocks from a load of a block of K to its data."""
        return self.busy_latency or self.load_latency


def tuning(facts: TargetFacts) -> Tuning:
    """Return the tuned numbers of a target. Raises TypeError for facts that have none."""
    if not isinstance(facts.tuning, Tuning):
        raise TypeError(f"{facts.name} has no tuning")
    return facts.tuning
