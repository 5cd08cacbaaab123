"""The time of executed launches, from rounds of workgroups, cache misses and the chip's clock.

The model of a unit gives the clocks of a round of workgroups; `loop_times` turns them into a time, with constants
fitted to machine code of the chip and type if there are any, else with the nearest ones. No launch is faster than
filling its L2s and reading memory at the data sheet's rates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from convgen.backends import family as families
from convgen.backends import target as targets
from convgen.backends.family import Chip, Fits, chip_of, chips_of
from convgen.backends.timing import LaunchProfile, Machine
from convgen.ir.error import UserError, named
from convgen.ir.facts import Caches, TargetFacts
from convgen.ir.record import evolve, fields_of, frozen
from convgen.profile import constants
from convgen.profile.closed import Estimate, Terms
from convgen.profile.constants import Entry
from convgen.profile.loop_times import Loops, LoopsCopiedAhead, LoopsOfClosedForm
from convgen.run.prepared import Prepared

ROUNDS = 16  #: loop iterations, if all are equal, that are modelled one by one
_CODE = " code/"  #: in the names of kinds that were fitted to machine code
_BOUND_SHARE = 0.5  #: share of the time that a cause needs to be named as the bound: more than all others together


def chip_named(name: str | None, facts: TargetFacts) -> Chip:
    """Return the chip of that name, or the one that the target's facts describe. Raises UserError."""
    if name is None:
        return chip_of(facts.name, facts.compute_units)
    fitting = {chip.name: chip for chip in chips_of(facts.name)}
    if name not in fitting:
        raise UserError(f"given the chip {named(name, fitting)}, wanted one of {', '.join(fitting)} for {facts.name}")
    return fitting[name]


def constants_for(chip: Chip, element: str) -> tuple[Entry, Terms]:
    """Return the entry that suits code of a chip and input type best, and its constants with us as ticks.

    Entries of the chip come first, also those of types of equal rate; then those of other chips that run the same code,
    and of the family's others. Launch costs always come from tables that time kernels.
    """
    known = constants.known()
    kind, *launches = kinds_for(chip, element, known)
    entry = known[kind]
    if not launches:
        return entry, entry.terms
    scaled = {f.name: getattr(entry.terms, f.name) * _per_us(f.metadata["unit"], chip) for f in fields_of(Terms)}
    first, further = (known[kind].terms for kind in launches)
    launch_costs = {"clock": entry.terms.clock, "start": first.start, "other": further.other}
    return entry, evolve(entry.terms, **(scaled | launch_costs))


def kinds_for(chip: Chip, element: str, known: Mapping[str, Entry]) -> tuple[str, ...]:
    """Return the known kind that suits a chip and type best; two more, of its launches, where its ticks are clocks."""
    fits = _fits(chip)
    wanted = _kinds(chip, fits.types.get(element, element), fits.makers)
    best = next(kind for start in wanted for kind in known if kind == start or kind.startswith(f"{start}_out_"))
    return (best, *(fits.launches[best.split("/")[1]] if known[best].source.startswith(fits.in_clocks) else ()))


def _per_us(unit: str, chip: Chip) -> float:
    """Return the factor from a unit in which ticks are clocks to one in which they are us."""
    if unit == "ticks":
        return 1 / chip.clock
    return float(chip.clock) if unit.endswith("/tick") else 1.0


def _fits(chip: Chip) -> Fits:
    """Return which constants suit the code of a chip's family. Raises UserError for a family without any."""
    family = families.of_target(chip.target)
    if family is None or family.fits is None:
        raise UserError(f"given the chip {chip.name}, wanted one with constants of the time model")
    return family.fits


def _kinds(chip: Chip, element: str, makers: Sequence[str]) -> Iterator[str]:
    family = families.of_target(chip.target)
    same_code = chips_of(chip.target)
    others = [c for c in same_code if c.name != chip.name]
    others += [c for c in (family.chips if family else ()) if c not in same_code]
    rate = chip.rates.get(element)
    types = [element, *(t for t, other in chip.rates.items() if other == rate and t != element)]
    for each in (chip, *others):
        for maker in makers:
            yield from (f"{maker}/{each.name}/{t}" for t in types)
        yield from (f"{maker}/{each.name}" for maker in makers)


@frozen(eq=False)
class LaunchTime:
    """The time of a launch, in us."""

    profile: LaunchProfile
    entry: Entry  #: the constants
    start: float
    kernel: float  #: all workgroups, and the write-back after them
    reduction: float  #: of split-K slices
    clock: float  #: MHz
    used: float  #: share of the chip's matrix units at work while it runs
    causes: Mapping[str, float]  #: us that each cause takes alone; a unit's causes are those of the busiest unit

    @property
    def total(self) -> float:
        return self.start + self.kernel + self.reduction

    @property
    def bound(self) -> str:
        """Return the largest cause; `latency` if no cause takes half of the time."""
        cause = max(self.causes, key=lambda name: self.causes[name])
        return cause if self.causes[cause] >= _BOUND_SHARE * self.total else "latency"


