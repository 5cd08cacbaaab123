"""Which variables of a kernel are addresses of shared memory, and how often each variable is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from convgen.ir import stmt as st
from convgen.ir.expr import Var
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel

OWN = 0  #: bytes from one lane's place to the next where lanes have addresses of their own


def use_counts(kernel: Kernel) -> Counter[Var]:
    """Return how often expressions name each variable, counting every statement that has them."""
    counts = Counter[Var]()
    named = [e for s in statements(kernel.body) for e in (*s.operands, *s.yields)]
    for e in named:  # the list grows during the loop
        if isinstance(e, Var):
            counts[e] += 1
        elif e.child_fields:
            named += e.children()
    return counts


def shared_addresses(kernel: Kernel) -> Mapping[Var, list[int]]:
    """Return the variables that are addresses of accesses to shared memory, each with the lanes' steps in bytes."""
    found: dict[Var, list[int]] = {}
    for s in statements(kernel.body):
        match s:
            case st.SharedRead() | st.SharedWrite():
                address, step = s.address, OWN
            case st.FlatDirectLoad():
                address, step = s.place, s.width
            case _:
                continue
        if isinstance(address, Var) and step not in found.setdefault(address, []):
            found[address].append(step)
    return found
