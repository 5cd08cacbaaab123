"""Which variables of a kernel are addresses of shared memory, and how often each variable is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from convgen.ir import stmt as st
from convgen.ir.expr import Expr, Var
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel

OWN = 0  #: step of accesses whose address is each lane's own


def occurrences(kernel: Kernel) -> Counter[Var]:
    """Return how often statements name each variable: an expression counts once for each place that it stands in."""
    return Counter(v for s in statements(kernel.body) for e in (*s.operands, *s.yields) for v in _named(e))


def _named(e: Expr) -> Iterator[Var]:
    if isinstance(e, Var):
        yield e
    for child in e.children():
        if isinstance(child, Expr):
            yield from _named(child)


def shared_addresses(kernel: Kernel) -> Mapping[Var, list[int]]:
    """Return the variables that are addresses of accesses to shared memory, each with the steps of these accesses.

    A step is the bytes that are added to the address for each lower lane; `OWN` where each lane has its address.
    """
    steps_of: dict[Var, list[int]] = {}
    for s in statements(kernel.body):
        match s:
            case st.SharedRead() | st.SharedWrite():
                address, step = s.address, OWN
            case st.FlatDirectLoad():
                address, step = s.place, s.width
            case _:
                continue
        if isinstance(address, Var) and step not in steps_of.setdefault(address, []):
            steps_of[address].append(step)
    return steps_of
