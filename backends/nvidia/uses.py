"""Uses of a kernel's variables: how often each is named, and which are addresses of shared memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from convgen.ir import stmt as st
from convgen.ir.expr import Var
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel

OWN = 0  #: in place of a stride: each lane computes its own address


def occurrences(kernel: Kernel) -> Counter[Var]:
    """Return how often statements name each variable: an expression counts once for each place that it stands in."""
    counts = Counter[Var]()
    named = [e for s in statements(kernel.body) for e in (*s.operands, *s.yields)]
    for e in named:  # the list grows during the loop
        if isinstance(e, Var):
            counts[e] += 1
        elif e.child_fields:
            named += e.children()
    return counts


def shared_addresses(kernel: Kernel) -> Mapping[Var, list[int]]:
    """Return the variables that are addresses of accesses to shared memory, each with the strides of these accesses.

    A stride is the distance between neighbouring lanes in bytes, if the address is that of lane 0; else `OWN`.
    """
    strides_of: dict[Var, list[int]] = {}
    for s in statements(kernel.body):
        match s:
            case st.SharedRead() | st.SharedWrite():
                address, stride = s.address, OWN
            case st.FlatDirectLoad():
                address, stride = s.place, s.width
            case _:
                continue
        if isinstance(address, Var) and stride not in strides_of.setdefault(address, []):
            strides_of[address].append(stride)
    return strides_of
