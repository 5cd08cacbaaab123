"""Numbers by which the chooser ranks configs of a target. They are tuned, not measured: `bench/tuning.py` repeats each.

`bench/tuning.py TARGET NAME VALUE ...` draws problems, chooses a config with each value, and reports how many problems
get another config and how long the chosen configs take by the time model.
"""

from __future__ import annotations

from math import inf

from convgen.ir.facts import TargetFacts
from convgen.ir.record import frozen


@frozen(cache_hash=True, kw_only=True)
class Tuning:
    """What is worth a try on a target, and what its chooser takes things to cost."""

    # ------------------------------------------------------------ what is worth a try

    grids: tuple[tuple[int, int, int], ...]  #: subgroups; along M, N and K of a workgroup
    #: slots of shared memory and stages of registers before them, 0 where whole chunks come without registers; the
    #: first wins ties
    pipelines: tuple[tuple[int, int], ...] = ((2, 1), (3, 1), (1, 1))
    meetings: tuple[int, ...] = ()  #: slices that are added at a time, where the last workgroup to arrive adds them up
    turned_rows: tuple[int, ...] = ()  #: bytes; K of tiles where lanes transpose both operands
    byte_rows: tuple[int, ...] = ()  #: bytes; K of tiles of 8-bit elements, beside what every target tries
    subtiles: tuple[int, ...] = (1,)  #: parts; cuts along M of a subgroup's tile

    # ------------------------------------------------------------ registers of a lane, estimated

    #: sets of a block's fragments; on average where they are read when they are needed, and where a loop reads the next
    #: ones meanwhile
    fragment_sets: tuple[float, float]
    mask_registers: float  #: registers; of each masked load of a block
    other_registers: int  #: registers; addresses and temporaries
    tap_registers: int = 0  #: registers; of fragments of taps that are read ahead where one slot is written meanwhile

    # ------------------------------------------------------------ clocks of a block of K

    load_clocks: int = 0  #: clocks; least time of a subgroup's load on a core's path to global memory
    element_clocks: int = 0  #: clocks; least time of a load of one element a lane, where wider loads are impossible
    address_clocks: int = 1  #: clocks; least time of a load where lanes multiply what they load themselves
    #: bytes; rows of shared memory that transposing writes fill without bank conflicts. Shorter rows take as many times
    #: longer; 0 where they do not
    turned_row: int = 0
    crowded: float = 1.0  #: times that writes take where slots leave no room for the gaps that avoid bank conflicts
    message: int = 16  #: clocks; issue of a load with its mask and its share of the write to shared memory
    trim: float = 4.0  #: times `message`; of a message along K that is trimmed, since all SIMDs share the path
    trim_rows: float = 4.0  #: times `message`; of a trimmed message along rows, whose cuts differ from lane to lane
    barrier: int = 40  #: clocks; a barrier beyond the instructions around it
    block: int = 0  #: clocks; issue of a subgroup for a block of K beside its loads
    read: int = 0  #: clocks; issue of a read of fragments from shared memory
    turn: float = 0.0  #: clocks; issue for each register of an operand that is transposed on its way to shared memory
    load_latency: int = 800  #: clocks; from a global load to its data
    shared_latency: int = 128  #: clocks; from a write to shared memory to a read of it, where only one buffer is
    shared_exposed: float = 0.5  #: share of the clocks of shared memory that nothing hides, where only one buffer is
    exposed: float = 0.1  #: share of the clocks of all units that overlap does not hide
    others_hide: bool = False  #: two subgroups of a SIMD hide half of each other's exposed clocks, whatever they load
    hidden: float = 0.0  #: share of a workgroup's exposed clocks that each further workgroup of its unit hides

    # ------------------------------------------------------------ clocks of a launch

    tile: int = 4000  #: clocks; prologue, first loads and epilogue of a tile
    result_rate: float = inf  #: bytes a clock; at which a unit writes its workgroups' results one after the other
    launch: int = 10000  #: clocks; a further launch
    unit_rate: int = 27  #: bytes a clock; to one unit from beyond its cache (MIOpen's kernels on an MI300X: 24 to 31)
    stream_rate: int = 8  #: bytes a clock; one unit, from and to memory
    tail: float = 1.0  #: share of the clocks of all workgroups, were they spread evenly, beside the rounds
    dirty: int = 0  #: bytes; most of what a launch has written that the caches give back when it ends
    drain: int = 1  #: bytes a clock; at which they do


def tuning(facts: TargetFacts) -> Tuning:
    """The tuned numbers of a target. Raises TypeError for facts that have none."""
    if not isinstance(facts.tuning, Tuning):
        raise TypeError(f"{facts.name} has no tuning")
    return facts.tuning
