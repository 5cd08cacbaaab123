"""Order a loop's body around its matrix instructions, as if its iterations repeated without end.

Matrix instructions keep their order and are spread over an iteration, which takes as long as the busiest unit, or as
memory latency. Every other instruction gets a slot: as late as its users allow, also those of the next iteration; loads
from global memory go long before their use. Slots are preferences: the final order also obeys the dependences, so that
it is correct whatever the slots are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

import attrs

from convgen.backends.machine.barrier_accesses import Ahead
from convgen.backends.machine.dependences import dependences
from convgen.backends.machine.instruction import Instruction, Unit
from convgen.ir.record import define, frozen

#: Issue slots that an instruction keeps its unit busy, if all SIMDs that have a subgroup issue it.
Busy = Callable[[Instruction], int]

#: slots; loads from global memory go this far ahead of their use where they can: 1500 clocks. By `convgen profile`,
#: random problems that change take .975 (gfx942) and .983 (gfx950) of the time that they take with 1000 clocks; with
#: 2000 they take .982 and .991.
_AHEAD = 375
_LENGTHS_TRIED = 3  #: iteration lengths to try, each longer than the last by the longest wait for memory
_ARRIVAL_ROUNDS = 4  #: iterations of the arrival analysis, at most
_ESTIMATED_ITERATIONS = 3  #: iterations that the cost estimate runs through
#: slots; a shared-memory access goes this far ahead of a barrier that does not wait for it, so that the pipe is free
#: for the reads behind the barrier. By `convgen profile`, 4 is faster than 1, 8 or 20 (gradients of weights by 1 to 3
#: %).
_BARRIER_DISTANCE = 4
_QUEUE = 16  #: slots of work that a pipe queues before issue waits: 64 clocks, as in amdgpu/timing/unit.py
_MATRIX, _GLOBAL = Unit.MATRIX, Unit.GLOBAL  # looking up an attribute of an Enum takes as long as ten names
_PIPES = (Unit.SHARED, Unit.GLOBAL)  #: pipes that all SIMDs share


def steady(body: Sequence[Instruction], published: Ahead, busy: Busy, branch_instructions: int) -> list[Instruction]:
    """Return the body of a loop in its new order, without its last `branch_instructions`."""
    return _LoopOrder(body, published, busy, branch_instructions).order()


@define(eq=False)
class _Node:
    """An instruction with its dependences: node number -> latency."""

    instruction: Instruction
    unit: Unit
    busy: int
    latency: int
    before: dict[int, int] = attrs.Factory(dict)
    after: dict[int, int] = attrs.Factory(dict)
    earlier: dict[int, int] = attrs.Factory(dict)  #: predecessors in the previous iteration
    later: dict[int, int] = attrs.Factory(dict)  #: successors in the next iteration
    gaps: list[tuple[int, int]] = attrs.Factory(list)  #: successors, with the slots by which it goes ahead of them
    later_gaps: list[tuple[int, int]] = attrs.Factory(list)  #: successors in the next iteration, with those slots
    barrier: int | None = None  #: for a shared-memory access: the next barrier, if that does not wait for it
    awaited: list[int] = attrs.Factory(list)  #: predecessors that issue waits for
    all_awaited: list[int] = attrs.Factory(list)  #: predecessors of both iterations that issue waits for

    @classmethod
    def of(cls, i: Instruction, busy: Busy) -> _Node:
        return cls(i, i.op.unit, busy(i), i.op.latency)

    def find_waits(self) -> None:
        """Set the predecessors that issue waits for, and the gaps to users.

        A gap is the latency, plus the pipe's own work if the user waits for it.
        """
        self.awaited = [n for n, latency in self.before.items() if latency > 1]
        self.all_awaited = self.awaited + [n for n, latency in self.earlier.items() if latency > 1]
        self.gaps, self.later_gaps = self._ahead_of(self.after), self._ahead_of(self.later)

    def _ahead_of(self, users: Mapping[int, int]) -> list[tuple[int, int]]:
        """Return the slots by which it goes ahead of each of its users."""
        if self.unit not in _PIPES:
            return list(users.items())
        return [(n, latency + self.busy if latency > 1 else latency) for n, latency in users.items()]


class _FreeSlots:
    """The free slots of an iteration, as bit masks: of the issue port, and of the pipes that all SIMDs share."""

    def __init__(self, length: int, branch_instructions: int) -> None:
        self.all = (1 << length) - 1
        self.issue = self.all >> branch_instructions  # the last slots belong to the branch
        self.pipes = dict.fromkeys(_PIPES, self.all)

    def starts(self, node: _Node) -> int:
        """Return the slots in which an instruction may begin.

        At the end of an iteration its pipe works on into the next.
        """
        free = self.issue
        if (pipe := self.pipes.get(node.unit)) is not None:
            pipe |= ~self.all
            run = 1
            while run < node.busy:
                step = min(run, node.busy - run)
                pipe &= pipe >> step
                run += step
            free &= pipe
        return free

    def take(self, node: _Node, slot: int) -> None:
        self.issue &= ~(1 << slot)
        if node.unit in self.pipes:
            self.pipes[node.unit] &= ~(((1 << node.busy) - 1) << slot)


@frozen
class _Group:
    """Nodes that get their slots one after the other, users before their operands."""

    #: node -> nodes of the group that it depends on, or that stand ahead of it if it is a barrier
    before: dict[int, list[int]]
    waiting: dict[int, int]  #: node -> number of nodes of the group that list it in `before`

    @classmethod
    def of(cls, members: Collection[int], nodes: Sequence[_Node]) -> _Group:
        group = set(members)
        before = {n: [b for b in nodes[n].before if b in group] for n in members}
        waiting = {n: len(group.intersection(nodes[n].after)) for n in members}
        for n in members:
            barrier = nodes[n].barrier
            if barrier in group:
                before[barrier].append(n)
                waiting[n] += 1
        return cls(before, waiting)


class _LoopOrder:
    def __init__(self, body: Sequence[Instruction], published: Ahead, busy: Busy, branch_instructions: int) -> None:
        self.branch_instructions = branch_instructions
        self.nodes = [_Node.of(i, busy) for i in body]
        for n, carried, predecessors in dependences(body, published, iterations=2):
            node = self.nodes[n]
            if carried:
                node.earlier = predecessors
            else:
                node.before = predecessors
            for before, latency in predecessors.items():
                users = self.nodes[before].later if carried else self.nodes[before].after
                users[n] = latency
        self._find_free_barriers()
        for node in self.nodes:
            node.find_waits()
        self.products = [n for n, node in enumerate(self.nodes) if node.unit is _MATRIX]
        self.loads = [n for n, node in enumerate(self.nodes) if node.instruction.loads]
        self.reads = [{r.vreg for r in node.instruction.uses()} for node in self.nodes]
        self.users = {n: list(self._users(n)) for n in self.loads}
        self.feeding = self._feeding()
        kept = {*self.products, *self.loads, *self.feeding}
        others = [n for n in range(len(self.nodes)) if n not in kept]
        self.groups = _Group.of(others, self.nodes), _Group.of(self.feeding, self.nodes)
        self.length = 0
        self.soonest = [0] * len(self.nodes)  #: first slot in which a node's operands are ready
        self.slot = [-1] * len(self.nodes)  #: preferred slot; -1: none yet

    def _find_free_barriers(self) -> None:
        """Set, for each shared-memory access, the next barrier if that does not wait for it."""
        ahead: list[int] = []
        for n, node in enumerate(self.nodes):
            if node.unit is Unit.SHARED:
                ahead.append(n)
            elif node.instruction.op.barrier:
                for access in ahead:
                    if access not in node.before:
                        self.nodes[access].barrier = n
                ahead = []

    def _feeding(self) -> list[int]:
        """Return the nodes that are computed only for loads from global memory."""
        feeding = set(self.loads)
        for n in reversed(range(len(self.nodes))):
            users = list(self._users(n)) if self.nodes[n].unit in (Unit.VALU, Unit.SALU) else []
            if users and all(user in feeding for user in users):
                feeding.add(n)
        return sorted(feeding.difference(self.loads))

    def _users(self, n: int) -> Iterator[int]:
        """Yield the instructions that read a node's results, or the barriers that publish a copy to shared memory."""
        node, i = self.nodes[n], self.nodes[n].instruction
        registers = {r.vreg for r in i.defs()}
        flags = set() if registers else set(i.flag_defs())
        for user in (*node.after, *node.later):
            by = self.nodes[user].instruction
            published = by.barrier and i.origin is not None
            if (
                published
                or not registers.isdisjoint(self.reads[user])
                or (flags and flags.intersection(by.flag_uses()))
            ):
                yield user

    def order(self) -> list[Instruction]:
        """Return the fastest of the orders for a few iteration lengths."""
        tried = [self._order(passes=2)]  # a second pass, since the next iteration's first nodes were placed last
        while len(tried) < _LENGTHS_TRIED and (short := self._shortage()) > 0:
            self.length += short
            tried.append(self._order())
        best = min(reversed(tried), key=self._cost) if len(tried) > 1 else tried[0]
        return [self.nodes[n].instruction for n in best]

    def _order(self, passes: int = 1) -> list[int]:
        """Return the order for the current iteration length, starting from the previous slots."""
        self._place_products()
        self._find_soonest()
        for _ in range(passes):
            self._place()
        return self._sorted()

    def _cost(self, order: Sequence[int]) -> int:
        """Estimate the slots of an iteration in this order: instructions issue in order, pipes queue."""
        done = [0] * len(self.nodes)
        clock, begun = 0, 0
        free = dict.fromkeys((_MATRIX, *_PIPES), 0)
        for iteration in range(_ESTIMATED_ITERATIONS):
            begun = clock
            for n in order:
                node = self.nodes[n]
                clock += 1
                for b in node.all_awaited if iteration else node.awaited:
                    if clock < done[b]:
                        clock = done[b]
                unit, leaves = node.unit, clock
                if unit in free:
                    queue = 0 if unit is _MATRIX else _QUEUE
                    if clock < free[unit] - queue:
                        clock = free[unit] - queue
                    free[unit] = max(free[unit], clock) + node.busy
                    leaves = clock if unit is _MATRIX else free[unit]
                done[n] = leaves + node.latency
        return clock - begun

    # ------------------------------------------------------------ matrix instructions

    def _place_products(self) -> None:
        """Place the matrix instructions in an iteration that is at least as long as before."""
        matrix = sum(self.nodes[n].busy for n in self.products)
        pipes = [sum(node.busy for node in self.nodes if node.unit is unit) for unit in _PIPES]
        waits = sum(node.unit in _PIPES for node in self.nodes)
        length = max(self.length, matrix, *pipes, len(self.nodes) + waits + self.branch_instructions)
        free, soonest = dict.fromkeys((_MATRIX, *_PIPES), 0.0), self.soonest
        for n, node in enumerate(self.nodes):
            start: float = 0
            for b, latency in node.before.items():
                if start < soonest[b] + latency:
                    start = soonest[b] + latency
            if node.unit in free:
                start = max(start, free[node.unit])
                free[node.unit] = start + node.busy * (length / matrix if node.unit is _MATRIX else 1)
            soonest[n] = int(start)
        for n in self.products:
            self.slot[n] = soonest[n]
        self.length = max(length, int(free[_MATRIX]))

    def _shortage(self) -> int:
        """Return the longest wait for memory, in slots."""
        short = 0
        for node, slot in zip(self.nodes, self.slot):
            if node.unit in _PIPES:
                for users, begin in ((node.after, 0), (node.later, self.length)):
                    for n, latency in users.items():
                        if latency > 1 and slot + latency > self.slot[n] + begin + short:
                            short = slot + latency - self.slot[n] - begin
        return short

    # ------------------------------------------------------------ all others

    def _place(self) -> None:
        """Place all nodes except matrix instructions."""
        table = _FreeSlots(self.length, self.branch_instructions)
        for n in self.products:
            table.take(self.nodes[n], self.slot[n])
        others, feeding = self.groups
        self._place_late(others, table)
        self._place_loads(table)
        self._place_late(feeding, table)

    def _find_soonest(self) -> None:
        """Compute the first slot in which each node's operands are ready, if loads issue as early as they can."""
        all_soonest, length, loads = self.soonest, self.length, set(self.loads)
        for _ in range(_ARRIVAL_ROUNDS):
            known, free = list(all_soonest), 0
            for n, node in enumerate(self.nodes):
                if node.unit is _MATRIX:
                    continue
                soonest = free if n in loads else 0
                for before, latency in node.before.items():
                    if soonest < all_soonest[before] + latency:
                        soonest = all_soonest[before] + latency
                for before, latency in node.earlier.items():
                    if soonest < all_soonest[before] + latency - length:
                        soonest = all_soonest[before] + latency - length
                all_soonest[n] = soonest
                if n in loads:
                    free = soonest + node.busy
            if all_soonest == known:
                break

    def _place_late(self, group: _Group, table: _FreeSlots) -> None:
        """Place a group as late as possible without a wait: users first, nodes with the least freedom first."""
        for n in group.waiting:
            self.slot[n] = -1
        waiting = dict(group.waiting)
        ready = [self._choice(n) for n, count in waiting.items() if not count]
        heapify(ready)
        while ready:
            _, latest, number = heappop(ready)
            slot = self.slot[-number] = self._last_free(-number, -latest, table)
            table.take(self.nodes[-number], slot)
            for n in group.before[-number]:
                waiting[n] -= 1
                if not waiting[n]:
                    heappush(ready, self._choice(n))

    def _last_free(self, n: int, latest: int, table: _FreeSlots) -> int:
        """Return the last free slot up to `latest`, before the node's barrier if possible.

        An access that would have to go before its operands takes the next free slot after `latest` instead: other
        instructions issue during its wait.
        """
        node, slots = self.nodes[n], self.slot
        ahead = latest if node.barrier is None else min(latest, slots[node.barrier] - _BARRIER_DISTANCE)
        wish = max(0, ahead)
        slot = (table.starts(node) & ((1 << wish + 1) - 1)).bit_length() - 1
        if slot >= wish or (slot >= 0 and all(slots[b] < slot for b in node.before)):
            return slot
        wish = max(0, latest)
        free = table.issue >> wish << wish if node.unit in _PIPES else 0
        return (free & -free).bit_length() - 1 if free else wish

    def _choice(self, n: int) -> tuple[int, int, int]:
        """Return a node's freedom in slots, and its latest slot and number, both negated."""
        node, slots, length = self.nodes[n], self.slot, self.length
        latest = length - 1
        for user, gap in node.gaps:
            if 0 <= slots[user] < latest + gap:
                latest = slots[user] - gap
        for user, gap in node.later_gaps:
            if 0 <= slots[user] < latest + gap - length:
                latest = slots[user] - gap + length
        return latest - self.soonest[n], -latest, -n

    def _place_loads(self, table: _FreeSlots) -> None:
        """Place loads from global memory, in order, early enough to arrive before their use."""
        wishes: dict[int, int] = {}
        latest = self.length
        for n in reversed(self.loads):
            node = self.nodes[n]
            uses = [self.slot[u] + self.length * (u not in node.after) for u in self.users[n]]
            latest = min(latest - node.busy, min(uses, default=0) - _AHEAD)
            wishes[n] = latest
        for n in self.loads:
            node = self.nodes[n]
            wish = max(0, wishes[n], *(self.slot[b] for b in node.before))
            free = table.starts(node) & (table.all >> wish << wish)
            self.slot[n] = (free & -free).bit_length() - 1 if free else wish
            table.take(node, self.slot[n])

    # ------------------------------------------------------------ the order

    def _sorted(self) -> list[int]:
        """Return the nodes by slot, under the dependences: a node has no later slot than its successors."""
        slots = self.slot
        for n in reversed(range(len(self.nodes))):
            for user in self.nodes[n].after:
                if slots[user] < slots[n]:
                    slots[n] = slots[user]
        waiting = [len(node.before) for node in self.nodes]
        ready = [(slots[n], n) for n, count in enumerate(waiting) if not count]
        heapify(ready)
        out: list[int] = []
        while ready:
            n = heappop(ready)[1]
            out.append(n)
            for after in self.nodes[n].after:
                waiting[after] -= 1
                if not waiting[after]:
                    heappush(ready, (slots[after], after))
        return out
