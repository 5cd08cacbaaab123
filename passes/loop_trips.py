"""Which iterations a pipelined loop loads, stores and multiplies: distances of stages, and trip counts.

`buffer_shared` builds the loops.
"""

from __future__ import annotations

from collections.abc import Container
from math import gcd, lcm
from typing import Any

from convgen.ir.expr import Const, Expr, Lt, Mul, const, maximum, minimum
from convgen.ir.record import evolve, frozen
from convgen.ir.sizes import Extent
from convgen.ir.stmt import For

LEAST_SLOTS = 2  #: slots that let a block be copied while another is multiplied
CIRCULAR = -1  #: `Distances.late` of a circular loop: copies follow the products that read their slot


def runs_late(slots: Any) -> Any:
    """Return whether so many slots let products read one while the next iteration begins; a number or an array."""
    return slots > LEAST_SLOTS


def is_loop(count: Any, loads: Any, round: Any) -> Any:
    """Return whether `count` iterations form a loop, given the distance of `loads` and the length of a round.

    Arguments may be numbers or arrays. Fewer than two rounds are fully unrolled; iterations that may be peeled before
    the loop do not count.
    """
    return (count - -loads % _power(round) - loads) // round > 1


def _power(round: Any) -> Any:
    """Return the largest power of two that divides a round."""
    return round & -round


@frozen
class Distances:
    """The distances, in iterations, at which the stages of copies precede the multiplication of their block."""

    slots: int
    in_flight: tuple[int, ...]  #: blocks of each copy in flight in registers
    run: int  #: blocks that share masks and address terms, such as the blocks of one filter tap; 0 if all blocks do
    late: int = 0  #: iterations later than its own in which a product may still read its slot

    @property
    def stores(self) -> int:
        """Return the distance of stores, and of direct copies."""
        return self.slots - 1 - self.late

    @property
    def loads(self) -> int:
        """Return the greatest distance of any copy's loads."""
        return self.stores + max(self.in_flight)

    @property
    def round(self) -> int:
        """Return the iterations after which slots and registers repeat."""
        return lcm(self.slots, *(max(1, blocks) for blocks in self.in_flight))

    def early(self, count: int) -> int:
        """Return the iterations to peel before a loop of `count`: for the most rounds, then for few peeled behind it.

        The loads of a round begin at the first block of a run, or at a power-of-two part of one, so that a round
        touches as few runs as possible.
        """
        together = gcd(_power(self.round), self.run) if self.run else 1
        aligned = range(-self.loads % together, self.round, together)
        return max(aligned, key=lambda early: (self.rounds(count - early), early))

    def rounds(self, count: int) -> int:
        """Return the whole rounds of `count` iterations in which every stage has work."""
        return max(0, count - self.loads) // self.round

    def within(self, count: int) -> Distances:
        """Return distances no greater than `count` iterations allow."""
        slots = min(self.slots, count)
        in_flight = tuple(min(blocks, count - slots + 1) for blocks in self.in_flight)
        return evolve(self, slots=slots, in_flight=in_flight, late=min(self.late, max(0, slots - LEAST_SLOTS)))


@frozen
class Trips:
    """The iterations of a pipelined loop: peeled ones, rounds of the main loop, then peeled or single-trip ones."""

    distances: Distances
    first: tuple[Expr, ...]  #: indices; blocks loaded before the main loop
    counter: tuple[Expr, Expr] | None  #: bounds of the main loop's counter, if there is one
    begin: Extent  #: index of the first iteration of the main loop's round 0
    early: tuple[tuple[Expr, int], ...]  #: indices and slots of the iterations peeled before the main loop
    rest: tuple[tuple[Expr, int], ...]  #: indices and slots of the iterations peeled behind the main loop
    #: iterations of a partial round: each with its index and its trip count, 0 or 1
    remainder: tuple[tuple[Expr, Expr], ...] = ()


def trips_of(loop: For, distances: Distances, known: Container[Expr]) -> Trips:
    """Return the trips of a loop that is unrolled by rounds; `known` has the conditions that hold where it stands."""
    if isinstance(loop.begin, Const) and isinstance(loop.end, Const):
        return _constant_trips(loop.begin.bits, loop.end.bits, distances)
    begin, end = (_rounds(bound, distances.round) for bound in (loop.begin, loop.end))
    first = tuple(loop.begin + i for i in range(distances.loads))
    if begin is None or end is None or Lt(begin, end) not in known:
        return _any_trips(loop, distances, first)
    rest = tuple((loop.end + (i - distances.round), i % distances.slots) for i in range(distances.round))
    return Trips(distances, first, (begin, end - 1), 0, (), rest)


def open_trips(loop: For, distances: Distances) -> Trips:
    """Return the trips of a circular loop: only the blocks that fill the slots before it are told apart."""
    first = tuple(loop.begin + i for i in range(distances.loads))
    return Trips(distances, first, None, 0, (), ())


def _any_trips(loop: For, distances: Distances, first: tuple[Expr, ...]) -> Trips:
    """Return the trips of a loop with an arbitrary trip count, perhaps 0."""
    count = maximum(loop.end - loop.begin, 0)
    rounds = count // distances.round
    remaining = count - rounds * distances.round
    remainder = tuple(
        ((loop.begin + i) + rounds * distances.round, minimum(maximum(remaining - i, 0), 1))
        for i in range(distances.round - 1)
    )
    return Trips(distances, first, (const(0), rounds), loop.begin, (), (), remainder)


def _constant_trips(begin: int, end: int, distances: Distances) -> Trips:
    """Return the trips of a loop with constant bounds: unrolled if short, else a main loop and peeled iterations."""
    count = end - begin
    distances = distances.within(count)
    loops = is_loop(count, distances.loads, distances.round)
    early = distances.early(count) if loops else 0
    rounds = distances.rounds(count - early)
    done = early + rounds * distances.round if loops else 0
    first = tuple(const(begin + i) for i in range(distances.loads))
    peeled = tuple((const(begin + i), i % distances.slots) for i in range(count))
    counter = (const(0), const(rounds)) if loops else None
    return Trips(distances, first, counter, begin + early, peeled[:early], peeled[done:])


def _rounds(bound: Expr, each: int) -> Expr | None:
    """Return a bound in rounds of `each` iterations; None if it is not known to be a multiple."""
    match bound:
        case Const(_, bits) if bits % each == 0:
            return const(bits // each)
        case Mul(a, Const(_, bits)) if bits == each:
            return a
    return bound if each == 1 else None
