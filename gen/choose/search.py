"""The search for a config that fits: what one refusal says of other configs, and where the search ends.

Every step is counted, none is timed, so that all machines take the same config. When the count runs out, the search
ends with the last resort, which fits every problem.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from convgen.backends.tuning import tuning
from convgen.choose.choose import Candidate, Ranking
from convgen.ir.error import DoesNotFit, Unsupported
from convgen.ir.facts import TargetFacts
from convgen.ir.record import evolve
from convgen.plan.config import Config, Own
from convgen.plan.plan import Plan, accumulator_registers, make_plan, vector_registers
from convgen.problem.matmul import Problem

MOST_SEEN = 1024  #: candidates that are looked at, those of kinds that are ruled out included
MOST_PLANS = 128  #: plans that do not fit; each takes 10 ms or so
MOST_KERNELS = 6  #: kernels that the back end refuses; each takes as long as one that it accepts
AT_ANY_COST = 3  #: such kernels behind which it shall accept the next one by any means, in the order as written, say

#: Of the registers of a config that was refused for want of them, beside those that every kernel has, the part that the
#: next one may take by the estimate: behind the first such refusal, the second and all others. The estimate was wrong
#: once, and may be for its neighbours.
_PARTS = (7 / 8, 3 / 4, 1 / 2)
_APART = 1 / 4  #: of those registers, which accumulators have at least that go to a file of their own in a next try
_VECTORS = ("v", "a")  #: banks whose words the plan estimates

Told = Callable[[Candidate, DoesNotFit], object]


class Search:
    """A way through candidates, best first; `refused` is told of those whose plan does not fit."""

    def __init__(
        self,
        problem: Problem,
        ranking: Ranking,
        facts: TargetFacts,
        refused: Told = lambda candidate, error: None,
    ) -> None:
        self.problem, self.ranking, self.facts, self.refused = problem, ranking, facts, refused
        self.place = 0  #: of the next candidate
        self.seen = self.plans = self.kernels = 0
        self.registers = inf  #: vector registers; from which on configs are ruled out
        self.shared_bytes = inf  #: bytes of shared memory; likewise
        self.short_of_registers = 0  #: kernels that were
        self.kinds: set[tuple[object, ...]] = set()  #: kinds of configs that are ruled out
        self.sums: dict[tuple[str, str], int] = {}  #: of an instruction, from which on they are, by how K is cut
        self.first: list[Candidate] = []  #: that come before the next one of the ranking
        self.why: DoesNotFit | None = None  #: the last refusal of a plan

    @property
    def at_any_cost(self) -> bool:
        """Whether the back end shall accept the next kernel by any means."""
        return self.kernels >= AT_ANY_COST

    def next(self) -> tuple[Candidate, Plan] | None:
        """The next candidate that fits by its plan and is not ruled out, with the plan; None behind the last one."""
        while (candidate := self._next()) is not None:
            if candidate.score < inf and self._is_ruled_out(candidate.config):
                continue
            try:
                plan = make_plan(self.problem, candidate.config, self.facts)
            except DoesNotFit as error:
                self.plans, self.why = self.plans + 1, error
                if error.short_of:  # by one of its kind, whatever its tile
                    self.kinds.add(_kind(candidate.config))
                self.refused(candidate, error)
                continue
            if candidate.score < inf and (why := self._too_large(plan)):
                self.plans += 1
                self.refused(candidate, DoesNotFit(why))
                continue
            return candidate, plan
        return None

    def none_fits(self) -> Unsupported:
        """Return the refusal of the problem where `next` has found nothing, with the reason of the last resort's."""
        given = f"given {self.problem}, wanted a problem of which a config fits {self.facts.name}"
        return Unsupported(f"{given}: {self.why}", rule="search")

    def learn(self, candidate: Candidate, plan: Plan, why: DoesNotFit) -> None:
        """Rule out what the back end would refuse for the same reason as the kernel of this plan."""
        self.kernels += 1
        if why.short_of in _VECTORS:
            part = _PARTS[min(self.short_of_registers, len(_PARTS) - 1)]
            self.short_of_registers += 1
            others = tuning(self.facts).other_registers
            self.registers = min(self.registers, others + part * (vector_registers(plan) - others))
            apart = accumulator_registers(plan) if self.facts.accumulators and plan.config.acc == "v" else 0
            if apart >= _APART * (vector_registers(plan) - others):
                self.first.append(evolve(candidate, config=evolve(plan.config, acc="a")))
        elif why.short_of == "shared":
            self.shared_bytes = min(self.shared_bytes, plan.shared_bytes)
        else:
            cut = _cut(plan.config)
            self.sums[cut] = 0 if cut in self.sums else _sums(plan.config)

    def end(self) -> None:
        """Leave only the last resort."""
        self.kernels = max(self.kernels, MOST_KERNELS)

    def _next(self) -> Candidate | None:
        """The next candidate that has few enough registers; the last one when the count has run out."""
        ends = self.seen >= MOST_SEEN or self.plans >= MOST_PLANS or self.kernels >= MOST_KERNELS
        if self.first and not ends:
            return self.first.pop()
        last = len(self.ranking) - 1
        at = last if ends and self.place <= last else self.ranking.place_from(self.place, self.registers)
        self.place, self.seen = at + 1, self.seen + 1
        return self.ranking[at] if at <= last else None

    def _is_ruled_out(self, config: Config) -> bool:
        return _kind(config) in self.kinds or _sums(config) >= self.sums.get(_cut(config), inf)

    def _too_large(self, plan: Plan) -> str:
        """Why a kernel would be refused as another was; empty if it may fit."""
        if (registers := vector_registers(plan)) > self.registers:
            return f"about {registers} registers: a config of about as many did not fit"
        if plan.shared_bytes >= self.shared_bytes:
            return f"{plan.shared_bytes} bytes of shared memory: a config of as many did not fit"
        return ""


def _kind(config: Config) -> tuple[object, ...]:
    """Return the words of a config that decide which elements lanes load, whatever the tile."""
    return config.mma, config.taps, config.packed, config.reorder, config.phases, config.grids, config.types


def _cut(config: Config) -> tuple[str, str]:
    """How K is cut: what decides, with the sums of an instruction, how many scalars and flags a kernel takes, whatever
    its tile. Most of them are for sums made again without padding, one instruction's rows and columns at a time.
    """
    return config.taps, config.phases


def _sums(config: Config) -> int:
    """Sums of one matrix instruction, or of a lane that multiplies by itself."""
    return config.mma.size if isinstance(config.mma, Own) else config.mma[0] * config.mma[1]


def first_fitting(
    problem: Problem, ranking: Ranking, facts: TargetFacts, refused: Told = lambda candidate, error: None
) -> tuple[Candidate, Plan] | None:
    """The first candidate that fits by its plan, with the plan, or None; `refused` is told of those before."""
    return Search(problem, ranking, facts, refused).next()
