"""Machine code executed symbolically: every instruction is an uninterpreted function of all that it reads.

Two executions agree if each instruction, at each of its turns, reads the same terms in both.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

import attrs

from convgen.backends.machine.barrier_accesses import Ahead
from convgen.backends.machine.instruction import Access, Function, Instruction, Reg, VirtualRegister

Place = Hashable  #: of one word: a register's, a flag or a slot of memory
Term = int

#: The places of an operand's words, lowest first.
Home = Callable[[Reg], list[Place]]

SLOTS = (0, 1)


def virtual(r: Reg) -> list[Place]:
    """Words of virtual registers, each a place of its own."""
    return [(r.vreg.number, w) for w in range(r.first, r.first + r.count)]


def physical(base: Mapping[VirtualRegister, int]) -> Home:
    """Words of physical registers under an allocation."""
    return lambda r: [(r.bank, base[r.vreg] + w) for w in range(r.first, r.first + r.count)]


@attrs.define
class Machine:
    """Interned terms and what stands where; equal terms have equal numbers in all machines that share a table."""

    home: Home
    terms: dict[Hashable, Term]
    state: dict[Place, Term] = attrs.Factory(dict)
    #: what follows barriers, if those have to do with that only, and not with all of shared memory
    ahead: Ahead | None = None

    def number(self, term: Hashable) -> Term:
        return self.terms.setdefault(term, len(self.terms))

    def read(self, place: Place) -> Term:
        """What stands there; at first its own name (a machine may be told better by `state`)."""
        if place not in self.state:
            self.state[place] = self.number(("initial", place))
        return self.state[place]

    def memory(self, i: Instruction) -> Iterator[Place]:
        """The slots of memory that an instruction may touch; a barrier has to do with all shared ones."""
        if i.barrier and self.ahead is not None:
            yield from dict.fromkeys(p for access in self.ahead[i] for p in _places(access))
        elif i.barrier:
            yield from (("shared", region, slot) for region in ("a", "b") for slot in SLOTS)
        else:
            yield from dict.fromkeys(p for access in i.accesses for p in _places(access))

    def step(self, key: Hashable, i: Instruction) -> tuple[Term, ...]:
        """Execute an instruction that `key` names; returns what it read."""
        written = [p for r in i.defs() for p in self.home(r)]
        if i.early_clobber:  # the results are in their places before the last operand is read
            tied = {p for r in i.uses() for d in i.defs() if r.vreg is d.vreg for p in self.home(r)}
            for p in written:
                if p not in tied:
                    self.state[p] = self.number(("clobbered", key))
        places = [p for r in i.uses() for p in self.home(r)]
        places += [("flag", f) for f in i.flag_uses()]
        touched = list(self.memory(i))
        inputs = tuple(self.read(p) for p in (*places, *touched))
        results = [*written, *(("flag", f) for f in i.flag_defs())]
        if i.barrier and self.ahead is not None:
            results += [p for access in self.ahead[i] if access.write for p in _places(access)]
        elif i.barrier or (i.access is not None and i.access.write):
            results += touched
        for n, p in enumerate(results):
            self.state[p] = self.number((key, n, inputs))
        return inputs


def _places(access: Access) -> Iterator[Place]:
    """The slots of memory that an access may touch."""
    slots = SLOTS if access.slot < 0 else (access.slot,)
    yield from ((access.space, access.region, slot) for slot in slots)


def run(machine: Machine, path: Iterable[Instruction], keys: Mapping[int, Hashable]) -> list[tuple[Term, ...]]:
    """What each instruction of a path read; `keys` names instructions by identity."""
    return [machine.step(keys[id(i)], i) for i in path]


def path_of(function: Function, rounds: int = 3) -> list[Instruction]:
    """The instructions of a run that takes each backward branch `rounds - 1` times before it falls through."""
    labels = {b.label: n for n, b in enumerate(function.blocks)}
    out: list[Instruction] = []
    taken = [0] * len(function.blocks)
    at = 0
    while at < len(function.blocks):
        block = function.blocks[at]
        out += block.instructions
        target = block.instructions[-1].target if block.instructions else ""
        if target and taken[at] < rounds - 1:
            taken[at] += 1
            at = labels[target]
        else:
            taken[at] = 0
            at += 1
    return out
