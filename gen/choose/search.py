"""Search the ranking for a config that fits: a refusal rules out similar configs, and a count ends the search.

The search counts steps and measures no time, so that it takes the same config on every machine. When the count runs
out, it ends with the last resort, which fits every problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf

from convgen.backends.tuning import tuning
from convgen.choose.choose import Candidate, Ranking
from convgen.ir.error import BOTH_FILES, DoesNotFit, Unsupported
from convgen.ir.facts import TargetFacts
from convgen.ir.record import evolve
from convgen.plan.config import Config, LanePart
from convgen.plan.plan import Plan, accumulator_registers, make_plan, vector_registers
from convgen.problem.matmul import Problem

MOST_SEEN = 1024  #: candidates that are examined, those of ruled-out kinds included
MOST_PLANS = 128  #: plans that do not fit; each takes about 10 ms
#: plans with equal `_words_of_loads` and paths into shared memory that do not fit, after which the rest is ruled out
MOST_ALIKE = 32
MOST_OF_PATH = 64  #: as `MOST_ALIKE`, with any instruction
MOST_KERNELS = 6  #: kernels that the back end refuses; each takes as long as one that it accepts
#: refused kernels after which the back end must accept the next one by any means, such as keeping the order as written
AT_ANY_COST = 3

#: Limits on estimated registers after a kernel was refused for want of them, as parts of that kernel's registers beyond
#: those that every kernel has: after the first such refusal, the second, and all others. The estimate was wrong once,
#: and may be wrong for similar configs.
_REGISTER_LIMITS = (7 / 8, 3 / 4, 1 / 2)
#: least share of those registers that accumulators must have, for a retry with accumulators in their own file
_LEAST_ACCUMULATORS = 1 / 4
_VECTOR_BANKS = ("v", "a")  #: values of `DoesNotFit.short_of`: register files whose use the plan estimates

OnRefusal = Callable[[Candidate, DoesNotFit], object]


class Search:
    """A walk through candidates, best first; it calls `refused` for each candidate whose plan does not fit."""

    def __init__(
        self, problem: Problem, ranking: Ranking, facts: TargetFacts, refused: OnRefusal = lambda candidate, error: None
    ) -> None:
        self.problem, self.ranking, self.facts, self.refused = problem, ranking, facts, refused
        self.place = 0  #: place of the next candidate in the ranking
        self.seen = self.plans = self.kernels = 0  #: candidates examined, plans and kernels refused
        self.most_registers = inf  #: vector registers of a lane; the most that the next config may take
        self.most_in_files = inf  #: registers of a lane in both files; the most that the next config may take
        self.least_shared_bytes = inf  #: bytes of shared memory; configs with as many or more are ruled out
        self.register_refusals = 0  #: kernels that were refused for want of registers
        self.ruled_out_loads: set[tuple[object, ...]] = set()  #: see `_words_of_loads`
        self.alike: Counter[tuple[object, ...]] = Counter()  #: plans that do not fit, by `_words_of_loads` and `copy`
        self.of_path: Counter[tuple[object, ...]] = Counter()  #: as `alike`, with any instruction
        #: by `_words_of_k`: the least sums of an instruction with which configs with these words are ruled out
        self.ruled_out_sums: dict[tuple[str, str], int] = {}
        self.retries: list[Candidate] = []  #: candidates to try before the next one of the ranking
        self.last_refusal: DoesNotFit | None = None  #: the last refusal of a plan

    @property
    def at_any_cost(self) -> bool:
        """Whether the back end must accept the next kernel by any means."""
        return self.kernels >= AT_ANY_COST

    def next(self) -> tuple[Candidate, Plan] | None:
        """Return the next candidate that is not ruled out and whose plan fits, and the plan; None at the end."""
        while (candidate := self._next()) is not None:
            if candidate.score < inf and self._is_ruled_out(candidate.config):
                continue
            try:
                plan = make_plan(self.problem, candidate.config, self.facts)
            except DoesNotFit as error:
                self.plans, self.last_refusal = self.plans + 1, error
                words = _words_of_loads(candidate.config)
                self.alike[words, candidate.config.copy] += 1
                self.of_path[words[1:], candidate.config.copy] += 1
                if error.short_of:  # a refusal that applies to these words, whatever the tile
                    self.ruled_out_loads.add(words)
                self.refused(candidate, error)
                continue
            if candidate.score < inf and (why := self._too_large(plan)):
                self.plans += 1
                self.refused(candidate, DoesNotFit(why))
                continue
            return candidate, plan
        return None

    def none_fits(self) -> Unsupported:
        """Return the problem's refusal after `next` has returned None, with the reason against the last resort."""
        given = f"given {self.problem}, wanted a problem for which a config fits {self.facts.name}"
        return Unsupported(f"{given}: {self.last_refusal}", rule="search")

    def learn(self, candidate: Candidate, plan: Plan, why: DoesNotFit) -> None:
        """Rule out configs that the back end would probably refuse for the reason `why` of this plan's kernel.

        Lack of vector registers rules out configs with nearly as many; this one is retried with accumulators in their
        own file if that helps. If the subgroups of a SIMD have too few registers, those of both files count, so no file
        helps. Lack of shared memory rules out configs with as much. Lack of scalars or flags rules out configs with
        equal `_words_of_k` and as many sums an instruction, the second time all with these words.
        """
        self.kernels += 1
        fixed = tuning(self.facts).other_registers
        limit = _REGISTER_LIMITS[min(self.register_refusals, len(_REGISTER_LIMITS) - 1)]
        self.register_refusals += why.short_of in (*_VECTOR_BANKS, BOTH_FILES)
        if why.short_of == BOTH_FILES:
            self.most_in_files = min(self.most_in_files, fixed + limit * (plan.registers - fixed))
        elif why.short_of in _VECTOR_BANKS:
            variable = vector_registers(plan) - fixed
            self.most_registers = min(self.most_registers, fixed + limit * variable)
            movable = accumulator_registers(plan) if self.facts.accumulators and plan.config.acc == "v" else 0
            if movable >= _LEAST_ACCUMULATORS * variable:
                self.retries.append(evolve(candidate, config=evolve(plan.config, acc="a")))
        elif why.short_of == "shared":
            self.least_shared_bytes = min(self.least_shared_bytes, plan.shared_bytes)
        else:
            words = _words_of_k(plan.config)
            is_second = words in self.ruled_out_sums
            self.ruled_out_sums[words] = 0 if is_second else _sums(plan.config)

    def end(self) -> None:
        """Leave only the last resort."""
        self.kernels = max(self.kernels, MOST_KERNELS)

    def _next(self) -> Candidate | None:
        """Return the next candidate with few enough registers; the last one when the count has run out."""
        ends = self.seen >= MOST_SEEN or self.plans >= MOST_PLANS or self.kernels >= MOST_KERNELS
        if self.retries and not ends:
            return self.retries.pop()
        last = len(self.ranking) - 1
        at = last if ends and self.place <= last else self.ranking.place_from(self.place, self.most_registers)
        self.place, self.seen = at + 1, self.seen + 1
        return self.ranking[at] if at <= last else None

    def _is_ruled_out(self, config: Config) -> bool:
        words = _words_of_loads(config)
        if words in self.ruled_out_loads or self.alike[words, config.copy] >= MOST_ALIKE:
            return True
        if self.of_path[words[1:], config.copy] >= MOST_OF_PATH:
            return True
        return _sums(config) >= self.ruled_out_sums.get(_words_of_k(config), inf)

    def _too_large(self, plan: Plan) -> str:
        """Return why a kernel would be refused as an earlier one was; empty if it may fit."""
        if (registers := vector_registers(plan)) > self.most_registers:
            return f"about {registers} registers: a config of about as many did not fit"
        if plan.registers > self.most_in_files:
            return f"about {plan.registers} registers in both files: a config of about as many did not fit"
        if plan.shared_bytes >= self.least_shared_bytes:
            return f"{plan.shared_bytes} bytes of shared memory: a config of as many did not fit"
        return ""


def _words_of_loads(config: Config) -> tuple[object, ...]:
    """Return the words of a config that decide which elements lanes load, whatever the tile; the first is `mma`."""
    return config.mma, config.taps, config.packed, config.reorder, config.phases, config.grids, config.types


def _words_of_k(config: Config) -> tuple[str, str]:
    """Return the words that say how K is cut: with an instruction's sums they decide a kernel's scalars and flags.

    Most scalars and flags are needed to recompute sums without padding, one instruction's rows and columns at a time,
    whatever the tile.
    """
    return config.taps, config.phases


def _sums(config: Config) -> int:
    """Return the sums of one matrix instruction, or of a lane that multiplies by itself."""
    return config.mma.size if isinstance(config.mma, LanePart) else config.mma[0] * config.mma[1]


def first_fitting(problem: Problem, ranking: Ranking, facts: TargetFacts) -> tuple[Candidate, Plan] | None:
    """Return the first candidate whose plan fits, and the plan, or None."""
    return Search(problem, ranking, facts).next()
