"""Candidate configs, best first by their modelled clocks; the last one always fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from math import lcm
from typing import overload

import attrs
import numpy as np

from convgen.backends.tuning import tuning
from convgen.choose import lane_configs
from convgen.choose.clocks import Clocks, Table, of_config, ranked
from convgen.choose.offers import offers, reorders
from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.record import frozen
from convgen.ir.types import scalar
from convgen.plan.atoms import converted, input_atoms
from convgen.plan.config import Config
from convgen.plan.copies import comes_out_even
from convgen.plan.epilogues import grouped_sides
from convgen.plan.plan import Plan, make_plan
from convgen.plan.registers import Numbers
from convgen.plan.variants.variant import TILE_K
from convgen.plan.views import factor_types, must_reorder
from convgen.problem.matmul import Problem

_SIDES = (8, 16, 32, 64)  #: sides of the last resort's tile


@frozen
class Candidate:
    """A config with its score (clocks of all launches, less is better), and the parts of one product's clocks."""

    score: float
    config: Config
    clocks: Clocks | None = attrs.field(default=None, eq=False, repr=False)  #: None for the last resort

    @property
    def together(self) -> int:
        """Return the workgroups that run together on a unit."""
        return self.clocks.together if self.clocks else 1


@frozen(eq=False)
class Ranking(Sequence[Candidate]):
    """Candidates, best first; each is created when it is asked for."""

    tables: Sequence[Table]
    others: Sequence[Candidate]  #: candidates that no table has
    order: Numbers  #: candidate numbers in ranked order; rows of all tables are numbered first, then `others`
    scores: Numbers  #: clocks, by candidate number
    registers: Numbers  #: vector registers of a lane, by candidate number; 0 where no table has an estimate

    @classmethod
    def of(cls, tables: Sequence[tuple[Table, float]], others: Sequence[Candidate]) -> Ranking:
        """Rank tables, each with clocks to add to its scores; on ties the shallowest pipeline wins, then the first."""
        scores = np.concatenate([*(table.scores + extra for table, extra in tables), [c.score for c in others]])
        zeros = np.zeros(len(others))
        depths = np.concatenate([*(table.depths for table, _ in tables), zeros])
        registers = np.concatenate([*(table.registers for table, _ in tables), zeros])
        return cls([table for table, _ in tables], others, np.lexsort((depths, scores)), scores, registers)

    def place_from(self, place: int, registers: float) -> int:
        """Return the first place from `place` on whose candidate has at most `registers` estimated vector registers."""
        fits = self.registers[self.order[place:]] <= registers
        return place + int(fits.argmax()) if fits.any() else len(self)

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, place: int) -> Candidate: ...

    @overload
    def __getitem__(self, place: slice) -> list[Candidate]: ...

    def __getitem__(self, place: int | slice) -> Candidate | list[Candidate]:
        if isinstance(place, slice):
            return [self[n] for n in range(*place.indices(len(self)))]
        number = row = int(self.order[place])
        for table in self.tables:
            if row < len(table.rows):
                return Candidate(self.scores[number].item(), table.config(row), table.clocks(row))
            row -= len(table.rows)
        return self.others[row]


def candidates(problem: Problem, facts: TargetFacts) -> Ranking:
    """Return all configs worth trying, best first, ending in one that always fits."""
    atoms, group_sizes = input_atoms(problem, facts), _group_sizes(problem, facts)
    tables = [
        (table, clocks + offer.before)
        for reorder, clocks in reorders(problem, facts)
        for offer in offers(problem, facts, reorder)
        for table in ranked(offer, filter(offer.suits, atoms), facts, reorder, group_sizes)
    ]
    by_lanes = [
        Candidate(clocks, config) for clocks, config in lane_configs.configs(problem, facts, must_reorder(problem))
    ]
    resort = last_resort(problem, atoms, facts, must_reorder(problem))
    return Ranking.of(tables, [*by_lanes, Candidate(float("inf"), resort)])


def _group_sizes(problem: Problem, facts: TargetFacts) -> tuple[int, ...]:
    """Return the group sizes worth trying for `sum=last:COUNT`; none where slices are reduced by atomic additions."""
    acc = scalar(problem.acc_type)
    adds = scalar(problem.outputs[0].dtype) is acc and (acc.is_int or not problem.deterministic)
    return tuning(facts).at_a_time if facts.tickets and not adds else ()


def fitting(
    problem: Problem, ranked_candidates: Iterable[Candidate], facts: TargetFacts
) -> Iterator[tuple[Candidate, Plan]]:
    """Yield the candidates whose plans fit, in order, with their plans."""
    for candidate in ranked_candidates:
        with suppress(DoesNotFit):
            yield candidate, make_plan(problem, candidate.config, facts)


def clocks_of(problem: Problem, config: Config, facts: TargetFacts) -> Clocks | None:
    """Return the parts of a config's clocks for the largest product; None where no offer has the config."""
    for offer in offers(problem, facts, config.reorder):
        for atom in input_atoms(problem, facts):
            is_named = (atom.n, atom.m, atom.k) == config.mma and offer.suits(atom)
            if is_named and offer.has(config) and offer.types(atom) == config.types:
                return of_config(offer, config, atom, facts)
    return None


def last_resort(problem: Problem, atoms: list[MmaAtom], facts: TargetFacts, reorder: tuple[str, ...]) -> Config:
    """Return the config with the fewest resources: the smallest square tile that one instruction's subgroups divide.

    It is longer along the side on which groups of the result share a computed scale.
    """
    atom = min((a for a in atoms if not a.scales), key=lambda a: (a.spans, a.n, a.k))
    k = max(TILE_K[0], atom.k)
    side = next(s for s in _SIDES if _divides_evenly(s, k, atom, facts))
    tile_m, tile_n = (lcm(side, group) for group in grouped_sides(problem))
    types = converted(factor_types(problem), atom)
    return Config(
        (tile_m, tile_n, k), (1, atom.spans), (atom.n, atom.m, atom.k), 1, "split", "v", reorder=reorder, types=types
    )


def _divides_evenly(side: int, k: int, atom: MmaAtom, facts: TargetFacts) -> bool:
    even = comes_out_even(side, k, atom.elem_bytes, facts, atom.spans)
    return even and side % atom.n == 0 and side % atom.m == 0