@frozen(eq=False)
class Times:
    """The times of launches that run in sequence."""

    chip: Chip
    launches: tuple[LaunchTime, ...]
    macs: int = 0  #: multiply-accumulates of the problem; 0 where it is not known

    @property
    def total(self) -> float:
        """Return us."""
        return sum(time.total for time in self.launches)

    @property
    def longest(self) -> LaunchTime:
        """Return the launch with the largest time."""
        return max(self.launches, key=lambda time: time.total)


def profile(given: Prepared, chip: str | None = None, latency: float | None = None, rounds: int = ROUNDS) -> Times:
    """Return the times of launches on a chip, by default the one that the target's facts describe.

    `latency` is that of vector memory in clocks, by default the family's. Of equal iterations of a loop, `rounds` are
    modelled one by one.

    Raises UserError, Unsupported.
    """
    timer = targets.timer(given.content, given.name)
    target = targets.get(timer.architecture(given.content))
    facts, latency = target.facts, latency or target.family.load_latency
    chip_used = chip_named(chip, facts)
    sizes = facts.caches.l2_bytes, facts.caches.memory_side_bytes, facts.caches.line_bytes
    machine = Machine(facts.name, chip_used.units, chip_used.partitions, *sizes)
    profiles = [
        timer.profile_launch(given.content, request, given.buffers, machine, latency, rounds)
        for request in given.requests
    ]
    times = tuple(time_of(each, chip_used, facts.caches, further=n > 0) for n, each in enumerate(profiles))
    return Times(chip_used, times, given.macs)


def time_of(launch: LaunchProfile, chip: Chip, caches: Caches, *, further: bool = False) -> LaunchTime:
    """Return the time of one launch; a `further` launch, which follows others, has another start cost."""
    return timed(launch, chip, caches, *constants_for(chip, launch.element), further=further)


def timed(
    launch: LaunchProfile, chip: Chip, caches: Caches, entry: Entry, terms: Terms, *, further: bool = False
) -> LaunchTime:
    """Return the time of one launch by given constants, whose ticks are us."""
    estimates = _loops(launch, _form(chip, entry)).estimate(chip, terms)
    estimate = {f.name: float(getattr(estimates, f.name)[0]) for f in fields_of(Estimate)}
    clock, moved = estimate["clock"], launch.moved
    start = terms.other if further else terms.start
    fill = moved.fill / (caches.fill_rate * chip.partitions / caches.dies) / chip.clock
    rate = caches.memory_rate * chip.clock if chip.memory is None else chip.memory
    memory = max(estimate["memory"], (moved.memory + moved.stored) / rate)
    kernel = max(estimate["total"] - estimate["start"] - estimate["reduction"], fill, memory)
    busiest = launch.work.busiest / launch.work.mean  # in average workgroups
    operands = busiest * moved.brought / launch.workgroups / terms.operands / clock
    causes = {name: clocks / clock for name, clocks in _busy(launch).items()}
    causes |= {"l2": max(operands, fill), "memory": memory, "write back": estimate["written_back"], "launch": start}
    # the busiest unit's matrix share, times the work of an average unit over that of the busiest
    used = estimate["matrix"] / estimate["kernel"] * launch.workgroups / (busiest * chip.units)
    return LaunchTime(launch, entry, start, kernel, estimate["reduction"], clock, used, causes)


def _form(chip: Chip, entry: Entry) -> type[Loops]:
    """Return the form of the model that an entry's constants were fitted by."""
    if _fits(chip).copies_ahead:
        return LoopsCopiedAhead
    return Loops if _CODE in entry.kind else LoopsOfClosedForm


def _busy(launch: LaunchProfile) -> dict[str, float]:
    """Return the clocks for which each pipe of the busiest unit works.

    `units` profiles workgroups that all have the most work; `share` scales that to the unit's actual work.
    """
    full, last = launch.units[launch.full].busy, launch.units.get(launch.last)
    whole = {pipe: launch.rounds * each + (last.busy[pipe] if last else 0.0) for pipe, each in full.items()}
    return {pipe: launch.share * clocks for pipe, clocks in whole.items()}


def _loops(launch: LaunchProfile, kind: type[Loops]) -> Loops:
    """Return the launch as the time model takes it; without a loop the whole kernel is one iteration."""
    one, full = launch.units[1], launch.units[launch.full]
    last = launch.units[launch.last or launch.full]
    iterations, mean = one.iterations, launch.work.mean
    moved, groups = launch.moved, launch.workgroups
    numbers = {
        "groups": groups,
        "iterations": iterations * mean,
        "uneven": launch.share / mean,
        "resident": launch.full,
        **{f"{what}_full": clocks for what, clocks in full.pace(iterations)._asdict().items()},
        **{f"{what}_last": clocks for what, clocks in last.pace(iterations)._asdict().items()},
        "matrix": one.busy["matrix"] / iterations,
        "operands": max(1.0, moved.brought / groups / (iterations * mean)),
        "bytes_in": moved.memory,
        "bytes_out": moved.stored,
        "added": launch.added,
        **dict.fromkeys(("others", "other_groups", "other_read", "other_written"), 0),
    }
    return kind(**{name: np.array([float(value)]) for name, value in numbers.items()})
