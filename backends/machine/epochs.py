"""What barriers are for: the accesses to shared memory that may follow each before the next one."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.backends.machine.instruction import Access, Function, Instruction

#: barrier -> the shared-memory accesses that may follow it before the next barrier
Ahead = Mapping[Instruction, Mapping[Access, None]]


def accesses_ahead(function: Function) -> Ahead:
    """A barrier publishes what other subgroups touch next: later accesses are the business of later barriers."""
    blocks = function.blocks
    upcoming: list[dict[Access, None]] = [{} for _ in blocks]
    ahead: dict[Instruction, dict[Access, None]] = {}
    changed = True
    while changed:
        changed = False
        for index in reversed(range(len(blocks))):
            now = {a: None for s in function.successors(index) for a in upcoming[s]}
            for i in reversed(blocks[index].instructions):
                if i.barrier:
                    ahead[i], now = now, {}
                elif i.access is not None and i.access.space == "shared" and not i.access.private:
                    now[i.access] = None
            if now.keys() != upcoming[index].keys():
                upcoming[index], changed = now, True
    return ahead
