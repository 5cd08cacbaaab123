"""List scheduling of one basic block on virtual registers, loop-carried latencies included.

In order to hide latency, not registers: only blocks with matrix instructions are rescheduled; all others are address
arithmetic in program order. Memory accesses move only past accesses they cannot conflict with; a barrier keeps shared-
memory accesses on their side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

import attrs

from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Product, Unit, VirtualRegister

_QUEUED = 4  #: by how much sooner than counted the next read of shared memory can follow where products cover them
_MANY = 8  #: products of each sum in a block; of fewer, the operands of all come at about the same time


def schedule(function: Function) -> Function:
    """The function with the instructions of every block that holds matrix instructions in another order."""

    def body(index: int, block: BasicBlock) -> list[Instruction]:
        if not any(i.op.unit is Unit.MATRIX for i in block.instructions):
            return block.instructions
        return _Scheduler(block, loop=index in function.successors(index)).run()

    return function.rewritten(body)


@attrs.define(eq=False)
class _Node:
    instruction: Instruction
    order: int
    successors: dict[int, int] = attrs.field(factory=dict)  # node -> latency
    waiting: int = 0
    ready: int = 0  # first slot in which all operands are there
    height: int = 0  # slots from issue to the end of the block along the longest path


class _Scheduler:
    def __init__(self, block: BasicBlock, loop: bool) -> None:
        body = list(block.instructions)
        self.tail = list(_terminators(body))
        body = body[: len(body) - len(self.tail)]
        is_covered = loop and _is_covered(body, len(self.tail))
        covering = _put_behind_barrier(body, len(self.tail)) if is_covered else range(0)
        self.queues = bool(covering)
        self.nodes = [_Node(i, n) for n, i in enumerate(body)]
        self.matrix_slots = sum(n.instruction.op.busy for n in self.nodes if n.instruction.op.unit is Unit.MATRIX)
        self._edges()
        for n in covering:
            self._edge(covering.start - 1, n, 1)
        if covering:
            self._chain([n for n, node in enumerate(self.nodes) if node.instruction.op.unit is Unit.MATRIX])
        self._heights()
        if loop:
            self._late_inputs()
        else:
            self._take_turns()

    # ------------------------------------------------------------ dependences

    def _edges(self) -> None:
        registers = _RegisterHistory()
        flags: dict[str, list[int]] = {}
        accesses: list[int] = []
        for n, node in enumerate(self.nodes):
            i = node.instruction
            for before, kind in registers.dependences(n, i):
                latency = self.nodes[before].instruction.op.latency if kind == "raw" else 1
                self._edge(before, n, latency if kind == "raw" else 0 if kind == "war" else 1)
            for flag in dict.fromkeys((*i.flag_uses(), *i.flag_defs())):
                for before in flags.get(flag, ())[-1:]:
                    self._edge(before, n, 1)
                flags.setdefault(flag, []).append(n)
            if i.access or i.barrier or i.op.fence:
                for before in accesses:
                    earlier = self.nodes[before].instruction
                    if _ordered(earlier, i):
                        waits = i.barrier and earlier.op.unit is Unit.SHARED
                        self._edge(before, n, earlier.op.latency if waits else 1)
                accesses.append(n)

    def _edge(self, before: int, after: int, latency: int) -> None:
        known = self.nodes[before].successors.get(after)
        if known is None:
            self.nodes[after].waiting += 1
        self.nodes[before].successors[after] = max(latency, known or 0)

    def _heights(self) -> None:
        for node in reversed(self.nodes):
            rest = (latency + self.nodes[s].height for s, latency in node.successors.items())
            node.height = max(rest, default=0) or node.instruction.op.busy

    # ------------------------------------------------------------ sums one after the other

    def _take_turns(self) -> None:
        """Finish some sums before others where they are of many products and the work on them takes longer than these.

        Were all of them ready at the same time, none of that work would go on beside matrix instructions.
        """
        products = [n for n, node in enumerate(self.nodes) if node.instruction.op.unit is Unit.MATRIX]
        places = dict.fromkeys(r.vreg for n in products for r in self.nodes[n].instruction.defs())
        number = {sums: n for n, sums in enumerate(places)}
        turns = {n: max(number[r.vreg] for r in self.nodes[n].instruction.defs()) for n in products}
        for n, node in enumerate(self.nodes):  # what follows from sums has the turn of the last of them
            for s in node.successors if n in turns else ():
                turns.setdefault(s, turns[n])
                turns[s] = turns[s] if self.nodes[s].instruction.op.unit is Unit.MATRIX else max(turns[s], turns[n])
        behind = [op for op in (self.nodes[n].instruction.op for n in turns) if op.unit is Unit.VALU]
        if sum(op.busy for op in behind) <= self.matrix_slots or len(products) < _MANY * len(number):
            return
        for n in reversed(range(len(self.nodes))):  # what they are made of, that of the first
            if n not in turns:
                turns[n] = min((turns[s] for s in self.nodes[n].successors), default=len(number))
        self._chain(products)
        highest = max(node.height for node in self.nodes)
        for n, node in enumerate(self.nodes):  # global memory has a queue of its own
            node.height += (len(number) - (turns[n] if node.instruction.op.unit is not Unit.GLOBAL else 0)) * highest

    def _chain(self, products: Sequence[int]) -> None:
        """Let products that are added to the same sums follow one another as soon as the unit is free."""
        for n in products:
            node = self.nodes[n]
            sums = {r.vreg for r in node.instruction.defs()}
            for s in node.successors:
                after = self.nodes[s].instruction
                if after.op is node.instruction.op and sums == {r.vreg for r in after.defs()}:
                    node.successors[s] = after.op.busy

    def _late_inputs(self) -> None:
        """Results of the previous iteration's loads are there only that much later.

        A load stands where its program order puts it among the matrix instructions.
        """
        arrival: dict[VirtualRegister, int] = {}  # slot; in the steady state of the loop
        slot = 0
        for node in self.nodes:
            op = node.instruction.op
            slot += op.busy if op.unit is Unit.MATRIX else 0
            if op.unit is Unit.GLOBAL:
                arrival.update((r.vreg, slot + op.latency) for r in node.instruction.defs())
        defined: set[VirtualRegister] = set()
        for node in self.nodes:
            for r in node.instruction.uses():
                if r.vreg in arrival and r.vreg not in defined:
                    node.ready = max(node.ready, arrival[r.vreg] - self.matrix_slots)
            defined.update(r.vreg for r in node.instruction.defs())

    # ------------------------------------------------------------ issue

    def run(self) -> list[Instruction]:
        """The block in its new order. A slot takes, of what can start, matrix work first, then the most urgent."""
        out: list[Instruction] = []
        free = dict.fromkeys(Unit, 0)
        ready: dict[Unit, list[tuple[int, int]]] = {unit: [] for unit in Unit}  # (urgency, node), most urgent first
        waiting = [(node.ready, n) for n, node in enumerate(self.nodes) if not node.waiting]  # by time
        heapify(waiting)
        slot = 0
        while len(out) < len(self.nodes):
            while waiting and waiting[0][0] <= slot:
                n = heappop(waiting)[1]
                heappush(ready[self.nodes[n].instruction.op.unit], (self._urgency(n), n))
            able = [
                (unit is not Unit.MATRIX, queue[0], unit)
                for unit, queue in ready.items()
                if queue and free[unit] <= slot
            ]
            if not able:
                later = [free[unit] for unit, queue in ready.items() if queue] + [at for at, _ in waiting[:1]]
                slot = min(later)
                continue
            _, (_, n), unit = min(able, key=lambda choice: choice[:2])
            heappop(ready[unit])
            node = self.nodes[n]
            out.append(node.instruction)
            free[unit] = slot + self._busy(node.instruction)
            for s, latency in node.successors.items():
                after = self.nodes[s]
                after.ready = max(after.ready, slot + latency)
                after.waiting -= 1
                if not after.waiting:
                    heappush(waiting, (after.ready, s))
            slot += 1
        return out + self.tail

    def _busy(self, i: Instruction) -> int:
        """Slots until the unit takes the next instruction: reads of shared memory queue where products cover them."""
        reads = i.op.unit is Unit.SHARED and i.access is not None and not i.access.write
        return max(1, i.op.busy // _QUEUED) if self.queues and reads else i.op.busy

    def _urgency(self, n: int) -> int:
        """The longest path behind a node, negated; loads from global memory go ahead of all else of their time."""
        node = self.nodes[n]
        return -node.height - (self.matrix_slots if node.instruction.op.unit is Unit.GLOBAL else 0)


def _is_covered(body: Sequence[Instruction], others: int) -> bool:
    """Whether shared memory takes longer than matrix instructions that cover its reads, but the issue of all does not.

    With each access comes a wait, and there are `others` at the end.
    """
    products = [i.op for i in body if i.op.unit is Unit.MATRIX]
    accesses, slots = [i.op for i in body if i.access is not None], sum(op.busy for op in products)
    shared = sum(op.busy for op in accesses if op.unit is Unit.SHARED)
    covers = all(isinstance(op, Product) and op.covers for op in products)
    return covers and len(body) + len(accesses) + others <= slots < shared


def _put_behind_barrier(body: list[Instruction], others: int) -> range:
    """Put the last products behind the last barrier, as many as take the time to issue all that follows; their places.

    Between them and the end the next iteration's operands are read, for which the unit would wait otherwise.
    """
    barrier = max((n for n, i in enumerate(body) if i.barrier), default=0)
    following, moved = len(body) - barrier - 1 + others, 0
    for n in reversed([n for n, i in enumerate(body[:barrier]) if i.op.unit is Unit.MATRIX]):
        if moved * body[n].op.busy >= following or not _may_pass(body[n], body[n + 1 : barrier + 1]):
            break
        body.insert(barrier, body.pop(n))
        barrier, moved = barrier - 1, moved + 1
    return range(barrier + 1, barrier + 1 + moved)


def _may_pass(i: Instruction, others: Sequence[Instruction]) -> bool:
    """Whether registers let an instruction stand behind others that follow it."""
    made, read = {r.vreg for r in i.defs()}, {r.vreg for r in i.uses()}
    return not any(
        made & {r.vreg for r in (*other.uses(), *other.defs())} or read & {r.vreg for r in other.defs()}
        for other in others
    )


def _terminators(body: list[Instruction]) -> list[Instruction]:
    """The branch at the end with what sets its condition, or the end of the program."""
    last = body[-1] if body else None
    if last is None or not (last.target or last.op.ends):
        return []
    flags, registers = set(last.flag_uses()), {r.vreg for r in last.uses()}
    setters = [
        n for n, i in enumerate(body[:-1]) if flags & set(i.flag_defs()) or registers & {r.vreg for r in i.defs()}
    ]
    if last.op.ends or not setters:
        return body[-1:]
    first = setters[-1]
    counter = {r.vreg for r in body[first].uses()}
    while first and counter & {r.vreg for r in body[first - 1].defs()}:
        first -= 1
    return body[first:]


def _ordered(before: Instruction, after: Instruction) -> bool:
    """Whether two memory operations (or barriers) must keep their order."""
    if before.op.fence or after.op.fence:
        return True
    if before.barrier or after.barrier:
        other = after if before.barrier else before
        return other.barrier or any(a.space == "shared" for a in other.accesses)
    return any(a.conflicts(b) for a in before.accesses for b in after.accesses)


class _RegisterHistory:
    """Last writers and readers of each register tuple, by overlapping words."""

    def __init__(self) -> None:
        self._writes: dict[VirtualRegister, list[tuple[int, int, int]]] = {}
        self._reads: dict[VirtualRegister, list[tuple[int, int, int]]] = {}

    def dependences(self, n: int, i: Instruction) -> Iterator[tuple[int, str]]:
        """Earlier instructions that `i` (number n) must follow; then `i` becomes part of the history."""
        for r in i.uses():
            yield from (
                (w, "raw") for w, lo, hi in self._writes.get(r.vreg, ()) if lo < r.first + r.count and r.first < hi
            )
        for r in i.defs():
            lo, hi = r.first, r.first + r.count
            yield from ((w, "waw") for w, a, b in self._writes.get(r.vreg, ()) if a < hi and lo < b and w != n)
            yield from ((u, "war") for u, a, b in self._reads.get(r.vreg, ()) if a < hi and lo < b and u != n)
        for r in i.defs():
            lo, hi = r.first, r.first + r.count
            for table in (self._writes, self._reads):
                table[r.vreg] = [(m, a, b) for m, a, b in table.get(r.vreg, ()) if not (lo <= a and b <= hi)]
            self._writes[r.vreg].append((n, lo, hi))
        for r in i.uses():
            self._reads.setdefault(r.vreg, []).append((n, r.first, r.first + r.count))
