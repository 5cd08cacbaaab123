"""The shared-memory accesses that each barrier orders: those that may follow it before the next barrier."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.backends.machine.instruction import Access, Function, Instruction

#: barrier -> the shared-memory accesses that may follow it before the next barrier
Ahead = Mapping[Instruction, Mapping[Access, None]]


def accesses_ahead(function: Function) -> Ahead:
    """Return, for each barrier, the shared-memory accesses that may follow before the next one.

    A barrier publishes the data that other subgroups touch next; later accesses belong to later barriers.
    """
    concerned = [
        [i for i in block.instructions if i.op.barrier or _is_seen(i.access) or _is_seen(i.also)]
        for block in function.blocks
    ]
    successors = [function.successors(index) for index in range(len(concerned))]
    upcoming: list[dict[Access, None]] = [{} for _ in concerned]
    ahead: dict[Instruction, dict[Access, None]] = {}
    changed = True
    while changed:
        changed = False
        for index in reversed(range(len(concerned))):
            now = {a: None for s in successors[index] for a in upcoming[s]}
            for i in reversed(concerned[index]):
                if i.op.barrier:
                    ahead[i], now = now, {}
                else:
                    now |= {a: None for a in (i.access, i.also) if a is not None}
            if now.keys() != upcoming[index].keys():
                upcoming[index], changed = now, True
    return ahead


def _is_seen(access: Access | None) -> bool:
    """Return whether an access may conflict with accesses of other subgroups."""
    return access is not None and access.space == "shared" and not access.private
