"""Zero-fill masked loads when they are stored, by a store of zeros, instead of by moves at the load.

A masked load first zeroes its registers, one clock for each. If only stores to shared memory use the loaded value,
these store the lanes that were loaded, and zeros in all others. The mask travels with the value, also from one
iteration to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from convgen.ir import stmt as st
from convgen.ir.expr import Expr, Var, var
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import Mutator, postorder, statements
from convgen.ir.program import Kernel
from convgen.ir.record import define, evolve
from convgen.ir.simplify.variable_ranges import exits_of
from convgen.ir.types import bool_
from convgen.passes.messages.masks import TRUE

_LEAST = 128  #: bits of a lane; chosen: zeroing fewer registers takes no longer than the additional store


def fill_stores(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Skip zero-filling of masked loads that feed only stores to shared memory; these stores write the zeros."""
    if not facts.flat:
        return kernel
    inside = statements(kernel.body)
    if not any(_may_fill(s) and s.mask is not TRUE for s in inside):
        return kernel
    masks = _Masks(kernel.body, inside)
    return evolve(kernel, body=_Filler(masks)(kernel.body)) if masks.partial else kernel


def _may_fill(s: st.Stmt) -> TypeGuard[st.FlatLoad]:
    """Return whether stores of a load's value may fill in its zeros."""
    return type(s) is st.FlatLoad and s.var.type.bits >= _LEAST


#: A variable that a loop carries, its initial value, its next value and the loop's result.
_Group = tuple[Var, Var, Var, Var]


def _groups(inside: Sequence[st.Stmt]) -> Iterator[_Group]:
    """Yield the groups of variables that loops without exits carry: an exit passes values, but no masks."""
    for s in inside:
        if isinstance(s, st.For) and not any(exits_of(s.body)):
            for carried, first, following, last in zip(s.carried, s.inits, s.yields, s.results):
                if isinstance(first, Var) and isinstance(following, Var):
                    yield carried, first, following, last


@define(eq=False)
class _Carried:
    """Variables for a mask that a loop carries, inside the loop and behind it, and its initial and next values."""

    within: Var
    behind: Var
    masks: tuple[Expr, Expr] | None = None  #: initial and next mask; None while they are being computed
    is_needed: bool = False  #: whether computing the masks needed this variable

    @property
    def is_always_true(self) -> bool:
        """Return whether the mask is always true, so that no variable is needed."""
        return self.masks == (TRUE, TRUE) and not self.is_needed


class _Masks:
    """Values that loads may leave partly undefined, and the mask of lanes in which each exists."""

    def __init__(self, body: st.Stmt, inside: Sequence[st.Stmt]) -> None:
        self.loads = {s.var: s for s in inside if _may_fill(s)}
        self.loops = {v: (s, n) for s in inside if isinstance(s, st.For) for n, v in enumerate(s.carried)}
        self.results = {s.results[n]: v for v, (s, n) in self.loops.items()}
        self.known = self._only_stored(body, inside)
        self.partial = {v for v, s in self.loads.items() if v in self.known and s.mask is not TRUE}
        self.carried: dict[Var, _Carried] = {}
        self.alike: dict[tuple[st.For, tuple[Expr, Expr]], _Carried] = {}

    def _only_stored(self, body: st.Stmt, inside: Sequence[st.Stmt]) -> set[Var]:
        """Return the loaded values that are only stored to shared memory or carried by loops."""
        groups = list(_groups(inside))
        uses = Counter(e for node in postorder(body) for e in node.of_kind("Expr") if isinstance(e, Var))
        uses.subtract(s.value for s in set(inside) if type(s) is st.SharedWrite and isinstance(s.value, Var))
        uses.subtract(e for _, first, following, _ in groups for e in (first, following))
        known = {v for v in (*self.loads, *(v for c, _, _, last in groups for v in (c, last))) if not uses[v]}
        while torn := [group for group in groups if not known.issuperset(group) and not known.isdisjoint(group)]:
            known.difference_update(*torn)
        return known

    def of(self, value: Expr) -> Expr:
        """Return the mask of lanes in which a value exists."""
        assert isinstance(value, Var)
        if value in self.loads:
            return self.loads[value].mask
        carried = self._carried(value if value in self.loops else self.results[value])
        if carried.is_always_true:
            return TRUE
        return carried.within if value in self.loops else carried.behind

    def _carried(self, v: Var) -> _Carried:
        """Return the mask of a carried value; values with equal masks share one."""
        known = self.carried.get(v)
        if known is None:
            loop, n = self.loops[v]
            name = f"{v.name}_exists"
            known = self.carried[v] = _Carried(var(name, bool_), var(name, bool_))
            known.masks = self.of(loop.inits[n]), self.of(loop.yields[n])
            if not known.is_needed:
                known = self.carried[v] = self.alike.setdefault((loop, known.masks), known)
        elif known.masks is None:
            known.is_needed = True
        return known

    def masks_to_carry(self, loop: st.For) -> list[_Carried]:
        """Return the masks that a loop must carry."""
        found = dict.fromkeys(self._carried(v) for v in loop.carried if v in self.known)
        return [each for each in found if not each.is_always_true]


class _Filler(Mutator):
    def __init__(self, masks: _Masks) -> None:
        super().__init__()
        self.masks = masks

    def FlatLoad(self, s: st.FlatLoad) -> st.Stmt:
        partial = s.var in self.masks.partial
        return st.PartialLoad(s.var, s.buffer, s.address, s.mask, s.site) if partial else s

    def SharedWrite(self, s: st.SharedWrite) -> st.Stmt:
        mask = self.masks.of(s.value) if s.value in self.masks.known else TRUE
        return s if mask is TRUE else st.FilledWrite(s.tile, s.address, s.imm, s.value, s.site, mask)

    def For(self, s: st.For) -> st.Stmt:
        new = self.descend(s)
        for carried in self.masks.masks_to_carry(s):
            assert carried.masks is not None
            first, following = carried.masks
            new = evolve(
                new,
                carried=(*new.carried, carried.within),
                inits=(*new.inits, first),
                yields=(*new.yields, following),
                results=(*new.results, carried.behind),
            )
        return new
