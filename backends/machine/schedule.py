"""Order the instructions in the blocks of a function, on virtual registers.

The order hides latency; it does not save registers. Loops of matrix instructions are ordered as if they repeated
without end (`steady`); other blocks with matrix instructions, and those ahead of such a loop, are list scheduled. All
other blocks are address arithmetic and keep program order. Memory accesses move only past accesses they cannot conflict
with; a barrier keeps shared-memory accesses on their side.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

import attrs

from convgen.backends.machine.allocate import Bank
from convgen.backends.machine.barrier_accesses import Ahead, accesses_ahead
from convgen.backends.machine.dependences import dependences
from convgen.backends.machine.headroom import Headroom, headrooms
from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Unit
from convgen.backends.machine.steady import Busy, steady
from convgen.ir.record import define

#: Looking up an attribute of an Enum takes as long as ten names.
_MATRIX, _GLOBAL, _SHARED, _VALU = Unit.MATRIX, Unit.GLOBAL, Unit.SHARED, Unit.VALU

# Clocks below are those of an iteration of two workgroups on a unit of the default target, with different values of the
# constant: `convgen conv mb32ic64ih56oc64oh56kh3ph1 --dir FWD_B --dt f16 --attr-post-ops OPS -o k`, profiled.

#: Matrix products per accumulator in a block. With fewer, all operands arrive at about the same time. With `sum+relu`,
#: 1 to 6 give equal clocks; with 8, prologue and epilogue of one workgroup take 6144 instead of 5856 clocks.
_MANY_PRODUCTS = 6

#: Vector operations per accumulator register. With more, and with slow functions such as the exponential among them,
#: the operations on accumulators keep program order, to bound their temporaries. Conversions alone do not count.
#: With `gelu_erf`, 0 to 9 give 1515 clocks; 99, as good as no bound, gives 1629.
_LONG_CHAIN = 3

#: Accumulators; work on this many takes as long as a read of shared memory. With `sum+relu`, 2 gives 1624 clocks; 0, 1,
#: 3 and 4 give 1666, 1631, 1627 and 1648.
_ACCUMULATORS_AHEAD = 2


def schedule(
    function: Function, busy: Busy = lambda i: i.op.busy, within: Mapping[str, Bank] | None = None
) -> Function:
    """Return the function with blocks reordered that have matrix instructions or precede a loop of them.

    `busy` returns the issue slots that instructions of loops, and loads, keep their unit busy. With `within`, blocks
    outside loops stay within these banks wherever program order does.
    """
    loops = {n for n, block in enumerate(function.blocks) if n in function.successors(n) and multiplies(block)}
    behind = {n for loop in loops for n in function.successors(loop)} - loops
    ahead = {n for n in range(len(function.blocks)) if loops & set(function.successors(n))} - loops
    published = accesses_ahead(function)
    headroom_of = headrooms(function, within) if within else None

    def body(index: int, block: BasicBlock) -> list[Instruction]:
        if not multiplies(block) and index not in ahead:
            return block.instructions
        tail = terminators(block.instructions)
        straight = block.instructions[: len(block.instructions) - len(tail)]
        if index in loops:
            return steady(straight, published, busy, len(tail)) + tail
        headroom = headroom_of[index] if headroom_of else None
        return _Scheduler(straight, published, busy, index in behind).run(headroom) + tail

    return function.rewritten(body)


def multiplies(block: BasicBlock) -> bool:
    return any(i.op.unit is _MATRIX for i in block.instructions)


@define(eq=False)
class _Node:
    """An instruction of the block with what must follow it."""

    instruction: Instruction
    unit: Unit
    successors: dict[int, int] = attrs.Factory(dict)  #: node -> issue slots from this one's issue to that one's
    waiting: int = 0  #: predecessors that have not issued
    ready: int = 0  #: first slot in which all operands are ready, as far as predecessors have issued
    height: int = 0  #: slots from issue to the end of the block along the longest path


_Queues = dict[Unit, list[tuple[int, int]]]  #: unit -> heap of (urgency, node), the most urgent first


def _next_unit(ready: _Queues, free: Mapping[Unit, int], slot: int) -> Unit | None:
    """Return the unit that issues in a slot: the matrix unit, else that of the most urgent node; None if none can."""
    best: Unit | None = None
    for unit, queue in ready.items():
        if queue and free[unit] <= slot:
            if unit is _MATRIX:
                return unit
            if best is None or queue[0] < ready[best][0]:
                best = unit
    return best


class _Scheduler:
    """List scheduling of one block: nodes by urgency, as their operands and units become ready."""

    def __init__(self, body: Sequence[Instruction], published: Ahead, busy: Busy, is_last: bool) -> None:
        self.nodes = [_Node(i, i.op.unit) for i in body]
        self.matrix_slots = sum(i.op.busy for i in body if i.op.unit is _MATRIX)
        for n, _, predecessors in dependences(body, published):
            self.nodes[n].waiting = len(predecessors)
            for before, latency in predecessors.items():
                self.nodes[before].successors[n] = latency
        self._keep_chains()
        self._heights(busy)
        self._stagger_accumulators(is_last)

    # ------------------------------------------------------------ urgency

    def _heights(self, busy: Busy) -> None:
        """Set each node's urgency: the slots from its issue to the end of the block.

        Loads from global memory issue in sequence, so the first is the most urgent: it delays the others. A load
        without a user in this block counts with its latency: the next block waits for it.
        """
        queue = 0
        for node in reversed(self.nodes):
            i = node.instruction
            height = 0
            for s, latency in node.successors.items():
                if height < latency + self.nodes[s].height:
                    height = latency + self.nodes[s].height
            node.height = height or i.op.busy
            if i.loads:
                queue = node.height = max(node.height, i.op.latency, queue + busy(i))

    # ------------------------------------------------------------ chains of operations on accumulators

    def _keep_chains(self) -> None:
        """Keep the vector unit in program order if a long chain of operations follows every accumulator.

        All chains are equally long: by urgency alone the first operations of all chains would issue first, and the
        temporaries of all would be live together.
        """
        behind = self._behind_products()
        sums = {r.vreg for node in self.nodes if node.unit is _MATRIX for r in node.instruction.defs()}
        slow = any(self.nodes[n].instruction.op.busy > 1 for n in behind)
        if not slow or len(behind) <= _LONG_CHAIN * sum(v.size for v in sums):
            return
        for before, n in itertools.pairwise(behind):
            if n not in self.nodes[before].successors:
                self.nodes[before].successors[n] = 1
                self.nodes[n].waiting += 1

    def _behind_products(self) -> list[int]:
        """Return the vector operations on accumulators, with their helpers, in program order.

        No product needs one of them.
        """
        behind, awaited = set[int](), set[int]()
        for n, node in enumerate(self.nodes):
            if n in behind or node.unit is _MATRIX:
                behind.update(node.successors)
        vector = {n for n, node in enumerate(self.nodes) if node.unit is _VALU}
        for n, node in reversed(list(enumerate(self.nodes))):
            if any(s in awaited or self.nodes[s].unit is _MATRIX for s in node.successors):
                awaited.add(n)
            elif node.successors and node.successors.keys() <= behind & vector:
                behind.add(n)
        return sorted((behind - awaited) & vector)

    # ------------------------------------------------------------ accumulators one after the other

    def _stagger_accumulators(self, is_last: bool) -> None:
        """Finish some accumulators before others, if they have many products and the work on the results takes longer.

        If all accumulators were ready at once, none of that work would overlap with matrix instructions. After a loop,
        any work on accumulators counts as long.
        """
        products = [n for n, node in enumerate(self.nodes) if node.unit is _MATRIX]
        places = dict.fromkeys(r.vreg for n in products for r in self.nodes[n].instruction.defs())
        number = {sums: n for n, sums in enumerate(places)}
        turns = {n: max(number[r.vreg] for r in self.nodes[n].instruction.defs()) for n in products}
        # operations on accumulators take the turn of the last accumulator they use
        for n, node in enumerate(self.nodes):
            for s in node.successors if n in turns else ():
                turns.setdefault(s, turns[n])
                turns[s] = turns[s] if self.nodes[s].unit is _MATRIX else max(turns[s], turns[n])
        behind = [op for op in (self.nodes[n].instruction.op for n in turns) if op.unit is _VALU]
        covered = 0 if is_last else self.matrix_slots
        if sum(op.busy for op in behind) <= covered or len(products) < _MANY_PRODUCTS * len(number):
            return
        # operands of products take the turn of the first product that uses them
        for n in reversed(range(len(self.nodes))):
            if n not in turns:
                turn = min((turns[s] for s in self.nodes[n].successors), default=len(number))
                turns[n] = turn - (_ACCUMULATORS_AHEAD if self.nodes[n].unit is _SHARED else 0)
        self._chain(products)
        highest = max(node.height for node in self.nodes)
        for n, node in enumerate(self.nodes):  # global memory has its own queue
            node.height += (len(number) - (turns[n] if node.unit is not _GLOBAL else 0)) * highest

    def _chain(self, products: Sequence[int]) -> None:
        """Let products that add to one accumulator follow one another as soon as the matrix unit is free."""
        for n in products:
            node = self.nodes[n]
            sums = {r.vreg for r in node.instruction.defs()}
            for s in node.successors:
                after = self.nodes[s].instruction
                if after.op is node.instruction.op and sums == {r.vreg for r in after.defs()}:
                    node.successors[s] = after.op.busy

    # ------------------------------------------------------------ issue

    def run(self, headroom: Headroom | None = None) -> list[Instruction]:
        """Return the block in its new order.

        Among the instructions that can issue in a slot, matrix work goes first, then the most urgent one. If `headroom`
        has no registers for that one so early, the first remaining instruction in program order goes.
        """
        out: list[Instruction] = []
        ready: _Queues = {node.unit: [] for node in self.nodes}
        free = dict.fromkeys(ready, 0)  # unit -> first slot in which it takes an instruction
        waiting = [(node.ready, n) for n, node in enumerate(self.nodes) if not node.waiting]  # (slot, node), by slot
        heapify(waiting)
        slot = 0
        while len(out) < len(self.nodes):
            while waiting and waiting[0][0] <= slot:
                n = heappop(waiting)[1]
                heappush(ready[self.nodes[n].unit], (self._urgency(n), n))
            unit = _next_unit(ready, free, slot)
            if unit is None:
                slot = min([free[unit] for unit, queue in ready.items() if queue] + [at for at, _ in waiting[:1]])
                continue
            if headroom is None or headroom.admits(ready[unit][0][1]):
                node = self.nodes[n := heappop(ready[unit])[1]]
            else:
                node = self.nodes[n := headroom.first]
                self._withdraw(n, waiting if slot < node.ready else ready[node.unit], slot)
                slot = max(slot, node.ready, free[node.unit])
            if headroom is not None:
                headroom.take(n)
            out.append(node.instruction)
            free[node.unit] = slot + node.instruction.op.busy
            self._release_successors(node, slot, waiting)
            slot += 1
        return out

    def _withdraw(self, n: int, queue: list[tuple[int, int]], slot: int) -> None:
        """Remove a node from the queue that it is in at `slot`."""
        ready = self.nodes[n].ready
        queue.remove((self._urgency(n) if ready <= slot else ready, n))
        heapify(queue)

    def _release_successors(self, node: _Node, slot: int, waiting: list[tuple[int, int]]) -> None:
        """Record that a node issues in `slot`; successors of which all predecessors have issued join `waiting`."""
        for s, latency in node.successors.items():
            after = self.nodes[s]
            if after.ready < slot + latency:
                after.ready = slot + latency
            after.waiting -= 1
            if not after.waiting:
                heappush(waiting, (after.ready, s))

    def _urgency(self, n: int) -> int:
        """Return the longest path from a node to the end, negated; for a global load, plus the block's matrix work."""
        node = self.nodes[n]
        return -node.height - (self.matrix_slots if node.unit is _GLOBAL else 0)


def terminators(body: list[Instruction]) -> list[Instruction]:
    """Return the branch at the end and the instructions that set its condition, or the end of the program."""
    last = body[-1] if body else None
    if last is None or not (last.target or last.op.ends):
        return []
    if last.op.ends:
        return body[-1:]
    flags, registers = set(last.flag_uses()), {r.vreg for r in last.uses()}

    def sets(i: Instruction) -> bool:
        return not flags.isdisjoint(i.flag_defs()) or any(r.vreg in registers for r in i.defs())

    first = next((n for n in reversed(range(len(body) - 1)) if sets(body[n])), None)
    if first is None:
        return body[-1:]
    counter = {r.vreg for r in body[first].uses()}
    while first and counter & {r.vreg for r in body[first - 1].defs()}:
        first -= 1
    return body[first:]
